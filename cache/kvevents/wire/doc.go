// Package wire reads and writes the KV-event messages of inference engines: the msgpack batches that vLLM and SGLang
// publish through ZeroMQ.
//
// A Decoder reads a batch straight from its bytes into buffers that it uses again, without allocating once they have
// grown. It takes every form that has been on the wire:
//
//   - the batch as an array [time, events, rank] or as a map {ts, events, data_parallel_rank | attn_dp_rank};
//   - an event as an array, its tag first (vLLM up to 0.23, older SGLang), trailing fields absent or not, or as a map with
//     the key "type" (vLLM from 0.24, SGLang 0.5.23), keys in any order, defaults left out;
//   - a block hash as an integer of any width and sign, as bytes of any length, or as an array that begins with one;
//   - token ids as integers or as EAGLE pairs [a, b].
//
// What is newer than this package is passed over: unknown fields, unknown kinds of event. What is wrong costs the event
// that it is in, never the batch. Lengths on the wire are only claims: nothing is allocated that the bytes at hand could
// not fill, and values are skipped without recursion, so that nesting costs nothing.
package wire

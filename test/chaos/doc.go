// Package chaos runs the whole path, a real Envoy, Sluice and simulated engines as processes of their own, under hundreds of
// clients that break off at every point, while engines, events, metrics pages, tokenizers, files, certificates and Sluice
// itself fail in turn, and then asks whether anything was lost, left behind or changed on the way.
//
// A run has a seed, from which the faults and what each client does are drawn. It is printed, with each fault at the time
// at which it took place; SLUICE_CHAOS_SEED repeats it, as far as the machine's timing lets it. SLUICE_CHAOS is how long faults
// last ("10m"), about 20 seconds unless set.
//
// # What must hold
//
// At the end, when faults are over, clients have gone and all is quiet:
//
//   - The ledger holds nothing: no request, no token, on no endpoint; and no stream is open.
//   - Sluice, Envoy and engines have no more goroutines (where they have any), sockets and files open than before the faults,
//     and Sluice's memory is flat.
//   - Sluice knows exactly as many blocks on every tier as the engines hold, and predicts, for prompts sent to each
//     engine, exactly the cached tokens that the engine reports.
//   - No process but those that were killed has died, panicked, or written of a data race; one that was told to go has cut
//     nothing.
//
// And of every single request:
//
//   - An engine that took a request's body for complete has got the very bytes that the client meant to send, also where the
//     client broke off. A client that read an answer to its end has the very bytes that an engine wrote for it.
//   - A request that a client sent whole is answered, and as it deserves: 200, or the 400 that is due. An answer of another
//     status, and one that breaks off, is excused by one thing alone: the engine that had the request, by Envoy's
//     access log or its own record, was killed or closed its connections in that time. A request cannot be sent twice
//     once an engine may have begun on it. At every moment at least three of the five engines are well, and Envoy is given
//     three picks; so every request has an endpoint that is able to serve it, and whatever is not excused counts as a
//     failure: refused connections, frozen engines, engines that answer 503, Sluice's own 503 and a drain that cuts.
package chaos

package zmtp

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// readAll reads the messages of a stream that arrives in pieces of a size, and the error at its end.
func readAll(stream []byte, piece int, o Options) (messages [][]string, r *reader, err error) {
	source := &replay{content: stream, piece: piece}
	r = newReader(func(p []byte, _ bool) (int, error) { return source.Read(p) }, o.withDefaults())
	r.messages = true
	for {
		frames, command, err := r.next()
		if err != nil {
			return messages, r, err
		}
		if command != nil {
			frames = [][]byte{[]byte("command"), command}
		}
		messages = append(messages, texts(frames))
	}
}

func TestPiecesDoNotMatter(t *testing.T) {
	var stream []byte
	var want [][]string
	for i, size := range []int{0, 1, 255, 256, 5000, inputBytes, inputBytes + 1, 200_000} {
		body := bytes.Repeat([]byte{byte('a' + i)}, size)
		stream = appendMessage(stream, [][]byte{[]byte("t"), body, nil})
		stream = appendCommand(stream, commandPing, []byte{0, byte(i)})
		want = append(want, []string{"t", string(body), ""}, []string{"command", "\x04PING\x00" + string(rune(i))})
	}
	for _, piece := range []int{1, 2, 3, 9, 10, 1000, inputBytes, 1 << 20} {
		got, _, err := readAll(stream, piece, Options{})
		if err == nil || err.Error() != "EOF" {
			t.Errorf("pieces of %d: error %v", piece, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pieces of %d: %s", piece, diff)
		}
	}
}

// What is claimed costs nothing: memory follows what arrived.
func TestClaimedLengthsAllocateNothing(t *testing.T) {
	for _, tt := range []struct{ claimed, arrived, most int }{
		{64 << 20, 0, 0},
		{64 << 20, 10, 4096},
		{64 << 20, 1 << 20, 3 << 20},
		{64 << 20, 20 << 20, 45 << 20},
		{100, 10, 4096},
		{maxCommandBytes, 10, 4096},
	} {
		stream := append(long(0, uint64(tt.claimed)), make([]byte, tt.arrived)...)
		_, r, err := readAll(stream, 1<<20, Options{})
		if err == nil || len(r.body) != tt.arrived {
			t.Errorf("%+v: %d bytes, error %v", tt, len(r.body), err)
		}
		if cap(r.body) > max(tt.most, growBytes+growBytes/4) {
			t.Errorf("%+v: a buffer of %d bytes", tt, cap(r.body))
		}
	}
	// Many peers that claim much are as cheap as many that say nothing.
	const peers = 100
	stream := append(long(0, 64<<20), make([]byte, inputBytes)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range peers {
		_, _, _ = readAll(stream, 1<<20, Options{})
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / peers; each > 6*growBytes {
		t.Errorf("a peer that claims 64 MiB costs %d bytes", each)
	}
}

// The buffer of a large message is kept as long as such messages come.
func TestLargeBufferGoes(t *testing.T) {
	large, small := make([]byte, 8<<20), []byte("small")
	var stream []byte
	for range 3 {
		stream = appendMessage(stream, [][]byte{large})
		for range keepMessages - 2 {
			stream = appendMessage(stream, [][]byte{small})
		}
	}
	messages, r, _ := readAll(stream, 1<<20, Options{})
	if len(messages) != 3*(keepMessages-1) || cap(r.body) < 8<<20 {
		t.Errorf("%d messages, and a buffer of %d bytes while large ones come", len(messages), cap(r.body))
	}
	for range 3 {
		stream = appendMessage(stream, [][]byte{small})
	}
	messages, r, _ = readAll(stream, 1<<20, Options{})
	if len(messages) != 3*keepMessages || cap(r.body) > keepBytes || messages[len(messages)-1][0] != "small" {
		t.Errorf("%d messages, and a buffer of %d bytes after small ones", len(messages), cap(r.body))
	}
}

func TestWarmConnectionDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	c, other := pair(t, DEALER, ROUTER, Options{})
	topic, seq, small, large := []byte("kv@10.0.0.1:8000@m"), make([]byte, 8), make([]byte, 700), make([]byte, 90_000)
	round := func() {
		for _, payload := range [][]byte{small, large, nil, small} {
			if err := c.Send(topic, seq, payload); err != nil {
				t.Fatal(err)
			}
			frames, err := other.Receive()
			if err != nil || len(frames) != 3 || len(frames[2]) != len(payload) {
				t.Fatal(len(frames), err)
			}
		}
	}
	for range 3 {
		round()
	}
	if allocs := testing.AllocsPerRun(200, round); allocs != 0 {
		t.Errorf("%v allocations for 4 messages sent and received", allocs)
	}
}

func BenchmarkReceive(b *testing.B) {
	stream := appendMessage(nil, [][]byte{[]byte("kv-events"), make([]byte, 8), make([]byte, 700)})
	r := newReader(func(p []byte, _ bool) (int, error) { return copy(p, stream), nil }, Options{}.withDefaults())
	r.messages = true
	b.SetBytes(int64(len(stream)))
	b.ReportAllocs()
	for b.Loop() {
		if frames, _, err := r.next(); err != nil || len(frames) != 3 {
			b.Fatal(frames, err)
		}
	}
}

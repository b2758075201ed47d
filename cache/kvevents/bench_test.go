package kvevents

import (
	"encoding/binary"
	"testing"

	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
	"github.com/sluice-epp/sluice/scheduling"
)

// BenchmarkLiveMessage is a captured message from its frames to the sink.
func BenchmarkLiveMessage(b *testing.B) {
	sink := &deafSink{}
	frames := kvtest.Captures(b, "kv_sha256_b32")
	f := Follow(&scheduling.Endpoint{EndpointSpec: scheduling.EndpointSpec{Address: "127.0.0.1:1", KVEvents: scheduling.KVEvents{ReplayPort: -1}}},
		Config{}, Options{}, func(int) Sink { return sink })
	defer f.Close()
	l := &link{feed: f, address: "here", stop: func() {}}
	l.Connected(nil)
	number := make([]byte, 8)
	message := [][]byte{nil, number, nil}
	seq := 0
	send := func() {
		m := frames[seq%len(frames)]
		message[0], message[2] = m.Topic, m.Payload
		binary.BigEndian.PutUint64(number, uint64(seq))
		l.Message(message)
		seq++
	}
	for range maxHeld + 1 {
		send()
	}
	b.ReportAllocs()
	for b.Loop() {
		send()
	}
}

package transport

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// A buffer has the length that was asked for and no more than twice the room, so that 64 KiB of body do not take a MiB.
func TestBufferSizes(t *testing.T) {
	p := &buffers{}
	for _, n := range []int{0, 1, 1024, 2047, 2048, 2049, 16 << 10, 62_000, 65_536, 65_537, 1 << 20, 8 << 20, 8<<20 + 1, 70 << 20} {
		for range 3 { // fresh, then perhaps again
			b := p.Get(n)
			if len(*b) != n || cap(*b) > max(2*n, 2<<10)+round {
				t.Errorf("Get(%d) has %d bytes and room for %d", n, len(*b), cap(*b))
			}
			p.Put(b)
		}
	}
}

// What comes back in another shape is not kept: Get could not keep its promise with it.
func TestForeignBuffersAreDropped(t *testing.T) {
	p := &buffers{}
	for _, n := range []int{0, 10, 1500, 3000, 65_535, 16 << 20} {
		b := make([]byte, n)
		p.Put(&b)
	}
	for _, n := range []int{1, 2048, 4096, 65_536, 8 << 20} {
		if b := p.Get(n); len(*b) != n {
			t.Errorf("Get(%d) has %d bytes", n, len(*b))
		}
	}
	b := make([]byte, 10, 4096)
	p.Put(&b)
	if got := p.Get(4000); len(*got) != 4000 {
		t.Errorf("a buffer that came back short has %d bytes, want 4000", len(*got))
	}
}

func message(body []byte) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: body, EndOfStream: true}}}
}

// Messages come out as they went in, whatever was in the buffers before, from many goroutines at once, and stay so after
// the buffers went back.
func TestCodecRoundTrip(t *testing.T) {
	c := codec{&buffers{}}
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for round := range 50 {
				size := []int{0, 100, 1000, 1100, 20_000, 70_000}[round%6]
				want := message(bytes.Repeat([]byte{byte(worker), byte(round)}, size/2))
				data, err := c.Marshal(want)
				if err != nil {
					t.Error(err)
					return
				}
				plain, err := proto.Marshal(want)
				if err != nil || !bytes.Equal(data.Materialize(), plain) {
					t.Errorf("%d bytes of body: encoded otherwise than by proto.Marshal (%v)", size, err)
				}
				data = split(data, c.buffers)
				got := &extprocv3.ProcessingRequest{}
				if err := c.Unmarshal(data, got); err != nil {
					t.Error(err)
				}
				data.Free()
				dirty := c.buffers.Get(len(plain))
				for i := range *dirty {
					(*dirty)[i] = 0xff
				}
				c.buffers.Put(dirty)
				if !proto.Equal(want, got) {
					t.Errorf("%d bytes of body: decoded to another message", size)
				}
			}
		})
	}
	group.Wait()
}

// split makes buffers of up to 16 KiB of data, as frames come in.
func split(data mem.BufferSlice, pool mem.BufferPool) mem.BufferSlice {
	var frames mem.BufferSlice
	rest := data.Materialize()
	data.Free()
	for len(rest) > 0 {
		n := min(len(rest), 16<<10)
		frames = append(frames, mem.Copy(rest[:n], pool))
		rest = rest[n:]
	}
	return frames
}

func TestCodecRefuses(t *testing.T) {
	c := codec{&buffers{}}
	if _, err := c.Marshal("text"); err == nil || !strings.Contains(err.Error(), "encode string") {
		t.Errorf("encoding no message: %v", err)
	}
	if err := c.Unmarshal(nil, new(int)); err == nil || !strings.Contains(err.Error(), "decode *int") {
		t.Errorf("decoding into no message: %v", err)
	}
	broken := mem.BufferSlice{mem.SliceBuffer([]byte{0x0a})}
	if err := c.Unmarshal(broken, &extprocv3.ProcessingRequest{}); err == nil || !strings.Contains(err.Error(), "decode *ext_procv3.ProcessingRequest") {
		t.Errorf("decoding a cut message: %v", err)
	}
	// Not UTF-8, which a string field may not hold.
	bad := &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{Details: "\xff" + strings.Repeat("x", 3000)}}}
	if _, err := c.Marshal(bad); err == nil {
		t.Error("a string that is not UTF-8 was encoded")
	}
	bad.GetImmediateResponse().Details = "\xff"
	if _, err := c.Marshal(bad); err == nil {
		t.Error("a short string that is not UTF-8 was encoded")
	}
}

func BenchmarkCodecChunk(b *testing.B) {
	c := codec{&buffers{}}
	m := message(make([]byte, 62_000))
	b.ReportAllocs()
	for b.Loop() {
		data, err := c.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		data.Free()
	}
}

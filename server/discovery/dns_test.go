package discovery

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// dnsServer is a name server on loopback, on one port for UDP and TCP.
type dnsServer struct {
	udp  net.PacketConn
	tcp  net.Listener
	done sync.WaitGroup

	mu      sync.Mutex
	zone    map[string][]any // by "name type": netip.Addr, dnsmessage.SRVResource, or one rcode or mute
	asked   map[string]int
	overTCP int
}

// mute as an answer is no answer at all.
type mute struct{}

func startDNS(t *testing.T) *dnsServer {
	t.Helper()
	s := &dnsServer{zone: make(map[string][]any), asked: make(map[string]int)}
	for attempt := 1; ; attempt++ { // a port that is free for UDP may be taken for TCP
		var err error
		if s.udp, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if s.tcp, err = net.Listen("tcp", s.udp.LocalAddr().String()); err == nil {
			break
		}
		_ = s.udp.Close()
		if attempt == 50 {
			t.Fatal(err)
		}
	}
	s.done.Go(s.serveUDP)
	s.done.Go(s.serveTCP)
	t.Cleanup(func() {
		_ = s.udp.Close()
		_ = s.tcp.Close()
		s.done.Wait()
	})
	return s
}

// resolver is Go's resolver with this server in the place of those of the system.
func (s *dnsServer) resolver() *net.Resolver {
	return newResolver(func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, s.udp.LocalAddr().String())
	})
}

// set gives a question its answer; none means that the name exists without such records.
func (s *dnsServer) set(name, kind string, answer ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zone[name+" "+kind] = answer
}

func (s *dnsServer) setA(name string, addrs ...string) {
	answer := make([]any, len(addrs))
	for i := range addrs {
		answer[i] = netip.MustParseAddr(addrs[i])
	}
	s.set(name, "A", answer...)
}

func (s *dnsServer) count(question string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[question]
}

func (s *dnsServer) serveUDP() {
	buf := make([]byte, 65536)
	for {
		n, from, err := s.udp.ReadFrom(buf)
		if err != nil {
			return
		}
		if answer := s.answer(buf[:n], false); answer != nil {
			_, _ = s.udp.WriteTo(answer, from)
		}
	}
}

func (s *dnsServer) serveTCP() {
	for {
		conn, err := s.tcp.Accept()
		if err != nil {
			return
		}
		s.done.Go(func() {
			defer func() { _ = conn.Close() }()
			var size [2]byte
			if _, err := io.ReadFull(conn, size[:]); err != nil {
				return
			}
			question := make([]byte, binary.BigEndian.Uint16(size[:]))
			if _, err := io.ReadFull(conn, question); err != nil {
				return
			}
			answer := s.answer(question, true)
			_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
		})
	}
}

// answer makes the answer to a question; nil for none.
func (s *dnsServer) answer(message []byte, tcp bool) []byte {
	var p dnsmessage.Parser
	header, err := p.Start(message)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	kind := strings.TrimPrefix(q.Type.String(), "Type")
	key := strings.ToLower(q.Name.String()) + " " + kind
	s.mu.Lock()
	records, known := s.zone[key]
	s.asked[key]++
	if tcp {
		s.overTCP++
	}
	s.mu.Unlock()
	header.Response, header.RecursionAvailable = true, true
	if !known {
		header.RCode = dnsmessage.RCodeNameError
	}
	for _, r := range records {
		switch r := r.(type) {
		case mute:
			return nil
		case dnsmessage.RCode:
			header.RCode = r
		}
	}
	full, err := pack(header, q, records)
	if err != nil {
		return nil
	}
	if !tcp && len(full) > 512 {
		header.Truncated = true
		full, _ = pack(header, q, nil)
	}
	return full
}

func pack(header dnsmessage.Header, q dnsmessage.Question, records []any) ([]byte, error) {
	b := dnsmessage.NewBuilder(nil, header)
	b.EnableCompression()
	err := errors.Join(b.StartQuestions(), b.Question(q), b.StartAnswers())
	rh := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 1}
	for _, r := range records {
		switch r := r.(type) {
		case netip.Addr:
			if r.Is4() {
				err = errors.Join(err, b.AResource(rh, dnsmessage.AResource{A: r.As4()}))
			} else {
				err = errors.Join(err, b.AAAAResource(rh, dnsmessage.AAAAResource{AAAA: r.As16()}))
			}
		case dnsmessage.SRVResource:
			err = errors.Join(err, b.SRVResource(rh, r))
		}
	}
	if err != nil {
		return nil, err
	}
	return b.Finish()
}

func srv(target string, port uint16) dnsmessage.SRVResource {
	return dnsmessage.SRVResource{Priority: 1, Weight: 1, Port: port, Target: dnsmessage.MustNewName(target)}
}

package extproc

import (
	"net/netip"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-epp/sluice/scheduling"
)

// subset is a limit on the candidates that the request carries.
type subset struct {
	present bool
	entries []string // "ip:port", "[ip6]:port" or "ip" for any port of it
}

// readMetadata takes the subset hint (before the pick) and the served report (after it) out of a message's metadata.
// Proxies send each with whichever message they like, so every message is looked at.
func (st *stream) readMetadata(md *corev3.Metadata) {
	fm := md.GetFilterMetadata()
	if s := fm[SubsetNamespace]; s != nil && !st.request.replied {
		if v, ok := s.GetFields()[SubsetKey]; ok {
			st.request.subset = subset{present: true, entries: subsetEntries(v, st.request.subset.entries[:0])}
		}
	}
	if s := fm[MetadataNamespace]; s != nil && st.request.replied {
		if v := s.GetFields()[ServedKey].GetStringValue(); v != "" {
			st.onServed(v)
		}
	}
}

// subsetEntries reads the hint in every shape that proxies send: a list of strings, one string, either of them with
// commas and white space inside.
func subsetEntries(v *structpb.Value, into []string) []string {
	if list := v.GetListValue(); list != nil {
		for _, e := range list.GetValues() {
			into = splitEntries(e.GetStringValue(), into)
		}
		return into
	}
	return splitEntries(v.GetStringValue(), into)
}

func splitEntries(s string, into []string) []string {
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			into = append(into, part)
		}
	}
	return into
}

// resolve is the set of endpoints that the entries name. An entry that names none, or cannot be read, adds nothing: a
// hint that nobody matches leaves no candidate, which the protocol answers with 503.
func (s *subset) resolve(snapshot *scheduling.Snapshot) scheduling.Set {
	allowed := scheduling.NewSet(len(snapshot.Endpoints))
	for _, entry := range s.entries {
		if ap, err := netip.ParseAddrPort(entry); err == nil {
			ap = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
			if e := snapshot.ByAddress(ap.String()); e != nil {
				allowed.Add(e.Ordinal)
			}
			continue
		}
		addr, err := netip.ParseAddr(strings.Trim(entry, "[]"))
		if err != nil {
			continue
		}
		addEveryPort(snapshot, addr.Unmap(), allowed)
	}
	return allowed
}

func addEveryPort(snapshot *scheduling.Snapshot, addr netip.Addr, allowed scheduling.Set) {
	for _, e := range snapshot.Endpoints {
		if e == nil {
			continue
		}
		if ap, err := netip.ParseAddrPort(e.Address); err == nil && ap.Addr() == addr {
			allowed.Add(e.Ordinal)
		}
	}
}

// onServed compares the endpoint that the proxy reports with the charged one, and moves the charge where they differ.
func (st *stream) onServed(address string) {
	st.response.served = address
	if st.flight == nil {
		return
	}
	if ap, err := netip.ParseAddrPort(strings.TrimSpace(address)); err == nil {
		address = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()).String()
	}
	if st.flight.Endpoint.Address == address {
		return
	}
	e := st.servedEndpoint(address)
	if e == nil {
		st.server.cfg.Observer.Noted(NoteServedUnknown)
		return
	}
	st.server.cfg.Observer.Noted(NoteServedElsewhere)
	st.flight.Served(e, st.server.cfg.Now())
}

// servedEndpoint finds the reported endpoint, first among the picks: the instance that was picked may have left the
// pool since.
func (st *stream) servedEndpoint(address string) *scheduling.Endpoint {
	for _, e := range st.flight.Picks {
		if e.Address == address {
			return e
		}
	}
	return st.server.cfg.Pool.Snapshot().ByAddress(address)
}

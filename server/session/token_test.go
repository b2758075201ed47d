package session

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
)

var secret = []byte("sixteen bytes or more")

func instance(uid, address string) *scheduling.Endpoint {
	return &scheduling.Endpoint{EndpointSpec: scheduling.EndpointSpec{UID: uid, Address: address}}
}

// Two processes with one key read each other's tokens.
func TestTokensAgree(t *testing.T) {
	one, other := newSigner(secret), newSigner(secret)
	e := instance("pod-uid", "10.0.0.7:8000")
	token := one.sign(one.tagOf(e), 1000)
	got, v := other.read([]byte(token), 999)
	if v != verdictValid || got != other.tagOf(e) {
		t.Errorf("%v, the same endpoint: %v", v, got == other.tagOf(e))
	}
	if len(token) != tokenBytes || tokenBytes != 50 {
		t.Errorf("a token of %d bytes, tokenBytes %d", len(token), tokenBytes)
	}
	if again := one.sign(one.tagOf(e), 1000); again != token {
		t.Errorf("%q and %q for one endpoint and time", token, again)
	}
}

func TestTokensThatDoNotCount(t *testing.T) {
	s := newSigner(secret)
	e := instance("", "10.0.0.7:8000")
	token := s.sign(s.tagOf(e), 1000)
	raw, err := encoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	later := bytes.Clone(raw)
	later[4]++
	versioned := bytes.Clone(raw)
	versioned[0]++
	for name, test := range map[string]struct {
		text string
		now  int64
		want verdict
	}{
		"in time":                   {token, 999, verdictValid},
		"the moment that it ends":   {token, 1000, verdictExpired},
		"long after":                {token, 1 << 40, verdictExpired},
		"another key":               {newSigner([]byte("another key of 16 bytes")).sign(s.tagOf(e), 1000), 0, verdictForged},
		"another key, expired":      {newSigner([]byte("another key of 16 bytes")).sign(s.tagOf(e), 1000), 2000, verdictForged},
		"a later end":               {encoding.EncodeToString(later), 999, verdictForged},
		"another version":           {encoding.EncodeToString(versioned), 999, verdictMalformed},
		"empty":                     {"", 0, verdictMalformed},
		"a byte short":              {token[1:], 0, verdictMalformed},
		"a byte more":               {token + "A", 0, verdictMalformed},
		"a megabyte":                {strings.Repeat("A", 1<<20), 0, verdictMalformed},
		"not base64":                {strings.Repeat("!", tokenBytes), 0, verdictMalformed},
		"padding":                   {token[:tokenBytes-2] + "==", 0, verdictMalformed},
		"a line break":              {token[:10] + "\n" + token[11:], 0, verdictMalformed},
		"zeros":                     {strings.Repeat("A", tokenBytes), 0, verdictMalformed},
		"an endpoint's name, coded": {base64.StdEncoding.EncodeToString([]byte("llm/vllm-7d9f-x2x4z")), 0, verdictMalformed},
	} {
		if _, got := s.read([]byte(test.text), test.now); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// Whatever bit of a token is changed, it counts no more, the bits that base64 leaves over included.
func TestEveryBitIsSigned(t *testing.T) {
	s := newSigner(secret)
	token := []byte(s.sign(s.tagOf(instance("u", "10.0.0.7:8000")), 1000))
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	for i := range token {
		for bit := range 6 {
			changed := bytes.Clone(token)
			changed[i] = alphabet[strings.IndexByte(alphabet, token[i])^1<<bit]
			if _, v := s.read(changed, 0); v == verdictValid {
				t.Errorf("character %d: %q for %q counts", i, changed[i], token[i])
			}
		}
	}
}

// A token holds no address, nor anything that one without the key could make of it.
func TestTokensHideAddresses(t *testing.T) {
	s, other := newSigner(secret), newSigner([]byte("another key of 16 bytes"))
	e := instance("", "10.0.0.7:8000")
	raw, err := encoding.DecodeString(s.sign(s.tagOf(e), 1000))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]byte{[]byte(e.Address), {10, 0, 0, 7}, {0x1f, 0x40}} {
		if bytes.Contains(raw, part) {
			t.Errorf("the token holds %v", part)
		}
	}
	if s.tagOf(e) == other.tagOf(e) {
		t.Error("the tag does not depend on the key")
	}
	if tag := s.tagOf(e); bytes.Equal(raw[signedBytes:], tag[:]) {
		t.Error("the signature is the tag")
	}
}

func TestTagsTellInstancesApart(t *testing.T) {
	s := newSigner(secret)
	seen := map[tag]string{}
	for _, e := range []*scheduling.Endpoint{
		instance("", "10.0.0.7:8000"), instance("", "10.0.0.7:8001"), instance("a", "10.0.0.7:8000"), instance("b", "10.0.0.7:8000"),
		instance("ab", "10.0.0.7:8000"), instance("a", "b10.0.0.7:8000"),
	} {
		tag := s.tagOf(e)
		if before, twice := seen[tag]; twice {
			t.Errorf("%s/%s has the tag of %s", e.UID, e.Address, before)
		}
		seen[tag] = e.UID + "/" + e.Address
	}
}

// FuzzToken: no text counts but one that the key signed, and that one only until its end.
func FuzzToken(f *testing.F) {
	s := newSigner(secret)
	good := s.tagOf(instance("u", "10.0.0.7:8000"))
	f.Add(s.sign(good, 1000), int64(0))
	f.Add(s.sign(good, 1000), int64(1000))
	f.Add("", int64(0))
	f.Fuzz(func(t *testing.T, text string, now int64) {
		got, v := s.read([]byte(text), now)
		if v >= numVerdicts {
			t.Fatalf("verdict %d", v)
		}
		if v != verdictValid {
			if got != (tag{}) {
				t.Errorf("%v with the tag %x", v, got)
			}
			return
		}
		raw, err := encoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		expires := int64(raw[1])<<24 | int64(raw[2])<<16 | int64(raw[3])<<8 | int64(raw[4])
		if s.sign(got, expires) != text || now >= expires {
			t.Errorf("%q counts at %d", text, now)
		}
	})
}

func BenchmarkSign(b *testing.B) {
	s := newSigner(secret)
	t := s.tagOf(instance("u", "10.0.0.7:8000"))
	b.ReportAllocs()
	for b.Loop() {
		s.sign(t, 1000)
	}
}

package calibrate

import (
	"bytes"
	"math"
	"testing"
	"time"
)

// FuzzStream: whatever an endpoint answers, what is read of it can be.
func FuzzStream(f *testing.F) {
	for _, seed := range []string{
		"", "data: [DONE]\n\n", "data: {\"choices\":[{}],\"usage\":{\"prompt_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\ndata:[DONE]\n",
		"data: {\"error\":{\"message\":\"\\u001b[31m\"}}\n", ": comment\r\nevent: x\r\ndata: {\r\n", "data: {\"usage\":{\"prompt_tokens\":-1}}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := readStream(bytes.NewReader(b), func() time.Duration { return time.Second })
		if a.prompt < -1 || a.cached > a.prompt || a.ttft != -1 && a.ttft != time.Second {
			t.Fatalf("%+v, %v", a, err)
		}
		if err != nil && bytes.ContainsRune([]byte(err.Error()), 0x1b) {
			t.Fatalf("an error for the terminal: %q", err)
		}
	})
}

// FuzzFit: no samples make the fit fail or its terms negative.
func FuzzFit(f *testing.F) {
	f.Add(1.0, 2.0, 3.0, uint8(40))
	f.Add(0.0, 0.0, 1e-9, uint8(1))
	f.Add(1e15, 1e15, 1e9, uint8(200))
	f.Fuzz(func(t *testing.T, uncached, ahead, ms float64, n uint8) {
		if !(uncached >= 0 && uncached < 1e18 && ahead >= 0 && ahead < 1e18 && ms > 0 && ms < 1e9) {
			t.Skip()
		}
		var samples []sample
		for i := range int(n) + 1 {
			samples = append(samples, sample{uncached: uncached * float64(i), ahead: ahead * float64(i%3), ms: ms})
		}
		m := fitModel(samples, nil, rounds)
		for _, v := range m.terms {
			if !(v >= 0) || math.IsInf(v, 0) {
				t.Fatalf("%+v", m)
			}
		}
	})
}

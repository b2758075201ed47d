package scheduling

import "testing"

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "1": 1, "1KiB": 1 << 10, "64MiB": 64 << 20, "2 GiB": 2 << 30, "1536": 1536, "-1": -1} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%q reads as %d, %v; want %d", text, int64(s), err, want)
		}
	}
	for text, s := range map[string]Size{"0": 0, "1": 1, "1KiB": 1 << 10, "1025": 1025, "64MiB": 64 << 20, "-2GiB": -2 << 30} {
		if got := s.String(); got != text {
			t.Errorf("%d is written as %s, want %s", int64(s), got, text)
		}
	}
	for _, text := range []string{"", "MiB", "1MB", "1.5MiB", "9223372036854775807KiB", "1e6", "0x1"} {
		if err := new(Size).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// Whatever is read is written as something that reads as the same.
func FuzzSize(f *testing.F) {
	for _, text := range []string{"0", "67108864", "64MiB", "1 GiB", "-1KiB", "9223372036854775807", "8589934591GiB", "KiB", "1e6"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var s, again Size
		if err := s.UnmarshalText([]byte(text)); err != nil {
			if s != 0 {
				t.Errorf("%q is refused and sets %d", text, int64(s))
			}
			return
		}
		written, err := s.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		if err := again.UnmarshalText(written); err != nil || again != s {
			t.Errorf("%q reads as %d and is written as %s, which reads as %d, %v", text, int64(s), written, int64(again), err)
		}
	})
}

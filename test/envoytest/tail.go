package envoytest

import "sync"

// tailBytes is how much of Envoy's output is kept.
const tailBytes = 256 << 10

// tail keeps the last bytes written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
	lost bool
}

// Write never fails.
func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = append(w.kept, p...)
	if over := len(w.kept) - tailBytes; over > 0 {
		w.kept = append(w.kept[:0], w.kept[over:]...)
		w.lost = true
	}
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost {
		return "…" + string(w.kept)
	}
	return string(w.kept)
}

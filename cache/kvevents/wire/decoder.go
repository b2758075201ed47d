package wire

import (
	"fmt"
	"slices"
)

// What a batch may hold beyond what its bytes bound by themselves. Events past a limit are counted as Batch.Bad.
const (
	maxEvents = 1 << 16
	maxItems  = 1 << 17
)

const (
	maxRank      = 1<<16 - 1
	maxBlockSize = 1<<31 - 1 // tokens
	maxGroup     = 1<<31 - 1
)

// A batch that needs so much less than the buffers hold gives them back.
const (
	keepBytes = 1 << 20 // always kept
	keepRatio = 64      // buffer bytes a payload byte
)

// Decoder reads batches into buffers that it uses again. The zero value is ready. It is not for use by several goroutines
// at once.
//
// Its memory is bounded by the largest payload of late: at most 8 bytes for each of the payload's, and 18 MiB for the
// events and extra keys of the fullest batch there can be.
type Decoder struct {
	batch  Batch
	events []Event
	hashes []uint64
	tokens []uint32
	items  []Item
	ends   []int
	text   []byte

	tails        [Cleared + 1]tail
	media, specs names
}

// Decode reads one batch. The batch and all that it holds are valid until the next Decode; they alias the payload and the
// Decoder's buffers.
//
// An event of an unknown kind, and one that is malformed, is left out and counted in the batch. An error means that there
// is no batch: ErrTruncated where the payload ends too early or holds a byte that no msgpack value begins with, ErrBatch
// where it is something else. Bytes after the batch are passed over.
func (d *Decoder) Decode(payload []byte) (*Batch, error) {
	d.reset(len(payload))
	var err error
	if isMap(payload, 0) {
		err = d.batchMap(payload)
	} else {
		err = d.batchArray(payload)
	}
	if err != nil {
		d.batch = Batch{}
		return nil, err
	}
	d.batch.Events = d.events
	return &d.batch, nil
}

// reset empties the buffers, and drops them where they are far larger than what comes.
func (d *Decoder) reset(payload int) {
	if held := d.held(); held > keepBytes && held/keepRatio > payload {
		*d = Decoder{media: d.media, specs: d.specs}
	}
	d.batch = Batch{}
	d.events, d.hashes, d.tokens = d.events[:0], d.hashes[:0], d.tokens[:0]
	d.items, d.ends, d.text = d.items[:0], d.ends[:0], d.text[:0]
}

// held is the size of the buffers in bytes.
func (d *Decoder) held() int {
	return eventBytes*cap(d.events) + 8*cap(d.hashes) + 4*cap(d.tokens) + itemBytes*cap(d.items) + 8*cap(d.ends) + cap(d.text)
}

// batchArray reads [time, events, rank]; the rank may be absent, and whatever follows it is passed over.
func (d *Decoder) batchArray(b []byte) error {
	n, p, ok := readArray(b, 0)
	if !ok || n < 2 {
		return broken(b, 0, "payload", "an array or map")
	}
	if p, ok = d.batchTime(b, p); !ok {
		return broken(b, p, "ts", "a number")
	}
	p, err := d.batchEvents(b, p)
	if err != nil || n == 2 {
		return err
	}
	if p, err = d.batchRank(b, p); err != nil {
		return err
	}
	for range n - 3 {
		at := p
		if p, ok = skip(b, at); !ok {
			return broken(b, at, "payload", "")
		}
	}
	return nil
}

// batchMap reads a batch that is a map.
func (d *Decoder) batchMap(b []byte) error {
	n, p, ok := readMap(b, 0)
	if !ok {
		return broken(b, 0, "payload", "an array or map")
	}
	seen := false
	for range n {
		key, value, ok := readText(b, p)
		if !ok {
			if value, ok = skip(b, p); !ok {
				return broken(b, p, "payload", "")
			}
		}
		err := error(nil)
		switch string(key) {
		case "ts":
			if p, ok = d.batchTime(b, value); !ok {
				return broken(b, value, "ts", "a number")
			}
		case "events":
			if seen {
				return fmt.Errorf("%w: events is there twice", ErrBatch)
			}
			seen = true
			p, err = d.batchEvents(b, value)
		case "data_parallel_rank", "attn_dp_rank":
			p, err = d.batchRank(b, value)
		default:
			if p, ok = skip(b, value); !ok {
				return broken(b, value, "payload", "")
			}
		}
		if err != nil {
			return err
		}
	}
	if !seen {
		return fmt.Errorf("%w: events is missing", ErrBatch)
	}
	return nil
}

func (d *Decoder) batchTime(b []byte, p int) (next int, ok bool) {
	t, next, ok := readNumber(b, p)
	if !ok {
		return p, false
	}
	d.batch.Time = t
	return next, true
}

func (d *Decoder) batchRank(b []byte, p int) (next int, err error) {
	if isNil(b, p) {
		return p + 1, nil
	}
	rank, next, ok := readCount(b, p, maxRank)
	if !ok {
		return 0, broken(b, p, "data_parallel_rank", fmt.Sprintf("nil or 0 to %d", maxRank))
	}
	d.batch.Rank, d.batch.HasRank = rank, true
	return next, nil
}

func (d *Decoder) batchEvents(b []byte, p int) (next int, err error) {
	if isNil(b, p) {
		return p + 1, nil
	}
	n, q, ok := readArray(b, p)
	if !ok {
		return 0, broken(b, p, "events", "an array")
	}
	for i := range n {
		if q, ok = d.event(b, q); !ok {
			return 0, fmt.Errorf("events[%d]: %w", i, ErrTruncated)
		}
	}
	return q, nil
}

// broken says what is wrong with the value at b[p:], which was to be something else.
func broken(b []byte, p int, what, want string) error {
	if _, ok := skip(b, p); !ok {
		return fmt.Errorf("%s: %w (byte %d of %d)", what, ErrTruncated, p, len(b))
	}
	return fmt.Errorf("%w: %s must be %s, got the byte 0x%02x", ErrBatch, what, want, b[p])
}

// grow lengthens a buffer by n.
func grow[T any](s []T, n int) []T {
	if len(s)+n > cap(s) {
		s = slices.Grow(s, n)
	}
	return s[:len(s)+n]
}

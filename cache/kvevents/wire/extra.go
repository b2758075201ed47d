package wire

import (
	"bytes"
	"strconv"
)

// adapterByID begins the name of an adapter of which only the id is told. The zero byte keeps it apart from every name
// that a request can carry.
const adapterByID = "\x00lora_id="

// AdapterByID reports whether an event's LoRA name stands for an adapter of which the engine tells only the id.
func AdapterByID(name []byte) bool { return bytes.HasPrefix(name, []byte(adapterByID)) }

// nameAdapter makes the name of an adapter of which only the id is told: number, or text where that is not empty.
func (d *Decoder) nameAdapter(number int64, text []byte) []byte {
	from := len(d.text)
	d.text = append(d.text, adapterByID...)
	if len(text) > 0 {
		d.text = append(d.text, text...)
	} else {
		d.text = strconv.AppendInt(d.text, number, 10)
	}
	return d.text[from:len(d.text):len(d.text)]
}

// noExtra reads extra keys that are nil for every block, the usual case. ok is false for all others.
func (d *Decoder) noExtra(b []byte, p int) (ends []int, next int, ok bool) {
	n, p, ok := readArray(b, p)
	if !ok {
		return nil, 0, false
	}
	for i := range n {
		if b[p+i] != leadNil {
			return nil, 0, false
		}
	}
	return d.noEnds(n), p + n, true
}

// noEnds is the ExtraEnd of n blocks without extra keys, nil for none.
func (d *Decoder) noEnds(n int) []int {
	if n == 0 {
		return nil
	}
	from := len(d.ends)
	d.ends = grow(d.ends, n)
	ends := d.ends[from : from+n : from+n]
	clear(ends)
	return ends
}

// readExtra reads the extra keys at b[p:], which is a whole value, into ev, whose adapter is known. What is not a list
// with a list or nil for each block is one key of the first block.
func (d *Decoder) readExtra(ev *Event, b []byte, p int) (ok bool) {
	items, ends := len(d.items), len(d.ends)
	n, q, ok := readArray(b, p)
	if ok {
		for range n {
			if q, ok = d.readKeys(ev.LoRA, b, q); !ok {
				return false
			}
			d.ends = append(d.ends, len(d.items)-items)
		}
	} else {
		if _, ok = d.readItem(b, p); !ok {
			return false
		}
		d.ends = append(d.ends, 1)
	}
	ev.Extra = d.items[items:len(d.items):len(d.items)]
	ev.ExtraEnd = d.ends[ends:len(d.ends):len(d.ends)]
	return true
}

// readKeys reads the extra keys of one block. The adapter's name comes first where there is an adapter, as a plain string:
// it is not told apart otherwise from the id of an image or a salt, and so it is only left out there.
func (d *Decoder) readKeys(adapter, b []byte, p int) (next int, ok bool) {
	if isNil(b, p) {
		return p + 1, true
	}
	n := 1
	if isArray(b, p) {
		if n, p, ok = readArray(b, p); !ok {
			return 0, false
		}
	}
	for i := range n {
		from := len(d.items)
		if p, ok = d.readItem(b, p); !ok {
			return 0, false
		}
		if it := &d.items[from]; i == 0 && adapter != nil && it.Kind == ItemString && bytes.Equal(it.Value, adapter) {
			d.items = d.items[:from]
		}
	}
	return p, true
}

// readItem reads one extra key.
func (d *Decoder) readItem(b []byte, p int) (next int, ok bool) {
	if isString(b, p) {
		if value, next, ok := readText(b, p); ok {
			return next, d.addItem(Item{Kind: ItemString, Value: value})
		}
	}
	if n, first, ok := readArray(b, p); ok && n == 2 && isString(b, first) {
		if id, offset, ok := readText(b, first); ok {
			if _, _, next, ok := readInt(b, offset); ok {
				return next, d.addItem(Item{Kind: ItemFeature, Value: id})
			}
		}
	}
	return d.opaque(b, p)
}

func isString(b []byte, p int) bool {
	return p < len(b) && (b[p]&0xe0 == 0xa0 || b[p] >= 0xd9 && b[p] <= 0xdb)
}

// opaque keeps the value at b[p:] as it is.
func (d *Decoder) opaque(b []byte, p int) (next int, ok bool) {
	if next, ok = skip(b, p); !ok {
		return 0, false
	}
	return next, d.addItem(Item{Kind: ItemOpaque, Value: b[p:next:next]})
}

// addItem is false where the batch has as many extra keys as it may have.
func (d *Decoder) addItem(it Item) bool {
	if len(d.items) == maxItems {
		return false
	}
	d.items = append(d.items, it)
	return true
}

// readSalt reads the map that some SGLang versions put where vLLM has the adapter's name. It holds the cache salt. A map
// that holds more than that is the salt itself, as it stands: whatever it means, its blocks are not those of anyone else.
func readSalt(b []byte, p int) (salt []byte, next int, ok bool) {
	n, q, ok := readMap(b, p)
	if !ok {
		return nil, 0, false
	}
	more := false
	for range n {
		key, value, ok := readText(b, q)
		if !ok {
			return nil, 0, false
		}
		if q, ok = skip(b, value); !ok {
			return nil, 0, false
		}
		switch text, _, isText := readText(b, value); {
		case isNil(b, value):
		case isText && string(key) == "cache_salt":
			salt = text
		default:
			more = true
		}
	}
	if more {
		return b[p:q:q], q, true
	}
	return orNil(salt), q, true
}

// orNil is nil for an empty text: an empty salt or name means none.
func orNil(text []byte) []byte {
	if len(text) == 0 {
		return nil
	}
	return text
}

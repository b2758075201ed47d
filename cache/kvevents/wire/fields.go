package wire

import "unsafe"

const (
	eventBytes = int(unsafe.Sizeof(Event{}))
	itemBytes  = int(unsafe.Sizeof(Item{}))
)

// field is a field of an event.
type field uint8

const (
	fieldOther field = iota // of no use here
	fieldType
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoRAID
	fieldMedium
	fieldLoRAName
	fieldExtra
	fieldGroup
	fieldSpec
	fieldWindow
	fieldSalt
	fieldSession
)

// fields is a set of fields, 1<<field each.
type fields uint16

// The fields of an event that is an array, after its tag. Those that follow are of no use here.
var (
	storedFields = [...]field{
		fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoRAID, fieldMedium, fieldLoRAName, fieldExtra,
		fieldGroup, fieldSpec, fieldWindow,
	}
	removedFields = [...]field{fieldHashes, fieldMedium, fieldGroup}
)

// fieldOf is the field with a name on the wire.
func fieldOf(key []byte) field {
	switch string(key) {
	case "type":
		return fieldType
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoRAID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLoRAName
	case "extra_keys":
		return fieldExtra
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldSpec
	case "kv_cache_spec_sliding_window":
		return fieldWindow
	case "cache_salt":
		return fieldSalt
	case "session_id":
		return fieldSession
	}
	return fieldOther
}

// kindOf is the kind with a tag on the wire, 0 for an unknown one.
func kindOf(tag []byte) Kind {
	switch string(tag) {
	case tagStored:
		return Stored
	case tagRemoved:
		return Removed
	case tagCleared:
		return Cleared
	}
	return 0
}

// mark is how much of the Decoder's buffers is in use.
type mark struct{ hashes, tokens, items, ends, text int }

// reading is an event being read.
type reading struct {
	// has are the fields that were there, since the pivot if there was one; before are those up to there.
	has, before fields
	extra       int    // where extra keys wait that can only be read when the adapter is known; 0 for nowhere
	loraID      []byte // an adapter's id that is a text

	// Where the fields after the pivot begin and how many they are; tail is 0 where they were recalled.
	tail, left int
}

func (r *reading) saw(f field) bool { return (r.has|r.before)&(1<<f) != 0 }

// event reads the event at b[p:], adds it to the batch or counts why not, and finds where the next one begins. It is
// false where that cannot be told.
func (d *Decoder) event(b []byte, p int) (next int, ok bool) {
	m := mark{len(d.hashes), len(d.tokens), len(d.items), len(d.ends), len(d.text)}
	if len(d.events) < maxEvents {
		d.events = grow(d.events, 1)
		ev := &d.events[len(d.events)-1]
		*ev = Event{}
		var known bool
		if next, known, ok = d.readEvent(ev, b, p); ok && known {
			return next, true
		}
		d.events = d.events[:len(d.events)-1]
		d.hashes, d.tokens, d.items = d.hashes[:m.hashes], d.tokens[:m.tokens], d.items[:m.items]
		d.ends, d.text = d.ends[:m.ends], d.text[:m.text]
		if ok {
			d.batch.Unknown++
			return next, true
		}
	}
	d.batch.Bad++
	return skip(b, p)
}

// readEvent reads an event of either form. known is false for one of an unknown kind, which is passed over.
func (d *Decoder) readEvent(ev *Event, b []byte, p int) (next int, known, ok bool) {
	var r reading
	if isMap(b, p) {
		next, ok = d.readMapEvent(ev, &r, b, p)
	} else {
		next, ok = d.readArrayEvent(ev, &r, b, p)
	}
	if !ok {
		return 0, false, false
	}
	if ev.Kind == 0 {
		next, ok = skip(b, p)
		return next, false, ok
	}
	if ok = d.finish(ev, &r, b); ok {
		d.remember(ev, &r, b, next)
	}
	return next, true, ok
}

// readArrayEvent reads [tag, field, ...].
func (d *Decoder) readArrayEvent(ev *Event, r *reading, b []byte, p int) (next int, ok bool) {
	n, p, ok := readArray(b, p)
	if !ok || n == 0 {
		return 0, false
	}
	tag, p, ok := readText(b, p)
	if !ok {
		return 0, false
	}
	var order []field
	switch ev.Kind = kindOf(tag); ev.Kind {
	case 0:
		return p, true
	case Stored:
		order = storedFields[:]
	case Removed:
		order = removedFields[:]
	}
	for i := range n - 1 {
		f := fieldOther
		if i < len(order) {
			f = order[i]
		}
		if p, ok = d.readField(ev, r, f, b, p); !ok {
			return 0, false
		}
		if f == pivot[ev.Kind] && f != fieldOther {
			if next, ok := d.recall(ev, r, n-2-i, b, p); ok {
				return next, true
			}
		}
	}
	return p, true
}

// readMapEvent reads {"type": tag, name: field, ...}.
func (d *Decoder) readMapEvent(ev *Event, r *reading, b []byte, p int) (next int, ok bool) {
	n, p, ok := readMap(b, p)
	if !ok {
		return 0, false
	}
	f := fieldOther
	for i := range n {
		var value int
		if f, value, ok = readKey(b, p, following[ev.Kind][f]); !ok {
			return 0, false
		}
		if i == 0 && f != fieldType {
			// The tag is looked for first: the fields of an unknown kind may hold anything.
			if tag, ok := tagOf(b, p, n); !ok || kindOf(tag) == 0 {
				return p, ok
			}
		}
		if p, ok = d.readField(ev, r, f, b, value); !ok {
			return 0, false
		}
		switch {
		case f == fieldOther:
		case f == fieldType && ev.Kind == 0:
			return p, true
		case f == pivot[ev.Kind]:
			if next, ok := d.recall(ev, r, n-1-i, b, p); ok {
				return next, true
			}
		}
	}
	return p, n > 0
}

// following guesses a field from the one before it.
var following = [...][fieldSession + 1]field{
	{fieldOther: fieldType},
	Stored: {
		fieldType: fieldHashes, fieldHashes: fieldParent, fieldParent: fieldTokens, fieldTokens: fieldBlockSize,
		fieldBlockSize: fieldLoRAID, fieldLoRAID: fieldMedium, fieldMedium: fieldLoRAName, fieldLoRAName: fieldExtra,
		fieldExtra: fieldGroup, fieldGroup: fieldSpec, fieldSpec: fieldWindow, fieldWindow: fieldSession,
	},
	Removed: {fieldType: fieldHashes, fieldHashes: fieldMedium, fieldMedium: fieldGroup},
	Cleared: {},
}

// written are the fields' names as msgpack strings.
var written = [...]string{
	fieldType: "\xa4type", fieldHashes: "\xacblock_hashes", fieldParent: "\xb1parent_block_hash",
	fieldTokens: "\xa9token_ids", fieldBlockSize: "\xaablock_size", fieldLoRAID: "\xa7lora_id",
	fieldMedium: "\xa6medium", fieldLoRAName: "\xa9lora_name", fieldExtra: "\xaaextra_keys",
	fieldGroup: "\xa9group_idx", fieldSpec: "\xb2kv_cache_spec_kind", fieldWindow: "\xbckv_cache_spec_sliding_window",
	fieldSession: "\xaasession_id",
}

// readKey reads a map's key as the field that it names, which is likely the one guessed.
func readKey(b []byte, p int, guess field) (f field, value int, ok bool) {
	if name := written[guess]; guess != fieldOther && len(name) <= len(b)-p && string(b[p:p+len(name)]) == name {
		return guess, p + len(name), true
	}
	return readAnyKey(b, p)
}

func readAnyKey(b []byte, p int) (f field, value int, ok bool) {
	if key, value, ok := readText(b, p); ok {
		return fieldOf(key), value, true
	}
	value, ok = skip(b, p)
	return fieldOther, value, ok
}

// tagOf finds the tag among the n pairs at b[p:].
func tagOf(b []byte, p, n int) (tag []byte, ok bool) {
	for range n {
		f, value, ok := readAnyKey(b, p)
		if !ok {
			return nil, false
		}
		if f == fieldType {
			tag, _, ok = readText(b, value)
			return tag, ok
		}
		if p, ok = skip(b, value); !ok {
			return nil, false
		}
	}
	return nil, false
}

// readField reads one field's value.
func (d *Decoder) readField(ev *Event, r *reading, f field, b []byte, p int) (next int, ok bool) {
	r.has |= 1 << f
	switch f {
	case fieldType:
		tag, next, ok := readText(b, p)
		ev.Kind = kindOf(tag)
		return next, ok
	case fieldHashes:
		ev.Hashes, next, ok = d.readHashes(b, p)
		return next, ok
	case fieldTokens:
		ev.Tokens, ev.Pairs, next, ok = d.readTokens(b, p)
		return next, ok
	case fieldExtra:
		r.extra = 0
		if ev.ExtraEnd, next, ok = d.noExtra(b, p); ok {
			return next, true
		}
		if !isNil(b, p) {
			r.extra = p
		}
		return skip(b, p)
	case fieldOther:
		return skip(b, p)
	}
	if isNil(b, p) {
		return p + 1, true
	}
	switch f {
	case fieldParent:
		ev.HasParent = true
		ev.Parent, next, ok = readHash(b, p, 0)
	case fieldBlockSize:
		ev.BlockSize, next, ok = readCount(b, p, maxBlockSize)
	case fieldGroup:
		ev.HasGroup = true
		ev.Group, next, ok = readCount(b, p, maxGroup)
	case fieldWindow:
		ev.Window, next, ok = readCount(b, p, maxBlockSize)
	default:
		return d.readTextField(ev, r, f, b, p)
	}
	return next, ok
}

// readTextField reads the value, which is not nil, of a field that is usually a text.
func (d *Decoder) readTextField(ev *Event, r *reading, f field, b []byte, p int) (next int, ok bool) {
	text, next, ok := readText(b, p)
	switch f {
	case fieldMedium:
		ev.Medium = d.medium(text)
	case fieldSpec:
		ev.Spec = d.spec(text)
	case fieldSalt:
		ev.Salt = orNil(text)
	case fieldSession:
		if !ok {
			return skip(b, p)
		}
		ev.Session = orNil(text)
	case fieldLoRAName:
		if isMap(b, p) {
			ev.Salt, next, ok = readSalt(b, p)
			return next, ok
		}
		ev.LoRA = orNil(text)
		ok = ok && !AdapterByID(text)
	case fieldLoRAID:
		if ok {
			r.loraID = text
			return next, true
		}
		var id uint64
		id, _, next, ok = readInt(b, p)
		ev.LoRAID = int64(id)
	}
	return next, ok
}

// finish checks that the event is whole and reads what had to wait for the adapter's name.
func (d *Decoder) finish(ev *Event, r *reading, b []byte) (ok bool) {
	switch ev.Kind {
	case Cleared:
		*ev = Event{Kind: Cleared}
		return true
	case Removed:
		if (r.has|r.before)&^(1<<fieldType|1<<fieldHashes|1<<fieldMedium|1<<fieldGroup|1<<fieldOther) != 0 {
			*ev = Event{Kind: Removed, Hashes: ev.Hashes, Medium: ev.Medium, Group: ev.Group, HasGroup: ev.HasGroup}
		}
		return r.saw(fieldHashes)
	}
	if !r.saw(fieldHashes) || !r.saw(fieldTokens) || !r.saw(fieldBlockSize) {
		return false
	}
	if ev.LoRA == nil && (ev.LoRAID != 0 || len(r.loraID) > 0) {
		ev.LoRA = d.nameAdapter(ev.LoRAID, r.loraID)
	}
	return r.extra == 0 || d.readExtra(ev, b, r.extra)
}

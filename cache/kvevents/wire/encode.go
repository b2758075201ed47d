package wire

import "github.com/tinylib/msgp/msgp"

// AppendBatch appends a batch to dst as vLLM 0.24 and later write it: an array [time, events, rank] of events that are
// maps, fields in vLLM's order, integers in their shortest form, fields left out where vLLM leaves out a default. A salt
// that is not an extra key is added as SGLang's field.
//
// Decode gives back what was appended, except for Pairs, the offset of an ItemFeature, which is written as 0, and what the
// event's kind does not have. An ItemOpaque must hold one msgpack value.
func AppendBatch(dst []byte, b *Batch) []byte {
	fields := uint32(2)
	if b.HasRank {
		fields = 3
	}
	dst = msgp.AppendArrayHeader(dst, fields)
	dst = msgp.AppendFloat64(dst, b.Time)
	dst = msgp.AppendArrayHeader(dst, uint32(len(b.Events)))
	for i := range b.Events {
		dst = appendEvent(dst, &b.Events[i])
	}
	if b.HasRank {
		dst = msgp.AppendUint64(dst, uint64(b.Rank))
	}
	return dst
}

func appendEvent(dst []byte, e *Event) []byte {
	switch e.Kind {
	case Stored:
		return appendStored(dst, e)
	case Removed:
		dst = msgp.AppendMapHeader(dst, 3+one(e.HasGroup))
		dst = appendPair(dst, "type", tagRemoved)
		dst = appendHashes(dst, e.Hashes)
		dst = appendMedium(dst, e.Medium)
		return appendOptional(dst, "group_idx", e.Group, e.HasGroup)
	default:
		dst = msgp.AppendMapHeader(dst, 1)
		return appendPair(dst, "type", e.Kind.String())
	}
}

func appendStored(dst []byte, e *Event) []byte {
	dst = msgp.AppendMapHeader(dst, 8+one(e.ExtraEnd != nil)+one(e.HasGroup)+one(e.Spec != "")+one(e.Window != 0)+
		one(e.Salt != nil)+one(e.Session != nil))
	dst = appendPair(dst, "type", tagStored)
	dst = appendHashes(dst, e.Hashes)
	dst = msgp.AppendString(dst, "parent_block_hash")
	if e.HasParent {
		dst = msgp.AppendUint64(dst, e.Parent)
	} else {
		dst = msgp.AppendNil(dst)
	}
	dst = msgp.AppendString(dst, "token_ids")
	dst = msgp.AppendArrayHeader(dst, uint32(len(e.Tokens)))
	for _, t := range e.Tokens {
		dst = msgp.AppendUint32(dst, t)
	}
	dst = msgp.AppendString(dst, "block_size")
	dst = msgp.AppendUint64(dst, uint64(e.BlockSize))
	name := e.LoRA
	dst = msgp.AppendString(dst, "lora_id")
	if AdapterByID(name) {
		dst, name = appendAdapterID(dst, e), nil
	} else {
		dst = appendID(dst, e.LoRAID)
	}
	dst = appendMedium(dst, e.Medium)
	dst = msgp.AppendString(dst, "lora_name")
	dst = appendText(dst, name)
	if e.ExtraEnd != nil {
		dst = appendExtra(dst, e, name)
	}
	dst = appendOptional(dst, "group_idx", e.Group, e.HasGroup)
	if e.Spec != "" {
		dst = appendPair(dst, "kv_cache_spec_kind", e.Spec)
	}
	dst = appendOptional(dst, "kv_cache_spec_sliding_window", e.Window, e.Window != 0)
	if e.Salt != nil {
		dst = msgp.AppendStringFromBytes(msgp.AppendString(dst, "cache_salt"), e.Salt)
	}
	if e.Session != nil {
		dst = msgp.AppendStringFromBytes(msgp.AppendString(dst, "session_id"), e.Session)
	}
	return dst
}

// appendExtra writes the extra keys of every block, nil for one that has none. The adapter's name is the first of each.
func appendExtra(dst []byte, e *Event, adapter []byte) []byte {
	dst = msgp.AppendString(dst, "extra_keys")
	dst = msgp.AppendArrayHeader(dst, uint32(len(e.ExtraEnd)))
	for i := range e.ExtraEnd {
		items := e.Keys(i)
		if len(items) == 0 && adapter == nil {
			dst = msgp.AppendNil(dst)
			continue
		}
		dst = msgp.AppendArrayHeader(dst, uint32(len(items))+one(adapter != nil))
		if adapter != nil {
			dst = msgp.AppendStringFromBytes(dst, adapter)
		}
		for _, it := range items {
			switch it.Kind {
			case ItemString:
				dst = msgp.AppendStringFromBytes(dst, it.Value)
			case ItemFeature:
				dst = msgp.AppendArrayHeader(dst, 2)
				dst = msgp.AppendStringFromBytes(dst, it.Value)
				dst = msgp.AppendUint64(dst, 0)
			default:
				dst = append(dst, it.Value...)
			}
		}
	}
	return dst
}

func appendHashes(dst []byte, hashes []uint64) []byte {
	dst = msgp.AppendString(dst, "block_hashes")
	dst = msgp.AppendArrayHeader(dst, uint32(len(hashes)))
	for _, h := range hashes {
		dst = msgp.AppendUint64(dst, h)
	}
	return dst
}

func appendMedium(dst []byte, medium string) []byte {
	dst = msgp.AppendString(dst, "medium")
	if medium == "" {
		return msgp.AppendNil(dst)
	}
	dst = msgp.AppendString(dst, medium)
	for i, c := range dst[len(dst)-len(medium):] {
		if 'a' <= c && c <= 'z' {
			dst[len(dst)-len(medium)+i] = c - ('a' - 'A')
		}
	}
	return dst
}

// appendAdapterID writes the id of an adapter that has no name.
func appendAdapterID(dst []byte, e *Event) []byte {
	if e.LoRAID != 0 {
		return appendID(dst, e.LoRAID)
	}
	return msgp.AppendStringFromBytes(dst, e.LoRA[len(adapterByID):])
}

func appendID(dst []byte, id int64) []byte {
	switch {
	case id == 0:
		return msgp.AppendNil(dst)
	case id > 0:
		return msgp.AppendUint64(dst, uint64(id))
	}
	return msgp.AppendInt64(dst, id)
}

func appendText(dst, text []byte) []byte {
	if text == nil {
		return msgp.AppendNil(dst)
	}
	return msgp.AppendStringFromBytes(dst, text)
}

func appendPair(dst []byte, key, value string) []byte {
	return msgp.AppendString(msgp.AppendString(dst, key), value)
}

func appendOptional(dst []byte, key string, n int, has bool) []byte {
	if !has {
		return dst
	}
	return msgp.AppendUint64(msgp.AppendString(dst, key), uint64(n))
}

func one(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

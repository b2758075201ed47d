package precise

import (
	"encoding/binary"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/scheduling"
)

// keys makes the index's own names of blocks: chained hashes over what an engine keys a block by. The root of a chain
// holds the block size and the adapter; what belongs to single blocks (a salt to the first one, images to those that
// they reach into) is mixed in front of the block's tokens. An engine's own hashes play no part.
type keys struct {
	seed blockhash.Seed
	base uint64
}

func newKeys(seed blockhash.Seed) keys {
	return keys{seed: seed, base: uint64(blockhash.NewRoot(seed, blockhash.Tokens, "", ""))}
}

// The kinds of things that are mixed into a chain.
const (
	kindBlockSize byte = 'b'
	kindAdapter   byte = 'l'
	kindString    byte = 's' // a salt; a bare multimodal id of old engines reads the same and never meets one by its tokens
	kindFeature   byte = 'm'
	kindOpaque    byte = 'o'
)

// adapter is the key of an adapter's name; that of the empty name, the base model, is 0.
func (k *keys) adapter(name []byte) uint64 {
	if len(name) == 0 {
		return 0
	}
	return blockhash.KeyOf(k.seed, kindAdapter, name)
}

// root is where the chains of an adapter's prompts begin, cut into blocks of blockSize tokens.
func (k *keys) root(blockSize int, adapter uint64) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(blockSize))
	h := blockhash.Mix(k.base, blockhash.KeyOf(k.seed, kindBlockSize, b[:]))
	if adapter != 0 {
		h = blockhash.Mix(h, adapter)
	}
	return h
}

// next is the hash of a block that follows prev and has extra keys; 0 means none.
func next(prev, extra uint64, tokens []uint32) uint64 {
	if extra != 0 {
		prev = blockhash.Mix(prev, extra)
	}
	return blockhash.Next(prev, tokens)
}

// fold adds one more thing to a block's extra keys; never 0.
func (k *keys) fold(extra uint64, kind byte, value []byte) uint64 {
	return blockhash.Mix(extra, blockhash.KeyOf(k.seed, kind, value)) | 1
}

// salt adds a cache salt, which an engine mixes into the first block.
func (k *keys) salt(extra uint64, salt []byte) uint64 {
	if len(salt) == 0 {
		return extra
	}
	return k.fold(extra, kindString, salt)
}

// ofItems are the extra keys of a block as an event has them.
func (k *keys) ofItems(items []wire.Item) (extra uint64) {
	for _, it := range items {
		kind := kindOpaque
		switch it.Kind {
		case wire.ItemString:
			kind = kindString
		case wire.ItemFeature:
			kind = kindFeature
		}
		extra = k.fold(extra, kind, it.Value)
	}
	return extra
}

// appendPrompt appends the hashes of a prompt's whole blocks. features are in the order of their offsets.
func (k *keys) appendPrompt(dst []uint64, blockSize int, adapter uint64, salt string, tokens []uint32, features []scheduling.PromptFeature) []uint64 {
	h := k.root(blockSize, adapter)
	for at := 0; at+blockSize <= len(tokens); at += blockSize {
		extra := uint64(0)
		for len(features) > 0 && features[0].Offset+features[0].Length <= at {
			features = features[1:]
		}
		for _, f := range features {
			if f.Offset >= at+blockSize {
				break
			}
			extra = k.fold(extra, kindFeature, []byte(f.ID))
		}
		if at == 0 {
			extra = k.salt(extra, []byte(salt))
		}
		h = next(h, extra, tokens[at:at+blockSize])
		dst = append(dst, h)
	}
	return dst
}

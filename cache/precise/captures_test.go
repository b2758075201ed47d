package precise

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
	"github.com/sluice-epp/sluice/cache/precise/chain"
)

const captureBlock = 32 // tokens, in every capture

// oracle is what a captured engine has, by another reading of its events: the JSON beside the bytes, in maps of counts.
type oracle struct {
	t       *testing.T
	blocks  map[string]oracleBlock    // by the engine's name, those that were told with tokens since the last clear
	held    map[string]map[string]int // medium → name → copies
	copies  map[string]map[string]int // the same, but clears take nothing off the CPU: what the engine itself counts
	windows map[string]bool           // groups of sliding windows, by number
}

type oracleBlock struct {
	parent     string
	tokens     []uint32
	lora, salt string
}

func newOracle(t *testing.T) *oracle {
	return &oracle{t, map[string]oracleBlock{}, map[string]map[string]int{}, map[string]map[string]int{}, map[string]bool{}}
}

func (o *oracle) add(to map[string]map[string]int, medium, name string, n int) {
	if to[medium] == nil {
		to[medium] = map[string]int{}
	}
	to[medium][name] += n
}

// decode reads JSON with its 64-bit numbers whole.
func decode(t *testing.T, raw []byte) (v []any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// fieldNames are vLLM's fields in the order in which its old, positional events have them.
var fieldNames = map[string][]string{
	"BlockStored": {
		"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
		"group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
	},
	"BlockRemoved":     {"type", "block_hashes", "medium", "group_idx"},
	"AllBlocksCleared": {"type"},
}

// fields are an event's fields by name, whichever way it is written.
func fields(event any) map[string]any {
	if m, ok := event.(map[string]any); ok {
		return m
	}
	list, _ := event.([]any)
	m := map[string]any{}
	for i, v := range list {
		m[fieldNames[fmt.Sprint(list[0])][i]] = v
	}
	return m
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func text1(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// apply takes in one batch; it returns its rank.
func (o *oracle) apply(raw []byte) (rank string) {
	batch := decode(o.t, raw)
	for _, e := range list(batch[1]) {
		f := fields(e)
		group := text1(f["group_idx"])
		if kind := text1(f["kv_cache_spec_kind"]); kind == "sliding_window" || (kind == "" && o.windows[group]) {
			o.windows[group] = true
			continue
		}
		medium := strings.ToLower(text1(f["medium"]))
		switch f["type"] {
		case "BlockStored":
			o.stored(f, medium)
		case "BlockRemoved":
			for _, name := range list(f["block_hashes"]) {
				o.add(o.copies, medium, text1(name), -1)
				if o.copies[medium][text1(name)] < 0 {
					o.t.Errorf("%s copy of %v is removed more often than stored", medium, name)
				}
				if o.held[medium][text1(name)] > 0 {
					o.held[medium][text1(name)]--
				}
			}
		case "AllBlocksCleared":
			o.clear()
		}
	}
	return text1(batch[2])
}

func (o *oracle) clear() {
	clear(o.blocks)
	clear(o.held["gpu"])
	clear(o.held["cpu"])
	clear(o.copies["gpu"])
}

func (o *oracle) stored(f map[string]any, medium string) {
	names, tokens := list(f["block_hashes"]), list(f["token_ids"])
	parent := text1(f["parent_block_hash"])
	lora := text1(f["lora_name"])
	for i, name := range names {
		o.add(o.copies, medium, text1(name), 1)
		_, known := o.blocks[text1(name)]
		if len(tokens) == 0 {
			if known {
				o.add(o.held, medium, text1(name), 1)
			}
			continue
		}
		if !known {
			b := oracleBlock{parent: parent, lora: lora}
			for _, token := range tokens[i*captureBlock : (i+1)*captureBlock] {
				n, _ := token.(json.Number).Int64()
				b.tokens = append(b.tokens, uint32(n))
			}
			if extra := list(f["extra_keys"]); i < len(extra) {
				keys := list(extra[i])
				if lora != "" && len(keys) > 0 && keys[0] == lora {
					keys = keys[1:]
				}
				if len(keys) > 0 {
					b.salt = text1(keys[0])
				}
			}
			o.blocks[text1(name)] = b
		}
		o.add(o.held, medium, text1(name), 1)
		parent = text1(name)
	}
}

// path are a block's names from the head of its prompt on; ok is false where one of them is not known.
func (o *oracle) path(name string) (names []string, ok bool) {
	for ; name != ""; name = o.blocks[name].parent {
		if _, known := o.blocks[name]; !known {
			return nil, false
		}
		names = append(names, name)
	}
	slices.Reverse(names)
	return names, true
}

// ask is the prompt that ends with the last of a path's blocks, and what is cached of it.
func (o *oracle) ask(path []string) (a ask, want chain.Match) {
	head := o.blocks[path[0]]
	a = ask{model: head.lora, salt: head.salt}
	whole := true
	for _, name := range path {
		a.tokens = append(a.tokens, o.blocks[name].tokens...)
		switch {
		case !whole:
		case o.held["gpu"][name] > 0:
			want.Blocks, want.Weight = want.Blocks+1, want.Weight+1000
		case o.held["cpu"][name] > 0:
			want.Blocks, want.Weight = want.Blocks+1, want.Weight+800
		default:
			whole = false
		}
	}
	return a, want
}

// compare looks every prompt up that the oracle has heard of.
func (o *oracle) compare(when string, e *engine) (compared int) {
	o.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(o.blocks)) {
		path, ok := o.path(name)
		if !ok {
			continue
		}
		a, want := o.ask(path)
		p := e.pool.look(a)
		got := p.match(p.cutOf(captureBlock), e.source)
		if diff := cmp.Diff(want, got); diff != "" {
			o.t.Fatalf("%s: prompt of %d blocks, model %q, salt %q (-oracle +index):\n%s", when, len(path), a.model, a.salt, diff)
		}
		compared++
	}
	return compared
}

// capturedEngine is an engine of a capture with its oracle.
type capturedEngine struct {
	*engine
	oracle *oracle
	next   uint64
}

// play applies a capture, rank by rank, and calls after once per message.
func play(t *testing.T, name string, after func(f kvtest.Frame, e *capturedEngine)) (p *pool, ranks map[string]*capturedEngine) {
	p = newPool(t)
	ranks = map[string]*capturedEngine{}
	for _, f := range kvtest.Captures(t, name) {
		rank := text1(decode(t, f.Batch)[2])
		e := ranks[rank]
		if e == nil {
			e = &capturedEngine{engine: p.open(), oracle: newOracle(t)}
			ranks[rank] = e
		}
		if f.Seq < e.next { // killed and started again
			e.Forget(0)
			e.oracle = newOracle(t)
		}
		e.next = f.Seq + 1
		e.hear(f.Payload)
		e.oracle.apply(f.Batch)
		after(f, e)
	}
	return p, ranks
}

// Every capture of a real engine, message by message: the index says what an independent reading of the same events says.
func TestCaptures(t *testing.T) {
	for _, name := range kvtest.Names {
		t.Run(name, func(t *testing.T) {
			compared, messages := 0, 0
			p, ranks := play(t, name, func(f kvtest.Frame, e *capturedEngine) {
				// All prompts after each message, but in the long captures.
				if messages++; messages < 50 || messages%10 == 0 || len(f.Payload) > 2000 {
					compared += e.oracle.compare(fmt.Sprintf("%s, message %d", f.Phase, f.Seq), e.engine)
				}
				if err := e.check(); err != nil {
					t.Fatalf("%s, message %d: %v", f.Phase, f.Seq, err)
				}
			})
			for rank, e := range ranks {
				compared += e.oracle.compare("at the end, rank "+rank, e.engine)
			}
			if compared < 5 {
				t.Errorf("only %d prompts compared", compared)
			}
			if want := map[bool]int{true: 2, false: 1}[name == "kv_dp2_b32"]; len(ranks) != want {
				t.Errorf("%d ranks, want %d", len(ranks), want)
			}
			checkCounts(t, p, ranks)
			for _, e := range ranks {
				e.close()
			}
			if z := p.hub.store.Sizes(); z.Chains != 0 || z.Bits != 0 {
				t.Errorf("left: %+v", z)
			}
		})
	}
}

// checkCounts compares the blocks in the tables, copy for copy, with the oracle's.
func checkCounts(t *testing.T, p *pool, ranks map[string]*capturedEngine) {
	t.Helper()
	want := 0
	for _, e := range ranks {
		for _, medium := range []string{"gpu", "cpu"} {
			for _, n := range e.oracle.held[medium] {
				if n > 0 {
					want++
				}
			}
		}
	}
	if got := int(p.hub.stats.blocks.Load()); got != want {
		t.Errorf("%d blocks in tables, the oracle has %d", got, want)
	}
	if n := p.hub.stats.parked.Load(); n != 0 {
		t.Errorf("%d blocks still wait for their parents", n)
	}
	if n := p.hub.stats.uneven.Load(); n != 0 && !strings.Contains(t.Name(), "hybrid") {
		t.Errorf("%d uneven blocks", n)
	}
}

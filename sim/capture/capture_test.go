package capture_test

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/sim/capture"
)

func committed(t testing.TB) (*capture.Capture, []byte) {
	t.Helper()
	text, err := os.ReadFile("testdata/vllm.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	c, err := capture.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return c, text
}

// What a real vLLM reported as cached, request by request, is what the model has cached. `make test-vllm` takes the capture
// anew and compares.
func TestModelCachesAsVLLM(t *testing.T) {
	c, _ := committed(t)
	different, err := c.Compare()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range different {
		t.Errorf("step %d, %s: the engine reported %d cached tokens, the model %d", d.Step, d.Name, d.Engine, d.Modeled)
	}
	hits, rules, resets, together := 0, 0, 0, 0
	for _, s := range c.Steps {
		switch {
		case s.Reset:
			resets++
		case s.Cached > 0:
			hits++
		}
		if s.Together {
			together++
		}
		if strings.Contains(s.Name, "copies left") || strings.Contains(s.Name, "again") {
			rules++
		}
	}
	if len(c.Steps) < 400 || hits < 200 || hits > len(c.Steps)-100 || resets < 2 || rules < 10 || together < 100 {
		t.Errorf("%d steps, %d with hits, %d resets, %d of known rules: the capture shows too little", len(c.Steps), hits, resets, rules)
	}
}

// A model of another engine does not agree: the capture tells them apart.
func TestCaptureTellsModelsApart(t *testing.T) {
	for name, change := range map[string]func(*capture.Engine){
		"a block less":   func(e *capture.Engine) { e.NumBlocks-- },
		"a block more":   func(e *capture.Engine) { e.NumBlocks++ },
		"another budget": func(e *capture.Engine) { e.MaxBatchedTokens /= 2 },
		"smaller blocks": func(e *capture.Engine) { e.BlockSize, e.NumBlocks = e.BlockSize/2, e.NumBlocks*2 },
	} {
		c, _ := committed(t)
		change(&c.Engine)
		if different, err := c.Compare(); err != nil || len(different) == 0 {
			t.Errorf("%s: %v, no difference", name, err)
		}
	}
}

func TestWriteIsRead(t *testing.T) {
	c, text := committed(t)
	var out bytes.Buffer
	if err := c.Write(&out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(text), out.String()); diff != "" {
		t.Error(diff)
	}
}

const head = `{"engine":"e","block_size":4,"num_blocks":8,"max_batched_tokens":16,"max_model_len":32}` + "\n"

func TestFaults(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "no steps",
		head:                             "no steps",
		`{"block_size":4}` + "\n" + `{}`: "line 1: numBlocks",
		head + `{"x":1}`:                 "line 2: ",
		head + `{"name":"n","prompt":"1+2"}` + "\n{": "line 3: ",
		`{"engine":1}` + "\n{}":                      "line 1: ",
	} {
		if _, err := capture.Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	long := head + strings.Repeat(`{"name":"n","prompt":"1+2"}`+"\n", capture.MaxSteps+1)
	if _, err := capture.Read(strings.NewReader(long)); err == nil || !strings.Contains(err.Error(), "more than 100000 steps") {
		t.Error(err)
	}
}

func TestRecipes(t *testing.T) {
	before := []capture.Step{{Name: "first", Prompt: "10+3", Output: []uint32{7, 8}}}
	make := func(s capture.Step) ([]uint32, error) {
		p := capture.Prompts{Longest: 16}
		if _, err := p.Next(nil, before[0]); err != nil {
			t.Fatal(err)
		}
		return p.Next(before, s)
	}
	got, err := make(capture.Step{Prompt: "=0 @0+1 5+2"})
	if want := []uint32{10, 11, 12, 7, 5, 6}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if got, err := make(capture.Step{Reset: true}); err != nil || got != nil {
		t.Errorf("a reset: %v, %v", got, err)
	}
	for recipe, want := range map[string]string{
		"=1": "0 to 0", "@1+1": "0 to 0", "@0+3": "0 to 2", "1+17": "0 to 16", "1+9 1+9": "longer than 16", "1": `got ""`, "": "either a prompt or a reset",
		"x+1": `got "x"`, "-1+2": "want a number", "1+0": "either a prompt or a reset",
	} {
		if _, err := make(capture.Step{Prompt: recipe}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", recipe, err, want)
		}
	}
	if _, err := make(capture.Step{Prompt: "1+1", Reset: true}); err == nil {
		t.Error("a prompt and a reset")
	}
}

func TestReplayNamesTheStep(t *testing.T) {
	for line, want := range map[string]string{
		`{"name":"n","prompt":"=4"}`:                        "step 0, n: prompt",
		`{"name":"n","prompt":"1+30","output":[1,2,3,4,5]}`: "step 0, n: prompt and output exceed",
	} {
		c, err := capture.Read(strings.NewReader(head + line))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Compare(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(head + `{"name":"a","prompt":"1+9","output":[4],"cached":0}` + "\n" + `{"name":"b","prompt":"=0 @0+1 3+1","salt":"s","cached":0}`))
	f.Add([]byte(head + `{"name":"r","reset":true,"cached":0}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := capture.Read(bytes.NewReader(text))
		if err != nil || c.Engine.NumBlocks > 1<<12 || len(c.Steps) > 50 {
			return
		}
		cached, err := c.Replay()
		if err != nil {
			return
		}
		for i, n := range cached {
			if n < 0 || n > c.Engine.MaxModelLen {
				t.Fatalf("step %d: %d tokens cached", i, n)
			}
		}
		var out bytes.Buffer
		if err := c.Write(&out); err != nil {
			t.Fatal(err)
		}
		again, err := capture.Read(&out)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, again); diff != "" {
			t.Fatal(diff)
		}
	})
}

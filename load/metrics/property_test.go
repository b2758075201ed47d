package metrics

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// drawPage draws a page in the format that the Prometheus parser accepts, full of names and labels that nearly matter.
func drawPage(t *rapid.T, d *dialect) string {
	names := []string{startRule.name, "up", d.prefix, d.prefix + "e2e_request_latency_seconds_bucket"}
	for _, r := range d.rules {
		names = append(names, r.name, r.name, r.name, r.name+"_total", r.name[:len(r.name)-1])
	}
	labels := []string{"engine", "dp_rank", "priority", "le", "sleep_state", "block_size", "num_gpu_blocks", "page_size", "num_pages",
		"max_lora", "running_lora_adapters", "waiting_lora_adapters", "request_type", "kv_cache_block_type"}
	values := []string{"", "0", "1", "16", "16", "None", "awake", "discard_all", "waiting", "scheduled", "fraction", "used", "max",
		"tokens_per", "a,b", " b ,,a", `a\"b`, `\\`, `\n`, "}", "{", `\\\"`, "-1", "99999999999999999999", "0.5"}
	numbers := []string{"0", "1", "0.0", "1.0", "3", "0.25", "1e3", "1.7959978555731056e+09", "NaN", "+Inf", "-Inf", "-1", "1e308", "37"}
	var b strings.Builder
	for range rapid.IntRange(0, 30).Draw(t, "lines") {
		name := rapid.SampledFrom(names).Draw(t, "name")
		if strings.HasSuffix(name, ":") || strings.HasSuffix(name, "_") {
			name += "x"
		}
		switch rapid.IntRange(0, 9).Draw(t, "shape") {
		case 0:
			fmt.Fprintf(&b, "# HELP %s_x %s 1\n", name, name)
			continue
		case 1:
			b.WriteString("\n# a comment\n \n")
			continue
		case 2:
			b.WriteString(" \t")
		}
		b.WriteString(name)
		if n := rapid.IntRange(0, 4).Draw(t, "labels"); n > 0 {
			b.WriteString(rapid.SampledFrom([]string{"{", " {", "{ "}).Draw(t, "open"))
			for _, l := range rapid.Permutation(labels).Draw(t, "order")[:n] {
				fmt.Fprintf(&b, "%s%s\"%s\"%s", l, rapid.SampledFrom([]string{"=", " = "}).Draw(t, "equals"),
					rapid.SampledFrom(values).Draw(t, "value"), rapid.SampledFrom([]string{",", " , "}).Draw(t, "comma"))
			}
			b.WriteString("}")
		}
		b.WriteString(" " + rapid.SampledFrom(numbers).Draw(t, "number") + rapid.SampledFrom([]string{"", "", " 1796000000000", " "}).Draw(t, "end") + "\n")
	}
	return b.String()
}

// TestDrawnPagesAgreeWithOracle is FuzzPage over pages that say something.
func TestDrawnPagesAgreeWithOracle(t *testing.T) {
	t.Parallel()
	accepted := 0
	rapid.Check(t, func(rt *rapid.T) {
		d := rapid.SampledFrom(dialects).Draw(rt, "engine")
		text := []byte(drawPage(rt, d))
		want, ok := oracle(d, text)
		if !ok {
			rt.Skip("the Prometheus parser refuses it")
		}
		accepted++
		got, s := scanned(t, d.name, text)
		if diff := cmp.Diff(want, got, exactly); diff != "" {
			rt.Fatalf("%s(-oracle +scanner):\n%s", text, diff)
		}
		if s.malformed > 0 {
			rt.Fatalf("%d malformed samples on a good page:\n%s", s.malformed, text)
		}
	})
	if accepted < 50 {
		t.Errorf("only %d pages were compared", accepted)
	}
}

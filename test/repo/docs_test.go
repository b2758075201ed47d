package repo

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
)

var (
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```$") //nolint:gocritic // both match where a line begins
	codeSpan  = regexp.MustCompile("`[^`\n]*`")
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ +(.+?)\s*$`)
	notInID   = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are the fragments of a page's headings, as forges make them.
func anchors(content []byte) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(string(content), ""), -1) {
		out[strings.ReplaceAll(notInID.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return out
}

// brokenLinks are the relative links of a page that lead nowhere; exists and read look below the page's folder.
func brokenLinks(content []byte, read func(target string) ([]byte, error)) (broken []string, all int) {
	text := codeSpan.ReplaceAllString(codeBlock.ReplaceAllString(string(content), ""), "")
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		target, fragment, _ := strings.Cut(m[1], "#")
		if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
			continue
		}
		all++
		page := content
		if target != "" {
			var err error
			if page, err = read(target); err != nil {
				broken = append(broken, m[1])
				continue
			}
		}
		if fragment != "" && !anchors(page)[fragment] {
			broken = append(broken, m[1])
		}
	}
	return broken, all
}

func TestRelativeLinksLeadSomewhere(t *testing.T) {
	root := goTree(t).Root
	links := 0
	for _, name := range trackedFiles(t, root) {
		if !strings.HasSuffix(name, ".md") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		broken, all := brokenLinks(content, func(target string) ([]byte, error) {
			path := filepath.Join(root, filepath.Dir(name), target)
			if info, err := os.Stat(path); err != nil || info.IsDir() {
				return nil, err
			}
			return os.ReadFile(path)
		})
		links += all
		for _, b := range broken {
			t.Errorf("%s: the link to %s leads nowhere", name, b)
		}
	}
	if links < 20 {
		t.Errorf("only %d links found", links)
	}
}

func TestBrokenLinks(t *testing.T) {
	read := func(target string) ([]byte, error) {
		if target != "there.md" {
			return nil, os.ErrNotExist
		}
		return []byte("# A title\n## When `it` dies: then?\n```\n# no title\n```\n"), nil
	}
	for text, want := range map[string]int{
		"[a](there.md) [b](https://x/y) [c](mailto:x@y)": 0,
		"[a](gone.md)":                           1,
		"[a](there.md#a-title)":                  0,
		"[a](there.md#when-it-dies-then)":        0,
		"[a](there.md#no-title)":                 1,
		"# Here\n[a](#here) [b](#elsewhere)":     1,
		"```\n[a](gone.md)\n```\n`[a](gone.md)`": 0,
	} {
		if broken, _ := brokenLinks([]byte(text), read); len(broken) != want {
			t.Errorf("%q: broken %q, want %d", text, broken, want)
		}
	}
}

var goBlock = regexp.MustCompile("(?ms)^```go\n(.*?)^```$") //nolint:gocritic // both match where a line begins

// The recipe for a scorer works as it is written: its file, its test and its line, laid over the package.
func TestScorerRecipe(t *testing.T) {
	root := goTree(t).Root
	page, err := os.ReadFile(filepath.Join(root, "docs", "scorers.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := goBlock.FindAllSubmatch(page, -1)
	if len(blocks) != 3 {
		t.Fatalf("docs/scorers.md has %d blocks of Go, want a file, a test and a line", len(blocks))
	}
	folder := filepath.Join(root, "scheduling", "scorer")
	types, err := os.ReadFile(filepath.Join(folder, "types.go"))
	if err != nil {
		t.Fatal(err)
	}
	const list = "return []scheduling.PluginType{\n"
	if !strings.Contains(string(types), list) {
		t.Fatalf("types.go has no line %q", list)
	}
	laid := t.TempDir()
	overlay := map[string]string{}
	for name, content := range map[string]string{
		"idle.go": string(blocks[0][1]), "idle_test.go": string(blocks[1][1]),
		"types.go": strings.Replace(string(types), list, list+string(blocks[2][1]), 1),
	} {
		overlay[filepath.Join(folder, name)] = filepath.Join(laid, name)
		if err := os.WriteFile(filepath.Join(laid, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	description, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(laid, "overlay.json")
	if err := os.WriteFile(file, description, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", file, "-run", "^TestIdleScorer$", "-v", "./scheduling/scorer")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestIdleScorer") {
		t.Errorf("%v\n%s", err, out)
	}
}

// The page of the protocol names every verdict that the decision header can carry.
func TestVerdictsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	for v := scheduling.GateNone; v.String() != "unknown"; v++ {
		if !strings.Contains(string(page), "`"+v.String()+"`") {
			t.Errorf("docs/protocol.md does not name the verdict %s", v)
		}
	}
}

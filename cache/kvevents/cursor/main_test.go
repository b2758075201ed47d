package cursor

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// moves are the changes of state that the tests saw.
var moves = map[string]bool{}

// TestMain holds the table in doc.go to what happens: nothing that it does not list, and, when every test ran, all of it.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("2000")
	}
	code := m.Run()
	if code == 0 {
		documented, err := table("doc.go")
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		all := true
		for _, selection := range []string{"test.run", "test.skip", "test.list", "test.fuzz"} {
			all = all && flag.Lookup(selection).Value.String() == ""
		}
		for _, move := range slices.Sorted(maps.Keys(moves)) {
			if !documented[move] {
				fmt.Println("doc.go does not list", move)
				code = 1
			}
			delete(documented, move)
		}
		for move := range documented {
			if all {
				fmt.Println("doc.go lists what no test saw:", move)
				code = 1
			}
		}
	}
	os.Exit(code)
}

// table reads the lines "from to reason, reason" that follow on the heading.
func table(path string) (map[string]bool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	_, rest, ok := strings.Cut(string(text), "//\tfrom ")
	if !ok {
		return nil, fmt.Errorf("%s: no table of state changes", path)
	}
	documented := map[string]bool{}
	for _, line := range strings.Split(rest, "\n")[1:] {
		fields := strings.Fields(strings.ReplaceAll(strings.TrimPrefix(line, "//"), ",", ""))
		if len(fields) < 3 {
			break
		}
		for _, reason := range fields[2:] {
			documented[fmt.Sprintf("%s -%s→ %s", fields[0], reason, fields[1])] = true
		}
	}
	return documented, nil
}

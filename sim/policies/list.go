package policies

import (
	"fmt"
	"io"
)

// Write lists the policies for people.
func Write(w io.Writer) error {
	for _, p := range All() {
		if _, err := fmt.Fprintf(w, "%-16s %s\n%16s (%s)\n", p.Name, p.Summary, "", p.Source); err != nil {
			return err
		}
		for _, q := range p.Parameters {
			if _, err := fmt.Fprintf(w, "%16s   %s=%s: %s\n", "", q.Name, q.Default, q.Help); err != nil {
				return err
			}
		}
	}
	return nil
}

package config

import (
	"fmt"
	"strings"
)

// Missing reports whether anything of the file is not here.
func (im *Imported) Missing() bool {
	for _, p := range append(im.Plugins[:len(im.Plugins):len(im.Plugins)], im.Rest...) {
		if p.Standing == Missing {
			return true
		}
	}
	return false
}

// Report says, plugin by plugin and then section by section, what becomes of the file. name is the file's.
func (im *Imported) Report(name string) string {
	var b strings.Builder
	counts := map[Standing]int{}
	for _, p := range im.Plugins {
		counts[p.Standing]++
	}
	fmt.Fprintf(&b, "%s: plugins: %d map, %d differ, %d missing, %d not needed\n",
		name, counts[Maps], counts[Differs], counts[Missing], counts[NotNeeded])
	writeParts(&b, "Plugins", im.Plugins)
	writeParts(&b, "Profiles and sections", im.Rest)
	if len(im.Warnings) > 0 {
		b.WriteString("\nWhat config check warns of, in the configuration that is made of it\n")
		for _, w := range im.Warnings {
			writeNote(&b, strings.TrimPrefix(w.Path+": "+w.Message, ": "))
		}
	}
	return b.String()
}

// standingColumn is how wide the column of standings is, in cells.
const standingColumn = 12

func writeParts(b *strings.Builder, title string, parts []*Part) {
	if len(parts) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s\n", title)
	for _, p := range parts {
		called := p.Name
		if p.Type != "" {
			called += " (" + p.Type + ")"
		}
		fmt.Fprintf(b, "  %-*s%s, line %d\n", standingColumn, p.Standing, called, p.Line)
		for _, note := range p.Notes {
			writeNote(b, note)
		}
	}
}

func writeNote(b *strings.Builder, note string) {
	fmt.Fprintf(b, "  %*s- %s\n", standingColumn, "", strings.ReplaceAll(note, "\n", " "))
}

// File is the configuration as a file of its own: what is missing stands before it, as comments.
func (im *Imported) File(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Made of %s by sluice config import.\n", strings.ReplaceAll(name, "\n", " "))
	for _, p := range append(im.Plugins[:len(im.Plugins):len(im.Plugins)], im.Rest...) {
		if p.Standing != Missing {
			continue
		}
		fmt.Fprintf(&b, "# Missing: %s: %s\n", p.Name, strings.ReplaceAll(strings.Join(p.Notes, "; "), "\n", " "))
	}
	return b.String() + im.Text
}

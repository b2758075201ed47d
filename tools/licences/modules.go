package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// goPackage is what go list says of a package.
type goPackage struct {
	ImportPath, Dir string
	Standard        bool
	Module          *goModule
}

type goModule struct {
	Path, Version, Dir string
	Main               bool
	Replace            *goModule
}

func packagesIn(listing []byte) ([]goPackage, error) {
	var packages []goPackage
	for d := json.NewDecoder(bytes.NewReader(listing)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading what go list says: %w", err)
		}
		packages = append(packages, p)
	}
}

// module is a module that is used, with the folders of the packages that are.
type module struct {
	path, version, dir string
	linked             bool // it is part of what is built, and not only of its tests
	folders            []string
}

// modulesOf are the modules of the packages, in the order of their paths.
func modulesOf(linked, tested []goPackage) []module {
	found := map[string]*module{}
	take := func(packages []goPackage, linked bool) {
		for _, p := range packages {
			m := p.Module
			if p.Standard || m == nil || m.Main {
				continue
			}
			if m.Replace != nil {
				m.Replace.Path = cmp.Or(m.Replace.Path, m.Path)
				m = m.Replace
			}
			known := found[m.Path]
			if known == nil {
				known = &module{path: m.Path, version: m.Version, dir: m.Dir}
				found[m.Path] = known
			}
			known.linked = known.linked || linked
			known.folders = append(known.folders, p.Dir)
		}
	}
	take(linked, true)
	take(tested, false)
	modules := make([]module, 0, len(found))
	for _, path := range slices.Sorted(maps.Keys(found)) {
		m := *found[path]
		slices.Sort(m.folders)
		m.folders = slices.Compact(m.folders)
		modules = append(modules, m)
	}
	return modules
}

// row is a line of the report.
type row struct {
	module module
	texts  []text
}

// licences are the licences of a row, each once.
func (r row) licences() string {
	var ids []string
	for _, t := range r.texts {
		ids = append(ids, t.ids...)
	}
	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), ", ")
}

// judge reads the licences of the modules. faults name the modules whose licences do not do.
func judge(modules []module) (rows []row, faults []error) {
	for _, m := range modules {
		texts, err := textsOf(m)
		for _, t := range texts {
			err = errors.Join(err, t.fault())
		}
		if len(texts) == 0 && err == nil {
			err = errors.New("no licence text found")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s@%s: %w", m.path, m.version, err))
		}
		rows = append(rows, row{m, texts})
	}
	return rows, faults
}

// licenceName matches the names under which licence texts stand. Notices and patent grants are no licences.
var licenceName = regexp.MustCompile(`(?i)^(un)?licen[sc]es?([-._].*)?$|^copying([-._].*)?$`)

// textsOf are the licence texts that hold for the packages of a module that are used: those in its root and in each folder
// between the root and a package.
func textsOf(m module) ([]text, error) {
	var texts []text
	seen := map[string]bool{}
	for _, folder := range append([]string{m.dir}, m.folders...) {
		for ; !seen[folder] && within(folder, m.dir); folder = filepath.Dir(folder) {
			seen[folder] = true
			entries, err := os.ReadDir(folder)
			if errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("its folder %s is not there; go mod download brings it", folder)
			}
			if err != nil {
				return nil, err
			}
			for _, e := range entries {
				if e.IsDir() || !licenceName.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
					continue
				}
				content, err := os.ReadFile(filepath.Join(folder, e.Name()))
				if err != nil {
					return nil, err
				}
				name, err := filepath.Rel(m.dir, filepath.Join(folder, e.Name()))
				if err != nil {
					return nil, err
				}
				texts = append(texts, classify(name, content))
			}
		}
	}
	return texts, nil
}

func within(folder, root string) bool {
	return folder == root || strings.HasPrefix(folder, root+string(filepath.Separator))
}

// write writes the report, a line a module.
func write(to io.Writer, rows []row) error {
	w := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "module\tversion\tlicence\tused by\ttexts")
	for _, r := range rows {
		used := "tests"
		if r.module.linked {
			used = "binary"
		}
		var names []string
		for _, t := range r.texts {
			names = append(names, t.name)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.module.path, r.module.version, cmp.Or(r.licences(), "?"), used, strings.Join(names, " "))
	}
	return w.Flush()
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const isc = `Copyright (c) 2020, Somebody

Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted,
provided that the above copyright notice and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED
WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT, INDIRECT, OR
CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF
CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE.
`

const gpl = `This program is free software: you can redistribute it and/or modify it under the terms of the GNU General Public
License as published by the Free Software Foundation, either version 3 of the License, or (at your option) any later version.

This program is distributed in the hope that it will be useful, but WITHOUT ANY WARRANTY; without even the implied warranty of
MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE. See the GNU General Public License for more details.

You should have received a copy of the GNU General Public License along with this program. If not, see
<https://www.gnu.org/licenses/>.
`

func TestJudge(t *testing.T) {
	for name, tt := range map[string]struct {
		files   map[string]string
		used    string // the folder of the package that is used
		fault   string // empty: none
		listing string
	}{
		"compatible":                    {files: map[string]string{"LICENSE": isc}, listing: "ISC"},
		"another name":                  {files: map[string]string{"COPYING.txt": isc}, listing: "ISC"},
		"British":                       {files: map[string]string{"LICENCE.md": isc}, listing: "ISC"},
		"incompatible":                  {files: map[string]string{"LICENSE": gpl}, fault: "LICENSE is GPL-3.0-or-later", listing: "GPL-3.0-or-later"},
		"both":                          {files: map[string]string{"LICENSE": isc, "COPYING": gpl}, fault: "COPYING is GPL-3.0-or-later", listing: "GPL-3.0-or-later, ISC"},
		"none":                          {files: map[string]string{"README": "free for all"}, fault: "no licence text found"},
		"unknown":                       {files: map[string]string{"LICENSE": "All rights reserved. Ask before you use it."}, fault: "not a licence that is known"},
		"mostly something else":         {files: map[string]string{"LICENSE": isc + strings.Repeat("You also owe us a beer for each line. ", 60)}, fault: "not a licence that is known", listing: "ISC"},
		"a link is no text":             {files: map[string]string{"LICENSE": "See https://opensource.org/licenses/MIT"}, fault: "not a licence that is known"},
		"its own, in a used folder":     {files: map[string]string{"LICENSE": isc, "a/LICENSE": gpl}, used: "a/b", fault: "a/LICENSE is GPL-3.0-or-later", listing: "GPL-3.0-or-later, ISC"},
		"its own, in an unused folder":  {files: map[string]string{"LICENSE": isc, "a/LICENSE": gpl}, used: "c", listing: "ISC"},
		"a program that is called so":   {files: map[string]string{"LICENSE": isc, "license.go": "package license"}, listing: "ISC"},
		"a folder above is not its own": {files: map[string]string{"../LICENSE": isc, "x.go": ""}, fault: "no licence text found"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "module")
			used := filepath.Join(dir, filepath.FromSlash(tt.used))
			if err := os.MkdirAll(used, 0o755); err != nil {
				t.Fatal(err)
			}
			for file, content := range tt.files {
				file = filepath.Join(dir, filepath.FromSlash(file))
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			rows, faults := judge([]module{{path: "example.com/m", version: "v1.2.3", dir: dir, folders: []string{used}}})
			if got := rows[0].licences(); got != tt.listing {
				t.Errorf("licences %q, want %q", got, tt.listing)
			}
			switch {
			case tt.fault == "" && len(faults) > 0:
				t.Errorf("refused: %v", faults)
			case tt.fault != "" && len(faults) != 1:
				t.Errorf("%d faults, want one that says %q", len(faults), tt.fault)
			case tt.fault != "" && (!strings.Contains(faults[0].Error(), tt.fault) || !strings.Contains(faults[0].Error(), "example.com/m@v1.2.3")):
				t.Errorf("the fault is %q, want it to name the module and say %q", faults[0], tt.fault)
			}
		})
	}
}

func TestModulesOf(t *testing.T) {
	linked, err := packagesIn([]byte(`{"ImportPath":"fmt","Standard":true}
{"ImportPath":"us/cmd","Dir":"/us/cmd","Module":{"Path":"us","Main":true,"Dir":"/us"}}
{"ImportPath":"b/x","Dir":"/b/x","Module":{"Path":"b","Version":"v1.0.0","Dir":"/b"}}`))
	if err != nil {
		t.Fatal(err)
	}
	tested, err := packagesIn([]byte(`{"ImportPath":"b/y","Dir":"/b/y","Module":{"Path":"b","Version":"v1.0.0","Dir":"/b"}}
{"ImportPath":"b/x","Dir":"/b/x","Module":{"Path":"b","Version":"v1.0.0","Dir":"/b"}}
{"ImportPath":"a","Dir":"/c","Module":{"Path":"a","Version":"v2.0.0","Dir":"/a","Replace":{"Path":"c","Version":"v3.0.0","Dir":"/c"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	modules := modulesOf(linked, tested)
	if len(modules) != 2 {
		t.Fatalf("%+v, want b and c", modules)
	}
	if b := modules[0]; b.path != "b" || !b.linked || len(b.folders) != 2 {
		t.Errorf("%+v", b)
	}
	if c := modules[1]; c.path != "c" || c.version != "v3.0.0" || c.linked || c.dir != "/c" {
		t.Errorf("%+v: what takes another's place is what is used", c)
	}
	if _, err := packagesIn([]byte(`{"ImportPath":`)); err == nil {
		t.Error("a listing that breaks off is no error")
	}
}

func TestMissingModuleIsSaid(t *testing.T) {
	_, faults := judge([]module{{path: "m", version: "v1", dir: filepath.Join(t.TempDir(), "gone")}})
	if len(faults) != 1 || !strings.Contains(faults[0].Error(), "go mod download") {
		t.Errorf("got %v", faults)
	}
}

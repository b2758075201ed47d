package vllm

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// The script takes a vLLM that is named, and says what to do where none can be installed.
func TestScript(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a Unix shell")
	}
	folder := t.TempDir()
	program := func(path, text string) string {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	program(filepath.Join(folder, "uname"), "echo Plan9/mips")
	alone := program(filepath.Join(folder, "vllm"), "")
	whole := t.TempDir()
	program(filepath.Join(whole, "python"), "")
	named := program(filepath.Join(whole, "vllm"), "")
	for name, tt := range map[string]struct {
		named string // SLUICE_VLLM
		out   string
		code  int
		says  string
	}{
		"named":              {named: named, out: named + "\n"},
		"no Python beside":   {named: alone, code: 1, says: "is no command with a python beside it"},
		"nothing there":      {named: "/nonexistent/vllm", code: 1, says: "SLUICE_VLLM=/nonexistent/vllm"},
		"no build to be had": {code: 2, says: "no pinned vLLM for Plan9/mips"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), filepath.Join("..", "..", "scripts", "vllm.sh"))
			cmd.Env = []string{"PATH=" + folder + ":" + os.Getenv("PATH"), "SLUICE_VLLM=" + tt.named}
			var out, said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &said
			code := 0
			if err := cmd.Run(); err != nil {
				exit := new(exec.ExitError)
				if !errors.As(err, &exit) {
					t.Fatal(err)
				}
				code = exit.ExitCode()
			}
			if code != tt.code || out.String() != tt.out || !strings.Contains(said.String(), tt.says) {
				t.Errorf("exit %d, printed %q, said %q; want exit %d, %q, and %q", code, out.String(), said.String(), tt.code, tt.out, tt.says)
			}
		})
	}
}

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

// A process that is still being waited for shows as a goroutine, so the check is also one for processes left behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func linuxOnly(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the CPU clock of another process is Linux's")
	}
}

var rowLine = regexp.MustCompile(`(?m)^stream body=1KiB endpoints=8 cpu_us=([0-9.]+) cpu_us_null=([0-9.]+) cpu_ratio=([0-9.]+) ` +
	`p99_us=([0-9]+) p99_us_null=([0-9]+) allocs=([0-9.]+)$`)

// The whole command, as small as it gets: both binaries are built, run, driven, profiled and stopped.
func TestTinyRun(t *testing.T) {
	linuxOnly(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out, progress bytes.Buffer
	profiles := filepath.Join(t.TempDir(), "new", "folder")
	err := run(ctx, []string{
		"-rounds", "1", "-requests", "50", "-bodies", "1KiB", "-endpoints", "8", "-cpuprofile", profiles, "-profile-time", "1s",
	}, &out, &progress)
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), progress.String())
	}
	found := rowLine.FindStringSubmatch(out.String())
	if found == nil {
		t.Fatalf("no row for scripts in\n%s", out.String())
	}
	var v []float64
	for _, text := range found[1:] {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || n <= 0 {
			t.Errorf("%s in %q: %v", text, found[0], err)
		}
		v = append(v, n)
	}
	// One round: the ratio is that of the printed numbers, but for their rounding.
	if ratio := v[0] / v[1]; v[2] < ratio-0.02 || v[2] > ratio+0.02 {
		t.Errorf("ratio %g of %g and %g", v[2], v[0], v[1])
	}
	// Neither can be done for less, or takes more on any machine.
	if v[0] < 10 || v[1] < 10 || v[5] < 50 || v[5] > 5000 {
		t.Errorf("implausible: %s", found[0])
	}
	for _, want := range []string{"median [range] of 1 rounds of 50 requests", "CPU µs/request", "null", "sluice"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, out.String())
		}
	}
	if !strings.Contains(progress.String(), "row 1 of 1: 1KiB bodies, 8 endpoints") {
		t.Errorf("progress: %s", progress.String())
	}
	for _, name := range []string{"stream-sluice-1KiB-8.pprof", "stream-nullserver-1KiB-8.pprof"} {
		if b, err := os.ReadFile(filepath.Join(profiles, name)); err != nil || len(b) < 100 {
			t.Errorf("profile %s: %d bytes, %v", name, len(b), err)
		}
	}
}

// stopWhen cancels once something that is written holds a text.
type stopWhen struct {
	text   string
	cancel context.CancelFunc
	all    bytes.Buffer
}

func (s *stopWhen) Write(b []byte) (int, error) {
	s.all.Write(b)
	if strings.Contains(s.all.String(), s.text) {
		s.cancel()
	}
	return len(b), nil
}

// An interrupt keeps the rows that are done, and leaves neither processes nor files.
func TestInterrupt(t *testing.T) {
	linuxOnly(t)
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out bytes.Buffer
	progress := &stopWhen{text: "row 2 of 2", cancel: cancel}
	err := run(ctx, []string{"-rounds", "1", "-requests", "50", "-bodies", "1KiB", "-endpoints", "8,9"}, &out, progress)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
	if !rowLine.MatchString(out.String()) || !strings.Contains(out.String(), "CPU µs/request") || strings.Contains(out.String(), "endpoints=9") {
		t.Errorf("of two rows the first was done:\n%s", out.String())
	}
	left, err := os.ReadDir(temporary)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if strings.HasPrefix(f.Name(), "sluice-bench-") {
			t.Errorf("%s is left", f.Name())
		}
	}
}

// What is measured has to work: a server that does not start ends the run, with what it said.
func TestNotASluice(t *testing.T) {
	linuxOnly(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	binary := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\necho the reason >&2\nexit 4\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := run(ctx, []string{"-sluice", binary, "-bodies", "1KiB", "-endpoints", "8", "-requests", "50"}, &out, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "the reason") || out.Len() > 0 {
		t.Errorf("error %v, output %q", err, out.String())
	}
}

func TestOptions(t *testing.T) {
	o, err := parseOptions(nil, &bytes.Buffer{})
	want := options{rounds: 5, requests: 2000, concurrency: 16, chunks: 3, bodies: []int{1 << 10, 16 << 10, 256 << 10},
		endpoints: []int{8, 64, 512}, profileTime: 5 * time.Second}
	if diff := cmp.Diff(want, o, cmp.AllowUnexported(options{})); err != nil || diff != "" {
		t.Errorf("defaults: %v %s", err, diff)
	}
	o, err = parseOptions([]string{"--bodies", "700B, 1MiB", "--endpoints=1,2", "-sluice", "x"}, &bytes.Buffer{})
	if err != nil || o.sluice != "x" || !cmp.Equal(o.bodies, []int{700, 1 << 20}) || !cmp.Equal(o.endpoints, []int{1, 2}) {
		t.Errorf("%+v, %v", o, err)
	}
	var help bytes.Buffer
	if _, err := parseOptions([]string{"-h"}, &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "(default 1KiB,16KiB,256KiB)") {
		t.Errorf("help: %v\n%s", err, help.String())
	}
}

func TestBadOptions(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"-rounds 0", "-rounds: must be at least 1, got 0"},
		{"-requests -5", "-requests: must be at least 1, got -5"},
		{"-concurrency 0", "-concurrency: must be at least 1, got 0"},
		{"-chunks 0", "-chunks: must be at least 1, got 0"},
		{"-bodies 16", `size "16"`},
		{"-bodies 1KiB,,", `size ""`},
		{"-bodies 511B", "at least 512B"},
		{"-endpoints 0", "1 to 4096 endpoints"},
		{"-endpoints 8,x", `got "x"`},
		{"-endpoints 5000", `got "5000"`},
		{"-profile-time 10ms", "-profile-time: must be at least 1s, got 10ms"},
		{"surplus", `unknown argument "surplus"`},
	} {
		if _, err := parseOptions(strings.Fields(tt.args), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error that says %q", tt.args, err, tt.want)
		}
	}
}

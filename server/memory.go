package server

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/config"
)

// memoryLimit is how much memory the process may use, in bytes, and whether it is Go's own limit (GOMEMLIMIT) that says so:
// else it is the smallest limit of a control group that the process is in, else the machine's memory. 0 where nothing is
// known. root is the file system's root, but in tests; goLimit is Go's limit, math.MaxInt64 for none.
func memoryLimit(root string, goLimit int64) (limit int64, ofGo bool) {
	if goLimit < math.MaxInt64 {
		return goLimit, true
	}
	limit = machineMemory(filepath.Join(root, "proc", "meminfo"))
	for _, file := range groupFiles(root) {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // not this kind of control group, or none
		}
		// "max" is no limit, and an absurd number is version 1's way to say so.
		if n, err := strconv.ParseInt(string(bytes.TrimSpace(content)), 10, 64); err == nil && n > 0 && n < 1<<60 && (limit == 0 || n < limit) {
			limit = n
		}
	}
	return limit, false
}

// groupFiles are the files that may hold the memory limit of a control group that the process is in: its own and those above,
// of version 2 (cgroup-v2.rst, "memory.max") and 1 (memory.rst, "memory.limit_in_bytes").
func groupFiles(root string) (files []string) {
	content, err := os.ReadFile(filepath.Join(root, "proc", "self", "cgroup"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(content)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy, controllers, path
		if len(parts) < 3 {
			continue
		}
		var folder, file string
		switch {
		case parts[1] == "":
			folder, file = "sys/fs/cgroup", "memory.max"
		case strings.Contains(","+parts[1]+",", ",memory,"):
			folder, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for path := filepath.Clean("/" + parts[2]); ; path = filepath.Dir(path) {
			files = append(files, filepath.Join(root, folder, path, file))
			if path == "/" {
				break
			}
		}
	}
	return files
}

// machineMemory is MemTotal of /proc/meminfo (proc_meminfo(5)) in bytes; 0 where it cannot be read.
func machineMemory(file string) int64 {
	content, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(content)) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil || kib <= 0 {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}

// limits are the bounds on memory that a server section means on this machine.
type limits struct {
	buffered, body int   // bytes
	goLimit        int64 // what Go's memory limit is to be; 0: left as it is
}

// What the requests being served hold may take up to three times as much while they are read, and the garbage collector needs
// room besides: so a quarter of the memory. Where nothing says how much there is, 1 GiB.
const (
	bufferedShare   = 4
	bufferedUnknown = 1 << 30
	bufferedLeast   = 1 << 20 // as for the key: with less, nobody would be served
)

// limitsOf brings the configuration and the memory together.
func limitsOf(s *config.Server, memory int64, ofGo bool) limits {
	l := limits{buffered: int(s.MaxBufferedBytes), body: int(s.MaxRequestBodyBytes)}
	switch {
	case l.buffered > 0:
	case memory > 0:
		l.buffered = max(int(memory/bufferedShare), bufferedLeast)
	default:
		l.buffered = bufferedUnknown
	}
	l.body = min(l.body, int(config.LargestBody(scheduling.Size(l.buffered))))
	if memory > 0 && !ofGo {
		l.goLimit = memory / 10 * 9 // the rest is for what Go does not manage
	}
	return l
}

// boundMemory decides the bounds on memory, and says where the memory makes one smaller than what was configured. Where
// the configuration itself does, its warnings say so.
func (a *App) boundMemory(s *config.Server) limits {
	memory, ofGo := memoryLimit("/", debug.SetMemoryLimit(-1))
	l := limitsOf(s, memory, ofGo)
	if s.MaxBufferedBytes == 0 && l.body < int(s.MaxRequestBodyBytes) {
		a.logger.Warn("request bodies are bounded below server.maxRequestBodyBytes: one may take half of server.maxBufferedBytes",
			"max_request_body_bytes", l.body, "max_buffered_bytes", l.buffered, "memory_bytes", memory)
	}
	return l
}

package server

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/config"
)

func TestMemoryLimit(t *testing.T) {
	const machine = "MemFree: 1 kB\nMemTotal:       16384 kB\nSwapTotal: 5 kB\n"
	for name, tt := range map[string]struct {
		files   map[string]string
		goLimit int64
		want    int64
		ofGo    bool
	}{
		"nothing known":   {nil, math.MaxInt64, 0, false},
		"the machine":     {map[string]string{"proc/meminfo": machine}, math.MaxInt64, 16 << 20, false},
		"GOMEMLIMIT":      {map[string]string{"proc/meminfo": machine}, 5 << 20, 5 << 20, true},
		"broken meminfo":  {map[string]string{"proc/meminfo": "MemTotal: much\n"}, math.MaxInt64, 0, false},
		"group in itself": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "4194304\n"}, math.MaxInt64, 4 << 20, false},
		"no limit":        {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, math.MaxInt64, 16 << 20, false},
		"more than there is": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "41943040\n"},
			math.MaxInt64, 16 << 20, false},
		"group above": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max",
			"sys/fs/cgroup/a/memory.max": "3145728"}, math.MaxInt64, 3 << 20, false},
		"version 1": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "9:cpu:/x\n4:hugetlb,memory:/pod\n",
			"sys/fs/cgroup/memory/pod/memory.limit_in_bytes": "2097152\n"}, math.MaxInt64, 2 << 20, false},
		"version 1, no limit": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, math.MaxInt64, 16 << 20, false},
		"group alone": {map[string]string{"proc/self/cgroup": "nonsense\n0::/\n", "sys/fs/cgroup/memory.max": "1048576"}, math.MaxInt64, 1 << 20, false},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, content := range tt.files {
				file = filepath.Join(root, filepath.FromSlash(file))
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got, ofGo := memoryLimit(root, tt.goLimit); got != tt.want || ofGo != tt.ofGo {
				t.Errorf("got %d, %v, want %d, %v", got, ofGo, tt.want, tt.ofGo)
			}
		})
	}
}

func TestLimitsOf(t *testing.T) {
	const mib = 1 << 20
	for name, tt := range map[string]struct {
		buffered, body scheduling.Size
		memory         int64
		ofGo           bool
		want           limits
	}{
		"a quarter":               {0, 64 * mib, 4096 * mib, true, limits{buffered: 1024 * mib, body: 64 * mib}},
		"as configured":           {300 * mib, 64 * mib, 4096 * mib, true, limits{buffered: 300 * mib, body: 64 * mib}},
		"nothing known":           {0, 64 * mib, 0, false, limits{buffered: 1024 * mib, body: 64 * mib}},
		"bodies too large for it": {0, 64 * mib, 256 * mib, true, limits{buffered: 64 * mib, body: 32 * mib}},
		"hardly any memory":       {0, 64 * mib, 1 * mib, true, limits{buffered: 1 * mib, body: mib / 2}},
		"Go's limit is set":       {0, 64 * mib, 1000 * mib, false, limits{buffered: 250 * mib, body: 64 * mib, goLimit: 900 * mib}},
	} {
		if got := limitsOf(&config.Server{MaxBufferedBytes: tt.buffered, MaxRequestBodyBytes: tt.body}, tt.memory, tt.ofGo); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
}

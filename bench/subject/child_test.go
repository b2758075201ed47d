package subject

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/goleak"
)

// childVariable makes the test binary a server to be measured; its value says how it behaves.
const childVariable = "SLUICE_SUBJECT_CHILD"

func TestMain(m *testing.M) {
	if mode := os.Getenv(childVariable); mode != "" {
		os.Exit(child(mode))
	}
	goleak.VerifyTestMain(m)
}

func child(mode string) int {
	switch mode {
	case "broken":
		fmt.Fprintln(os.Stderr, "child: cannot start: for a reason")
		return 3
	case "mute":
		select {}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector())
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if mode == "unready" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/burn", func(w http.ResponseWriter, r *http.Request) {
		ms, _ := strconv.Atoi(r.FormValue("ms"))
		begin := ownCPU()
		for ownCPU()-begin < time.Duration(ms)*time.Millisecond {
		}
		fmt.Fprint(w, int64(ownCPU()-begin))
	})
	mux.HandleFunc("/hold", func(_ http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("mib"))
		held = bytes.Repeat([]byte{1}, n<<20)
	})
	mux.HandleFunc("/allocate", func(_ http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n"))
		for range n {
			sink = new([64]byte)
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 1
	}
	fmt.Fprintln(os.Stderr, `{"msg":"starting"}`)
	fmt.Fprintf(os.Stderr, `{"msg":"serving","grpc":"127.0.0.1:1","admin":%q}`+"\n", l.Addr())
	if err := http.Serve(l, mux); err != nil {
		return 1
	}
	return 0
}

var (
	sink *[64]byte
	held []byte
)

func ownCPU() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

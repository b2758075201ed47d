package envoytest

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
)

// podsGiven counts the loopback addresses handed out in this process.
var podsGiven atomic.Uint32

// PodIPs returns loopback addresses that nothing else in the process was given, to stand for pods. Different processes
// start at different addresses, so that test binaries that run at once seldom share one. Where the system has only
// 127.0.0.1 the test is skipped.
func PodIPs(t testing.TB, n int) []string {
	t.Helper()
	ips := make([]string, n)
	for i := range ips {
		next := podsGiven.Add(1)
		if next > 250*250 {
			t.Fatal("no loopback address is left")
		}
		ips[i] = fmt.Sprintf("127.%d.%d.%d", 10+os.Getpid()%240, next/250, 1+next%250)
	}
	if n > 0 {
		l, err := net.Listen("tcp", net.JoinHostPort(ips[0], "0"))
		if err != nil {
			t.Skipf("only part of 127.0.0.0/8 is loopback here: %v", err)
		}
		_ = l.Close()
	}
	return ips
}

// FreePort returns a TCP port that is free on every one of the addresses, on 127.0.0.1 if none is given. Another process
// may take it before the caller does: where a server can listen on port 0 that is better.
func FreePort(t testing.TB, ips ...string) int {
	t.Helper()
	if len(ips) == 0 {
		ips = []string{"127.0.0.1"}
	}
	for range 50 {
		if port, ok := tryPort(t, ips); ok {
			return port
		}
	}
	t.Fatalf("no port is free on all of %v", ips)
	return 0
}

func tryPort(t testing.TB, ips []string) (int, bool) {
	t.Helper()
	first, err := net.Listen("tcp", net.JoinHostPort(ips[0], "0"))
	if err != nil {
		t.Fatal(err)
	}
	held := []net.Listener{first}
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	_, number, err := net.SplitHostPort(first.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, ip := range ips[1:] {
		l, err := net.Listen("tcp", net.JoinHostPort(ip, number))
		if err != nil {
			return 0, false
		}
		held = append(held, l)
	}
	port, err := strconv.Atoi(number)
	return port, err == nil
}

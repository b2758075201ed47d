package main

import (
	"context"
	_ "embed" // the launcher
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/sluice-epp/sluice/bench/caller"
	"github.com/sluice-epp/sluice/bench/proxy"
	"github.com/sluice-epp/sluice/bench/subject"
)

//go:embed router.py
var routerLauncher string

// startRouter runs a whole router over the engines with its cache-aware policy.
func (b *bench) startRouter(ctx context.Context, setup string, f field) (*subject.Process, error) {
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	args := []string{"-c", routerLauncher, strings.ReplaceAll(setup, "-", "_"), ports[0], ports[1]}
	for _, e := range f.pool.Addresses() {
		args = append(args, "http://"+e)
	}
	address := net.JoinHostPort("127.0.0.1", ports[0])
	return subject.Launch(ctx, subject.Command{
		Name: setup, Path: "python3", Args: args,
		// sglang-router would fetch a tokenizer for the model's name. It needs none, and gets nobody to ask.
		Environment: []string{"PYTHONPATH=" + b.routers, "HF_HUB_OFFLINE=1", "HF_ENDPOINT=http://127.0.0.1:1"},
		Ready: func(ctx context.Context) (string, error) {
			if _, err := page(ctx, "http://"+address+"/health"); err != nil {
				return "", err
			}
			client := caller.New([]string{address}, f.bodies[:1], 1, "")
			_, err := client.Run(ctx, proxy.Times(1))
			return address, errors.Join(err, client.Close())
		},
	})
}

// freePorts are ports of 127.0.0.1 that are free now: routers do not tell which ones they took.
func freePorts(n int) (ports []string, err error) {
	var taken []net.Listener
	for range n {
		l, listenErr := net.Listen("tcp", "127.0.0.1:0")
		if listenErr != nil {
			err = fmt.Errorf("a free port: %w", listenErr)
			break
		}
		taken = append(taken, l)
		_, port, _ := net.SplitHostPort(l.Addr().String()) // a listener's address has one
		ports = append(ports, port)
	}
	for _, l := range taken { // all at once, so that no port comes twice
		err = errors.Join(err, l.Close())
	}
	return ports, err
}

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/sluice-epp/sluice/bench/subject"
	"github.com/sluice-epp/sluice/deploy/envoy"
)

// startEnvoy runs an Envoy with the bootstrap that `sluice attach envoy` prints, and a route past the picker.
func (b *bench) startEnvoy(ctx context.Context, picker string, endpoints []string) (*subject.Process, error) {
	bootstrap, err := envoy.Render(envoy.Params{
		Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Picker: envoy.Picker{Address: picker},
		Endpoints: endpoints, Bypass: &envoy.Bypass{Header: bypassHeader},
	})
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp(b.folder, "envoy-")
	if err != nil {
		return nil, err
	}
	file, admin := filepath.Join(folder, "envoy.yaml"), filepath.Join(folder, "admin-address")
	if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
		return nil, err
	}
	return subject.Launch(ctx, subject.Command{
		Name: "envoy", Path: b.envoy,
		Args: []string{"-c", file, "--disable-hot-restart", "--concurrency", strconv.Itoa(connections),
			"--admin-address-path", admin, "--log-level", "warning"},
		Ready: func(ctx context.Context) (string, error) { return listener(ctx, admin) },
	})
}

// listener asks the admin port, whose address is in a file, whether Envoy is ready, and for its listener's address.
func listener(ctx context.Context, adminFile string) (string, error) {
	admin, err := os.ReadFile(adminFile)
	if err != nil {
		return "", err
	}
	if _, _, err := net.SplitHostPort(string(admin)); err != nil {
		return "", err // it is being written
	}
	if _, err := page(ctx, "http://"+string(admin)+"/ready"); err != nil {
		return "", err
	}
	listeners, err := page(ctx, "http://"+string(admin)+"/listeners?format=json")
	if err != nil {
		return "", err
	}
	return envoy.FirstListener(listeners)
}

// pages fetches what tells whether a program is ready.
var pages = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func page(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := pages.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %s", url, response.Status, content)
	}
	return content, nil
}

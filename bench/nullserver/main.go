// Command nullserver is the least that an ext_proc server can do: the same protocol and the same gRPC server as
// `sluice serve`, with generated messages, and nothing decided: what the protocol costs a server that does nothing about it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-epp/sluice/server/transport"
)

// maxBody is the largest request body, the same as the default of `sluice serve`.
const maxBody = 64 << 20

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address of the ext_proc server, plaintext")
	admin := flag.String("admin", "127.0.0.1:0", "address of metrics and profiles")
	picks := flag.String("pick", "127.0.0.1:8000", "endpoints, separated by commas, that requests get in turn")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := serve(ctx, slog.New(slog.NewJSONHandler(os.Stderr, nil)), *listen, *admin, strings.Split(*picks, ","))
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "nullserver: %v\n", err)
		os.Exit(1)
	}
}

// serve serves until ctx is over. It logs its addresses as `sluice serve` does.
func serve(ctx context.Context, logger *slog.Logger, listen, admin string, picks []string) error {
	grpcListener, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	adminListener, err := net.Listen("tcp", admin)
	if err != nil {
		return errors.Join(fmt.Errorf("-admin: %w", err), grpcListener.Close())
	}
	grpcServer := transport.NewServer(nil, maxBody)
	extprocv3.RegisterExternalProcessorServer(grpcServer, newNull(picks))
	healthy := health.NewServer() // an Envoy asks before it sends requests
	healthy.SetServingStatus(extprocv3.ExternalProcessor_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)
	healthv1.RegisterHealthServer(grpcServer, healthy)
	adminServer := &http.Server{Handler: adminHandler(), ReadHeaderTimeout: 10 * time.Second}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return grpcServer.Serve(grpcListener) })
	g.Go(func() error {
		if err := adminServer.Serve(adminListener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		grpcServer.Stop()
		return adminServer.Close()
	})
	logger.Info("serving", "grpc", grpcListener.Addr().String(), "admin", adminListener.Addr().String())
	return g.Wait()
}

// adminHandler serves what a measurement reads of a server: its Go metrics and its profiles.
func adminHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	return mux
}

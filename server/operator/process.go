package operator

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/scheduling"
)

// Running is the configuration in force.
type Running struct {
	// YAML is the effective configuration, secrets redacted, and Hash its name.
	YAML, Hash string
	// File is where it came from; empty for the built-in one.
	File string
	// Since is when it came into force.
	Since time.Time
	// Graph are the plugins in the order in which they run.
	Graph []string
	// Version is that of the process.
	Version string
}

// GetConfig returns the configuration in force, secrets redacted.
func (s *Service) GetConfig(context.Context, *schedulerv1.GetConfigRequest) (*schedulerv1.GetConfigResponse, error) {
	r := s.config.Running()
	return &schedulerv1.GetConfigResponse{
		Yaml: r.YAML, Hash: r.Hash, File: r.File, Since: timestamppb.New(r.Since), Graph: r.Graph, Version: r.Version,
	}, nil
}

// levels are the log levels that may be set.
var levels = []string{"debug", "info", "warn", "error"}

// SetLogLevel changes how much is logged, until the next change of the configuration file's logLevel.
func (s *Service) SetLogLevel(_ context.Context, r *schedulerv1.SetLogLevelRequest) (*schedulerv1.SetLogLevelResponse, error) {
	if s.config.Level == nil {
		return nil, status.Error(codes.FailedPrecondition, "the log level of this process cannot be changed")
	}
	name := strings.ToLower(r.GetLevel())
	if !slices.Contains(levels, name) {
		return nil, status.Errorf(codes.InvalidArgument, "level: want one of %s, got %q%s", strings.Join(levels, ", "), r.GetLevel(), scheduling.Hint(name, levels))
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	before := s.config.Level.Level()
	if before < level {
		defer s.config.Level.Set(level) // else the log would not have what follows
	} else {
		s.config.Level.Set(level)
	}
	s.config.Logger.Warn("the log level was changed over the admin port", "before", strings.ToLower(before.String()), "now", name)
	return &schedulerv1.SetLogLevelResponse{Previous: strings.ToLower(before.String())}, nil
}

// Drain makes the process not ready and ends it once its requests are done, as SIGTERM does.
func (s *Service) Drain(context.Context, *schedulerv1.DrainRequest) (*schedulerv1.DrainResponse, error) {
	streams, grace := s.config.Drain()
	return &schedulerv1.DrainResponse{OpenStreams: uint64(max(0, streams)), GracePeriod: durationpb.New(grace)}, nil
}

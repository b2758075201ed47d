package operator

import (
	"cmp"
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
)

// How many streams an answer has.
const (
	usualStreams = 100
	maxStreams   = 5_000
)

// ListStreams lists the requests in flight, oldest first.
func (s *Service) ListStreams(_ context.Context, r *schedulerv1.ListStreamsRequest) (*schedulerv1.ListStreamsResponse, error) {
	open, left := s.config.Streams(int(min(cmp.Or(r.GetLimit(), usualStreams), maxStreams)))
	answer := &schedulerv1.ListStreamsResponse{LeftOut: uint32(left)}
	for _, o := range open {
		answer.Streams = append(answer.Streams, &schedulerv1.Stream{
			Id: o.ID, RequestId: o.RequestID, Phase: string(o.Phase), Model: o.Model, Endpoint: o.Endpoint,
			Age: durationpb.New(o.Age), HeldBytes: uint64(o.HeldBytes),
		})
	}
	return answer, nil
}

package server

import (
	"fmt"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/credentials/insecure"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/server/config"
)

// streamed plays a streamed answer: a first token, and the end, which tells the usage.
func streamed(t *testing.T, s extprocv3.ExternalProcessor_ProcessClient) {
	t.Helper()
	body := func(text string, end bool) {
		t.Helper()
		sendTo(t, s, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
			ResponseBody: &extprocv3.HttpBody{EndOfStream: end, Body: []byte(text)}}})
	}
	sendTo(t, s, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: headersOf(":status", "200", "content-type", "text/event-stream")}}})
	body(`data: {"choices":[{"index":0,"delta":{"content":"a"}}]}`+"\n\n", false)
	body(`data: {"choices":[],"usage":{"prompt_tokens":700,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}}`+"\n\ndata: [DONE]\n\n", true)
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := s.Recv(); err != nil {
			return
		}
	}
}

// The built-in configuration learns from answers as they stream by. What it has learnt is told of the endpoint that answered, and
// exported, and what priced a decision is in its record.
func TestLearntRatesAreTold(t *testing.T) {
	p := launch(t, "", func(o *Options) {
		before := o.Override
		o.Override = func(c *config.Config) {
			c.Endpoints = []string{"127.0.0.1:1"}
			before(c)
		}
	})
	o := p.operator(t, insecure.NewCredentials())
	rates := func() *schedulerv1.LearntRates {
		a, err := o.ListEndpoints(t.Context(), &schedulerv1.ListEndpointsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return a.GetEndpoints()[0].GetRates()
	}
	if r := rates(); r != nil {
		t.Errorf("before any request: %v", r)
	}
	const requests = 5
	for i := range requests {
		s := p.duplex(t, "x-request-id", fmt.Sprintf("hills-%d", i))
		sendTo(t, s, requestBody(chatAbout("hills"), true))
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		streamed(t, s)
	}
	waitFor(t, func() bool { return rates().GetConfidence() > 0.19 })
	if r := rates(); r.GetPrefillTokensPerSecond() < 1000 || !(r.GetWaitMsPerToken() > 0) || !(r.GetBreakEven() > 1) {
		t.Errorf("%v", r)
	}
	told, err := o.Explain(t.Context(), &schedulerv1.ExplainRequest{RequestId: "hills-4"})
	if err != nil {
		t.Fatal(err)
	}
	if len(told.GetExplanations()) != 1 {
		t.Fatalf("%v", told)
	}
	d := told.GetExplanations()[0].GetDecision()
	if len(d.GetPoolPressures()) != 1 || d.GetCandidates()[0].GetLearntRates()[0].GetPrefillMsPerToken() <= 0 {
		t.Errorf("a decision without what priced it: %v", d)
	}
	_, page := p.page(t, "/metrics")
	want := []string{
		fmt.Sprintf("sluice_rates_samples_total{producer=\"learnt-rates-producer\"} %d", requests),
		fmt.Sprintf("sluice_rates_decode_samples_total{producer=\"learnt-rates-producer\"} %d", requests),
		"sluice_rates_prefill_tokens_per_second{endpoint=\"127.0.0.1:1\",producer=\"learnt-rates-producer\"} ",
	}
	var got []string
	for _, w := range want {
		if strings.Contains(page, w) {
			got = append(got, w)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +found)\n%s", diff)
	}
}

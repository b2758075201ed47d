package metrics

import (
	"bytes"
	"math"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// BenchmarkScan reads whole pages of a real engine, beside the Prometheus parser.
func BenchmarkScan(b *testing.B) {
	for _, name := range []string{"vllm_idle.txt", "vllm_dp2.txt"} {
		text := page(b, name)
		b.Run("scanner/"+name, func(b *testing.B) {
			w := new(workspace)
			reader := bytes.NewReader(text)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				reader.Reset(text)
				w.scanner.reset(dialects[0])
				if _, err := w.scan(reader, math.MaxInt64); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("expfmt/"+name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				parser := expfmt.NewTextParser(model.LegacyValidation)
				if _, err := parser.TextToMetricFamilies(bytes.NewReader(text)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

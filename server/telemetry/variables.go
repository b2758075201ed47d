package telemetry

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
)

// The variables that say whether and how requests are traced.
const (
	exporterVariable   = "OTEL_TRACES_EXPORTER"
	samplerVariable    = "OTEL_TRACES_SAMPLER"
	samplerArgVariable = "OTEL_TRACES_SAMPLER_ARG"
)

// Exporters.
const (
	exporterOTLP    = "otlp"
	exporterConsole = "console"
	exporterNone    = "none"
)

// Samplers. Those that do not begin with "parentbased" do not follow the caller's decision.
const (
	alwaysOn    = "always_on"
	alwaysOff   = "always_off"
	ofRatio     = "traceidratio"
	parentBased = "parentbased_" // and one of those
)

// The values that the variables may have: those of the OpenTelemetry specification that its Go SDK knows.
var (
	exporters = []string{exporterOTLP, exporterConsole, exporterNone}
	samplers  = []string{
		alwaysOn, alwaysOff, ofRatio, parentBased + alwaysOn, parentBased + alwaysOff, parentBased + ofRatio,
	}
	protocols = []string{"grpc", "http/protobuf"}
)

func sampler() string { return strings.ToLower(strings.TrimSpace(os.Getenv(samplerVariable))) }

// exporterOf is the exporter that the environment asks for; empty where it asks for none.
func exporterOf() string {
	named := os.Getenv(exporterVariable)
	switch {
	case os.Getenv("OTEL_SDK_DISABLED") == "true", named == exporterNone:
		return ""
	case named != "":
		return named
	case os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "", os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "":
		return exporterOTLP
	}
	return ""
}

// checkVariables checks what tracing is set up by. The SDK would take another sampler for one that it does not know, and go on.
func checkVariables(exporter string) error {
	if err := oneOf(exporterVariable, exporter, exporters); err != nil {
		return err
	}
	if exporter == exporterOTLP {
		for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
			if value := os.Getenv(name); value != "" {
				if err := oneOf(name, value, protocols); err != nil {
					return err
				}
				break // the first one counts
			}
		}
	}
	s := sampler()
	if s == "" {
		return nil
	}
	if err := oneOf(samplerVariable, s, samplers); err != nil {
		return err
	}
	if strings.TrimPrefix(s, parentBased) != ofRatio {
		return nil
	}
	arg := strings.TrimSpace(os.Getenv(samplerArgVariable))
	if ratio, err := strconv.ParseFloat(arg, 64); arg != "" && (err != nil || !(ratio >= 0 && ratio <= 1)) { // NaN is neither
		return fmt.Errorf("%s: must be a number from 0 to 1, the share of requests that %s=%s records, got %q", samplerArgVariable, samplerVariable, s, arg)
	}
	return nil
}

// oneOf checks a variable's value.
func oneOf(variable, value string, valid []string) error {
	if slices.Contains(valid, value) {
		return nil
	}
	return fmt.Errorf("%s: must be one of %s, got %q%s", variable, strings.Join(valid, ", "), value, scheduling.Hint(value, valid))
}

package record

import (
	"strings"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// Verdict is a gate's verdict as metrics, the decision header and documents name it, as scheduling.GateVerdict's String does:
// held, no_sticky, released_matched.
func Verdict(v decisionv1.GateVerdict) string {
	return strings.ToLower(strings.TrimPrefix(v.String(), "GATE_VERDICT_"))
}

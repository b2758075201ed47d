package explain

import (
	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// AdapterUse says what an engine does with the adapter that the request names; empty where that is not known.
func AdapterUse(m *decisionv1.EngineMetrics) string {
	switch m.GetAdapter() {
	case decisionv1.AdapterUse_ADAPTER_USE_RUNNING:
		return "computed"
	case decisionv1.AdapterUse_ADAPTER_USE_WAITING:
		return "waits"
	case decisionv1.AdapterUse_ADAPTER_USE_UNUSED:
		return "not in use"
	default:
		return ""
	}
}

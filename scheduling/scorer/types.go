package scorer

import (
	"fmt"

	"github.com/sluice-epp/sluice/scheduling"
)

// Types lists the scorers. A new one is one file, its test and a line here.
func Types() []scheduling.PluginType {
	return []scheduling.PluginType{
		prefillCostType(),
		prefixCacheType(),
		tokenLoadType(),
		activeRequestType(),
		queueType(),
		kvCacheUtilizationType(),
		loraAffinityType(),
		noHitLRUType(),
		latencyType(),
	}
}

// within checks a parameter's range, both ends included. It refuses what is not a number.
func within(key string, value, low, high float64) error {
	if value >= low && value <= high {
		return nil
	}
	return fmt.Errorf("parameters.%s: must be between %v and %v, got %v", key, low, high, value)
}

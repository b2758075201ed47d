package config

import "github.com/sluice-epp/sluice/scheduling"

// NotInThisVersion is part of the error of whatever is known but still to come.
const NotInThisVersion = "not in this version"

// Later are the plugin types that are known but still to come; using one is an error.
func Later() []scheduling.PluginType {
	later := []scheduling.PluginType{
		{Type: "session-affinity-scorer", Summary: "Prefers the endpoint that served the session before."},
	}
	for i := range later {
		later[i].Unavailable = NotInThisVersion
	}
	return later
}

package schedtest

import (
	"github.com/goccy/go-yaml"
)

// YAML decodes a parameter block strictly, as a configuration file is. An empty block leaves the defaults.
func YAML(block string) func(into any) error {
	if block == "" {
		return nil
	}
	return func(into any) error {
		return yaml.UnmarshalWithOptions([]byte(block), into, yaml.Strict())
	}
}

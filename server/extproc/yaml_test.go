package extproc

import "github.com/goccy/go-yaml"

func yamlInto(text string, into any) error { return yaml.Unmarshal([]byte(text), into) }

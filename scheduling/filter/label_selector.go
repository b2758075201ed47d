package filter

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
)

// Types lists the filters. A new one is one file, its test and a line here.
func Types() []scheduling.PluginType {
	return []scheduling.PluginType{labelSelectorType(), sloHeadroomTierType()}
}

// labelSelectorParameters are a Kubernetes label selector: every entry of both lists must hold.
type labelSelectorParameters struct {
	// MatchLabels are labels that an endpoint must have, with these values.
	MatchLabels map[string]string `yaml:"matchLabels"`
	// MatchExpressions are further requirements.
	MatchExpressions []labelExpression `yaml:"matchExpressions"`
}

type labelExpression struct {
	// Key is the label's name.
	Key string `yaml:"key"`
	// Operator is In, NotIn, Exists or DoesNotExist.
	Operator string `yaml:"operator"`
	// Values are the values of In and NotIn; the other two take none.
	Values []string `yaml:"values"`
}

func labelSelectorType() scheduling.PluginType {
	return scheduling.PluginType{
		Type:       "label-selector-filter",
		Summary:    "Keeps the endpoints whose labels match a selector.",
		Parameters: &labelSelectorParameters{},
		New: func(b *scheduling.Builder) (any, error) {
			var p labelSelectorParameters
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			return newLabelSelector(p)
		},
	}
}

// LabelSelector keeps the endpoints whose labels satisfy every requirement, as a Kubernetes label selector does. An
// endpoint without the label satisfies NotIn and DoesNotExist, and neither In nor Exists.
type LabelSelector struct {
	requirements []requirement
}

type requirement struct {
	key    string
	values []string // nil: presence alone counts
	negate bool
}

// The operators of a label expression (apimachinery, metav1.LabelSelectorOperator).
const (
	opIn           = "In"
	opNotIn        = "NotIn"
	opExists       = "Exists"
	opDoesNotExist = "DoesNotExist"
)

var operators = []string{opIn, opNotIn, opExists, opDoesNotExist}

func newLabelSelector(p labelSelectorParameters) (*LabelSelector, error) {
	if len(p.MatchLabels)+len(p.MatchExpressions) == 0 {
		return nil, errors.New("parameters: the selector is empty: give matchLabels or matchExpressions")
	}
	f := &LabelSelector{}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(p.MatchLabels)) {
		value := p.MatchLabels[key]
		path := fmt.Sprintf("parameters.matchLabels[%q]", key)
		errs = append(errs, checkKey(path, key), checkValue(path, value))
		f.requirements = append(f.requirements, requirement{key: key, values: []string{value}})
	}
	for i, e := range p.MatchExpressions {
		r, err := e.compile(fmt.Sprintf("parameters.matchExpressions[%d]", i))
		errs = append(errs, err)
		f.requirements = append(f.requirements, r)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return f, nil
}

func (e labelExpression) compile(path string) (requirement, error) {
	errs := []error{checkKey(path+".key", e.Key)}
	r := requirement{key: e.Key, negate: e.Operator == opNotIn || e.Operator == opDoesNotExist}
	switch e.Operator {
	case opIn, opNotIn:
		if len(e.Values) == 0 {
			errs = append(errs, fmt.Errorf("%s.values: %s needs at least one value", path, e.Operator))
		}
		for j, v := range e.Values {
			errs = append(errs, checkValue(fmt.Sprintf("%s.values[%d]", path, j), v))
		}
		r.values = slices.Clone(e.Values)
	case opExists, opDoesNotExist:
		if len(e.Values) > 0 {
			errs = append(errs, fmt.Errorf("%s.values: %s takes none, got %q", path, e.Operator, e.Values))
		}
	default:
		errs = append(errs, fmt.Errorf("%s.operator: must be one of %s, got %q%s",
			path, strings.Join(operators, ", "), e.Operator, scheduling.Hint(e.Operator, operators)))
	}
	return r, errors.Join(errs...)
}

// Filter implements scheduling.Filter.
func (f *LabelSelector) Filter(c *scheduling.Cycle, candidates scheduling.Set) {
	for e := candidates.Next(0); e >= 0; e = candidates.Next(e + 1) {
		if !f.matches(c.Snapshot.Endpoints[e].Labels) {
			candidates.Remove(e)
		}
	}
}

// LabelKeys are the labels that the filter looks at; a decision record keeps them, so that it can be replayed.
func (f *LabelSelector) LabelKeys() []string {
	keys := make([]string, len(f.requirements))
	for i, r := range f.requirements {
		keys[i] = r.key
	}
	return keys
}

func (f *LabelSelector) matches(labels map[string]string) bool {
	for i := range f.requirements {
		if !f.requirements[i].holds(labels) {
			return false
		}
	}
	return true
}

func (r *requirement) holds(labels map[string]string) bool {
	value, has := labels[r.key]
	if has && r.values != nil {
		has = slices.Contains(r.values, value)
	}
	return has != r.negate
}

// maxLabelLength bounds a label's value and its key's name; maxPrefixLength the prefix of a key.
const (
	maxLabelLength  = 63
	maxPrefixLength = 253
)

const prefixCharacters = "abcdefghijklmnopqrstuvwxyz0123456789-."

// checkKey checks a label key: an optional DNS prefix and a slash, then a name (Kubernetes, "Labels and Selectors",
// syntax and character set).
func checkKey(path, key string) error {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		prefix, name = "", key
	} else if prefix == "" || len(prefix) > maxPrefixLength {
		return fmt.Errorf("%s: the prefix of a label key must have 1 to %d characters, got %q", path, maxPrefixLength, key)
	}
	if strings.ContainsFunc(prefix, func(r rune) bool { return !strings.ContainsRune(prefixCharacters, r) }) {
		return fmt.Errorf("%s: the prefix of a label key is a lower-case DNS name, got %q", path, key)
	}
	if name == "" {
		return fmt.Errorf("%s: a label key must have a name, got %q", path, key)
	}
	return checkValue(path, name)
}

// checkValue checks a label value: empty, or up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both
// ends.
func checkValue(path, value string) error {
	if len(value) > maxLabelLength {
		return fmt.Errorf("%s: a label may have %d characters, got %d", path, maxLabelLength, len(value))
	}
	for i := range len(value) {
		ch := value[i]
		inner := i > 0 && i < len(value)-1
		if alphanumeric(ch) || (inner && strings.IndexByte("-_.", ch) >= 0) {
			continue
		}
		return fmt.Errorf("%s: a label holds letters, digits, and inside also '-', '_' and '.', got %q", path, value)
	}
	return nil
}

func alphanumeric(ch byte) bool {
	return ch >= '0' && ch <= '9' || ch >= 'a' && ch <= 'z' || ch >= 'A' && ch <= 'Z'
}

package scheduling

import "iter"

// ColumnOf returns the first column of a value type in a cycle, in the order of the graph; nil, on which Get says absent,
// where nobody produces the type. It is for those who look at a decision from outside: plugins declare Keys.
func ColumnOf[T any](c *Cycle) *Column[T] {
	for _, st := range c.storage {
		if column, ok := st.(*Column[T]); ok {
			return column
		}
	}
	return nil
}

// ValueOf is ColumnOf for a value of the whole request.
func ValueOf[T any](c *Cycle) *Value[T] {
	for _, st := range c.storage {
		if value, ok := st.(*Value[T]); ok {
			return value
		}
	}
	return nil
}

// TypeOf is the plugin type of the plugin with a name; empty where there is none.
func (s *Scheduler) TypeOf(name string) string {
	for _, p := range s.plugins {
		if p.spec.Name == name {
			return p.spec.Type
		}
	}
	return ""
}

// Plugins walks the plugins of the configuration by name, each behind those that it consumes from.
func (s *Scheduler) Plugins() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for _, p := range s.plugins {
			if !yield(p.spec.Name, p.plugin) {
				return
			}
		}
	}
}

// PluginsOf is Plugins for those of one type, or that implement one interface.
func PluginsOf[T any](s *Scheduler) iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		for name, plugin := range s.Plugins() {
			if p, ok := plugin.(T); ok && !yield(name, p) {
				return
			}
		}
	}
}

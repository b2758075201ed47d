// Package record turns a decision into its record, and a record back into a decision: the record explains a pick, is
// logged, and is decided again under the same or another configuration.
package record

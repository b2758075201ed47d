// Package filter holds the small filters: each narrows the candidates by what endpoints are, or by whether they are predicted to
// be fast enough.
package filter

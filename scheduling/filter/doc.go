// Package filter holds the small filters: each narrows the candidates by what endpoints are, not by what they are busy
// with.
package filter

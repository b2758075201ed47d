// Package picker holds the pickers: each turns the candidates' total scores into an ordered list of picks.
package picker

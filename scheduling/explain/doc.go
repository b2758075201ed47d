// Package explain says why a recorded decision came out as it did: in words, and by the smallest changes that would have
// made it another one.
package explain

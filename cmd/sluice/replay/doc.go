// Package replay makes recorded decisions again: under the configuration that made them, where each has to come out the same
// to the byte, or under another one, where what comes out otherwise is counted, with what made the difference.
//
// It is open-loop: every decision is made on what was recorded of the endpoints, which would have been different had the
// decisions before it been others.
package replay

// Package gate decides when a request should leave the warm engine: the affinity filter keeps a request on the endpoints
// that hold its prefix, until these are so much busier than the rest that the cached prefix is not worth the wait.
//
// It is pure: its inputs are columns, its only source of chance is the request's recorded seed, and its verdict, with
// the numbers behind it, is left in the cycle.
package gate

// Package scheduling is the pure core of Sluice: it decides which endpoint answers a request.
//
// A request's way through it is: producers fill columns (one typed value per endpoint), then one pure step,
// Decide, narrows the candidates with filters, scores what is left and picks. The core has no clock, no I/O, no
// global random source and no log: time is a parameter, random numbers come from the request's recorded seed, and
// what happened is left in the Cycle for its caller to record.
package scheduling

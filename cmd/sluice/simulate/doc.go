// Package simulate compares configurations of the picker on a trace: the scheduling code that serves, in front of modelled
// engines, in virtual time and closed loop.
package simulate

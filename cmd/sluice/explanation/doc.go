// Package explanation writes an explained decision for people: the reason in words first, then what it rests on.
package explanation

// Package session keeps the requests of a session on the engine that served it before, as long as other scorers agree. The
// client carries a token from each answer to its next request; nothing is kept of sessions here, so that every replica that
// has the same key knows every session.
package session

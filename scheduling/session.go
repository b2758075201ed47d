package scheduling

// SessionHome is the value of the endpoint that served the request's session before. Others have none, and so have all
// where the request belongs to no session that is known.
type SessionHome struct{}

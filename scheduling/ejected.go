package scheduling

// Ejected is the value of an endpoint that is left out for a while because it failed, as long as others are left. Others have
// none.
type Ejected struct{}

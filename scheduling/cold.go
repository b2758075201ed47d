package scheduling

// ColdRank orders the endpoints that a request may go to by when each last got a cold request, one of whose prompt no
// endpoint held anything: the highest rank, one less than there are endpoints, is for who got the latest one, the next for who
// got the one before, and so on; 0 for all who got none that is remembered. Of a request that is not cold itself no endpoint
// has a value.
type ColdRank int64

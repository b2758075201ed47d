package discovery

import "sync/atomic"

// Stats are the numbers of discovery, written by it and read by whoever exports them. The zero value is ready to use.
type Stats struct {
	// Endpoints is the number of endpoints in the merged set (gauge).
	Endpoints atomic.Int64
	// Duplicates is the number of published endpoints left out now because an earlier one has their address (gauge).
	Duplicates atomic.Int64
	// Refused is the number of published endpoints left out now because the set is at its limit (gauge).
	Refused atomic.Int64
	// Invalid is the number of published endpoints left out now because their address is not an "ip:port" (gauge).
	Invalid atomic.Int64
	// Updates counts the sets that sources have published.
	Updates atomic.Uint64

	// Lookups counts questions to DNS.
	Lookups atomic.Uint64
	// LookupFailures counts those that failed for a time (timeout, SERVFAIL, refused); their last answer stands.
	LookupFailures atomic.Uint64
	// LookupsEmpty counts those whose answer was that there is nothing.
	LookupsEmpty atomic.Uint64
	// NamesFailing is the number of names whose last question failed or found nothing (gauge).
	NamesFailing atomic.Int64

	// FileLoads counts files read and taken over.
	FileLoads atomic.Uint64
	// FileErrors counts contents that could not be taken over, a missing file included; the last good set stands.
	FileErrors atomic.Uint64
	// FilesFailing is the number of files whose present content is not what is served (gauge).
	FilesFailing atomic.Int64
	// BadEntries is the number of entries skipped in the files as they are served (gauge).
	BadEntries atomic.Int64

	// KubeLists counts whole lists that were asked of a Kubernetes API server, KubeWatches watches that went on from one, and
	// KubeErrors the questions of either kind that were not answered.
	KubeLists, KubeWatches, KubeErrors atomic.Uint64
	// KubeFailing is the number of what is followed in Kubernetes whose last question was not answered (gauge).
	KubeFailing atomic.Int64
}

package memo

import "time"

const (
	quarter = 15 * time.Minute
	// doubt is the time around an epoch's border in which another machine's clock may be on its other side.
	doubt = 3 * time.Second
)

// EpochOf is the quarter of an hour that something rendered from begun to ended belongs to; 0 where that is not certain.
// Templates may hold the date, which changes at some time zone's midnight: on a border of quarters, wherever that is. So a
// prompt whose epoch has not passed has the date that it would be rendered with.
func EpochOf(begun, ended time.Time) int64 {
	first := Epoch(begun.Add(-doubt))
	if first != Epoch(ended.Add(doubt)) {
		return 0
	}
	return first
}

// Epoch is the quarter of an hour that a time belongs to; never 0 after 1970.
func Epoch(t time.Time) int64 { return t.Unix() / int64(quarter/time.Second) }

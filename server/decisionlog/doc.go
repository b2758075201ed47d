// Package decisionlog writes decisions to files as they end: a row for each, with its outcome, as JSON lines or Parquet.
//
// A Log is an observer of requests. It copies what a decision rests on, keeps the copy until the request ends and hands it
// to one writer, which makes the record, encodes it and writes it. Nothing on the way of a request waits: what there is
// no room for is left out and counted.
package decisionlog

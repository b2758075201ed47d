package openai

import (
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
)

// OperationOf is the operation that a request path (":path", with or without its query) names. A trailing slash and
// whatever stands before the API's version segment are tolerated ("/openai/v1/chat/completions/"), as are other version
// segments ("/v3/…") and paths by deployment name ("/openai/deployments/NAME/completions"); "chat/completions", which
// means nothing else, needs neither. Everything else, sub-resources such as "/v1/messages/count_tokens" included, is
// OperationOther.
func OperationOf(path string) scheduling.Operation {
	if i := strings.IndexAny(path, "?#"); i >= 0 {
		path = path[:i]
	}
	path = strings.TrimRight(path, "/")
	parent, last := cutLast(path)
	if last == "completions" {
		if _, segment := cutLast(parent); segment == "chat" {
			return scheduling.OperationChat
		}
	}
	if !servesAPI(parent) {
		return scheduling.OperationOther
	}
	switch last {
	case "completions":
		return scheduling.OperationCompletions
	case "responses":
		return scheduling.OperationResponses
	case "embeddings":
		return scheduling.OperationEmbeddings
	case "messages":
		return scheduling.OperationMessages
	}
	return scheduling.OperationOther
}

// cutLast cuts a path before its last segment.
func cutLast(path string) (parent, last string) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return "", ""
	}
	return path[:i], path[i+1:]
}

// servesAPI reports whether a path is one under which the APIs are mounted: it ends in a version segment ("v1",
// "v1beta"), in "openai", or in "deployments/NAME".
func servesAPI(path string) bool {
	parent, last := cutLast(path)
	if last == "openai" || (len(last) >= 2 && last[0] == 'v' && last[1] >= '0' && last[1] <= '9') {
		return true
	}
	_, above := cutLast(parent)
	return above == "deployments" && last != ""
}

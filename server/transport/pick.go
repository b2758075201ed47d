package transport

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// The fields of a ProcessingResponse down to a header that is set, and to a string in dynamic metadata.
const (
	fieldDynamicMetadata = 8 // of ProcessingResponse

	fieldHeaderMutation = 2 // of CommonResponse
	fieldSetHeaders     = 1 // of HeaderMutation
	fieldHeader         = 1 // of HeaderValueOption

	fieldStructFields = 1 // of google.protobuf.Struct
	fieldEntryKey     = 1 // of an entry of a map
	fieldEntryValue   = 2
	fieldStringValue  = 3 // of google.protobuf.Value
	fieldStructValue  = 5
)

// PickAtHeaders is the answer to request headers that sets a header to a value, and the same in dynamic metadata: the
// header's name is the key in a namespace.
func PickAtHeaders(header, namespace, value string) *Answer {
	return pick(answerRequestHeaders, header, namespace, value)
}

// PickAtBody is the same as the answer to a request body, which it leaves as it is.
func PickAtBody(header, namespace, value string) *Answer {
	return pick(answerRequestBody, header, namespace, value)
}

func pick(of protowire.Number, header, namespace, value string) *Answer {
	headerValue := sizeOf(len(header)) + sizeOf(len(value))
	option := sizeOf(headerValue)
	mutation := sizeOf(option)
	common := sizeOf(mutation)
	response := sizeOf(common)

	text := sizeOf(len(value))                  // a Value
	entry := sizeOf(len(header)) + sizeOf(text) // of the namespace
	inner := sizeOf(entry)                      // the namespace, a Struct
	wrapped := sizeOf(inner)                    // a Value
	outer := sizeOf(len(namespace)) + sizeOf(wrapped)
	metadata := sizeOf(outer)

	b := make([]byte, 0, sizeOf(response)+sizeOf(metadata))
	b = appendHead(b, of, response)
	b = appendHead(b, fieldResponse, common)
	b = appendHead(b, fieldHeaderMutation, mutation)
	b = appendHead(b, fieldSetHeaders, option)
	b = appendHead(b, fieldHeader, headerValue)
	b = appendText(b, fieldKey, header)
	b = appendText(b, fieldRawValue, value)

	b = appendHead(b, fieldDynamicMetadata, metadata)
	b = appendHead(b, fieldStructFields, outer)
	b = appendText(b, fieldEntryKey, namespace)
	b = appendHead(b, fieldEntryValue, wrapped)
	b = appendHead(b, fieldStructValue, inner)
	b = appendHead(b, fieldStructFields, entry)
	b = appendText(b, fieldEntryKey, header)
	b = appendHead(b, fieldEntryValue, text)
	b = appendText(b, fieldStringValue, value)
	return newAnswer(b, nil)
}

// sizeOf is the length of a field with n bytes; its number is below 16.
func sizeOf(n int) int { return 1 + protowire.SizeBytes(n) }

// appendHead begins a field with n bytes.
func appendHead(b []byte, number protowire.Number, n int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.BytesType), uint64(n))
}

func appendText(b []byte, number protowire.Number, text string) []byte {
	return append(appendHead(b, number, len(text)), text...)
}

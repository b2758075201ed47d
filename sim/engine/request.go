package engine

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-epp/sluice/sim/bpe"
)

// apiError is an error that the client sees.
type apiError struct {
	status         int
	kind           string // e.g. BadRequestError
	message, param string
}

func (e apiError) Error() string { return fmt.Sprintf("%d %s: %s", e.status, e.kind, e.message) }

func badRequest(param, format string, args ...any) apiError {
	return apiError{status: http.StatusBadRequest, kind: "BadRequestError", message: fmt.Sprintf(format, args...), param: param}
}

// invalid is what a body gets that is not as the API describes it.
func invalid(param, format string, args ...any) apiError {
	e := badRequest(param, format, args...)
	e.kind = "Bad Request"
	return e
}

func openAIError(e apiError) any {
	type inner struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	in := inner{Message: e.message, Type: e.kind, Code: e.status}
	if e.param != "" {
		in.Param = &e.param
	}
	return struct {
		Error inner `json:"error"`
	}{in}
}

// anthropicError leaves errors of validation in OpenAI's shape, as vLLM does.
func anthropicError(e apiError) any {
	if e.kind == "Bad Request" {
		return openAIError(e)
	}
	type inner struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	return struct {
		Type  string `json:"type"`
		Error inner  `json:"error"`
	}{"error", inner{e.kind, e.message}}
}

// decode reads a JSON body as leniently as vLLM: a byte order mark, duplicate and unknown members
// and invalid UTF-8 pass.
func decode(body []byte, v any) error {
	body = bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))
	err := json.Unmarshal(body, v, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	var syntax *jsontext.SyntacticError
	var semantic *json.SemanticError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &semantic):
		param := "body" + strings.ReplaceAll(string(semantic.JSONPointer), "/", ".")
		return invalid(param, "%s: a JSON %s is not valid here", param, semantic.JSONKind)
	case errors.As(err, &syntax):
		param := "body." + strconv.FormatInt(syntax.ByteOffset, 10)
		return invalid(param, "%s: JSON decode error: %v", param, syntax.Err)
	default: // the body is empty or ends too early
		param := "body." + strconv.Itoa(len(body))
		return invalid(param, "%s: JSON decode error: %v", param, err)
	}
}

func missing(name string) apiError { return invalid("body."+name, "body.%s: field required", name) }

// number is an integer that may be written as a string or with a zero fraction.
type number int

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(b []byte) error {
	f, err := strconv.ParseFloat(strings.Trim(string(b), `"`), 64)
	if err != nil || f != float64(int(f)) {
		return errors.New("not an integer")
	}
	*n = number(f)
	return nil
}

// flag is a boolean that may be written as a string or as 0 and 1; null is false.
type flag bool

// UnmarshalJSON implements json.Unmarshaler.
func (f *flag) UnmarshalJSON(b []byte) error {
	switch strings.ToLower(strings.Trim(string(b), `"`)) {
	case "true", "1", "yes", "on":
		*f = true
	case "false", "0", "no", "off", "null":
		*f = false
	default:
		return errors.New("not a boolean")
	}
	return nil
}

// prompts is the prompt of a completion, or the input of an embedding, in any of its four shapes:
// text, texts, token ids, lists of token ids. Texts get the special tokens that are asked for.
func (s *Server) prompts(name string, v jsontext.Value, special bool) ([][]uint32, error) {
	empty := badRequest(name, "%s must be given and must not be empty", name)
	switch v.Kind() {
	case '"':
		var text string
		if err := decode(v, &text); err != nil {
			return nil, err
		}
		if text == "" {
			return nil, empty
		}
		return [][]uint32{s.encode(text, special)}, nil
	case '[':
	case 'n', 0:
		return nil, empty
	default:
		return nil, invalid("body."+name, "body.%s: must be a string or a list", name)
	}
	var items []jsontext.Value
	if err := decode(v, &items); err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return nil, empty
	}
	if items[0].Kind() == '0' {
		ids, err := s.tokenIDs(name, v)
		return [][]uint32{ids}, err
	}
	var out [][]uint32
	for i, item := range items {
		path := fmt.Sprintf("%s.%d", name, i)
		switch item.Kind() {
		case '[':
			ids, err := s.tokenIDs(path, item)
			if err != nil {
				return nil, err
			}
			out = append(out, ids)
		case '"':
			more, err := s.prompts(path, item, special)
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		default:
			return nil, invalid("body."+path, "body.%s: must be a string or a list of token ids", path)
		}
	}
	return out, nil
}

// encode gives the tokens of a text that is no chat's, after the special token unless it is not wanted.
func (s *Server) encode(text string, special bool) []uint32 {
	var tokens []uint32
	if special {
		tokens = append(tokens, s.tok.ID(bpe.Begin))
	}
	return s.tok.AppendMarked(tokens, text)
}

func (s *Server) tokenIDs(name string, v jsontext.Value) ([]uint32, error) {
	var raw []int64
	if err := decode(v, &raw); err != nil {
		return nil, invalid("body."+name, "body.%s: must be a list of token ids", name)
	}
	if len(raw) == 0 {
		return nil, badRequest(name, "%s must not be empty", name)
	}
	ids := make([]uint32, len(raw))
	for i, id := range raw {
		if id < 0 || id >= int64(s.tok.Size()) {
			return nil, badRequest("", "token id %d is out of vocabulary", id)
		}
		ids[i] = uint32(id)
	}
	return ids, nil
}

package engine

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// tokenize is POST /tokenize, with a prompt or with the messages of a chat.
func (s *Server) tokenize(c *call) error {
	var req struct {
		chatPrompt     `json:",inline"`
		Model          string  `json:"model"`
		Prompt         *string `json:"prompt"`
		ReturnTokenStr flag    `json:"return_token_strs"`
	}
	if err := decode(c.body, &req); err != nil {
		return err
	}
	if _, err := s.known(req.Model); err != nil {
		return err
	}
	var tokens []uint32
	switch {
	case req.Messages != nil:
		var err error
		if tokens, err = req.chatPrompt.tokens(s); err != nil {
			return err
		}
	case req.Prompt != nil:
		tokens = s.encode(*req.Prompt, bool(or(req.AddSpecial, true)))
	default:
		return missing("prompt")
	}
	var strs *[]string
	if req.ReturnTokenStr {
		list := make([]string, len(tokens))
		for i, id := range tokens {
			list[i] = text(s.tok, id)
		}
		strs = &list
	}
	return c.json(struct {
		Count       int       `json:"count"`
		MaxModelLen int       `json:"max_model_len"`
		Tokens      []uint32  `json:"tokens"`
		TokenStrs   *[]string `json:"token_strs"`
	}{len(tokens), s.cfg.Params.MaxModelLen, tokens, strs})
}

// detokenize is POST /detokenize.
func (s *Server) detokenize(c *call) error {
	var req struct {
		Model  string         `json:"model"`
		Tokens jsontext.Value `json:"tokens"`
	}
	if err := decode(c.body, &req); err != nil {
		return err
	}
	if _, err := s.known(req.Model); err != nil {
		return err
	}
	ids, err := s.tokenIDs("tokens", req.Tokens)
	if err != nil {
		return err
	}
	b, err := s.tok.Decode(nil, ids)
	if err != nil {
		return err
	}
	return c.json(map[string]string{"prompt": strings.ToValidUTF8(string(b), "\uFFFD")})
}

// models is GET /v1/models.
func (s *Server) models(c *call) error {
	type model struct {
		ID          string  `json:"id"`
		Object      string  `json:"object"`
		Created     int64   `json:"created"`
		OwnedBy     string  `json:"owned_by"`
		Root        string  `json:"root"`
		Parent      *string `json:"parent"`
		MaxModelLen *int    `json:"max_model_len"`
	}
	var data []model
	base := s.cfg.Models[0]
	for _, name := range slices.Concat(s.cfg.Models, s.cfg.Adapters) {
		m := model{ID: name, Object: "model", Created: c.life.started.Unix(), OwnedBy: "vllm", Root: name}
		if slices.Contains(s.cfg.Adapters, name) {
			m.Parent = &base
		} else {
			m.Root, m.MaxModelLen = base, &s.cfg.Params.MaxModelLen
		}
		data = append(data, m)
	}
	return c.json(struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", data})
}

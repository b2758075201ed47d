package engine

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// embeddingSize is the length of an embedding.
const embeddingSize = 64

// embeddings is POST /v1/embeddings: prefill without output, and a vector of length one made from
// the prompt's hash.
func (s *Server) embeddings(c *call) error {
	var req struct {
		Model        string         `json:"model"`
		Input        jsontext.Value `json:"input"`
		Encoding     string         `json:"encoding_format"`
		AddSpecial   *flag          `json:"add_special_tokens"`
		cacheOptions `json:",inline"`
	}
	if err := decode(c.body, &req); err != nil {
		return err
	}
	model, err := s.known(req.Model)
	if err != nil {
		return err
	}
	prompts, err := s.prompts("input", req.Input, bool(or(req.AddSpecial, true)))
	if err != nil {
		return err
	}
	g, err := s.generate(c, task{
		prompts: prompts, samples: 1, maxTokens: -1, model: model, salt: req.salt(), report: req.report(),
	})
	if err != nil {
		return err
	}
	defer g.abort()
	if err := s.whole(c.ctx, g); err != nil {
		return err
	}
	type item struct {
		Index     int    `json:"index"`
		Object    string `json:"object"`
		Embedding any    `json:"embedding"`
	}
	var data []item
	for i, p := range prompts {
		v := any(embed(p))
		if req.Encoding == "base64" {
			var b []byte
			for _, x := range embed(p) {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
			}
			v = base64.StdEncoding.EncodeToString(b)
		}
		data = append(data, item{i, "embedding", v})
	}
	return c.json(struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		Model   string `json:"model"`
		Data    []item `json:"data"`
		Usage   *usage `json:"usage"`
	}{c.newID("embd-"), "list", time.Now().Unix(), model, data, g.counts(1).openAI()})
}

func embed(prompt []uint32) []float32 {
	rng := rand.New(rand.NewPCG(digest(prompt), 0))
	v := make([]float32, embeddingSize)
	var norm float64
	for i := range v {
		x := rng.NormFloat64()
		v[i], norm = float32(x), norm+x*x
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(norm))
	}
	return v
}

package openai_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/openai"
)

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type chat struct {
	Model     string    `json:"model"`
	Stream    bool      `json:"stream"`
	MaxTokens int       `json:"max_tokens"`
	Messages  []message `json:"messages"`
}

const prose = "The quick brown fox said \"jump\" and the dog\nlay down; then 17 more lines followed, each as dull. "

// chatOf is a conversation of about size bytes in messages of about each bytes.
func chatOf(size, each int) []byte {
	text := strings.Repeat(prose, each/len(prose)+1)[:each]
	c := chat{Model: "meta-llama/Llama-3.1-8B-Instruct", Stream: true, MaxTokens: 256}
	for total, i := 0, 0; total < size; total, i = total+each, i+1 {
		c.Messages = append(c.Messages, message{Role: []string{"user", "assistant"}[i%2], Content: text})
	}
	b, _ := json.Marshal(c)
	return b
}

func benchBodies() map[string][]byte {
	return map[string][]byte{
		"1KiB":          chatOf(1<<10-256, 256),
		"16KiB":         chatOf(16<<10, 2<<10),
		"256KiB":        chatOf(256<<10, 4<<10),
		"1MiB":          chatOf(1<<20, 16<<10),
		"10000messages": chatOf(100_000, 10),
		"1MBoneChar":    []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("a", 1_000_000) + `"}]}`),
		"quotes":        []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat(`\"`, 128<<10) + `"}]}`),
		"tools256KiB":   []byte(`{"model":"m","tools":[` + strings.Repeat(`{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}},`, 2300) + `{}],"messages":[]}`),
	}
}

func BenchmarkScan(b *testing.B) {
	for name, body := range benchBodies() {
		b.Run(name, func(b *testing.B) {
			s := openai.NewScanner()
			var r scheduling.Request
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Scan(scheduling.OperationChat, body, &r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkScanTokens(b *testing.B) {
	body := []byte(`{"model":"m","prompt":[` + strings.Repeat("12345, ", 100_000) + `7]}`)
	s := openai.NewScanner()
	var r scheduling.Request
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Scan(scheduling.OperationCompletions, body, &r); err != nil || r.TokenCount != 100_001 {
			b.Fatal(err, r.TokenCount)
		}
	}
}

// BenchmarkEncodingJSON is the same bodies through encoding/json into a struct, for comparison.
func BenchmarkEncodingJSON(b *testing.B) {
	for name, body := range benchBodies() {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				var c chat
				if err := json.Unmarshal(body, &c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkJSONText is the same bodies through jsontext, token by token, for comparison.
func BenchmarkJSONText(b *testing.B) {
	for name, body := range benchBodies() {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				d := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true))
				for {
					if _, err := d.ReadToken(); errors.Is(err, io.EOF) {
						break
					} else if err != nil {
						b.Fatal(fmt.Errorf("jsontext: %w", err))
					}
				}
			}
		})
	}
}

// BenchmarkPush reads a recorded stream, one event a push as an engine sends them, and a large plain answer.
func BenchmarkPush(b *testing.B) {
	stream := recorded(b, "chat_stream_usage_continuous.sse")
	events := bytes.SplitAfter(stream, []byte("\n\n"))
	b.Run("stream", func(b *testing.B) {
		b.SetBytes(int64(len(stream)))
		b.ReportAllocs()
		var r openai.Response
		for b.Loop() {
			r.Start(200, []byte("text/event-stream"), nil)
			for _, e := range events {
				r.Push(e)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(events)), "ns/event")
	})
	floats := []byte(`{"data":[{"embedding":[` + strings.Repeat("-0.0123456789, ", 70_000) + `1]}],"usage":{"prompt_tokens":1}}`)
	text := []byte(`{"data":[{"embedding":"` + strings.Repeat("AAAAvw", 175_000) + `"}],"usage":{"prompt_tokens":1}}`)
	for name, body := range map[string][]byte{"floats": floats, "base64": text} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			var r openai.Response
			for b.Loop() {
				r.Start(200, []byte("application/json"), nil)
				for i := 0; i < len(body); i += 1 << 16 {
					r.Push(body[i:min(i+1<<16, len(body))])
				}
			}
		})
	}
}

// BenchmarkPushEncodingJSON is the same stream, split by event beforehand, through encoding/json for its usage alone.
func BenchmarkPushEncodingJSON(b *testing.B) {
	stream := recorded(b, "chat_stream_usage_continuous.sse")
	events := bytes.SplitAfter(stream, []byte("\n\n"))
	b.SetBytes(int64(len(stream)))
	b.ReportAllocs()
	for b.Loop() {
		for _, e := range events {
			var v struct {
				Choices []struct {
					Delta struct {
						Content string `json:"content"`
					} `json:"delta"`
				} `json:"choices"`
				Usage *struct {
					Prompt int `json:"prompt_tokens"`
				} `json:"usage"`
			}
			data := bytes.TrimPrefix(bytes.TrimSpace(e), []byte("data: "))
			if len(data) > 0 && data[0] == '{' && json.Unmarshal(data, &v) != nil {
				b.Fatal("not JSON")
			}
		}
	}
}

package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Open reads a trace file in any of the formats, gzipped or not. It tells them by how they begin.
func Open(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	t, err := Read(filepath.Base(path), f)
	return t, errors.Join(err, f.Close())
}

// Read is Open for what is open already.
func Read(name string, r io.Reader) (*Trace, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	if magic, err := b.Peek(2); err == nil && bytes.Equal(magic, []byte{0x1f, 0x8b}) { // RFC 1952
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		b = bufio.NewReaderSize(z, 64<<10)
	}
	head, err := b.Peek(len(azureHeader))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	switch trimmed := bytes.TrimLeft(head, " \t\r\n"); {
	case len(trimmed) == 0:
		return nil, errors.New(name + ": is empty")
	case trimmed[0] == '{':
		return ReadMooncake(name, b)
	case bytes.HasPrefix(trimmed, []byte("TIMESTAMP")):
		return ReadAzure(name, b)
	default:
		return nil, fmt.Errorf("%s: neither JSON lines with hash_ids nor CSV with %s; it begins with %q", name, azureHeader, clip(trimmed))
	}
}

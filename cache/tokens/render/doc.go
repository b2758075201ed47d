// Package render asks engines what tokens a request renders to: by vLLM's render routes, which answer with exactly what
// its own engine would be given, or by its tokenize route where they are missing.
package render

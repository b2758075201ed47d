package scheduling

import (
	"slices"
	"strings"
)

// aSlip is how many letters off a name is at most where its letters say more than its words.
const aSlip = 2

// Nearest returns the candidate that name was meant for, or "" where none is near enough. A slip of the keys is the one with the
// smallest edit distance. Beyond that words count: one that has a word too few or too many, as latency-producer, is nearer than one
// whose letters happen to be alike. What is left are distances up to a third of the name's length.
func Nearest(name string, candidates []string) string {
	best, bestDistance := "", max(aSlip, len(name)/3)+1
	for _, c := range candidates {
		if d := editDistance(name, c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	if bestDistance <= aSlip {
		return best
	}
	shared := 1
	for _, c := range candidates {
		if n := sharedWords(name, c); n > shared {
			best, shared = c, n
		}
	}
	return best
}

// sharedWords is how many words, apart by dashes, two names have in common where they end alike and one has all of the other's; else 0.
func sharedWords(a, b string) int {
	few, many := strings.Split(a, "-"), strings.Split(b, "-")
	if len(few) > len(many) {
		few, many = many, few
	}
	if few[len(few)-1] != many[len(many)-1] {
		return 0
	}
	for _, word := range few {
		if !slices.Contains(many, word) {
			return 0
		}
	}
	return len(few)
}

// editDistance is Levenshtein's, in bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal = row[j+1]
			row[j+1] = cost
		}
	}
	return row[len(b)]
}

// Hint is ` (did you mean "x"?)` for the candidate nearest to name, or "".
func Hint(name string, candidates []string) string {
	if n := Nearest(name, candidates); n != "" {
		return ` (did you mean "` + n + `"?)`
	}
	return ""
}

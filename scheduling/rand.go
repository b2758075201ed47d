package scheduling

import "math/bits"

// Rand is a small seeded random source (splitmix64; Steele, Lea and Flood 2014). It is a value: a decision that is
// replayed from its recorded seed draws the same numbers.
type Rand struct{ state uint64 }

// NewRand returns a source for a seed and a stream. Two streams of one seed are unrelated, so that a plugin added to a
// profile does not change what the others draw.
func NewRand(seed, stream uint64) Rand { return Rand{state: Mix64(seed ^ Mix64(stream))} }

// Mix64 is splitmix64's finaliser: a bijection on 64 bits that spreads every input bit over the output.
func Mix64(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}

// Uint64 draws 64 uniform bits.
func (r *Rand) Uint64() uint64 {
	x := Mix64(r.state)
	r.state += 0x9e3779b97f4a7c15
	return x
}

// IntN draws uniformly from 0 to n-1; n must be positive. (Lemire's multiply-shift; its bias is below n/2⁶⁴.)
func (r *Rand) IntN(n int) int {
	hi, _ := bits.Mul64(r.Uint64(), uint64(n))
	return int(hi)
}

// Float64 draws uniformly from [0, 1).
func (r *Rand) Float64() float64 { return float64(r.Uint64()>>11) / (1 << 53) }

// StreamOf derives a Rand stream from a plugin's name (FNV-1a, 64 bits).
func StreamOf(name string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 0x100000001b3
	}
	return h
}

// Package random draws Services, EndpointSlices and the flows to them for the cluster of a lab, out of few values, so
// that objects meet and clash. Tests draw with rapid, which shrinks; proxytest draws with a seed.
package random

import (
	"math/rand/v2"
	"slices"
)

// Choose draws a number from 0 to n-1.
type Choose func(n int) int

// Seeded returns a Choose that depends on nothing but the seed.
func Seeded(seed uint64) Choose { return rand.New(rand.NewPCG(seed, 0)).IntN }

// Maybe is true once in that many times.
func (c Choose) Maybe(of int) bool { return c(of) == 0 }

// One draws one of what there is.
func One[T any](c Choose, from []T) T { return from[c(len(from))] }

// Some draws up to n of what there is, sorted and each once; nil for none.
func Some[T any](c Choose, from []T, n int, compare func(T, T) int) []T {
	var out []T
	for range c(n + 1) {
		out = append(out, One(c, from))
	}
	slices.SortFunc(out, compare)
	return slices.CompactFunc(out, func(a, b T) bool { return compare(a, b) == 0 })
}

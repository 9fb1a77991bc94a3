package route

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// Rendezvous is the table of an exchange that gives each message to one member
// out of many. Members are ordered by their names, so two values that were
// made of the same members choose alike, in whatever order those were added,
// on whatever machine. The zero Rendezvous is empty.
//
// Like all tables here it never changes. With and Without copy the list, O(n);
// Pick walks over it, O(n) per message.
//
// Invariants: names ascend strictly; 1 ≤ times; times ≤ weight ≤ times ·
// MaxWeight.
type Rendezvous[T comparable] struct {
	list []rendezvousMember[T]
}

type rendezvousMember[T comparable] struct {
	name string
	// seed is HashString(name), kept so that Pick does not hash names
	seed   uint64 // hash of name
	weight uint64 // of all times together
	times  int
	member T
}

// MaxWeight is the largest weight that With takes. The sum of 2^32 such
// weights still fits into 64 bits.
const MaxWeight = 1<<32 - 1

// Len is the number of different members.
func (s Rendezvous[T]) Len() int { return len(s.list) }

// With returns s with member added once; its weights add up. The name must be
// the member's own and weight from 1 to MaxWeight. If the name is there
// already, its member is kept and the argument ignored.
func (s Rendezvous[T]) With(name string, member T, weight uint64) Rendezvous[T] {
	i, found := s.find(name)
	if !found {
		return Rendezvous[T]{inserted(s.list, i, rendezvousMember[T]{name: name, seed: HashString(name), weight: weight, times: 1, member: member})}
	}
	more := s.list[i]
	more.weight += weight
	more.times++
	return Rendezvous[T]{replaced(s.list, i, more)}
}

// Without undoes one With. Requires: weight is that of a With of this name that
// was not undone yet, or the sum no longer says what the member was added with.
// A name that is not there leaves s as it is.
func (s Rendezvous[T]) Without(name string, weight uint64) Rendezvous[T] {
	i, found := s.find(name)
	switch {
	case !found:
		return s
	case s.list[i].times == 1:
		return Rendezvous[T]{removed(s.list, i)}
	}
	less := s.list[i]
	less.weight -= weight
	less.times--
	return Rendezvous[T]{replaced(s.list, i, less)}
}

// Under says how often the member of this name was added and not removed, and
// with what weight.
func (s Rendezvous[T]) Under(name string) (times int, weight uint64) {
	if i, found := s.find(name); found {
		return s.list[i].times, s.list[i].weight
	}
	return 0, 0
}

// find returns the position of name in the list, or where it would be inserted.
func (s Rendezvous[T]) find(name string) (int, bool) {
	return slices.BinarySearchFunc(s.list, name, func(e rendezvousMember[T], name string) int { return cmp.Compare(e.name, name) })
}

// At returns member n modulo Len, of those in the order of their names. ok is
// false if there is none. Weights do not count. Another member changes the
// choice for nearly every n; where that matters there is Pick.
func (s Rendezvous[T]) At(n uint64) (member T, ok bool) {
	if len(s.list) == 0 {
		return member, false
	}
	return s.list[n%uint64(len(s.list))].member, true
}

// AtOf is At among the members that fits accepts, which it is asked about
// twice. Requires: fits answers the same both times; otherwise ok may be false
// although it accepted one. Asking twice saves a list per message.
func (s Rendezvous[T]) AtOf(n uint64, fits func(T) bool) (member T, ok bool) {
	count := uint64(0)
	for i := range s.list {
		if fits(s.list[i].member) {
			count++
		}
	}
	if count == 0 {
		return member, false
	}
	left := n % count
	for i := range s.list {
		switch {
		case !fits(s.list[i].member):
		case left == 0:
			return s.list[i].member, true
		default:
			left--
		}
	}
	return member, false // fits has changed its mind
}

// Pick returns the member that the hash of a message belongs to. Each has its
// part of all hashes in proportion to its weight. A member that is added or
// gets more weight takes over hashes for itself and moves no other; one that
// goes, or gets less, gives up its own and moves no other. ok is false if
// there is no member.
//
// It is rendezvous hashing: every member draws a number for the hash, and the
// highest wins. A draw u, out of 64 bits, of weight w counts as the w-th root
// of u: the best of w draws.
//
// It allocates nothing. If two members draw equally well, which takes equal
// weights and equal seeds or an exact tie of logarithms, the first by name
// wins, so the choice is the same on every machine even then.
func (s Rendezvous[T]) Pick(hash uint64) (member T, ok bool) {
	best, high := -1, uint64(0)
	for i := range s.list {
		u := mix(hash ^ s.list[i].seed)
		if best < 0 || beats(u, s.list[i].weight, high, s.list[best].weight) {
			best, high = i, u
		}
	}
	if best < 0 {
		return member, false
	}
	return s.list[best].member, true
}

// beats reports whether the draw u of weight w is better than v of weight x.
//
// Requires: w and x are not 0. The products of a 64-bit distance and a 64-bit
// weight need 128 bits, hence Mul64.
func beats(u, w, v, x uint64) bool {
	switch {
	case w == x:
		return u > v
	case u <= v && w < x:
		return false
	case u >= v && w > x:
		return true
	}
	// u^(1/w) > v^(1/x), as logarithms: distance(u)/w < distance(v)/x. Nearly
	// always an estimate is enough; what it decides is right on every machine.
	a, b := estimate(u)*float64(x), estimate(v)*float64(w)
	if margin := (a + b) * 1e-6; a+margin < b || b+margin < a {
		return a < b
	}
	ah, al := bits.Mul64(distance(u), x)
	bh, bl := bits.Mul64(distance(v), w)
	return ah < bh || ah == bh && al < bl
}

// estimate returns distance as a floating point number, in units of its own. As
// ^u is rounded to 53 bits, its relative error is below the margin of beats
// only for u above about 2^25; one draw in 2^39 is smaller.
func estimate(u uint64) float64 { return -math.Log1p(-float64(^u) / (1 << 64)) }

// fraction is how many bits behind the point distance has.
const fraction = 56

// distance returns how far the binary logarithm of u lies below 64, with
// fraction bits behind the point, in integers so that it is the same
// everywhere. 0 counts as 1. The result is from 1 to 64 << fraction: never 0,
// or a weight would not count.
func distance(u uint64) uint64 {
	u = max(u, 1)
	whole := uint64(bits.Len64(u) - 1)
	log := whole << fraction
	m := u << (63 - whole) // from 1 to 2, with 63 bits behind the point
	for bit := uint64(1) << (fraction - 1); bit > 0; bit >>= 1 {
		high, low := bits.Mul64(m, m) // from 1 to 4, with 126 bits behind the point
		if high>>63 != 0 {
			log |= bit
			m = high
		} else {
			m = high<<1 | low>>63
		}
	}
	return 64<<fraction - log
}

// HashString and HashBytes hash what messages are chosen by. The result is
// part of what clients see, as it decides which queue gets which message: it
// never changes.
func HashString(s string) uint64 { return hashText(s) }

// HashBytes is HashString of the same bytes.
func HashBytes(b []byte) uint64 { return hashText(b) }

// hashText is FNV-1a with its bits mixed at the end.
func hashText[B ~string | ~[]byte](text B) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return mix(h)
}

// Hash hashes a value of a header: equal values have equal hashes, as have
// those of HashBytes and of texts. Requires: v is in the form that Equal
// compares, see Value. A header that is not there is the zero Value, a Void:
// all messages without it hash alike.
func (v Value) Hash() uint64 {
	switch v.Class {
	case String:
		return HashBytes(v.Text)
	case Void:
		return HashString("")
	}
	return mix(HashBytes(v.Text) ^ mix(uint64(v.Num)) ^ uint64(v.Class))
}

// mix spreads the bits of x over all of the result. Different x have
// different results.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

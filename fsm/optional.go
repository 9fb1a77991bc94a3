package fsm

import (
	"fmt"
	"math"
)

// Optional is a duration or a number that may be absent. The zero Optional is
// absent. The log and the links between nodes store the value plus one, and 0
// if it is absent; see OptionalFrom and Stored.
type Optional[T ~int64 | ~uint64] struct {
	Value T // 0 unless Given
	Given bool
}

// Some returns an Optional with value v.
func Some[T ~int64 | ~uint64](v T) Optional[T] { return Optional[T]{v, true} }

// OptionalFrom decodes a stored value. Values that are too large for T become
// the largest value that every T can hold.
func OptionalFrom[T ~int64 | ~uint64](stored uint64) Optional[T] {
	if stored == 0 {
		return Optional[T]{}
	}
	return Some(T(min(stored-1, math.MaxInt64)))
}

// Stored is the inverse of OptionalFrom. The value must not be negative.
func (o Optional[T]) Stored() uint64 {
	if !o.Given {
		return 0
	}
	return uint64(o.Value) + 1
}

// Or returns the value, or other if there is none.
func (o Optional[T]) Or(other T) T {
	if o.Given {
		return o.Value
	}
	return other
}

// Least returns the smaller of the values that are given.
func (o Optional[T]) Least(p Optional[T]) Optional[T] {
	if !o.Given || p.Given && p.Value < o.Value {
		return p
	}
	return o
}

// Allows reports whether v is within the limit o. An absent limit allows
// everything.
func (o Optional[T]) Allows(v T) bool { return !o.Given || v <= o.Value }

// String returns the value, or "none".
func (o Optional[T]) String() string {
	if !o.Given {
		return "none"
	}
	return fmt.Sprint(o.Value)
}

package fsm

import (
	"fmt"
	"math"
)

// Optional is a duration or a number that need not be given. The zero Optional
// is none. The log and the links between nodes store the value plus one, and 0
// for none; see OptionalFrom and Stored.
type Optional[T ~int64 | ~uint64] struct {
	Value T // 0 unless Given
	Given bool
}

// Some returns an Optional that is given.
func Some[T ~int64 | ~uint64](v T) Optional[T] { return Optional[T]{v, true} }

// OptionalFrom decodes what is stored. What T cannot hold becomes the largest
// value that every T can.
func OptionalFrom[T ~int64 | ~uint64](stored uint64) Optional[T] {
	if stored == 0 {
		return Optional[T]{}
	}
	return Some(T(min(stored-1, math.MaxInt64)))
}

// Stored is the inverse of OptionalFrom. A value must not be negative.
func (o Optional[T]) Stored() uint64 {
	if !o.Given {
		return 0
	}
	return uint64(o.Value) + 1
}

// Or is the value, or another one if there is none.
func (o Optional[T]) Or(other T) T {
	if o.Given {
		return o.Value
	}
	return other
}

// Least is the smaller one of those that are given.
func (o Optional[T]) Least(p Optional[T]) Optional[T] {
	if !o.Given || p.Given && p.Value < o.Value {
		return p
	}
	return o
}

// Allows reports whether v is within a limit. Without one everything is.
func (o Optional[T]) Allows(v T) bool { return !o.Given || v <= o.Value }

// String returns the value, or "none".
func (o Optional[T]) String() string {
	if !o.Given {
		return "none"
	}
	return fmt.Sprint(o.Value)
}

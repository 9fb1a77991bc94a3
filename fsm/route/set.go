package route

import "iter"

// Set is a persistent multiset: a walk yields each member once, however often
// it was added, until it was removed as often. The zero Set is empty.
//
// Most sets hold one or two members, some ten thousand: up to setSmall
// members a set is a list, from then on a Map.
//
// Like Map it is a value that never changes; a copy costs nothing.
//
// Invariants: 1 ≤ times of every member; len(small) ≤ setSmall; at most one of
// small and large is not empty. A set that has become large stays a Map until
// it is empty, so that a member added and removed in turn does not convert it
// each time.
type Set[T comparable] struct {
	// small is in the order in which members were added; never written again
	small []setItem[T]
	// large maps members to times
	large Map[T, int]
}

type setItem[T comparable] struct {
	member T
	times  int
}

// setSmall is a bound on the length of small. With and find compare member by
// member up to it.
const setSmall = 12

// Len is the number of different members.
func (s Set[T]) Len() int { return len(s.small) + s.large.Len() }

// With returns s with member added once. It costs O(setSmall) or O(log n), and
// allocates.
func (s Set[T]) With(member T) Set[T] {
	if s.large.Len() > 0 {
		return Set[T]{large: s.large.With(member, s.large.At(member)+1)}
	}
	if i := s.find(member); i >= 0 {
		return Set[T]{small: replaced(s.small, i, setItem[T]{member, s.small[i].times + 1})}
	}
	if len(s.small) < setSmall {
		return Set[T]{small: inserted(s.small, len(s.small), setItem[T]{member, 1})}
	}
	var large Map[T, int]
	for _, it := range s.small {
		large = large.With(it.member, it.times)
	}
	return Set[T]{large: large.With(member, 1)}
}

// Without returns s with member removed as often as times says, or altogether
// when it was not added more often. Requires: times ≥ 1. A member that is not
// in s leaves it as it is.
func (s Set[T]) Without(member T, times int) Set[T] {
	if s.large.Len() > 0 {
		if left := s.large.At(member) - times; left > 0 {
			return Set[T]{large: s.large.With(member, left)}
		}
		return Set[T]{large: s.large.Without(member)}
	}
	i := s.find(member)
	switch {
	case i < 0:
		return s
	case s.small[i].times > times:
		return Set[T]{small: replaced(s.small, i, setItem[T]{member, s.small[i].times - times})}
	}
	return Set[T]{small: removed(s.small, i)}
}

// Times says how often member was added and not removed.
func (s Set[T]) Times(member T) int {
	if i := s.find(member); i >= 0 {
		return s.small[i].times
	}
	return s.large.At(member)
}

// All walks over the members in no particular order. It costs O(n), and
// allocates nothing per member: routing walks for each message.
func (s Set[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for i := range s.small {
			if !yield(s.small[i].member) {
				return
			}
		}
		s.large.root.walk(func(member T, _ int) bool { return yield(member) })
	}
}

// find returns the position of member in small, or -1.
func (s Set[T]) find(member T) int {
	for i := range s.small {
		if s.small[i].member == member {
			return i
		}
	}
	return -1
}

// Direct is the table of a direct exchange: a message goes to all members
// under a pattern equal to its routing key. The zero Direct is empty.
type Direct[T comparable] struct {
	// Invariant: no Set in keys is empty, so keys.Len() counts the patterns in
	// use.
	keys Map[string, Set[T]]
}

// With returns d with member added once under pattern.
func (d Direct[T]) With(pattern string, member T) Direct[T] {
	return Direct[T]{d.keys.With(pattern, d.keys.At(pattern).With(member))}
}

// Without undoes With as often as times says. Requires: times ≥ 1.
func (d Direct[T]) Without(pattern string, member T, times int) Direct[T] {
	left := d.keys.At(pattern).Without(member, times)
	if left.Len() == 0 {
		return Direct[T]{d.keys.Without(pattern)}
	}
	return Direct[T]{d.keys.With(pattern, left)}
}

// Match returns the members for a routing key. It allocates nothing.
func (d Direct[T]) Match(key string) Set[T] { return d.keys.At(key) }

// Len is the number of patterns.
func (d Direct[T]) Len() int { return d.keys.Len() }

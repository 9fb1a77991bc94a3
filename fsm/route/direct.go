package route

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

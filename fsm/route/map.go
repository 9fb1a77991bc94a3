package route

import (
	"hash/maphash"
	"iter"
	"math/bits"
	"slices"
)

// Map is a persistent hash map. The zero Map is empty. Get, With and Without
// cost O(log n) with a base of 32; With and Without copy only the nodes on
// the way to the key.
//
// The order of a walk differs from process to process. Whoever shows it must
// sort.
//
// A Map is a value: copying it is cheap, and the copy and the original never
// affect each other. The values stored under its keys are shared by all Maps
// that hold them, so they must not change in place either, unless the owner
// knows that no other Map has them.
//
// Invariants: size = number of entries below root; size = 0 ⇔ root = nil; every
// node but the root has at least two entries in its subtree, so a walk costs
// O(n).
type Map[K comparable, V any] struct {
	root *mapNode[K, V]
	size int
}

// mapNode is a node of a hash trie. The five bits of the hash that belong to
// the node's depth select one of 32 slots. A slot is free, or holds an entry
// (leaves has its bit), or a node below (inner has its bit). Both slices are
// ordered by slot. Below hashBits a node is a plain list of entries
// whose hashes are equal, and both masks are 0.
type mapNode[K comparable, V any] struct {
	// Invariants, but for lists: leaves & inner = 0, len(entries) =
	// number of bits in leaves, len(nodes) = number of bits in inner. Nothing
	// below a node that a Map refers to is written again.
	leaves, inner uint32
	entries       []mapEntry[K, V]
	nodes         []*mapNode[K, V]
}

type mapEntry[K comparable, V any] struct {
	key   K
	value V
}

const (
	slotBits = 5
	hashBits = 60 // of the hash that are used: twelve levels
)

// seed keeps clients from choosing names that collide. It is chosen anew by
// every process, so the shape of the trie, and with it the order of a walk, is
// not part of any replicated state.
var seed = maphash.MakeSeed()

func hashOf[K comparable](key K) uint64 { return maphash.Comparable(seed, key) & hashMask }

// hashMask is narrowed by tests to make keys collide.
var hashMask = ^uint64(0)

// MapOf returns the map that has each value under its key; of two with the same key the later one. It costs O(n), and
// copies no node again and again as With does for one value after the other.
func MapOf[K comparable, V any](values []V, key func(V) K) (m Map[K, V]) {
	if len(values) == 0 {
		return m
	}
	b := builder[K, V]{values: values, key: key}
	places, other := make([]place, len(values)), make([]place, len(values))
	for i, v := range values {
		places[i] = place{hashOf(key(v)), i}
	}
	if m.root = b.build(places, other, 0); !b.twice {
		m.size = len(values)
		return m
	}
	m = Map[K, V]{}
	for _, v := range values {
		m = m.With(key(v), v)
	}
	return m
}

// builder makes the nodes of a map from the values that it is to have.
type builder[K comparable, V any] struct {
	values []V
	key    func(V) K
	twice  bool // two values have the same key, and the nodes are of no use
}

// place is where a value is, and the hash of its key.
type place struct {
	hash uint64
	at   int
}

func (b *builder[K, V]) entry(p place) mapEntry[K, V] {
	return mapEntry[K, V]{b.key(b.values[p.at]), b.values[p.at]}
}

// build makes the node of some values, whose hashes agree in the bits below shift. It sorts places by slot, into other,
// and uses both on the way down. Requires: there is a value; both have the same length.
func (b *builder[K, V]) build(places, other []place, shift int) *mapNode[K, V] {
	n := &mapNode[K, V]{}
	if shift >= hashBits {
		for _, p := range places {
			e := b.entry(p)
			b.twice = b.twice || n.find(e.key) >= 0
			n.entries = append(n.entries, e)
		}
		return n
	}
	var ends [1 << slotBits]int // of the slots' runs in other
	for _, p := range places {
		ends[p.hash>>shift&31]++
	}
	from, leaves, inner := 0, 0, 0
	for slot, count := range ends {
		switch {
		case count == 1:
			n.leaves |= 1 << slot
			leaves++
		case count > 1:
			n.inner |= 1 << slot
			inner++
		}
		ends[slot], from = from, from+count
	}
	for _, p := range places {
		slot := p.hash >> shift & 31
		other[ends[slot]] = p
		ends[slot]++
	}
	if leaves > 0 {
		n.entries = make([]mapEntry[K, V], 0, leaves)
	}
	if inner > 0 {
		n.nodes = make([]*mapNode[K, V], 0, inner)
	}
	from = 0
	for _, end := range ends {
		switch {
		case end == from+1:
			n.entries = append(n.entries, b.entry(other[from]))
		case end > from:
			n.nodes = append(n.nodes, b.build(other[from:end], places[from:end], shift+slotBits))
		}
		from = end
	}
	return n
}

// Len is the number of keys.
func (m Map[K, V]) Len() int { return m.size }

// Get returns the value of key. It allocates nothing.
func (m Map[K, V]) Get(key K) (V, bool) {
	h := hashOf(key)
	n := m.root
	for shift := 0; n != nil; shift += slotBits {
		if shift >= hashBits {
			if i := n.find(key); i >= 0 {
				return n.entries[i].value, true
			}
			break
		}
		bit := uint32(1) << (h >> shift & 31)
		if n.leaves&bit != 0 {
			if e := &n.entries[rank(n.leaves, bit)]; e.key == key {
				return e.value, true
			}
			break
		}
		if n.inner&bit == 0 {
			break
		}
		n = n.nodes[rank(n.inner, bit)]
	}
	var none V
	return none, false
}

// At returns the value of key, or the zero value.
func (m Map[K, V]) At(key K) V {
	v, _ := m.Get(key)
	return v
}

// With returns m with value under key.
//
// A value that is already there under key is replaced. The path is copied even
// if the new value equals the old one: V need not be comparable.
func (m Map[K, V]) With(key K, value V) Map[K, V] {
	root, added := m.root.with(hashOf(key), 0, mapEntry[K, V]{key, value})
	if added {
		m.size++
	}
	m.root = root
	return m
}

// Without returns m without key. If key is not in m, m itself is returned and
// nothing is allocated.
func (m Map[K, V]) Without(key K) Map[K, V] {
	if m.root == nil {
		return m
	}
	root, removed := m.root.without(hashOf(key), 0, key)
	if !removed {
		return m
	}
	if len(root.entries) == 0 && len(root.nodes) == 0 {
		root = nil
	}
	return Map[K, V]{root: root, size: m.size - 1}
}

// All walks over the map in no particular order. The walk sees m as it is,
// whatever With and Without make of it meanwhile.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.walk(yield) }
}

// Values walks over the values in no particular order.
func (m Map[K, V]) Values() iter.Seq[V] {
	return func(yield func(V) bool) {
		m.root.walk(func(_ K, v V) bool { return yield(v) })
	}
}

// walk calls yield with each entry at and below n, and returns false once yield
// has. n may be nil.
func (n *mapNode[K, V]) walk(yield func(K, V) bool) bool {
	if n == nil {
		return true
	}
	for i := range n.entries {
		if !yield(n.entries[i].key, n.entries[i].value) {
			return false
		}
	}
	for _, below := range n.nodes {
		if !below.walk(yield) {
			return false
		}
	}
	return true
}

// rank is the position of the slot with this bit among those in mask.
func rank(mask, bit uint32) int { return bits.OnesCount32(mask & (bit - 1)) }

// find returns the position of key in a list of equal hashes, or -1.
func (n *mapNode[K, V]) find(key K) int {
	return slices.IndexFunc(n.entries, func(e mapEntry[K, V]) bool { return e.key == key })
}

// with returns a copy of n that holds e, and whether its key is new. n may be
// nil. Requires: all keys at and below n agree with h in the bits below shift.
func (n *mapNode[K, V]) with(h uint64, shift int, e mapEntry[K, V]) (*mapNode[K, V], bool) {
	if n == nil {
		n = &mapNode[K, V]{}
	}
	c := *n
	if shift >= hashBits {
		if i := n.find(e.key); i >= 0 {
			c.entries = replaced(n.entries, i, e)
			return &c, false
		}
		c.entries = inserted(n.entries, len(n.entries), e)
		return &c, true
	}
	bit := uint32(1) << (h >> shift & 31)
	switch {
	case n.inner&bit != 0:
		i := rank(n.inner, bit)
		below, added := n.nodes[i].with(h, shift+slotBits, e)
		c.nodes = replaced(n.nodes, i, below)
		return &c, added
	case n.leaves&bit == 0:
		c.leaves |= bit
		c.entries = inserted(n.entries, rank(c.leaves, bit), e)
		return &c, true
	}
	i := rank(n.leaves, bit)
	old := n.entries[i]
	if old.key == e.key {
		c.entries = replaced(n.entries, i, e)
		return &c, false
	}
	// Two keys in one slot: both go one level down.
	below, _ := (*mapNode[K, V])(nil).with(hashOf(old.key), shift+slotBits, old)
	below, _ = below.with(h, shift+slotBits, e)
	c.leaves &^= bit
	c.inner |= bit
	c.entries = removed(n.entries, i)
	c.nodes = inserted(n.nodes, rank(c.inner, bit), below)
	return &c, true
}

// without returns a copy of n without key, and whether n had it. A node below
// that would be left with one entry gives it up to the node above. That keeps
// the shape a function of the keys alone, but for the order inside lists of
// equal hashes. If n does not have key, n itself is returned. n is not nil.
func (n *mapNode[K, V]) without(h uint64, shift int, key K) (*mapNode[K, V], bool) {
	c := *n
	if shift >= hashBits {
		i := n.find(key)
		if i < 0 {
			return n, false
		}
		c.entries = removed(n.entries, i)
		return &c, true
	}
	bit := uint32(1) << (h >> shift & 31)
	if n.leaves&bit != 0 {
		i := rank(n.leaves, bit)
		if n.entries[i].key != key {
			return n, false
		}
		c.leaves &^= bit
		c.entries = removed(n.entries, i)
		return &c, true
	}
	if n.inner&bit == 0 {
		return n, false
	}
	i := rank(n.inner, bit)
	below, had := n.nodes[i].without(h, shift+slotBits, key)
	if !had {
		return n, false
	}
	if len(below.nodes) > 0 || len(below.entries) > 1 {
		c.nodes = replaced(n.nodes, i, below)
		return &c, true
	}
	c.inner &^= bit
	c.leaves |= bit
	c.nodes = removed(n.nodes, i)
	c.entries = inserted(n.entries, rank(c.leaves, bit), below.entries[0])
	return &c, true
}

// replaced, inserted and removed return changed copies of exact capacity.
func replaced[T any](s []T, i int, v T) []T {
	c := make([]T, len(s))
	copy(c, s)
	c[i] = v
	return c
}

func inserted[T any](s []T, i int, v T) []T {
	c := make([]T, len(s)+1)
	copy(c, s[:i])
	c[i] = v
	copy(c[i+1:], s[i:])
	return c
}

func removed[T any](s []T, i int) []T {
	if len(s) == 1 {
		return nil
	}
	c := make([]T, len(s)-1)
	copy(c, s[:i])
	copy(c[i:], s[i+1:])
	return c
}

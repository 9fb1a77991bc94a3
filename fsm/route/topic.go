package route

import (
	"slices"
	"strings"
)

// MaxHashes is how many '#' words a topic pattern may have. It bounds what a
// hostile pattern can cost; whoever adds patterns checks it with Hashes.
const MaxHashes = 2

// Hashes counts the '#' words of a topic pattern.
func Hashes(pattern string) int {
	count := 0
	for rest, more := pattern, pattern != ""; more; {
		var word string
		if word, rest, more = nextWord(rest); word == "#" {
			count++
		}
	}
	return count
}

// nextWord cuts the first word off a key that has one; more says whether rest
// has a word too. The empty key has no words; "a." has two, the second empty.
func nextWord(key string) (word, rest string, more bool) {
	return strings.Cut(key, ".")
}

// Topic is the table of a topic exchange: patterns of words separated by
// dots, where '*' stands for exactly one word and '#' for any number of
// them, also none. The zero Topic is empty.
//
// It is a trie over the words of the patterns. A match reads the key once,
// word by word, and holds the set of nodes reached so far: its time is bounded
// by the number of words times the number of nodes, whatever the patterns.
//
// Invariant: every node has members of its own or a node below it, so an
// unbound pattern leaves nothing behind. Nodes are shared between Topics and
// never change.
type Topic[T comparable] struct {
	root *topicNode[T]
}

type topicNode[T comparable] struct {
	here Set[T] // members whose pattern ends here
	// words never has the keys "*" and "#": those are star and hash
	words Map[string, *topicNode[T]]
	// star is nil if no pattern goes on with "*" here
	star *topicNode[T]
	// hash is nil if no pattern goes on with "#" here
	hash *topicNode[T]
	// again: this is a '#' node or stands below one, so that a match may come
	// here with different numbers of words read.
	again bool
}

// With returns t with member added once under pattern. It copies the nodes on
// the path of the pattern: O(words of pattern). Requires: Hashes(pattern) ≤
// MaxHashes; With itself does not check it.
func (t Topic[T]) With(pattern string, member T) Topic[T] {
	return Topic[T]{t.root.change(pattern, pattern != "", false, func(s Set[T]) Set[T] { return s.With(member) })}
}

// Without undoes With as often as times says. Requires: times ≥ 1. A member
// that is not under pattern leaves t as it is.
func (t Topic[T]) Without(pattern string, member T, times int) Topic[T] {
	if t.Under(pattern).Times(member) == 0 {
		return t
	}
	return Topic[T]{t.root.change(pattern, pattern != "", false, func(s Set[T]) Set[T] { return s.Without(member, times) })}
}

// Under returns the members that stand under exactly this pattern. Wildcards in
// it are words like any other: nothing is matched.
func (t Topic[T]) Under(pattern string) Set[T] {
	n := t.root
	for rest, more := pattern, pattern != ""; more && n != nil; {
		var word string
		word, rest, more = nextWord(rest)
		n = n.child(word)
	}
	if n == nil {
		return Set[T]{}
	}
	return n.here
}

// Len is the number of patterns. It walks over all of them.
func (t Topic[T]) Len() int {
	_, patterns := t.root.count()
	return patterns
}

// count counts the nodes from n downwards, and those where patterns end.
func (n *topicNode[T]) count() (nodes, patterns int) {
	if n == nil {
		return 0, 0
	}
	nodes = 1
	if n.here.Len() > 0 {
		patterns = 1
	}
	add := func(below *topicNode[T]) {
		more, ends := below.count()
		nodes, patterns = nodes+more, patterns+ends
	}
	add(n.star)
	add(n.hash)
	for below := range n.words.Values() {
		add(below)
	}
	return nodes, patterns
}

// child returns the node that one word of a pattern leads to, or nil.
func (n *topicNode[T]) child(word string) *topicNode[T] {
	switch word {
	case "*":
		return n.star
	case "#":
		return n.hash
	}
	return n.words.At(word)
}

// change returns a copy of n in which edit was applied to the members below the
// words of rest; nil if nothing is left. n may be nil. more: rest has a word;
// without it rest is "" and the pattern ends at n. again: a '#' stands on the
// way to n. It is the same for every pattern through n, as n has one way in, so
// it is set once when n is created.
func (n *topicNode[T]) change(rest string, more, again bool, edit func(Set[T]) Set[T]) *topicNode[T] {
	c := topicNode[T]{again: again}
	if n != nil {
		c = *n
	}
	if !more {
		c.here = edit(c.here)
	} else {
		word, rest, more := nextWord(rest)
		below := c.child(word).change(rest, more, again || word == "#", edit)
		switch {
		case word == "*":
			c.star = below
		case word == "#":
			c.hash = below
		case below == nil:
			c.words = c.words.Without(word)
		default:
			c.words = c.words.With(word, below)
		}
	}
	if c.here.Len() == 0 && c.words.Len() == 0 && c.star == nil && c.hash == nil {
		return nil
	}
	return &c
}

// Match calls emit with the members of each pattern that matches key, each
// pattern once. One member may stand under several patterns. The order of the
// calls differs between processes. A member that is under several matching
// patterns comes with each of them; whoever needs each member once must
// compare.
func (t Topic[T]) Match(key string, emit func(Set[T])) {
	if t.root == nil {
		return
	}
	// now are the nodes reached by the words read so far, other than '#' nodes.
	// stay are the '#' nodes reached: as '#' takes any number of words, they
	// stay reached. The slices start on the stack and go from hand to hand,
	// so that a match allocates nothing as long as they are short.
	var a, b, c [16]*topicNode[T]
	now, next, stay := append(a[:0], t.root), b[:0], c[:0]
	var known map[*topicNode[T]]struct{}
	stay, known = t.root.enter(stay, known)
	for rest, more := key, key != ""; more; {
		var word string
		word, rest, more = nextWord(rest)
		next = next[:0]
		for _, n := range now {
			next = n.step(next, word)
		}
		for _, n := range stay {
			next = n.step(next, word)
		}
		if len(next)+len(stay) == 0 {
			return
		}
		// Each node has one way in, so none is in next twice.
		now, next = next, now
		for _, n := range now {
			stay, known = n.enter(stay, known)
		}
	}
	for _, n := range now {
		if n.here.Len() > 0 {
			emit(n.here)
		}
	}
	for _, n := range stay {
		if n.here.Len() > 0 {
			emit(n.here)
		}
	}
}

// step appends to next the nodes that one word leads to from n.
func (n *topicNode[T]) step(next []*topicNode[T], word string) []*topicNode[T] {
	if n.words.Len() > 0 {
		if below, ok := n.words.Get(word); ok {
			next = append(next, below)
		}
	}
	if n.star != nil {
		next = append(next, n.star)
	}
	return next
}

// longStay is the length from which stay is kept as a set beside the list.
const longStay = 32

// enter appends to stay the '#' nodes that follow n without a further word,
// each once. known is stay as a set, once it is long.
func (n *topicNode[T]) enter(stay []*topicNode[T], known map[*topicNode[T]]struct{}) ([]*topicNode[T], map[*topicNode[T]]struct{}) {
	for ; n.hash != nil; n = n.hash {
		if known == nil && len(stay) >= longStay {
			known = make(map[*topicNode[T]]struct{}, 2*len(stay))
			for _, h := range stay {
				known[h] = struct{}{}
			}
		}
		if n.again {
			_, is := known[n.hash]
			if is || known == nil && slices.Contains(stay, n.hash) {
				return stay, known // and so are those behind it
			}
		}
		stay = append(stay, n.hash)
		if known != nil {
			known[n.hash] = struct{}{}
		}
	}
	return stay, known
}

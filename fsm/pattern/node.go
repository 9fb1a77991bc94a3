package pattern

// kind tells nodes apart.
type kind uint8

const (
	kindSet        kind = iota // one byte of set
	kindCat                    // subs one after the other; none: the empty text
	kindAlt                    // the first of subs that leads to a match
	kindRepeat                 // subs[0] from min to max times; max < 0: without end
	kindGroup                  // subs[0], noted as group
	kindAtomic                 // subs[0], whose first match stands
	kindLookaround             // whether subs[0] matches here, or, behind, up to here; negative: whether not
	kindBackref                // what group has matched
	kindAssert                 // whether assert holds here
)

// assertion is what a place in a name may be asked.
type assertion uint8

const (
	atStart     assertion = iota // \A, and ^ without m
	atEnd                        // \z
	atLastLine                   // \Z, and $ without m: at the end, or before a newline there
	atLineStart                  // ^ with m; not behind a newline at the end
	atLineEnd                    // $ with m
	atBoundary                   // \b
	noBoundary                   // \B
)

// node is a part of a parsed pattern.
type node struct {
	kind   kind
	subs   []*node
	set    set
	assert assertion
	at     int // offset in the pattern

	min, max         int
	lazy, possessive bool

	group            int // ≥ 1
	name             string
	fold             bool // of a back-reference
	negative, behind bool
}

// unlimited stands for a length, or a number of repetitions, without end. It is
// more than any name has bytes, and small enough that the product of it with a
// repetition is no overflow.
const unlimited = 1 << 20

// width returns how many bytes a node matches: at least and at most, the latter
// unlimited from there on.
func (n *node) width() (least, most int) {
	switch n.kind {
	case kindSet:
		return 1, 1
	case kindCat:
		for _, s := range n.subs {
			a, b := s.width()
			least, most = min(least+a, unlimited), min(most+b, unlimited)
		}
	case kindAlt:
		least = unlimited
		for _, s := range n.subs {
			a, b := s.width()
			least, most = min(least, a), max(most, b)
		}
	case kindRepeat:
		a, b := n.subs[0].width()
		least, most = min(a*n.min, unlimited), min(b*n.max, unlimited)
		if n.max < 0 {
			most = min(b*unlimited, unlimited)
		}
	case kindGroup, kindAtomic:
		return n.subs[0].width()
	case kindBackref:
		return 0, unlimited
	case kindLookaround, kindAssert:
	}
	return least, most
}

// anchored reports whether a node matches at the start of a name only.
func (n *node) anchored() bool {
	switch n.kind {
	case kindCat:
		for _, s := range n.subs {
			if s.kind != kindLookaround {
				return s.anchored()
			}
		}
		return false
	case kindAlt:
		for _, s := range n.subs {
			if !s.anchored() {
				return false
			}
		}
		return true
	case kindRepeat:
		return n.min > 0 && n.subs[0].anchored()
	case kindGroup, kindAtomic:
		return n.subs[0].anchored()
	}
	return n.kind == kindAssert && n.assert == atStart
}

// trim removes from the end of a node what may match nothing, where only matters
// whether there is a match: ".*" at the end of a pattern asks for nothing.
func (n *node) trim() *node {
	switch {
	case n.kind == kindRepeat && n.min == 0:
		return &node{kind: kindCat, at: n.at}
	case n.kind == kindCat:
		for len(n.subs) > 0 {
			last := n.subs[len(n.subs)-1].trim()
			n.subs = n.subs[:len(n.subs)-1]
			if last.kind != kindCat || len(last.subs) > 0 {
				n.subs = append(n.subs, last)
				break
			}
		}
	case n.kind == kindAlt:
		for i, s := range n.subs {
			n.subs[i] = s.trim()
		}
	case n.kind == kindGroup:
		n.subs[0] = n.subs[0].trim()
	}
	return n
}

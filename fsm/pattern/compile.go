package pattern

import (
	"fmt"
	"slices"
	"strings"
)

// maxProgram bounds the instructions of a pattern, which counted repetitions
// multiply.
const maxProgram = 4096

// op is what an instruction does.
type op uint8

const (
	opByte       op = iota // the next byte is b
	opSet                  // the next byte is in sets[x]
	opSplit                // go on at x, or else at y; it is split n
	opRun                  // bytes of sets[x], as many as there are, or as few if lazy; it is split n
	opJump                 // go on at x
	opAssert               // assert holds
	opMark                 // note the place under x
	opProgress             // unless the place is that noted under x, go on at y; else behind
	opOpen                 // group x begins here
	opClose                // group x ends here
	opBackref              // what group x has matched comes; in any case if fold
	opLookaround           // looks[x] holds
	opAtomic               // looks[x] matches, and only its first match counts
	opMatch                // done
	opMatchHere            // done if here is where the look-behind began
)

type instruction struct {
	op     op
	assert assertion
	b      byte
	fold   bool
	lazy   bool
	x, y   int
	n      int
}

// sub is a program within the program: of a look-around or an atomic group. It
// follows its instruction, and next is behind it.
type sub struct {
	next             int
	splits, end      int // the splits in it: splits ≤ n < end
	negative, behind bool
	least, limit     int // bytes of a look-behind
}

// Pattern is a compiled pattern. It never changes: several goroutines may match.
type Pattern struct {
	text     string
	code     []instruction
	sets     []set
	subs     []sub
	splits   int
	marks    int
	groups   int  // 0 if there are no back-references
	anchored bool // matches at the start of a name only
}

// Compile compiles a pattern. An error is an *Error, or says that the pattern is
// too large.
func Compile(text string) (*Pattern, error) {
	n, groups, err := parse(text)
	if err != nil {
		return nil, err
	}
	c := compiler{Pattern: Pattern{text: text, groups: groups, anchored: n.anchored()}}
	n = n.trim()
	if c.emit(n); len(c.code) > maxProgram {
		return nil, &Error{fmt.Sprintf("the pattern has more than %d parts, counted with their repetitions,", maxProgram), c.at}
	}
	c.add(instruction{op: opMatch})
	return &c.Pattern, nil
}

// String returns the text of the pattern.
func (p *Pattern) String() string { return p.text }

// compiler makes a program of nodes.
type compiler struct {
	Pattern
	at int // offset of the node that made the program too large
}

// add appends an instruction and returns its place.
func (c *compiler) add(i instruction) int {
	c.code = append(c.code, i)
	return len(c.code) - 1
}

// emit appends the program of a node. It gives up once the program is too large.
func (c *compiler) emit(n *node) {
	if len(c.code) > maxProgram {
		return
	}
	c.at = n.at
	switch n.kind {
	case kindSet:
		c.emitSet(n.set)
	case kindCat:
		for _, s := range n.subs {
			c.emit(s)
		}
	case kindAlt:
		c.emitAlt(n.subs)
	case kindRepeat:
		if n.possessive {
			c.emitSub(opAtomic, opMatch, n, func() { c.emitRepeat(n) })
		} else {
			c.emitRepeat(n)
		}
	case kindGroup:
		if c.groups > 0 {
			c.add(instruction{op: opOpen, x: n.group})
			defer c.add(instruction{op: opClose, x: n.group})
		}
		c.emit(n.subs[0])
	case kindAtomic:
		c.emitSub(opAtomic, opMatch, n, func() { c.emit(n.subs[0]) })
	case kindLookaround:
		end := opMatch
		if n.behind {
			end = opMatchHere
		}
		c.emitSub(opLookaround, end, n, func() { c.emit(n.subs[0]) })
	case kindBackref:
		c.add(instruction{op: opBackref, x: n.group, fold: n.fold})
	case kindAssert:
		c.add(instruction{op: opAssert, assert: n.assert})
	}
}

func (c *compiler) emitSet(s set) {
	only, count := byte(0), 0
	for b := range 256 {
		if s.has(byte(b)) {
			only, count = byte(b), count+1
		}
	}
	if count == 1 {
		c.add(instruction{op: opByte, b: only})
		return
	}
	c.add(instruction{op: opSet, x: c.setOf(s)})
}

// setOf returns the place of a set in sets.
func (c *compiler) setOf(s set) int {
	i := slices.Index(c.sets, s)
	if i < 0 {
		i = len(c.sets)
		c.sets = append(c.sets, s)
	}
	return i
}

// split appends a split; the caller fills in where it leads.
func (c *compiler) split() int {
	c.splits++
	return c.add(instruction{op: opSplit, n: c.splits - 1})
}

// emitAlt: split 1, 2; 1: first; jump end; 2: the others; end:
func (c *compiler) emitAlt(subs []*node) {
	var jumps []int
	for _, s := range subs[:len(subs)-1] {
		at := c.split()
		c.code[at].x = len(c.code)
		c.emit(s)
		jumps = append(jumps, c.add(instruction{op: opJump}))
		c.code[at].y = len(c.code)
	}
	c.emit(subs[len(subs)-1])
	for _, j := range jumps {
		c.code[j].x = len(c.code)
	}
}

// emitRepeat: the node min times, then as often as it may come beyond that.
func (c *compiler) emitRepeat(n *node) {
	for range n.min {
		before := len(c.code)
		if c.emit(n.subs[0]); len(c.code) > maxProgram {
			return
		}
		if len(c.code) == before {
			break // nothing, however often
		}
	}
	if n.max < 0 {
		c.emitLoop(n)
		return
	}
	var exits []int
	for range n.max - n.min {
		at := c.split()
		exits = append(exits, at)
		c.code[at].x = len(c.code)
		if c.emit(n.subs[0]); len(c.code) > maxProgram {
			return
		}
	}
	for _, at := range exits {
		c.leads(at, c.code[at].x, len(c.code), n.lazy)
	}
}

// leads says where a split leads: into what is repeated, and behind it.
func (c *compiler) leads(at, into, behind int, lazy bool) {
	if lazy {
		into, behind = behind, into
	}
	c.code[at].x, c.code[at].y = into, behind
}

// emitLoop: the node any number of times. A time that matches nothing is the last.
func (c *compiler) emitLoop(n *node) {
	if n.subs[0].kind == kindSet {
		c.add(instruction{op: opRun, x: c.setOf(n.subs[0].set), n: c.splits, lazy: n.lazy})
		c.splits++
		return
	}
	least, _ := n.subs[0].width()
	top := c.split()
	into := len(c.code)
	mark := c.marks
	if least == 0 {
		c.marks++
		c.add(instruction{op: opMark, x: mark})
	}
	c.emit(n.subs[0])
	if least == 0 {
		c.add(instruction{op: opProgress, x: mark, y: top})
	} else {
		c.add(instruction{op: opJump, x: top})
	}
	c.leads(top, into, len(c.code), n.lazy)
}

// emitSub appends an instruction with a program of its own, which body emits.
func (c *compiler) emitSub(with, end op, n *node, body func()) {
	x := len(c.subs)
	s := sub{splits: c.splits, negative: n.negative, behind: n.behind}
	if n.behind {
		s.least, s.limit = n.subs[0].width()
	}
	c.subs = append(c.subs, s)
	c.add(instruction{op: with, x: x})
	if with == opLookaround && !n.behind && c.groups == 0 {
		n.subs[0] = n.subs[0].trim()
	}
	body()
	c.add(instruction{op: end})
	c.subs[x].end, c.subs[x].next = c.splits, len(c.code)
}

// Prefix returns with what every name begins that the pattern matches. ok: it
// matches at the start of names only; else nothing is known. all: it matches every
// name with the prefix.
func (p *Pattern) Prefix() (prefix string, all, ok bool) {
	if in := p.code[0]; in.op != opAssert || in.assert != atStart {
		return "", false, false
	}
	var bytes []byte
	for _, in := range p.code[1:] {
		if in.op != opByte {
			return string(bytes), in.op == opMatch, true
		}
		bytes = append(bytes, in.b)
	}
	return "", false, false
}

// Quote returns a pattern for a text that stands for itself, whatever options hold
// where it is put.
func Quote(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c < 128 && !isAlnum(c) {
			b.WriteByte('\\')
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

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

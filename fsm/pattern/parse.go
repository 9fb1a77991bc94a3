package pattern

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	maxNesting = 250   // groups within groups
	maxRepeat  = 65535 // in a quantifier
)

// Error says why a text is no pattern, and where.
type Error struct {
	Why string
	At  int // offset in bytes
}

func (e *Error) Error() string { return fmt.Sprintf("%s at offset %d", e.Why, e.At) }

// flags are the options that hold at a place.
type flags struct{ fold, multiline, dotAll, extended, extendedClass, ungreedy, noCapture bool }

// parser reads a pattern. Its methods panic with an *Error; parse recovers it.
type parser struct {
	text string
	pos  int
	flags
	depth       int // of groups
	lookarounds int // of look-arounds
	behinds     int // of look-behinds
	groups      int // so far
	names       map[string]int
	refs        []*node // back-references, resolved at the end
}

// parse reads a text. groups is the number of groups, and 0 without
// back-references.
func parse(text string) (n *node, groups int, err error) {
	p := &parser{text: text, names: map[string]int{}}
	defer func() {
		if r := recover(); r != nil {
			failure, ok := r.(*Error)
			if !ok {
				panic(r)
			}
			err = failure
		}
	}()
	n = p.alternatives()
	if p.pos < len(p.text) {
		p.fail(p.pos, "unmatched )")
	}
	for _, r := range p.refs {
		if r.name != "" {
			r.group = p.names[r.name]
		}
		if r.group < 1 || r.group > p.groups {
			p.fail(r.at, "reference to a group that is not there")
		}
	}
	if len(p.refs) > 0 {
		groups = p.groups
	}
	return n, groups, nil
}

func (p *parser) fail(at int, why string, args ...any) { panic(&Error{fmt.Sprintf(why, args...), at}) }

// rest is what has not been read.
func (p *parser) rest() string { return p.text[p.pos:] }

// take reads s, if it comes next.
func (p *parser) take(s string) bool {
	ok := strings.HasPrefix(p.rest(), s)
	if ok {
		p.pos += len(s)
	}
	return ok
}

// peek returns the next byte; 0: there is none, or it is zero.
func (p *parser) peek() byte {
	if p.pos < len(p.text) {
		return p.text[p.pos]
	}
	return 0
}

// until reads up to end, and end.
func (p *parser) until(end string, at int, why string) string {
	found, _, ok := strings.Cut(p.rest(), end)
	if !ok {
		p.fail(at, "%s", why)
	}
	p.pos += len(found) + len(end)
	return found
}

// alternatives reads up to the end of the group, or of the text. Options that are
// set in it end there.
func (p *parser) alternatives() *node {
	before := p.flags
	n := &node{kind: kindAlt, at: p.pos}
	for {
		n.subs = append(n.subs, p.sequence())
		if !p.take("|") {
			break
		}
	}
	p.flags = before
	if len(n.subs) == 1 {
		return n.subs[0]
	}
	return n
}

func (p *parser) sequence() *node {
	n := &node{kind: kindCat, at: p.pos}
	for {
		p.ignored()
		switch {
		case p.pos == len(p.text) || p.peek() == '|' || p.peek() == ')':
			return n
		case p.take(`\Q`):
			quoted, _, _ := strings.Cut(p.rest(), `\E`) // without \E the text ends it
			for i := range len(quoted) {
				n.subs = append(n.subs, p.byte(quoted[i], p.pos+i))
			}
			p.pos += len(quoted)
			p.quantified(n)
		default:
			at := p.pos
			if item := p.item(); item != nil {
				n.subs = append(n.subs, item)
				p.quantified(n)
			} else if p.quantifierFollows() {
				p.fail(at, "a quantifier follows nothing that can be repeated")
			}
		}
	}
}

// ignored reads what has no meaning: comments, \E, and with x white space.
func (p *parser) ignored() {
	for {
		switch {
		case p.take("(?#"):
			p.until(")", p.pos-3, "missing ) after (?#")
		case p.take(`\E`), p.take(`\Q\E`):
		case p.extended && p.pos < len(p.text) && isSpace(p.peek()):
			p.pos++
		case p.extended && p.take("#"):
			line, _, _ := strings.Cut(p.rest(), "\n")
			p.pos = min(p.pos+len(line)+1, len(p.text))
		default:
			return
		}
	}
}

// item reads one item without its quantifier; nil: it asks for nothing.
func (p *parser) item() *node {
	at := p.pos
	c := p.text[p.pos]
	p.pos++
	switch c {
	case '^':
		return p.assertion(at, atStart, atLineStart)
	case '$':
		return p.assertion(at, atLastLine, atLineEnd)
	case '.':
		n := &node{kind: kindSet, at: at, set: set{}.inverse()}
		if !p.dotAll {
			n.set = notNewline
		}
		return n
	case '[':
		return p.class(at)
	case '(':
		return p.group(at)
	case '\\':
		return p.escape(at)
	case '*', '+', '?':
		p.pos = at
		p.fail(at, "a quantifier follows nothing that can be repeated")
	case '{':
		p.pos = at
		if _, _, ok := p.braces(); ok {
			p.fail(at, "a quantifier follows nothing that can be repeated")
		}
		p.pos = at + 1
	}
	return p.byte(c, at)
}

var notNewline = setOf(func(b byte) bool { return b != '\n' })

func (p *parser) assertion(at int, single, multi assertion) *node {
	n := &node{kind: kindAssert, assert: single, at: at}
	if p.multiline {
		n.assert = multi
	}
	return n
}

// byte is a byte that stands for itself.
func (p *parser) byte(b byte, at int) *node {
	n := &node{kind: kindSet, at: at}
	n.set.add(b)
	if p.fold {
		n.set.fold()
	}
	return n
}

// quantifierFollows reports whether a quantifier comes next, and reads nothing.
func (p *parser) quantifierFollows() bool {
	p.ignored()
	before := p.pos
	_, _, ok := p.quantifier()
	p.pos = before
	return ok
}

// quantifier reads * + ? or braces.
func (p *parser) quantifier() (least, most int, ok bool) {
	switch {
	case p.take("*"):
		return 0, -1, true
	case p.take("+"):
		return 1, -1, true
	case p.take("?"):
		return 0, 1, true
	}
	return p.braces()
}

// quantified reads the quantifier of the last item of n, if it has one.
func (p *parser) quantified(n *node) {
	p.ignored()
	at := p.pos
	least, most, ok := p.quantifier()
	if !ok {
		return
	}
	if len(n.subs) == 0 || n.subs[len(n.subs)-1].kind == kindAssert {
		p.fail(at, "a quantifier follows nothing that can be repeated")
	}
	last := &n.subs[len(n.subs)-1]
	r := &node{kind: kindRepeat, at: at, min: least, max: most, subs: []*node{*last}, lazy: p.ungreedy}
	switch {
	case p.take("?"):
		r.lazy = !r.lazy
	case p.take("+"):
		r.possessive = true
	}
	if (*last).kind == kindLookaround { // a second time asks the same
		r.min, r.max = min(r.min, 1), 1
	}
	*last = r
	if p.quantifierFollows() {
		p.fail(p.pos, "a quantifier follows nothing that can be repeated")
	}
}

// braces reads {n}, {n,}, {,m} or {n,m}, with spaces around the numbers. Other
// braces are no quantifier: nothing is read.
func (p *parser) braces() (least, most int, ok bool) {
	inside, _, closed := strings.Cut(p.rest(), "}")
	if !closed || !strings.HasPrefix(inside, "{") {
		return 0, 0, false
	}
	from, to, comma := strings.Cut(inside[1:], ",")
	from, to = strings.Trim(from, " \t"), strings.Trim(to, " \t")
	if from == "" && to == "" || strings.Trim(from+to, "0123456789") != "" {
		return 0, 0, false
	}
	number := func(text string, none int) int {
		if text == "" {
			return none
		}
		n, err := strconv.Atoi(text)
		if err != nil || n > maxRepeat {
			p.fail(p.pos, "the number of repetitions is larger than %d", maxRepeat)
		}
		return n
	}
	least, most = number(from, 0), number(to, -1)
	if !comma {
		most = least
	}
	if most >= 0 && most < least {
		p.fail(p.pos, "the numbers of repetitions are out of order")
	}
	p.pos += len(inside) + 1
	return least, most, true
}

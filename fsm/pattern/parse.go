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

// lookarounds are the beginnings of look-arounds.
var lookarounds = []struct {
	begin            string
	negative, behind bool
}{{"?=", false, false}, {"?!", true, false}, {"?<=", false, true}, {"?<!", true, true}}

// group reads a group, whose ( at an offset has been read. nil: options that hold
// from here on.
func (p *parser) group(at int) *node {
	if p.depth++; p.depth > maxNesting {
		p.fail(at, "more than %d groups within each other", maxNesting)
	}
	defer func() { p.depth-- }()
	for _, l := range lookarounds {
		if p.take(l.begin) {
			return p.lookaround(&node{kind: kindLookaround, at: at, negative: l.negative, behind: l.behind})
		}
	}
	switch {
	case p.peek() == '*':
		p.fail(at, "verbs are not supported")
	case p.take("?P="):
		return p.reference(at, 0, p.groupName(")"))
	case p.take("?>"):
		return &node{kind: kindAtomic, at: at, subs: []*node{p.closed(at)}}
	case p.take("?P<"), p.take("?<"):
		return p.capture(at, p.groupName(">"))
	case p.take("?'"):
		return p.capture(at, p.groupName("'"))
	case p.take("?"):
		return p.options(at)
	case p.noCapture:
		return p.closed(at)
	}
	return p.capture(at, "")
}

// closed reads what is in a group, and its ).
func (p *parser) closed(at int) *node {
	n := p.alternatives()
	if !p.take(")") {
		p.fail(at, "missing )")
	}
	return n
}

func (p *parser) capture(at int, name string) *node {
	p.groups++
	n := &node{kind: kindGroup, at: at, group: p.groups}
	if name != "" {
		if p.names[name] != 0 {
			p.fail(at, "two groups have the name %s", name)
		}
		p.names[name] = n.group
	}
	n.subs = []*node{p.closed(at)}
	return n
}

// groupName reads the name of a group, and what ends it.
func (p *parser) groupName(end string) string {
	at := p.pos
	name := p.until(end, at, "the name of the group has no end")
	if name == "" || isDigit(name[0]) || strings.ContainsFunc(name, func(r rune) bool { return r > 127 || !isWord(byte(r)) }) {
		p.fail(at, "a group's name consists of letters, digits and _, and begins with no digit")
	}
	return name
}

func (p *parser) lookaround(n *node) *node {
	p.lookarounds++
	if n.behind {
		p.behinds++
	}
	n.subs = []*node{p.closed(n.at)}
	p.lookarounds--
	if n.behind {
		p.behinds--
		if _, most := n.subs[0].width(); most >= unlimited {
			p.fail(n.at, "the length of the look-behind is not limited")
		}
	}
	return n
}

// options reads options behind "(?", and the group that they are for. Without a
// group, they hold from here on.
func (p *parser) options(at int) *node {
	before := p.flags
	value := true
	if p.take("^") {
		p.flags = flags{}
	}
	for {
		switch {
		case p.take(")"):
			return nil
		case p.take(":"):
			n := p.closed(at)
			p.flags = before
			return n
		case p.take("-"):
			value = false
		case p.take("xx"):
			p.extended, p.extendedClass = value, value
		default:
			f := p.option()
			if f == nil {
				p.fail(p.pos, "this kind of group is not supported")
			}
			*f = value
			p.pos++
			p.extendedClass = p.extendedClass && p.extended
		}
	}
}

// option returns the flag of the next letter; nil: it has none.
func (p *parser) option() *bool {
	switch p.peek() {
	case 'i':
		return &p.fold
	case 'm':
		return &p.multiline
	case 's':
		return &p.dotAll
	case 'x':
		return &p.extended
	case 'U':
		return &p.ungreedy
	case 'n':
		return &p.noCapture
	}
	return nil
}

// controls are the escapes of one control character.
var controls = map[byte]byte{'a': 7, 'e': 27, 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// asserts are the escapes that match no byte.
var asserts = map[byte]assertion{'A': atStart, 'G': atStart, 'Z': atLastLine, 'z': atEnd, 'b': atBoundary, 'B': noBoundary}

// escape reads what follows a backslash at an offset, outside of classes; nil: it
// asks for nothing.
func (p *parser) escape(at int) *node {
	if p.pos == len(p.text) {
		p.fail(at, `\ at the end of the pattern`)
	}
	c := p.text[p.pos]
	if a, ok := asserts[c]; ok {
		p.pos++
		return &node{kind: kindAssert, assert: a, at: at}
	}
	if s, ok := shorthand(c); ok {
		p.pos++
		return &node{kind: kindSet, set: s, at: at}
	}
	switch c {
	case 'K': // moves the start of the match, which nobody asks for
		p.pos++
		if p.lookarounds > 0 {
			p.fail(at, `\K in a look-around`)
		}
		return nil
	case 'N':
		p.pos++
		if strings.HasPrefix(p.rest(), "{") {
			if _, _, ok := p.braces(); !ok {
				p.fail(at, `\N{...} is not supported`)
			}
			p.pos = at + 2
		}
		return &node{kind: kindSet, set: notNewline, at: at}
	case 'C':
		p.pos++
		return &node{kind: kindSet, set: set{}.inverse(), at: at}
	case 'R':
		p.pos++
		return newline(at)
	case 'g', 'k':
		p.pos++
		return p.namedReference(at, c)
	}
	if n := p.numberedReference(at); n != nil {
		return n
	}
	return p.byte(p.escapedByte(at), at)
}

// newline is \R: \r\n as one, or any byte that ends a line.
func newline(at int) *node {
	one := func(b byte) *node {
		n := &node{kind: kindSet, at: at}
		n.set.add(b)
		return n
	}
	pair := &node{kind: kindCat, at: at, subs: []*node{one('\r'), one('\n')}}
	any := &node{kind: kindSet, at: at, set: shorthands['v']}
	return &node{kind: kindAtomic, at: at, subs: []*node{{kind: kindAlt, at: at, subs: []*node{pair, any}}}}
}

// escapedByte reads what stands for one byte, inside and outside of classes.
func (p *parser) escapedByte(at int) byte {
	if p.pos == len(p.text) {
		p.fail(at, `\ at the end of the pattern`)
	}
	c := p.text[p.pos]
	p.pos++
	if b, ok := controls[c]; ok {
		return b
	}
	switch {
	case c == 'c':
		if c = p.peek(); c < ' ' || c > '~' {
			p.fail(at, `\c is followed by a printable character`)
		}
		p.pos++
		if isLower(c) {
			c -= 'a' - 'A'
		}
		return c ^ 64
	case c == 'x' && p.take("{"):
		return p.code(p.until("}", at, `missing } after \x{`), 16, at)
	case c == 'x':
		return p.code(p.digits(2, isHex), 16, at)
	case c == 'o' && p.take("{"):
		return p.code(p.until("}", at, `missing } after \o{`), 8, at)
	case between(c, '0', '7'):
		p.pos--
		return p.code(p.digits(3, func(b byte) bool { return between(b, '0', '7') }), 8, at)
	case isAlnum(c):
		p.fail(at, `\%c is not supported`, c)
	}
	return c
}

// digits reads up to most digits.
func (p *parser) digits(most int, is func(byte) bool) string {
	from := p.pos
	for p.pos < len(p.text) && p.pos-from < most && is(p.text[p.pos]) {
		p.pos++
	}
	return p.text[from:p.pos]
}

// code is the byte of a number.
func (p *parser) code(digits string, base, at int) byte {
	n, err := strconv.ParseUint(digits, base, 8)
	if err != nil {
		p.fail(at, "the code is not that of a byte")
	}
	return byte(n)
}

// reference is a back-reference to a group, or to a name.
func (p *parser) reference(at, group int, name string) *node {
	if p.behinds > 0 {
		p.fail(at, "a back-reference in a look-behind is not supported")
	}
	n := &node{kind: kindBackref, at: at, group: group, name: name, fold: p.fold}
	p.refs = append(p.refs, n)
	return n
}

// numberedReference reads \1 and its like; nil: it is a code in octal, or no digit.
// A number above 9 refers to a group only if there have been that many.
func (p *parser) numberedReference(at int) *node {
	if c := p.peek(); !between(c, '1', '9') {
		return nil
	}
	from := p.pos
	n, err := strconv.Atoi(p.digits(len(p.text), isDigit))
	if err == nil && (n < 10 || n <= p.groups || p.text[from] >= '8') {
		return p.reference(at, n, "")
	}
	p.pos = from
	return nil
}

// namedReference reads what follows \g or \k.
func (p *parser) namedReference(at int, letter byte) *node {
	end, ok := map[byte]string{'{': "}", '<': ">", '\'': "'"}[p.peek()]
	switch {
	case letter == 'g' && ok && end != "}":
		p.fail(at, "subroutines are not supported")
	case ok:
		p.pos++
		inside := p.until(end, at, "the reference has no end")
		if letter == 'g' && strings.Trim(inside, "+-0123456789") == "" {
			return p.reference(at, p.groupNumber(inside, at), "")
		}
		if inside == "" {
			p.fail(at, "reference to a group without a name")
		}
		return p.reference(at, 0, inside)
	case letter == 'g':
		sign := p.digits(1, func(b byte) bool { return b == '+' || b == '-' })
		return p.reference(at, p.groupNumber(sign+p.digits(len(p.text), isDigit), at), "")
	}
	p.fail(at, `\k is followed by a group's name`)
	return nil
}

// groupNumber is the group that a number with or without a sign refers to.
func (p *parser) groupNumber(text string, at int) int {
	n, err := strconv.Atoi(text)
	switch {
	case err != nil:
		p.fail(at, `\g is followed by a group's number or name`)
	case text[0] == '-':
		return p.groups + 1 + n
	case text[0] == '+':
		return p.groups + n
	}
	return n
}

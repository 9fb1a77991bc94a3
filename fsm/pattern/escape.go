package pattern

import (
	"strconv"
	"strings"
)

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

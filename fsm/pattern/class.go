package pattern

import "strings"

// class reads a class of bytes, whose [ at an offset has been read.
func (p *parser) class(at int) *node {
	c := classReader{parser: p, at: at}
	if _, named := c.named(); named {
		p.fail(at, "a named class stands within a class only")
	}
	for p.take(`\E`) {
	}
	inverse := p.take("^")
	for first := true; ; {
		switch {
		case p.pos == len(p.text):
			p.fail(at, "missing ]")
		case !c.quoted && p.peek() == ']' && !first:
			p.pos++
			if p.fold {
				c.set.fold()
			}
			if inverse {
				c.set = c.set.inverse()
			}
			return &node{kind: kindSet, set: c.set, at: at}
		default:
			if !c.ignored() {
				c.member()
				first = false
			}
		}
	}
}

// classReader reads the members of a class.
type classReader struct {
	*parser
	at     int
	set    set
	quoted bool // between \Q and \E
}

// ignored reads what has no meaning in a class, one at a time.
func (c *classReader) ignored() bool {
	switch {
	case c.take(`\E`):
		c.quoted = false
	case !c.quoted && c.take(`\Q`):
		c.quoted = true
	case !c.quoted && c.extendedClass && (c.peek() == ' ' || c.peek() == '\t'):
		c.pos++
	default:
		return false
	}
	return true
}

// member reads one member: a set, a byte, or a range of bytes.
func (c *classReader) member() {
	at := c.pos
	from, some, isSet := c.one()
	if isSet {
		c.set.union(some)
	}
	for c.ignored() {
	}
	if c.quoted || c.peek() != '-' || strings.HasPrefix(c.rest(), "-]") || c.pos+1 == len(c.text) {
		if !isSet {
			c.set.add(from)
		}
		return
	}
	if isSet {
		c.fail(at, "a range in a class begins with a set")
	}
	c.pos++
	for c.ignored() {
	}
	if c.pos == len(c.text) {
		c.fail(c.at, "missing ]")
	}
	if !c.quoted && c.peek() == ']' { // [a-\E]
		c.set.add(from)
		c.set.add('-')
		return
	}
	to, _, isSet := c.one()
	if isSet {
		c.fail(at, "a range in a class ends with a set")
	}
	if to < from {
		c.fail(at, "a range in a class is out of order")
	}
	c.set.addRange(from, to)
}

// one reads a byte or a set.
func (c *classReader) one() (b byte, some set, isSet bool) {
	at := c.pos
	b = c.text[c.pos]
	c.pos++
	switch {
	case c.quoted:
		return b, some, false
	case b == '[':
		some, isSet = c.posix(at)
		return b, some, isSet
	case b != '\\':
		return b, some, false
	case c.take("b"):
		return '\b', some, false
	}
	if some, isSet = shorthand(c.peek()); isSet {
		c.pos++
		return b, some, true
	}
	if strings.IndexByte("BRX", c.peek()) >= 0 && c.pos < len(c.text) {
		c.fail(at, "this escape has no meaning in a class")
	}
	return c.escapedByte(at), some, false
}

// posix reads [:name:], whose [ has been read; isSet false: it is a [ that stands
// for itself.
func (c *classReader) posix(at int) (s set, isSet bool) {
	name, named := c.named()
	if !named {
		return s, false
	}
	letters, negative := strings.CutPrefix(name, "^")
	s, ok := posix[letters]
	if !ok || c.peek() != ':' {
		c.fail(at, "no class has the name %s", name)
	}
	c.pos += len(name) + 3
	if negative {
		s = s.inverse()
	}
	return s, true
}

// named returns the name if [:name:], or the same with . or =, whose [ has been
// read, comes next.
func (c *classReader) named() (name string, ok bool) {
	kind := c.peek()
	if kind != ':' && kind != '.' && kind != '=' {
		return "", false
	}
	name, _, ok = strings.Cut(c.text[c.pos+1:], string(kind)+"]")
	return name, ok && !strings.ContainsAny(name, `[]\`)
}

// set is a set of bytes.
type set [4]uint64

func (s *set) has(b byte) bool { return s[b>>6]&(1<<(b&63)) != 0 }
func (s *set) add(b byte)      { s[b>>6] |= 1 << (b & 63) }

func (s *set) addRange(from, to byte) {
	for b := int(from); b <= int(to); b++ {
		s.add(byte(b))
	}
}

func (s *set) union(o set) {
	for i := range s {
		s[i] |= o[i]
	}
}

func (s set) inverse() set {
	for i := range s {
		s[i] = ^s[i]
	}
	return s
}

// fold adds the other case of each letter. Only ASCII has cases.
func (s *set) fold() {
	for b := byte('a'); b <= 'z'; b++ {
		if upper := b - 'a' + 'A'; s.has(b) || s.has(upper) {
			s.add(b)
			s.add(upper)
		}
	}
}

// setOf returns the bytes for which is reports true.
func setOf(is func(b byte) bool) (s set) {
	for b := range 256 {
		if is(byte(b)) {
			s.add(byte(b))
		}
	}
	return s
}

func between(b, from, to byte) bool { return from <= b && b <= to }

func isDigit(b byte) bool { return between(b, '0', '9') }
func isLower(b byte) bool { return between(b, 'a', 'z') }
func isUpper(b byte) bool { return between(b, 'A', 'Z') }
func isAlpha(b byte) bool { return isLower(b) || isUpper(b) }
func isAlnum(b byte) bool { return isAlpha(b) || isDigit(b) }
func isWord(b byte) bool  { return isAlnum(b) || b == '_' }
func isSpace(b byte) bool { return b == ' ' || between(b, '\t', '\r') }
func isHex(b byte) bool   { return isDigit(b) || between(b, 'a', 'f') || between(b, 'A', 'F') }
func isGraph(b byte) bool { return between(b, '!', '~') }

// posix are the classes with names.
var posix = map[string]set{
	"alnum": setOf(isAlnum), "alpha": setOf(isAlpha), "ascii": setOf(func(b byte) bool { return b < 128 }),
	"blank": setOf(func(b byte) bool { return b == ' ' || b == '\t' }), "cntrl": setOf(func(b byte) bool { return b < ' ' || b == 127 }),
	"digit": setOf(isDigit), "graph": setOf(isGraph), "lower": setOf(isLower),
	"print": setOf(func(b byte) bool { return b == ' ' || isGraph(b) }),
	"punct": setOf(func(b byte) bool { return isGraph(b) && !isAlnum(b) }),
	"space": setOf(isSpace), "upper": setOf(isUpper), "word": setOf(isWord), "xdigit": setOf(isHex),
}

// shorthands are the classes of one letter; the capital one is the inverse.
var shorthands = map[byte]set{
	'd': posix["digit"], 'w': posix["word"], 's': posix["space"],
	'h': setOf(func(b byte) bool { return b == ' ' || b == '\t' || b == 0xa0 }),
	'v': setOf(func(b byte) bool { return between(b, '\n', '\r') || b == 0x85 }),
}

// shorthand returns the set of \d and its like.
func shorthand(letter byte) (set, bool) {
	if s, ok := shorthands[letter]; ok {
		return s, true
	}
	s, ok := shorthands[letter-'A'+'a']
	return s.inverse(), ok && isUpper(letter)
}

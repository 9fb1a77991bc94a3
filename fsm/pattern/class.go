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

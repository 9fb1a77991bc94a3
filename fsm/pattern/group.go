package pattern

import "strings"

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

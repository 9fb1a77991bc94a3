package selector

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a selector.
const (
	MaxLength = 4096 // bytes
	maxDepth  = 64   // of expressions in each other
)

// ErrSyntax means that a text is no selector.
var ErrSyntax = errors.New("not a selector")

// Selector is a condition. It never changes.
type Selector struct{ root node }

// kind of a node.
type operator uint8

const (
	opLiteral operator = iota
	opField
	opOr
	opAnd
	opNot
	opCompare   // by relation
	opCalculate // by relation[0]
	opNegate
	opBetween
	opIn
	opLike
	opIsNull
)

// node is an expression: an operator and what it applies to.
type node struct {
	op       operator
	relation string // of opCompare: = <> < <= > >=; of opCalculate: + - * / %
	not      bool   // of opBetween, opIn, opLike and opIsNull
	of       []*node
	value    Value   // of a literal
	section  Section // of a field
	name     string
	pattern  []wild // of opLike
}

// wild is one character of a pattern, or what stands for others.
type wild struct {
	char rune
	any  bool // any one
	many bool // any number of any
}

// Parse reads a selector.
func Parse(text string) (*Selector, error) {
	if len(text) > MaxLength || !utf8.ValidString(text) {
		return nil, fmt.Errorf("%w: it is longer than %d bytes, or not UTF-8", ErrSyntax, MaxLength)
	}
	p := &parser{rest: text}
	p.next()
	root := p.or()
	if p.token.kind != tokenEnd {
		p.fail("unexpected %q", p.token.text)
	}
	if p.err != nil {
		return nil, p.err
	}
	return &Selector{*root}, nil
}

type tokenKind uint8

const (
	tokenEnd tokenKind = iota
	tokenName
	tokenWord // a keyword, in capitals
	tokenText
	tokenNumber
	tokenSign
)

type token struct {
	kind  tokenKind
	text  string
	value Value
}

// parser reads a selector from left to right. Once it has failed all tokens are the end.
type parser struct {
	rest  string
	token token
	depth int
	err   error
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%w: "+format, append([]any{ErrSyntax}, args...)...)
	}
	p.rest, p.token = "", token{}
}

var keywords = map[string]bool{
	"AND": true, "OR": true, "NOT": true, "BETWEEN": true, "IN": true, "LIKE": true, "ESCAPE": true, "IS": true, "NULL": true, "TRUE": true, "FALSE": true,
}

// next reads a token.
func (p *parser) next() {
	p.rest = strings.TrimLeftFunc(p.rest, unicode.IsSpace)
	if p.rest == "" {
		p.token = token{}
		return
	}
	switch c, _ := utf8.DecodeRuneInString(p.rest); {
	case c == '\'':
		p.text()
	case c >= '0' && c <= '9', c == '.' && len(p.rest) > 1 && p.rest[1] >= '0' && p.rest[1] <= '9':
		p.number()
	case isFirst(c):
		n := strings.IndexFunc(p.rest, func(c rune) bool { return !isFirst(c) && !unicode.IsDigit(c) && c != '.' })
		if n < 0 {
			n = len(p.rest)
		}
		word := p.take(n)
		if up := strings.ToUpper(word); keywords[up] {
			p.token = token{kind: tokenWord, text: up}
		} else {
			p.token = token{kind: tokenName, text: word}
		}
	default:
		for _, sign := range []string{"<>", "<=", ">=", "!=", "=", "<", ">", "+", "-", "*", "/", "%", "(", ")", ","} {
			if strings.HasPrefix(p.rest, sign) {
				p.token = token{kind: tokenSign, text: p.take(len(sign))}
				return
			}
		}
		p.fail("unexpected %q", c)
	}
}

func isFirst(c rune) bool { return unicode.IsLetter(c) || c == '_' || c == '$' }

func (p *parser) take(n int) string {
	text := p.rest[:n]
	p.rest = p.rest[n:]
	return text
}

// text reads a string in quotes; two of them stand for one.
func (p *parser) text() {
	var b strings.Builder
	for i := 1; i < len(p.rest); i++ {
		if p.rest[i] != '\'' {
			b.WriteByte(p.rest[i])
			continue
		}
		if i+1 == len(p.rest) || p.rest[i+1] != '\'' {
			p.take(i + 1)
			p.token = token{kind: tokenText, text: b.String(), value: TextOf(b.String())}
			return
		}
		b.WriteByte('\'')
		i++
	}
	p.fail("a string does not end")
}

// number reads a number: decimal, hexadecimal or octal if whole, with an exponent if not.
func (p *parser) number() {
	n, exponent := 0, false
	for n < len(p.rest) {
		switch c := p.rest[n]; {
		case c >= '0' && c <= '9', c == '.', c == '_', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
			exponent = (c == 'e' || c == 'E') && !strings.HasPrefix(strings.ToLower(p.rest), "0x")
		case (c == '+' || c == '-') && exponent:
			exponent = false
		default:
			goto end
		}
		n++
	}
end:
	text := strings.ToLower(p.take(n))
	p.token = token{kind: tokenNumber, text: text}
	hex := strings.HasPrefix(text, "0x")
	if i, err := strconv.ParseInt(strings.TrimSuffix(text, "l"), 0, 64); err == nil && !strings.Contains(text, "_") {
		p.token.value = IntOf(i)
		return
	}
	if !hex {
		text = strings.TrimRight(text, "fd")
	}
	f, err := strconv.ParseFloat(text, 64)
	if p.token.value = FloatOf(f); err != nil || hex || strings.ContainsAny(text, "_in") {
		p.fail("%q is no number", text)
	}
}

// accept reads on if the token is a keyword or a sign.
func (p *parser) accept(kind tokenKind, texts ...string) (string, bool) {
	for _, text := range texts {
		if p.token.kind == kind && p.token.text == text {
			p.next()
			return text, true
		}
	}
	return "", false
}

func (p *parser) word(text string) bool {
	_, ok := p.accept(tokenWord, text)
	return ok
}

func (p *parser) expect(kind tokenKind, text string) {
	if _, ok := p.accept(kind, text); !ok {
		p.fail("%s is missing before %q", text, p.token.text)
	}
}

func (p *parser) or() *node {
	if p.depth++; p.depth > maxDepth {
		p.fail("it is too deep")
	}
	defer func() { p.depth-- }()
	n := p.and()
	for p.word("OR") {
		n = &node{op: opOr, of: []*node{n, p.and()}}
	}
	return n
}

func (p *parser) and() *node {
	n := p.not()
	for p.word("AND") {
		n = &node{op: opAnd, of: []*node{n, p.not()}}
	}
	return n
}

func (p *parser) not() *node {
	odd := false
	some := false
	for p.word("NOT") {
		odd, some = !odd, true
	}
	n := p.predicate()
	if odd {
		n = &node{op: opNot, of: []*node{n}}
	} else if some {
		n = &node{op: opNot, of: []*node{{op: opNot, of: []*node{n}}}} // of what is neither true nor false
	}
	return n
}

func (p *parser) predicate() *node {
	n := p.sum()
	if r, ok := p.accept(tokenSign, "=", "<>", "!=", "<", "<=", ">", ">="); ok {
		if r == "!=" {
			r = "<>"
		}
		return &node{op: opCompare, relation: r, of: []*node{n, p.sum()}}
	}
	if p.word("IS") {
		not := p.word("NOT")
		p.expect(tokenWord, "NULL")
		return &node{op: opIsNull, not: not, of: []*node{n}}
	}
	not := p.word("NOT")
	switch {
	case p.word("BETWEEN"):
		low := p.sum()
		p.expect(tokenWord, "AND")
		return &node{op: opBetween, not: not, of: []*node{n, low, p.sum()}}
	case p.word("IN"):
		return p.in(n, not)
	case p.word("LIKE"):
		return p.like(n, not)
	case not:
		p.fail("unexpected %q after NOT", p.token.text)
	}
	return n
}

func (p *parser) in(n *node, not bool) *node {
	in := &node{op: opIn, not: not, of: []*node{n}}
	p.expect(tokenSign, "(")
	for {
		in.of = append(in.of, p.sum())
		if _, ok := p.accept(tokenSign, ","); !ok {
			break
		}
	}
	p.expect(tokenSign, ")")
	return in
}

func (p *parser) like(n *node, not bool) *node {
	pattern, escape := p.token, rune(-1)
	if pattern.kind != tokenText {
		p.fail("LIKE without a pattern")
	}
	p.next()
	if p.word("ESCAPE") {
		one := []rune(p.token.text)
		if p.token.kind != tokenText || len(one) != 1 {
			p.fail("ESCAPE without one character")
			return n
		}
		escape = one[0]
		p.next()
	}
	like := &node{op: opLike, not: not, of: []*node{n}}
	escaped := false
	for _, c := range pattern.text {
		switch {
		case escaped:
			like.pattern, escaped = append(like.pattern, wild{char: c}), false
		case c == escape:
			escaped = true
		case c == '_':
			like.pattern = append(like.pattern, wild{any: true})
		case c == '%':
			like.pattern = append(like.pattern, wild{many: true})
		default:
			like.pattern = append(like.pattern, wild{char: c})
		}
	}
	if escaped {
		p.fail("a pattern ends with its escape character")
	}
	return like
}

func (p *parser) sum() *node {
	n := p.product()
	for {
		r, ok := p.accept(tokenSign, "+", "-")
		if !ok {
			return n
		}
		n = &node{op: opCalculate, relation: r, of: []*node{n, p.product()}}
	}
}

func (p *parser) product() *node {
	n := p.signed()
	for {
		r, ok := p.accept(tokenSign, "*", "/", "%")
		if !ok {
			return n
		}
		n = &node{op: opCalculate, relation: r, of: []*node{n, p.signed()}}
	}
}

func (p *parser) signed() *node {
	odd := false
	for {
		r, ok := p.accept(tokenSign, "+", "-")
		if !ok {
			break
		}
		odd = odd != (r == "-")
	}
	n := p.primary()
	if odd {
		return &node{op: opNegate, of: []*node{n}}
	}
	return n
}

func (p *parser) primary() *node {
	t := p.token
	switch {
	case t.kind == tokenText, t.kind == tokenNumber:
		p.next()
		return &node{op: opLiteral, value: t.value}
	case t.kind == tokenName:
		p.next()
		return fieldNamed(t.text)
	case p.word("TRUE"):
		return &node{op: opLiteral, value: BoolOf(true)}
	case p.word("FALSE"):
		return &node{op: opLiteral, value: BoolOf(false)}
	}
	if _, ok := p.accept(tokenSign, "("); !ok {
		p.fail("unexpected %q", t.text)
		return &node{}
	}
	n := p.or()
	p.expect(tokenSign, ")")
	return n
}

// prefixes name sections, and jms the fields that JMS calls otherwise.
var (
	prefixes = map[string]Section{
		"a": Application, "application_properties": Application, "h": Header, "header": Header, "p": Properties, "properties": Properties,
		"m": Annotations, "message_annotations": Annotations,
	}
	jms = map[string]string{
		"JMSPriority": "h.priority", "JMSMessageID": "p.message_id", "JMSTimestamp": "p.creation_time", "JMSCorrelationID": "p.correlation_id",
		"JMSType": "p.subject",
	}
)

func fieldNamed(text string) *node {
	if other := jms[text]; other != "" {
		text = other
	}
	if prefix, name, ok := strings.Cut(text, "."); ok {
		if s, known := prefixes[prefix]; known {
			return &node{op: opField, section: s, name: name}
		}
	}
	return &node{op: opField, section: Application, name: text}
}

package rules

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a text.
const (
	MaxLength     = 1024 // characters of a filter or an action
	MaxStatements = 32   // of an action
	maxDepth      = 64   // of expressions in each other
)

// ErrSyntax means that a text is no filter or action.
var ErrSyntax = errors.New("not an expression")

// Parameter is a value that is named in an expression: @name.
type Parameter struct {
	Name  string // with or without @, without case
	Value Value
}

// operator is the kind of a node.
type operator uint8

const (
	opLiteral operator = iota
	opSystem
	opUser
	opProperty // of the name that an expression makes
	opNewID
	opOr
	opAnd
	opNot
	opCompare   // by sign
	opCalculate // by sign
	opNegate
	opIn
	opLike // a text, a pattern, perhaps an escape character
	opIsNull
	opExists
)

// node is an expression: an operator and what it applies to.
type node struct {
	op     operator
	sign   string // of opCompare: = <> < <= > >=; of opCalculate: + - * / %
	not    bool   // of opIn, opLike and opIsNull
	of     []*node
	value  Value    // of a literal
	system property // of opSystem
	name   []byte   // of opUser
}

type tokenKind uint8

const (
	tokenEnd tokenKind = iota
	tokenName
	tokenQuoted // a name in brackets or double quotes
	tokenWord   // a keyword, in capitals
	tokenText
	tokenNumber
	tokenParameter
	tokenSign
)

type token struct {
	kind  tokenKind
	text  string
	value Value
}

// parser reads a text from left to right. Once it has failed all tokens are the end.
type parser struct {
	rest       string
	token      token
	parameters []Parameter
	depth      int
	err        error
}

// start begins with a text.
func start(text string, parameters []Parameter) *parser {
	p := &parser{rest: text, parameters: parameters}
	switch {
	case !utf8.ValidString(text):
		p.fail("it is not UTF-8")
	case utf8.RuneCountInString(text) > MaxLength:
		p.fail("it has more than %d characters", MaxLength)
	}
	p.next()
	return p
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%w: "+format, append([]any{ErrSyntax}, args...)...)
	}
	p.rest, p.token = "", token{}
}

var keywords = map[string]bool{
	"AND": true, "OR": true, "NOT": true, "IN": true, "LIKE": true, "ESCAPE": true, "IS": true, "NULL": true, "TRUE": true, "FALSE": true, "EXISTS": true,
	"SET": true, "REMOVE": true,
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
		text := p.delimited('\'')
		p.token = token{kind: tokenText, text: text, value: TextOf(text)}
	case c == '[':
		p.token = token{kind: tokenQuoted, text: p.delimited(']')}
	case c == '"':
		p.token = token{kind: tokenQuoted, text: p.delimited('"')}
	case c >= '0' && c <= '9', c == '.' && len(p.rest) > 1 && isDigit(p.rest[1]):
		p.number()
	case c == '@':
		p.token = token{kind: tokenParameter, text: p.take(1 + p.nameLength(p.rest[1:]))}
	case isFirst(c):
		word := p.take(p.nameLength(p.rest))
		if up := strings.ToUpper(word); keywords[up] {
			p.token = token{kind: tokenWord, text: up}
		} else {
			p.token = token{kind: tokenName, text: word}
		}
	default:
		p.sign(c)
	}
}

func isFirst(c rune) bool { return unicode.IsLetter(c) || c == '_' }
func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// nameLength is how many octets of a text may be in a name.
func (p *parser) nameLength(text string) int {
	n := strings.IndexFunc(text, func(c rune) bool { return !isFirst(c) && !unicode.IsDigit(c) })
	if n < 0 {
		n = len(text)
	}
	return n
}

func (p *parser) sign(c rune) {
	for _, sign := range []string{"<>", "<=", ">=", "!=", "=", "<", ">", "+", "-", "*", "/", "%", "(", ")", ",", ".", ";"} {
		if strings.HasPrefix(p.rest, sign) {
			p.token = token{kind: tokenSign, text: p.take(len(sign))}
			return
		}
	}
	p.fail("unexpected %q", c)
}

func (p *parser) take(n int) string {
	text := p.rest[:n]
	p.rest = p.rest[n:]
	return text
}

// delimited reads what ends with a character; two of them stand for one.
func (p *parser) delimited(end byte) string {
	var b strings.Builder
	for i := 1; i < len(p.rest); i++ {
		if p.rest[i] != end {
			b.WriteByte(p.rest[i])
			continue
		}
		if i+1 == len(p.rest) || p.rest[i+1] != end {
			p.take(i + 1)
			return b.String()
		}
		b.WriteByte(end)
		i++
	}
	p.fail("%q is missing at the end", end)
	return ""
}

// number reads a whole number, or one with a point or an exponent.
func (p *parser) number() {
	n, whole := 0, true
	digits := func() {
		for n < len(p.rest) && isDigit(p.rest[n]) {
			n++
		}
	}
	digits()
	if n < len(p.rest) && p.rest[n] == '.' {
		n, whole = n+1, false
		digits()
	}
	if n < len(p.rest) && (p.rest[n] == 'e' || p.rest[n] == 'E') {
		n, whole = n+1, false
		if n < len(p.rest) && (p.rest[n] == '+' || p.rest[n] == '-') {
			n++
		}
		digits()
	}
	text := p.take(n)
	p.token = token{kind: tokenNumber, text: text}
	if whole {
		i, err := strconv.ParseInt(text, 10, 64)
		if p.token.value = IntOf(i); err != nil {
			p.fail("%s is no number of 64 bits", text)
		}
	} else {
		f, err := strconv.ParseFloat(text, 64)
		if p.token.value = FloatOf(f); err != nil {
			p.fail("%s is no number", text)
		}
	}
	if c, _ := utf8.DecodeRuneInString(p.rest); p.rest != "" && isFirst(c) {
		p.fail("%q follows a number", c)
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

// end refuses what is left.
func (p *parser) end() {
	if p.token.kind != tokenEnd {
		p.fail("unexpected %q", p.token.text)
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
	times := 0
	for p.word("NOT") {
		times++
	}
	n := p.predicate()
	if times > 0 && times%2 == 0 {
		n = &node{op: opNot, of: []*node{n}} // of what is no truth value
	}
	if times > 0 {
		n = &node{op: opNot, of: []*node{n}}
	}
	return n
}

func (p *parser) predicate() *node {
	if p.word("EXISTS") {
		p.expect(tokenSign, "(")
		n := &node{op: opExists, of: []*node{p.reference()}}
		p.expect(tokenSign, ")")
		return n
	}
	n := p.sum()
	if sign, ok := p.accept(tokenSign, "=", "<>", "!=", "<", "<=", ">", ">="); ok {
		if sign == "!=" {
			sign = "<>"
		}
		return &node{op: opCompare, sign: sign, of: []*node{n, p.sum()}}
	}
	if p.word("IS") {
		not := p.word("NOT")
		p.expect(tokenWord, "NULL")
		return &node{op: opIsNull, not: not, of: []*node{n}}
	}
	not := p.word("NOT")
	switch {
	case p.word("IN"):
		return p.in(n, not)
	case p.word("LIKE"):
		like := &node{op: opLike, not: not, of: []*node{n, p.sum()}}
		if p.word("ESCAPE") {
			like.of = append(like.of, p.sum())
		}
		return like
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

func (p *parser) sum() *node {
	n := p.product()
	for {
		sign, ok := p.accept(tokenSign, "+", "-")
		if !ok {
			return n
		}
		n = &node{op: opCalculate, sign: sign, of: []*node{n, p.product()}}
	}
}

func (p *parser) product() *node {
	n := p.signed()
	for {
		sign, ok := p.accept(tokenSign, "*", "/", "%")
		if !ok {
			return n
		}
		n = &node{op: opCalculate, sign: sign, of: []*node{n, p.signed()}}
	}
}

func (p *parser) signed() *node {
	odd, some := false, false
	for {
		sign, ok := p.accept(tokenSign, "+", "-")
		if !ok {
			break
		}
		odd, some = odd != (sign == "-"), true
	}
	n := p.primary()
	if some && !odd {
		n = &node{op: opNegate, of: []*node{n}} // of what is no number
	}
	if some {
		n = &node{op: opNegate, of: []*node{n}}
	}
	return n
}

func (p *parser) primary() *node {
	t := p.token
	switch {
	case t.kind == tokenText, t.kind == tokenNumber:
		p.next()
		return &node{op: opLiteral, value: t.value}
	case t.kind == tokenParameter:
		p.next()
		return &node{op: opLiteral, value: p.parameter(t.text)}
	case p.word("TRUE"):
		return &node{op: opLiteral, value: BoolOf(true)}
	case p.word("FALSE"):
		return &node{op: opLiteral, value: BoolOf(false)}
	case p.word("NULL"):
		return &node{op: opLiteral}
	case t.kind == tokenName, t.kind == tokenQuoted:
		return p.referenceOrCall()
	}
	if _, ok := p.accept(tokenSign, "("); !ok {
		p.fail("unexpected %q", t.text)
		return &node{}
	}
	n := p.or()
	p.expect(tokenSign, ")")
	return n
}

func (p *parser) parameter(name string) Value {
	for _, one := range p.parameters {
		if strings.EqualFold(strings.TrimPrefix(one.Name, "@"), name[1:]) {
			return one.Value
		}
	}
	p.fail("there is no parameter %s", name)
	return Value{}
}

// referenceOrCall reads a property, or a function.
func (p *parser) referenceOrCall() *node {
	t := p.token
	if t.kind != tokenName || !strings.HasPrefix(strings.TrimLeftFunc(p.rest, unicode.IsSpace), "(") {
		return p.reference()
	}
	p.next()
	p.expect(tokenSign, "(")
	n := &node{op: opNewID}
	switch strings.ToLower(t.text) {
	case "newid":
	case "property", "p":
		n = &node{op: opProperty, of: []*node{p.sum()}}
	default:
		p.fail("there is no function %q", t.text)
	}
	p.expect(tokenSign, ")")
	return n
}

// reference reads a property with or without its scope.
func (p *parser) reference() *node {
	t := p.name()
	if _, ok := p.accept(tokenSign, "."); !ok {
		return &node{op: opUser, name: []byte(t.text)}
	}
	name := p.name().text
	switch scope := strings.ToLower(t.text); {
	case t.kind == tokenName && scope == "user":
		return &node{op: opUser, name: []byte(name)}
	case t.kind == tokenName && scope == "sys":
		which := systemNamed(name)
		if which == 0 && p.err == nil {
			p.fail("there is no property sys.%s", name)
		}
		return &node{op: opSystem, system: which}
	}
	p.fail("the scope %q is neither sys nor user", t.text)
	return &node{}
}

func (p *parser) name() token {
	t := p.token
	if t.kind != tokenName && t.kind != tokenQuoted || t.text == "" {
		p.fail("a property is missing before %q", t.text)
		return t
	}
	p.next()
	return t
}

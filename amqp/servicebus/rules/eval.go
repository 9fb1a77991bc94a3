package rules

import (
	"bytes"
	"unicode/utf8"

	"github.com/quorate/quorate/amqp/servicebus/edit"
)

// maxSteps bounds what one message may cost in one rule: expressions, properties that are passed over, and characters that
// are compared with patterns.
const maxSteps = 100_000

// evaluation is that of one message. Once it has failed, values are unknown and the error stays.
type evaluation struct {
	message *Message
	changes *Change         // by statements before; nil: there are none
	newID   func() [16]byte // see Filter.Match
	left    int             // steps
	err     error
}

func (e *evaluation) step(n int) bool {
	if e.left -= n; e.left < 0 {
		e.fail(ErrSteps)
	}
	return e.err == nil
}

func (e *evaluation) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

// failed notes an error, and returns the value or unknown.
func (e *evaluation) failed(v Value, err error) Value {
	if err != nil {
		e.fail(err)
		return Value{}
	}
	return v
}

func (e *evaluation) value(n *node) Value {
	if !e.step(1) {
		return Value{}
	}
	switch n.op {
	case opLiteral:
		return n.value
	case opSystem:
		return e.system(n.system)
	case opUser:
		v, _ := e.user(n.name)
		return v
	case opProperty:
		return e.named(n)
	case opNewID:
		return UUIDOf(e.newID())
	case opOr:
		return e.either(n, Value.isTrue)
	case opAnd:
		return e.either(n, Value.isFalse)
	case opNot:
		return negated(e.truth(n.of[0]), true)
	case opIsNull:
		return BoolOf((e.value(n.of[0]).kind == Unknown) != n.not)
	case opExists:
		return BoolOf(e.exists(n.of[0]))
	case opIn:
		return negated(e.in(n), n.not)
	case opLike:
		return negated(e.like(n), n.not)
	}
	return e.operation(n)
}

// operation is a comparison or arithmetic: with what is unknown it is unknown.
func (e *evaluation) operation(n *node) Value {
	a := e.value(n.of[0])
	if n.op == opNegate {
		if a.kind == Unknown {
			return a
		}
		return e.failed(negate(a))
	}
	b := e.value(n.of[1])
	switch {
	case a.kind == Unknown || b.kind == Unknown:
		return Value{}
	case n.op == opCalculate:
		return e.failed(calculate(n.sign[0], a, b))
	}
	return e.relate(n.sign, a, b)
}

func (e *evaluation) relate(sign string, a, b Value) Value {
	order, ordered, err := compare(a, b)
	if err != nil || !ordered && sign != "=" && sign != "<>" {
		e.fail(ErrTypes)
		return Value{}
	}
	switch sign {
	case "=":
		return BoolOf(order == 0)
	case "<>":
		return BoolOf(order != 0)
	case "<":
		return BoolOf(order < 0)
	case "<=":
		return BoolOf(order <= 0)
	case ">":
		return BoolOf(order == 1)
	}
	return BoolOf(order == 0 || order == 1)
}

// truth is a value that has to be true, false or unknown.
func (e *evaluation) truth(n *node) Value {
	v := e.value(n)
	if v.kind != Bool && v.kind != Unknown {
		e.fail(ErrTypes)
		return Value{}
	}
	return v
}

// either evaluates two operands, of which one decides if ends says so of its value; otherwise both have to be known.
func (e *evaluation) either(n *node, ends func(Value) bool) Value {
	a := e.truth(n.of[0])
	if ends(a) {
		return a
	}
	b := e.truth(n.of[1])
	if ends(b) || a.kind == Bool && b.kind == Bool {
		return b
	}
	return Value{}
}

// negated returns the contrary if not is set. What is unknown stays so.
func negated(v Value, not bool) Value {
	if v.kind == Bool && not {
		return BoolOf(v.n == 0)
	}
	return v
}

// in returns whether a value is one of a list; unknown if it is none that is known, and one is not.
func (e *evaluation) in(n *node) Value {
	v, result := e.value(n.of[0]), BoolOf(false)
	if v.kind == Unknown {
		return v
	}
	for _, of := range n.of[1:] {
		one := e.value(of)
		if one.kind == Unknown {
			result = one
			continue
		}
		if is := e.relate("=", v, one); is.isTrue() {
			return is
		}
	}
	return result
}

func (e *evaluation) system(p property) Value {
	switch {
	case e.changes == nil:
	case p == timeToLive && e.changes.HasTTL:
		return DurationOf(e.changes.TTL * TicksPerMilli)
	case fields[p] != edit.Application:
		if v, changed := e.changes.Edit.Field(fields[p]); changed {
			return raw(v)
		}
	}
	return e.message.system(p)
}

// user returns an application property, and whether there is one.
func (e *evaluation) user(name []byte) (v Value, ok bool) {
	e.step(len(e.message.application))
	if e.changes != nil {
		if v, changed := e.changes.Edit.Property(e.written(name)); changed {
			return raw(v), len(v) > 0
		}
	}
	found := e.message.user(name)
	if found == nil {
		return Value{}, false
	}
	return valueOf(found.value), true
}

// written is the name of a property that statements change: as the message or a statement before spells it, or else as it
// is written.
func (e *evaluation) written(name []byte) string {
	if had := e.message.user(name); had != nil {
		return string(had.name)
	}
	for made := range e.changes.Edit.Names {
		if bytes.EqualFold([]byte(made), name) {
			return made
		}
	}
	return string(name)
}

// named returns the property of the name that an expression makes.
func (e *evaluation) named(n *node) Value {
	name := e.value(n.of[0])
	switch name.kind {
	case Unknown:
		return name
	case Text:
		v, _ := e.user(name.text)
		return v
	}
	e.fail(ErrTypes)
	return Value{}
}

func (e *evaluation) exists(n *node) bool {
	if n.op == opUser {
		_, ok := e.user(n.name)
		return ok
	}
	return e.value(n).kind != Unknown
}

// like returns whether a text has a pattern.
func (e *evaluation) like(n *node) Value {
	text, pattern, escape := e.value(n.of[0]), e.value(n.of[1]), rune(-1)
	if len(n.of) > 2 {
		one := e.value(n.of[2])
		if one.kind == Unknown {
			return one
		}
		c, size := utf8.DecodeRune(one.text)
		if one.kind != Text || size == 0 || size != len(one.text) {
			e.fail(ErrTypes)
			return Value{}
		}
		escape = c
	}
	switch {
	case text.kind == Unknown || pattern.kind == Unknown:
		return Value{}
	case text.kind != Text || pattern.kind != Text:
		e.fail(ErrTypes)
		return Value{}
	}
	return e.match(text.text, pattern.text, escape)
}

// match compares a text with a pattern. After a character that does not fit it goes on behind the last wild of any number,
// one character later: earlier ones never have to be tried again.
func (e *evaluation) match(text, pattern []byte, escape rune) Value {
	p, star, retry := 0, -1, 0
	for i := 0; i < len(text); {
		if !e.step(1) {
			return Value{}
		}
		w := wildAt(pattern[p:], escape)
		c, n := utf8.DecodeRune(text[i:])
		switch {
		case w.many:
			p += w.size
			star, retry = p, i
		case w.size > 0 && (w.any || w.char == c):
			p += w.size
			i += n
		case star >= 0:
			_, n := utf8.DecodeRune(text[retry:])
			retry += n
			p, i = star, retry
		default:
			return BoolOf(false)
		}
	}
	for w := wildAt(pattern[p:], escape); w.many; w = wildAt(pattern[p:], escape) {
		p += w.size
	}
	return BoolOf(p == len(pattern))
}

// wild is one character of a pattern, or what stands for others.
type wild struct {
	char rune
	any  bool // any one
	many bool // any number of any
	size int  // octets; 0: the pattern ends
}

// wildAt reads the start of a pattern. An escape character at its end stands for itself.
func wildAt(pattern []byte, escape rune) wild {
	c, n := utf8.DecodeRune(pattern)
	switch {
	case n == 0:
		return wild{}
	case c == escape && len(pattern) > n:
		c, m := utf8.DecodeRune(pattern[n:])
		return wild{char: c, size: n + m}
	}
	return wild{char: c, any: c == '_', many: c == '%', size: n}
}

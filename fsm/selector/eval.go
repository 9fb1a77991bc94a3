package selector

import "unicode/utf8"

// maxSteps bounds what one message may cost: expressions, and characters that are compared with patterns. Beyond it the
// rest is unknown.
const maxSteps = 100_000

// Matches reports whether a message matches: whether the condition is true, and neither false nor unknown.
func (s *Selector) Matches(m Message) bool {
	e := evaluation{message: m, left: maxSteps}
	return e.value(&s.root).isTrue()
}

// evaluation is that of one message.
type evaluation struct {
	message Message
	left    int // steps
}

func (e *evaluation) value(n *node) Value {
	if e.left--; e.left < 0 {
		return Value{}
	}
	switch n.op {
	case opLiteral:
		return n.value
	case opField:
		return e.message.Field(n.section, n.name)
	case opOr:
		return e.either(n, Value.isTrue)
	case opAnd:
		return e.either(n, Value.isFalse)
	case opNot:
		return negated(e.value(n.of[0]), true)
	case opCompare:
		return relate(n.relation, e.value(n.of[0]), e.value(n.of[1]))
	case opCalculate:
		return calculate(n.relation[0], e.value(n.of[0]), e.value(n.of[1]))
	case opNegate:
		return calculate('-', IntOf(0), e.value(n.of[0]))
	case opIsNull:
		return BoolOf((e.value(n.of[0]).kind == Unknown) != n.not)
	case opBetween:
		v := e.value(n.of[0])
		low, high := relate(">=", v, e.value(n.of[1])), relate("<=", v, e.value(n.of[2]))
		return negated(both(low, high), n.not)
	case opIn:
		return negated(e.in(n), n.not)
	}
	v := e.value(n.of[0])
	if v.kind != Text {
		return Value{}
	}
	return negated(e.like(v.text, n.pattern), n.not)
}

// either evaluates two operands, of which one decides if ends says so of its value; otherwise both have to be known.
func (e *evaluation) either(n *node, ends func(Value) bool) Value {
	a := e.value(n.of[0])
	if ends(a) {
		return a
	}
	b := e.value(n.of[1])
	if ends(b) || a.kind == Bool && b.kind == Bool {
		return b
	}
	return Value{}
}

// negated returns the contrary if not is set. What is no truth value is unknown.
func negated(v Value, not bool) Value {
	switch {
	case v.kind != Bool:
		return Value{}
	case not:
		return BoolOf(v.int == 0)
	}
	return v
}

func both(a, b Value) Value {
	switch {
	case a.isFalse() || b.isFalse():
		return BoolOf(false)
	case a.isTrue() && b.isTrue():
		return a
	}
	return Value{}
}

// relate compares two values. What is of different types cannot be compared, and only numbers have an order.
func relate(relation string, a, b Value) Value {
	if relation == "=" || relation == "<>" {
		same, ok := equal(a, b)
		if !ok {
			return Value{}
		}
		return BoolOf(same == (relation == "="))
	}
	order, ok := compare(a, b)
	if !ok {
		return Value{}
	}
	switch relation {
	case "<":
		return BoolOf(order < 0)
	case "<=":
		return BoolOf(order <= 0)
	case ">":
		return BoolOf(order > 0)
	}
	return BoolOf(order >= 0)
}

// in returns whether a value is one of a list; unknown if it is none that is known, and one is not.
func (e *evaluation) in(n *node) Value {
	v, result := e.value(n.of[0]), BoolOf(false)
	for _, of := range n.of[1:] {
		is := relate("=", v, e.value(of))
		if is.isTrue() {
			return is
		}
		if is.kind == Unknown {
			result = Value{}
		}
	}
	return result
}

// like returns whether a text has a pattern. After a character that does not fit it goes on behind the last wild of any
// number, one character later: earlier ones never have to be tried again.
func (e *evaluation) like(text string, pattern []wild) Value {
	p, star, retry := 0, -1, 0
	for i := 0; i < len(text); {
		if e.left--; e.left < 0 {
			return Value{}
		}
		c, n := utf8.DecodeRuneInString(text[i:])
		switch {
		case p < len(pattern) && pattern[p].many:
			star, retry = p, i
			p++
		case p < len(pattern) && (pattern[p].any || pattern[p].char == c):
			p++
			i += n
		case star >= 0:
			_, n := utf8.DecodeRuneInString(text[retry:])
			retry += n
			p, i = star+1, retry
		default:
			return BoolOf(false)
		}
	}
	for p < len(pattern) && pattern[p].many {
		p++
	}
	return BoolOf(p == len(pattern))
}

package rules

import (
	"crypto/rand"
	"math"

	"github.com/quorate/quorate/amqp/servicebus/edit"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// Filter is a condition. It never changes.
type Filter struct{ root node }

// ParseFilter reads the text of a filter.
func ParseFilter(text string, parameters []Parameter) (*Filter, error) {
	p := start(text, parameters)
	root := p.or()
	if p.end(); p.err != nil {
		return nil, p.err
	}
	return &Filter{*root}, nil
}

// Match reports whether a message matches: whether the condition is true, and neither false nor unknown. With an error it
// could not be evaluated.
func (f *Filter) Match(m *Message) (bool, error) {
	e := evaluation{message: m, newID: newID, left: maxSteps}
	v := e.truth(&f.root)
	return v.isTrue() && e.err == nil, e.err
}

// newID draws a random UUID.
func newID() (id [16]byte) {
	rand.Read(id[:])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id
}

// Action changes messages. It never changes itself.
type Action struct{ statements []statement }

// statement sets a property to the value of an expression, or removes it if there is none.
type statement struct {
	property *node // opUser or opSystem
	value    *node
}

// ParseAction reads the text of an action.
func ParseAction(text string, parameters []Parameter) (*Action, error) {
	p, a := start(text, parameters), &Action{}
	for p.token.kind != tokenEnd {
		if len(a.statements) == MaxStatements {
			p.fail("it has more than %d statements", MaxStatements)
			break
		}
		a.statements = append(a.statements, p.statement())
	}
	if len(a.statements) == 0 {
		p.fail("it has no statement")
	}
	if p.err != nil {
		return nil, p.err
	}
	return a, nil
}

func (p *parser) statement() (s statement) {
	set := p.word("SET")
	if !set && !p.word("REMOVE") {
		p.fail("a statement begins with SET or REMOVE, not with %q", p.token.text)
		return s
	}
	s.property = p.reference()
	if s.property.op == opSystem && !isWritable(s.property.system) && p.err == nil {
		p.fail("the property of the service cannot be changed")
	}
	if set {
		p.expect(tokenSign, "=")
		s.value = p.sum()
	}
	p.accept(tokenSign, ";")
	return s
}

// isWritable reports whether actions may change a property. A time for which a copy is scheduled counts for nothing.
func isWritable(p property) bool {
	switch p {
	case contentType, correlationID, label, messageID, replyTo, replyToSessionID, sessionID, to, timeToLive, scheduledEnqueueTime:
		return true
	}
	return false
}

// Change is what an action makes of a message.
type Change struct {
	Edit edit.Edit
	// TTL is in ms; HasTTL: the action sets one. It is no longer than what is left.
	TTL    int64
	HasTTL bool
}

// Run performs the statements one after the other: each sees what those before have changed. With an error nothing is
// changed.
func (a *Action) Run(m *Message) (Change, error) {
	var c Change
	e := evaluation{message: m, changes: &c, newID: newID, left: maxSteps}
	for _, s := range a.statements {
		if s.value == nil {
			e.remove(s.property)
			continue
		}
		v := e.value(s.value)
		if e.err != nil {
			break
		}
		e.set(s.property, v)
	}
	if e.err != nil {
		return Change{}, e.err
	}
	return c, nil
}

func (e *evaluation) remove(p *node) {
	c := e.changes
	switch {
	case p.op == opUser:
		c.Edit.Remove(e.written(p.name))
	case p.system == timeToLive:
		c.TTL, c.HasTTL = 0, false
	case p.system != scheduledEnqueueTime:
		c.Edit.RemoveField(fields[p.system])
	}
}

func (e *evaluation) set(p *node, v Value) {
	c := e.changes
	if p.op == opUser {
		name := e.written(p.name)
		if v.kind == Other || c.Edit.Set(name, e.converted(name, v)) != nil {
			e.fail(ErrTypes)
		}
		return
	}
	switch p.system {
	case scheduledEnqueueTime:
		return
	case timeToLive:
		if v.kind != Duration || v.n < 0 {
			e.fail(ErrTypes)
			return
		}
		c.TTL, c.HasTTL = v.n/TicksPerMilli, true
		return
	}
	if v.kind == Unknown {
		c.Edit.RemoveField(fields[p.system])
		return
	}
	text, ok := v.format()
	if !ok || c.Edit.SetField(fields[p.system], wire.AppendString(nil, text)) != nil {
		e.fail(ErrTypes)
	}
}

// converted encodes the new value of a property: with the type of the one that the message has, if it can be expressed in
// that.
func (e *evaluation) converted(name string, v Value) wire.RawValue {
	had := e.message.user([]byte(name))
	if had == nil {
		return v.encode()
	}
	was := had.value
	if v.kind == Int {
		if b := encodeInt(was.Type, v.n); b != nil {
			return b
		}
	}
	if v.kind == Float && was.Type == wire.Float {
		return wire.AppendFloatBits(nil, math.Float32bits(float32(v.float())))
	}
	if was.Type == wire.String {
		if text, ok := v.format(); ok {
			return wire.AppendString(nil, text)
		}
	}
	return v.encode()
}

// encodeInt encodes a whole number with a type of numbers; nil: it does not fit, or the type is none.
func encodeInt(t wire.Type, n int64) wire.RawValue {
	switch {
	case t == wire.Float:
		return wire.AppendFloatBits(nil, math.Float32bits(float32(n)))
	case t == wire.Double:
		return wire.AppendDoubleBits(nil, math.Float64bits(float64(n)))
	case t == wire.Int && n == int64(int32(n)):
		return wire.AppendInt(nil, int32(n))
	case t == wire.Short && n == int64(int16(n)):
		return wire.AppendShort(nil, int16(n))
	case t == wire.Byte && n == int64(int8(n)):
		return wire.AppendByte(nil, int8(n))
	case t == wire.Ubyte && n == int64(uint8(n)):
		return wire.AppendUbyte(nil, uint8(n))
	case t == wire.Ushort && n == int64(uint16(n)):
		return wire.AppendUshort(nil, uint16(n))
	case t == wire.Uint && n == int64(uint32(n)):
		return wire.AppendUint(nil, uint32(n))
	case t == wire.Ulong && n >= 0:
		return wire.AppendUlong(nil, uint64(n))
	}
	return nil
}

package message

import (
	"testing"

	wire091 "github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// bare is a payload of a message that came by AMQP 1.0.
func bare(h fsm.BareHeader, annotations, sections []byte) fsm.Payload {
	p, err := fsm.AppendBareHead(nil, "e", "k", h, annotations, nil)
	if err != nil {
		panic(err)
	}
	return append(p, sections...)
}

// noHeader is what a message has that came without a header.
var noHeader = fsm.BareHeader{Priority: -1, TTL: -1}

// old is a payload of a message that came by 0-9-1.
func old(properties, body []byte) fsm.Payload {
	return append(fsm.AppendPayloadHead(nil, "e", "k", properties), body...)
}

// pairs makes a map of pairs of encoded keys and values.
func pairs(all ...[]byte) []byte {
	b := wire10.StartMap(nil)
	for _, x := range all {
		b = append(b, x...)
	}
	return wire10.EndMap(b, 0, len(all)/2)
}

func list(all ...[]byte) []byte {
	b := wire10.StartList(nil)
	for _, x := range all {
		b = append(b, x...)
	}
	return wire10.EndList(b, 0, len(all))
}

func symbol(s string) []byte { return wire10.AppendSymbol(nil, s) }
func text(s string) []byte   { return wire10.AppendString(nil, s) }

// application makes a section of application properties.
func application(m []byte) []byte { return append(wire10.StartApplicationProperties(nil), m...) }

// shown is a message as 0-9-1 has it.
type shown struct {
	wire091.Properties
	headers wire091.Table
	body    string
}

// mustShow converts a payload.
func mustShow(t testing.TB, p fsm.Payload) shown {
	t.Helper()
	var c From10
	c.Read(p)
	raw := c.AppendProperties(nil, 1<<17)
	list, err := wire091.ParseProperties(raw)
	if err != nil {
		t.Fatalf("%v: % x", err, raw)
	}
	s := shown{Properties: list, body: string(Body(p))}
	if s.headers, err = wire091.DecodeFields(list.Headers); err != nil {
		t.Fatal(err)
	}
	if n := c.BodySize(); n != len(s.body) {
		t.Errorf("a body of %d bytes, not %d", len(s.body), n)
	}
	return s
}

// render makes a delivery to a receiver of AMQP 1.0.
func render(p fsm.Payload) []byte {
	var c From091
	c.Read(p)
	h := c.Header()
	b := wire10.StartAnnotations(wire10.Append(nil, &h))
	at := len(b)
	b, n := c.AppendAnnotations(wire10.StartMap(b), func([]byte) bool { return false })
	return append(c.AppendBare(wire10.EndMap(b, at, n)), p.Body()...)
}

// mustRender renders a payload and parses it.
func mustRender(t testing.TB, p fsm.Payload) (m wire10.Message, properties wire10.Properties) {
	t.Helper()
	b := render(p)
	if err := m.Parse(b); err != nil {
		t.Fatalf("%v: % x", err, b)
	}
	if err := m.ReadProperties(&properties); err != nil {
		t.Fatalf("%v: % x", err, b)
	}
	return m, properties
}

// data is the contents of the data sections.
func data(m *wire10.Message) (b []byte) {
	for d := range m.Data {
		b = append(b, d...)
	}
	return b
}

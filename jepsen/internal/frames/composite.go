package frames

import (
	"fmt"
	"slices"
	"strings"
)

// Fields are those of a composite, by their names. Absent and null are the same.
type Fields map[string]any

// Int returns an integer field; -1: it is absent.
func (f Fields) Int(name string) int { return Int(f[name]) }

// Text returns a field that is a text; empty: it is absent.
func (f Fields) Text(name string) string { return Text(f[name]) }

// Map returns a field that is a map.
func (f Fields) Map(name string) Map { m, _ := f[name].(Map); return m }

// Of returns the fields of a field that is a composite.
func (f Fields) Of(name string) Fields { c, _ := f[name].(Composite); return c.Fields }

// Symbols returns a field that holds one symbol or an array of them.
func (f Fields) Symbols(name string) (all []string) {
	switch v := f[name].(type) {
	case Symbol:
		all = append(all, string(v))
	case Array:
		for _, s := range v.Values {
			all = append(all, Text(s))
		}
	}
	return all
}

// Composite is a described list whose fields have names: a performative, an outcome, a
// terminus, an error, or one of two sections of a message.
type Composite struct {
	Name   string
	Fields Fields
}

func (c Composite) String() string { return fmt.Sprintf("%s%v", c.Name, map[string]any(c.Fields)) }

// kind is a composite as the specification describes it: fields with their types, in order.
type kind struct {
	code   uint64
	name   string
	fields string
}

var kinds = []kind{
	{0x10, "open", "container-id:string hostname:string max-frame-size:uint channel-max:ushort idle-time-out:uint outgoing-locales:symbols incoming-locales:symbols offered-capabilities:symbols desired-capabilities:symbols properties:map"},
	{0x11, "begin", "remote-channel:ushort next-outgoing-id:uint incoming-window:uint outgoing-window:uint handle-max:uint offered-capabilities:symbols desired-capabilities:symbols properties:map"},
	{0x12, "attach", "name:string handle:uint role:bool snd-settle-mode:ubyte rcv-settle-mode:ubyte source:any target:any unsettled:map incomplete-unsettled:bool initial-delivery-count:uint max-message-size:ulong offered-capabilities:symbols desired-capabilities:symbols properties:map"},
	{0x13, "flow", "next-incoming-id:uint incoming-window:uint next-outgoing-id:uint outgoing-window:uint handle:uint delivery-count:uint link-credit:uint available:uint drain:bool echo:bool properties:map"},
	{0x14, "transfer", "handle:uint delivery-id:uint delivery-tag:binary message-format:uint settled:bool more:bool rcv-settle-mode:ubyte state:any resume:bool aborted:bool batchable:bool"},
	{0x15, "disposition", "role:bool first:uint last:uint settled:bool state:any batchable:bool"},
	{0x16, "detach", "handle:uint closed:bool error:any"},
	{0x17, "end", "error:any"},
	{0x18, "close", "error:any"},
	{0x1d, "error", "condition:symbol description:string info:map"},
	{0x23, "received", "section-number:uint section-offset:ulong"},
	{0x24, "accepted", ""},
	{0x25, "rejected", "error:any"},
	{0x26, "released", ""},
	{0x27, "modified", "delivery-failed:bool undeliverable-here:bool message-annotations:map"},
	{0x28, "source", "address:string durable:uint expiry-policy:symbol timeout:uint dynamic:bool dynamic-node-properties:map distribution-mode:symbol filter:map default-outcome:any outcomes:symbols capabilities:symbols"},
	{0x29, "target", "address:string durable:uint expiry-policy:symbol timeout:uint dynamic:bool dynamic-node-properties:map capabilities:symbols"},
	{0x2b, "delete-on-close", ""},
	{0x30, "coordinator", "capabilities:symbols"},
	{0x31, "declare", "global-id:any"},
	{0x32, "discharge", "txn-id:binary fail:bool"},
	{0x33, "declared", "txn-id:binary"},
	{0x34, "transactional-state", "txn-id:binary outcome:any"},
	{0x40, "sasl-mechanisms", "sasl-server-mechanisms:symbols"},
	{0x41, "sasl-init", "mechanism:symbol initial-response:binary hostname:string"},
	{0x43, "sasl-response", "response:binary"},
	{0x44, "sasl-outcome", "code:ubyte additional-data:binary"},
	{0x70, "header", "durable:bool priority:ubyte ttl:uint first-acquirer:bool delivery-count:uint"},
	{0x73, "properties", "message-id:any user-id:binary to:string subject:string reply-to:string correlation-id:any content-type:symbol content-encoding:symbol absolute-expiry-time:time creation-time:time group-id:string group-sequence:uint reply-to-group-id:string"},
}

// described is the composite as it is encoded: without the null fields at its end.
func (c Composite) described() Described {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == c.Name })
	if i < 0 {
		panic("no composite: " + c.Name)
	}
	list, known := List{}, 0
	for field := range strings.FieldsSeq(kinds[i].fields) {
		name, of, _ := strings.Cut(field, ":")
		v, ok := c.Fields[name]
		if ok {
			known++
		}
		list = append(list, typed(of, v))
	}
	if known != len(c.Fields) {
		panic(fmt.Sprintf("a field that %s has not: %v", c.Name, c.Fields))
	}
	for len(list) > 0 && list[len(list)-1] == nil {
		list = list[:len(list)-1]
	}
	return Described{kinds[i].code, list}
}

// typed gives the numbers and texts of Go the type that a field has. A value with a type of
// AMQP's own is left as it is.
func typed(of string, v any) any {
	switch v := v.(type) {
	case int:
		return integer(of, v)
	case string:
		switch of {
		case "symbol", "symbols":
			return Symbol(v)
		case "binary":
			return []byte(v)
		}
	case []string:
		all := make([]any, len(v))
		for i, s := range v {
			all[i] = s
		}
		return Array{0xb3, all}
	}
	return v
}

func integer(of string, n int) any {
	switch of {
	case "ubyte":
		return uint8(n)
	case "ushort":
		return uint16(n)
	case "ulong":
		return uint64(n)
	case "time":
		return Timestamp(n)
	}
	return uint32(n)
}

// composed turns a described list into the composite that it is, if it is one.
func composed(d Described) any {
	code, ok := d.Descriptor.(uint64)
	list, isList := d.Value.(List)
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.code == code })
	if !ok || !isList || i < 0 {
		return d
	}
	c := Composite{kinds[i].name, Fields{}}
	names := strings.Fields(kinds[i].fields)
	if len(list) > len(names) {
		return d
	}
	for n, v := range list {
		if v != nil {
			name, _, _ := strings.Cut(names[n], ":")
			c.Fields[name] = v
		}
	}
	return c
}

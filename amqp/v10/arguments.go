package v10

import (
	"strings"
	"unicode/utf8"

	"github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// appendArguments appends the arguments of a queue or binding as a map. What has no counterpart in 1.0 is left out.
func appendArguments(b []byte, t *fsm.Table) []byte {
	return appendTable(b, t, func(b []byte, name string) []byte { return wire.AppendString(b, strings.ToValidUTF8(name, "\uFFFD")) })
}

// appendNested is appendArguments for a table in one, whose keys are symbols, as far as they can be.
func appendNested(b []byte, t *fsm.Table) []byte {
	return appendTable(b, t, func(b []byte, name string) []byte {
		if strings.IndexFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 {
			return wire.AppendString(b, strings.ToValidUTF8(name, "\uFFFD"))
		}
		return wire.AppendSymbol(b, name)
	})
}

func appendTable(b []byte, t *fsm.Table, appendKey func([]byte, string) []byte) []byte {
	at, pairs := len(b), 0
	b = wire.StartMap(b)
	for _, f := range t.GetFields() {
		before := len(b)
		b = appendKey(b, f.GetName())
		var ok bool
		if b, ok = appendArgument(b, f.GetValue()); ok {
			pairs++
		} else {
			b = b[:before]
		}
	}
	return wire.EndMap(b, at, pairs)
}

// appendArgument appends a value of 0-9-1. ok false: there is none like it, and nothing is appended.
func appendArgument(b []byte, v *logpb.Value) (_ []byte, ok bool) {
	switch v.GetTag() {
	case 'F':
		return appendNested(b, v.GetTable()), true
	case 'A':
		at, count := len(b), 0
		b = wire.StartList(b)
		for _, e := range v.GetArray() {
			if b, ok = appendArgument(b, e); ok {
				count++
			}
		}
		return wire.EndList(b, at, count), true
	}
	return message.AppendSimple(b, byte(v.GetTag()), v.GetInt(), v.GetStr())
}

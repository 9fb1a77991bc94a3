package topics

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// pair is a key with an encoded value.
type pair struct {
	key   string
	value []byte
}

func mapOf(pairs ...pair) wire.MapBytes {
	m := wire.StartMap(nil)
	for _, p := range pairs {
		m = append(wire.AppendString(m, p.key), p.value...)
	}
	return wire.EndMap(m, 0, len(pairs))
}

func str(s string) []byte { return wire.AppendString(nil, s) }

func TestReadRule(t *testing.T) {
	properties := mapOf(
		pair{"i", wire.AppendInt(nil, 5)}, pair{"l", wire.AppendLong(nil, 1<<40)}, pair{"s", str("x")}, pair{"b", wire.AppendBool(nil, true)}, pair{"d", wire.AppendDoubleBits(nil, 0x4004000000000000)},
		pair{"t", wire.AppendTimestamp(nil, 1500)}, pair{"u", wire.AppendUUID(nil, [16]byte{1})},
	)
	for _, c := range []struct {
		description wire.MapBytes
		want        *entity.Rule
		listed      string
	}{
		{mapOf(pair{keySQL, mapOf(pair{keyExpression, str("1 = 1")})}), &entity.Rule{Name: "r", True: true}, "13700000004[1370000007[] 13700000005[] r 7]"},
		{mapOf(pair{keySQL, mapOf(pair{keyExpression, str("n = 5")})}, pair{keyAction, mapOf(pair{keyExpression, str("SET n = 6")})}),
			&entity.Rule{Name: "r", SQL: &entity.Expression{Text: "n = 5"}, Action: &entity.Expression{Text: "SET n = 6"}}, "13700000004[1370000006[n = 5 20] 13700000006[SET n = 6 20] r 7]"},
		{mapOf(pair{keyCorrelation, mapOf(pair{"correlation-id", str("c")}, pair{"message-id", str("m")}, pair{"to", str("t")}, pair{"reply-to", str("r")}, pair{"label", str("l")}, pair{"session-id", str("s")},
			pair{"reply-to-session-id", str("rs")}, pair{"content-type", str("ct")}, pair{keyProperties, properties})}, pair{keyAction, mapOf(pair{keyExpression, str("")})}),
			&entity.Rule{Name: "r", Correlation: &entity.CorrelationFilter{CorrelationID: "c", MessageID: "m", To: "t", ReplyTo: "r", Label: "l", SessionID: "s", ReplyToSessionID: "rs", ContentType: "ct", Properties: []entity.Property{
				{Name: "i", Value: entity.Value{Kind: entity.Int, Text: "5"}}, {Name: "l", Value: entity.Value{Kind: entity.Long, Text: "1099511627776"}}, {Name: "s", Value: entity.Value{Kind: entity.String, Text: "x"}},
				{Name: "b", Value: entity.Value{Kind: entity.Boolean, Text: "true"}}, {Name: "d", Value: entity.Value{Kind: entity.Double, Text: "2.5"}}, {Name: "t", Value: entity.Value{Kind: entity.DateTime, Text: "1970-01-01T00:00:01.5Z"}},
				{Name: "u", Value: entity.Value{Kind: entity.GUID, Text: "01000000000000000000000000000000"}},
			}}}, "13700000004[1370000009[c m t r l s rs ct [i 5 l 1099511627776 s x b true d 2.5 t 1500 u 01000000000000000000000000000000]] 13700000005[] r 7]"},
	} {
		got, err := ReadRule("r", c.description)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v, %v\nwant %+v", got, err, c.want)
			continue
		}
		// What a listing says of it.
		v, rest, err := wire.ReadValue(AppendRule(nil, got, 7))
		if err != nil || len(rest) > 0 {
			t.Error(err)
		}
		if text := valueText(v); text != c.listed {
			t.Errorf("%s", text)
		}
	}
	if v, _, err := wire.ReadValue(AppendRule(nil, &entity.Rule{Name: "r", False: true}, 7)); err != nil || valueText(v) != "13700000004[1370000008[] 13700000005[] r 7]" {
		t.Errorf("%s, %v", valueText(v), err)
	}
}

func TestNoRule(t *testing.T) {
	for _, description := range []wire.MapBytes{
		nil, mapOf(), mapOf(pair{keySQL, str("1=1")}), mapOf(pair{keySQL, mapOf()}), mapOf(pair{keySQL, mapOf(pair{keyExpression, str("n =")})}),
		mapOf(pair{keySQL, mapOf(pair{keyExpression, str("1=1")})}, pair{keyAction, mapOf(pair{keyExpression, str("SET")})}),
		mapOf(pair{keyCorrelation, mapOf(pair{keyProperties, mapOf(pair{"b", wire.AppendBinary(nil, "x")})})}),
	} {
		var invalid *entity.Invalid
		if r, err := ReadRule("r", description); !errors.As(err, &invalid) {
			t.Errorf("%x: %+v, %v", description, r, err)
		}
	}
	if _, err := ReadRule("a/b", mapOf(pair{keySQL, mapOf(pair{keyExpression, str("1=1")})})); err == nil {
		t.Error("a rule has this name")
	}
}

// valueText writes a value with all that is in it.
func valueText(v wire.Value) string {
	if n, ok := v.Integer(); ok {
		return fmt.Sprint(n)
	}
	text := ""
	switch v.Type {
	case wire.Null:
		return "-"
	case wire.Boolean:
		return fmt.Sprint(v.Bool())
	case wire.Double:
		return fmt.Sprint(v.Float())
	case wire.Timestamp:
		return fmt.Sprint(v.Signed())
	case wire.UUID:
		return fmt.Sprintf("%x", v.Bytes())
	case wire.Described:
		w := v.Walk()
		w.Next()
		text = fmt.Sprintf("%x", w.Value.Unsigned())
		w.Next()
		return text + valueText(w.Value)
	case wire.List, wire.Map:
		for w := v.Walk(); w.Next(); {
			if text != "" {
				text += " "
			}
			text += valueText(w.Value)
		}
		return "[" + text + "]"
	}
	return string(v.Bytes())
}

package mgmt

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// ObjectOf returns a table as a JSON object.
func ObjectOf(t *fsm.Table) map[string]any {
	object := map[string]any{}
	for _, f := range t.GetFields() {
		object[f.GetName()] = jsonOf(f.GetValue())
	}
	return object
}

// jsonOf converts an AMQP value to the value shown in JSON.
func jsonOf(v *logpb.Value) any {
	switch v.GetTag() {
	case 't':
		return v.GetInt() != 0
	case 'S', 'x':
		return textOf(v.GetStr())
	case 'D':
		return decimalOf(v.GetStr())
	case 'T':
		return uint64(v.GetInt())
	case 'f':
		return finite(float64(math.Float32frombits(uint32(v.GetInt()))))
	case 'd':
		return finite(math.Float64frombits(uint64(v.GetInt())))
	case 'F':
		return ObjectOf(v.GetTable())
	case 'A':
		list := []any{}
		for _, e := range v.GetArray() {
			list = append(list, jsonOf(e))
		}
		return list
	case 'V':
		return nil
	}
	return v.GetInt()
}

// finite returns null for numbers that JSON cannot represent.
func finite(f float64) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	return f
}

// textOf says so of octets that JSON cannot show, in the peer's words.
func textOf(raw []byte) string {
	if utf8.Valid(raw) {
		return string(raw)
	}
	return "Not UTF-8, base64 is: " + base64.StdEncoding.EncodeToString(raw)
}

// decimalOf returns a decimal, a scale and a number, as it is.
func decimalOf(raw []byte) any {
	if len(raw) != 5 {
		return textOf(raw)
	}
	n := strconv.Itoa(int(int32(binary.BigEndian.Uint32(raw[1:]))))
	if raw[0] == 0 {
		return json.Number(n)
	}
	return json.Number(n + "e-" + strconv.Itoa(int(raw[0])))
}

// tableOf returns a JSON object as a table, ordered by key.
func tableOf(object map[string]any) *fsm.Table {
	t := &fsm.Table{}
	for name, value := range object {
		t.Fields = append(t.Fields, &logpb.Field{Name: name, Value: valueOf(value)})
	}
	slices.SortFunc(t.Fields, func(a, b *logpb.Field) int { return strings.Compare(a.Name, b.Name) })
	return t
}

// valueOf returns a JSON value as an AMQP value: whole numbers are long,
// others double.
func valueOf(value any) *logpb.Value {
	switch v := value.(type) {
	case bool:
		if v {
			return &logpb.Value{Tag: 't', Int: 1}
		}
		return &logpb.Value{Tag: 't'}
	case string:
		return &logpb.Value{Tag: 'S', Str: []byte(v)}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return &logpb.Value{Tag: 'l', Int: n}
		}
		f, _ := v.Float64() // beyond its range: infinite
		return &logpb.Value{Tag: 'd', Int: int64(math.Float64bits(f))}
	case map[string]any:
		return &logpb.Value{Tag: 'F', Table: tableOf(v)}
	case []any:
		list := &logpb.Value{Tag: 'A'}
		for _, e := range v {
			list.Array = append(list.Array, valueOf(e))
		}
		return list
	}
	return &logpb.Value{Tag: 'V'}
}

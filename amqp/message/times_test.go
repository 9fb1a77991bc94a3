package message

import (
	"math"
	"testing"

	"github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// What says the same instant in either protocol is read as the same, and what says none is left alone.
func TestTime(t *testing.T) {
	const at = 1_764_288_000_250
	float := func(f float64) wire.Value { return wire.Value{Tag: wire.TagFloat64, Int: int64(math.Float64bits(f))} }
	for _, c := range []struct {
		what   string
		old    wire.Value
		new    []byte
		is     fsm.Time
		isTime bool
	}{
		{"RFC 3339 with a fraction", wire.String("2025-11-28T00:00:00.250000+00:00"), text("2025-11-28T00:00:00.25Z"), at, true},
		{"another zone", wire.String("2025-11-28T05:30:00.25+05:30"), text("2025-11-27T19:00:00.25-05:00"), at, true},
		{"no zone", wire.String("2025-11-28T00:00:00.25"), text("2025-11-28T00:00:00"), 0, false},
		{"milliseconds", wire.Int64(at), wire10.AppendLong(nil, at), at, true},
		{"milliseconds as text", wire.String("1764288000250"), text("1764288000250"), at, true},
		{"seconds", wire.Int64(at / 1000), wire10.AppendLong(nil, at/1000), at - 250, true},
		{"seconds with a fraction", float(at / 1000.), text("1764288000.25"), at, true},
		{"a timestamp", wire.Value{Tag: wire.TagTimestamp, Int: at / 1000}, wire10.AppendTimestamp(nil, at-250), at - 250, true},
		{"before 1970", wire.Int64(-7), text("1969-01-01T00:00:00Z"), 1, true},
		{"the first instant", wire.Int64(0), text("0"), 1, true},
		{"nothing", wire.Value{Tag: wire.TagVoid}, wire10.AppendNull(nil), 0, false},
		{"no number", float(math.NaN()), text("NaN"), 0, false},
		{"beyond all", float(math.Inf(1)), text("1e300"), 0, false},
		{"words", wire.String("tomorrow"), text(""), 0, false},
		{"a truth value", wire.Value{Tag: wire.TagBool, Int: 1}, wire10.AppendBool(nil, true), 0, false},
	} {
		for protocol, p := range map[string]fsm.Payload{
			"0-9-1": old(wire.AppendProperties(nil, &wire.Properties{
				Present: wire.FlagHeaders, Headers: wire.AppendFields(nil, wire.Table{{Name: "x", Value: wire.Int64(1)}, {Name: "eta", Value: c.old}}),
			}), nil),
			"1.0":            bare(noHeader, nil, append(application(pairs(text("x"), wire10.AppendLong(nil, 1), text("eta"), c.new)), wire10.AppendData(nil, nil)...)),
			"1.0, annotated": bare(noHeader, pairs(symbol("eta"), c.new), nil),
		} {
			is, isTime := Properties{}.Time(p, "eta")
			if is != c.is || isTime != c.isTime {
				t.Errorf("%s, %s: %d, %v, want %d", c.what, protocol, is, isTime, c.is)
			}
			if _, isTime = (Properties{}).Time(p, "other"); isTime {
				t.Errorf("%s, %s: a header that is not there", c.what, protocol)
			}
		}
	}
	if _, isTime := (Properties{}).Time(old([]byte{1}, nil), "eta"); isTime {
		t.Error("properties that do not decode")
	}
}

// A header that holds a text, or a whole number, says so in either protocol; what holds neither says nothing.
func TestPropertyOfHeader(t *testing.T) {
	for _, c := range []struct {
		what string
		old  wire.Value
		new  []byte
		is   string
	}{
		{"a text", wire.String("tasks.add"), text("tasks.add"), "tasks.add"},
		{"a number", wire.Int64(-7), wire10.AppendLong(nil, -7), "-7"},
		{"nothing", wire.Value{Tag: wire.TagVoid}, wire10.AppendNull(nil), ""},
		{"a truth value", wire.Value{Tag: wire.TagBool, Int: 1}, wire10.AppendBool(nil, true), ""},
	} {
		for protocol, p := range map[string]fsm.Payload{
			"0-9-1": old(wire.AppendProperties(nil, &wire.Properties{
				Present: wire.FlagHeaders, Headers: wire.AppendFields(nil, wire.Table{{Name: "x", Value: wire.Int64(1)}, {Name: "task", Value: c.old}}),
			}), nil),
			"1.0":            bare(noHeader, nil, append(application(pairs(text("x"), wire10.AppendLong(nil, 1), text("task"), c.new)), wire10.AppendData(nil, nil)...)),
			"1.0, annotated": bare(noHeader, pairs(symbol("task"), c.new), nil),
		} {
			if is := string(Properties{}.Property(p, "header:task")); is != c.is {
				t.Errorf("%s, %s: %q, want %q", c.what, protocol, is, c.is)
			}
			if is := (Properties{}).Property(p, "header:other"); is != nil {
				t.Errorf("%s, %s: a header that is not there is %q", c.what, protocol, is)
			}
		}
	}
	if is := (Properties{}).Property(old([]byte{1}, nil), "header:task"); is != nil {
		t.Errorf("properties that do not decode have %q", is)
	}
}

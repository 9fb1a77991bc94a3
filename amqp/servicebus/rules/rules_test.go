package rules

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp/servicebus/edit"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// builder makes an encoded message.
type builder struct {
	properties wire.Properties
	names      []string
	values     []wire.RawValue
	notes      wire.MapBytes
	facts      Facts
}

func (b *builder) with(name string, value wire.RawValue) *builder {
	b.names, b.values = append(b.names, name), append(b.values, value)
	return b
}

func (b *builder) encoded() []byte {
	out := wire.StartApplicationProperties(wire.Append(nil, &b.properties))
	at := len(out)
	out = wire.StartMap(out)
	for i, name := range b.names {
		out = append(wire.AppendString(out, name), b.values[i]...)
	}
	return wire.AppendData(wire.EndMap(out, at, len(b.names)), []byte("body"))
}

func (b *builder) message() *Message {
	m := &Message{}
	m.Read(b.encoded(), b.notes, b.facts)
	return m
}

func text(s string) wire.RawValue { return wire.AppendString(nil, s) }

var someID = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

// red is a message with a bit of everything.
func red() *builder {
	b := &builder{
		properties: wire.Properties{
			MessageID: text("id-1"), CorrelationID: wire.AppendUlong(nil, 7), To: []byte("Store5"), Subject: []byte("omnibus"), ReplyTo: []byte("answers"),
			ContentType: []byte("text/plain"), GroupID: []byte("s1"), ReplyToGroupID: []byte("s2"),
		},
		facts: Facts{Number: 42, EnqueuedAt: 1000, TTL: 60_000, Size: 99},
	}
	for name, v := range map[string]wire.RawValue{
		"colour": text("red"), "StoreId": text("Store3"), "n": wire.AppendInt(nil, 5), "f": wire.AppendDoubleBits(nil, math.Float64bits(2.5)), "yes": wire.AppendBool(nil, true),
		"no": wire.AppendBool(nil, false), "null": wire.AppendNull(nil), "Property With Space": text("x"), "HR-EmployeeID": wire.AppendLong(nil, 12), "Contoso & Northwind": text("both"),
		"quote": text("it's"), "percent": text("50%"), "under": text("a_b"), "größe": text("ä"), "max": wire.AppendLong(nil, math.MaxInt64), "id": wire.AppendUUID(nil, someID),
		"when": wire.AppendTimestamp(nil, 5000), "span": DurationOf(2000 * TicksPerMilli).encode(), "small": wire.AppendUbyte(nil, 3), "bytes": wire.AppendBinary(nil, "ab"),
		"uri": wire.AppendString(wire.AppendSymbol([]byte{0}, descriptorURI), "http://x"), "offset": wire.AppendLong(wire.AppendSymbol([]byte{0}, descriptorTime), epochTicks+5000*TicksPerMilli),
		"decimal": append([]byte{0x94}, make([]byte, 16)...), "nan": wire.AppendDoubleBits(nil, math.Float64bits(math.NaN())), "a]b": wire.AppendInt(nil, 1), "name": text("colour"),
	} {
		b.with(name, v)
	}
	b.notes = wire.StartMap(nil)
	b.notes = wire.AppendString(wire.AppendSymbol(b.notes, annotationPartition), "p1")
	b.notes = wire.AppendTimestamp(wire.AppendSymbol(b.notes, annotationScheduled), 777)
	b.notes = wire.EndMap(b.notes, 0, 2)
	return b
}

// result is what a filter says: no counts for false and for unknown.
type result int

const (
	no result = iota
	yes
	failed
)

func TestFilters(t *testing.T) {
	m := red().message()
	for text, want := range map[string]result{
		// From the examples of the public documentation.
		"sys.Label LIKE '%bus%'": yes, "sys.Label LIKE '%bus%' OR user.tag IN ('queue', 'topic', 'subscription')": yes,
		"StoreId IN('Store1', 'Store2', 'Store3')": yes, "sys.To IN ('Store5','Store6','Store7') OR StoreId = 'Store8'": yes,
		"sys.To NOT IN ('Store1','Store5') OR StoreId NOT IN ('Store3')": no, "colour='red' AND n=5": yes, "user.colour='red'": yes, "1=1": yes,
		"[Property With Space] = 'x'": yes, "[HR-EmployeeID] = 12": yes, `"Contoso & Northwind" = 'both'`: yes, "n - 1 = 4": yes, "EXISTS(colour)": yes, "exists(sys.Label)": yes,

		// Names and texts.
		"COLOUR = 'red'": yes, "colour = 'RED'": no, "User.Colour = 'red'": yes, "SYS.LABEL = 'omnibus'": yes, "[sys].x = 1 OR 1=1": failed, "quote = 'it''s'": yes, "größe = 'ä'": yes,
		"[a]]b] = 1": yes, "user.[colour] = 'red'": yes, "sys.[Label] = 'omnibus'": yes, "colour\n=\t'red'": yes, "colour<'s'": yes, "colour>='reda'": no,

		// Numbers and precedence.
		"n = 5.0": yes, "n < 5": no, "n <= 5": yes, "n > 4.5 and n >= 5": yes, "f*2 = n": yes, "n + 2 * 3 = 11": yes, "(n + 2) * 3 = 21": yes, "n - 1 - 1 = 3": yes, "-n = -5": yes, "- -n = 5": yes,
		"+n = 5": yes, "n / 2 = 2": yes, "n / 2.0 = 2.5": yes, "n % 3 = 2": yes, "n != 5": no, "n <> 5": no, "max + 1 < 0": yes, "max + 1.0 > 1e18": yes, "f = 25e-1": yes, "f = .25E+1": yes, "f = 2.5E0": yes,
		"small = 3": yes, "1 / 0.0 > max": yes, "nan = nan": no, "nan <> nan": yes, "nan > 1": no, "nan <= 1": no, "nan >= 1": no, "n % 2.5 = 0": yes,
		"TRUE OR FALSE AND FALSE": yes, "(TRUE OR FALSE) AND FALSE": no, "NOT FALSE AND TRUE": yes, "NOT NOT TRUE": yes, "NOT (n = 5)": no, "NOT n = 6": yes,

		// Three values.
		"missing = 1": no, "NOT missing = 1": no, "missing = 1 OR yes": yes, "missing = 1 AND no": no, "NOT (missing = 1 AND no)": yes, "NOT (missing = 1 AND yes)": no, "missing <> 1": no,
		"missing IS NULL": yes, "missing IS NOT NULL": no, "null IS NULL": yes, "[null] IS NULL": yes, "EXISTS([null])": yes, "EXISTS(missing)": no, "NOT EXISTS(missing)": yes, "colour IS NOT NULL": yes,
		"missing + 1 IS NULL": yes, "-missing IS NULL": yes, "colour = NULL": no, "NOT colour = NULL": no, "missing LIKE 'x'": no, "missing NOT LIKE 'x'": no, "colour LIKE missing": no,
		"missing NOT IN (1)": no, "NOT missing IN (1)": no, "colour NOT IN ('blue', missing)": no, "colour IN ('red', missing)": yes, "missing / 0 IS NULL": yes, "EXISTS(sys.ViaPartitionKey)": no,
		"yes OR missing = 1": yes, "no OR missing = 1": no, "NOT (no OR missing = 1)": no, "missing": no, "NOT missing": no,

		// LIKE.
		"colour LIKE 'r%'": yes, "colour LIKE '_e_'": yes, "colour LIKE 're'": no, "colour NOT LIKE 'b%'": yes, "colour LIKE '%'": yes, "colour LIKE ''": no, "colour LIKE '%e%d%'": yes, "colour LIKE '%ed%e'": no,
		"colour LIKE 'R%'": no, "percent LIKE '50!%' ESCAPE '!'": yes, "percent LIKE '5!%' ESCAPE '!'": no, `under LIKE 'a\_b' ESCAPE '\'`: yes, `colour LIKE 'r\_d' ESCAPE '\'`: no, "größe LIKE '_'": yes,
		"colour LIKE 'r' + '%'": yes, "percent LIKE '50%!' ESCAPE '!'": no, "colour LIKE 'r%' ESCAPE missing": no, "colour LIKE '%red'": yes, "colour LIKE 'red%%'": yes,

		// Types.
		"yes": yes, "no": no, "yes = TRUE": yes, "yes <> no": yes, "id = id": yes, "id <> newid()": yes, "newid() = newid()": no, "when = offset": yes, "when > sys.EnqueuedTimeUtc": yes, "when - sys.EnqueuedTimeUtc > span": yes,
		"sys.EnqueuedTimeUtc + span < when": yes, "span + span = when - sys.EnqueuedTimeUtc": yes, "-span < span": yes, "bytes = bytes": yes, "uri = 'http://x'": yes, "'a' + 1 = 'a1'": yes, "1 + 'a' + TRUE = '1aTrue'": yes,
		"'x' + id LIKE 'x01020304-0506-0708-%'": yes, "EXISTS(decimal)": yes,
		"n = '5'": failed, "colour = 5": failed, "colour + 1 = 2": failed, "yes > no": failed, "yes = 1": failed, "id < id": failed, "5": failed, "colour": failed, "NOT n": failed, "n AND yes": failed, "n LIKE '5'": failed,
		"colour LIKE 5": failed, "colour LIKE 'x' ESCAPE 'ab'": failed, "colour LIKE 'x' ESCAPE 5": failed, "colour LIKE 'x' ESCAPE ''": failed, "-colour = 1": failed, "decimal = decimal": failed, "n / 0 = 1": failed,
		"n % 0 = 1": failed, "(-max - 1) / -1 = 1": failed, "colour IN (1, 'red')": failed, "colour IN ('red', 1)": yes, "when + 1 = when": failed, "when * span = span": failed, "property(5) = 1": failed,
		"no AND n / 0 = 1": no, "yes OR n / 0 = 1": yes, "n / 0 = 1 OR yes": failed, "when = 5000": failed, "bytes < bytes": failed,

		// Functions.
		"property('colour') = 'red'": yes, "p(name) = 'red'": yes, "P('col' + 'our') = 'red'": yes, "p('missing') IS NULL": yes, "p(missing) IS NULL": yes, "p = 1 OR 1=1": yes, "[p] IS NULL": yes,

		// Properties of the service.
		"sys.ContentType = 'text/plain'": yes, "sys.CorrelationId = '7'": yes, "sys.DeliveryCount = 0": yes, "sys.EnqueuedSequenceNumber = 42": yes, "sys.SequenceNumber = 42": yes, "sys.MessageId = 'id-1'": yes,
		"sys.ExpiresAtUtc - sys.EnqueuedTimeUtc = sys.TimeToLive": yes, "sys.ForcePersistence": yes, "sys.PartitionKey = 'p1'": yes, "sys.ReplyTo = 'answers'": yes, "sys.ReplyToSessionId = 's2'": yes,
		"sys.ScheduledEnqueueTimeUtc < sys.EnqueuedTimeUtc": yes, "sys.SessionId = 's1'": yes, "sys.Size > 98 AND sys.Size < 100": yes, "sys.To = 'Store5'": yes, "sys.ViaPartitionKey IS NULL": yes,
	} {
		got := check(t, text, m)
		if got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// check parses and evaluates a filter. One that cannot be parsed counts as failed.
func check(t *testing.T, text string, m *Message) result {
	t.Helper()
	f, err := ParseFilter(text, nil)
	if err != nil {
		if !errors.Is(err, ErrSyntax) {
			t.Errorf("%s: %v", text, err)
		}
		return failed
	}
	switch ok, err := f.Match(m); {
	case err != nil && ok:
		t.Errorf("%s matches with %v", text, err)
		fallthrough
	case err != nil:
		return failed
	case ok:
		return yes
	}
	return no
}

func TestNoFilter(t *testing.T) {
	deep := strings.Repeat("(", maxDepth) + "1=1" + strings.Repeat(")", maxDepth)
	for _, text := range []string{
		"", " ", "=", "n =", "= 5", "n = 5 5", "n == 5", "colour = 'red", `"colour = 'red'`, "[colour = 1", "n = 5 AND", "AND", "(n = 5", "n = 5)", "()", "n IN ()", "n IN 5", "n IN (1,)", "n IN (1", "colour LIKE",
		"colour LIKE 'a' ESCAPE", "n IS 5", "n IS NOT", "n NOT 5", "NOT", "n NOT", "n = 5x", "n = 0x5", "n = 1e", "n = 1.2.3", "n = 1e999", "a ; b", "a = #", "\xff = 1", "EXISTS colour", "EXISTS(1)", "EXISTS()", "EXISTS(colour",
		"sys.Nothing = 1", "sys.Body = 1", "other.colour = 1", "sys. = 1", "sys.Label.x = 1", "foo(1) = 1", "newid(1) = 1", "property() = 1", "p(1", "@x = 1", "n = 99999999999999999999", "[] = 1", "SET n = 1", "n = 1;",
		"n BETWEEN 1 AND 2", strings.Repeat("x", MaxLength+1), deep,
	} {
		if f, err := ParseFilter(text, nil); !errors.Is(err, ErrSyntax) || f != nil {
			t.Errorf("%q: %v, %v", text, f, err)
		}
	}
	if _, err := ParseFilter(deep[1:len(deep)-1], nil); err != nil {
		t.Errorf("not too deep: %v", err)
	}
	if _, err := ParseFilter("colour = '"+strings.Repeat("ä", MaxLength-11)+"'", nil); err != nil {
		t.Errorf("not too long: %v", err)
	}
}

func TestParameters(t *testing.T) {
	m := red().message()
	parameters := []Parameter{{"@text", TextOf("red")}, {"n", IntOf(5)}, {"@when", TimeOf(5000)}, {"@span", DurationOf(2000 * TicksPerMilli)}, {"@f", FloatOf(2.5)}, {"@yes", BoolOf(true)}, {"@id", UUIDOf(someID)}}
	for _, text := range []string{"colour = @text", "@n = n", "@N = n", "when >= @when", "span = @span", "@f = f", "@yes", "colour LIKE @text", "n IN (1, @n)", "id = @id"} {
		f, err := ParseFilter(text, parameters)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if ok, err := f.Match(m); !ok || err != nil {
			t.Errorf("%s: %v, %v", text, ok, err)
		}
	}
}

// However a pattern and a text are made, a message costs no more than its steps, and what is beyond is an error.
func TestCost(t *testing.T) {
	m := (&builder{}).with("long", text(strings.Repeat("a", 1<<20))).message()
	f, err := ParseFilter("long LIKE '"+strings.Repeat("%a", 400)+"b'", nil)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := f.Match(m); ok || !errors.Is(err, ErrSteps) {
		t.Errorf("%v, %v", ok, err)
	}
	many := &builder{}
	for i := range 2000 {
		many.with(fmt.Sprint("p", i), wire.AppendNull(nil))
	}
	f, err = ParseFilter(strings.Repeat("x IS NOT NULL OR ", 50)+"x=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := f.Match(many.message()); ok || !errors.Is(err, ErrSteps) {
		t.Errorf("%v, %v", ok, err)
	}
	f, err = ParseFilter("[x]+"+strings.Repeat("[x]+", 200)+"'' = ''", nil)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := f.Match((&builder{}).with("x", text(strings.Repeat("a", 1000))).message()); ok || !errors.Is(err, ErrSteps) {
		t.Errorf("a text that grows: %v, %v", ok, err)
	}
}

// Filters that make no text cost no memory.
func TestAllocations(t *testing.T) {
	m := red().message()
	f, err := ParseFilter("colour IN ('blue', 'red') AND n + 1 > 2 AND sys.Label LIKE '%b%' AND NOT EXISTS(missing) AND span < @p", []Parameter{{"@p", DurationOf(math.MaxInt64)}})
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if ok, _ := f.Match(m); !ok {
			t.Fatal("no match")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// A message that cannot be read has no properties, and facts all the same.
func TestUnreadable(t *testing.T) {
	m := &Message{}
	m.Read([]byte("no message"), nil, Facts{Number: 3, TTL: -1})
	for text, want := range map[string]result{"colour IS NULL": yes, "sys.SequenceNumber = 3": yes, "sys.TimeToLive IS NULL AND sys.ExpiresAtUtc IS NULL": yes, "sys.Label = ''": no} {
		if got := check(t, text, m); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// changed is the message after an action.
func changed(t *testing.T, text string, b *builder) (*Message, Change) {
	t.Helper()
	a, err := ParseAction(text, nil)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	before := b.message()
	c, err := a.Run(before)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	out, err := c.Edit.Apply(nil, &before.sections)
	if err != nil {
		t.Fatal(err)
	}
	m := &Message{}
	m.Read(append(out, edit.Rest(&before.sections)...), b.notes, b.facts)
	return m, c
}

func TestActions(t *testing.T) {
	for text, holds := range map[string]string{
		"SET n = n / 2;": "n = 2", "SET colour = 'blue'": "colour = 'blue' AND NOT EXISTS(missing)", "SET COLOUR = 'blue'": "colour = 'blue'", "REMOVE colour": "NOT EXISTS(colour)", "remove Colour;": "NOT EXISTS(colour)",
		"SET x = 1; SET y = x + 1; SET X = y * 2": "x = 4 AND y = 2", "SET x = 1 SET y = 2": "x = 1 AND y = 2", "SET x = 1; REMOVE X": "NOT EXISTS(x)", "REMOVE n; SET N = 1": "n = 1", "REMOVE n; SET x = n": "EXISTS(x) AND x IS NULL",
		"SET x = missing": "EXISTS(x) AND x IS NULL", "SET x = NULL; SET y = p('colour') + '!'": "y = 'red!'", "SET x = newid()": "x <> newid()", "SET [a b] = TRUE": "[a b]", "SET x = sys.EnqueuedTimeUtc": "x = sys.EnqueuedTimeUtc",
		"SET x = sys.TimeToLive": "x = sys.TimeToLive", "SET f = 3": "f = 3.0", "SET x = 2.5": "x = f", "SET colour = 5": "colour = '5'", "SET n = 'five'": "n = 'five'", "SET x = [bytes]": "x = bytes",
		"SET sys.Label = 'new'": "sys.Label = 'new'", "SET sys.To = colour; SET sys.ReplyTo = sys.To": "sys.To = 'red' AND sys.ReplyTo = 'red'", "SET sys.MessageId = 5": "sys.MessageId = '5'", "SET sys.CorrelationId = newid()": "sys.CorrelationId LIKE '%-%-4%'",
		"SET sys.ContentType = 'a'; SET sys.SessionId = 'b'; SET sys.ReplyToSessionId = 'c'": "sys.ContentType = 'a' AND sys.SessionId = 'b' AND sys.ReplyToSessionId = 'c'",
		"REMOVE sys.Label": "sys.Label IS NULL", "SET sys.Label = missing": "sys.Label IS NULL", "REMOVE sys.CorrelationId; SET x = sys.CorrelationId": "x IS NULL", "SET sys.ScheduledEnqueueTimeUtc = when": "sys.ScheduledEnqueueTimeUtc < when",
		"REMOVE sys.ScheduledEnqueueTimeUtc": "EXISTS(sys.ScheduledEnqueueTimeUtc)", "SET größe = 'Ä'; SET GRÖSSE = 1": "größe = 'Ä' AND GRÖSSE = 1",
	} {
		m, _ := changed(t, text, red())
		if got := check(t, holds, m); got != yes {
			t.Errorf("after %s %s: %v", text, holds, got)
		}
	}
	if _, c := changed(t, "SET sys.TimeToLive = span; SET x = sys.TimeToLive", red()); !c.HasTTL || c.TTL != 2000 {
		t.Errorf("%+v", c)
	} else if v, _ := c.Edit.Property("x"); raw(v).n != 2000*TicksPerMilli {
		t.Errorf("%x", v)
	}
	if _, c := changed(t, "SET sys.TimeToLive = span; REMOVE sys.TimeToLive", red()); c.HasTTL || !c.Edit.Empty() {
		t.Errorf("%+v", c)
	}
}

// A property keeps the type that it has, if the new value can be expressed in it.
func TestTypesAreKept(t *testing.T) {
	types := map[wire.Type]wire.RawValue{
		wire.Byte: wire.AppendByte(nil, 1), wire.Ubyte: wire.AppendUbyte(nil, 1), wire.Short: wire.AppendShort(nil, 1), wire.Ushort: wire.AppendUshort(nil, 1), wire.Int: wire.AppendInt(nil, 1), wire.Uint: wire.AppendUint(nil, 1),
		wire.Long: wire.AppendLong(nil, 1), wire.Ulong: wire.AppendUlong(nil, 1), wire.Float: wire.AppendFloatBits(nil, 0), wire.Double: wire.AppendDoubleBits(nil, 0), wire.String: text("x"),
	}
	for kind, v := range types {
		m, _ := changed(t, "SET v = 2", (&builder{}).with("v", v))
		if now := m.user([]byte("v")).value.Type; now != kind {
			t.Errorf("%v has become %v", kind, now)
		}
	}
	for kind, v := range types {
		m, _ := changed(t, "SET v = 99999999999 - 199999999999", (&builder{}).with("v", v))
		now := m.user([]byte("v")).value.Type
		want := kind
		switch kind {
		case wire.Byte, wire.Ubyte, wire.Short, wire.Ushort, wire.Int, wire.Uint, wire.Ulong:
			want = wire.Long
		}
		if now != want {
			t.Errorf("%v has become %v", kind, now)
		}
	}
}

func TestNoAction(t *testing.T) {
	for _, text := range []string{
		"", " ; ", "n = 1", "SET", "SET n", "SET n =", "SET n = 1,", "REMOVE", "REMOVE 5", "SET 5 = 1", "SET n = 1 = 2", "SET n = 1;; SET x = 2", "SET sys.SequenceNumber = 1", "REMOVE sys.EnqueuedTimeUtc", "SET sys.Nothing = 1",
		"SET sys.PartitionKey = 'x'", "SET a.b = 1", "SET p(n) = 1", strings.Repeat("REMOVE x;", MaxStatements+1), "SET n = @x",
	} {
		if a, err := ParseAction(text, nil); !errors.Is(err, ErrSyntax) || a != nil {
			t.Errorf("%q: %v, %v", text, a, err)
		}
	}
	if _, err := ParseAction(strings.Repeat("REMOVE x;", MaxStatements), nil); err != nil {
		t.Error(err)
	}
	for _, text := range []string{"SET x = 1 / 0", "SET x = 1; SET y = colour * 2", "SET x = decimal", "SET sys.Label = bytes", "SET sys.TimeToLive = 5", "SET sys.TimeToLive = -span"} {
		a, err := ParseAction(text, nil)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if c, err := a.Run(red().message()); err == nil || !c.Edit.Empty() {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
}

func TestCorrelation(t *testing.T) {
	m := red().message()
	one := func(name string, v Value) Fields { return Fields{Properties: []Parameter{{name, v}}} }
	for _, c := range []struct {
		fields Fields
		want   bool
	}{
		{Fields{}, true}, {Fields{CorrelationID: "7"}, true}, {Fields{CorrelationID: "8"}, false}, {Fields{MessageID: "id-1"}, true}, {Fields{To: "Store5"}, true}, {Fields{To: "store5"}, false}, {Fields{ReplyTo: "answers"}, true},
		{Fields{Label: "omnibus"}, true}, {Fields{SessionID: "s1"}, true}, {Fields{ReplyToSessionID: "s2"}, true}, {Fields{ReplyToSessionID: "s1"}, false}, {Fields{ContentType: "text/plain"}, true},
		{Fields{Label: "omnibus", To: "Store5", SessionID: "s1"}, true}, {Fields{Label: "omnibus", To: "Store5", SessionID: "s2"}, false},
		{one("n", IntOf(5)), true}, {one("N", IntOf(5)), true}, {one("n", TextOf("5")), false}, {one("n", FloatOf(5)), false}, {one("f", FloatOf(2.5)), true}, {one("colour", TextOf("red")), true}, {one("colour", TextOf("Red")), false},
		{one("yes", BoolOf(true)), true}, {one("yes", BoolOf(false)), false}, {one("yes", IntOf(1)), false}, {one("missing", TextOf("")), false}, {one("null", Value{}), false}, {one("when", TimeOf(5000)), true}, {one("span", DurationOf(2000*TicksPerMilli)), true},
		{one("id", UUIDOf(someID)), true}, {one("decimal", Value{kind: Other}), false}, {one("nan", FloatOf(math.NaN())), false},
		{Fields{Label: "omnibus", Properties: []Parameter{{"n", IntOf(5)}, {"colour", TextOf("red")}}}, true}, {Fields{Label: "omnibus", Properties: []Parameter{{"n", IntOf(5)}, {"colour", TextOf("blue")}}}, false},
	} {
		filter := NewCorrelation(c.fields)
		if got := filter.Match(m); got != c.want {
			t.Errorf("%+v: %v", c.fields, got)
		}
		s := NewSet[int]()
		s.Add(1, &Rule{Correlation: filter})
		if got := matches(s, m); (len(got) == 1) != c.want {
			t.Errorf("%+v: the set finds %v", c.fields, got)
		}
	}
}

// matches are the rules that a set finds, those that fail negative.
func matches(s *Set[int], m *Message) (all []int) {
	s.Match(m, func(of int, _ *Rule, err error) {
		if err != nil {
			of = -of
		}
		all = append(all, of)
	})
	slices.Sort(all)
	return all
}

func TestSet(t *testing.T) {
	filter := func(text string) *Filter {
		f, err := ParseFilter(text, nil)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	m, s := red().message(), NewSet[int]()
	s.Add(1, &Rule{})
	s.Add(2, &Rule{Filter: filter("n = 5")})
	s.Add(3, &Rule{Filter: filter("n = 6")})
	s.Add(4, &Rule{Filter: filter("n / 0 = 1")})
	s.Add(5, &Rule{Correlation: NewCorrelation(Fields{Label: "omnibus"})})
	s.Add(6, &Rule{Correlation: NewCorrelation(Fields{Label: "omnibus", Properties: []Parameter{{"Colour", TextOf("red")}}})})
	s.Add(7, &Rule{Correlation: NewCorrelation(Fields{Label: "omnibus", Properties: []Parameter{{"colour", TextOf("blue")}}})})
	s.Add(8, &Rule{Correlation: NewCorrelation(Fields{})})
	want := []int{-4, 1, 2, 5, 6, 8}
	if got := matches(s, m); !slices.Equal(got, want) || s.Len() != 8 || !s.Has(7) || s.Has(9) {
		t.Errorf("%v of %d", got, s.Len())
	}
	s.Add(3, &Rule{Filter: filter("n = 5")})
	for _, of := range []int{1, 5, 6, 9} {
		s.Remove(of)
	}
	if got := matches(s, m); !slices.Equal(got, []int{-4, 2, 3, 8}) || s.Len() != 5 {
		t.Errorf("%v of %d", got, s.Len())
	}
	n := 0
	for of := range s.All {
		n += of
	}
	if n != 2+3+4+7+8 {
		t.Errorf("a sum of %d", n)
	}
	for _, of := range []int{2, 3, 4, 7, 8} {
		s.Remove(of)
	}
	if got := matches(s, m); len(got) > 0 || s.Len() > 0 || len(s.index) > 0 || len(s.others) > 0 || s.columns != [viaPartitionKey + 1]int{} {
		t.Errorf("%v is left in %+v", got, s)
	}
}

// Properties whose names differ by case find a rule once; that which is written as the rule has it decides.
func TestNamesThatDifferByCase(t *testing.T) {
	s := NewSet[int]()
	s.Add(1, &Rule{Correlation: NewCorrelation(Fields{Properties: []Parameter{{"Key", IntOf(1)}}})})
	s.Add(2, &Rule{Correlation: NewCorrelation(Fields{Properties: []Parameter{{"key", FloatOf(0)}}})})
	for want, m := range map[string]*builder{
		"[1]": (&builder{}).with("key", wire.AppendInt(nil, 1)).with("Key", wire.AppendInt(nil, 1)), "[]": (&builder{}).with("key", wire.AppendInt(nil, 1)).with("Key", wire.AppendInt(nil, 2)),
		"[1 2]": (&builder{}).with("Key", wire.AppendInt(nil, 1)).with("key", wire.AppendDoubleBits(nil, 1<<63)),
	} {
		if got := fmt.Sprint(matches(s, m.message())); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

// An index finds what looking at every filter finds, whatever is added and removed.
func TestIndexFindsTheSame(t *testing.T) {
	s, all := NewSet[int](), map[int]*Rule{}
	next := uint32(1)
	draw := func(n uint32) int {
		next = next*1664525 + 1013904223
		return int(next >> 8 % n)
	}
	for i := range 2000 {
		f := Fields{}
		if draw(2) == 0 {
			f.Label = fmt.Sprint("l", draw(3))
		}
		for range draw(4) {
			f.Properties = append(f.Properties, Parameter{fmt.Sprint("P", draw(4)), IntOf(int64(draw(3)))})
		}
		all[i] = &Rule{Correlation: NewCorrelation(f)}
		s.Add(i, all[i])
		if draw(3) == 0 {
			gone := draw(uint32(i + 1))
			s.Remove(gone)
			delete(all, gone)
		}
	}
	for range 100 {
		b := &builder{properties: wire.Properties{Subject: []byte(fmt.Sprint("l", draw(3)))}}
		for i := range 4 {
			b.with(fmt.Sprint("p", i), wire.AppendInt(nil, int32(draw(3))))
		}
		m, want := b.message(), []int(nil)
		for of, r := range all {
			if r.Correlation.Match(m) {
				want = append(want, of)
			}
		}
		slices.Sort(want)
		if got := matches(s, m); !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	}
}

func FuzzFilter(f *testing.F) {
	for _, text := range []string{
		"colour = 'red' AND n IN (1, 5) OR sys.Label LIKE '%a!_%' ESCAPE '!'", "NOT (p('x') IS NULL) AND EXISTS([a b]) AND -n * 2 % 3 <> 1.5e3", "newid() <> id OR sys.EnqueuedTimeUtc + span > when", "SET x = n; REMOVE sys.Label SET sys.TimeToLive = span",
	} {
		f.Add(text, red().encoded())
	}
	f.Fuzz(func(t *testing.T, text string, bare []byte) {
		m := &Message{}
		m.Read(bare, nil, Facts{Number: 1, EnqueuedAt: 1000, TTL: 5})
		if filter, err := ParseFilter(text, nil); err == nil {
			once, err := filter.Match(m)
			if again, err2 := filter.Match(m); once != again && !strings.Contains(strings.ToLower(text), "newid") || (err == nil) != (err2 == nil) {
				t.Error(once, again, err, err2)
			}
		}
		action, err := ParseAction(text, nil)
		if err != nil {
			return
		}
		c, err := action.Run(m)
		if err != nil || len(m.sections.Bare) == 0 {
			return
		}
		out, err := c.Edit.Apply(nil, &m.sections)
		if err != nil {
			t.Fatal(err)
		}
		if err := new(wire.Message).Parse(append(out, edit.Rest(&m.sections)...)); err != nil {
			t.Fatal(err)
		}
	})
}

// The largest topic that the service allows: each message is compared with all SQL filters, and finds its correlation
// filters.
func BenchmarkSet(b *testing.B) {
	s := NewSet[int]()
	for i := range 2000 {
		f, err := ParseFilter(fmt.Sprintf("colour = 'c%d' AND n > 3", i), nil)
		if err != nil {
			b.Fatal(err)
		}
		s.Add(i, &Rule{Filter: f})
	}
	b.Run("2000 SQL", func(b *testing.B) { benchmarkMatch(b, s) })
	s = NewSet[int]()
	for i := range 100_000 {
		s.Add(i, &Rule{Correlation: NewCorrelation(Fields{Label: "omnibus", Properties: []Parameter{{"colour", TextOf(fmt.Sprint("c", i))}}})})
	}
	b.Run("100000 correlation", func(b *testing.B) { benchmarkMatch(b, s) })
}

func benchmarkMatch(b *testing.B, s *Set[int]) {
	body := red().with("tag", text("t")).encoded()
	notes, m := red().notes, &Message{}
	b.ReportAllocs()
	for b.Loop() {
		m.Read(body, notes, Facts{})
		s.Match(m, func(int, *Rule, error) {})
	}
}

package topics

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/servicebus/edit"
	"github.com/quorate/quorate/amqp/servicebus/entity"
	wire091 "github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// described are the descriptions of the tests: strict keeps what fails, and sessions takes sessions alone.
func described(queue string) []byte {
	p := entity.ParseAddress(queue).Path
	s := entity.NewSubscription()
	s.DeadLetteringOnFilterEvaluationExceptions = p.Subscription == "strict"
	s.RequiresSession = p.Subscription == "sessions"
	b, err := (&entity.Description{Path: p, Subscription: s}).Encode()
	if err != nil {
		panic(err)
	}
	return b
}

func program(t *testing.T, r *entity.Rule) []byte {
	t.Helper()
	b, err := entity.EncodeRule(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func sql(name, filter, action string) *entity.Rule {
	r := &entity.Rule{Name: name, SQL: &entity.Expression{Text: filter}}
	if action != "" {
		r.Action = &entity.Expression{Text: action}
	}
	return r
}

// bare is a message with a subject, perhaps a session, and the property n.
func bare(session string, n int32) fsm.Payload { return labeled("red", session, n) }

func labeled(subject, session string, n int32) fsm.Payload {
	p := wire.Properties{Subject: []byte(subject)}
	if session != "" {
		p.GroupID = []byte(session)
	}
	b := wire.StartApplicationProperties(wire.Append(nil, &p))
	at := len(b)
	b = wire.EndMap(wire.AppendInt(wire.AppendString(wire.StartMap(b), "n"), n), at, 1)
	b = wire.AppendData(b, []byte("body"))
	notes := wire.EndMap(wire.AppendString(wire.AppendSymbol(wire.StartMap(nil), "x-mine"), "kept"), 0, 1)
	head, err := fsm.AppendBareHead(nil, "x", "k", fsm.BareHeader{Durable: true, Priority: 3, TTL: 900}, notes, nil)
	if err != nil {
		panic(err)
	}
	return append(head, b...)
}

// text is what the copies of a message are: their queues with what their edits say.
func text(t *testing.T, copies []fsm.FilterCopy) string {
	t.Helper()
	var all []string
	for _, c := range copies {
		e, err := edit.Parse(c.Edit)
		if err != nil {
			t.Fatal(err)
		}
		one := c.Queue
		for name := range e.Names {
			if name == deadDescription {
				continue
			}
			v, _ := e.Property(name)
			if n, ok := v.Value().Integer(); ok {
				one += fmt.Sprintf(" %s=%d", name, n)
			} else {
				one += fmt.Sprintf(" %s=%s", name, v.Value().Bytes())
			}
		}
		if c.TTL.Given {
			one += fmt.Sprintf(" ttl=%d", c.TTL.Value)
		}
		all = append(all, one)
	}
	return strings.Join(all, "; ")
}

func TestMatch(t *testing.T) {
	s := Filters{}.NewFilterSet("v", "t")
	const a, strict, sessions = "t/Subscriptions/a", "t/Subscriptions/strict", "t/Subscriptions/sessions"
	for id, r := range []struct {
		queue string
		rule  *entity.Rule
	}{
		{a, entity.NewRule(entity.DefaultRule)},
		{a, sql("plain", "n = 5", "")},
		{a, sql("two", "n > 1", "SET n = n * 2; SET sys.TimeToLive = sys.TimeToLive - sys.TimeToLive")},
		{a, &entity.Rule{Name: "one", True: true, Action: &entity.Expression{Text: "SET x = n / (n - 5)"}}},
		{a, &entity.Rule{Name: "never", False: true}},
		{strict, sql("fails", "1 / (n - 5) = 1", "")},
		{strict, &entity.Rule{Name: "red", Correlation: &entity.CorrelationFilter{Label: "red", Properties: []entity.Property{{Name: "n", Value: entity.Value{Kind: entity.Int, Text: "6"}}}}}},
		{sessions, sql("with", "n = 6", "SET sys.SessionId = 's'")},
		{sessions, entity.NewRule("all")},
	} {
		s.Add(uint64(id), r.queue, program(t, r.rule))
	}
	s.Add(100, a, []byte("no rule"))
	s.Add(101, a, program(t, sql("wrong", "n =", "")))
	facts := fsm.FilterFacts{Sequence: 7, EnqueuedAt: 1000, ExpireAt: 2000, Described: described}
	for _, c := range []struct {
		p    fsm.Payload
		want string
	}{
		{bare("", 5), "t/Subscriptions/a n=10 RuleName=two ttl=0; t/Subscriptions/a; t/Subscriptions/sessions/$deadletterqueue DeadLetterReason=Session ID is null. ttl=4611686018427387904; " +
			"t/Subscriptions/strict/$deadletterqueue DeadLetterReason=FilterEvaluationException ttl=4611686018427387904"},
		{bare("s", 6), "t/Subscriptions/a x=6 RuleName=one; t/Subscriptions/a n=12 RuleName=two ttl=0; t/Subscriptions/a; t/Subscriptions/sessions RuleName=with; t/Subscriptions/sessions; t/Subscriptions/strict"},
		{bare("", 6), "t/Subscriptions/a x=6 RuleName=one; t/Subscriptions/a n=12 RuleName=two ttl=0; t/Subscriptions/a; t/Subscriptions/sessions RuleName=with; " +
			"t/Subscriptions/sessions/$deadletterqueue DeadLetterReason=Session ID is null. ttl=4611686018427387904; t/Subscriptions/strict"},
	} {
		if got := text(t, s.Match(c.p, facts)); got != c.want {
			t.Errorf("%s\nwant %s", got, c.want)
		}
	}
	for id := range uint64(9) {
		s.Remove(id)
	}
	if got := s.Match(bare("", 5), facts); len(got) > 0 {
		t.Errorf("%v", got)
	}
}

// A copy whose properties are too large for what an action makes of them is a dead letter, whatever the subscription keeps.
func TestLargeChanges(t *testing.T) {
	for _, c := range []struct{ queue, want string }{
		{"t/Subscriptions/a", "t/Subscriptions/a/$deadletterqueue DeadLetterReason=HeaderSizeExceeded ttl=4611686018427387904"},
		{"t/Subscriptions/strict", "t/Subscriptions/strict/$deadletterqueue DeadLetterReason=HeaderSizeExceeded ttl=4611686018427387904"},
	} {
		s := Filters{}.NewFilterSet("v", "t")
		s.Add(1, c.queue, program(t, sql("grows", "1 = 1", "SET a = sys.Label; SET b = sys.Label")))
		if got := text(t, s.Match(labeled(strings.Repeat("x", 17<<10), "", 5), fsm.FilterFacts{Described: described})); got != c.want {
			t.Errorf("%s\nwant %s", got, c.want)
		}
	}
}

// What has no description is a subscription that keeps nothing that fails. A description holds from when it is there, and
// says where dead letters go, whatever the queue is called.
func TestDescriptions(t *testing.T) {
	s := Filters{}.NewFilterSet("v", "t")
	s.Add(1, "short~name", program(t, sql("fails", "1 / (n - 5) = 1", "")))
	s.Add(2, "q", program(t, entity.NewRule("all")))
	said := map[string][]byte{}
	facts := fsm.FilterFacts{Described: func(queue string) []byte { return said[queue] }}
	for _, none := range []fsm.FilterFacts{{}, facts} {
		if got := text(t, s.Match(bare("", 5), none)); got != "q" {
			t.Error(got)
		}
	}
	said["short~name"] = described("t/Subscriptions/strict")
	if got := text(t, s.Match(bare("", 5), facts)); !strings.HasPrefix(got, "q; t/Subscriptions/strict/$deadletterqueue DeadLetterReason=FilterEvaluationException") {
		t.Error(got)
	}
	said["short~name"] = described("t/Subscriptions/a")
	if got := text(t, s.Match(bare("", 5), facts)); got != "q" {
		t.Error(got)
	}
}

// A message that came by 0-9-1 is read as AMQP 1.0 has it, and so are its copies.
func TestMessageOf091(t *testing.T) {
	list := wire091.AppendProperties(nil, &wire091.Properties{
		Present: wire091.FlagHeaders | wire091.FlagMessageID | wire091.FlagExpiration | wire091.FlagPriority, MessageID: []byte("id"), Expiration: []byte("900"), Priority: 3,
		Headers: wire091.AppendFields(nil, wire091.Table{{Name: "n", Value: wire091.Value{Tag: 'l', Int: 5}}, {Name: "x-mine", Value: wire091.Value{Tag: 'S', Str: "kept"}}}),
	})
	p := append(fsm.AppendPayloadHead(nil, "x", "k", list), "body"...)
	f := Filters{}
	s := f.NewFilterSet("v", "t")
	s.Add(1, "q", program(t, sql("r", "n = 5 AND sys.MessageId = 'id'", "SET n = 6")))
	copies := s.Match(p, fsm.FilterFacts{})
	if got := text(t, copies); got != "q n=6 RuleName=r" {
		t.Fatal(got)
	}
	checkCopy(t, f.Edited(p, copies[0].Edit, 7), 900, []string{"n", "RuleName"})
}

func TestEdited(t *testing.T) {
	var e edit.Edit
	if err := e.Set("new", wire.AppendInt(nil, 1)); err != nil {
		t.Fatal(err)
	}
	b, err := e.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	f := Filters{}
	once := f.Edited(bare("s", 5), b, 7)
	checkCopy(t, once, 900, []string{"n", "new"})
	checkCopy(t, f.Edited(bare("s", 5), nil, 7), 900, []string{"n"})
	// It has had its number before.
	checkCopy(t, f.Edited(once, nil, 8), 900, []string{"n", "new"})
	// A dead letter does not expire.
	if err := e.Set(deadReason, wire.AppendString(nil, "r")); err != nil {
		t.Fatal(err)
	}
	b, _ = e.Append(nil)
	checkCopy(t, f.Edited(bare("s", 5), b, 7), -1, []string{"n", "new", deadReason})
	// What cannot be read stays as it is.
	damaged := damagedBare(t)
	if got := f.Edited(damaged, b, 7); string(got) != string(damaged) {
		t.Errorf("%x", got)
	}
	if got := f.Edited(bare("s", 5), []byte{9}, 7); string(got) != string(bare("s", 5)) {
		t.Errorf("%x", got)
	}
}

func damagedBare(t *testing.T) fsm.Payload {
	head, err := fsm.AppendBareHead(nil, "x", "k", fsm.BareHeader{Priority: -1, TTL: -1}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return append(head, "no message"...)
}

// checkCopy checks a copy of a message with number 7.
func checkCopy(t *testing.T, p fsm.Payload, ttl fsm.Millis, names []string) {
	t.Helper()
	if !p.Valid() || !p.IsBare() || string(p.Exchange()) != "x" || string(p.RoutingKey()) != "k" {
		t.Fatalf("%x", p)
	}
	m := message.Sections(p)
	var got []string
	for w := m.ApplicationProperties.Walk(); w.NextPair(); {
		got = append(got, string(w.Key.Bytes()))
	}
	mine, _ := m.Annotations.Get("x-mine")
	number, _ := m.Annotations.Get(annotationNumber)
	if !slices.Equal(got, names) || string(mine.Bytes()) != "kept" || number.Type != wire.Long || number.Signed() != 7 || p.BareHeader().TTL != ttl || p.BareHeader().Priority != 3 {
		t.Errorf("%q, %s, %d, %+v", got, mine.Bytes(), number.Signed(), p.BareHeader())
	}
	for piece := range m.Data {
		if string(piece) != "body" {
			t.Errorf("body %q", piece)
		}
	}
}

func TestCompile(t *testing.T) {
	of := func(kind entity.Kind, text string) []entity.Property {
		return []entity.Property{{Name: "@v", Value: entity.Value{Kind: kind, Text: text}}}
	}
	for _, good := range [][]entity.Property{
		of(entity.String, "x"), of(entity.Int, "5"), of(entity.Long, " -5 "), of(entity.Double, "1.5E3"), of(entity.Decimal, "1.5"), of(entity.Boolean, "true"), of(entity.DateTime, "2026-01-02T03:04:05.678Z"),
		of(entity.DateTime, "2026-01-02T03:04:05"), of(entity.Span, "PT5S"), of(entity.GUID, "01020304-0506-0708-090a-0b0c0d0e0f10"),
	} {
		r, err := Compile(&entity.Rule{Name: "r", SQL: &entity.Expression{Text: "@v = @v", Parameters: good}, Action: &entity.Expression{Text: "SET x = @v", Parameters: good}})
		if err != nil || r.Name != "r" || r.Filter == nil || r.Action == nil {
			t.Errorf("%+v: %+v, %v", good, r, err)
		}
	}
	for _, bad := range [][]entity.Property{
		of(entity.Int, "x"), of(entity.Double, ""), of(entity.Boolean, "maybe"), of(entity.DateTime, "today"), of(entity.Span, "5"), of(entity.GUID, "01"), of("base64Binary", "x"),
	} {
		for _, r := range []*entity.Rule{
			{SQL: &entity.Expression{Text: "@v = @v", Parameters: bad}}, {Correlation: &entity.CorrelationFilter{Properties: bad}}, {True: true, Action: &entity.Expression{Text: "SET x = @v", Parameters: bad}},
		} {
			if got, err := Compile(r); err == nil {
				t.Errorf("%+v: %+v", r, got)
			}
		}
	}
	for _, r := range []*entity.Rule{sql("r", "sys.Nothing = 1", ""), sql("r", "1=1", "SET sys.SequenceNumber = 1")} {
		var invalid *entity.Invalid
		if _, err := Compile(r); !errors.As(err, &invalid) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// The session of a message by 0-9-1 is its header x-group-id, for rules and for copies (MP-5).
func TestSessionOf091(t *testing.T) {
	const sessions = "t/Subscriptions/sessions"
	s := Filters{}.NewFilterSet("v", "t")
	s.Add(1, sessions, program(t, sql("r", "sys.SessionId = 's'", "")))
	s.Add(2, sessions, program(t, sql("none", "sys.SessionId IS NULL", "")))
	for id, want := range map[string]string{"s": sessions, "other": "", "": sessions + "/$deadletterqueue DeadLetterReason=Session ID is null. ttl=4611686018427387904"} {
		var list wire091.Properties
		if id != "" {
			list.Present, list.Headers = wire091.FlagHeaders, wire091.AppendFields(nil, wire091.Table{{Name: entity.GroupAnnotation, Value: wire091.Value{Tag: 'S', Str: id}}})
		}
		p := append(fsm.AppendPayloadHead(nil, "x", "k", wire091.AppendProperties(nil, &list)), "body"...)
		copies := s.Match(p, fsm.FilterFacts{Described: described})
		if got := text(t, copies); got != want {
			t.Errorf("%q: %s", id, got)
		}
		if copied := (Filters{}).Edited(p, nil, 7); sessionIn(t, copied) != id {
			t.Errorf("%q: the copy has %q", id, sessionIn(t, copied))
		}
	}
}

// sessionIn is the session of a message, which is its group, too.
func sessionIn(t *testing.T, p fsm.Payload) string {
	t.Helper()
	var m wire.Message
	var properties wire.Properties
	if err := m.Parse(p.Body()); err != nil {
		t.Fatal(err)
	}
	if err := m.ReadProperties(&properties); err != nil {
		t.Fatal(err)
	}
	group := message.Properties{}.Property(p, entity.GroupAnnotation)
	if have := entity.SessionOf(string(group)); have != string(properties.GroupID) || (group == nil) != (properties.GroupID == nil) {
		t.Errorf("the group is %q, the session %q", group, properties.GroupID)
	}
	return string(properties.GroupID)
}

// A rule that gives a message another session, or none, gives it another group.
func TestEditedSession(t *testing.T) {
	notes := wire.EndMap(wire.AppendString(wire.AppendSymbol(wire.StartMap(nil), entity.GroupAnnotation), "s"), 0, 1)
	head, err := fsm.AppendBareHead(nil, "x", "k", fsm.BareHeader{Priority: -1, TTL: -1}, notes, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := fsm.Payload(wire.AppendData(append(head, wire.Append(nil, &wire.Properties{GroupID: []byte("s")})...), []byte("body")))
	for _, c := range []struct {
		change func(*edit.Edit) error
		want   string
	}{
		{func(*edit.Edit) error { return nil }, "s"},
		{func(e *edit.Edit) error { return e.SetField(edit.GroupID, wire.AppendString(nil, "other")) }, "other"},
		{func(e *edit.Edit) error { return e.SetField(edit.GroupID, wire.AppendString(nil, "")) }, ""},
		{func(e *edit.Edit) error { e.RemoveField(edit.GroupID); return nil }, ""},
	} {
		var e edit.Edit
		if err := c.change(&e); err != nil {
			t.Fatal(err)
		}
		b, err := e.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if have := sessionIn(t, Filters{}.Edited(p, b, 7)); have != c.want {
			t.Errorf("the session is %q, not %q", have, c.want)
		}
	}
}

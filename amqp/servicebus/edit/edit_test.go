package edit

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp/v10/wire"
)

func text(s string) wire.RawValue { return wire.AppendString(nil, s) }

// encoded is a message with a subject, an id, two application properties, a body and a footer.
func encoded() []byte {
	b := wire.Append(nil, &wire.Properties{MessageID: text("id-1"), Subject: []byte("red"), ContentType: []byte("text/plain")})
	b = wire.StartApplicationProperties(b)
	at := len(b)
	b = wire.AppendInt(wire.AppendString(wire.StartMap(b), "n"), 5)
	b = wire.AppendString(wire.AppendString(b, "colour"), "red")
	b = wire.EndMap(b, at, 2)
	b = wire.AppendData(b, []byte("body"))
	at = len(b) + 3
	return wire.EndMap(wire.StartMap(wire.AppendDescriptor(b, 0x78)), at, 0)
}

func parsed(t *testing.T, b []byte) (m wire.Message) {
	t.Helper()
	if err := m.Parse(b); err != nil {
		t.Fatal(err)
	}
	return m
}

// applied returns the message after an edit, which has been stored in between.
func applied(t *testing.T, e Edit, b []byte) (wire.Message, wire.Properties) {
	t.Helper()
	stored, err := e.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(stored)
	if err != nil {
		t.Fatal(err)
	}
	before := parsed(t, b)
	out, err := again.Apply(nil, &before)
	if err != nil {
		t.Fatal(err)
	}
	m := parsed(t, append(out, Rest(&before)...))
	var p wire.Properties
	if err := m.ReadProperties(&p); err != nil {
		t.Fatal(err)
	}
	return m, p
}

func keys(m wire.MapBytes) (all []string) {
	for w := m.Walk(); w.NextPair(); {
		all = append(all, string(w.Key.Bytes()))
	}
	return all
}

func TestNothingIsChanged(t *testing.T) {
	before := parsed(t, encoded())
	out, err := Edit{}.Apply(nil, &before)
	if out = append(out, Rest(&before)...); err != nil || len(out) < len(before.Bare) {
		t.Fatalf("%x, %v", out, err)
	}
	m, p := applied(t, Edit{}, encoded())
	if string(p.Subject) != "red" || !slices.Equal(keys(m.ApplicationProperties), []string{"n", "colour"}) || len(m.Footer) == 0 {
		t.Errorf("%q, %q, %x", p.Subject, keys(m.ApplicationProperties), m.Footer)
	}
	if !(Edit{}).Empty() {
		t.Error("it is not empty")
	}
}

func TestChanges(t *testing.T) {
	var e Edit
	for _, err := range []error{
		e.Set("colour", text("blue")), e.Set("new", wire.AppendNull(nil)), e.Set("gone", text("x")), e.SetField(Subject, text("")),
		e.SetField(MessageID, wire.AppendUlong(nil, 7)), e.SetField(GroupID, text("s")), e.SetField(To, text("q")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	e.Remove("gone")
	e.Remove("n")
	e.RemoveField(ContentType)
	m, p := applied(t, e, encoded())
	if got := keys(m.ApplicationProperties); !slices.Equal(got, []string{"colour", "new"}) {
		t.Errorf("%q", got)
	}
	if v, _ := m.ApplicationProperties.Get("colour"); string(v.Bytes()) != "blue" {
		t.Errorf("colour is %q", v.Bytes())
	}
	if p.Subject == nil || len(p.Subject) > 0 || p.ContentType != nil || p.MessageID.Value().Unsigned() != 7 || string(p.GroupID) != "s" || string(p.To) != "q" {
		t.Errorf("%+v", p)
	}
	if body := slices.Collect(m.Data); len(body) != 1 || string(body[0]) != "body" || len(m.Footer) == 0 {
		t.Errorf("%q, %x", body, m.Footer)
	}
}

// A message without sections to change gets them, and loses them with their last entry.
func TestSectionsComeAndGo(t *testing.T) {
	var add, remove Edit
	if err := errors.Join(add.Set("a", text("b")), add.SetField(ReplyTo, text("r"))); err != nil {
		t.Fatal(err)
	}
	m, p := applied(t, add, wire.AppendData(nil, []byte("body")))
	if string(p.ReplyTo) != "r" || len(keys(m.ApplicationProperties)) != 1 {
		t.Errorf("%+v, %q", p, keys(m.ApplicationProperties))
	}
	remove.Remove("n")
	remove.Remove("colour")
	if m, _ := applied(t, remove, encoded()); m.ApplicationProperties != nil {
		t.Errorf("%x are left", m.ApplicationProperties)
	}
}

func TestThen(t *testing.T) {
	var a, b Edit
	if err := errors.Join(a.Set("x", text("1")), a.Set("y", text("1")), b.Set("y", text("2")), b.SetField(To, text("q"))); err != nil {
		t.Fatal(err)
	}
	b.Remove("x")
	both := a.Then(b)
	if v, changed := both.Property("x"); !changed || len(v) > 0 {
		t.Errorf("x: %x, %v", v, changed)
	}
	if v, _ := both.Property("y"); string(v.Value().Bytes()) != "2" {
		t.Errorf("y: %x", v)
	}
	if v, changed := both.Field(To); !changed || string(v.Value().Bytes()) != "q" {
		t.Errorf("to: %x", v)
	}
	if _, changed := both.Field(Subject); changed {
		t.Error("the subject has changed")
	}
	if v, _ := a.Property("x"); string(v.Value().Bytes()) != "1" {
		t.Error("the first one has changed")
	}
}

func TestValues(t *testing.T) {
	var e Edit
	list := wire.EndList(wire.StartList(nil), 0, 0)
	for _, err := range []error{
		e.Set("a", list), e.Set("a", nil), e.Set("a", []byte{0x71}), e.SetField(To, wire.AppendInt(nil, 1)), e.SetField(MessageID, wire.AppendInt(nil, 1)),
		e.SetField(Subject, wire.AppendSymbol(nil, "s")), e.Set("a", append(text("x"), 0x40)),
	} {
		if !errors.Is(err, ErrValue) {
			t.Errorf("%v", err)
		}
	}
	if !e.Empty() {
		t.Error("it has changes")
	}
	if err := e.Set("a", text(strings.Repeat("x", MaxSize))); err != nil {
		t.Fatal(err)
	}
	if b, err := e.Append([]byte("kept")); !errors.Is(err, ErrTooLarge) || string(b) != "kept" {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func TestNoEdit(t *testing.T) {
	for _, b := range [][]byte{
		{set}, {3, 0, 0}, {removed, byte(fieldEnd)}, {removed, 0}, {removed, 0, 5, 'a'}, {set, 0, 1, 'a'}, {set, byte(To), 0x54, 1}, {set, 0, 1, 'a', 0x45},
		append([]byte{removed, 0, 0x80, 0x80, 4}, make([]byte, 1<<16)...),
	} {
		if e, err := Parse(b); !errors.Is(err, ErrFormat) {
			t.Errorf("%x: %+v, %v", b, e, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{removed, byte(Subject), set, 0, 1, 'a', 0x54, 1, set, byte(To), 0xa1, 1, 'q'}, encoded())
	f.Fuzz(func(t *testing.T, b, message []byte) {
		e, err := Parse(b)
		if err != nil {
			return
		}
		if again, err := e.Append(nil); err != nil || len(again) > len(b) {
			t.Fatalf("%d bytes, %v", len(again), err)
		}
		var m wire.Message
		if m.Parse(message) != nil {
			return
		}
		out, err := e.Apply(nil, &m)
		if err != nil {
			return
		}
		if err := new(wire.Message).Parse(append(bytes.Clone(out), Rest(&m)...)); err != nil {
			t.Fatal(err)
		}
	})
}

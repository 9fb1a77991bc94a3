package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"
)

// page collects lines and provides the time.
type page struct {
	strings.Builder
	now time.Time
}

func newPage() (*page, *Log) {
	p := &page{now: time.Date(2030, 1, 2, 3, 4, 5, 6e6, time.UTC)}
	return p, New("n1", p, func() time.Time { return p.now }, func(err error) { panic(err) })
}

// lines decodes what was written since the last call.
func (p *page) lines(t *testing.T) (all []map[string]any) {
	t.Helper()
	for text := range strings.Lines(p.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		all = append(all, m)
	}
	p.Reset()
	return all
}

func TestLine(t *testing.T) {
	p, l := newPage()
	l.Write(Event{
		Kind: Definition, Action: "queue.declare", User: "ann", Origin: Origin{Protocol: "amqp", Address: "10.0.0.1:5", Connection: "c"},
		Target: map[string]string{"vhost": "/", "queue": "q"}, Detail: map[string]any{"tags": []string{"a"}}, Outcome: OK,
	})
	const want = `{"time":"2030-01-02T03:04:05.006Z","node":"n1","kind":"definition","action":"queue.declare","user":"ann","protocol":"amqp","address":"10.0.0.1:5","connection":"c",` +
		`"target":{"queue":"q","vhost":"/"},"detail":{"tags":["a"]},"outcome":"ok"}` + "\n"
	if p.String() != want {
		t.Errorf("%s\nwant %s", p.String(), want)
	}
}

// Whatever the names, an event is one line of printable characters.
func TestNamesDoNotBreakLines(t *testing.T) {
	p, l := newPage()
	names := []string{"a\nb", "a\r\nb", "\x1b[31m", "\x00", "<script>", "\u2028", "\xff\xfe", "{\"outcome\":\"ok\"}", strings.Repeat("/", 255), "\u202e", "\x7f", "\u0085"}
	for _, name := range names {
		l.Write(Event{Kind: Definition, Action: name, User: name, Origin: Origin{Address: name, Connection: name}, Target: map[string]string{name: name}, Detail: map[string]any{name: name}, Outcome: OK, Reason: name})
	}
	text := p.String()
	for _, r := range strings.ReplaceAll(text, "\n", "") {
		if unicode.IsControl(r) || r == '<' || r == '\u2028' || r == '\u202e' {
			t.Errorf("%q is written as it is", r)
		}
	}
	if got := p.lines(t); len(got) != len(names) || got[0]["user"] != "a\nb" {
		t.Errorf("%d lines of %d events: %v", len(got), len(names), got[0])
	}
}

// Escaped text decodes to the original.
func TestASCII(t *testing.T) {
	for _, text := range []string{"", "plain", "é", "\u0085\u007f", "a\u202eb", "𝄞 x", "日本"} {
		raw, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		var back string
		out := ASCII(raw)
		if err := json.Unmarshal(out, &back); err != nil || back != text {
			t.Errorf("%q became %s: %v", text, out, err)
		}
		for _, b := range out {
			if b < ' ' || b > '~' {
				t.Errorf("%s holds %#x", out, b)
			}
		}
	}
}

// Refusals from one address are written at a bounded rate, and all are counted.
func TestRefusalsAreBounded(t *testing.T) {
	p, l := newPage()
	refuse := func(address string, n int) {
		for i := range n {
			l.Write(Event{Kind: Login, Action: "login", User: fmt.Sprint("u", i), Origin: Origin{Address: address}, Outcome: Refused})
		}
	}
	refuse("10.0.0.1:1", perKey)
	refuse("10.0.0.1:2", 90)
	refuse("10.0.0.2:1", 1)
	l.Write(Event{Kind: Definition, Action: "x", Outcome: OK})
	if got := p.lines(t); len(got) != perKey+2 {
		t.Fatalf("%d lines", len(got))
	}
	p.now = p.now.Add(window)
	refuse("10.0.0.2:1", 1) // the count of the other address is written first
	got := p.lines(t)
	if len(got) != 2 || got[0]["unlogged"] != 89.0 || got[0]["user"] != "u89" || got[1]["unlogged"] != nil {
		t.Fatalf("%v", got)
	}
	refuse("10.0.0.1:3", perKey+5)
	p.lines(t)
	l.Close()
	if got := p.lines(t); len(got) != 1 || got[0]["unlogged"] != 4.0 {
		t.Fatalf("at the end: %v", got)
	}
}

// However many addresses refusals come from, both the memory that they use and the
// lines that they cause are bounded; all are counted.
func TestPlacesAreBounded(t *testing.T) {
	p, l := newPage()
	const places = 5 * maxKeys
	for i := range places {
		l.Write(Event{Kind: Login, Action: "login", Origin: Origin{Address: fmt.Sprintf("10.%d.%d.1:1", i/256, i%256)}, Outcome: Refused})
	}
	if len(l.throttle.keys) > maxKeys+1 || len(l.last) > maxKeys+1 {
		t.Errorf("%d and %d places are remembered", len(l.throttle.keys), len(l.last))
	}
	l.Close()
	sum := 0
	got := p.lines(t)
	for _, m := range got {
		sum++
		if n, ok := m["unlogged"].(float64); ok {
			sum += int(n)
		}
	}
	if sum != places || len(got) > maxKeys+perKey+1 {
		t.Errorf("%d lines say %d of %d", len(got), sum, places)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// An event that cannot be written is reported and does not block; a nil log
// writes nothing.
func TestNotWritten(t *testing.T) {
	told := 0
	l := New("n1", broken{}, time.Now, func(error) { told++ })
	l.Write(Event{Outcome: OK})
	l.Write(Event{Outcome: OK, Detail: map[string]any{"x": func() {}}})
	if told != 2 {
		t.Errorf("told %d times", told)
	}
	l = nil
	l.Write(Event{})
	l.Close()
}

func TestOrigin(t *testing.T) {
	o := Origin{Protocol: "http", Address: "a:1"}
	if got := From(With(context.Background(), o)); got != o {
		t.Errorf("%v", got)
	}
	if got := From(context.Background()); got != (Origin{}) {
		t.Errorf("%v", got)
	}
}

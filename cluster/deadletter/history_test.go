package deadletter

import (
	"bytes"
	"fmt"
	"maps"
	"testing"

	"github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// broughtAlong are properties of messages that were published with a history.
type broughtAlong struct {
	grouptest.NoProperties
	deaths []*logpb.Death
}

func (b broughtAlong) Deaths(fsm.Payload) []*logpb.Death { return b.deaths }

func historyText(deaths []*logpb.Death) (s string) {
	for _, d := range deaths {
		s += fmt.Sprintf("%s %v %d at %d by %s", d.Queue, d.Reason, d.Count, d.Time, d.Exchange)
		if d.LastTime != 0 {
			s += fmt.Sprintf(" last at %d", d.LastTime)
		}
		if d.First {
			s += " first"
		}
		s += "; "
	}
	return s
}

// The first death of a message continues the history with which it was
// published; later ones continue what the message has by then.
func TestHistoryContinues(t *testing.T) {
	expired := func(queue string, count uint64, at int64, first bool) *logpb.Death {
		return &logpb.Death{Reason: logpb.Death_EXPIRED, Queue: queue, Count: count, Time: at, First: first, Exchange: "old"}
	}
	p := fsm.Payload(fsm.AppendPayloadHead(nil, "x", "key", []byte{0, 0}))
	for name, c := range map[string]struct {
		deaths, sent []*logpb.Death
		fresh        bool
		want         string
	}{
		"none sent":  {[]*logpb.Death{expired("q", 1, 9, true)}, nil, true, "q EXPIRED 1 at 9 by x first; "},
		"other pair": {[]*logpb.Death{expired("q", 1, 9, true)}, []*logpb.Death{expired("p", 3, 5, true)}, true, "q EXPIRED 1 at 9 by x; p EXPIRED 3 at 5 by old first; "},
		"same pair": {
			[]*logpb.Death{expired("q", 1, 9, true)}, []*logpb.Death{expired("p", 1, 6, false), expired("q", 3, 5, true)}, true,
			"q EXPIRED 4 at 5 by old last at 9 first; p EXPIRED 1 at 6 by old; ",
		},
		"same pair, time unknown": {[]*logpb.Death{expired("q", 1, 9, true)}, []*logpb.Death{expired("q", 3, 0, true)}, true, "q EXPIRED 4 at 9 by old first; "},
		"second death":            {[]*logpb.Death{expired("q", 1, 9, false), expired("r", 1, 8, true)}, []*logpb.Death{expired("p", 3, 5, true)}, true, "q EXPIRED 1 at 9 by x; r EXPIRED 1 at 8 by old first; "},
		"first pair again":        {[]*logpb.Death{expired("q", 2, 9, true)}, []*logpb.Death{expired("p", 3, 5, true)}, false, "q EXPIRED 2 at 9 by old first; "},
	} {
		t.Run(name, func(t *testing.T) {
			b := &Sender{properties: broughtAlong{deaths: c.sent}}
			l := &fsm.DeadLetter{Reason: logpb.Death_EXPIRED, Deaths: c.deaths, Fresh: c.fresh}
			before := historyText(c.sent)
			if got := historyText(b.deaths(l, p)); got != c.want {
				t.Errorf("%s\nnot %s", got, c.want)
			}
			if got := historyText(c.sent); got != before {
				t.Errorf("what was sent has become %s", got)
			}
		})
	}
}

// The expiration with which a message was published goes into the record of its
// first death in a queue, and stays there: the letter itself has none.
func TestHistoryKeepsExpiration(t *testing.T) {
	p := fsm.Payload(fsm.AppendPayloadHead(nil, "x", "key", []byte{0, 0}))
	old := func(queue string) *logpb.Death {
		return &logpb.Death{Reason: logpb.Death_EXPIRED, Queue: queue, Count: 2, OriginalExpiration: "old"}
	}
	for name, c := range map[string]struct {
		death      *logpb.Death
		sent       []*logpb.Death
		fresh, has bool
		want       string
	}{
		"first death":                 {&logpb.Death{Reason: logpb.Death_EXPIRED, Queue: "q", Count: 1, First: true}, nil, true, true, "published"},
		"published without":           {&logpb.Death{Reason: logpb.Death_EXPIRED, Queue: "q", Count: 1, First: true}, nil, true, false, ""},
		"again in the same queue":     {old("q"), nil, false, false, "old"},
		"published with that history": {&logpb.Death{Reason: logpb.Death_EXPIRED, Queue: "q", Count: 1, First: true}, []*logpb.Death{old("q")}, true, false, "old"},
		"with that of another queue":  {&logpb.Death{Reason: logpb.Death_EXPIRED, Queue: "q", Count: 1, First: true}, []*logpb.Death{old("p")}, true, true, "published"},
	} {
		b := &Sender{properties: expiring{broughtAlong{deaths: c.sent}}}
		l := &fsm.DeadLetter{Reason: logpb.Death_EXPIRED, Deaths: []*logpb.Death{c.death}, Fresh: c.fresh, HasExpiration: c.has}
		if got := b.deaths(l, p)[0].OriginalExpiration; got != c.want {
			t.Errorf("%s: the original expiration is %q, want %q", name, got, c.want)
		}
	}
}

// expiring are properties of messages that have an expiration.
type expiring struct{ broughtAlong }

func (expiring) Expiration(fsm.Payload) string { return "published" }

// A message of AMQP 1.0 dies and is forwarded as it came, byte for byte, but for its
// way, its annotations, and the time-to-live of what has died.
func TestBareLetter(t *testing.T) {
	s := &Sender{properties: message.Properties{}}
	given := wire.AppendString(wire.AppendSymbol(wire.StartMap(nil), "x-a"), "b")
	annotations := wire.EndMap(given, 0, 1)
	head, err := fsm.AppendBareHead(nil, "x", "k", fsm.BareHeader{Durable: true, Priority: 7, TTL: 1500}, annotations, []string{"blind"})
	if err != nil {
		t.Fatal(err)
	}
	p := append(fsm.Payload(head), "bare"...)
	died := &fsm.DeadLetter{Reason: logpb.Death_EXPIRED, HasExpiration: true, Fresh: true, Deaths: []*logpb.Death{{Queue: "q", Reason: logpb.Death_EXPIRED, Count: 1}}}
	for name, c := range map[string]struct {
		config *logpb.QueueConfig
		key    string
		blind  int
	}{
		"with its key":      {&logpb.QueueConfig{DeadLetterExchange: "dlx"}, "k", 1},
		"with the queue's":  {&logpb.QueueConfig{DeadLetterExchange: "dlx", DeadLetterRoutingKey: "dead", HasDeadLetterRoutingKey: true}, "dead", 0},
		"of a classic one":  {&logpb.QueueConfig{DeadLetterExchange: "dlx", Classic: true}, "k", 1},
		"that was remarked": {&logpb.QueueConfig{DeadLetterExchange: "dlx"}, "k", 1},
	} {
		l, want := *died, map[string]string{"x-a": "b"}
		if name == "that was remarked" {
			l.Remark.Reason = "bad"
			want["x-dead-letter-reason"] = "bad"
		}
		out := s.deadPayload(c.config, &l, p)
		if !out.Valid() || !out.IsBare() || string(out.Exchange()) != "dlx" || string(out.RoutingKey()) != c.key || len(out.BlindKeys()) != c.blind {
			t.Errorf("%s: %q", name, out)
			continue
		}
		got := map[string]string{}
		for _, f := range s.properties.Headers(out, nil).GetFields() {
			got[f.Name] = string(f.Value.GetStr())
		}
		if h := out.BareHeader(); h != (fsm.BareHeader{Durable: true, Priority: 7, TTL: -1}) || !maps.Equal(got, want) || string(out.Body()) != "bare" {
			t.Errorf("%s: %+v %v %q", name, h, got, out.Body())
		}
		e := s.reenqueue(c.config, &l, p, out, 0)
		if e.Size != uint32(len(out)) || len(e.Deaths) != 1 || e.Deaths[0].OriginalExpiration != "1500" || c.config.Classic && e.PriorityPlusOne != 8 {
			t.Errorf("%s: %v", name, e)
		}
	}
	forward, l := &logpb.QueueConfig{Forward: true, ForwardExchange: "on"}, &fsm.DeadLetter{Forwarded: true, HasExpiration: true, Hops: 1}
	out := s.deadPayload(forward, l, p)
	if string(out.Exchange()) != "on" || !bytes.Equal(out.List(), p.List()) || string(out.Body()) != "bare" {
		t.Errorf("forwarded as %q", out)
	}
	if e := s.reenqueue(forward, l, p, out, 0); e.TtlPlusOne != 1501 || !e.HasExpiration {
		t.Errorf("forwarded: %v", e)
	}
	l.HasExpiration = false // it has died before
	if e := s.reenqueue(forward, l, p, out, 0); e.TtlPlusOne != 0 || e.HasExpiration {
		t.Errorf("a dead letter, forwarded: %v", e)
	}
}

// What receivers have added to a message goes with it, whatever brings it on.
func TestLettersKeepAnnotations(t *testing.T) {
	p := fsm.Payload(fsm.AppendPayloadHead(nil, "x", "key", []byte{0, 0}))
	s := &Sender{properties: grouptest.NoProperties{}}
	for name, l := range map[string]*fsm.DeadLetter{
		"dead": {Reason: logpb.Death_REJECTED, Deaths: []*logpb.Death{{Queue: "q", Reason: logpb.Death_REJECTED, Count: 1}}}, "forwarded": {Forwarded: true}, "due": {},
	} {
		l.Annotations = []*logpb.Annotation{{Key: []byte("k"), Value: []byte("v")}}
		c := &logpb.QueueConfig{DelayedStore: name == "due", Forward: l.Forwarded}
		if e := s.reenqueue(c, l, p, p, 0); len(e.Annotations) != 1 || string(e.Annotations[0].Value) != "v" {
			t.Errorf("%s: %v", name, e.Annotations)
		}
	}
}

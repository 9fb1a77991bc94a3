package main

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/report"
)

// Each way in which a message of a soak can come to a wrong end is found, and no right one is.
func TestPart(t *testing.T) {
	expired := &history.Death{Reason: "expired"}
	for _, c := range []struct {
		name string
		ttl  time.Duration
		come []history.Delivery // of 2 messages that are confirmed, and one that is not
		want string             // part of the error; empty: none
	}{
		{"each once", 0, []history.Delivery{{Key: keyOf(1, 1)}, {Key: keyOf(1, 0)}}, ""},
		{"the unconfirmed one, too", 0, []history.Delivery{{Key: keyOf(1, 0)}, {Key: keyOf(1, 1)}, {Key: keyOf(1, 2)}}, ""},
		{"redelivered", 0, []history.Delivery{{Key: keyOf(1, 0)}, {Key: keyOf(1, 1)}, {Key: keyOf(1, 0), Redelivered: true}}, ""},
		{"twice", 0, []history.Delivery{{Key: keyOf(1, 0)}, {Key: keyOf(1, 1)}, {Key: keyOf(1, 0)}}, "twice, not marked as redelivered, 1 times"},
		{"lost", 0, []history.Delivery{{Key: keyOf(1, 0)}}, "1 of 2 messages lost"},
		{"foreign", 0, []history.Delivery{{Key: keyOf(1, 0)}, {Key: keyOf(1, 1)}, {Key: keyOf(2, 0)}, {Key: keyOf(1, 3)}}, "none of these, 2 times"},
		{"expired", 0, []history.Delivery{{Key: keyOf(1, 0), Death: expired}, {Key: keyOf(1, 1), Death: expired}}, ""},
		{"expired early", time.Hour, []history.Delivery{{Key: keyOf(1, 0), Death: expired}, {Key: keyOf(1, 1)}}, "expired early, 1 times"},
	} {
		s := &soak{}
		s.part("other")
		p := s.part(c.name)
		for range 3 {
			p.Begin(history.Attempt{TTL: c.ttl})
		}
		p.Deliver(c.come[0]) // some come before their confirms
		p.End(keyOf(1, 0), history.OK)
		p.End(keyOf(1, 1), history.OK)
		for _, d := range c.come[1:] {
			p.Deliver(d)
		}
		if err := p.check(true); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if err := (&soak{}).part("idle").check(true); err == nil {
		t.Error("a part without messages")
	}
	under := (&soak{}).part("interrupted")
	under.Begin(history.Attempt{})
	under.End(keyOf(0, 0), history.OK)
	if err := under.check(false); err != nil {
		t.Errorf("what is under way when a soak is interrupted: %v", err)
	}
}

// A message that comes while another consumer's lock lasts is a lock that was lost, unless that one's connection was.
func TestEarlyLocks(t *testing.T) {
	for _, c := range []struct {
		until time.Duration // of the first lock
		lost  bool
		early bool
	}{{time.Minute, false, true}, {time.Minute, true, false}, {-time.Second, false, false}} {
		h := &holder{part: (&soak{}).part("held"), renewed: 1, ended: 1, held: map[uint64]*lock{}}
		first, second := &holding{}, &holding{}
		d := client.Brief(nil, keyOf(0, 0), smallest)
		h.took(first, delivery(d, time.Now().Add(c.until)))
		if c.lost {
			first.lost.Store(int64(clock()))
		}
		h.took(second, delivery(d, time.Now().Add(time.Minute)))
		if err := h.check(&report.Result{}); (err != nil) != c.early {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// delivery has a lock until a time.
func delivery(body []byte, until time.Time) amqp.Delivery {
	return amqp.Delivery{Body: body, Headers: amqp.Table{"x-locked-until": until.UnixMilli()}}
}

// All parts of a soak come to their ends, and each number that is watched has its series.
func TestSoak(t *testing.T) {
	mustLab(t, func(b *bench) {
		s := &soak{bench: b, duration: 12 * time.Second, rate: 200, size: 100, sleepers: 20}
		s.run()
		r := b.results[0]
		if n := len(r.Series); n != len(gauges)*len(b.own.Nodes)+7 || r.Messages == 0 {
			t.Errorf("%d series, %.0f messages", n, r.Messages)
		}
	}, "raft.awake_target=0", "raft.idle_after=200")
}

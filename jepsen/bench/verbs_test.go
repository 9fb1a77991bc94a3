package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/long"
	"github.com/quorate/quorate/jepsen/report"
)

// mustLab has a cluster measured, whose nodes have settings.
func mustLab(t *testing.T, measure func(b *bench), settings ...string) {
	t.Helper()
	if err := onTestLab(t, measure, settings...); err != nil {
		t.Fatal(err)
	}
}

func onTestLab(t *testing.T, measure func(b *bench), settings ...string) error {
	t.Helper()
	long.Test(t)
	binary, err := cluster.BuildRelease(t.Context(), t.TempDir())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	b := &bench{ctx: ctx, lab: &lab{binary: binary, dir: t.TempDir(), settings: settings}}
	return b.onLab(func() { measure(b) })
}

// Settings reach the nodes, which refuse one that they do not know.
func TestUnknownSetting(t *testing.T) {
	err := onTestLab(t, func(*bench) { t.Error("the cluster runs") }, "unknown.setting=1")
	if err == nil || !strings.Contains(err.Error(), "unknown.setting") {
		t.Errorf("%v", err)
	}
}

// What loads running brokers measures them, and finds that each message came once.
func TestLoads(t *testing.T) {
	mustLab(t, func(b *bench) {
		s := defaultShape
		s.queues, s.messages = 3, 1000
		b.keep(b.throughput(s))
		b.keep(b.latency(upTo(50), 1024))
		b.keep(b.fixedRate(upTo(500), 200, 1000))
		if !b.speaks10(b.ctx) {
			t.Error("AMQP 1.0 is not spoken")
		}
		b.in10(true, func() report.Result { return b.throughput(s) })
		b.keep(b.lateness(500, 100*time.Millisecond, 300*time.Millisecond))
		b.keep(b.groups(200))
		b.keep(topic{b, "bench-topic", 20}.confirms(upTo(50), 200))
		b.backlog(2000, 100, func(queue string, _ *report.Result) {
			if n := b.ready(queue); n != 2000 {
				t.Errorf("%d messages wait", n)
			}
		})
		b.forwarded(500)
		redriving{b, 2500, 100, 0, 100, 100 * time.Millisecond}.run()
		redriving{b, 500, 100, 1000, 100, 100 * time.Millisecond}.run()
		g := &growth{b, 1000, 100, 1000}
		b.keep(g.active(7))
		b.keep(g.waiting(1000))
		for _, s := range b.serviceBusSteps(500 * time.Millisecond) {
			s.run()
		}
		used := 0.0
		for _, r := range b.results {
			if used += r.ServerCPU; r.Messages == 0 || r.PerSecond == 0 || r.PerSecond > 1e6 || r.PeakRSS == 0 {
				t.Errorf("%+v", r)
			}
		}
		if used == 0 {
			t.Error("the servers used no processor time")
		}
		if n := len(b.results); n != 24 {
			t.Errorf("%d results", n)
		}
	})
}

// A load ends when its queue is not there, a message is lost, or a node that it uses is.
func TestLoadsFail(t *testing.T) {
	mustLab(t, func(b *bench) {
		q := queue{name: "bench-fail"}
		l := newLedger(1)
		consume := &load{ledger: l, consumers: []*consumer{{uri: b.uri(0), queue: q.name, prefetch: 1, ackEvery: 1}}}
		var refused *amqp.Error
		if err := try(func() { b.run(consume, nil) }); !errors.As(err, &refused) || refused.Code != amqp.NotFound {
			t.Errorf("a queue that is not there: %v", err)
		}
		b.declare(q)
		one := &load{ledger: l, publishers: []*publisher{{uri: b.uri(0), queues: []string{q.name}, size: 100, window: 10, more: upTo(10)}}}
		b.fill(one, nil)
		ch, end := b.channel(b.uri(0))
		defer end()
		for taken := false; !taken; {
			var err error
			_, taken, err = ch.Get(q.name, true)
			must(err)
		}
		l.entries[0].count++ // so that nothing is awaited
		if err := try(func() { b.drain(l, q) }); err == nil || !strings.Contains(err.Error(), "1 lost") {
			t.Errorf("a message that somebody else took: %v", err)
		}
		one.ledger, one.publishers[0].more, one.publishers[0].uri = newLedger(1), func(uint64) bool { return true }, b.uri(2)
		failed := make(chan error, 1)
		go func() { failed <- try(func() { b.fill(one, nil) }) }()
		for confirmed := uint64(0); confirmed == 0; confirmed, _ = one.ledger.sums() {
			b.pause(10 * time.Millisecond)
		}
		must(b.on.kill(b.ctx, 2))
		if err := <-failed; !errors.Is(err, errClosed) {
			t.Errorf("a node that is killed: %v", err)
		}
		must(b.on.rejoin(b.ctx, 2))
	})
}

package session

import (
	"context"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// benchRun is how many messages come at a time.
const benchRun = 64

func mustQuietSession(b *testing.B, w *world) *Session {
	b.Helper()
	conn, err := w.sessions.Connect(context.Background(), "guest", "/")
	if err != nil {
		b.Fatal(err)
	}
	s, err := conn.OpenSession(noEvents{})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// BenchmarkPublishConfirm is a publish on its way from the session into a batch
// for the leader, and its answer's way back to the channel.
func BenchmarkPublishConfirm(b *testing.B) {
	w := newWorld(b)
	s, q := mustQuietSession(b, w), w.MustQueue("q")
	to := streamTo(s, q)
	s.route = []*catalog.Queue{q}
	p := fsm.Publish{Payload: grouptest.Payload("message"), TTL: -1, Priority: -1}
	answer := []group.Outcome{{First: 1, Run: benchRun}}
	drop := func(group.Batch) error { return nil }
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += benchRun {
		for range benchRun {
			p.Number++
			s.enqueue(&p, catalog.Ceilings{})
		}
		load := stream.NewLoad()
		to.Take(&load)
		_ = load.Submit(drop)
		w.queues.Routes.Stream(q.ID, s.id).Answer("", answer)
		answer[0].First += benchRun
	}
}

// BenchmarkDeliver is a delivery that has come to a session, up to the channel.
func BenchmarkDeliver(b *testing.B) {
	w := newWorld(b)
	s, q := mustQuietSession(b, w), w.MustQueue("q")
	to := streamTo(s, q)
	addConsumer(s, to, 5, true)
	var d stream.DeliveryBatch
	body := grouptest.Payload("message")
	b.ReportAllocs()
	b.ResetTimer()
	id := uint64(0)
	for n := 0; n < b.N; n += benchRun {
		d.Messages = d.Messages[:0]
		for range benchRun {
			id++
			d.Messages = append(d.Messages, fsm.Message{Consumer: 5, ID: id, Payload: body})
		}
		w.queues.Routes.Stream(q.ID, s.id).Receive(d)
		s.Written(benchRun, benchRun*len(body))
	}
}

package deadletter

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// settings changes the settings of the source.
func (b *letterbox) settings(t grouptest.Fatal, r *grouptest.Queue, change func(*logpb.QueueConfig)) {
	var config *logpb.QueueConfig
	r.View(func(m *queue.Machine) { config = proto.Clone(m.Config()).(*logpb.QueueConfig) })
	change(config)
	r.Apply(t, group.BatchOf(&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: config}}))
}

// What is sent once arrives everywhere, with its history; the outbox has no
// part in it, and a target that is gone or full does not hold it up.
func TestOnce(t *testing.T) {
	b := newLetterbox(t, "a", "b", "gone")
	b.settings(t, b.source, func(c *logpb.QueueConfig) { c.DeadLetterStrategy = logpb.QueueConfig_AT_MOST_ONCE })
	gone, _ := b.w.View().Queue("/", "gone")
	for _, body := range []string{"one", "two", "three"} {
		b.die(t, body)
	}
	if n := b.source.Outbox(); n != 0 || len(b.source.DeadLetters()) != 3 {
		t.Fatalf("%d in the outbox, %d to send", n, len(b.source.DeadLetters()))
	}
	for id, r := range b.targets {
		if r.Spec().Name == "b" {
			b.settings(t, r, func(c *logpb.QueueConfig) {
				c.MaxLengthPlusOne, c.Overflow = 2, logpb.QueueConfig_REJECT_PUBLISH
			})
		}
		if id == gone.ID {
			b.w.deleteQueue(gone)
			delete(b.targets, id)
		}
	}
	b.w.sender.SendOnce(b.source, b.source.DeadLetters())
	b.carry(t, func() bool { return false })
	for _, r := range b.targets {
		want := []string{"one", "two", "three"}
		if r.Spec().Name == "b" {
			want = want[:1]
		}
		if got := r.Bodies(); !slices.Equal(got, want) {
			t.Errorf("%s holds %q, want %q", r.Spec().Name, got, want)
		}
		r.View(func(m *queue.Machine) {
			for x := range m.Messages() {
				d := x.Deaths[0]
				if d.Queue != "hold" || d.Reason != logpb.Death_EXPIRED || !d.First || len(d.RoutingKeys) != 1 {
					t.Errorf("%s: %v", r.Spec().Name, x.Deaths)
				}
			}
		})
	}
	if b.w.sender.once.bytes != 0 {
		t.Errorf("%d bytes are under way for ever", b.w.sender.once.bytes)
	}
}

// A letter that is delivered at least once waits for a way, and for a place.
func TestOutboxWaits(t *testing.T) {
	b := newLetterbox(t, "a")
	var a *grouptest.Queue
	for _, r := range b.targets {
		a = r
	}
	b.settings(t, b.source, func(c *logpb.QueueConfig) {
		c.DeadLetterStrategy, c.DeadLetterExchange = logpb.QueueConfig_AT_LEAST_ONCE, "missing"
	})
	b.settings(t, a, func(c *logpb.QueueConfig) {
		c.MaxLengthPlusOne, c.Overflow = 2, logpb.QueueConfig_REJECT_PUBLISH
	})
	b.die(t, "one")
	b.die(t, "two")
	waiting := func() (n uint64) {
		b.source.View(func(m *queue.Machine) { n = m.Stats().Waiting.Messages })
		return n
	}
	step := func() {
		b.w.Clock.Add(proposeAgain)
		b.run()
		for len(b.source.Waiting()) > 0 {
			b.source.Commit(t)
		}
		b.carry(t, func() bool { return false })
	}
	for range 12 {
		step()
	}
	if n := waiting(); n != 2 || len(b.source.Waiting()) != 0 {
		t.Fatalf("%d letters wait, %d proposals", n, len(b.source.Waiting()))
	}
	index := b.source.Index()
	for range 30 {
		step()
	}
	if b.source.Index() != index {
		t.Fatalf("%d entries while nothing could change", b.source.Index()-index)
	}

	b.settings(t, b.source, func(c *logpb.QueueConfig) { c.DeadLetterExchange = "amq.fanout" })
	for range 5 {
		step()
	}
	if got := a.Bodies(); !slices.Equal(got, []string{"one"}) || b.source.Outbox() != 1 { // it waits, or is being tried again
		t.Fatalf("%q have arrived, %d are left", got, b.source.Outbox())
	}
	a.Apply(t, group.BatchOf(&logpb.Command{Kind: logpb.Command_PURGE}))
	for range 15 {
		step()
	}
	if got := a.Bodies(); !slices.Equal(got, []string{"two"}) || b.source.Outbox() != 0 {
		t.Fatalf("%q have arrived, %d letters are left", got, b.source.Outbox())
	}
	b.source.View(func(m *queue.Machine) {
		if c := m.Stats().Counters; c.DeadConfirmed != 2 || c.DeadRefused == 0 || c.DeadDropped != 0 {
			t.Errorf("%+v", c)
		}
	})
}

package deadletter

import (
	"fmt"
	"slices"
	"testing"

	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// step lets the sender and its targets do what they have to, without any time passing.
func (b *letterbox) step(t grouptest.Fatal) {
	for range 4 {
		b.run()
		b.commit(t)
		b.carry(t, func() bool { return false })
	}
}

// raise raises the fsm_version to that of this program, which the node announces.
func (b *letterbox) raise(t *testing.T) {
	b.w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{
		Name: "n1", PeerAddress: "n1", Incarnation: []byte("its next process"), OldestVersion: fsm.OldestVersion, NewestVersion: fsm.NewestVersion,
	}}})
	b.w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.FSMVersion, Value: fsm.NewestVersion}}})
	if v := b.w.View().FSMVersion(); v != fsm.NewestVersion {
		t.Fatalf("the version is %d", v)
	}
}

// TestKeptSince: before the version that knows it, no transfer says that it is kept.
func TestKeptSince(t *testing.T) {
	b := newLetterbox(t, "full")
	forwarded := &queue.Letter{DeadLetter: fsm.DeadLetter{Forwarded: true}}
	if b.w.sender.keeps(&logpb.QueueConfig{}, forwarded) {
		t.Error("a transfer says that it is kept, and programs of version 1 do not know that")
	}
	b.raise(t)
	if !b.w.sender.keeps(&logpb.QueueConfig{}, forwarded) || b.w.sender.keeps(&logpb.QueueConfig{}, &queue.Letter{}) {
		t.Error("what is forwarded is kept, and a letter is not")
	}
}

// TestRefusedStays: what a full target refuses leaves nothing there, however often it comes
// again, and whatever its queue does with what it refuses. It comes again at intervals, and
// not because something else in the catalog has changed; nor is it kept from a way that
// opens meanwhile.
func TestRefusedStays(t *testing.T) {
	for name, send := range map[string]func(c *logpb.QueueConfig){
		"forwarded":     func(c *logpb.QueueConfig) { c.Forward, c.ForwardExchange = true, "amq.fanout" },
		"at least once": func(c *logpb.QueueConfig) { c.DeadLetterStrategy = logpb.QueueConfig_AT_LEAST_ONCE },
	} {
		t.Run(name, func(t *testing.T) {
			b := newLetterbox(t, "full")
			b.raise(t)
			b.settings(t, b.source, send)
			to := b.target(t, "full")
			b.settings(t, to, func(c *logpb.QueueConfig) {
				c.MaxLengthPlusOne, c.Overflow, c.DeadLetter, c.DeadLetterExchange = 1, logpb.QueueConfig_REJECT_PUBLISH_DLX, true, "amq.topic"
			})
			refused := func() (n uint64) {
				to.View(func(m *queue.Machine) { n = m.Stats().Counters.Refused })
				return n
			}
			b.w.Clock.Add(retryEvery)
			b.die(t, "kept")
			b.step(t)
			before := refused()
			for i := range 10 {
				b.w.MustQueue(fmt.Sprint("other ", i))
				b.step(t)
			}
			if n := refused(); n != before || before == 0 {
				t.Errorf("it was refused %d times at first, and %d times since other queues were declared", before, n-before)
			}
			b.w.Clock.Add(retryEvery)
			b.step(t)
			if n := refused(); n != before+1 {
				t.Errorf("it is refused %d times when it is due again", n-before)
			}
			if letters := to.DeadLetters(); len(letters) != 0 {
				t.Errorf("the target has sent %d dead letters of it", len(letters))
			}
			b.addTarget("second")
			b.step(t)
			if got := b.target(t, "second").Bodies(); !slices.Equal(got, []string{"kept"}) {
				t.Errorf("another target holds %q", got)
			}
		})
	}
}

// TestRefusedGoesSoon: what a full target has refused goes there soon after there is space, in as
// many steps as the logarithm of its number, and while there is none it is tried more and more
// seldom.
func TestRefusedGoesSoon(t *testing.T) {
	const n = 20
	b := newLetterbox(t, "full")
	b.settings(t, b.source, func(c *logpb.QueueConfig) { c.Forward, c.ForwardExchange = true, "amq.fanout" })
	to := b.target(t, "full")
	limit := func(most uint64) {
		b.settings(t, to, func(c *logpb.QueueConfig) {
			c.MaxLengthPlusOne, c.Overflow = most+1, logpb.QueueConfig_REJECT_PUBLISH
		})
	}
	refused := func() (n uint64) {
		to.View(func(m *queue.Machine) { n = m.Stats().Counters.Refused })
		return n
	}
	limit(0)
	for i := range n {
		b.die(t, fmt.Sprint(i))
	}
	b.step(t)
	if r := refused(); r != n {
		t.Fatalf("%d are refused", r)
	}
	for range retryEvery/probeFirst - 1 {
		b.w.Clock.Add(probeFirst)
		b.step(t)
	}
	if r := refused() - n; r < 2 || r > 4 {
		t.Errorf("%d attempts within the interval", r)
	}
	b.w.Clock.Add(probeFirst)
	b.step(t)
	before := refused()
	limit(n)
	for range 2 {
		b.w.Clock.Add(probeFirst)
		b.step(t)
		b.step(t)
	}
	if got := to.Bodies(); len(got) != n || b.source.Outbox() != 0 || refused() != before {
		t.Errorf("the target holds %d, %d are left, %d more were refused", len(got), b.source.Outbox(), refused()-before)
	}
}

// TestLostIfRefused: of a letter that its source does not keep, a full target that
// dead-letters what it refuses makes a dead letter.
func TestLostIfRefused(t *testing.T) {
	b := newLetterbox(t, "full")
	to := b.target(t, "full")
	b.settings(t, to, func(c *logpb.QueueConfig) {
		c.MaxLengthPlusOne, c.Overflow, c.DeadLetter, c.DeadLetterExchange = 1, logpb.QueueConfig_REJECT_PUBLISH_DLX, true, "amq.topic"
	})
	b.die(t, "passed on")
	b.step(t)
	if n := len(to.DeadLetters()); n != 1 || b.source.Outbox() != 0 {
		t.Errorf("%d dead letters, %d letters are left at the source", n, b.source.Outbox())
	}
}

// TestHops: how often a message was forwarded is known behind every death but a rejection,
// and behind a delayed exchange, so that a circle of both ends.
func TestHops(t *testing.T) {
	out := fsm.Readable(grouptest.Payload("m"))
	for _, c := range []struct {
		letter fsm.DeadLetter
		want   uint32
	}{
		{fsm.DeadLetter{Reason: logpb.Death_EXPIRED, Hops: 3}, 3},
		{fsm.DeadLetter{Reason: logpb.Death_MAXLEN, Hops: 3}, 3},
		{fsm.DeadLetter{Reason: logpb.Death_DELIVERY_LIMIT, Hops: 3}, 3},
		{fsm.DeadLetter{Reason: logpb.Death_MAXHOPS, Hops: 4}, 4},
		{fsm.DeadLetter{Reason: logpb.Death_REJECTED, Hops: 3}, 0},
		{fsm.DeadLetter{Forwarded: true, Hops: 3}, 3},
		{fsm.DeadLetter{ScheduledFor: 9, Hops: 3}, 3},
	} {
		if e := reenqueued(&logpb.QueueConfig{}, &c.letter, out, 0); e.Hops != c.want {
			t.Errorf("%v, forwarded %v: %d hops, want %d", c.letter.Reason, c.letter.Forwarded, e.Hops, c.want)
		}
	}
}

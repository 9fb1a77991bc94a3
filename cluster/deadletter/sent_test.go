package deadletter

import (
	"fmt"
	"slices"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// newSending returns a queue from which messages are sent, "to" and "off", and "refused" for what these do not take.
func newSending(t grouptest.Fatal) (b *letterbox, to, off, refused *grouptest.Queue) {
	w := newWorld(t)
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.FSMVersion, Value: 3}}})
	q := w.MustDeclare(&logpb.DeclareQueue{Vhost: "/", Name: "source", Durable: true, Members: []uint32{1}, Arguments: &fsm.Table{Fields: []*logpb.Field{
		{Name: "x-sent-refused-queue", Value: &logpb.Value{Tag: 'S', Str: []byte("refused")}},
	}}})
	b = &letterbox{w: w, source: grouptest.NewQueue(t, w.Catalog, q), targets: map[fsm.QueueID]*grouptest.Queue{}}
	b.start()
	for _, name := range []string{"to", "off", "refused"} {
		b.addTarget(name)
	}
	b.settings(t, b.target(t, "off"), func(c *logpb.QueueConfig) { c.RefusePublishes = true })
	return b, b.target(t, "to"), b.target(t, "off"), b.target(t, "refused")
}

// send has the source send a message to a queue.
func (b *letterbox) send(t grouptest.Fatal, body string, to *grouptest.Queue) {
	batch := grouptest.Enqueue(grouptest.Payload(body))
	e := grouptest.Commands(t, batch)[0]
	e.Enqueue.SendTo = uint64(to.Spec().Queue)
	batch.Commands = group.AppendCommand(nil, &logpb.Command{Kind: logpb.Command_UNIT, Unit: &logpb.Unit{Commands: []*logpb.Command{e}, Size: e.Enqueue.Size}})
	b.source.Apply(t, batch)
}

// mustHave checks what a queue has, and that it died in the source, once, because nobody took it, and does not expire.
func (b *letterbox) mustHave(t *testing.T, r *grouptest.Queue, bodies ...string) {
	t.Helper()
	got := r.Bodies()
	slices.Sort(got)
	if !slices.Equal(got, bodies) {
		t.Errorf("%s holds %q, want %q", r.Spec().Name, got, bodies)
	}
	r.View(func(m *queue.Machine) {
		for x := range m.Messages() {
			if len(x.Deaths) != 1 || x.Deaths[0].Reason != logpb.Death_UNROUTABLE || x.Deaths[0].Queue != "source" || x.Deaths[0].Count != 1 || x.Deaths[0].Time == 0 || x.ExpireAt != 0 {
				t.Errorf("it died of %v, expires at %v", x.Deaths, x.ExpireAt)
			}
		}
	})
}

// TestSentRefused: what was sent and is not taken goes to the queue for that, at once and as a dead letter; what is taken does not.
func TestSentRefused(t *testing.T) {
	b, to, off, refused := newSending(t)
	b.send(t, "taken", to)
	b.send(t, "1", off)
	b.step(t)
	b.send(t, "2", off)
	b.step(t)
	b.step(t)
	b.mustHave(t, refused, "1", "2")
	if got := to.Bodies(); !slices.Equal(got, []string{"taken"}) || b.source.Outbox() != 0 {
		t.Errorf("it holds %q, %d letters are left", got, b.source.Outbox())
	}
	if c := b.counters(); c.Forwarded != 3 || c.DeadRefused != 2 {
		t.Errorf("%+v", c)
	}
}

// TestSentToGone: so does what is sent to a queue that is gone before it is routed, or while it is on its way, and what is sent to the queue
// for refused messages in the place of such a queue.
func TestSentToGone(t *testing.T) {
	for steps := range 3 {
		t.Run(fmt.Sprint(steps), func(t *testing.T) {
			b, to, _, refused := newSending(t)
			b.send(t, "1", to)
			b.send(t, "2", refused)
			for range steps {
				b.run()
				b.commit(t)
			}
			b.lose(to)
			b.drain(t)
			b.mustHave(t, refused, "1", "2")
		})
	}
}

// TestSentRefusedOnce: each goes there once, whatever gets lost and whoever sends it.
func TestSentRefusedOnce(t *testing.T) {
	b, to, off, refused := newSending(t)
	var all, taken []string
	for i := range 20 {
		all = append(all, fmt.Sprintf("%02d", i))
		b.send(t, all[i], []*grouptest.Queue{to, off}[i%2])
	}
	n := 0
	lose := func() bool { n++; return n%3 == 0 }
	for i := range 30 {
		if i == 2 {
			taken = to.Bodies()
			b.lose(to)
		}
		if i%4 == 3 {
			b.start()
		}
		b.w.Clock.Add(proposeAgain / 2)
		b.run()
		if i%5 == 4 {
			b.source.Lose(len(b.source.Waiting()))
		}
		b.commit(t)
		b.carry(t, lose)
	}
	b.drain(t)
	b.mustHave(t, refused, slices.DeleteFunc(all, func(body string) bool { return slices.Contains(taken, body) })...)
}

// TestSentRefusedTwice: what the queue for refused messages refuses, too, is tried again at intervals; if there is no such queue, it
// waits, or comes back, as anything that is sent.
func TestSentRefusedTwice(t *testing.T) {
	b, to, off, refused := newSending(t)
	b.settings(t, refused, func(c *logpb.QueueConfig) { c.RefusePublishes = true })
	b.send(t, "2", to)
	for i := range 20 {
		if i < 2 {
			b.send(t, "1", off)
		}
		b.run()
		b.commit(t)
		b.carry(t, func() bool { return false })
	}
	refusals := func() (n uint64) {
		refused.View(func(m *queue.Machine) { n = m.Stats().Counters.Refused })
		return n
	}
	if n := refusals(); n == 0 || n > 4 || b.source.Outbox() != 2 {
		t.Errorf("refused %d times, %d letters", n, b.source.Outbox())
	}
	b.lose(refused)
	b.settings(t, off, func(c *logpb.QueueConfig) { c.RefusePublishes = false })
	b.drain(t)
	if got := off.Bodies(); !slices.Equal(got, []string{"1", "1"}) {
		t.Errorf("its destination holds %q", got)
	}
	b.send(t, "3", off)
	b.lose(off)
	b.drain(t)
	if got := b.source.Bodies(); !slices.Equal(got, []string{"3"}) {
		t.Errorf("the source holds %q", got)
	}
}

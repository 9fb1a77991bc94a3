package session

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/stream/streamtest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// backlog is a leader's side of a consumer that holds count messages of size bytes: it answers what a
// session asks.
type backlog struct {
	w      *world
	s      *Session
	g      *group.Group
	ref    fsm.Ref // of all messages
	number uint64
	count  uint64
	size   int
}

// mustBacklogs returns what makes the backlog of a consumer of one queue.
func mustBacklogs(t *testing.T, count uint64, size int) (*recorder, *stream.Stream, func(number uint64) *backlog) {
	t.Helper()
	w, c, s, l := mustStream(t)
	q, _ := w.View().QueueByID(l.Queue())
	w.host.mute = true
	g, ref := w.mustStore(t, q, make([]byte, size))
	return c, l, func(number uint64) *backlog {
		addConsumer(s, l, number, false)
		return &backlog{w: w, s: s, g: g, ref: ref, number: number, count: count, size: int(ref.Size)}
	}
}

// mustStore opens a local group for a queue, and stores a message in it.
func (w *world) mustStore(t *testing.T, q *catalog.Queue, body []byte) (*group.Group, fsm.Ref) {
	t.Helper()
	host := w.mustHost()
	g := host.OpenLocal(group.Spec{Group: q.Group, Queue: q.ID, VHost: "/", Name: q.Name, Local: true, Members: []string{"n1"}, Config: &logpb.QueueConfig{DeliveryLimit: -1}})
	t.Cleanup(func() { host.DropLocal(q.Group) })
	payload := grouptest.Payload(string(body))
	b := group.BatchOf(&logpb.Command{
		Kind: logpb.Command_ENQUEUE, Session: fsm.SessionID{Node: 1, Boot: 1, Num: 1}.Proto(), Seq: 1, Enqueue: &logpb.Enqueue{Size: uint32(len(payload))},
	})
	b.Payloads, b.Bytes = [][]byte{payload}, len(payload)
	must(t, g.Submit(b))
	must(t, g.Barrier(time.Minute))
	ref := fsm.Ref{Size: uint32(len(payload))}
	g.View(func(m *queue.Machine) {
		for ref.Index = range m.LiveIndexes() {
		}
	})
	return g, ref
}

func (b *backlog) deliveries(after, last uint64) []fsm.Delivery {
	var ds []fsm.Delivery
	for id := after + 1; id <= last; id++ {
		ds = append(ds, fsm.Delivery{To: fsm.ConsumerID{Session: b.s.id, Number: b.number}, ID: id, Ref: b.ref})
	}
	return ds
}

// deliver hands out everything.
func (b *backlog) deliver() {
	b.w.queues.Perform(b.g, &group.Work{Effects: fsm.Effects{Deliveries: b.deliveries(0, b.count)}})
}

// answer does what the leader does with a question that is under way, if any.
func (b *backlog) answer() bool {
	b.s.mu.Lock()
	after, asked, _ := b.s.known[b.number].Position()
	b.s.mu.Unlock()
	if !asked {
		return false
	}
	last := min(b.count, after+uint64(max(1, queues.MaxFrameBytes/(b.size+group.DeliveryWeight))))
	r := group.Resynced{To: fsm.ConsumerID{Session: b.s.id, Number: b.number}, Last: last, Held: b.deliveries(after, last)}
	if last < b.count {
		r.More = last + 1
	}
	b.w.queues.Perform(b.g, &group.Work{Resyncs: []group.Resynced{r}})
	return true
}

// A session takes what its channel has room for, asks for the rest as the
// channel writes, and gets all of it in order.
func TestDeliveriesAreBounded(t *testing.T) {
	for _, size := range []int{10, 1 << 10, 100 << 10, 3 << 20, 9 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			count := uint64(max(8, 20<<20/(size+group.DeliveryWeight)))
			c, _, backlogOf := mustBacklogs(t, count, size)
			b := backlogOf(5)
			b.deliver()
			next, most := 0, int64(0)
			for next < int(count) {
				for b.answer() {
				}
				most = max(most, b.s.unwritten.Load())
				if len(c.messages) == next {
					t.Fatalf("stuck at %d of %d with %d unwritten, hungry %v", next, count, b.s.unwritten.Load(), b.s.hungry.Load())
				}
				for _, m := range c.messages[next:] {
					if next++; m.ID != uint64(next) {
						t.Fatalf("delivery %d has the number %d", next, m.ID)
					}
					b.s.Written(1, len(m.Payload))
				}
			}
			for b.answer() {
			}
			if bound := int64(maxUnwritten + b.size + group.DeliveryWeight); most > bound {
				t.Errorf("%d bytes given and not written, bound %d", most, bound)
			}
			if _, _, behind := b.s.known[5].Position(); len(c.messages) != int(count) || b.s.unwritten.Load() != 0 || behind {
				t.Errorf("%d of %d delivered, %d unwritten, behind: %v",
					len(c.messages), count, b.s.unwritten.Load(), behind)
			}
		})
	}
}

// One consumer that is behind does not keep another one of its session, which
// has room: it is asked for in its turn.
func TestHungryConsumersAreServedInTurn(t *testing.T) {
	c, _, backlogOf := mustBacklogs(t, 40, 1<<20)
	backlogs := map[uint64]*backlog{}
	for n := uint64(1); n <= 8; n++ {
		backlogs[n] = backlogOf(n)
		backlogs[n].deliver()
	}
	s := backlogs[1].s
	for next := 0; next < 8*40; {
		for _, b := range backlogs {
			b.answer()
		}
		if len(c.messages) == next {
			t.Fatalf("stuck at %d", next)
		}
		for _, m := range c.messages[next:] {
			next++
			s.Written(1, len(m.Payload))
		}
	}
	last := map[uint64]uint64{}
	for _, m := range c.messages {
		if m.ID != last[m.Consumer]+1 {
			t.Fatalf("consumer %d: %d behind %d", m.Consumer, m.ID, last[m.Consumer])
		}
		last[m.Consumer] = m.ID
	}
}

// What a cancelled consumer was handed and never got goes back to the queue.
func TestUnseenGoesBack(t *testing.T) {
	_, l, backlogOf := mustBacklogs(t, 9, 1<<20)
	b := backlogOf(5)
	sent := make(chan group.Batch, 16)
	b.w.submits(l.Queue(), func(_ string, b group.Batch) error {
		sent <- b
		return nil
	})
	b.deliver()
	last, _, _ := b.s.known[5].Position()
	if last == 0 || last == 9 {
		t.Fatalf("%d of 9 have come", last)
	}
	request(b.s, l, &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 5}})
	told := grouptest.Commands(t, <-sent)
	streamtest.Tell(l, grouptest.OK(1, 1))
	for told[0].Settle == nil { // a new leader is sent the first one again
		told = grouptest.Commands(t, <-sent)
	}
	if len(told) != 1 || told[0].Settle.GetOutcome() != fsm.Requeue || told[0].Settle.GetConsumer() != 5 ||
		!slices.Equal(told[0].Settle.GetRanges(), []uint64{last + 1, ^uint64(0) - last}) {
		t.Errorf("the queue is told %v", told)
	}
}

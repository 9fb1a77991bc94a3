package session

import (
	"fmt"
	"slices"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// backlog is a leader's side of a consumer that holds count messages of size
// bytes: it answers what a session asks.
type backlog struct {
	s      *Session
	l      *stream.Stream
	number uint64
	count  uint64
	size   int
}

func mustBacklog(t *testing.T, count uint64, size int) (*recorder, *backlog) {
	t.Helper()
	_, c, s, l := mustStream(t)
	addConsumer(s, l, 5, false)
	return c, &backlog{s: s, l: l, number: 5, count: count, size: size}
}

func (b *backlog) Payload(fsm.Ref) ([]byte, error) { return make([]byte, b.size), nil }

func (b *backlog) deliveries(after uint64) []fsm.Delivery {
	var ds []fsm.Delivery
	for id := after + 1; id <= b.count; id++ {
		ds = append(ds, fsm.Delivery{
			To: fsm.ConsumerID{Session: b.s.id, Number: b.number}, ID: id, Ref: fsm.Ref{Index: id, Size: uint32(b.size)},
		})
	}
	return ds
}

// answer does what the leader does with a question that is under way, if any.
func (b *backlog) answer() bool {
	b.s.mu.Lock()
	after, asked, _ := b.s.known[b.number].Position()
	b.s.mu.Unlock()
	if !asked {
		return false
	}
	held := b.deliveries(after)
	r := &group.Resynced{To: fsm.ConsumerID{Session: b.s.id, Number: b.number}, Last: b.count, Held: held}
	if most := max(1, maxFrameBytes/(b.size+group.DeliveryWeight)); len(held) > most {
		r.Held, r.Last, r.More = held[:most], held[most-1].ID, held[most].ID
	}
	b.s.broker().dispatcher.resync(b, b.l.Queue(), r)
	return true
}

// A session takes what its channel has room for, asks for the rest as the
// channel writes, and gets all of it in order.
func TestDeliveriesAreBounded(t *testing.T) {
	for _, size := range []int{10, 1 << 10, 100 << 10, 3 << 20, 9 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			count := uint64(max(8, 20<<20/(size+group.DeliveryWeight)))
			c, b := mustBacklog(t, count, size)
			b.s.broker().dispatcher.deliveries(b, b.l.Queue(), b.deliveries(0))
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
			if bound := int64(maxUnwritten + size + group.DeliveryWeight); most > bound {
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
	w, c, s, l := mustStream(t)
	q := l.Queue()
	backlogs := map[uint64]*backlog{}
	for n := uint64(1); n <= 8; n++ {
		addConsumer(s, l, n, false)
		backlogs[n] = &backlog{s: s, l: l, number: n, count: 40, size: 1 << 20}
		w.broker.dispatcher.deliveries(backlogs[n], q, backlogs[n].deliveries(0))
	}
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
	_, b := mustBacklog(t, 9, 1<<20)
	b.s.broker().dispatcher.deliveries(b, b.l.Queue(), b.deliveries(0))
	last, _, _ := b.s.known[5].Position()
	if last == 0 || last == 9 {
		t.Fatalf("%d of 9 have come", last)
	}
	request(b.s, b.l, &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 5}})
	take(b.l)
	tell(b.l, grouptest.OK(1, 1))
	told := grouptest.Commands(t, take(b.l)[0])
	if len(told) != 1 || told[0].Settle.GetOutcome() != fsm.Requeue || told[0].Settle.GetConsumer() != 5 ||
		!slices.Equal(told[0].Settle.GetRanges(), []uint64{last + 1, ^uint64(0) - last}) {
		t.Errorf("the queue is told %v", told)
	}
}

package v091

import (
	"fmt"
	"slices"
	"testing"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/fsm"
)

// TestRequestQueue: requests leave in their order, and a reader that waits is
// woken when the queue is not full any more.
func TestRequestQueue(t *testing.T) {
	for name, size := range map[string]int{"count": 0, "bytes": maxQueuedBytes / 100} {
		t.Run(name, func(t *testing.T) { fillQueue(t, size) })
	}
}

func fillQueue(t *testing.T, size int) {
	q := newRequestQueue(&amqp.Account{})
	pushed := uint64(0)
	for !q.wait(false) {
		pushed++
		r := request{kind: requestPublish}
		r.message.publish.Number, r.message.publish.Payload = pushed, make(fsm.Payload, size)
		q.push(&r)
	}
	if limit := uint64(maxQueued); pushed > limit || size > 0 && pushed > uint64(maxQueuedBytes/size)+1 {
		t.Fatalf("full after %d requests of %d octets", pushed, size)
	}
	q.push(&request{kind: requestClose})
	if !q.has(requestClose) || q.has(requestEnd) {
		t.Error("what is there is not found")
	}
	for n := uint64(1); n <= pushed; n++ {
		r, ok := q.pop()
		if !ok || r.message.publish.Number != n {
			t.Fatalf("request %d is %d, %v", n, r.message.publish.Number, ok)
		}
		if woken := len(q.space) == 1; woken != !q.full() {
			t.Fatalf("%d left, %d octets: woken %v", len(q.list), q.bytes, woken)
		}
	}
	if left := (&request{}).weight(); q.bytes != left || len(q.list) != 1 {
		t.Errorf("%d octets in %d requests left, want %d", q.bytes, len(q.list), left)
	}
	q.clear()
	if q.bytes != 0 || q.memory.Bytes() != 0 {
		t.Errorf("%d octets are left, %d count", q.bytes, q.memory.Bytes())
	}
	if _, ok := q.pop(); ok {
		t.Error("a request of none")
	}
}

// settleLog is a session that keeps what it is asked to settle.
type settleLog struct {
	amqp.Session
	calls []string
}

func (l *settleLog) Settle(consumer uint64, ids []uint64, outcome fsm.Outcome) {
	l.calls = append(l.calls, fmt.Sprint(consumer, ids, outcome))
}

func (l *settleLog) expect(t *testing.T, calls ...string) {
	t.Helper()
	if !slices.Equal(l.calls, calls) {
		t.Errorf("settled %q, want %q", l.calls, calls)
	}
	l.calls = nil
}

// TestSettler: one call settles what belongs to one consumer, ascending; what
// has to wait goes out in its order.
func TestSettler(t *testing.T) {
	var log settleLog
	s := settler{session: &log}
	list := append(s.scratch(), held{1, 7, 10}, held{2, 7, 12}, held{3, 7, 11})
	s.pass(list, fsm.Ack)
	log.expect(t, "7 [10 11 12] ACK")
	list = append(s.scratch(), held{4, 8, 5}, held{5, 7, 13}, held{6, 8, 6})
	s.pass(list, fsm.Requeue)
	log.expect(t, "7 [13] REQUEUE", "8 [5 6] REQUEUE")
	s.pass(s.scratch(), fsm.Ack)
	log.expect(t)

	s.later(1, []uint64{3, 2}, fsm.Ack)
	s.later(2, []uint64{1}, fsm.Discard)
	s.flush()
	log.expect(t, "1 [2 3] ACK", "2 [1] DISCARD")
	s.later(1, []uint64{4}, fsm.Ack)
	s.clear()
	s.flush()
	log.expect(t)

	s.passAll([]uncommitted{{held{1, 1, 1}, fsm.Ack}, {held{2, 1, 2}, fsm.Ack}, {held{3, 1, 3}, fsm.Discard}, {held{4, 1, 4}, fsm.Ack}})
	log.expect(t, "1 [1 2] ACK", "1 [3] DISCARD", "1 [4] ACK")
}

// TestSettleWritten: what was written to a client that does not acknowledge is
// settled at once, after a blocking call, or never once the session is being closed.
func TestSettleWritten(t *testing.T) {
	var log settleLog
	ch := &channel{settler: settler{session: &log}}
	ch.settleWritten(1, []uint64{2, 1})
	log.expect(t, "1 [1 2] ACK")
	ch.busy = true
	ch.settleWritten(1, []uint64{3})
	log.expect(t)
	ch.settler.flush()
	log.expect(t, "1 [3] ACK")
	for _, ch.busy = range []bool{false, true} {
		ch.end.sessionClosing = true
		ch.settleWritten(1, []uint64{4})
		ch.settler.flush()
		log.expect(t)
	}
}

// TestCommits: a commit counts the outcomes of its own publishes, whatever else
// is confirmed, and fails when none will come any more.
func TestCommits(t *testing.T) {
	var c commits
	c.resolve(1, 2, false) // nobody waits
	k, err := c.begin(10)
	must(t, err)
	c.resolve(5, 9, false)
	c.resolve(8, 10, true)
	c.resolve(12, 12, true)
	k.published(3)
	expectDone(t, k, false)
	c.resolve(11, 11, false)
	expectDone(t, k, true)
	if !k.refused || k.err != nil {
		t.Errorf("%+v", k)
	}
	c.end()

	k, err = c.begin(13)
	must(t, err)
	k.published(1)
	c.lose(amqp.ErrEnding)
	if expectDone(t, k, true); k.err != amqp.ErrEnding {
		t.Errorf("%v", k.err)
	}
	if _, err := c.begin(14); err != amqp.ErrEnding {
		t.Errorf("a commit begins: %v", err)
	}
}

func expectDone(t *testing.T, k *commit, want bool) {
	t.Helper()
	select {
	case <-k.done:
		if !want {
			t.Fatal("done too early")
		}
	default:
		if want {
			t.Fatal("not done")
		}
	}
}

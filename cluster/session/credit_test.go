package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/stream/streamtest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// creditQueue is the leader of a queue with one consumer in credit mode, of a session that takes
// and answers when the test says so.
type creditQueue struct {
	t     *testing.T
	c     *recorder
	s     *Session
	l     *stream.Stream
	m     *queue.Machine
	index uint64
	now   fsm.Time
	sent  []*logpb.Credit // that came here, in order
}

func mustCreditQueue(t *testing.T, b queue.Bounds) *creditQueue {
	t.Helper()
	_, c, s, l := mustStream(t)
	q := &creditQueue{t: t, c: c, s: s, l: l, m: queue.New("q", 7), now: 1_000_000}
	q.m.SetBounds(b)
	addConsumer(s, l, 1, false)
	s.mu.Lock()
	s.known[1].link.on = true
	l.Add(&logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Credit: true}}, stream.Pending{Note: ownMessage{}})
	s.mu.Unlock()
	q.serve()
	return q
}

// creditBounds let a command do little.
var creditBounds = queue.Bounds{Before: 2, Tick: 8, Drops: 8, Sweep: 8, HandOuts: 3, Consumers: 100, IDs: 100, Skips: 100, States: 1000}

// apply performs a command, and returns its answer and what it hands out.
func (q *creditQueue) apply(c *logpb.Command) (fsm.Result, []fsm.Message) {
	q.index++
	var eff fsm.Effects
	r := q.m.Apply(fsm.Meta{Index: q.index, Term: 1, Now: q.now, Session: fsm.SessionFrom(c.Session), Version: fsm.NewestVersion}, c, &eff)
	return r, q.messages(&eff)
}

func (q *creditQueue) messages(eff *fsm.Effects) (all []fsm.Message) {
	for _, d := range eff.Deliveries {
		all = append(all, fsm.Message{Consumer: d.To.Number, ID: d.ID, Payload: grouptest.Payload("m")})
	}
	return all
}

// receive performs the commands that the session has sent.
func (q *creditQueue) receive() (answers []group.Outcome, handed []fsm.Message) {
	for _, b := range streamtest.Take(q.l) {
		for _, c := range grouptest.Commands(q.t, b) {
			if c.Kind == logpb.Command_CREDIT {
				q.sent = append(q.sent, c.Credit)
			}
			r, out := q.apply(c)
			answers, handed = append(answers, group.Outcome{First: c.Seq, Run: 1, Result: r}), append(handed, out...)
		}
	}
	return answers, handed
}

// serve performs what the session has sent, and tells it what has come of that.
func (q *creditQueue) serve() {
	answers, handed := q.receive()
	q.hand(handed)
	streamtest.Tell(q.l, answers...)
}

func (q *creditQueue) hand(messages []fsm.Message) {
	if len(messages) > 0 {
		q.l.Receive(stream.DeliveryBatch{Messages: messages})
	}
}

// resync answers a question for what the consumer has missed.
func (q *creditQueue) resync() {
	q.s.mu.Lock()
	last, _, _ := q.s.known[1].Position()
	q.s.mu.Unlock()
	of := fsm.ConsumerID{Session: q.s.id, Number: 1}
	var eff fsm.Effects
	q.m.Held(of, last, 1<<20, &eff)
	q.l.Receive(stream.DeliveryBatch{Resync: true, Consumer: 1, Last: q.m.Newest(of), Messages: q.messages(&eff)})
}

func (q *creditQueue) publish(n int) {
	for range n {
		_, handed := q.apply(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 9}})
		q.hand(handed)
	}
}

// notices are what the client has been told of its consumer.
func (q *creditQueue) notices() (all []string) {
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	for _, x := range q.c.log {
		if x != "deliver" {
			all = append(all, x)
		}
	}
	return all
}

func (q *creditQueue) given() int {
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	return len(q.c.messages)
}

// expect checks how many messages the client has, and which credit the queue was told of.
func (q *creditQueue) expect(given int, credits ...uint32) {
	q.t.Helper()
	var sent []uint32
	for _, c := range q.sent {
		sent = append(sent, c.Credit)
	}
	if got := q.given(); got != given || !slices.Equal(sent, credits) {
		q.t.Errorf("the client has %d messages, the queue was told %v; want %d and %v", got, sent, given, credits)
	}
}

// At most one command about credit is on its way, and a newer flow replaces one that waits.
func TestCreditIsCoalesced(t *testing.T) {
	q := mustCreditQueue(t, queue.Bounds{Before: 64, Tick: 64, Drops: 64, Sweep: 64, HandOuts: 2048, Consumers: 10, IDs: 1, Skips: 1, States: 1})
	for n := range uint32(5) {
		q.s.Credit(1, fsm.Flow{Credit: 10 + n})
	}
	answers, _ := q.receive()
	q.expect(0, 10)
	q.s.Credit(1, fsm.Flow{Credit: 90})
	q.s.Credit(1, fsm.Flow{Credit: 4})
	if again, _ := q.receive(); len(again) > 0 {
		t.Error("a second command is on its way")
	}
	streamtest.Tell(q.l, answers...)
	q.serve()
	q.expect(0, 10, 4)
	q.publish(6)
	q.expect(4, 10, 4)
	q.s.Credit(2, fsm.Flow{Credit: 4}) // nobody
	q.s.Settle(1, []uint64{1, 2, 3, 4}, fsm.Ack)
	q.serve()
	q.expect(4, 10, 4) // settling gives none
}

// A receiver that says after each message how many it takes costs a command for half of that.
func TestCreditIsToppedUp(t *testing.T) {
	q := mustCreditQueue(t, queue.Bounds{Before: 64, Tick: 64, Drops: 64, Sweep: 64, HandOuts: 2048, Consumers: 10, IDs: 1, Skips: 1, States: 1})
	q.s.Credit(1, fsm.Flow{Credit: 1000})
	q.serve()
	for n := range uint32(1280) {
		q.publish(1)
		q.s.Credit(1, fsm.Flow{DeliveryCount: n + 1, Credit: 1000})
		q.serve()
	}
	q.expect(1280, slices.Repeat([]uint32{maxQueueCredit}, 11)...)
	q.s.Credit(1, fsm.Flow{DeliveryCount: 1280, Credit: 1})
	q.serve()
	for n := range uint32(10) {
		q.publish(1)
		q.s.Credit(1, fsm.Flow{DeliveryCount: 1281 + n, Credit: 1})
		q.serve()
	}
	q.expect(1290, append(slices.Repeat([]uint32{maxQueueCredit}, 11), slices.Repeat([]uint32{1}, 11)...)...)
}

// A drain ends after the messages that it hands out, even if these come late, and not before
// the work that is due is done.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := mustCreditQueue(t, creditBounds)
		q.s.Credit(1, fsm.Flow{Credit: 5, Drain: true})
		q.serve()
		q.publish(7)
		q.expect(0, 5)
		q.s.Credit(1, fsm.Flow{DeliveryCount: 5, Credit: 1000, Drain: true})
		answers, handed := q.receive()
		streamtest.Tell(q.l, answers...)
		if got, want := q.notices(), []string{"credited 1 {DeliveryCount:5 Credit:0 Available:0 Drained:true}"}; !slices.Equal(got, want) {
			t.Errorf("told before the messages: %q, want %q", got, want)
		}
		q.hand(handed)
		for range 5 {
			synctest.Wait()
			q.serve()
			time.Sleep(longGetPause)
		}
		q.expect(7, 5, 1000, 997, 994)
		if got, want := q.notices()[1:], []string{"credited 1 {DeliveryCount:1005 Credit:0 Available:0 Drained:true}"}; !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
		// The end is told after the last message, which comes after the answer.
		q.publish(2)
		q.s.Credit(1, fsm.Flow{DeliveryCount: 1005, Credit: 5, Drain: true})
		answers, handed = q.receive()
		streamtest.Tell(q.l, answers...)
		if got := q.notices()[2:]; len(got) > 0 {
			t.Errorf("told before the messages: %q", got)
		}
		q.hand(handed)
		if got, want := q.notices()[2:], []string{"credited 1 {DeliveryCount:1010 Credit:0 Available:0 Drained:true}"}; q.given() != 9 || !slices.Equal(got, want) {
			t.Errorf("%d messages, told %q, want %q", q.given(), got, want)
		}
		// Credit after it, and what there is without asking for more.
		q.s.Credit(1, fsm.Flow{DeliveryCount: 1010, Credit: 2})
		q.serve()
		q.publish(4)
		q.s.Credit(1, fsm.Flow{DeliveryCount: 1012, Credit: 0, Echo: true})
		q.serve()
		if got, want := q.notices()[3:], []string{"credited 1 {DeliveryCount:1012 Credit:0 Available:2 Drained:false}"}; q.given() != 11 || !slices.Equal(got, want) {
			t.Errorf("%d messages, told %q, want %q", q.given(), got, want)
		}
	})
}

// What was handed out and never came is not lost credit, and an answer that got lost is asked for
// again.
func TestCreditSurvivesLosses(t *testing.T) {
	q := mustCreditQueue(t, queue.Bounds{Before: 64, Tick: 64, Drops: 64, Sweep: 64, HandOuts: 2048, Consumers: 10, IDs: 1, Skips: 1, States: 1})
	q.s.Credit(1, fsm.Flow{Credit: 2})
	q.serve()
	for range 2 {
		q.apply(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 9}}) // lost on its way
	}
	settle := &logpb.Settle{Outcome: logpb.Settle_REQUEUE, Consumer: 1, Ranges: []uint64{1, 2}, Holder: q.s.id.Proto()}
	q.apply(&logpb.Command{Kind: logpb.Command_SETTLE, Settle: settle}) // and taken back
	q.resync()
	q.serve()
	q.expect(2, 2, 2)
	q.s.Credit(1, fsm.Flow{DeliveryCount: 2, Credit: 3})
	lost, _ := q.receive() // its repetition has no numbers
	streamtest.Tell(q.l, group.Outcome{First: lost[0].First, Run: 1})
	q.serve()
	q.publish(5)
	q.serve()
	q.expect(5, 2, 2, 3, 3)
	q.s.Credit(1, fsm.Flow{DeliveryCount: 5, Credit: 9, Drain: true})
	lost, handed := q.receive()
	q.hand(handed)
	streamtest.Tell(q.l, group.Outcome{First: lost[0].First, Run: 1})
	q.serve()
	if got, want := q.notices(), []string{"credited 1 {DeliveryCount:14 Credit:0 Available:0 Drained:true}"}; q.given() != 7 || !slices.Equal(got, want) {
		t.Errorf("%d messages, told %q, want %q", q.given(), got, want)
	}
}

// A client that has taken its credit back is given nothing, although the answer to what it gave before was lost.
func TestCreditTakenBackAfterLoss(t *testing.T) {
	q := mustCreditQueue(t, creditBounds)
	q.s.Credit(1, fsm.Flow{Credit: 5})
	lost, _ := q.receive()
	q.s.Credit(1, fsm.Flow{})
	streamtest.Tell(q.l, group.Outcome{First: lost[0].First, Run: 1}) // its repetition has no numbers
	q.serve()
	q.publish(5)
	q.serve()
	if n := q.given(); n != 0 {
		t.Errorf("a client without credit is given %d messages", n)
	}
}

// Credit mode is refused while a node may not know it.
func TestCreditNeedsVersion(t *testing.T) {
	w := newWorld(t)
	w.MustQueue("q")
	if err := w.mustSession(&recorder{}).Consume(context.Background(), fsm.ConsumeSpec{Queue: "q", Number: 1, Credit: true}); !isKind(err, fsm.NotImplemented) {
		t.Errorf("a consumer with credit, in version %d: %v", w.View().FSMVersion(), err)
	}
}

// Whatever is late, lost or said again: a client never has more than it gave credit for, gets all
// that it gave credit for, and each drain ends.
func TestCreditIsKept(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			q := mustCreditQueue(t, creditBounds)
			client := &creditClient{creditQueue: q}
			var answers []group.Outcome
			for range 200 {
				switch r.IntN(12) {
				case 0, 1:
					q.publish(r.IntN(4))
				case 2, 3:
					client.flow(fsm.Flow{Credit: []uint32{0, 1, 2, 3, 5, 9}[r.IntN(6)], Drain: r.IntN(3) == 0, Echo: r.IntN(4) == 0}, uint64(r.IntN(3)))
				case 4: // what was answered before comes before
					streamtest.Tell(q.l, answers...)
					answers = nil
					q.serve()
				case 5: // answers come late, and messages before
					more, handed := q.receive()
					q.hand(handed)
					answers = append(answers, more...)
				case 6: // or after, or not at all
					more, _ := q.receive()
					answers = append(answers, more...)
				case 7:
					streamtest.Tell(q.l, answers...)
					answers = nil
				case 8:
					q.resync()
				case 9: // the queue takes back what the client may have or not
					settle := &logpb.Settle{Outcome: logpb.Settle_REQUEUE, Consumer: 1, Ranges: []uint64{1, 1 << 40}, Holder: q.s.id.Proto()}
					_, handed := q.apply(&logpb.Command{Kind: logpb.Command_SETTLE, Settle: settle})
					q.hand(handed)
				case 10:
					_, handed := q.apply(&logpb.Command{Kind: logpb.Command_TICK})
					q.hand(handed)
				case 11: // a new leader, which knows no answers with numbers
					for i := range answers {
						answers[i].Result = fsm.Result{Code: answers[i].Result.Code}
					}
					time.Sleep(longGetPause)
				}
				client.check(seed)
			}
			streamtest.Tell(q.l, answers...)
			for range 40 {
				q.resync()
				q.serve()
				_, handed := q.apply(&logpb.Command{Kind: logpb.Command_TICK})
				q.hand(handed)
				time.Sleep(longGetPause)
				synctest.Wait()
			}
			client.check(seed)
			client.settled(seed)
		})
	}
}

// creditClient is the receiver of a consumer in credit mode.
type creditClient struct {
	*creditQueue
	seen    int    // messages
	heard   int    // what it was told
	count   uint64 // as it was told, or has counted
	limit   uint64 // of the newest flow
	highest uint64 // of all flows
	drains  bool   // the newest flow does, and has not ended
}

// flow says what it takes. It knows of late messages less than it has.
func (x *creditClient) flow(f fsm.Flow, late uint64) {
	x.follow()
	knows := x.count - min(late, x.count)
	f.DeliveryCount = uint32(knows)
	x.limit, x.drains = knows+uint64(f.Credit), f.Drain
	x.highest = max(x.highest, x.limit)
	x.s.Credit(1, f)
}

// follow takes in what has come, in order.
func (x *creditClient) follow() {
	x.count += uint64(x.given() - x.seen)
	x.seen = x.given()
	for _, text := range x.notices()[x.heard:] {
		x.heard++
		var consumer, available uint64
		var count, credit uint32
		var drained bool
		if _, err := fmt.Sscanf(text, "credited %d {DeliveryCount:%d Credit:%d Available:%d Drained:%t", &consumer, &count, &credit, &available, &drained); err != nil {
			continue
		}
		if drained {
			x.count = max(x.count, uint64(count))
			x.drains = x.drains && x.limit > x.count
		}
		if uint64(count) > x.highest {
			x.t.Errorf("its count is %d, and it never allowed more than %d", count, x.highest)
		}
	}
}

func (x *creditClient) check(seed uint64) {
	x.t.Helper()
	if x.follow(); x.count > x.highest {
		x.t.Fatalf("seed %d: the client has %d, and never allowed more than %d", seed, x.count, x.highest)
	}
}

// settled checks the end: all credit is used, or nothing is ready, and no drain waits.
func (x *creditClient) settled(seed uint64) {
	x.t.Helper()
	x.s.mu.Lock()
	l := x.s.known[1].link
	x.s.mu.Unlock()
	if x.drains || l.onWay || l.answer != nil || l.drain || l.echo {
		x.t.Errorf("seed %d: a flow has no end: %+v, %q", seed, l, x.notices())
	}
	if ready := x.m.Stats().Ready.Messages; ready > 0 && l.takes() > 0 {
		x.t.Errorf("seed %d: %d messages are ready, and the client takes %d more: %+v\n%s", seed, ready, l.takes(), l, x.m)
	}
}

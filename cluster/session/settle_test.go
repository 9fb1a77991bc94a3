package session

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream/streamtest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// mustHold returns a queue whose consumer holds so many messages, with a consumer timeout of a second.
func mustHold(t *testing.T, n int) *creditQueue {
	t.Helper()
	q := mustCreditQueue(t, queue.Bounds{Before: 64, Tick: 64, Drops: 64, Sweep: 64, HandOuts: 2048, Consumers: 10, IDs: 1, Skips: 1, States: 1})
	q.apply(&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: &logpb.QueueConfig{ConsumerTimeoutPlusOne: 1001, DeliveryLimit: -1}}})
	q.s.Credit(1, fsm.Flow{Credit: uint32(n)})
	q.serve()
	q.publish(n)
	q.expect(n, uint32(n))
	return q
}

// again performs what the session has sent twice, as after a change of leaders, and gives it the second answers.
func (q *creditQueue) again() {
	var answers []group.Outcome
	for _, b := range streamtest.Take(q.l) {
		commands := grouptest.Commands(q.t, b)
		for _, c := range commands {
			q.apply(c)
		}
		for _, c := range commands {
			r, _ := q.apply(c)
			answers = append(answers, group.Outcome{First: c.Seq, Run: 1, Result: r})
		}
	}
	streamtest.Tell(q.l, answers...)
}

// log is what the client was told of its settlements.
func (q *creditQueue) log() string {
	var told []string
	for _, x := range q.notices() {
		if strings.HasPrefix(x, "settled ") {
			told = append(told, x)
		}
	}
	return strings.Join(told, "; ")
}

func mustLog(t *testing.T, q *creditQueue, want string) {
	t.Helper()
	if got := q.log(); got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// What was settled is told when it is committed, not before; whoever wants it exactly learns what the queue had taken
// back, also from the answers to a repetition.
func TestSettlementIsReported(t *testing.T) {
	for _, repeated := range []bool{false, true} {
		t.Run(fmt.Sprint(repeated), func(t *testing.T) {
			q := mustHold(t, 5)
			must(t, q.s.SettleAs(1, []uint64{4}, &fsm.Settlement{Outcome: fsm.Ack, Number: 7}))
			answers, _ := q.receive()
			mustLog(t, q, "")
			streamtest.Tell(q.l, answers...)
			mustLog(t, q, "settled 7, lost []")
			q.now += 2000
			q.apply(&logpb.Command{Kind: logpb.Command_TICK}) // takes back what is held
			must(t, q.s.SettleAs(1, []uint64{1, 2}, &fsm.Settlement{Outcome: fsm.Ack, Number: 8, Exact: true}))
			must(t, q.s.SettleAs(1, []uint64{3}, &fsm.Settlement{Outcome: fsm.Ack, Number: 9}))
			must(t, q.s.SettleAs(1, []uint64{5}, &fsm.Settlement{Outcome: fsm.Ack, Exact: true})) // who does not ask is not told
			if repeated {
				q.again()
			} else {
				q.serve()
			}
			mustLog(t, q, "settled 7, lost []; settled 8, lost [1 2]; settled 9, lost []")
		})
	}
}

// Some of a settlement has taken effect.
func TestSettlementInParts(t *testing.T) {
	q := mustHold(t, 4)
	q.s.Settle(1, []uint64{2, 3}, fsm.Ack) // stands for what the queue takes back
	must(t, q.s.SettleAs(1, []uint64{1, 2, 3, 4}, &fsm.Settlement{Outcome: fsm.Ack, Number: 1, Exact: true}))
	q.serve()
	mustLog(t, q, "settled 1, lost [2 3]")
}

// A queue that is gone has settled nothing: its consumers have ended.
func TestSettlementOfQueueThatIsGone(t *testing.T) {
	q := mustHold(t, 1)
	must(t, q.s.SettleAs(1, []uint64{1}, &fsm.Settlement{Outcome: fsm.Ack, Number: 1}))
	streamtest.Tell(q.l, group.Outcome{First: q.l.Next() - 1, Run: 1, Result: fsm.Result{Code: fsm.Gone}})
	mustLog(t, q, "")
}

// What cannot be deferred goes back, and the client is told.
func TestRefusedDeferral(t *testing.T) {
	q := mustHold(t, 2)
	for id := uint64(1); id <= 2; id++ {
		must(t, q.s.SettleAs(1, []uint64{id}, &fsm.Settlement{Outcome: fsm.Defer, Deferral: "t", Number: id}))
		q.serve()
	}
	mustLog(t, q, "settled 1, lost []; settled 2, lost [2]")
	q.serve()
	if s := q.m.String(); !strings.Contains(s, "returned") {
		t.Errorf("it is not back: %s", s)
	}
}

// What a client says is kept until it is answered, so there is a bound.
func TestManyRemarks(t *testing.T) {
	q := mustHold(t, 2)
	remark := &fsm.Settlement{Outcome: fsm.Discard, Reason: "bad"}
	for range fsm.MaxUnanswered {
		must(t, q.s.SettleAs(1, []uint64{1}, remark))
	}
	if err := q.s.SettleAs(1, []uint64{2}, remark); !isKind(err, fsm.Unavailable) {
		t.Error(err)
	}
	must(t, q.s.SettleAs(1, []uint64{2}, &fsm.Settlement{Outcome: fsm.Ack, Number: 1}))
	q.serve()
	must(t, q.s.SettleAs(1, []uint64{2}, remark))
}

// A time beyond the limit of schedules is refused, one in the past means nothing.
func TestSettlementInTime(t *testing.T) {
	q := mustHold(t, 1)
	now := time.Duration(q.s.consumers.node.Now()) * time.Millisecond
	err := q.s.SettleAs(1, []uint64{1}, &fsm.Settlement{Outcome: fsm.Requeue, DueAt: fsm.Time((now + 100*365*24*time.Hour).Milliseconds())})
	if !isKind(err, fsm.Precondition) {
		t.Error(err)
	}
	must(t, q.s.SettleAs(1, []uint64{1}, &fsm.Settlement{Outcome: fsm.Requeue, DueAt: 1}))
	var due []int64
	for _, b := range streamtest.Take(q.l) {
		for _, c := range grouptest.Commands(t, b) {
			due = append(due, c.GetSettle().GetDueAt())
		}
	}
	if !slices.Equal(due, []int64{0}) {
		t.Errorf("due at %v", due)
	}
}

// A consumer in credit mode is told all of a delivery that is locked, and of others what it wants to know.
func TestWhatDeliveriesSay(t *testing.T) {
	q := mustHold(t, 1)
	at := q.s.known[1].at
	_, err := q.s.consumers.node.Catalog.Propose(t.Context(), &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutLockKey{PutLockKey: &logpb.PutLockKey{Secret: make([]byte, 32)}}})
	must(t, err)
	for _, c := range []struct {
		name             string
		credit, info     bool
		locked, lockHead bool
		token, sequence  bool
	}{
		{name: "prefetch", locked: true, sequence: true},
		{name: "prefetch, informed", info: true, token: true, sequence: true},
		{name: "credit", credit: true},
		{name: "credit, locked", credit: true, locked: true, token: true, sequence: true},
		{name: "credit, a lock that does not run yet", credit: true, lockHead: true, token: true, sequence: true},
		{name: "credit, informed", credit: true, info: true, sequence: true},
	} {
		x := q.s.known[1]
		x.link.on, x.info, x.lockHead = c.credit, c.info, c.lockHead
		m := []fsm.Message{{Consumer: 1, ID: 1, Sequence: 3}}
		if c.locked {
			m[0].LockedUntil = 9
		}
		at.addTokens(m)
		if (m[0].LockToken != "") != c.token || (m[0].Sequence != 0) != c.sequence {
			t.Errorf("%s: %+v", c.name, m[0])
		}
	}
}

// renewals performs what the session has sent, and returns what it renews.
func (q *creditQueue) renewals() (all []string) {
	var answers []group.Outcome
	for _, b := range streamtest.Take(q.l) {
		for _, c := range grouptest.Commands(q.t, b) {
			all = append(all, fmt.Sprint(c.GetRenew().GetConsumer(), c.GetRenew().GetRanges()))
			r, _ := q.apply(c)
			answers = append(answers, group.Outcome{First: c.Seq, Run: 1, Result: r})
		}
	}
	streamtest.Tell(q.l, answers...)
	return all
}

// What is renewed does not time out. While one command is on its way the others are joined, and one that does not do all
// is followed by another.
func TestRenewal(t *testing.T) {
	q := mustHold(t, 30)
	expect := func(want ...string) {
		t.Helper()
		if got := q.renewals(); !slices.Equal(got, want) {
			t.Errorf("renews %q, want %q", got, want)
		}
	}
	q.now += 900
	q.s.Renew(1, []uint64{1, 2, 5})
	q.s.Renew(1, []uint64{3})
	q.s.Renew(1, []uint64{2, 7})
	q.s.Renew(9, []uint64{1}) // nobody
	expect("1 [1 2 5 1]")
	expect("1 [2 2 7 1]")
	expect()
	q.now += 200
	q.apply(&logpb.Command{Kind: logpb.Command_TICK})
	must(t, q.s.SettleAs(1, []uint64{1, 2, 3, 4, 5, 6, 7}, &fsm.Settlement{Outcome: fsm.Ack, Number: 1, Exact: true}))
	q.serve()
	mustLog(t, q, "settled 1, lost [4 6]")

	q = mustHold(t, 100) // a command does 64
	ids := make([]uint64, 100)
	for i := range ids {
		ids[i] = uint64(i + 1)
	}
	q.s.Renew(1, ids)
	expect("1 [1 100]")
	expect("1 [65 36]")
	expect()
}

package queue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// pair drives a machine of a version with what pairs of features do to each other. Its
// sessions number their commands by themselves.
type pair struct {
	testing.TB
	m    *Machine
	meta fsm.Meta
	next map[fsm.SessionID]uint64
	eff  fsm.Effects
}

func newPair(t testing.TB, version uint32, c *logpb.QueueConfig) *pair {
	c.DeliveryLimit = -1
	x := &pair{TB: t, m: New("q", 7), meta: fsm.Meta{Term: 1, Now: 1000, Version: version}, next: map[fsm.SessionID]uint64{}}
	x.do(0, &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: c}})
	return x
}

// do applies a command of a session; 0: of none. The state is checked if it is small.
func (x *pair) do(session uint64, c *logpb.Command) fsm.Result {
	x.Helper()
	x.meta.Index++
	x.meta.Session = fsm.SessionID{}
	if session != 0 {
		x.meta.Session = fsm.SessionID{Node: 1, Boot: 1, Num: session}
		x.next[x.meta.Session]++
		c.Seq = x.next[x.meta.Session]
	}
	x.eff.Reset()
	r := x.m.Apply(x.meta, c, &x.eff)
	if x.m.messages.Live() < 64 && x.m.consumers.len() < 64 {
		mustCheck(x, x.m)
	}
	return r
}

func (x *pair) enqueue(e *logpb.Enqueue) fsm.Result {
	x.Helper()
	e.Size = 10
	return x.do(9, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e})
}

func (x *pair) consume(session uint64, c *logpb.Consume) fsm.Result {
	x.Helper()
	return x.do(session, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: c})
}

// settle ends n deliveries of consumer 1 of a session, from first on.
func (x *pair) settle(session uint64, how logpb.Settle_Outcome, first, n uint64) fsm.Result {
	x.Helper()
	return x.do(session, &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Outcome: how, Consumer: 1, Ranges: []uint64{first, n}}})
}

func (x *pair) get(session uint64, noAck bool) fsm.Result {
	x.Helper()
	return x.do(session, &logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{NoAck: noAck}})
}

// tick lets time pass, and does what is due then.
func (x *pair) tick(after fsm.Millis) {
	x.Helper()
	x.meta.Now = x.meta.Now.Add(after)
	for i := 0; i == 0 || x.m.NextDeadline() != 0 && x.m.NextDeadline() <= x.meta.Now; i++ {
		x.do(0, &logpb.Command{Kind: logpb.Command_TICK})
	}
}

func (x *pair) mustDeliver(n int, what string) {
	x.Helper()
	if len(x.eff.Deliveries) != n {
		x.Fatalf("%s: %d deliveries, want %d\n%s%s", what, len(x.eff.Deliveries), n, effectsText(&x.eff), x.m)
	}
}

func (x *pair) mustBe(what string, have, want any) {
	x.Helper()
	if fmt.Sprint(have) != fmt.Sprint(want) {
		x.Fatalf("%s: %v, want %v\n%s", what, have, want, x.m)
	}
}

// TestHostileRetryOfGroup: a group whose first message waits to be retried does not keep
// its consumer from other groups. Nobody gets the group before the message is due.
func TestHostileRetryOfGroup(t *testing.T) {
	x := newPair(t, fsm.NewestVersion, &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, Retry: logpb.QueueConfig_ALL, RetryMin: 3_600_000, RetryMax: 3_600_000})
	x.consume(1, &logpb.Consume{Consumer: 1, Prefetch: 10})
	x.enqueue(&logpb.Enqueue{GroupId: "a"})
	x.settle(1, fsm.RequeueFailed, 1, 1)
	x.enqueue(&logpb.Enqueue{GroupId: "a"})
	x.mustDeliver(0, "the second one of the group")
	x.enqueue(&logpb.Enqueue{GroupId: "b"})
	x.mustDeliver(1, "one of another group")
	x.settle(1, fsm.Ack, 2, 1)
	x.consume(2, &logpb.Consume{Consumer: 1, Prefetch: 10})
	x.mustDeliver(0, "to another consumer")
	x.tick(3_600_000)
	x.mustDeliver(2, "the group when it is due")
	x.mustBe("the first one", x.eff.Deliveries[0].Acquired, 1)
}

// TestHostileRetryAndLinger: with a linger its consumer keeps a group for as long, if
// all that it has waits to be retried, whatever comes behind that.
func TestHostileRetryAndLinger(t *testing.T) {
	x := newPair(t, fsm.NewestVersion, &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, Retry: logpb.QueueConfig_ALL, RetryMin: 60_000, RetryMax: 60_000, GroupLinger: 1000})
	x.consume(1, &logpb.Consume{Consumer: 1, Prefetch: 10})
	x.enqueue(&logpb.Enqueue{GroupId: "a"})
	x.settle(1, fsm.RequeueFailed, 1, 1)
	x.mustBe("held", x.m.groups.heldOnes, 1)
	x.tick(500)
	x.enqueue(&logpb.Enqueue{GroupId: "a"})
	x.tick(500)
	x.mustBe("held after its linger", x.m.groups.heldOnes, 0)
	x.tick(60_000)
	x.mustBe("held when it is due", x.m.groups.heldOnes, 1)
}

// TestHostileShortOfGroup: a consumer of a shared limit that holds a group is told that
// messages of it are ready, although another one has credit, for everything else.
func TestHostileShortOfGroup(t *testing.T) {
	x := newPair(t, fsm.NewestVersion, &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER})
	x.consume(1, &logpb.Consume{Consumer: 1, Prefetch: 1, Shared: true})
	x.enqueue(&logpb.Enqueue{GroupId: "a"})
	x.enqueue(&logpb.Enqueue{GroupId: "a"})
	x.consume(2, &logpb.Consume{Consumer: 1, Prefetch: 10})
	x.consume(1, &logpb.Consume{Consumer: 1, Prefetch: 0, Shared: true})
	x.mustBe("told", len(x.eff.Short), 1)
	x.consume(1, &logpb.Consume{Consumer: 1, Prefetch: 1, Shared: true})
	x.settle(1, fsm.Ack, 1, 1)
	x.mustDeliver(1, "with a part of the limit")
	x.mustBe("to", x.eff.Deliveries[0].To.Session.Num, 1)
}

// TestHostileShortOfOther: nobody is told of messages that are not for it: of a group that
// another consumer holds, or, if it takes only one group, of others.
func TestHostileShortOfOther(t *testing.T) {
	x := newPair(t, fsm.NewestVersion, &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER})
	x.consume(2, &logpb.Consume{Consumer: 1, Prefetch: 1})
	x.enqueue(&logpb.Enqueue{GroupId: "a"})
	x.consume(1, &logpb.Consume{Consumer: 1, Prefetch: 0, Shared: true, GroupId: "b"})
	x.enqueue(&logpb.Enqueue{GroupId: "a"})
	x.mustBe("told of a held group", len(x.eff.Short), 0)
	x.enqueue(&logpb.Enqueue{GroupId: "c"})
	x.mustBe("told of a free group that is not its own", len(x.eff.Short), 0)
	x.enqueue(&logpb.Enqueue{GroupId: "b"})
	x.mustBe("told of its own", len(x.eff.Short), 1)
}

// TestHostileAble: a queue whose backlog is of held groups cannot hand it out, although
// another consumer has credit; and consumers of one group only that have credit are not
// sated.
func TestHostileAble(t *testing.T) {
	x := newPair(t, fsm.NewestVersion, &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER})
	x.consume(1, &logpb.Consume{Consumer: 1, Prefetch: 1})
	x.consume(2, &logpb.Consume{Consumer: 1, Prefetch: 10})
	x.mustBe("able with nothing ready", x.m.consumers.presence().able, true)
	x.enqueue(&logpb.Enqueue{GroupId: "a"})
	x.enqueue(&logpb.Enqueue{GroupId: "a"})
	x.mustBe("able with a held backlog", x.m.consumers.presence().able, false)

	x = newPair(t, fsm.NewestVersion, &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER})
	x.consume(1, &logpb.Consume{Consumer: 1, Prefetch: 1, GroupId: "a"})
	x.mustBe("sated with credit for one group", DemandOf(x.m).Sated, false)
	x.enqueue(&logpb.Enqueue{GroupId: "a"})
	x.mustBe("sated without credit", DemandOf(x.m).Sated, true)
}

// TestHostileIgnoredSchedule: a message that was ignored, since one of its name is
// scheduled, is no duplicate when it is published again.
func TestHostileIgnoredSchedule(t *testing.T) {
	x := newPair(t, fsm.NewestVersion, &logpb.QueueConfig{DedupWindow: 600_000})
	x.enqueue(&logpb.Enqueue{DelayPlusOne: 60_001, ScheduleId: "x", MessageId: "m1", Conflict: logpb.Enqueue_IGNORE})
	x.enqueue(&logpb.Enqueue{DelayPlusOne: 60_001, ScheduleId: "x", MessageId: "m2", Conflict: logpb.Enqueue_IGNORE})
	x.do(9, &logpb.Command{Kind: logpb.Command_SCHEDULE, Schedule: &logpb.Schedule{Action: logpb.Schedule_CANCEL, Id: "x"}})
	x.mustBe("answer", x.enqueue(&logpb.Enqueue{MessageId: "m2"}).Code, fsm.OK)
	x.mustBe("ready", x.m.Stats().Ready.Messages, 1)
	x.enqueue(&logpb.Enqueue{MessageId: "m2"})
	x.enqueue(&logpb.Enqueue{MessageId: "m1"})
	x.mustBe("ready after duplicates", x.m.Stats().Ready.Messages, 1)
}

// TestHostileRefusedTransfer: a transfer that is refused, and that its source keeps, has
// no effect here; of one that the source does not keep there is a dead letter.
func TestHostileRefusedTransfer(t *testing.T) {
	c := &logpb.QueueConfig{MaxLengthPlusOne: 1, Overflow: logpb.QueueConfig_REJECT_PUBLISH_DLX, DeadLetter: true}
	x := newPair(t, fsm.NewestVersion, c)
	for _, kept := range []bool{true, true, false} {
		x.mustBe("answer", x.enqueue(&logpb.Enqueue{Kept: kept}).Code, fsm.Rejected)
		x.mustBe("dead letters", len(x.eff.DeadLetters), map[bool]int{false: 1}[kept])
	}
}

// TestHostileGetsCrowd: channels that have got a message once and hold nothing keep
// nobody from consuming, and go on with their numbers.
func TestHostileGetsCrowd(t *testing.T) {
	x := newPair(t, fsm.NewestVersion, &logpb.QueueConfig{})
	b := defaultBounds
	b.Consumers = 10
	x.m.SetBounds(b)
	for s := range uint64(10) {
		x.enqueue(&logpb.Enqueue{})
		x.mustBe("got", x.get(s+10, s > 0).Code, fsm.OK)
	}
	x.mustBe("consuming", x.consume(200, &logpb.Consume{Consumer: 1, Prefetch: 1}).Code, fsm.OK)
	x.mustBe("consumers", x.m.consumers.len(), 2)
	if c := mustCopy(t, x.m); c.Hash() != x.m.Hash() {
		t.Error("a copy differs")
	}
	x.settle(200, fsm.Ack, 1, 1)
	x.do(200, &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 1}})
	x.enqueue(&logpb.Enqueue{})
	x.get(15, false)
	x.mustDeliver(1, "another get")
	x.mustBe("its number", x.eff.Deliveries[0].ID, 2)
	for s := range uint64(8) {
		x.consume(300+s, &logpb.Consume{Consumer: 1})
	}
	x.mustBe("one more, while all hold or consume", x.consume(400, &logpb.Consume{Consumer: 1}).Code, fsm.Crowded)
}

// TestHostileIfEmpty: a queue is empty if nothing is in it, whatever that waits for.
func TestHostileIfEmpty(t *testing.T) {
	c := &logpb.QueueConfig{Retry: logpb.QueueConfig_ALL, RetryMin: 60_000, RetryMax: 60_000, DeadLetter: true}
	deleted := func(x *pair) fsm.Code {
		return x.do(0, &logpb.Command{Kind: logpb.Command_DELETE, Delete: &logpb.Delete{IfEmpty: true}}).Code
	}
	for name, fill := range map[string]func(x *pair){
		"held":      func(x *pair) {},
		"delayed":   func(x *pair) { x.settle(1, fsm.RequeueFailed, 1, 1) },
		"scheduled": func(x *pair) { x.settle(1, fsm.Ack, 1, 1); x.enqueue(&logpb.Enqueue{DelayPlusOne: 60_001}) },
		"letter":    func(x *pair) { x.settle(1, fsm.Discard, 1, 1) },
		"deferred": func(x *pair) {
			x.do(1, &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Outcome: fsm.Defer, Consumer: 1, Ranges: []uint64{1, 1}, Deferral: "t"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newPair(t, fsm.NewestVersion, c)
			x.consume(1, &logpb.Consume{Consumer: 1})
			x.enqueue(&logpb.Enqueue{})
			fill(x)
			x.mustBe("deleted", deleted(x), fsm.NotEmpty)
		})
	}
	x := newPair(t, fsm.NewestVersion, c)
	for range dueBefore + 1 {
		x.enqueue(&logpb.Enqueue{})
	}
	x.m.bounds.Sweep = 1
	x.do(0, &logpb.Command{Kind: logpb.Command_PURGE})
	x.mustBe("deleted after a purge", deleted(x), fsm.OK)
}

// TestHostileEndsTwice: what a purge has recorded is not counted again as what ended with
// its queue, and a letter that is forwarded is no dead one that was dropped.
func TestHostileEndsTwice(t *testing.T) {
	x := newPair(t, fsm.NewestVersion, &logpb.QueueConfig{DeadLetter: true, DeadLetterStrategy: logpb.QueueConfig_AT_LEAST_ONCE, AutoDelete: true})
	x.m.bounds.Sweep = 5
	x.enqueue(&logpb.Enqueue{TtlPlusOne: 1})
	for range 100 {
		x.enqueue(&logpb.Enqueue{})
	}
	x.do(0, &logpb.Command{Kind: logpb.Command_PURGE})
	x.m.bounds.Before = 1
	x.consume(1, &logpb.Consume{Consumer: 1})
	x.do(1, &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 1}})
	EndsOf(x.m).From(0, func(e End) bool {
		if e.Reason == logpb.EndState_QUEUE_DELETED {
			t.Errorf("%d messages ended with the queue, which had none", e.Count)
		}
		return true
	})

	x = newPair(t, fsm.NewestVersion, &logpb.QueueConfig{Forward: true})
	x.enqueue(&logpb.Enqueue{})
	x.do(0, &logpb.Command{Kind: logpb.Command_DELETE, Delete: &logpb.Delete{}})
	x.mustBe("dead letters dropped", x.m.Dead().Dropped, 0)
}

// TestHostileStates: the states of all groups are bounded, whatever the queue's limits.
func TestHostileStates(t *testing.T) {
	x := newPair(t, fsm.NewestVersion, &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER})
	x.m.bounds.States = 10
	x.consume(1, &logpb.Consume{Consumer: 1, MaxGroups: 10})
	set := func(g string, n int) fsm.Code {
		x.enqueue(&logpb.Enqueue{GroupId: g})
		return x.do(1, &logpb.Command{Kind: logpb.Command_GROUP, Group: &logpb.Group{Action: logpb.Group_SET_STATE, Id: g, Consumer: 1, State: make([]byte, n)}}).Code
	}
	x.mustBe("6 bytes", set("a", 6), fsm.OK)
	x.mustBe("5 more", set("b", 5), fsm.Rejected)
	x.mustBe("4 more", set("b", 4), fsm.OK)
	x.mustBe("fewer", set("a", 5), fsm.OK)
	x.mustBe("more again", set("a", 7), fsm.Rejected)
}

// TestHostileHead: a snapshot is written in records of a bounded length, however much its
// head lists, and read again; a record that could not be read is not written.
func TestHostileHead(t *testing.T) {
	x := newPair(t, fsm.NewestVersion, &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, DedupWindow: 600_000})
	x.consume(1, &logpb.Consume{Consumer: 1, MaxGroups: 65535})
	state := bytes.Repeat([]byte("s"), maxGroupState)
	for i := range 20 {
		g := fmt.Sprint(i)
		x.enqueue(&logpb.Enqueue{GroupId: g})
		x.do(1, &logpb.Command{Kind: logpb.Command_GROUP, Group: &logpb.Group{Action: logpb.Group_SET_STATE, Id: g, Consumer: 1, State: state}})
	}
	for i := range 100_000 {
		x.enqueue(&logpb.Enqueue{MessageId: fmt.Sprint(i), TtlPlusOne: 1})
	}
	var b bytes.Buffer
	s := x.m.Snapshot()
	if _, err := s.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	again := bytes.NewBuffer(nil)
	if _, err := s.WriteTo(again); err != nil || !bytes.Equal(b.Bytes(), again.Bytes()) {
		t.Error("written twice, it differs", err)
	}
	longest, rest := 0, b.Bytes()
	for len(rest) > 0 {
		n, size := binary.Uvarint(rest)
		longest, rest = max(longest, int(n)), rest[size+int(n):]
	}
	if longest > partSize+maxGroupState {
		t.Errorf("a record of %d bytes", longest)
	}
	c := New("q", 7)
	if err := c.Restore(&b); err != nil || c.Hash() != x.m.Hash() || len(c.seen.ids) != 100_000 {
		t.Errorf("restored otherwise: %v", err)
	}

	e := &encoder{w: io.Discard}
	if e.admit(maxRecord); e.err != nil {
		t.Error(e.err)
	}
	if e.admit(maxRecord + 1); !errors.Is(e.err, ErrSnapshot) {
		t.Errorf("a record that is too long: %v", e.err)
	}
}

// TestHostileEndedGroups: what a tick does for groups that have ended does not grow with
// their number beyond its bound.
func TestHostileEndedGroups(t *testing.T) {
	for _, n := range []int{5000, 20_000} {
		x := newPair(t, fsm.NewestVersion, &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, GroupExpiry: true})
		x.consume(1, &logpb.Consume{Consumer: 1, Prefetch: uint32(n), MaxGroups: 65535})
		for i := range 2 * n {
			e := &logpb.Enqueue{GroupId: fmt.Sprint(i % n)}
			if i >= n {
				e.TtlPlusOne = 1001
			}
			x.enqueue(e)
		}
		x.tick(2000)
		x.do(1, &logpb.Command{Kind: logpb.Command_SESSION_DOWN})
		worst := 0
		for x.m.NextDeadline() != 0 && x.m.NextDeadline() <= x.meta.Now {
			x.do(0, &logpb.Command{Kind: logpb.Command_TICK})
			worst = max(worst, x.m.scratch.steps)
		}
		x.mustBe("groups that have not ended", x.m.groups.ended.Len(), 0)
		if worst > 4*dueInTick {
			t.Errorf("%d groups: a tick of %d steps", n, worst)
		}
	}
}

// TestHostileStrictRuns: a settlement that took effect is not answered as refused when it
// is repeated, however many between such settlements came too late.
func TestHostileStrictRuns(t *testing.T) {
	x := newPair(t, fsm.NewestVersion, &logpb.QueueConfig{})
	x.consume(1, &logpb.Consume{Consumer: 1})
	const n = 6_000 // more than a session may have unanswered
	strict := func(id uint64) *logpb.Command {
		return &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Outcome: fsm.Ack, Consumer: 1, Ranges: []uint64{id, 1}, Strict: true}}
	}
	for range n {
		x.enqueue(&logpb.Enqueue{})
	}
	for id := range uint64(n) {
		x.do(1, strict(id+1))
		x.do(1, strict(id+1)) // is late
	}
	wrong := 0
	for id := range uint64(n) {
		x.meta.Index++
		for late := range uint64(2) {
			c := strict(id + 1)
			c.Seq = 2 + 2*id + late // after the Consume
			if r := x.m.Apply(x.meta, c, &x.eff); (r.Code == fsm.OK) != (late == 0) {
				wrong++
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d are answered otherwise when they are repeated", wrong, 2*n)
	}
}

// TestHostileOldVersion: a machine of an earlier version does what it did, so that
// replicas of two programs agree until the cluster has the new one.
func TestHostileOldVersion(t *testing.T) {
	x := newPair(t, 2, &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, Retry: logpb.QueueConfig_ALL, RetryMin: 3_600_000, RetryMax: 3_600_000})
	x.consume(1, &logpb.Consume{Consumer: 1, Prefetch: 10})
	x.enqueue(&logpb.Enqueue{GroupId: "a"})
	x.settle(1, fsm.RequeueFailed, 1, 1)
	x.mustBe("held", x.m.groups.heldOnes, 1)
	before := mustCopy(t, x.m)
	x.meta.Version = 3
	x.tick(1)
	x.mustBe("held with the entry that begins the next version", x.m.groups.heldOnes, 0)
	x.m, x.meta.Version = before, 2
	x.mustBe("empty", x.do(0, &logpb.Command{Kind: logpb.Command_DELETE, Delete: &logpb.Delete{IfEmpty: true}}).Code, fsm.OK)

	x = newPair(t, 2, &logpb.QueueConfig{MaxLengthPlusOne: 1, Overflow: logpb.QueueConfig_REJECT_PUBLISH_DLX, DeadLetter: true})
	x.enqueue(&logpb.Enqueue{Kept: true})
	x.mustBe("dead letters of a transfer", len(x.eff.DeadLetters), 1)
}

// goOn ticks until nothing is due, and does the same with a copy of the state that is
// made first. It returns what was delivered.
func (x *pair) goOn() (all []fsm.Delivery) {
	x.Helper()
	other, meta := mustCopy(x, x.m), x.meta
	var eff fsm.Effects
	ticks := 0
	for ; x.m.NextDeadline() != 0 && x.m.NextDeadline() <= x.meta.Now; ticks++ {
		x.do(0, &logpb.Command{Kind: logpb.Command_TICK})
		all = append(all, x.eff.Deliveries...)
		meta.Index, meta.Session = x.meta.Index, fsm.SessionID{}
		eff.Reset()
		other.Apply(meta, &logpb.Command{Kind: logpb.Command_TICK}, &eff)
		x.mustBe("what a copy delivers", effectsText(&eff), effectsText(&x.eff))
		x.mustBe("what a copy is", other.String(), x.m.String())
	}
	if ticks < 2 {
		x.Fatalf("done after %d ticks", ticks)
	}
	return all
}

// inGroups is a queue with groups and small bounds, and a consumer that holds n messages:
// each of a group, or all of one.
func inGroups(t *testing.T, n int, one bool, c *logpb.Consume) *pair {
	x := newPair(t, fsm.NewestVersion, &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, Lock: 1000})
	x.m.bounds.Before, x.m.bounds.Tick = 1, 4
	x.consume(1, c)
	for i := range n {
		e := &logpb.Enqueue{GroupId: "a"}
		if !one {
			e.GroupId = fmt.Sprint(i)
		}
		x.enqueue(e)
	}
	x.consume(2, &logpb.Consume{Consumer: 1, MaxGroups: uint32(n), Prefetch: uint32(n)})
	return x
}

// mustBeLeft: groups that are left and not worked off are nobody's, and nobody gets
// anything of them.
func (x *pair) mustBeLeft() {
	x.Helper()
	x.mustDeliver(0, "while groups are left")
	x.mustBe("left", x.m.groups.anyLeft(), true)
	x.mustBe("due", x.m.NextDeadline() <= x.meta.Now, true)
	for _, g := range GroupsOf(x.m).After("", 10) {
		x.mustBe("held by somebody", g.Held, false)
		r := x.do(2, &logpb.Command{Kind: logpb.Command_GROUP, Group: &logpb.Group{Action: logpb.Group_RENEW, Id: g.ID, Consumer: 1}})
		x.mustBe("renewed", r.Code, fsm.NotFound)
	}
}

// TestHostileLeftGroups: the groups of a consumer that is gone are worked off in steps. In
// between nobody gets them; then they go to another one in their order.
func TestHostileLeftGroups(t *testing.T) {
	for _, grace := range []uint64{0, 60_000} {
		x := inGroups(t, 9, false, &logpb.Consume{Consumer: 1, MaxGroups: 9, Prefetch: 9, Lock: 3_600_000, LockDetachGrace: grace})
		x.do(1, &logpb.Command{Kind: logpb.Command_SESSION_DOWN})
		x.mustDeliver(0, "with the end of the session")
		x.mustBe("left", x.m.groups.anyLeft(), true)
		all := x.goOn()
		x.mustBe("delivered", len(all), 9)
		for i, d := range all {
			x.mustBe("the next one", d.Ref.Index, all[0].Ref.Index+uint64(i))
			x.mustBe("to", d.To.Session.Num, 2)
		}
	}
	x := inGroups(t, 9, false, &logpb.Consume{Consumer: 1, MaxGroups: 9, Prefetch: 9})
	x.do(1, &logpb.Command{Kind: logpb.Command_SESSION_DOWN})
	x.mustBeLeft()
}

// TestHostileLostGroup: what is of a group that was lost comes back in steps, as failed.
// In between its holder can neither renew it nor gets any of it again.
func TestHostileLostGroup(t *testing.T) {
	x := inGroups(t, 9, true, &logpb.Consume{Consumer: 1, Prefetch: 20})
	x.meta.Now = x.meta.Now.Add(1000)
	x.do(0, &logpb.Command{Kind: logpb.Command_TICK})
	x.mustBeLeft()
	x.settle(1, fsm.Ack, 9, 1)
	x.mustBe("left after a settlement", x.m.groups.anyLeft(), true)
	x.mustBe("until", GroupsOf(x.m).After("", 1)[0].LockedUntil, 0)
	all := x.goOn()
	x.mustBe("delivered", len(all), 8)
	for i, d := range all {
		x.mustBe("the next one", d.Ref.Index, all[0].Ref.Index+uint64(i))
		x.mustBe("failed", d.Failed, 1)
	}
}

// TestHostileReview: whether a consumer that is cancelled keeps its groups is decided in
// steps, and so it is with the entry that begins version 3. A get is not told meanwhile that
// there is nothing.
func TestHostileReview(t *testing.T) {
	x := newPair(t, fsm.NewestVersion, &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, GroupLinger: 3_600_000})
	x.m.bounds.Before, x.m.bounds.Tick = 1, 4
	x.consume(1, &logpb.Consume{Consumer: 1, MaxGroups: 9, Prefetch: 9})
	for i := range 9 {
		x.enqueue(&logpb.Enqueue{GroupId: fmt.Sprint(i)})
	}
	x.settle(1, fsm.Ack, 2, 8)
	x.goOn()
	x.mustBe("held by a consumer", x.m.groups.heldOnes, 9)
	x.do(1, &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 1}})
	x.mustBe("due", x.m.NextDeadline() <= x.meta.Now, true)
	x.enqueue(&logpb.Enqueue{GroupId: "8"})
	x.mustBe("a get meanwhile", x.do(2, &logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}}).Code, fsm.NotYet)
	x.goOn()
	x.mustBe("held by a cancelled consumer", x.m.groups.heldOnes, 1)
	x.mustBe("a get", x.do(2, &logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}}).Code, fsm.OK)

	x = newPair(t, 2, &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, Retry: logpb.QueueConfig_ALL, RetryMin: 3_600_000, RetryMax: 3_600_000})
	x.m.bounds.Before, x.m.bounds.Tick = 1, 20
	x.consume(1, &logpb.Consume{Consumer: 1, MaxGroups: 9, Prefetch: 9})
	for i := range 9 {
		x.enqueue(&logpb.Enqueue{GroupId: fmt.Sprint(i)})
	}
	x.settle(1, fsm.Requeue, 1, 9)
	x.m.bounds.Tick = 4
	x.meta.Version = 3
	x.do(0, &logpb.Command{Kind: logpb.Command_TOUCH})
	x.mustBe("held with the entry that begins version 3", x.m.groups.heldOnes, 8)
	x.goOn()
	x.mustBe("held in version 3", x.m.groups.heldOnes, 0)
}

// TestHostilePurgedGroups: a purge looks at no group. A group goes on when what was purged of
// it is released: then its holder has to do without it, and the time of its state begins.
func TestHostilePurgedGroups(t *testing.T) {
	x := newPair(t, fsm.NewestVersion, &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, GroupLinger: 1000, GroupStateTtl: 500})
	x.m.bounds.Before, x.m.bounds.Sweep = 1, 2*sweptOfGroup
	x.consume(1, &logpb.Consume{Consumer: 1, MaxGroups: 9, Prefetch: 9})
	for i := range 9 {
		x.enqueue(&logpb.Enqueue{GroupId: fmt.Sprint(i)})
	}
	x.do(1, &logpb.Command{Kind: logpb.Command_GROUP, Group: &logpb.Group{Action: logpb.Group_SET_STATE, Id: "8", Consumer: 1, State: []byte("s")}})
	x.consume(1, &logpb.Consume{Consumer: 1, MaxGroups: 9, Shared: true}) // without credit
	for i := range 10 {
		x.enqueue(&logpb.Enqueue{GroupId: fmt.Sprint(i)})
	}
	x.settle(1, fsm.Ack, 1, 9)
	x.mustBe("purged", x.do(9, &logpb.Command{Kind: logpb.Command_PURGE}).Count, uint64(10))
	x.mustBe("groups with the purge", GroupsOf(x.m).After("", 20)[9].Messages, uint64(0))
	x.goOn()
	x.mustBe("groups", x.m.groups.stats().Groups, 9) // nobody held the tenth
	x.mustBe("held", x.m.groups.heldOnes, 9)
	x.meta.Now = x.meta.Now.Add(1000)
	x.do(0, &logpb.Command{Kind: logpb.Command_TICK})
	x.mustBe("held after a while", x.m.groups.heldOnes, 0)
	x.mustBe("groups with a state", x.m.groups.stats().Groups, 1)
	x.meta.Now = x.meta.Now.Add(500)
	x.do(0, &logpb.Command{Kind: logpb.Command_TICK})
	x.mustBe("groups in the end", x.m.groups.stats().Groups, 0)
}

// TestHostileReleaseUnfinished: what a release does to a group of which settled deliveries
// have not ended yet does not depend on where the state was built.
func TestHostileReleaseUnfinished(t *testing.T) {
	x := inGroups(t, 9, true, &logpb.Consume{Consumer: 1, Prefetch: 20})
	x.settle(1, fsm.Ack, 1, 9)
	x.mustBe("unfinished", x.m.returnings.settling(), true)
	other := mustCopy(t, x.m)
	release := &logpb.Command{Kind: logpb.Command_GROUP, Group: &logpb.Group{Action: logpb.Group_RELEASE, Id: "a", Consumer: 1}}
	x.do(1, release)
	var eff fsm.Effects
	other.Apply(x.meta, release, &eff)
	x.mustBe("what a copy is", other.String(), x.m.String())
	x.mustBe("its hash", other.Hash(), x.m.Hash())
	x.goOn()
	x.mustBe("held", x.m.groups.heldOnes, 0)
}

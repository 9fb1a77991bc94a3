package fsmtest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// diffs collects what differs between the model and the machine.
type diffs []string

func (d *diffs) add(what string, model, machine any) {
	*d = append(*d, fmt.Sprintf("%s:\n  model   %+v\n  machine %+v", what, model, machine))
}

// equal compares two lists, element by element.
func equal[T any](d *diffs, what string, model, machine []T, same func(a, b T) bool) {
	for i := range max(len(model), len(machine)) {
		if i < len(model) && i < len(machine) && same(model[i], machine[i]) {
			continue
		}
		var a, b any = "-", "-"
		if i < len(model) {
			a = model[i]
		}
		if i < len(machine) {
			b = machine[i]
		}
		d.add(fmt.Sprintf("%s %d (of %d and %d)", what, i, len(model), len(machine)), a, b)
		return
	}
}

func identical[T comparable](a, b T) bool { return a == b }

func equalValue[T comparable](d *diffs, what string, model, machine T) {
	if model != machine {
		d.add(what, model, machine)
	}
}

// compareAnswer compares what one command answered and caused.
func compareAnswer(d *diffs, q *model, wantResult, gotResult fsm.Result, got *fsm.Effects) {
	equalValue(d, "result", wantResult, gotResult)
	want := &q.out
	equal(d, "delivery", want.Deliveries, got.Deliveries, sameDelivery)
	equal(d, "dead letter", want.DeadLetters, got.DeadLetters, sameDeadLetter)
	equal(d, "timeout", want.Timeouts, got.Timeouts, sameTimeout)
	equal(d, "late ack", want.LateAcks, got.LateAcks, func(a, b fsm.LateAck) bool {
		return a.Of == b.Of && a.First == b.First && a.Tag == b.Tag && a.Held == b.Held && a.Limit == b.Limit && slices.Equal(a.Deliveries, b.Deliveries)
	})
	equal(d, "cancelled", want.Cancelled, got.Cancelled, identical[fsm.ConsumerID])
	equal(d, "news", sortedNews(q.news), flatNews(got.Tellings), identical[notice])
	equal(d, "short", want.Short, got.Short, identical[fsm.ConsumerID])
	equalValue(d, "gone", want.Gone, got.Gone)
	equalValue(d, "silence", want.SuspicionChanged, got.SuspicionChanged)
	equalValue(d, "redrive effect", q.toGoOn, got.Redrive)
	switch {
	case q.touched && !got.Outbox:
		d.add("outbox effect", "a letter has come or has got a way to go", got.Outbox)
	case got.Outbox && q.nextLetter == 1 && !q.hasWill():
		d.add("outbox effect", "there never was a letter, nor will there be one", got.Outbox)
	}
}

func sameDelivery(a, b fsm.Delivery) bool {
	deaths := sameDeaths(a.Deaths, b.Deaths)
	a.Deaths, b.Deaths = nil, nil
	return deaths && a.To == b.To && a.ID == b.ID && a.Ref == b.Ref && a.Acquired == b.Acquired && a.Failed == b.Failed && a.Ready == b.Ready &&
		a.ExpireAt == b.ExpireAt && a.ScheduledFor == b.ScheduledFor && a.EnqueuedAt == b.EnqueuedAt &&
		a.LockedUntil == b.LockedUntil && a.LockRemaining == b.LockRemaining && bytes.Equal(a.Annotations, b.Annotations) &&
		bytes.Equal(a.Edit, b.Edit) && a.Sequence == b.Sequence
}

func sameDeadLetter(a, b fsm.DeadLetter) bool {
	deaths := sameDeaths(a.Deaths, b.Deaths)
	return deaths && a.Ref == b.Ref && a.Reason == b.Reason && a.DiedAt == b.DiedAt && a.Priority == b.Priority &&
		a.ScheduledFor == b.ScheduledFor && a.HasExpiration == b.HasExpiration && a.Fresh == b.Fresh &&
		a.TTL == b.TTL && a.Ceiling == b.Ceiling && a.Forwarded == b.Forwarded && (!a.Forwarded || a.Hops == b.Hops) &&
		sameAnnotations(a.Annotations, b.Annotations)
}

func sameTimeout(a, b fsm.Timeout) bool {
	return a.To == b.To && a.Tag == b.Tag && a.Held == b.Held && a.First == b.First && a.Limit == b.Limit && slices.Equal(a.Deliveries, b.Deliveries)
}

func sameDeaths(a, b []*logpb.Death) bool {
	return slices.EqualFunc(a, b, func(a, b *logpb.Death) bool {
		return a == b || a.Reason == b.Reason && a.Queue == b.Queue && a.Count == b.Count && a.Time == b.Time &&
			a.Exchange == b.Exchange && a.OriginalExpiration == b.OriginalExpiration && slices.Equal(a.RoutingKeys, b.RoutingKeys) &&
			a.First == b.First && a.LastExchange == b.LastExchange && a.Failed == b.Failed
	})
}

// compareState compares all that the machine shows of its state.
func compareState(d *diffs, q *model, m *queue.Machine) {
	if err := m.Check(); err != nil {
		*d = append(*d, "check: "+err.Error())
	}
	equalValue(d, "next deadline", q.nextDeadline(), m.NextDeadline())
	equalValue(d, "stats", q.stats(), m.Stats())
	equalValue(d, "oldest", q.oldest(), queue.TimesOf(m).Oldest())
	equal(d, "tally", q.tallyList(), queue.TimesOf(m).Tallies(), identical[queue.Tally])
	if q.phase != gone {
		equalValue(d, "clock", q.clock, m.Clock())
		equalValue(d, "version", q.version, m.Version())
		equalValue(d, "lock credit", q.lockCredit, m.LockCredit())
	}
	equal(d, "message", q.table(), slices.Collect(m.Messages()), sameMessage)
	equal(d, "end", q.ends, listEnds(m), func(a, b queue.End) bool {
		return fmt.Sprint(a) == fmt.Sprint(b)
	})
	equal(d, "consumer", q.listing(), slices.Collect(m.Consumers()), identical[queue.Consumer])
	equal(d, "session", q.sessionIDs(), m.Sessions(), identical[fsm.SessionID])
	equal(d, "session's boot", q.boots(), m.SessionNodes(), identical[queue.Boot])
	equal(d, "silent node", q.suspectedBoots(), m.SuspectedNodes(), identical[queue.Boot])
	equal(d, "consumer's boot", q.consumerBoots(), m.ConsumerNodes(), identical[queue.Boot])
	equal(d, "live index", q.liveIndexes(), slices.Collect(m.LiveIndexes()), identical[uint64])
	equal(d, "group", q.groupList(), queue.GroupsOf(m).After("", 1<<20), identical[queue.Group])
	compareHeld(d, q, m)
	compareRedrive(d, q, m)
	equal(d, "target", q.targetList(), m.DeadLetterTargets(0, 1<<20), identical[queue.DeadLetterTarget])
	equal(d, "unrouted letter", q.unrouted(), m.UnroutedLetters(1<<20), sameLetter)
	equal(d, "letter that waits", q.waitingLetters(), m.WaitingLetters(0, 1<<20), sameLetter)
	for _, t := range q.targets {
		name := fmt.Sprintf("transfer to %d", t.id)
		equal(d, name, q.transfersTo(t.id), m.PendingTransfers(fsm.QueueID(t.id), 0, 1<<20), func(a, b queue.Outgoing) bool {
			return a.Transfer == b.Transfer && sameLetter(a.Letter, b.Letter)
		})
	}
}

// compareHeld asks for what each consumer holds, as a session does that has
// missed something.
func compareHeld(d *diffs, q *model, m *queue.Machine) {
	for i, c := range q.consumers {
		if q.isDown(c.id.Session) {
			continue // it is ending, and not found any more
		}
		equalValue(d, "newest delivery", c.next-1, m.Newest(c.id))
		after := uint64(0)
		if i%2 == 1 {
			after = c.next / 2
		}
		var want []fsm.Delivery
		for _, x := range q.held(c) {
			if x.delivery > after {
				want = append(want, q.deliveryOf(x))
			}
		}
		var eff fsm.Effects
		m.Held(c.id, after, len(want), &eff)
		var notices []fsm.Timeout
		if len(c.timedOut) > 0 && !c.cancelled {
			notices = append(notices, q.timeoutNotice(c, c.timedOut))
		}
		var revoked []fsm.ConsumerID
		if c.revoked {
			revoked = append(revoked, c.id)
		}
		var short []fsm.ConsumerID
		if c.noticed && !c.cancelled {
			short = append(short, c.id)
		}
		equal(d, "cancel that may be lost", revoked, eff.Cancelled, identical[fsm.ConsumerID])
		equal(d, "news that may be lost", sortedNews(q.repeatedNews(c)), flatNews(eff.Tellings), identical[notice])
		equal(d, "need that may be lost", short, eff.Short, identical[fsm.ConsumerID])
		equal(d, "notice that may be lost", notices, eff.Timeouts, sameTimeout)
		equal(d, fmt.Sprintf("delivery held by %v after %d", c.id, after), want, eff.Deliveries, sameDelivery)
	}
}

func sameMessage(a, b queue.Message) bool {
	deaths := sameDeaths(a.Deaths, b.Deaths)
	return deaths && a.Seq == b.Seq && a.Ref == b.Ref && a.Place == b.Place && a.Priority == b.Priority &&
		a.ExpireAt == b.ExpireAt && a.Acquired == b.Acquired && a.Failed == b.Failed &&
		a.HasExpiration == b.HasExpiration && a.Holder == b.Holder && a.Delivery == b.Delivery &&
		a.Deadline == b.Deadline && a.Letter == b.Letter && a.DueAt == b.DueAt && a.ScheduleID == b.ScheduleID &&
		a.ScheduledFor == b.ScheduledFor && a.Deferral == b.Deferral && a.MessageID == b.MessageID && a.CorrelationID == b.CorrelationID &&
		a.LockedUntil == b.LockedUntil && a.Group == b.Group && sameAnnotations(a.Annotations, b.Annotations)
}

// listEnds lists the records of ends.
func listEnds(m *queue.Machine) (list []queue.End) {
	queue.EndsOf(m).From(0, func(e queue.End) bool {
		list = append(list, e)
		return true
	})
	return list
}

func sameLetter(a, b queue.Letter) bool {
	return a.Number == b.Number && sameDeadLetter(a.DeadLetter, b.DeadLetter) &&
		slices.Equal(a.Done, b.Done) && slices.Equal(a.Transfers, b.Transfers)
}

// visible is the state as clients see it, without what a different cut of the
// log into entries may change.
func visible(m *queue.Machine) string {
	var b strings.Builder
	for x := range m.Messages() {
		x.Ref.Index, x.Ref.Offset = 0, 0
		fmt.Fprintf(&b, "%+v\n", x)
	}
	for c := range m.Consumers() {
		fmt.Fprintf(&b, "%+v\n", c)
	}
	st := m.Stats()
	st.IDs = 0 // any command forgets old ones, so how many there are is not to be seen
	fmt.Fprintf(&b, "%+v\n%+v\n%+v\n", st, m.DeadLetterTargets(0, 1<<20), m.Sessions())
	return b.String()
}

// mustSnapshot returns the canonical encoding of m.
func mustSnapshot(t fataler, m *queue.Machine) string {
	var b strings.Builder
	if _, err := m.Snapshot().WriteTo(&b); err != nil {
		t.Fatalf("snapshot: %v", err)
	}
	return b.String()
}

// mustRestore returns a machine made from a snapshot.
func mustRestore(t fataler, snapshot string) *queue.Machine {
	m := newMachine()
	if err := m.Restore(strings.NewReader(snapshot)); err != nil {
		t.Fatalf("restore: %v", err)
	}
	return m
}

// restoreInto makes m what from is, by way of a snapshot.
func restoreInto(m, from *queue.Machine) error {
	var b strings.Builder
	if _, err := from.Snapshot().WriteTo(&b); err != nil {
		return err
	}
	return m.Restore(strings.NewReader(b.String()))
}

// fataler is the part of testing.TB and rapid.T that helpers need.
type fataler interface {
	Fatalf(format string, args ...any)
}

const (
	machineName = "q"
	machineID   = fsm.QueueID(77)

	newestVersion = fsm.NewestVersion + 2 // that histories have
)

// The bounds of the rules, and small ones, which short histories reach.
var (
	rules = queue.Bounds{Before: 64, Tick: 4096, Drops: 4096, Sweep: 16384, HandOuts: 2048, Consumers: 8192, IDs: 1 << 20, Skips: 1 << 20, States: 256 << 20, Tallies: 100}
	small = queue.Bounds{Before: 1, Tick: 3, Drops: 2, Sweep: 3, HandOuts: 2, Consumers: 9, IDs: 3, Skips: 1 << 20, States: 8, Tallies: 2}
)

func newMachine() *queue.Machine {
	m := queue.New(machineName, machineID)
	m.Supports(newestVersion)
	return m
}

package queue

import (
	"fmt"
	"math"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
	"github.com/quorate/quorate/proto/logpb"
)

// mustHold checks the whole state after every command in builds with the tag invariants, if it is
// small: Check costs O(n) and would make a test quadratic.
func (m *Machine) mustHold() {
	if m.messages.Live() > 64 || m.sessions.size() > 256 || m.consumers.len() > 256 || m.groups.stats().Groups > 256 {
		return
	}
	err := m.Check()
	invariants.Assert(err == nil, fmt.Sprint(err))
}

// checker collects the first fault. Each Check has its own. Parts add to the
// counts in the order in which Check calls them, and the later ones compare.
type checker struct {
	m    *Machine
	err  error
	seen []bool   // by handle: found in a place
	live []uint64 // log indexes of the messages found
	// count and timed are by place; count[0] stays zero, since no message may be
	// between two places.
	count [placeCount]Count
	ready [maxPriority + 1]uint32 // by priority
	next  fsm.Time                // earliest deadline found

	timed [placeCount]int // messages that wait for an instant; 0: those set aside that expire

	groups map[*group]*foundGroup // what was found of each

	// In this order: messages with an extra, with a schedule name, in the
	// table of numbers; consumers in tables of sessions.
	extras, named, numbered, attached int

	left int // groups whose hold is to end

	locks, ending int // deliveries with a lock, and those that end by themselves
	labelled      int // messages with a label
	keyed         int // messages with a key
	ordered       int // ready messages, if the queue goes by deadlines

	tallies [otherTally + 1]foundTally // by number
}

// that notes a fault unless ok. What is asked for each message goes through fail, which builds
// no arguments while all is well.
func (k *checker) that(ok bool, format string, args ...any) {
	if !ok {
		k.fail(format, args...)
	}
}

// fail notes a fault. Only the first one is kept: others may be its consequences.
func (k *checker) fail(format string, args ...any) {
	if k.err == nil {
		k.err = fmt.Errorf(format, args...)
	}
}

func (k *checker) note(x *message, h uint32, place Place) {
	k.seen[h] = true
	k.live = append(k.live, x.index)
	k.count[place].add(k.m.messages.weight(h))
	if place != Purged && x.ready() {
		k.ready[x.priority]++
	}
	if x.info != 0 {
		k.extras++
	}
	if x.labelled() {
		k.labelled++
	}
	if n := k.m.messages.extra(h).tally; n != 0 && place != Purged {
		k.tallies[min(n, otherTally)].add(x)
	}
}

// deadline records an instant at which a tick has work to do; 0: none.
func (k *checker) deadline(t fsm.Time) {
	if t != 0 && (k.next == 0 || t < k.next) {
		k.next = t
	}
}

// Check walks the whole state and reports the first broken invariant.
//
// Parts that hold messages come first, since each message they find is counted;
// those that only count come last. It changes nothing, and its result does not
// depend on the order of map iteration. It allocates O(n). Restore ends with
// it, so a part's check has to find every damage that could make a later
// command panic.
func (m *Machine) Check() error {
	k := &checker{m: m, groups: map[*group]*foundGroup{}, seen: make([]bool, max(m.messages.End(), 1)), live: make([]uint64, 0, m.messages.Live())}
	m.messages.checkLists(k)
	m.checkDeliveries(k)
	m.aside.check(k)
	m.seen.check(k)
	m.outbox.check(k)
	m.sessions.check(k)
	m.detached.check(k)
	m.consumers.check(k)
	k.books()
	k.time()
	return k.err
}

func (k *checker) books() {
	m := k.m
	m.timers.check(k)
	m.deadlines.check(k)
	m.messages.check(k)
	m.uniques.check(k)
	m.entries.check(k)
	m.groups.check(k)
	if h, _ := m.candidate(); h != 0 {
		next, _ := m.NextDue()
		k.that(!m.mayGo(h) || next <= m.clock.atOnce(), "a message waits although somebody has credit")
	}
	k.that(m.lease.phase() == Active || m.consumers.len() == 0 && m.sessions.len() == 0 && (m.hasWill() || m.messages.readyCount() == 0), "an ended queue serves")
	m.lease.check(k)
	m.pause.check(k)
	m.redrive.check(k)
	m.clock.check(k)
	m.ends.check(k, m.outbox.nextLetter())
}

// time computes anew what NextDue finds in the indexes: a deadline that is missing there means
// that nobody ticks, and one that is too early that ticks never end.
func (k *checker) time() {
	m := k.m
	switch m.lease.phase() {
	case Active:
		k.deadline(m.lease.leaseEnd())
		k.deadline(m.lease.idleEnd())
		k.deadline(m.pause.Until)
		k.deadline(m.seen.due())
		if m.hasWork() {
			k.deadline(m.clock.atOnce())
		}
	case Draining:
		if k.next = m.lease.drainedAt(); m.outbox.hasWork() || m.hasWill() && (m.unfinished() || m.outbox.takesWill()) {
			k.next = m.clock.atOnce()
		}
	default:
		k.next = 0
	}
	if k.err == nil {
		next, what := m.NextDue()
		k.that(next == k.next && (next == 0) == (what == NothingDue), "next deadline is %d (%v), found %d", next, what, k.next)
	}
}

var (
	phases   = [...]string{Active: "active", Draining: "draining", Gone: "gone"}
	places   = [...]string{Ready: "ready", Returned: "returned", CheckedOut: "held", Outbox: "outbox", Scheduled: "scheduled", Waiting: "waiting", Purged: "purged", Delayed: "delayed", Deferred: "deferred", Grouped: "grouped", Parked: "parked"}
	dues     = [...]string{NothingDue: "nothing", ExpiryDue: "message", TimeoutDue: "consumer", LockDue: "lock", LeaseDue: "queue", ScheduleDue: "schedule", PauseDue: "pause", WorkDue: "work"}
	statuses = [...]string{Up: "up", TimedOut: "timed-out", Cancelled: "cancelled", Quiescing: "quiescing", Suspected: "silent"}
)

func (p Phase) String() string { return phases[p] }

func (p Place) String() string { return places[p] }

func (d Due) String() string { return dues[d] }

func (s Status) String() string { return statuses[s] }

// String describes the state in lines that do not depend on anything else.
func (m *Machine) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "queue %q %d %s clock=%d used=%d next-deadline=%d", m.name, m.id, m.lease.phase(), m.clock.now(), m.lease.lastUsed(), m.NextDeadline())
	if m.version > 1 {
		fmt.Fprintf(&b, " version=%d", m.version)
	}
	numberText(&b, " credit=%d", m.clock.lockCredit())
	b.WriteString("\n")
	if s := m.pause.String(); s != "" {
		b.WriteString(s + "\n")
	}
	m.redrive.describe(&b)
	describeCounts(&b, m.Stats(), m.messages.count(Purged))
	m.sessions.describe(&b)
	for c := range m.Consumers() {
		consumerText(&b, c)
	}
	m.detached.describe(&b)
	m.returnings.describe(&b)
	numberText(&b, "ending %d\n", m.sessions.toEnd())
	for x := range m.Messages() {
		messageText(&b, x)
	}
	m.outbox.describeDeadLetterTargets(&b)
	groupsText(&b, m)
	return b.String()
}

func describeCounts(b *strings.Builder, st Stats, purged Count) {
	fmt.Fprintf(b, "ready=%d held=%d outbox=%d consumers=%d", st.Ready.Messages, st.Unacknowledged.Messages, st.Outbox.Messages, st.Consumers)
	numberText(b, " scheduled=%d", st.Scheduled.Messages)
	numberText(b, " delayed=%d", st.Delayed.Messages)
	numberText(b, " deferred=%d", st.Deferred.Messages)
	numberText(b, " parked=%d", st.Parked.Messages)
	numberText(b, " waiting=%d", st.Waiting.Messages)
	numberText(b, " purged=%d", purged.Messages)
	b.WriteString("\n")
}

func (rs *returnings) describe(b *strings.Builder) {
	for r := range rs.all() {
		fmt.Fprintf(b, "returning %d of %s:%d", r.held.Len(), sessionText(r.of.Session), r.of.Number)
		switch {
		case r.order != 0:
			fmt.Fprintf(b, " order=%d outcome=%s", r.order, strings.ToLower(r.outcome.String()))
		case r.failed:
			b.WriteString(" failed")
		}
		b.WriteString("\n")
	}
}

func (o *outbox) describeDeadLetterTargets(b *strings.Builder) {
	for _, t := range o.list(0, math.MaxInt) {
		fmt.Fprintf(b, "target %d next=%d settled=%d", t.ID, t.Next, t.Confirmed)
		_, gone := o.has(t.ID)
		flagText(b, " gone", gone)
		b.WriteString("\n")
	}
}

func numberText[N int | int32 | uint32 | uint64 | fsm.Time | fsm.Millis](b *strings.Builder, format string, n N) {
	if n != 0 {
		fmt.Fprintf(b, format, n)
	}
}

// flagText writes a text if ok.
func flagText(b *strings.Builder, text string, ok bool) {
	if ok {
		b.WriteString(text)
	}
}

func sessionText(id fsm.SessionID) string {
	return fmt.Sprintf("%d/%d/%d", id.Node, id.Boot, id.Num)
}

func consumerText(b *strings.Builder, c Consumer) {
	fmt.Fprintf(b, "consumer %s:%d %s held=%d next=%d", sessionText(c.ID.Session), c.ID.Number, c.Status, c.Held, c.NextDelivery)
	numberText(b, " prefetch=%d", c.Prefetch)
	if c.CreditMode {
		fmt.Fprintf(b, " credit=%d count=%d", c.Credit, c.DeliveryCount)
	}
	numberText(b, " priority=%d", c.Priority)
	flagText(b, " exclusive", c.Exclusive)
	flagText(b, " waiting", !c.Active && c.Status != Cancelled)
	flagText(b, " no-ack", c.NoAck)
	numberText(b, " late=%d", c.TimedOut)
	numberText(b, " late-acks=%d", c.LateAcks)
	numberText(b, " lost-locks=%d", c.LostLocks)
	numberText(b, " late-locks=%d", c.LateLocks)
	b.WriteString("\n")
}

func messageText(b *strings.Builder, x Message) {
	fmt.Fprintf(b, "%s m%d at %d+%d", x.Place, x.Seq, x.Ref.Index, x.Ref.Offset)
	if x.Priority != defaultPriority {
		fmt.Fprintf(b, " priority=%d", x.Priority)
	}
	numberText(b, " expires=%d", x.ExpireAt)
	if x.Acquired != 0 || x.Failed != 0 {
		fmt.Fprintf(b, " acquired=%d failed=%d", x.Acquired, x.Failed)
	}
	switch x.Place {
	case CheckedOut:
		fmt.Fprintf(b, " by %s:%d id=%d", sessionText(x.Holder.Session), x.Holder.Number, x.Delivery)
		numberText(b, " until=%d", x.Deadline)
		numberText(b, " locked=%d", x.LockedUntil)
	case Outbox, Waiting:
		fmt.Fprintf(b, " letter=%d", x.Letter)
	case Scheduled, Delayed, Deferred:
		numberText(b, " due=%d", x.DueAt)
		if x.Deferral != "" {
			fmt.Fprintf(b, " token=%q", x.Deferral)
		}
		if x.ScheduleID != "" {
			fmt.Fprintf(b, " id=%q", x.ScheduleID)
		}
	}
	if x.Place != Scheduled {
		numberText(b, " scheduled-for=%d", x.ScheduledFor)
	}
	if x.MessageID != "" || x.CorrelationID != "" {
		fmt.Fprintf(b, " message-id=%q correlation-id=%q", x.MessageID, x.CorrelationID)
	}
	if x.Group != "" {
		fmt.Fprintf(b, " group=%q", x.Group)
	}
	b.WriteString(deathsText(x.Deaths))
	b.WriteString(annotationsText(x.Annotations))
	b.WriteString("\n")
}

func annotationsText(list []*logpb.Annotation) (text string) {
	for _, a := range list {
		text += fmt.Sprintf(" %q=%q", a.Key, a.Value)
	}
	return text
}

func deathsText(deaths []*logpb.Death) string {
	texts := make([]string, len(deaths))
	for i, d := range deaths {
		texts[i] = fmt.Sprintf("%s:%s:%d@%d", d.Queue, strings.ToLower(d.Reason.String()), d.Count, d.Time)
		if d.LastTime != 0 {
			texts[i] += fmt.Sprintf("..%d", d.LastTime)
		}
		if d.Failed != 0 {
			texts[i] += fmt.Sprintf(" failed=%d", d.Failed)
		}
		if len(d.RoutingKeys) > 0 {
			texts[i] += fmt.Sprintf("<%s>%s", d.Exchange, strings.Join(d.RoutingKeys, ","))
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return " deaths=" + strings.Join(texts, ";")
}

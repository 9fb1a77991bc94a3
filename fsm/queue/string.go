package queue

import (
	"fmt"
	"math"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

var (
	phases   = [...]string{Active: "active", Draining: "draining", Gone: "gone"}
	places   = [...]string{Ready: "ready", Returned: "returned", CheckedOut: "held", Outbox: "outbox", Scheduled: "scheduled", Waiting: "waiting", Purged: "purged", Delayed: "delayed", Deferred: "deferred", Grouped: "grouped", Parked: "parked"}
	dues     = [...]string{NothingDue: "nothing", ExpiryDue: "message", TimeoutDue: "consumer", LockDue: "lock", LeaseDue: "queue", ScheduleDue: "schedule", WorkDue: "work"}
	statuses = [...]string{Up: "up", TimedOut: "timed-out", Cancelled: "cancelled", Quiescing: "quiescing", Suspected: "silent"}
)

// String returns the phase as a word.
func (p Phase) String() string { return phases[p] }

// String returns the place as a word.
func (p Place) String() string { return places[p] }

// String returns the kind as a word.
func (d Due) String() string { return dues[d] }

// String returns the status as a word.
func (s Status) String() string { return statuses[s] }

// String describes the state in lines that do not depend on anything else.
func (m *Machine) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "queue %q %d %s clock=%d used=%d next-deadline=%d", m.name, m.id, m.lease.phase(), m.clock.now(), m.lease.lastUsed(), m.NextDeadline())
	if m.version > 1 {
		fmt.Fprintf(&b, " version=%d", m.version)
	}
	if m.clock.lockCredit() != 0 {
		fmt.Fprintf(&b, " credit=%d", m.clock.lockCredit())
	}
	b.WriteString("\n")
	describeCounts(&b, m.Stats(), m.messages.count(Purged))
	m.sessions.describe(&b)
	for c := range m.Consumers() {
		consumerText(&b, c)
	}
	m.detached.describe(&b)
	m.deliveries.describeLost(&b)
	if n := m.sessions.toEnd(); n > 0 {
		fmt.Fprintf(&b, "ending %d\n", n)
	}
	for x := range m.Messages() {
		messageText(&b, x)
	}
	m.outbox.describeDeadLetterTargets(&b)
	groupsText(&b, m)
	return b.String()
}

// describeCounts writes how many messages are in each place.
func describeCounts(b *strings.Builder, st Stats, purged Count) {
	fmt.Fprintf(b, "ready=%d held=%d outbox=%d consumers=%d", st.Ready.Messages, st.Unacknowledged.Messages, st.Outbox.Messages, st.Consumers)
	if n := st.Scheduled.Messages; n > 0 {
		fmt.Fprintf(b, " scheduled=%d", n)
	}
	if n := st.Delayed.Messages; n > 0 {
		fmt.Fprintf(b, " delayed=%d", n)
	}
	if n := st.Deferred.Messages; n > 0 {
		fmt.Fprintf(b, " deferred=%d", n)
	}
	if n := st.Parked.Messages; n > 0 {
		fmt.Fprintf(b, " parked=%d", n)
	}
	if n := st.Waiting.Messages; n > 0 {
		fmt.Fprintf(b, " waiting=%d", n)
	}
	if n := purged.Messages; n > 0 {
		fmt.Fprintf(b, " purged=%d", n)
	}
	b.WriteString("\n")
}

// describeLost writes what is on its way back, one line a holder.
func (ds *deliveries) describeLost(b *strings.Builder) {
	for r := range ds.lost() {
		fmt.Fprintf(b, "returning %d of %s:%d", r.held.len(), sessionText(r.of.Session), r.of.Number)
		switch {
		case r.order != 0:
			fmt.Fprintf(b, " order=%d outcome=%s", r.order, strings.ToLower(r.outcome.String()))
		case r.failed:
			b.WriteString(" failed")
		}
		b.WriteString("\n")
	}
}

// describeDeadLetterTargets writes the dead-letter targets.
func (o *outbox) describeDeadLetterTargets(b *strings.Builder) {
	for _, t := range o.list(0, math.MaxInt) {
		fmt.Fprintf(b, "target %d next=%d settled=%d", t.ID, t.Next, t.Confirmed)
		if _, gone := o.has(t.ID); gone {
			b.WriteString(" gone")
		}
		b.WriteString("\n")
	}
}

func sessionText(id fsm.SessionID) string {
	return fmt.Sprintf("%d/%d/%d", id.Node, id.Boot, id.Num)
}

func consumerText(b *strings.Builder, c Consumer) {
	fmt.Fprintf(b, "consumer %s:%d %s held=%d next=%d", sessionText(c.ID.Session), c.ID.Number, c.Status, c.Held, c.NextDelivery)
	if c.Prefetch != 0 {
		fmt.Fprintf(b, " prefetch=%d", c.Prefetch)
	}
	if c.Priority != 0 {
		fmt.Fprintf(b, " priority=%d", c.Priority)
	}
	if c.Exclusive {
		b.WriteString(" exclusive")
	}
	if !c.Active && c.Status != Cancelled {
		b.WriteString(" waiting")
	}
	if c.NoAck {
		b.WriteString(" no-ack")
	}
	if c.TimedOut > 0 {
		fmt.Fprintf(b, " late=%d", c.TimedOut)
	}
	if c.LateAcks > 0 {
		fmt.Fprintf(b, " late-acks=%d", c.LateAcks)
	}
	if c.LostLocks > 0 {
		fmt.Fprintf(b, " lost-locks=%d", c.LostLocks)
	}
	if c.LateLocks > 0 {
		fmt.Fprintf(b, " late-locks=%d", c.LateLocks)
	}
	b.WriteString("\n")
}

func messageText(b *strings.Builder, x Message) {
	fmt.Fprintf(b, "%s m%d at %d+%d", x.Place, x.Seq, x.Ref.Index, x.Ref.Offset)
	if x.Priority != defaultPriority {
		fmt.Fprintf(b, " priority=%d", x.Priority)
	}
	if x.ExpireAt != 0 {
		fmt.Fprintf(b, " expires=%d", x.ExpireAt)
	}
	if x.Acquired != 0 || x.Failed != 0 {
		fmt.Fprintf(b, " acquired=%d failed=%d", x.Acquired, x.Failed)
	}
	switch x.Place {
	case CheckedOut:
		fmt.Fprintf(b, " by %s:%d id=%d", sessionText(x.Holder.Session), x.Holder.Number, x.Delivery)
		if x.Deadline != 0 {
			fmt.Fprintf(b, " until=%d", x.Deadline)
		}
		if x.LockedUntil != 0 {
			fmt.Fprintf(b, " locked=%d", x.LockedUntil)
		}
	case Outbox, Waiting:
		fmt.Fprintf(b, " letter=%d", x.Letter)
	case Scheduled, Delayed, Deferred:
		if x.DueAt != 0 {
			fmt.Fprintf(b, " due=%d", x.DueAt)
		}
		if x.Deferral != "" {
			fmt.Fprintf(b, " token=%q", x.Deferral)
		}
		if x.ScheduleID != "" {
			fmt.Fprintf(b, " id=%q", x.ScheduleID)
		}
	}
	if x.ScheduledFor != 0 && x.Place != Scheduled {
		fmt.Fprintf(b, " scheduled-for=%d", x.ScheduledFor)
	}
	if x.MessageID != "" || x.CorrelationID != "" {
		fmt.Fprintf(b, " message-id=%q correlation-id=%q", x.MessageID, x.CorrelationID)
	}
	if x.Group != "" {
		fmt.Fprintf(b, " group=%q", x.Group)
	}
	b.WriteString(deathsText(x.Deaths))
	b.WriteString("\n")
}

func deathsText(deaths []*logpb.Death) string {
	texts := make([]string, len(deaths))
	for i, d := range deaths {
		texts[i] = fmt.Sprintf("%s:%s:%d@%d", d.Queue, strings.ToLower(d.Reason.String()), d.Count, d.Time)
		if len(d.RoutingKeys) > 0 {
			texts[i] += fmt.Sprintf("<%s>%s", d.Exchange, strings.Join(d.RoutingKeys, ","))
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return " deaths=" + strings.Join(texts, ";")
}

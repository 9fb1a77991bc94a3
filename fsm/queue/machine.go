package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// defaultDeliveryLimit applies until the first Configure.
	defaultDeliveryLimit = 20
)

// Machine is one queue. It implements fsm.Machine; the other methods only read.
// Only one goroutine at a time may use it.
//
// It owns only the order in which its parts do their work, see Apply. DESIGN.md lists the parts and what each maintains. A part
// knows the parts above it in the order below; facts that only a part below it
// can see are passed to its methods as arguments.
//
// Invariant: after each command, no consumer has unused credit while a message
// is ready that it may have and that is not due, unless NextDue returns WorkDue. It
// may have what has at least as much left of its TTL as it asks for.
//
// Replicas agree on all that a Snapshot holds, on results and on effects. They
// need not agree on handles, on the layout of blocks and chunks, or on scratch:
// a restored machine builds those anew. So no rule may depend on them.
type Machine struct {
	*shared

	// The parts are created once, by New, and never replaced one by one: Restore
	// replaces the whole Machine.
	timers   *timers
	entries  *entries
	labels   *labels
	groups   *groups
	messages *messages
	aside    *aside
	members  *members
	ends     *ends
	seen     *seen
	outbox   *outbox

	locks      *locks
	sessions   *sessions
	detached   *detached
	consumers  *consumers
	lease      *lease
	deliveries *deliveries
	intake     *intake

	// A property of the program, not of the state: in no snapshot.
	newest uint32 // see Supports
}

// SetBounds is for tests. It must precede the first command.
func (m *Machine) SetBounds(b Bounds) { m.bounds = b }

// New returns an empty queue. Its dead letters record name as the queue they
// died in.
//
// Ensures: phase Active, version 1, clock 0, default settings, no lease yet: it
// begins with the first entry.
func New(name string, id fsm.QueueID) *Machine {
	m := &Machine{
		shared: &shared{name: name, id: id, bounds: defaultBounds, settings: newSettings(&logpb.QueueConfig{DeliveryLimit: defaultDeliveryLimit}), version: 1},
		newest: fsm.NewestVersion,
		timers: &timers{}, entries: &entries{}, labels: &labels{},
	}
	takers := newGroupTakers(m.shared)
	m.groups = newGroups(m.shared, takers)
	cs := &cursors{shared: m.shared, timers: m.timers}
	m.messages = newMessages(m.shared, m.timers, m.entries, m.labels, m.groups, cs)
	m.aside = &aside{shared: m.shared, timers: m.timers, messages: m.messages}
	m.members = &members{m.shared, m.groups, m.messages}
	m.seen = &seen{shared: m.shared}
	m.ends = newEnds(m.shared, m.entries, m.messages)
	m.outbox = newOutbox(m.shared, m.messages, m.ends)
	m.sessions = newSessions(m.shared)
	m.locks, m.detached = &locks{shared: m.shared}, &detached{shared: m.shared}
	m.consumers = newConsumers(m.shared, m.sessions, m.detached, m.groups, takers, m.messages)
	m.lease = newLease(m.shared, m.timers, m.messages, m.consumers)
	m.deliveries = &deliveries{
		shared: m.shared, timers: m.timers, groups: m.groups, takers: takers, messages: m.messages, cursors: cs, aside: m.aside, members: m.members, outbox: m.outbox,
		sessions: m.sessions, consumers: m.consumers, lease: m.lease, locks: m.locks, detached: m.detached,
	}
	m.intake = &intake{
		shared: m.shared, timers: m.timers, entries: m.entries, groups: m.groups, takers: takers, messages: m.messages, aside: m.aside, members: m.members, seen: m.seen, ends: m.ends, outbox: m.outbox,
		consumers: m.consumers, lease: m.lease, deliveries: m.deliveries,
	}
	m.clear()
	return m
}

// Supports sets the highest machine version that this program supports, if it
// is not fsm.NewestVersion. Restore refuses states of later versions.
func (m *Machine) Supports(newest uint32) { m.newest = newest }

// Version is the version of the machine: the highest of the applied entries.
func (m *Machine) Version() uint32 { return m.version }

// clear removes everything that the queue holds.
//
// What must not be used twice continues: numbers of messages and letters, and
// the order of age. Settings, counters, clock, lease and entries stay, too; the
// caller has abandoned the entries.
func (m *Machine) clear() {
	m.timers.clear()
	m.labels.clear()
	m.ends.clear()
	m.groups.clear()
	m.messages.clear()
	m.aside.clear()
	m.seen.clear()
	m.outbox.clear()
	m.locks.clear()
	m.sessions.clear()
	m.detached.clear()
	m.consumers.clear()
	m.deliveries.clear()
}

// Apply implements fsm.Machine. eff accumulates over the commands of one entry:
// what Released names may be freed after the last of them, once the payloads of
// Deliveries have been read.
//
// The order matters. Due messages go before the command, which must not see
// them. Lost messages come back before anything is handed out, so that nothing
// newer overtakes them. Before that, the single active consumer is elected.
// Length limits are enforced last, so that a message that is taken at once
// needs no space.
//
// Requires: meta.Index is at least that of every command before. Commands with
// equal Index have equal Term and Now, and the same eff.
//
// Ensures: what was appended to eff before stays, except that an index in
// Released is withdrawn if a message of this command needs the entry again.
// Nothing of cmd is retained. The steps taken are bounded by m.bounds, whatever
// the queue holds.
//
// The budget is set twice: catchUp has one, and the command and its assignment
// have another, so that a command is never starved by what was due before it. A
// Tick has a single one for everything.
func (m *Machine) Apply(meta fsm.Meta, cmd *logpb.Command, eff *fsm.Effects) fsm.Result {
	if before := m.version; meta.Version > before {
		m.version = meta.Version
		m.groups.upgraded(before)
	}
	m.entries.begin(meta.Index)
	m.lease.begin(m.clock.advance(&meta, duration(m.settings.LockCredit)))
	if m.lease.phase() != Active {
		return m.applyEnded(cmd, eff)
	}
	m.consumers.measure()
	m.scratch.begin(cmd.Kind, &m.bounds)
	m.intake.catchUp(eff)
	m.intake.settleParked(cmd.Kind, eff)
	s, r, ok := m.admit(&meta, cmd, eff)
	if cmd.Kind != logpb.Command_TICK {
		m.scratch.budget = m.bounds.Before
	}
	inUse, serving := m.consumers.inUse(), m.consumers.active()
	if ok {
		m.scratch.delivered = 0
		r = m.apply(&meta, cmd, s, eff)
		if s != nil {
			s.record(cmd, &r, m.scratch.delivered, m.refusedRuns())
		}
	}
	if m.lease.phase() == Active {
		m.deliveries.bringBack(cmd.Kind, eff)
		m.outbox.goOn(cmd.Kind, eff)
	}
	if ok && cmd.Kind == logpb.Command_TICK {
		m.endUnused(inUse, eff)
	}
	m.consumers.elect()
	m.intake.forward(eff)
	m.deliveries.assign(eff)
	m.intake.trim(eff)
	m.intake.sweep(cmd.Kind, eff)
	m.groups.settle()
	m.afterUse(inUse, serving, eff)
	m.scratch.end()
	if invariants.Enabled {
		m.mustHold()
	}
	return r
}

// NextDeadline implements fsm.Machine.
func (m *Machine) NextDeadline() fsm.Time {
	next, _ := m.NextDue()
	return next
}

// NextDue returns NextDeadline and what will be due then.
//
// It is derived from the indexes and stored nowhere, so it cannot be stale. An
// instant that has passed means at once. If several are due at the same instant,
// the kind that comes first below is reported. O(1), plus one step for each
// suspected node.
func (m *Machine) NextDue() (fsm.Time, Due) {
	switch m.lease.phase() {
	case Draining:
		if m.outbox.hasWork() {
			return m.clock.atOnce(), WorkDue
		}
		return m.lease.drainedAt(), LeaseDue
	case Gone:
		return 0, NothingDue
	}
	next, what := fsm.Time(0), NothingDue
	earlier := func(t fsm.Time, w Due) {
		if t != 0 && (next == 0 || t < next) {
			next, what = t, w
		}
	}
	if k, _, ok := m.timers.expiry(); ok {
		earlier(k.at, ExpiryDue)
	}
	if k, _, ok := m.timers.timeout(); ok {
		earlier(m.clock.heldUntil(k.at), TimeoutDue)
	}
	earlier(m.sessions.suspicionEnds(), TimeoutDue)
	if k, _, ok := m.locks.first(); ok {
		earlier(m.clock.heldUntil(k.at), LockDue)
	}
	earlier(m.detached.nextEnd(), LockDue)
	hold, state := groupEnds{m.groups}.nextEnds()
	earlier(m.clock.heldUntil(hold), LockDue)
	earlier(state, ExpiryDue)
	if k, _, ok := m.timers.nextTimed(); ok {
		earlier(k.at, ScheduleDue)
	}
	earlier(m.lease.leaseEnd(), LeaseDue)
	earlier(m.lease.idleEnd(), LeaseDue)
	earlier(m.seen.due(), WorkDue)
	if hasWork(m) {
		earlier(m.clock.atOnce(), WorkDue)
	}
	return next, what
}

// hasWork reports whether a command has left something to do.
func hasWork(m *Machine) bool {
	return m.messages.head(purgedList) != 0 || m.intake.tooLong() || m.deliveries.unfinished() || m.outbox.hasWork() ||
		m.groups.doomed() != 0 || m.intake.unparks() || serves(m)
}

// serves reports whether there is a message to hand out or to forward.
func serves(m *Machine) bool {
	return servable{m.consumers}.any() || m.settings.forwards() && m.messages.nextReady() != 0
}

// Resume implements fsm.Machine.
//
// It changes no state, so only the leader calls it: when it begins to lead.
func (m *Machine) Resume(eff *fsm.Effects) {
	eff.Gone = eff.Gone || m.lease.phase() == Gone
	eff.Outbox = eff.Outbox || m.outbox.letters() > 0
}

// Position is where the stream of a session stands.
type Position struct {
	Next uint64 // number of the next command; 0: the queue has no such session
	Call uint64 // number of the last synchronous command; 0: there was none
	// Ended: the session is known to have ended, and no command begins it again.
	Ended bool
	// Over: the queue serves no sessions any more, and answers each command alike.
	Over bool
}

// PositionOf returns where the stream of a session stands. O(1).
func PositionOf(m *Machine, id fsm.SessionID) Position {
	if m.lease.phase() != Active {
		return Position{Over: true}
	}
	if s := m.sessions.get(id); s != nil {
		return Position{Next: s.next, Call: s.last.seq}
	}
	return Position{Ended: m.sessions.hasEnded(id)}
}

// AnswerAgain returns the answer to a command that has been performed before, as its
// repetition in the log would get it; of one that is not the last synchronous
// command, only the number counts. It changes no state, so only the replica that
// is asked runs it.
//
// Requires: 1 ≤ cmd.Seq < PositionOf(m, id).Next.
func AnswerAgain(m *Machine, id fsm.SessionID, cmd *logpb.Command, eff *fsm.Effects) fsm.Result {
	return m.deliveries.repeat(m.sessions.get(id), cmd, eff)
}

// Held appends the first deliveries, up to limit, that a consumer holds with an
// ID above after, ascending. It also appends the notice of deliveries that were
// taken back and are not settled, since that may have been lost. Number 0
// stands for the gets of a session.
//
// It changes no state and resets no deadline, so only the replica that is asked
// runs it. An unknown session or consumer has nothing: eff stays as it is.
func (m *Machine) Held(to fsm.ConsumerID, after uint64, limit int, eff *fsm.Effects) {
	m.deliveries.resend(to, after, limit, eff)
}

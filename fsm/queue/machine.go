package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// defaultDeliveryLimit holds until the first Configure.
	defaultDeliveryLimit = 20
)

// Machine is one queue. It implements fsm.Machine; the other methods read.
// A Machine is used by one goroutine at a time.
//
// It owns nothing but its name, its version and the order in which its parts do
// their work, see Apply. The parts and what each keeps true are in DESIGN.md. A
// part knows those above it in the order below; facts that only one beneath it can
// see are given to its methods.
//
// Invariant: once a command is over nobody waits with credit while a message is
// ready that is not due, unless NextDue says WorkDue.
type Machine struct {
	*shared
	id fsm.QueueID

	version uint32 // highest of its entries, at least 1

	timers   *timers
	entries  *entries
	messages *messages
	outbox   *outbox

	sessions   *sessions
	consumers  *consumers
	lease      *lease
	deliveries *deliveries
	intake     *intake

	newest uint32 // see Supports
}

// SetBounds is for tests, before the first command.
func (m *Machine) SetBounds(b Bounds) { m.bounds = b }

// New returns an empty queue. name is what its dead letters say they died in.
func New(name string, id fsm.QueueID) *Machine {
	m := &Machine{
		shared: &shared{name: name, bounds: defaultBounds, settings: newSettings(&logpb.QueueConfig{DeliveryLimit: defaultDeliveryLimit})},
		id:     id, version: 1, newest: fsm.NewestVersion,
		timers: &timers{}, entries: &entries{},
	}
	m.messages = newMessages(m.shared, m.timers, m.entries)
	m.outbox = newOutbox(m.shared, m.messages)
	m.sessions = newSessions(m.shared)
	m.consumers = newConsumers(m.shared, m.sessions)
	m.lease = newLease(m.shared, m.timers, m.messages, m.consumers)
	m.deliveries = &deliveries{
		shared: m.shared, timers: m.timers, messages: m.messages, outbox: m.outbox,
		sessions: m.sessions, consumers: m.consumers, lease: m.lease,
	}
	m.intake = &intake{
		shared: m.shared, timers: m.timers, entries: m.entries, messages: m.messages, outbox: m.outbox,
		consumers: m.consumers, lease: m.lease, deliveries: m.deliveries,
	}
	m.clear()
	return m
}

// Supports says up to which version this program supports machines, if that
// is not fsm.NewestVersion. Restore refuses states of later ones.
func (m *Machine) Supports(newest uint32) { m.newest = newest }

// Version is the one the machine is of: the highest of the entries applied.
func (m *Machine) Version() uint32 { return m.version }

// clear forgets everything that a queue holds.
func (m *Machine) clear() {
	m.timers.clear()
	m.messages.clear()
	m.outbox.clear()
	m.sessions.clear()
	m.consumers.clear()
	m.deliveries.clear()
}

// Apply implements fsm.Machine. eff collects over the commands of one entry:
// what Released names may be freed after the last of them, and after what
// Deliveries names has been read.
//
// The order matters. What is due goes before the command, which must not see it;
// what was lost comes back before anything is handed out, so that nothing newer
// overtakes it; who is served is decided before that, and what is too long is
// dropped after it, so that what somebody takes at once needs no room.
func (m *Machine) Apply(meta fsm.Meta, cmd *logpb.Command, eff *fsm.Effects) fsm.Result {
	m.version = max(m.version, meta.Version)
	m.entries.begin(meta.Index)
	m.lease.begin(m.clock.advance(&meta, duration(m.settings.LockCredit)))
	if m.lease.phase() != Active {
		return m.applyEnded(cmd, eff)
	}
	m.scratch.begin(cmd.Kind, &m.bounds)
	m.intake.catchUp(eff)
	s, r, ok := m.admit(&meta, cmd, eff)
	if cmd.Kind != logpb.Command_TICK {
		m.scratch.budget = m.bounds.Before
	}
	inUse, serving := m.consumers.inUse(), m.consumers.active()
	if ok {
		m.scratch.delivered = 0
		r = m.apply(&meta, cmd, s, eff)
		if s != nil {
			s.record(cmd, r, m.scratch.delivered)
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
	m.deliveries.assign(eff)
	m.intake.trim(eff)
	m.intake.sweep(cmd.Kind, eff)
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

// NextDue is NextDeadline and what will be due then.
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
	if k, _, ok := m.timers.nextTimed(); ok {
		earlier(k.at, ScheduleDue)
	}
	earlier(m.lease.leaseEnd(), LeaseDue)
	earlier(m.lease.idleEnd(), LeaseDue)
	if m.messages.head(purgedList) != 0 || m.intake.tooLong() || m.deliveries.unfinished() || m.outbox.hasWork() || m.consumers.anyServed() && m.messages.nextReady() != 0 {
		earlier(m.clock.atOnce(), WorkDue)
	}
	return next, what
}

// Resume implements fsm.Machine.
func (m *Machine) Resume(eff *fsm.Effects) {
	eff.Gone = eff.Gone || m.lease.phase() == Gone
	eff.Outbox = eff.Outbox || m.outbox.letters() > 0
}

// Held appends the first deliveries that a consumer holds with an ID above
// after, up to limit, ascending, and the notice of what was taken from it and is
// not settled: it may have got lost. Number 0 stands for the gets of a session.
func (m *Machine) Held(to fsm.ConsumerID, after uint64, limit int, eff *fsm.Effects) {
	m.deliveries.resend(to, after, limit, eff)
}

package queue

import (
	"fmt"
	"iter"
	"slices"

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
// Its methods are the commands and what connects its parts; the state is theirs.
// DESIGN.md lists the parts and what each maintains. A part
// knows the parts above it in the order below; facts that only a part below it
// can see are passed to its methods as arguments.
//
// Invariants, after each command:
//
//	no consumer has unused credit while a message is ready that it may have and
//	that is not due, unless NextDue returns WorkDue; it may have what has at least
//	as much left of its TTL as it asks for
//	a queue that drops its head is within its limits, unless NextDue returns WorkDue
//	a message is CheckedOut ⇔ one consumer, one of the detached, or one entry of
//	returnings, holds it
//	|scratch.taken| = 0; within a command its messages are in no place
//
// No due message is handed out, and nothing but deferred messages is while sessions
// are ending. A refused message leaves nothing but the number of its command in its
// session. Due work is done in the order of (instant, number).
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
	groups   *leavings
	takers   *groupTakers
	cursors  *cursors
	uniques  *uniques
	messages *messages
	aside    *aside
	ends     *ends
	seen     *seen
	outbox   *outbox

	deadlines  *deadlines
	sessions   *sessions
	detached   *detached
	consumers  *consumers
	lease      *lease
	returnings *returnings

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
		shared: &shared{name: name, id: id, bounds: defaultBounds, settings: defaultSettings, version: 1},
		newest: fsm.NewestVersion,
		timers: &timers{}, entries: &entries{}, labels: &labels{},
	}
	m.takers = newGroupTakers(m.shared)
	m.groups = &leavings{groups: newGroups(m.shared, m.takers)}
	m.cursors = &cursors{shared: m.shared, timers: m.timers}
	m.uniques = &uniques{}
	m.messages = &messages{shared: m.shared, timers: m.timers, entries: m.entries, labels: m.labels, groups: m.groups.groups, cursors: m.cursors, uniques: m.uniques}
	m.aside = &aside{shared: m.shared, timers: m.timers, messages: m.messages}
	m.seen = &seen{shared: m.shared}
	m.ends = &ends{shared: m.shared, entries: m.entries, messages: m.messages}
	m.outbox = &outbox{shared: m.shared, messages: m.messages, ends: m.ends, uniques: m.uniques}
	m.sessions = &sessions{shared: m.shared}
	m.deadlines, m.detached = &deadlines{shared: m.shared}, &detached{shared: m.shared}
	m.consumers = &consumers{shared: m.shared, sessions: m.sessions, detached: m.detached, groups: m.groups, takers: m.takers, services: services{
		shared: m.shared, messages: m.messages, cursors: m.cursors, general: service{shared: m.shared},
	}}
	m.lease = &lease{shared: m.shared, timers: m.timers, messages: m.messages, consumers: m.consumers}
	m.returnings = &returnings{messages: m.messages, groups: m.groups}
	m.clear()
	return m
}

// Supports sets the highest machine version that this program supports, if it
// is not fsm.NewestVersion. Restore refuses states of later versions.
func (m *Machine) Supports(newest uint32) { m.newest = newest }

// Version is the version of the machine: the highest of the applied entries.
func (m *Machine) Version() uint32 { return m.version }

// clear removes everything that the queue holds. Numbers of messages and letters, and the order of
// age, go on. Settings, counters, clock, lease and entries stay, too.
func (m *Machine) clear() {
	m.timers.clear()
	m.labels.Clear()
	m.ends.clear()
	m.groups.clear()
	m.messages.clear()
	m.uniques.clear()
	m.aside.clear()
	m.seen.clear()
	m.outbox.clear()
	m.deadlines.clear()
	m.sessions.clear()
	m.detached.clear()
	m.consumers.clear()
	m.returnings.clear()
}

// Commands yields the commands of an entry, each with the Meta that Apply needs.
func Commands(index, term uint64, e *logpb.Entry) iter.Seq2[fsm.Meta, *logpb.Command] {
	return func(yield func(fsm.Meta, *logpb.Command) bool) {
		meta := fsm.Meta{Index: index, Term: term, Now: fsm.Time(e.Now), Version: e.Version}
		for _, c := range e.Commands {
			meta.Session = fsm.SessionFrom(c.Session)
			if !yield(meta, c) {
				return
			}
			meta.Offset += payloadOf(c)
		}
	}
}

// payloadOf is how much of its entry's payload belongs to a command.
func payloadOf(c *logpb.Command) uint32 {
	switch c.Kind {
	case logpb.Command_ENQUEUE:
		return c.Enqueue.GetSize()
	case logpb.Command_UNIT:
		return c.Unit.GetSize()
	}
	return 0
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
		if before < 3 && m.since(3) {
			m.groups.reviewAll()
			m.messages.disband()
		}
	}
	m.entries.begin(meta.Index)
	m.lease.begin(m.clock.advance(&meta, duration(m.settings.LockCredit)))
	if m.lease.phase() != Active {
		return m.applyEnded(cmd, eff)
	}
	m.consumers.measure()
	m.scratch.begin(cmd.Kind, &m.bounds)
	if m.pause.over(m.clock.now()) {
		m.pause = Pause{}
		m.consumers.reconsider(false)
	}
	m.catchUp(eff)
	m.settleParked(cmd.Kind, eff)
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
		m.bringBack(cmd.Kind, eff)
		m.outbox.goOn(cmd.Kind, eff)
	}
	if ok && cmd.Kind == logpb.Command_TICK {
		m.endUnused(inUse, eff)
	}
	if m.lease.phase() == Active {
		m.consumers.elect()
		m.forward(eff)
		m.assign(eff)
		if ok && cmd.Kind == logpb.Command_CREDIT {
			m.answerCredit(s, cmd.Credit, &r)
		}
		for range m.consumers.thatChoose() {
			eff.Choosers = true
			break
		}
		m.trim(eff)
		m.sweep(cmd.Kind, eff)
	}
	m.groups.settle()
	m.afterUse(inUse, serving, eff)
	eff.Tellings = append(eff.Tellings, m.scratch.news.list...)
	m.scratch.end()
	if invariants.Enabled {
		m.mustHold()
	}
	return r
}

// Due is a kind of deadline.
type Due uint8

const (
	// NothingDue means that there is no deadline.
	NothingDue Due = iota
	// ExpiryDue: a message expires.
	ExpiryDue
	// TimeoutDue: a delivery has been held for too long.
	TimeoutDue
	// LockDue: a lock ends.
	LockDue
	// LeaseDue: the queue ends.
	LeaseDue
	// ScheduleDue: a message becomes ready.
	ScheduleDue
	// PauseDue: a pause of the consumers ends.
	PauseDue
	// WorkDue: a command has left work, which is due at once.
	WorkDue
)

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
		if m.outbox.hasWork() || m.hasWill() && (m.unfinished() || m.outbox.takesWill()) {
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
		earlier(k.At, ExpiryDue)
	}
	earlier(m.deadlines.next())
	earlier(m.sessions.suspicionEnds(), TimeoutDue)
	earlier(m.detached.nextEnd(), LockDue)
	hold, state := m.groups.nextEnds()
	earlier(m.clock.heldUntil(hold), LockDue)
	earlier(state, ExpiryDue)
	if k, _, ok := m.timers.nextTimed(); ok {
		earlier(k.At, ScheduleDue)
	}
	earlier(m.pause.Until, PauseDue)
	earlier(m.lease.leaseEnd(), LeaseDue)
	earlier(m.lease.idleEnd(), LeaseDue)
	earlier(m.seen.due(), WorkDue)
	if m.hasWork() {
		earlier(m.clock.atOnce(), WorkDue)
	}
	return next, what
}

// hasWork reports whether a command has left something to do.
func (m *Machine) hasWork() bool {
	return m.messages.head(purgedList) != 0 || m.tooLong() || m.unfinished() || m.outbox.hasWork() ||
		m.groups.doomed() != 0 || m.outbox.unparks() ||
		m.consumers.canServe() || m.settings.forwards() && m.messages.nextReady() != 0
}

// Resume implements fsm.Machine.
//
// It changes no state, so only the leader calls it: when it begins to lead.
func (m *Machine) Resume(eff *fsm.Effects) {
	eff.Gone = eff.Gone || m.lease.phase() == Gone
	eff.Outbox = eff.Outbox || m.outbox.letters() > 0
	eff.Redrive = eff.Redrive || m.lease.phase() == Active && m.redrive.goesOn()
	for range m.consumers.thatChoose() {
		eff.Choosers = true
		break
	}
}

// AnswerAgain returns the answer to a command that has been performed before, as its
// repetition in the log would get it; of one that is not the last synchronous
// command, only the number counts. It changes no state, so only the replica that
// is asked runs it.
//
// Requires: 1 ≤ cmd.Seq < PositionOf(m, id).Next.
func AnswerAgain(m *Machine, id fsm.SessionID, cmd *logpb.Command, eff *fsm.Effects) fsm.Result {
	return m.repeat(m.sessions.get(id), cmd, eff)
}

// ofSessions are the commands that only a session gives.
var ofSessions = []logpb.Command_Kind{
	logpb.Command_CONSUME, logpb.Command_CANCEL, logpb.Command_GET, logpb.Command_RECEIVE_DEFERRED, logpb.Command_GROUP,
	logpb.Command_CREDIT,
}

// apply performs one command of an active queue. s is the session of the
// command, nil if it has none or an unknown one.
//
// Requires: the queue is Active, due work was caught up, and admit has returned
// ok. Ensures: Invalid and NoSession have changed nothing, except that the
// command has used up its number in the stream.
func (m *Machine) apply(meta *fsm.Meta, cmd *logpb.Command, s *session, eff *fsm.Effects) fsm.Result {
	if s == nil && slices.Contains(ofSessions, cmd.Kind) {
		return fsm.Result{Code: fsm.NoSession}
	}
	switch cmd.Kind {
	case logpb.Command_ENQUEUE:
		return fsm.Result{Code: m.enqueue(meta, cmd.Enqueue, eff)}
	case logpb.Command_CONSUME:
		return m.consumers.consume(s, cmd.Consume, eff)
	case logpb.Command_CANCEL:
		return m.consumers.cancel(s, cmd.Cancel)
	case logpb.Command_GET:
		return m.get(s, cmd.Get, eff)
	case logpb.Command_SETTLE:
		code, n := m.settle(s, cmd.Settle, eff)
		return fsm.Result{Code: code, Count: n}
	case logpb.Command_RENEW:
		return m.renew(s, cmd.Renew)
	case logpb.Command_SESSION_DOWN:
		return m.sessionDown(meta, s)
	case logpb.Command_PURGE:
		return m.purge()
	case logpb.Command_CONFIGURE:
		return m.configure(cmd.Configure, eff)
	case logpb.Command_TICK:
		return m.tick(eff)
	case logpb.Command_DELETE:
		return m.delete(cmd.Delete, eff)
	case logpb.Command_TOUCH:
		return m.touch(cmd.Touch)
	case logpb.Command_ROUTE_DEAD:
		return m.outbox.routeDead(cmd.RouteDead, eff)
	case logpb.Command_SETTLE_DEAD:
		return m.outbox.confirmTransfers(cmd.SettleDead, eff)
	case logpb.Command_NODE_DOWN:
		return m.consumers.nodeDown(cmd.NodeDown)
	case logpb.Command_NODE_SUSPECTED:
		return m.consumers.nodeSuspected(cmd.NodeSuspected, eff)
	case logpb.Command_SCHEDULE:
		return m.reschedule(cmd.Schedule, eff)
	case logpb.Command_RECEIVE_DEFERRED:
		return m.receiveDeferred(s, cmd.ReceiveDeferred, eff)
	case logpb.Command_KICK:
		return m.retryNow(cmd.Kick)
	case logpb.Command_UNPARK:
		return m.unpark(cmd.Unpark)
	case logpb.Command_CREDIT:
		return m.giveCredit(s, cmd.Credit)
	case logpb.Command_GROUP:
		return m.group(s, cmd.Group)
	case logpb.Command_CHOOSE:
		return m.choose(cmd.Choose, eff)
	case logpb.Command_TAKE:
		return m.take(cmd.Take, eff)
	case logpb.Command_REDRIVE:
		return m.redrive.change(cmd.Redrive, m, eff)
	case logpb.Command_REDRIVE_STEP:
		return m.redrive.step(cmd.RedriveStep, m, eff)
	case logpb.Command_UNIT:
		return m.unit(meta, cmd.Unit, eff)
	case logpb.Command_PAUSE:
		r := m.changePause(cmd.Pause)
		if r.Code == fsm.OK {
			m.lease.touch()
			m.consumers.reconsider(false)
		}
		return r
	}
	return fsm.Result{Code: fsm.Invalid}
}

// admit finds the session of a command and its place in the stream. ok says
// that the command is to be performed; if not, r is its answer. s is nil for a
// command outside of any stream whose session is unknown.
//
// What happens to command n = cmd.Seq of a session:
//
//	no session          n = 0: performed; else Invalid
//	n = 0               performed outside of the stream, by a known session or not
//	unknown, n ≠ 1      NoSession: never Gap, which would begin the stream anew
//	unknown, ended      NoSession
//	unknown, n = 1      Late if made too long ago; else the session begins
//	n < next            the answer it got before; nothing is performed
//	n > next            Gap, with the number that is expected
//	n = next            performed; next grows by one, whatever the result
//
// A session of a node that is down counts as unknown and ended. A refusal changes
// nothing; a repetition only counts in Duplicates.
func (m *Machine) admit(meta *fsm.Meta, cmd *logpb.Command, eff *fsm.Effects) (s *session, r fsm.Result, ok bool) {
	if meta.Session == (fsm.SessionID{}) {
		if cmd.Seq != 0 {
			return nil, fsm.Result{Code: fsm.Invalid}, false
		}
		return nil, r, true
	}
	s = m.sessions.find(meta.Session)
	switch {
	case cmd.Seq == 0:
		return s, r, true
	case s == nil && (cmd.Seq != 1 || m.sessions.hasEnded(meta.Session)):
		return nil, fsm.Result{Code: fsm.NoSession}, false
	case s == nil && m.sessions.isLate(fsm.Time(cmd.OpenedAt)):
		return nil, fsm.Result{Code: fsm.Late, Next: uint64(m.clock.now())}, false
	case s == nil:
		s = m.sessions.begin(meta.Session)
	case cmd.Seq < s.next:
		m.counters.Duplicates++
		return s, m.repeat(s, cmd, eff), false
	case cmd.Seq > s.next:
		return s, fsm.Result{Code: fsm.Gap, Next: s.next}, false
	}
	s.next++
	return s, r, true
}

// configure replaces the settings. A new lease starts now. Message expiries,
// schedules and deadlines that are already running are unaffected. A new length
// limit acts at once, and waiting letters are dropped if the queue no longer
// delivers at least once. The order of the messages changes only while there are
// none. Settings with an older revision than the effective
// ones are ignored: they come from a leader with an outdated view.
//
// Configure is proposed by the leader, outside of any stream. It also restores
// the settings of a snapshot, on a machine that is still empty; all it does
// besides replacing them is without effect there.
func (m *Machine) configure(cmd *logpb.Configure, eff *fsm.Effects) fsm.Result {
	c := cmd.GetConfig()
	if c == nil {
		return fsm.Result{Code: fsm.Invalid}
	}
	if c.Revision < m.settings.Revision {
		return fsm.Result{}
	}
	if c.Expires != m.settings.Expires {
		m.lease.renew()
	}
	single, groups, paused := m.settings.SingleActive, m.settings.Groups, m.settings.Paused
	byDeadline, window, prefetch, dispatch := m.settings.DeadlineOrder, m.settings.dedup, m.settings.MaxPrefetch, m.settings.Dispatch
	m.settings = newSettings(c)
	m.ends.trim()
	if m.messages.Live() > 0 {
		m.settings.DeadlineOrder = byDeadline
	}
	m.seen.configured(window)
	m.timers.orderByDeadline(m.settings.DeadlineOrder)
	m.lease.touch()
	if c.SingleActive != single || c.Groups != groups || c.Paused != paused || c.MaxPrefetch != prefetch || c.Dispatch != dispatch {
		m.consumers.reconsider(c.SingleActive != single)
	}
	m.outbox.settleWaiting()
	eff.Outbox = eff.Outbox || m.outbox.letters() > 0 // there may be another route now
	return fsm.Result{}
}

// touch records use: an active redeclaration, which also renews the lease, or something that keeps
// the queue from being idle. It answers what queue.declare-ok reports.
func (m *Machine) touch(cmd *logpb.Touch) fsm.Result {
	m.lease.touch()
	if !cmd.GetIdleOnly() {
		m.lease.renew()
	}
	return fsm.Result{Count: m.messages.readyCount(), Consumers: uint64(m.consumers.active())}
}

const (
	// dueBefore bounds the expiries before a command, and separately those
	// during its assignment; a Tick has dueInTick for both together.
	dueBefore = 64
	dueInTick = 4096

	// dropsAtOnce bounds what one command drops from the head of a queue that
	// is too long. A Tick or a Purge releases up to sweepInTick purged
	// messages, any other command dueBefore.
	dropsAtOnce = 4096
	// One of a group counts as several, since it may be the end of a hold.
	sweepInTick  = 16384
	sweptOfGroup = sweepInTick / dueInTick

	// handOutsAtOnce bounds how many messages one command hands out.
	handOutsAtOnce = 2048

	// maxConsumers bounds the consumers of a queue, including gets and
	// cancelled ones that still hold messages: some commands scan all of them.
	maxConsumers = 8192

	// skipsAtOnce bounds how many messages one command passes over because they
	// have too little left of their TTL.
	skipsAtOnce = 4096

	// maxStates bounds the states of all groups of a queue together, in bytes.
	maxStates = 256 << 20
)

// shared is what all parts of a machine read, and where they count what they
// do. It has no rules of its own. Each machine has one, and every part points
// to it. Only the machine changes clock, settings and bounds, between two
// rules; a part changes scratch as its contract says.
type shared struct {
	// name and id never change. clock, settings, counters, pause and redrive are state and in every
	// snapshot; bounds, which the program sets, and scratch are in none.
	name     string // name of the queue, recorded in deaths
	id       fsm.QueueID
	clock    clock
	settings settings
	counters Counters
	pause    Pause
	redrive  redriving
	bounds   Bounds
	scratch  scratch
	// A snapshot holds version only if it is above 1, so that version 1 keeps its bytes.
	version uint32 // highest of the entries, at least 1
}

// since reports whether the machine is of version v or later.
func (s *shared) since(v uint32) bool { return s.version >= v }

func (s *shared) refusedRuns() int {
	if s.since(3) {
		return refusedRuns
	}
	return fewerRuns
}

// Bounds limit the work of one command. What is left is due at once, and done
// by ticks. They are equal on all replicas.
//
// Invariant: all are at least 1, or a command that leaves work would make no
// progress and the leader would tick forever. They are not in the log: to change
// one is to change what an entry does, so it needs a new machine version.
type Bounds struct {
	Before   int // due actions before a command, and leftover work that other commands do
	Tick     int // due actions of a tick, and the work of ending a session, a node or deliveries
	Drops    int // messages dropped from the head of a queue that is too long
	Sweep    int // purged messages that a tick or a purge releases
	HandOuts int // messages handed out
	// Consumers is the maximum number of a queue, including gets and cancelled
	// ones that still hold messages: any command may scan all of them.
	Consumers int
	IDs       int // remembered against duplicates
	Skips     int // messages passed over for consumers that ask for a least TTL
	States    int // bytes of the states of all groups, from version 3 on
	Tallies   int // values of the header by which messages are counted, told apart at a time; ≤ maxTallies
}

var defaultBounds = Bounds{dueBefore, dueInTick, dropsAtOnce, sweepInTick, handOutsAtOnce, maxConsumers, maxSeen, skipsAtOnce, maxStates, maxTallies}

// Back is how many deliveries a tick, or the end of a session or a node, brings
// back, and how many transfers to targets that are gone it ends. Each may be a
// death, which costs twice as much as other actions. It is at least 1 if Tick
// is.
func (b Bounds) Back() int { return (b.Tick + 1) / 2 }

func (b *Bounds) upTo(n uint64) uint64 {
	if n == 0 {
		n = uint64(b.Tick)
	}
	return min(n, uint64(b.Tick))
}

func (b *Bounds) due(kind logpb.Command_Kind) int {
	if kind == logpb.Command_TICK {
		return b.Tick
	}
	return b.Before
}

// scratch is the temporary data of a command being applied. It is not state: it
// has no meaning between two commands, and is in no snapshot.
//
// Invariant: budget, handOuts and skips are not negative. taken and overdue are reused, so
// slices of them must not be retained.
//
// steps measures the work of one command independently of the processor. Parts
// add to it wherever the work is proportional to something that may be large.
type scratch struct {
	budget    int    // due actions that may still be performed
	handOuts  int    // messages that may still be handed out
	skips     int    // messages that may still be passed over
	steps     int    // steps taken so far, for tests
	fresh     uint32 // a message with TTL 0 that is being offered; 0: none
	ended     bool   // the queue has ended: nothing becomes ready
	fits      bool   // a unit is performed, for which there is space
	delivered uint64 // number of the delivery of a get; 0: none
	taken     []checkout
	overdue   []checkout
	// by is who held the message that is dying; zero: nobody. holders are those of
	// taken and overdue, see checkout.by.
	by      lastHolder
	holders []lastHolder
	news    news
}

func (s *scratch) holder(id fsm.ConsumerID, tag string) uint32 {
	s.holders = append(s.holders, lastHolder{id, tag})
	return uint32(len(s.holders))
}

func (s *scratch) noteHolder(taken []checkout, id fsm.ConsumerID, tag string) {
	by := s.holder(id, tag)
	for i := range taken {
		taken[i].by = by
	}
}

func (s *scratch) heldBy(no uint32) {
	if s.by = (lastHolder{}); no > 0 {
		s.by = s.holders[no-1]
	}
}

// begin starts a command of an active queue.
func (s *scratch) begin(kind logpb.Command_Kind, b *Bounds) {
	s.budget, s.handOuts, s.steps, s.taken = b.due(kind), b.HandOuts, 0, s.taken[:0]
	s.skips, s.fits = b.Skips, false
	s.by, s.news.consumed = lastHolder{}, nil
}

// end frees memory that only a large command needs. The memory is kept
// otherwise: commands that take a few deliveries allocate none.
func (s *scratch) end() {
	if cap(s.taken) > dueInTick {
		s.taken, s.overdue = nil, nil
	}
	if len(s.holders) > 0 {
		clear(s.holders)
		s.holders = s.holders[:0]
	}
	s.news.reset()
}

// Deaths counts messages by the reason of their death, from EXPIRED on, and by
// disposition.
type Deaths [logpb.Death_QUEUE_DELETED][AtLeastOnce + 1]uint64

// deathsAlways is how many reasons a snapshot always counts; later ones only if anything died of them.
const deathsAlways = int(logpb.Death_MAXHOPS)

// Counters only grow. They are part of the replicated state. They are equal on
// all replicas, and a repeated command counts only in Duplicates.
type Counters struct {
	Enqueued, Delivered, Redelivered       uint64
	Acked, Requeued                        uint64
	Expired, DeadLettered, DeadDropped     uint64
	TimedOut, LateAcks, Purged, Duplicates uint64
	// Refused counts publishes refused by a length limit, or by a schedule
	// name.
	Refused uint64
	// Scheduled counts messages that were scheduled, Unscheduled those cancelled,
	// replaced by others of their names, or purged before they became due.
	Scheduled, Unscheduled uint64
	Cancelled, Replaced    uint64 // of Unscheduled
	// AckedExpired counts messages that were acked although they had expired
	// meanwhile.
	AckedExpired uint64
	// Unroutable counts messages of a delayed exchange that had no route when
	// due.
	Unroutable uint64
	// DeadConfirmed counts letters that have arrived, DeadDropped those that no
	// target has, DeadRefused transfers (not letters) that a target has
	// refused. Forwarded counts the messages that have arrived at all queues to
	// which the queue forwards them; they are no letters.
	DeadConfirmed, DeadRefused uint64
	Forwarded                  uint64
	// Deaths counts by reason and disposition.
	Deaths       Deaths
	LocksLost    uint64 // locks that ended before their delivery was settled
	LocksRenewed uint64 // on request
	LateLocks    uint64 // settlements of deliveries whose lock had ended
	GroupsTaken  uint64 // how often a consumer got a group
	GroupsLost   uint64 // how often its lock ended
	Deferred     uint64 // deliveries that ended in a deferral
	Kicked       uint64 // messages that were retried before their time
	Parked       uint64 // messages that have exceeded the default delivery limit
	Unparked     uint64 // of those: became ready again
	SameID       uint64 // publishes that were duplicates of messages
	IDsForgotten uint64 // within the window against duplicates, since there were too many
	Deleted      uint64 // messages that a Take has deleted
	Redriven     uint64 // messages that have arrived where a Take has redriven them; of Forwarded
	Copied       uint64 // copies that have arrived where a Take has sent them; not of Forwarded
}

// fields lists the counters, but for Deaths, each with what has it in a snapshot.
func (c *Counters) fields(st *logpb.QueueCounters) [][2]*uint64 {
	return [][2]*uint64{
		{&c.Enqueued, &st.Enqueued}, {&c.Delivered, &st.Delivered}, {&c.Redelivered, &st.Redelivered},
		{&c.Acked, &st.Acked}, {&c.Requeued, &st.Requeued},
		{&c.Expired, &st.Expired}, {&c.DeadLettered, &st.DeadLettered}, {&c.DeadDropped, &st.DeadDropped},
		{&c.TimedOut, &st.TimedOut}, {&c.LateAcks, &st.LateAcks}, {&c.Purged, &st.Purged}, {&c.Duplicates, &st.Duplicates},
		{&c.Refused, &st.Refused}, {&c.Scheduled, &st.Scheduled}, {&c.Unscheduled, &st.Unscheduled},
		{&c.Cancelled, &st.Cancelled}, {&c.Replaced, &st.Replaced}, {&c.AckedExpired, &st.SettledExpired}, {&c.Unroutable, &st.Unroutable},
		{&c.DeadConfirmed, &st.DeadConfirmed}, {&c.DeadRefused, &st.DeadRefused}, {&c.Forwarded, &st.Forwarded},
		{&c.LocksLost, &st.LocksLost}, {&c.LocksRenewed, &st.LocksRenewed}, {&c.LateLocks, &st.LateLocks},
		{&c.GroupsTaken, &st.GroupsTaken}, {&c.GroupsLost, &st.GroupsLost},
		{&c.Deferred, &st.Deferred}, {&c.Kicked, &st.Kicked}, {&c.Parked, &st.Parked}, {&c.Unparked, &st.Unparked},
		{&c.SameID, &st.SameId}, {&c.IDsForgotten, &st.IdsForgotten},
		{&c.Deleted, &st.Deleted}, {&c.Redriven, &st.Redriven}, {&c.Copied, &st.Copied},
	}
}

// proto returns the counters in the form of the snapshot.
func (c *Counters) proto() *logpb.QueueCounters {
	st := &logpb.QueueCounters{Deaths: make([]uint64, 0, len(c.Deaths)*len(c.Deaths[0]))}
	for i, d := range c.Deaths {
		if i < deathsAlways || d != [AtLeastOnce + 1]uint64{} {
			st.Deaths = append(st.Deaths, d[:]...)
		}
	}
	for _, f := range c.fields(st) {
		*f[1] = *f[0]
	}
	return st
}

// restore is the inverse of proto.
func (c *Counters) restore(st *logpb.QueueCounters) error {
	if n := len(st.Deaths) / len(c.Deaths[0]); n < deathsAlways || n > len(c.Deaths) || len(st.Deaths)%len(c.Deaths[0]) != 0 {
		return fmt.Errorf("%w: deaths are not counted", ErrSnapshot)
	}
	for i := range len(st.Deaths) / len(c.Deaths[0]) {
		copy(c.Deaths[i][:], st.Deaths[i*len(c.Deaths[i]):])
	}
	for _, f := range c.fields(st) {
		*f[0] = *f[1]
	}
	return nil
}

// Died is the number of deaths for a reason, with any disposition.
func (c *Counters) Died(reason logpb.Death_Reason) (n uint64) {
	for _, d := range c.Deaths[reason-1] {
		n += d
	}
	return n
}

// dueAt is when a message becomes ready: at an instant, or so long from now,
// as the log has it, or as long as the queue lets messages wait. 0: it was asked
// for none of them.
//
// Ensures: 0 ≤ result ≤ fsm.MaxTime. It may be in the past; the caller decides
// what that means.
func (s *shared) dueAt(at int64, storedDelay, delay uint64) fsm.Time {
	switch d := millis(storedDelay); {
	case at > 0:
		return min(fsm.Time(at), fsm.MaxTime)
	case d.Given:
		return s.clock.deadline(d.Value)
	case delay > 0:
		return s.clock.deadline(duration(delay))
	}
	return 0
}

// expiry returns when a message expires whose TTL counts from an instant in the
// past; 0: from now.
//
// An instant in the future counts as now: the clock of another queue, from which
// it comes, may be ahead. Ensures: 1 ≤ result ≤ fsm.MaxTime.
func (s *shared) expiry(from int64, ttl fsm.Millis) fsm.Time {
	if from <= 0 {
		return s.clock.deadline(ttl)
	}
	return max(min(fsm.Time(from), s.clock.now()).Add(ttl), 1)
}

// clock is the machine's time: the latest stamp it has seen. Held messages use
// a second time, which is behind by the lock credit: nobody can settle without
// a leader, so the holders are credited with that time.
//
// Invariant: 0 ≤ behind ≤ time ≤ fsm.MaxTime. Neither ever falls.
type clock struct {
	time   fsm.Time
	behind fsm.Time // lock credit given so far
	term   uint64   // of the last entry; 0: there was none
}

// advance moves the clock to the stamp of an entry. limit is the maximum lock
// credit for a change of term. It reports whether the term is new.
//
// Requires: limit ≥ 0. Several commands of one entry have the same term and
// stamp, so the credit is given at most once per term. It never exceeds what the
// clock has advanced by with this entry, which keeps behind ≤ time. The first
// entry of all gives none, since nobody held anything before it.
func (c *clock) advance(meta *fsm.Meta, limit fsm.Millis) (newTerm bool) {
	before := c.time
	c.time = max(c.time, min(meta.Now, fsm.MaxTime))
	if meta.Term == c.term {
		return false
	}
	if c.term != 0 {
		c.behind += min(c.time-before, fsm.Time(limit))
	}
	c.term = meta.Term
	return true
}

func (c *clock) now() fsm.Time { return c.time }

func (c *clock) lockCredit() fsm.Millis { return fsm.Millis(c.behind) }

func (c *clock) inTerm() uint64 { return c.term }

// deadline is the instant d from now. It is never 0, which means never.
// Requires: d ≥ 0. It saturates at fsm.MaxTime.
func (c *clock) deadline(d fsm.Millis) fsm.Time { return max(c.time.Add(d), 1) }

// atOnce is the deadline of work that is already due. It is now, unless that is
// 0.
func (c *clock) atOnce() fsm.Time { return max(c.time, 1) }

// heldDeadline is the instant d from now on the time of held messages. It is
// never 0. Requires: d ≥ 0.
//
// Ensures: heldUntil(heldDeadline(d)) = deadline(d) until more credit is given,
// except where one of them saturates or would be 0.
func (c *clock) heldDeadline(d fsm.Millis) fsm.Time { return max((c.time - c.behind).Add(d), 1) }

// heldNow is now on the time of held messages.
func (c *clock) heldNow() fsm.Time { return c.time - c.behind }

// heldUntil is when the clock reaches t, an instant on the time of held
// messages, unless more credit is given. 0 stays 0. More credit moves the
// instants of all held messages at once, in O(1), because none of them is
// stored.
func (c *clock) heldUntil(t fsm.Time) fsm.Time {
	if t == 0 {
		return 0
	}
	return t.Add(fsm.Millis(c.behind))
}

func (c *clock) save(h *logpb.QueueSnapshot) {
	h.Clock, h.LockCredit, h.Term = int64(c.time), int64(c.behind), c.term
}

func (c *clock) restore(h *logpb.QueueSnapshot) {
	*c = clock{fsm.Time(h.Clock), fsm.Time(h.LockCredit), h.Term}
}

func (c *clock) check(k *checker) {
	k.that(0 <= c.behind && c.behind <= c.time && c.time <= fsm.MaxTime, "clock %d, credit %d", c.time, c.behind)
}

package group

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// applier applies a queue's entries to its machine, as raft's state machine. Effects leave only
// while this node serves as the leader.
//
//	stopped ⇒ machine is empty, and nothing is applied or written to a snapshot
type applier struct {
	group    fsm.GroupID
	isLocal  bool
	node     *applierNode
	serves   func() bool // whether effects are to leave
	outgoing *outgoing
	demand   *demand
	timer    *timer
	guard    *guard
	release  func(indexes []uint64)
	doubt    func(s fsm.SessionID) // the leader's cursor of a session may be wrong
	log      *raftlog.Group        // nil for a local queue
	usage    *Usage
	started  chan struct{} // closed once entries of the log may be applied

	newMachine func() *queue.Machine

	// Lock order: mu is taken before the locks of the proposer, the timer and the outgoing work,
	// and after leadership.changing and the lock of the settings.
	mu      sync.Mutex
	machine *queue.Machine
	effects fsm.Effects
	given   bool   // the machine, to the record of a replica that sleeps
	stopped bool   // the machine has failed: an empty one replaces it
	origin  uint64 // of the machine, see raftlog.Group.Origin
	known   uint64 // demand.boots when the boots of nodes were listed last
	probes  replica.Probes
}

var _ raft.BatchingFSM = (*applier)(nil)

// ApplyBatch implements raft.BatchingFSM.
func (a *applier) ApplyBatch(logs []*raft.Log) []any {
	<-a.started
	began := time.Now()
	a.apply(logs)
	a.usage.active.Store(began.UnixNano())
	a.node.meters.applies.Observe(time.Since(began))
	size, headers := 0, 0
	for _, l := range logs {
		size += len(l.Data) + len(l.Extensions)
		headers += len(l.Data) + entryOverhead
	}
	if !a.hasStopped() { // otherwise no snapshot will cover them
		a.usage.toReplay(int64(headers))
	}
	a.usage.applied(len(logs), size)
	return make([]any, len(logs))
}

// Apply implements raft.FSM.
func (a *applier) Apply(l *raft.Log) any { return a.ApplyBatch([]*raft.Log{l})[0] }

// entryOverhead is the cost of applying an entry in addition to its header, in bytes of headers.
const entryOverhead = 64

// apply applies entries, and passes their effects on if this node leads.
func (a *applier) apply(logs []*raft.Log) {
	if deadline, ticked, lead := a.applyAll(logs); lead {
		defer a.guard.contain("arm the timer")
		a.timer.applied(deadline, ticked)
	}
}

// applyAll applies entries. lead says that their effects have been passed on. A machine that
// panics is stopped: later entries are stored, not applied.
func (a *applier) applyAll(logs []*raft.Log) (deadline fsm.Time, ticked, lead bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return 0, false, false
	}
	if lead = a.serves(); lead {
		a.outgoing.lock()
		defer a.outgoing.unlockAndRun()
	}
	var l *raft.Log
	defer func() { // this runs first: nobody performs the work of a group that is quarantined
		if p := recover(); p != nil {
			a.stop(fmt.Sprintf("apply entry %d of term %d", l.Index, l.Term), p)
			lead = false
		}
	}()
	for _, l = range logs {
		if l.Type == raft.LogCommand {
			ticked = a.applyEntry(l, lead) || ticked
			if a.probes.SomeWait() {
				a.probes.Answer(a.machine.Index())
			}
		}
	}
	if lead {
		if a.demand.note(a.machine) {
			a.node.lengths.changed(a.demand, a.machine.ID(), a.group)
		}
		if a.known != a.demand.boots {
			a.listBoots()
		}
		a.outgoing.next.Add(&a.effects)
	} else {
		a.freeOnly(&a.effects)
	}
	a.effects.Reset()
	return a.machine.NextDeadline(), ticked, lead
}

// listBoots lists the boots of nodes that the machine knows. The caller holds mu.
func (a *applier) listBoots() {
	a.known = a.demand.boots
	a.node.boots(a.group, a.machine.SessionNodes(), a.machine.SuspectedNodes())
}

// freeOnly handles effects on a follower. A queue that has ended may leave much to free; that is
// freed where work is done. The caller holds mu.
func (a *applier) freeOnly(e *fsm.Effects) {
	if len(e.Released) > 0 {
		a.release(e.Released)
	}
	if e.Rest != nil {
		a.outgoing.lock()
		defer a.outgoing.unlockAndRun()
		a.outgoing.next.Rest = e.Rest
	}
}

// applyEntry applies the commands of one entry and reports whether one of them was a tick. The
// caller holds mu, and the outgoing work's lock if this node leads.
func (a *applier) applyEntry(l *raft.Log, lead bool) (ticked bool) {
	e := logpb.EntryFromVTPool()
	defer e.ReturnToVTPool()
	if err := e.UnmarshalVT(l.Data); err != nil {
		a.node.fail(replica.CodeDamaged, fmt.Sprintf("group %d: entry %d cannot be decoded: %v", a.group, l.Index, err))
	}
	if newest := a.node.newest; e.Version > newest {
		a.node.fail(replica.CodeTooOld, fmt.Sprintf("group %d: entry %d has version %d, but this program supports only up to %d", a.group, l.Index, e.Version, newest))
	}
	if lead {
		before := a.machine.Dead()
		defer func() { a.node.deaths.add(a.machine.ID(), a.isLocal, before, a.machine.Dead()) }()
	}
	for m, c := range queue.Commands(l.Index, l.Term, e) {
		if c.Kind == logpb.Command_TICK {
			ticked = true
			if lead {
				a.noteLateness(m.Now)
			}
		}
		r := a.machine.Apply(m, c, &a.effects)
		if lead && c.Seq > 0 {
			a.outgoing.outcome(m.Session, c.Seq, r)
			if c.Kind == logpb.Command_SESSION_DOWN || r.Code == fsm.Gap || r.Code == fsm.NoSession || r.Code == fsm.Late {
				a.doubt(m.Session)
			}
		}
	}
	return ticked
}

// noteLateness reports how late a tick is. The caller holds mu.
func (a *applier) noteLateness(now fsm.Time) {
	if due, what := a.machine.NextDue(); due != 0 && due <= now {
		a.node.late(what, fsm.Millis(now-due))
	}
}

// begin starts to serve if this replica still leads: what the machine owes to living sessions goes
// out before the effects of new entries. serve is called with the machine's clock.
func (a *applier) begin(leads func() bool, serve func(now fsm.Time)) (deadline fsm.Time, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !leads() {
		return 0, false
	}
	a.effects.Reset()
	a.machine.Resume(&a.effects)
	deadline = a.machine.NextDeadline()
	a.demand.note(a.machine)
	a.listBoots()
	serve(a.machine.Clock())
	a.outgoing.lock()
	defer a.outgoing.unlockAndRun()
	a.outgoing.next.Add(&a.effects)
	a.effects.Reset()
	a.timer.begin(deadline) // before entries of this term can change it
	return deadline, true
}

// rearm sets the timer to the machine's deadline again.
func (a *applier) rearm() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer.begin(a.machine.NextDeadline()) // under the lock, as in begin
}

// hasUpTo reports whether the machine has every command up to an index: no entry is without one. It has not, for all that is
// known, while it applies something.
func (a *applier) hasUpTo(index uint64) bool {
	if !a.mu.TryLock() {
		return false
	}
	defer a.mu.Unlock()
	return !a.given && a.has(index)
}

// has is hasUpTo for a caller that holds mu.
func (a *applier) has(index uint64) bool {
	for l := (raft.Log{}); index > a.machine.Index(); index-- {
		if a.log.GetLog(index, &l) != nil {
			return true // a snapshot has it, and the machine has that
		}
		if l.Type == raft.LogCommand {
			return false
		}
	}
	return true
}

// due reports whether a tick would change something.
func (a *applier) due() bool {
	defer a.guard.contain("look for what is due")
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tickIsDue()
}

// tickIsDue is due for a caller that holds mu.
func (a *applier) tickIsDue() bool {
	if a.given {
		return false
	}
	d := a.machine.NextDeadline()
	return d != 0 && a.timer.until(d) == 0
}

// waiting describes what the machine waits for, and its progress.
type waiting struct {
	tick, settings  bool
	ticks, revision uint64
}

// waiting returns what the machine of a serving group waits for; ok is false while entries are
// being applied.
func (a *applier) waiting(serves bool, s *settings) (w waiting, ok bool) {
	defer a.guard.contain("look for what waits")
	if !a.mu.TryLock() {
		return w, false
	}
	defer a.mu.Unlock()
	if a.given {
		return w, true
	}
	have := a.machine.Config()
	w.tick, w.ticks = serves && a.tickIsDue(), a.timer.count()
	w.settings, w.revision = serves && s.wait(have), have.GetRevision()
	return w, true
}

// view runs f on the machine between two entries, unless that has been given away. If the group turns out to be quarantined
// afterwards, what f has set must be discarded.
func (a *applier) view(f func(m *queue.Machine)) (here bool) {
	defer a.guard.contain("read the machine")
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.given {
		return false
	}
	here = true // also if f panics
	f(a.machine)
	return here
}

// moreDue reports whether the machine still has work that is due at its own
// clock: the last tick stopped at its bound.
func (a *applier) moreDue() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.machine.NextDeadline()
	return d != 0 && d <= a.machine.Clock()
}

// resync reads the messages a consumer holds after a delivery, up to the size limit of an answer,
// and sends them in order among the deliveries, together with the notice of messages taken from
// the consumer or of its cancellation.
func (a *applier) resync(to fsm.ConsumerID, after uint64, leads func() bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !leads() {
		return
	}
	held := effectsPool.Get().(*fsm.Effects)
	defer effectsPool.Put(held)
	a.machine.Held(to, after, maxHeld, held)
	r := resynced(to, held.Deliveries, a.machine.Newest(to))
	a.outgoing.lock()
	a.outgoing.answerResync(r, held)
	held.Reset()
	a.outgoing.unlockAndRun()
}

// again answers those of some commands that have been applied, of these sessions.
func (a *applier) again(commands []byte, of map[fsm.SessionID]bool) {
	defer a.guard.contain("answer commands again")
	e := logpb.EntryFromVTPool()
	defer e.ReturnToVTPool()
	if err := e.UnmarshalVT(commands); err != nil {
		return // they have been read before
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.serves() {
		return
	}
	effects := effectsPool.Get().(*fsm.Effects)
	defer effectsPool.Put(effects)
	a.outgoing.lock()
	defer a.outgoing.unlockAndRun()
	for _, c := range e.Commands {
		s := fsm.SessionFrom(c.Session)
		switch p := queue.PositionOf(a.machine, s); {
		case c.Seq == 0 || !of[s]:
		case p.Ended:
			a.outgoing.outcome(s, c.Seq, fsm.Result{Code: fsm.NoSession})
		case c.Seq < p.Next:
			a.outgoing.outcome(s, c.Seq, queue.AnswerAgain(a.machine, s, c, effects))
		}
	}
	a.outgoing.next.Add(effects) // messages of gets
	effects.Reset()
}

// maxRecalled bounds how many commands are answered at once: more than a session may have unanswered.
const maxRecalled = 4 * fsm.MaxUnanswered

// recall answers the commands of a session from a number on, as far as they are applied, and says which
// one comes next, see Group.Recall. The last synchronous one is asked for: its number alone does not tell
// its answer.
func (a *applier) recall(s fsm.SessionID, from uint64, expects func(next uint64) uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.serves() {
		return
	}
	p := queue.PositionOf(a.machine, s)
	next, end := expects(p.Next), min(p.Next, from+maxRecalled)
	if from <= p.Call && p.Call < end {
		end = p.Call
	}
	switch {
	case p.Over || next == 0 && from == 1:
		next = from // the machine answers
	case p.Ended || next == 0:
		next = 0
	case end < p.Next:
		next = end
	}
	a.outgoing.lock()
	defer a.outgoing.unlockAndRun()
	if next == 0 {
		a.outgoing.outcome(s, from, fsm.Result{Code: fsm.NoSession})
		return
	}
	a.outgoing.outcome(s, from, fsm.Result{Code: fsm.Gap, Next: next})
	for n := from; n < end; n++ {
		a.outgoing.outcome(s, n, queue.AnswerAgain(a.machine, s, &logpb.Command{Seq: n}, nil))
	}
}

// stop takes a failed machine out of use, because its state is unknown. An empty one replaces it,
// so that readers find nothing rather than inconsistent state. The caller holds mu, and recovers.
func (a *applier) stop(doing string, panicked any) {
	a.stopped = true
	a.usage.captured() // there is nothing to write
	a.machine = a.newMachine()
	a.effects.Reset()
	a.guard.quarantine(doing, panicked, true)
}

func (a *applier) hasStopped() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stopped
}

// Snapshot implements raft.FSM: it captures the machine. The snapshot is written elsewhere.
func (a *applier) Snapshot() (_ raft.FSMSnapshot, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return nil, ErrStopped
	}
	defer func() {
		if p := recover(); p != nil {
			a.stop("capture a snapshot", p)
			err = ErrStopped
		}
	}()
	view := a.machine.Snapshot()
	return &snapshot{applier: a, view: view, origin: a.origin, replay: a.usage.captured()}, nil
}

// Restore implements raft.FSM: it replaces the machine by a snapshot's.
//
// A machine that panics is stopped. The replica opens all the same, or continues after the
// snapshot: its log is whole, so others can count on its votes.
func (a *applier) Restore(rc io.ReadCloser) (err error) {
	defer rc.Close()
	state, err := raftlog.ReadState(rc)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			a.stop("restore a snapshot", p)
			err = nil
		}
	}()
	m := a.newMachine()
	if err := m.Restore(state); errors.Is(err, queue.ErrVersion) {
		a.node.fail(replica.CodeTooOld, fmt.Sprintf("group %d: %v", a.group, err))
	} else if err != nil {
		return fmt.Errorf("restore the machine: %w", err)
	}
	a.machine, a.stopped, a.origin = m, false, a.log.Origin()
	a.usage.captured()
	a.log.Started(m.Live, m.Index())
	return nil
}

// start allows entries after raft's restored state to be applied.
func (a *applier) start() { close(a.started) }

// snapshot is a captured machine.
type snapshot struct {
	applier *applier
	view    *queue.Snapshot
	origin  uint64
	replay  int64 // bytes of headers that need not be applied again once it is written
	written bool
}

// liveSink is a snapshot sink that records which entries hold payloads of live messages, and the
// origin of the machine.
type liveSink interface {
	SetLive(indexes []uint64)
	SetOrigin(origin uint64)
}

// Persist writes the machine's state without bodies.
func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	began := time.Now()
	err := s.persist(sink)
	if err != nil {
		sink.Cancel()
		return fmt.Errorf("write snapshot: %w", err)
	}
	if err = sink.Close(); err == nil {
		s.written = true
		s.applier.node.meters.snapshots.Observe(time.Since(began))
	}
	return err
}

func (s *snapshot) persist(sink raft.SnapshotSink) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.applier.mu.Lock()
			defer s.applier.mu.Unlock()
			s.applier.stop("write a snapshot", p)
			err = ErrStopped
		}
	}()
	if _, err := s.view.WriteTo(sink); err != nil {
		return err
	}
	to := sink.(liveSink)
	to.SetLive(slices.Collect(s.view.LiveIndexes()))
	to.SetOrigin(s.origin)
	return nil
}

// Release records what still has to be applied again because the snapshot was not written. For a
// machine that has failed or was replaced meanwhile it does nothing.
func (s *snapshot) Release() {
	a := s.applier
	a.mu.Lock()
	defer a.mu.Unlock()
	if !s.written && s.origin == a.origin && !a.stopped {
		a.usage.toReplay(s.replay)
	}
}

// Outcome answers the commands First … First+Run-1 of one session's stream.
// Run is more than 1 only if all of them have a plain fsm.OK.
type Outcome struct {
	Session    fsm.SessionID
	First, Run uint64
	Result     fsm.Result
}

// DeliveryWeight is what a delivery is taken to cost, in bytes, on top of its
// payload wherever deliveries are bounded.
const DeliveryWeight = 128

// maxResync bounds the weight of what a resync answers with, if that is more
// than one delivery: who asks asks again from there.
const maxResync = 1 << 20

// maxHeld is as many deliveries as may be in such an answer, and one more.
const maxHeld = maxResync/DeliveryWeight + 1

// releaseAtOnce is how many entries of a queue that has ended are freed at a time.
const releaseAtOnce = 1024

// Work is what one or more entries want done outside, in log order. A get's
// delivery stands in Deliveries; its outcome in Outcomes: do deliveries first.
// Payloads of deliveries and dead letters can be read until the work is done (Group.Payload):
// then what is released is freed.
type Work struct {
	fsm.Effects
	Outcomes  []Outcome
	Resyncs   []Resynced
	addressed map[fsm.SessionID]struct{}
}

// SplitOutcomes separates the outcomes of sessions to which nothing else goes from the others. Those can be
// sent before any payload is read.
func (w *Work) SplitOutcomes() (early, late []Outcome) {
	if w.addressed == nil {
		w.addressed = map[fsm.SessionID]struct{}{}
	}
	clear(w.addressed)
	for i := range w.Deliveries {
		w.addressed[w.Deliveries[i].To.Session] = struct{}{}
	}
	for i := range w.Resyncs {
		w.addressed[w.Resyncs[i].To.Session] = struct{}{}
	}
	for i := range w.Timeouts {
		w.addressed[w.Timeouts[i].To.Session] = struct{}{}
	}
	for i := range w.Tellings {
		w.addressed[w.Tellings[i].To.Session] = struct{}{}
	}
	if len(w.addressed) == 0 {
		return w.Outcomes, nil
	}
	for _, o := range w.Outcomes {
		if _, waits := w.addressed[o.Session]; waits {
			late = append(late, o)
		} else {
			early = append(early, o)
		}
	}
	return early, late
}

// Resynced is what a consumer held after some delivery when the machine was
// asked: all of it up to and including Last.
type Resynced struct {
	To fsm.ConsumerID
	// At says before which of the work's deliveries the machine was asked.
	At int
	// Last is the consumer's newest delivery at that moment, or the last of
	// Held if that is not all.
	Last uint64
	Held []fsm.Delivery
	// More is the next delivery that it holds after Last; 0: there is none.
	More uint64
}

func (w *Work) empty() bool {
	return len(w.Outcomes)+len(w.Resyncs) == 0 && w.Empty()
}

func (w *Work) reset() {
	clear(w.Resyncs)
	w.Effects.Reset()
	w.Outcomes, w.Resyncs = w.Outcomes[:0], w.Resyncs[:0]
}

// outgoing hands work from the goroutine that applies to one that performs.
// The latter lives only while there is work: it reads payloads, perhaps from
// disk, and an idle group has no use for it.
type outgoing struct {
	mu      sync.Mutex
	next    *Work
	spare   *Work
	running bool
	done    sync.WaitGroup
	steps   atomic.Uint64 // of the work: what was performed, payloads read, entries freed

	barred  func() bool // the group has no effects
	perform func(w *Work)
	release func(indexes []uint64)
	guard   *guard
}

func (o *outgoing) lock() {
	o.mu.Lock()
	if o.next == nil {
		o.next = &Work{}
	}
}

// outcome notes one answer. The caller holds the lock.
func (o *outgoing) outcome(s fsm.SessionID, seq uint64, r fsm.Result) {
	w := o.next
	if n := len(w.Outcomes); n > 0 && r == (fsm.Result{}) {
		last := &w.Outcomes[n-1]
		if last.Session == s && last.First+last.Run == seq && last.Result == r {
			last.Run++
			return
		}
	}
	w.Outcomes = append(w.Outcomes, Outcome{Session: s, First: seq, Run: 1, Result: r})
}

// answer adds answers that no entry has given.
func (o *outgoing) answer(outcomes []Outcome) {
	o.lock()
	defer o.unlockAndRun()
	o.next.Outcomes = append(o.next.Outcomes, outcomes...)
}

// unlockAndRun releases the lock and sees to it that the work gets done.
func (o *outgoing) unlockAndRun() {
	start := !o.running && !o.next.empty()
	if start {
		o.running = true
		o.done.Add(1)
	}
	o.mu.Unlock()
	if start {
		go o.run()
	}
}

func (o *outgoing) run() {
	defer o.done.Done()
	for {
		o.mu.Lock()
		w := o.next
		if w.empty() {
			o.running = false
			o.mu.Unlock()
			return
		}
		o.next, o.spare = o.spare, nil
		if o.next == nil {
			o.next = &Work{}
		}
		o.mu.Unlock()
		o.do(w)
		o.steps.Add(1)
		w.reset()
		o.mu.Lock()
		o.spare = w
		o.mu.Unlock()
	}
}

// progress reports whether work is being performed, and a number that grows as it gets on.
func (o *outgoing) progress() (performs bool, steps uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.running, o.steps.Load()
}

// do does work, and frees the entries that it releases. A group that is
// quarantined has no effects: who misses them asks again where it is led next.
func (o *outgoing) do(w *Work) {
	if !o.barred() {
		o.guard.run("perform effects", func() { o.perform(w) })
	}
	if len(w.Released) > 0 {
		o.guard.run("free payloads", func() { o.release(w.Released) })
	}
	if w.Rest != nil {
		o.guard.run("free payloads", func() { o.releaseAll(w.Rest) })
	}
}

// releaseAll is release for as many as a queue may have had.
func (o *outgoing) releaseAll(indexes iter.Seq[uint64]) {
	var some []uint64
	for index := range indexes {
		if some = append(some, index); len(some) == releaseAtOnce {
			o.release(some)
			o.steps.Add(1)
			some = some[:0]
		}
	}
	o.release(some)
}

// answerResync adds the answer to a resync, and what else is held for the consumer.
// The caller holds the lock.
func (o *outgoing) answerResync(r Resynced, held *fsm.Effects) {
	w := o.next
	w.Timeouts = append(w.Timeouts, held.Timeouts...)
	w.Cancelled = append(w.Cancelled, held.Cancelled...)
	w.Tellings = append(w.Tellings, held.Tellings...)
	w.Short = append(w.Short, held.Short...)
	r.At = len(w.Deliveries)
	w.Resyncs = append(w.Resyncs, r)
}

// wait returns when no work is being performed.
func (o *outgoing) wait() { o.done.Wait() }

// effectsPool holds lists for what machines are asked.
var effectsPool = sync.Pool{New: func() any { return new(fsm.Effects) }}

// resynced cuts what a consumer holds to the size of an answer.
func resynced(to fsm.ConsumerID, held []fsm.Delivery, newest uint64) Resynced {
	r := Resynced{To: to, Last: newest}
	weight, n := 0, 0
	for n < len(held) {
		weight += int(held[n].Ref.Size) + DeliveryWeight
		if n > 0 && weight > maxResync {
			r.Last, r.More = held[n-1].ID, held[n].ID
			break
		}
		n++
	}
	r.Held = slices.Clone(held[:n])
	return r
}

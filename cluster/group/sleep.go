package group

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

const (
	// resumeWait bounds how long a leader that wakes may take to lead again, which needs no other member.
	resumeWait = 2 * time.Second
	// maxStateBytes is how large a state may be that a record keeps encoded. A larger one costs as much memory
	// as the machine, which is kept in its place.
	maxStateBytes = 1 << 10
)

// record is what is left of a replica that sleeps.
//
//	R1: all of the log up to at is committed and applied, and nobody waits for an answer or an effect of it.
//	R2: leads ⇒ the raft of this process led in the term at.raft until it ended: no entry of that term exists
//	    that is not in the log here. Or a majority has elected this node in it, and there is no such entry.
//	R3: while it sleeps nobody writes its log. Term and vote change by the voter, which replaces the record.
//	R4: leads ⇒ this process has put it to sleep, or counted the votes, or was there when it was declared. On disk
//	    nobody leads, see TakeUp.
//	R5: every request of raft wakes the group first.
//	R6: stats are the machine's, the deadline among them: the leader's node wakes the group for it.
//	R7: isUnborn ⇒ at is foundedAt, and nothing of the group is stored but what it was founded with.
type record struct {
	at       recordedAt
	leads    bool
	elected  bool   // by the voter: nobody has served in the term
	leader   string // its node; empty: unknown
	members  []replica.Member
	config   raft.Configuration
	configAt uint64 // index of the entry with it
	snapshot int64  // index of the newest one; -1: there is none
	stats    Stats
	settings *QueueConfig
	since    time.Time
	level    bool                     // R1 holds: everything in the log is applied
	failed   bool                     // the machine has failed, or is at no entry that is known: the replica is opened from its disk
	lacks    atomic.Pointer[[]string] // members that may lack entries: their nodes were down; nil: none
	replay   int64                    // see usage
	origin   uint64
	live     uint64        // bytes of payloads
	stamper  clock.Stamper // the leader's
	missed   atomic.Bool   // somebody was refused who waits for word of the leader
	process  [16]byte      // of the leader's node
	noted    time.Time     // since when this is the leader
	wish     wish          // for a leader
	sought   atomic.Int64  // when somebody first asked for the leader that this is, in ns; 0: nobody has
	unborn   atomic.Bool   // nothing of it is stored: it is as it was founded
	stored   bool          // it was on disk when the process began: without a state, the machine is what the log says

	sessions, suspected []queue.Boot // see boots

	mu      sync.Mutex
	machine *queue.Machine // nil: state is in its place, or it is being woken
	state   []byte
	woken   bool
}

// recordedAt is a position in the log, and raft's term at that time, which may be a later one.
type recordedAt struct {
	replica.Position
	raft uint64
}

// progress is Group.Progress.
func (r *record) progress(node string) replica.Progress {
	p := replica.Progress{Role: "follower", Term: r.at.raft, Last: r.at.Index, Commit: r.at.Index, Applied: r.at.Index}
	if r.leads {
		p.Role = "leader"
	}
	for _, m := range r.members {
		p.Voter = p.Voter || m.Node == node && m.Voter
		if r.leads && m.Voter {
			p.Voters = append(p.Voters, m.Node)
		}
	}
	return p
}

// now is the stamp that an entry would get.
func (r *record) now(h *Host) fsm.Time {
	if r.leads {
		return r.stamper.Peek()
	}
	return h.config.Clock.Now()
}

// view runs f on the machine, unless that is about to be woken.
func (r *record) view(h *Host, spec *Spec, f func(m *queue.Machine)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.woken {
		return false
	}
	m := r.held(h, spec)
	if m != nil {
		f(m)
	}
	return m != nil
}

// take gives the machine away; nil: it cannot be made, and the replica is opened from its disk.
func (r *record) take(h *Host, spec *Spec) *queue.Machine {
	r.mu.Lock()
	defer r.mu.Unlock()
	var m *queue.Machine
	if !r.woken {
		m = r.held(h, spec)
	}
	if m != nil {
		r.checkMachine(m)
	}
	r.machine, r.state, r.woken = nil, nil, true
	return m
}

// held returns the machine, or nil. The caller holds mu.
func (r *record) held(h *Host, spec *Spec) *queue.Machine {
	if r.machine != nil {
		return r.machine
	}
	var m *queue.Machine
	var err error
	switch {
	case r.state != nil:
		if m, err = queue.Restored(spec.Name, spec.Queue, h.config.Newest, bytes.NewReader(r.state)); err != nil && !r.stored {
			h.fail(replica.CodeDamaged, fmt.Sprintf("group %d: the state that it sleeps with: %v", spec.Group, err))
		}
	case !r.stored:
		return h.newMachine(*spec) // nothing has happened in the queue
	default:
		if m, err = replayed(h, spec, r.at.Index); err == nil {
			r.machine = m
		}
	}
	if err != nil {
		h.config.Logger.Warn("the state of a queue that slept cannot be made", "group", spec.Group, "error", err)
		r.woken = true
		return nil
	}
	return m
}

// keep puts the machine into the record, encoded if that is small.
func (r *record) keep(m *queue.Machine) {
	r.machine, r.stats, r.settings = m, StatsOf(m), m.Config()
	r.sessions, r.suspected = m.SessionNodes(), m.SuspectedNodes()
	if s := &r.stats; s.Ready.Messages+s.Unacknowledged.Messages > 0 || s.Consumers > 0 {
		return
	}
	var b bytes.Buffer
	if _, err := m.Snapshot().WriteTo(&b); err == nil && b.Len() <= maxStateBytes {
		r.machine, r.state = nil, slices.Clip(b.Bytes())
	}
}

// sleep puts a replica to sleep that is level with the others. A leader does so when mayRest says that its members
// do, and nothing of it is under way. It reports whether the group sleeps.
func (g *Group) sleep(mayRest func(i *instance) bool) bool {
	g.changing.Lock()
	defer g.changing.Unlock()
	i := g.running.Load()
	switch {
	case i == nil:
		return true
	case g.asleep.Load() != nil, i.IsClosed(), i.IsLocal():
		return false
	}
	led, ok := i.doze(mayRest)
	if !ok {
		return false
	}
	r := i.rest(led)
	r.store(i.store, &g.spec)
	g.host.sleepers.shared.shrink(r)
	g.put(r)
	g.running.Store(nil)
	g.host.groups.forget(i)
	r.unload(g.host, g.spec.Group)
	if !r.level || r.missed.Load() || g.host.config.Mesh.Waits(g.spec.Group) {
		g.call()
	}
	if r.leads {
		g.arm(r)
	}
	g.checkArmed(r)
	return true
}

// idleAfter is for how long nothing has to happen before the group sleeps.
func (g *Group) idleAfter() time.Duration {
	return g.host.config.IdleAfter * time.Duration(max(1, g.sleepless.Load()))
}

// slept takes account of a nap: who is woken soon sleeps later next time.
func (g *Group) slept(r *record) {
	times := int64(1)
	if time.Since(r.since) < 2*g.host.config.IdleAfter {
		times = min(2*max(1, g.sleepless.Load()), sleepless)
	}
	g.sleepless.Store(times)
}

// doze has a leader take nothing more, if nothing is under way, and returns its term; a follower's is 0.
func (i *instance) doze(mayRest func(i *instance) bool) (led uint64, ok bool) {
	l := &i.leadership
	if !l.changing.TryLock() {
		return 0, false // whoever has it may wait for other members
	}
	defer l.changing.Unlock()
	led = l.term.Load()
	if led != 0 && (l.serving() != led || !i.proposer.doze(led)) {
		return 0, false
	}
	if i.users.close() {
		performs, _ := i.outgoing.progress()
		term, leads := i.LeadsIn()
		if !performs && leads == (led != 0) && (!leads || term == led) && mayRest(i) {
			return led, true
		}
		i.users.reopen()
	}
	if led != 0 {
		i.rouse(led)
	}
	return 0, false
}

// users counts those who use an instance. It does not fall asleep while there are some, and none comes once it does.
type users struct{ n atomic.Int64 }

// closedUsers is added to the count of an instance that falls asleep.
const closedUsers = math.MinInt64 / 2

// begin adds one who calls end later, unless the instance falls asleep.
func (u *users) begin() bool {
	if u.n.Add(1) > 0 {
		return true
	}
	u.end()
	return false
}

func (u *users) end() { u.n.Add(-1) }

// close lets none come any more if there are none.
func (u *users) close() bool { return u.n.CompareAndSwap(0, closedUsers) }

// reopen undoes close.
func (u *users) reopen() { u.n.Add(-closedUsers) }

// rouse has a leader go on that was about to sleep.
func (i *instance) rouse(led uint64) {
	if i.proposer.missed() {
		i.announceAgain(led)
		return
	}
	i.proposer.transfer(false)
	i.applier.rearm() // a tick may have been refused
}

// rest ends the instance and records where it was. If the record is not level, the group has to be woken again.
func (i *instance) rest(led uint64) (r *record) {
	_, before := i.Role()
	r = &record{since: time.Now(), leads: led != 0, leader: i.order.leader(), replay: i.usage.replay.Load(), snapshot: i.order.snapshot()}
	future := i.Raft().GetConfiguration()
	r.config, r.configAt = future.Configuration(), future.Index()
	r.members = i.Configuration()
	if r.leads {
		r.leader = i.Node()
		r.setLacking(i.host.sleepers.voter.unreachable(r.members))
	}
	i.close() // R2: what raft has taken until it has ended is in the log
	i.host.elections.End(i.spec.Group)
	term, err := i.store.GetUint64([]byte(raftlog.TermKey))
	if err != nil {
		i.host.fail(replica.CodeDamaged, fmt.Sprintf("group %d: the term that it sleeps in: %v", i.spec.Group, err))
	}
	r.unborn.Store(i.store.IsUnborn())
	r.origin, r.live = i.store.Origin(), uint64(i.store.LiveBytes())
	is := i.Raft()
	r.at = recordedAt{i.PositionOf(is.AppliedIndex()), term}
	r.leads = r.leads && term == led
	last, _ := i.store.LastIndex() // it has no errors
	a := &i.applier
	a.mu.Lock()
	defer a.mu.Unlock()
	// What raft has handed to the machine counts as applied, and may have been dropped when it ended; a snapshot does only
	// when the machine has it.
	if r.failed = a.stopped || r.at.Term == 0 || !a.has(r.at.Index) || a.machine.Index() > r.at.Index; r.failed {
		if r.leads, r.woken = false, true; led != 0 {
			r.leader = ""
		}
		return r
	}
	r.level = last == r.at.Index && r.leads == (led != 0)
	if !r.leads && (term != before || led != 0) { // it may have lost its term since it was asked whether it leads
		r.leader, r.level = "", false
	}
	i.host.sleepers.sign(r)
	r.missed.Store(i.proposer.missed())
	if r.leads {
		r.stamper = i.proposer.stamp()
	}
	r.checkRest(i, led)
	a.given = true
	r.keep(a.machine)
	return r
}

// unload has the store forget the log of a queue without messages, which is all on disk. Otherwise, or if something
// uses it, it stays in memory.
func (r *record) unload(h *Host, id fsm.GroupID) {
	if r.level && r.state != nil {
		h.config.Store.Unload(id)
	}
}

// wake returns the instance of a group that may sleep, and waits until it is as it was; nil: the group has ended.
func (g *Group) wake() *instance {
	if i := g.awake(); i != nil {
		return i
	}
	g.changing.Lock()
	defer g.changing.Unlock()
	r := g.asleep.Load()
	switch {
	case r == nil:
		return g.running.Load()
	case g.ended.Load():
		return nil
	}
	r = g.current(r)
	g.slept(r)
	i := g.host.resume(g, r)
	g.settle(i, r)
	g.host.attend(i, r)
	return i
}

// current is the record of a group that is about to wake, or in its place one with what is known by now: that the leader's
// node was restarted, and of one that was on disk the term that the store has heard of.
func (g *Group) current(r *record) *record {
	at, leader := r.at, r.leader
	if g.host.sleepers.restarted(r) {
		leader = ""
	}
	if r.stored && !r.leads {
		at.raft = storedTerm(g.host, g.spec.Group, at.raft)
	}
	if at == r.at && leader == r.leader {
		return r
	}
	now := r.in(at.raft, leader)
	now.process = r.process
	g.put(now)
	return now
}

// storedTerm is the term in the group's store, unless that is earlier.
func storedTerm(h *Host, id fsm.GroupID, known uint64) uint64 {
	log, err := h.config.Store.Group(id)
	if err != nil {
		return known // it is opened next
	}
	term, _ := log.GetUint64([]byte(raftlog.TermKey)) // then it is wrong for raft as well
	return max(term, known)
}

// settle has everybody turn to the instance. A leader that does not serve yet waits for other members, and nobody waits
// for it: what has been submitted to it goes on when it serves, or back.
func (g *Group) settle(i *instance, r *record) {
	g.mu.Lock()
	waiting := g.waiting
	g.waiting = nil
	g.asleep.Store(nil)
	begins := r.leads && i.leadership.term.Load() == 0
	if !begins {
		waiting = submitAll(i, waiting)
	}
	g.mu.Unlock()
	if !i.proposer.busy() {
		i.Begin(nil)
	}
	switch {
	case begins:
		g.host.tasks.Go(func() {
			i.review()
			tellRefused(i, submitAll(i, waiting))
			deny(i)
		})
		return
	case r.leads && r.missed.Load():
		i.announce(i.leadership.term.Load())
	}
	tellRefused(i, waiting)
}

// submitAll submits what has waited for the group to wake, and returns what was refused.
func submitAll(i *instance, waiting []Batch) (refused []Batch) {
	for _, b := range waiting {
		if i.proposer.submit(b) != nil {
			refused = append(refused, b)
		}
	}
	return refused
}

// tellRefused tells those who have submitted batches that they have to do so again.
func tellRefused(i *instance, batches []Batch) {
	for _, from := range origins(nil, batches) {
		i.host.config.Outside.Undecided(i.shell, from)
	}
}

// deny tells everybody that this replica does not lead if that is so.
func deny(i *instance) {
	l := &i.leadership
	l.changing.Lock()
	defer l.changing.Unlock()
	if l.term.Load() == 0 {
		i.announce(0)
	}
}

// resume runs the raft of a group that sleeps again, from where it was: a leader in its term, without a vote. It
// waits for no other member.
func (h *Host) resume(g *Group, r *record) *instance {
	h.ticker.remove(g)
	store, err := h.config.Store.Group(g.spec.Group)
	if err != nil {
		h.fail(replica.CodeDamaged, fmt.Sprintf("group %d: open its log: %v", g.spec.Group, err))
	}
	if r.isUnborn() {
		store.Found(founding(&g.spec))
	}
	r.checkWake(store, h.config.Node)
	if r.stored {
		r.origin = store.Origin()
	}
	m := r.take(h, &g.spec)
	lives := m != nil && !r.failed
	if !lives { // raft reads it from the disk
		m = h.newMachine(g.spec)
	}
	i := newInstance(h, g, store, m, groupLogger(h.config.Logger, &g.spec))
	i.applier.log = store
	i.order = replicated{i}
	i.leadership.withdrawn = &h.withdrawn
	if lives {
		i.applier.origin = r.origin
		store.Started(m.Live, m.Index())
		i.usage.toReplay(r.replay)
		i.resumes = r
	}
	if r.serves() {
		i.resumed.Store(r.at.raft)
	}
	if err := i.openRaft(); err != nil {
		h.fail(replica.CodeDamaged, err.Error())
	}
	g.running.Store(i)
	h.groups.woken(i)
	is := i.Raft()
	if r.leads {
		limit := time.NewTimer(resumeWait)
		defer limit.Stop()
		select {
		case <-is.LeaderCh():
		case <-i.Ending():
		case <-limit.C:
			i.slog.Warn("a leader that has slept does not lead")
		}
	}
	if term, leads := i.LeadsIn(); leads && term == i.resumed.Load() {
		i.review() // R1: there is nothing to wait for
	}
	return i
}

// attend has the host act on changes of an instance that has woken, and on those that it has missed.
func (h *Host) attend(i *instance, r *record) {
	is := i.Raft()
	is.RegisterObserver(raft.NewObserver(h.observed, true, wanted))
	if i.IsLearner() {
		h.learners.Begin(i.spec.Group, i)
	}
	if leads := i.IsLeader(); leads != (i.leadership.term.Load() != 0) {
		if !leads {
			i.TenureEnded()
		}
		h.tasks.Go(i.review)
	}
	switch leader := i.Replica.Leader(); {
	case leader != "":
		h.leaderSeen(i, leader)
	case r.leads, r.leader == "", !h.config.Mesh.Alive(r.leader):
		h.elections.Begin(i)
	}
}

// arm has the node wake the group when something is due.
func (g *Group) arm(r *record) {
	if r.stats.NextDeadline != 0 {
		g.host.ticker.arm(g, r.stamper.Wait(r.stats.NextDeadline), 0)
	}
}

// fire implements alarmed: what the machine waits for may be due.
func (g *Group) fire() {
	switch r := g.asleep.Load(); {
	case r == nil || r.stats.NextDeadline == 0:
	case r.stamper.Wait(r.stats.NextDeadline) > 0:
		g.arm(r)
	default:
		g.call()
	}
}

// serves reports whether the replica serves as soon as it is awake: R1 and R2.
func (r *record) serves() bool { return r.leads && r.level && !r.elected }

// resumption is where raft goes on.
func (r *record) resumption() *replica.Resumption {
	return &replica.Resumption{Leads: r.leads, Serves: r.serves(), Term: r.at.raft, At: r.at.Position, Members: r.config, MembersAt: r.configAt}
}

// reconfigure has the group take up changed settings if this node leads it.
func (g *Group) reconfigure() {
	i, r := g.read()
	if r == nil {
		i.settings.change()
		return
	}
	if !r.leads {
		return
	}
	want := g.host.wantedSettings(&g.spec)
	if r.stats.Applied == 0 && !ends(want) {
		g.expect(want)
		return
	}
	if want.Revision >= r.settings.GetRevision() && !proto.Equal(want, r.settings) {
		g.wake()
	}
}

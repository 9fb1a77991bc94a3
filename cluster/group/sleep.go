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
	"github.com/quorate/quorate/cluster/election"
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
	// sleepless bounds how many times longer a group is idle before it sleeps again if it was soon woken each time.
	sleepless = 32
)

// Record is what is left of a replica that sleeps.
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
type Record struct {
	at       RecordedAt
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
	stands   atomic.Int32  // how often it was taken over since it has had no leader
	stored   bool          // it was on disk when the process began: without a state, the machine is what the log says

	sessions, suspected []queue.Boot // see boots

	mu      sync.Mutex
	machine *queue.Machine // nil: state is in its place, or it is being woken
	state   []byte
	woken   bool
}

// RecordedAt is a position in the log, and raft's term at that time, which may be a later one.
type RecordedAt struct {
	replica.Position
	Raft uint64
}

// progress is Group.Progress.
func (r *Record) progress(node string) replica.Progress {
	p := replica.Progress{Role: "follower", Term: r.at.Raft, Last: r.at.Index, Commit: r.at.Index, Applied: r.at.Index}
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
func (r *Record) now(n *Node) fsm.Time {
	if r.leads {
		return r.stamper.Peek()
	}
	return n.config.Clock.Now()
}

// view runs f on the machine, unless that is about to be woken.
func (r *Record) view(n *Node, spec *Spec, f func(m *queue.Machine)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.woken {
		return false
	}
	m := r.held(n, spec)
	if m != nil {
		f(m)
	}
	return m != nil
}

// take gives the machine away; nil: it cannot be made, and the replica is opened from its disk.
func (r *Record) take(n *Node, spec *Spec) *queue.Machine {
	r.mu.Lock()
	defer r.mu.Unlock()
	var m *queue.Machine
	if !r.woken {
		m = r.held(n, spec)
	}
	if m != nil {
		r.checkMachine(m)
	}
	r.machine, r.state, r.woken = nil, nil, true
	return m
}

// held returns the machine, or nil. The caller holds mu.
func (r *Record) held(n *Node, spec *Spec) *queue.Machine {
	if r.machine != nil {
		return r.machine
	}
	var m *queue.Machine
	var err error
	switch {
	case r.state != nil:
		if m, err = queue.Restored(spec.Name, spec.Queue, n.config.Newest, bytes.NewReader(r.state)); err != nil && !r.stored {
			n.fail(replica.CodeDamaged, fmt.Sprintf("group %d: the state that it sleeps with: %v", spec.Group, err))
		}
	case !r.stored:
		return n.newMachine(*spec) // nothing has happened in the queue
	default:
		if m, err = replayed(n, spec, r.at.Index); err == nil {
			r.machine = m
		}
	}
	if err != nil {
		n.config.Logger.Warn("the state of a queue that slept cannot be made", "group", spec.Group, "error", err)
		r.woken = true
		return nil
	}
	return m
}

// keep puts the machine into the record, encoded if that is small.
func (r *Record) keep(m *queue.Machine) {
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

// Sleep puts a replica to sleep that is level with the others. A leader does so when mayRest says that its members
// do, and nothing of it is under way. It reports whether the group sleeps.
func (g *Group) Sleep(mayRest func(i *Instance) bool) bool {
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
	g.node.shared.shrink(r)
	g.put(r)
	g.running.Store(nil)
	i.attendant.Ended()
	r.unload(g.node, g.spec.Group)
	if !r.level || r.missed.Load() || g.node.config.Mesh.Waits(g.spec.Group) {
		g.Call()
	}
	if r.leads {
		r.arm(g)
	}
	r.checkArmed(g)
	return true
}

// IdleAfter is for how long nothing has to happen before the group sleeps.
func (g *Group) IdleAfter() time.Duration {
	return g.node.config.IdleAfter * time.Duration(max(1, g.sleepless.Load()))
}

// slept takes account of a nap: who is woken soon sleeps later next time.
func (g *Group) slept(r *Record) {
	times := int64(1)
	if time.Since(r.since) < 2*g.node.config.IdleAfter {
		times = min(2*max(1, g.sleepless.Load()), sleepless)
	}
	g.sleepless.Store(times)
}

// doze has a leader take nothing more, if nothing is under way, and returns its term; a follower's is 0.
func (i *Instance) doze(mayRest func(i *Instance) bool) (led uint64, ok bool) {
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
func (i *Instance) rouse(led uint64) {
	if i.proposer.missed() {
		i.announceAgain(led)
		return
	}
	i.proposer.transfer(false)
	i.applier.rearm() // a tick may have been refused
}

// rest ends the instance and records where it was. If the record is not level, the group has to be woken again.
func (i *Instance) rest(led uint64) (r *Record) {
	_, before := i.Role()
	r = &Record{since: time.Now(), leads: led != 0, leader: i.order.leader(), replay: i.usage.replay.Load(), snapshot: i.order.snapshot()}
	future := i.Raft().GetConfiguration()
	r.config, r.configAt = future.Configuration(), future.Index()
	r.members = i.Configuration()
	if r.leads {
		r.leader = i.Node()
		r.setLacking(i.node.unreachable(r.members))
	}
	i.close() // R2: what raft has taken until it has ended is in the log
	i.node.Elections.End(i.spec.Group)
	term, err := i.store.GetUint64([]byte(raftlog.TermKey))
	if err != nil {
		i.node.fail(replica.CodeDamaged, fmt.Sprintf("group %d: the term that it sleeps in: %v", i.spec.Group, err))
	}
	r.unborn.Store(i.store.IsUnborn())
	r.origin, r.live = i.store.Origin(), uint64(i.store.LiveBytes())
	is := i.Raft()
	r.at = RecordedAt{i.PositionOf(is.AppliedIndex()), term}
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
	i.node.sign(r)
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
func (r *Record) unload(n *Node, id fsm.GroupID) {
	if r.level && r.state != nil {
		n.config.Store.Unload(id)
	}
}

// Wake returns the instance of a group that may sleep, and waits until it is as it was; nil: the group has ended.
func (g *Group) Wake() *Instance {
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
	r = r.current(g)
	g.slept(r)
	i := g.node.resume(g, r)
	g.settle(i, r)
	i.attendant.Woken(r)
	return i
}

// current is the record of a group that is about to wake, or in its place one with what is known by now: that the leader's
// node was restarted, and of one that was on disk the term that the store has heard of.
func (r *Record) current(g *Group) *Record {
	at, leader := r.at, r.leader
	if g.node.Restarted(r) {
		leader = ""
	}
	if r.stored && !r.leads {
		at.Raft = storedTerm(g.node, g.spec.Group, at.Raft)
	}
	if at == r.at && leader == r.leader {
		return r
	}
	now := r.in(at.Raft, leader)
	now.process = r.process
	g.put(now)
	return now
}

// storedTerm is the term in the group's store, unless that is earlier.
func storedTerm(n *Node, id fsm.GroupID, known uint64) uint64 {
	log, err := n.config.Store.Group(id)
	if err != nil {
		return known // it is opened next
	}
	term, _ := log.GetUint64([]byte(raftlog.TermKey)) // then it is wrong for raft as well
	return max(term, known)
}

// settle has everybody turn to the instance. A leader that does not serve yet waits for other members, and nobody waits
// for it: what has been submitted to it goes on when it serves, or back.
func (g *Group) settle(i *Instance, r *Record) {
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
		g.node.Tasks.Go(func() {
			i.Review()
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
func submitAll(i *Instance, waiting []Batch) (refused []Batch) {
	for _, b := range waiting {
		if i.proposer.submit(b) != nil {
			refused = append(refused, b)
		}
	}
	return refused
}

// tellRefused tells those who have submitted batches that they have to do so again.
func tellRefused(i *Instance, batches []Batch) {
	for _, from := range origins(nil, batches) {
		i.node.config.Outside.Undecided(i.shell, from)
	}
}

// deny tells everybody that this replica does not lead if that is so.
func deny(i *Instance) {
	l := &i.leadership
	l.changing.Lock()
	defer l.changing.Unlock()
	if l.term.Load() == 0 {
		i.announce(0)
	}
}

// resume runs the raft of a group that sleeps again, from where it was: a leader in its term, without a vote. It
// waits for no other member.
func (n *Node) resume(g *Group, r *Record) *Instance {
	n.Ticker.Remove(g)
	store, err := n.config.Store.Group(g.spec.Group)
	if err != nil {
		n.fail(replica.CodeDamaged, fmt.Sprintf("group %d: open its log: %v", g.spec.Group, err))
	}
	if r.IsUnborn() {
		store.Found(founding(&g.spec))
	}
	r.checkWake(store, n.config.Node)
	if r.stored {
		r.origin = store.Origin()
	}
	m := r.take(n, &g.spec)
	lives := m != nil && !r.failed
	if !lives { // raft reads it from the disk
		m = n.newMachine(g.spec)
	}
	i := newInstance(n, g, store, m, groupLogger(n.config.Logger, &g.spec))
	i.applier.log = store
	i.order = replicated{i}
	i.leadership.withdrawn = &n.withdrawn
	if lives {
		i.applier.origin = r.origin
		store.Started(m.Live, m.Index())
		i.usage.toReplay(r.replay)
		i.resumes = r
	}
	if r.serves() {
		i.resumed.Store(r.at.Raft)
	}
	if err := i.openRaft(); err != nil {
		n.fail(replica.CodeDamaged, err.Error())
	}
	g.running.Store(i)
	i.attendant.Resumed()
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
		i.Review() // R1: there is nothing to wait for
	}
	return i
}

// arm has the node wake the group when something is due.
func (r *Record) arm(g *Group) {
	if r.stats.NextDeadline != 0 {
		g.node.Ticker.Arm(g, r.stamper.Wait(r.stats.NextDeadline), 0)
	}
}

// Fire implements Timed: what the machine waits for may be due.
func (g *Group) Fire() {
	switch r := g.asleep.Load(); {
	case r == nil || r.stats.NextDeadline == 0:
	case r.stamper.Wait(r.stats.NextDeadline) > 0:
		r.arm(g)
	default:
		g.Call()
	}
}

// serves reports whether the replica serves as soon as it is awake: R1 and R2.
func (r *Record) serves() bool { return r.leads && r.level && !r.elected }

// resumption is where raft goes on.
func (r *Record) resumption() *replica.Resumption {
	return &replica.Resumption{Leads: r.leads, Serves: r.serves(), Term: r.at.Raft, At: r.at.Position, Members: r.config, MembersAt: r.configAt}
}

// Reconfigure has the group take up changed settings if this node leads it.
func (g *Group) Reconfigure() {
	i, r := g.read()
	if r == nil {
		i.settings.change()
		return
	}
	if !r.leads {
		return
	}
	want := g.node.wantedSettings(&g.spec)
	if r.stats.Applied == 0 && !Ends(want) {
		g.expect(want)
		return
	}
	if want.Revision >= r.settings.GetRevision() && !proto.Equal(want, r.settings) {
		g.Wake()
	}
}

// put has a group sleep, or go on to sleep, as the record says.
func (g *Group) put(r *Record) {
	g.asleep.Store(r)
	if g.node.Orphaned(r) {
		g.node.Orphan(g)
	}
}

// What follows is for those who decide what becomes of a group that sleeps.

// At is where its log ends.
func (r *Record) At() RecordedAt { return r.at }

// Leads reports whether this node leads the group.
func (r *Record) Leads() bool { return r.leads }

// Elected reports whether it has been elected asleep: nobody has served in the term.
func (r *Record) Elected() bool { return r.elected }

// Leader is the node that leads; empty: it is unknown.
func (r *Record) Leader() string { return r.leader }

// Noted is since when that is the leader.
func (r *Record) Noted() time.Time { return r.noted }

// IsLevel reports whether everything in the log is applied.
func (r *Record) IsLevel() bool { return r.level }

// Due is when something happens by itself; 0: nothing does.
func (r *Record) Due() fsm.Time { return r.stats.NextDeadline }

// Members are the members of the group.
func (r *Record) Members() []replica.Member { return r.members }

// Wish notes that somebody waits for a leader, and reports whether that has gone on for long.
func (r *Record) Wish(now time.Time) bool { return r.wish.note(now) }

// WakesSoon notes that the leader is asked for, and reports whether those who ask may wait until it has woken, which may take
// longer than they wait for answers. Not if it should be awake by now.
func (r *Record) WakesSoon(now time.Time) bool {
	r.sought.CompareAndSwap(0, now.UnixNano())
	return now.UnixNano()-r.sought.Load() < int64(election.DeathPatience)
}

// MayLack reports whether a member may lack entries: its node was down.
func (r *Record) MayLack(node string) bool { return slices.Contains(r.lacking(), node) }

// LacksNothing notes that a member lacks nothing.
func (r *Record) LacksNothing(node string) {
	for was := r.lacks.Load(); was != nil && slices.Contains(*was, node); was = r.lacks.Load() {
		left := slices.DeleteFunc(slices.Clone(*was), func(n string) bool { return n == node })
		if r.lacks.CompareAndSwap(was, &left) {
			return
		}
	}
}

// lacking are the members that may lack entries.
func (r *Record) lacking() []string {
	if p := r.lacks.Load(); p != nil {
		return *p
	}
	return nil
}

func (r *Record) setLacking(nodes []string) {
	if len(nodes) == 0 {
		r.lacks.Store(nil)
		return
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	r.lacks.Store(&nodes)
}

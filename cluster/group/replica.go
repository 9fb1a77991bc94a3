package group

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
)

const (
	// changeWait bounds how long a configuration change waits for raft.
	changeWait = 10 * time.Second
	// nudgeWait bounds how long raft may take to accept an entry without content.
	nudgeWait = time.Second
)

// replica is this node's member of one raft group, a queue's or the catalog's: raft, the store of
// its log, its links to the other members, and whether it may vote. It does not interpret entries.
// A local queue's replica has no raft, only an end.
type replica struct {
	id        fsm.GroupID
	node      string     // this one
	preferred []string   // voters that are listed before others
	mesh      *peer.Mesh // links to the other members
	slog      *slog.Logger
	spawn     func(f func()) // runs f on a goroutine whose end the owner waits for

	raft      atomic.Pointer[raft.Raft] // nil: not started, or never
	log       replicaLog
	transport transport
	trust     trust
	ending    chan struct{} // closed when the replica has ended; then waiting calls give up
	closed    atomic.Bool

	termChanged func()      // called when raft is about to show another term; nil: nobody looks at it
	unsettled   func()      // called when members may lack something; nil: likewise
	reloading   sync.Mutex  // one change of raft's settings at a time
	nudging     atomic.Bool // a nudge is about to begin
	handover    handover

	tenure   tenure        // of raft as the leader
	lacked   atomic.Uint64 // how often a member had less than it acknowledged
	complete complete      // of the lagWatch
}

// replicaLog stores a replica's log, term, vote and snapshots.
type replicaLog interface {
	raft.LogStore
	raft.StableStore
	Snapshots() raft.SnapshotStore
	proof
}

// overlappingLog is a log that is written before it is durable, if its acknowledgements wait for
// that.
type overlappingLog interface {
	peer.Durability
	Overlap()
}

// transport is what the mesh provides for a group.
type transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
	Reached(node string, term uint64) peer.Reached
	Sent(node string, term uint64) uint64
	Lacks(node string, term, index uint64)
	Remind(node string, args *raft.AppendEntriesRequest, behind func(entries bool))
	Exchange(peer.Snapshots)
}

// opening says how a replica starts.
type opening struct {
	config  *raft.Config
	machine raft.FSM
	// founders are the members of a group without earlier state; if empty, the replica learns its
	// members from the leader.
	founders []string
	// transport returns the transport that raft uses.
	transport func(transport) raft.Transport
	resumes   *resumption // where it goes on; nil: with what is on disk
	newest    uint32      // version that this program supports
	admits    func(l *raft.Log, newest uint32) error
	fail      func(code int, why string) // ends the process
	prompt    bool                       // heartbeats do not wait for those of other groups
}

// connect registers the replica with the mesh for requests from other members.
func (r *replica) connect(o *opening) *entryCheck {
	check := newEntryCheck(r.log, o)
	take := r.mesh.TransportFor
	if o.resumes != nil && o.resumes.leads {
		take = r.mesh.TransportOfLeader
	}
	r.transport = take(r.id, check).(transport)
	r.mesh.Withhold(r.id, r.isLearner)
	if log, ok := r.log.(overlappingLog); ok {
		r.mesh.Await(r.id, log)
		log.Overlap()
	}
	if o.prompt {
		r.mesh.Prompt(r.id)
	}
	return check
}

// start starts raft, and founds the group if it has no earlier state on this node.
func (r *replica) start(o opening) error {
	check := r.connect(&o)
	if o.resumes != nil {
		return r.resume(&o, check)
	}
	over, snapshots := o.transport(r.transport), r.log.Snapshots()
	past, err := r.hasPast()
	if err != nil {
		return fmt.Errorf("look for existing state: %w", err)
	}
	if !past && len(o.founders) > 0 {
		var members raft.Configuration
		for _, m := range o.founders {
			members.Servers = append(members.Servers, raft.Server{ID: raft.ServerID(m), Address: raft.ServerAddress(m)})
		}
		if err := raft.BootstrapCluster(o.config, r.log, r.log, snapshots, over, members); err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
	}
	return r.run(&o, check, r.stable(), snapshots, over)
}

// stable is where raft keeps its term and vote.
func (r *replica) stable() raft.StableStore { return voteStore{r.log, &r.trust, r.termChanged} }

// run runs raft.
func (r *replica) run(o *opening, check *entryCheck, stable raft.StableStore, snapshots raft.SnapshotStore, over raft.Transport) error {
	started, err := raft.NewRaft(o.config, o.machine, raftsLog{r.log, r.tenure.over, r.ending, r.unsettled}, stable, snapshots, over)
	if err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	check.raft.Store(started)
	r.raft.Store(started)
	return nil
}

// resume runs raft where it was. A leader stands in the term that it has led in, which all members let it.
func (r *replica) resume(o *opening, check *entryCheck) error {
	of, t, stable := o.resumes, r.transport, r.stable()
	if of.leads {
		t, stable = resumedVotes{t, of}, resumedTerm{stable, of}
	}
	of.starting.Store(true)
	defer func() {
		of.starting.Store(false)
		close(of.started)
	}()
	o.config.NoSnapshotRestoreOnStart = true
	return r.run(o, check, stable, resumedSnapshots{r.log.Snapshots(), of}, o.transport(t))
}

// hasPast reports whether this node has been a member before.
func (r *replica) hasPast() (bool, error) {
	if r.log.Doubt() != "" {
		return true, nil
	}
	return raft.HasExistingState(r.log, r.log, r.log.Snapshots())
}

// end makes all calls that wait for the replica give up, and reports whether this was the first
// time.
func (r *replica) end() bool {
	if r.closed.Swap(true) {
		return false
	}
	close(r.ending)
	return true
}

func (r *replica) isClosed() bool { return r.closed.Load() }

// role returns this replica's role and term according to raft.
func (r *replica) role() (raft.RaftState, uint64) {
	is := r.raft.Load()
	return is.State(), is.CurrentTerm()
}

// isLeader reports whether raft has made this replica the leader.
func (r *replica) isLeader() bool {
	is := r.raft.Load()
	return is != nil && is.State() == raft.Leader
}

// leadsIn returns the term in which this replica is raft's leader.
func (r *replica) leadsIn() (term uint64, ok bool) {
	is := r.raft.Load()
	if is == nil {
		return 0, false
	}
	// Raft stops leading before it moves on to another term.
	term = is.CurrentTerm()
	return term, is.State() == raft.Leader && is.CurrentTerm() == term
}

// leader returns the name of the leading node as far as raft knows, or "".
func (r *replica) leader() string {
	is := r.raft.Load()
	if is == nil {
		return ""
	}
	_, id := is.LeaderWithID()
	return string(id)
}

// logPosition is a position in a log. By raft's rules the later position is the one with the
// greater term or, in the same term, with the greater index.
type logPosition struct{ term, index uint64 }

func (p logPosition) compare(o logPosition) int {
	return cmp.Or(cmp.Compare(p.term, o.term), cmp.Compare(p.index, o.index))
}

func (p logPosition) less(o logPosition) bool { return p.compare(o) < 0 }

// lastIndex returns the index of the last entry in the log.
func (r *replica) lastIndex() uint64 { return r.raft.Load().LastIndex() }

// lastStored is lastIndex, also of an entry that raft has stored and is about to show.
func (r *replica) lastStored() uint64 {
	last, _ := r.log.LastIndex() // it has no errors
	return max(last, r.lastIndex())
}

// logEnd returns the position of the last entry in the log.
func (r *replica) logEnd() logPosition { return r.positionOf(r.lastIndex()) }

// positionOf returns the position of an entry; the term is 0 if the log does not have it, unless a snapshot
// ends with it.
func (r *replica) positionOf(index uint64) logPosition {
	p := logPosition{index: index}
	var l raft.Log
	if r.log.GetLog(p.index, &l) == nil {
		p.term = l.Term
		return p
	}
	// Nothing follows the snapshot.
	if list, err := r.log.Snapshots().List(); err == nil && len(list) > 0 && list[0].Index == p.index {
		p.term = list[0].Term
	}
	return p
}

// Progress describes a replica's own log position and role.
type Progress struct {
	Role    string // leader, follower, candidate or shutdown
	Term    uint64
	Last    uint64 // index of the last entry in the log
	Commit  uint64
	Applied uint64
	Voter   bool // as far as it knows, and not a learner, see Doubt
	// Voters are the nodes that vote, if the replica leads. They alone do: a replica that was
	// removed is not told, and goes by its last configuration until it is removed, too, or
	// hears of a newer one.
	Voters []string
}

func (r *replica) progress() Progress {
	is := r.raft.Load()
	if is == nil {
		return Progress{}
	}
	p := Progress{
		Role: strings.ToLower(is.State().String()), Term: is.CurrentTerm(),
		Last: is.LastIndex(), Commit: is.CommitIndex(), Applied: is.AppliedIndex(),
	}
	for _, s := range is.GetConfiguration().Configuration().Servers {
		if s.ID == raft.ServerID(r.node) {
			p.Voter = s.Suffrage == raft.Voter && !r.isLearner()
		}
		if p.Role == "leader" && s.Suffrage == raft.Voter {
			p.Voters = append(p.Voters, string(s.ID))
		}
	}
	return p
}

// reload changes settings of raft while it runs.
func (r *replica) reload(change func(c *raft.ReloadableConfig)) error {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	was := r.raft.Load().ReloadableConfig()
	c := was
	if change(&c); c == was {
		return nil
	}
	return r.raft.Load().ReloadConfig(c)
}

// endingWith makes a raft future end with ErrRaftShutdown when ending is closed. When raft shuts
// down, it leaves futures unanswered that wait in one of its channels: entries to take, and
// entries to apply. The future has a channel that prevents this, but raft sets it for some kinds
// only. Nothing else writes that field, and only Error reads it.
func endingWith[F raft.Future](f F, ending chan struct{}) F {
	v := reflect.ValueOf(f)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return f // it has its answer already
	}
	if c := v.Elem().FieldByName("ShutdownCh"); c.IsValid() && c.CanSet() {
		c.Set(reflect.ValueOf(ending))
	}
	return f
}

// barrier returns when everything committed before has been applied here. Only the leader can do
// this. timeout bounds how long raft takes to accept it; 0 means no bound.
func (r *replica) barrier(timeout time.Duration) error {
	return endingWith(r.raft.Load().Barrier(timeout), r.ending).Error()
}

// Member is a member of a raft group.
type Member struct {
	Node  string
	Voter bool
}

// Configuration returns the members of the group as this replica knows them. A
// replica that has just been added knows none.
func (r *replica) Configuration() []Member {
	is := r.raft.Load()
	if is == nil {
		return nil
	}
	f := is.GetConfiguration()
	if f.Error() != nil {
		return nil
	}
	servers := f.Configuration().Servers
	list := make([]Member, len(servers))
	for i, s := range servers {
		list[i] = Member{Node: string(s.ID), Voter: s.Suffrage == raft.Voter}
	}
	return list
}

// Voters returns the names of the voting members, in the order of a queue's Spec: the preferred
// leader comes first.
func (r *replica) Voters() []string {
	return votersOf(r.Configuration(), r.preferred)
}

// votersOf returns the names of the voters among members, the preferred ones first.
func votersOf(members []Member, preferred []string) (names []string) {
	for _, m := range members {
		if m.Voter {
			names = append(names, m.Node)
		}
	}
	rank := func(n string) int {
		if i := slices.Index(preferred, n); i >= 0 {
			return i
		}
		return len(preferred)
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	return names
}

// has reports whether a node is a member, voter or not.
func (r *replica) has(node string) bool {
	return slices.ContainsFunc(r.Configuration(), func(m Member) bool { return m.Node == node })
}

// needs reports whether the reachable voters are no majority without this one.
func (r *replica) needs(node string) bool {
	up, voters := 0, 0
	for _, m := range r.Configuration() {
		if !m.Voter {
			continue
		}
		voters++
		if m.Node == r.node || m.Node != node && r.mesh.Alive(m.Node) {
			up++
		}
	}
	return up <= voters/2
}

// Add makes a node a non-voting member. Only the leader can do this.
func (r *replica) Add(node string) error {
	return endingWith(r.raft.Load().AddNonvoter(raft.ServerID(node), raft.ServerAddress(node), 0, changeWait), r.ending).Error()
}

// Promote gives a member a vote. Only the leader can do this.
func (r *replica) Promote(node string) error {
	return endingWith(r.raft.Load().AddVoter(raft.ServerID(node), raft.ServerAddress(node), 0, changeWait), r.ending).Error()
}

// Remove removes a member. Only the leader can do this.
func (r *replica) Remove(node string) error {
	return endingWith(r.raft.Load().RemoveServer(raft.ServerID(node), 0, changeWait), r.ending).Error()
}

// reached returns how far a member's log reaches, as its leader knows in a term.
func (r *replica) reached(node string, term uint64) peer.Reached {
	return r.transport.Reached(node, term)
}

// nudge makes raft send to all members, by an entry without content. It does not wait for the
// commit: the member that lacks entries may be needed for it. While the leadership moves, the barrier
// of that move makes raft send.
func (r *replica) nudge() {
	if !r.handover.moving.Load() {
		r.raft.Load().Barrier(nudgeWait)
	}
}

// nudgeSoon is nudge for callers that must not wait. Calls made before a pending nudge has begun
// need no second one.
func (r *replica) nudgeSoon() {
	if r.nudging.CompareAndSwap(false, true) {
		r.spawn(func() {
			r.nudging.Store(false)
			r.nudge()
		})
	}
}

// header is that of requests which this replica makes beside raft.
func (r *replica) header() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(r.node), Addr: []byte(r.node)}
}

// reminder is what raft sends when its timers end: who leads in a term, and which entry is committed.
func (r *replica) reminder(term uint64, at logPosition) *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{
		RPCHeader: r.header(), Term: term, PrevLogEntry: at.index, PrevLogTerm: at.term, LeaderCommitIndex: at.index,
	}
}

// remind tells a member what raft would by its timers, which are too long for it: that this replica leads, and
// what is committed.
func (r *replica) remind(node string) {
	at := r.positionOf(r.raft.Load().CommitIndex())
	term, leads := r.leadsIn() // later: what was committed then still is
	if !leads || at.term == 0 {
		return
	}
	r.transport.Remind(node, r.reminder(term, at), func(entries bool) {
		if r.lacks(); entries {
			r.nudgeSoon()
		}
	})
}

// back sends something to a member that may have missed what was on its way, or that this replica leads: its node
// has come up, or it asks. It does not wait.
func (r *replica) back(node string) {
	term, leads := r.leadsIn()
	if last := r.lastIndex(); leads && r.reached(node, term).Index >= last && r.raft.Load().CommitIndex() >= last {
		r.remind(node)
	} else {
		r.nudgeSoon()
	}
}

// hasNoLeader sends something to a member that knows no leader and whose log ends at the given
// index: for example, it has just opened, and what was sent before is lost.
func (r *replica) hasNoLeader(node string, end uint64) {
	term, leads := r.leadsIn()
	if !leads || r.reached(node, term).Busy {
		return
	}
	r.transport.Lacks(node, term, end)
	r.lacks()
	r.back(node)
}

// lacks records that a member has less than it acknowledged.
func (r *replica) lacks() {
	if r.lacked.Add(1); r.unsettled != nil {
		r.unsettled()
	}
}

func (r *replica) completed() (c *complete, lacked uint64) { return &r.complete, r.lacked.Load() }

// Doubt returns why the replica does not vote on this node, or nil if it does.
func (r *replica) Doubt() *Doubt { return r.trust.doubt.Load() }

// isLearner reports whether the replica cannot prove what it has acknowledged.
func (r *replica) isLearner() bool { return r.trust.isLearner() }

func (r *replica) trusted() *trust { return &r.trust }

// ErrLearner is returned for a vote that a learner is asked for.
var ErrLearner = errors.New("the replica cannot prove what it has acknowledged, and does not vote until a leader has brought it up to date")

// proof is what a store knows of a replica's past.
type proof interface {
	// Doubt says why the replica cannot prove what it has acknowledged; empty:
	// it can.
	Doubt() string
	// Prove notes, durably, that a leader has brought it up to date.
	Prove() error
}

// trust is whether a replica may vote and lead. One that cannot prove what it
// has acknowledged is a learner: it stores and applies what a leader sends, and
// takes part in no election until it has been brought up to date. See DESIGN.md.
type trust struct {
	proof proof
	doubt atomic.Pointer[Doubt] // nil: it is a voter
}

// Doubt says why a replica does not vote on this node.
type Doubt struct {
	Since fsm.Time // when the replica was opened
	Why   string
	// Stuck: so many replicas of the group can prove nothing that those that
	// can have no majority. Nobody can bring them up to date.
	Stuck bool
}

// open takes up what the store says.
func (t *trust) open(p proof, now fsm.Time) {
	t.proof = p
	if why := p.Doubt(); why != "" {
		t.doubt.Store(&Doubt{Since: now, Why: why})
	}
}

// isLearner reports whether there is a doubt.
func (t *trust) isLearner() bool { return t.doubt.Load() != nil }

// refuses is why the replica should not stand for election.
func (t *trust) refuses() error {
	if t.isLearner() {
		return ErrLearner
	}
	return nil
}

// prove makes a voter of a learner that has been brought up to date.
func (t *trust) prove() error {
	if err := t.proof.Prove(); err != nil {
		return err
	}
	t.doubt.Store(nil)
	return nil
}

// setStuck reports whether that is news.
func (t *trust) setStuck(stuck bool) bool {
	d := t.doubt.Load()
	if d == nil || d.Stuck == stuck {
		return false
	}
	next := *d
	next.Stuck = stuck
	return t.doubt.CompareAndSwap(d, &next)
}

// voteStore is where a replica keeps its term and vote. A learner cannot store a
// vote, not even one for itself: so raft grants none, and wins no election,
// whatever its configuration. A vote of the past that it is asked for again is
// granted again: it was given by a replica that could prove itself.
type voteStore struct {
	raft.StableStore
	trust       *trust
	termChanged func() // nil: nobody looks at terms
}

// Set implements raft.StableStore.
func (v voteStore) Set(key, value []byte) error {
	if string(key) == raftlog.VotedForKey && v.trust.isLearner() {
		return ErrLearner
	}
	return v.StableStore.Set(key, value)
}

// SetUint64 implements raft.StableStore. Raft stores the term of a vote first.
func (v voteStore) SetUint64(key []byte, value uint64) error {
	if string(key) == raftlog.VoteTermKey && v.trust.isLearner() {
		return ErrLearner
	}
	err := v.StableStore.SetUint64(key, value)
	if v.termChanged != nil && string(key) == raftlog.TermKey {
		v.termChanged()
	}
	return err
}

// votedFor implements electable.
func (r *replica) votedFor(term uint64) string {
	if last, err := r.log.GetUint64([]byte(raftlog.VoteTermKey)); err != nil || last != term {
		return ""
	}
	candidate, _ := r.log.Get([]byte(raftlog.VotedForKey)) // none then
	return string(candidate)
}

// abstaining is a transport over which a replica asks for no votes that should not
// stand. A learner could not take them, and those it asks would go on to another
// term.
type abstaining struct {
	transport
	refuses func() error // why it should not; nil: it may
}

// RequestVote implements raft.Transport.
func (a abstaining) RequestVote(id raft.ServerID, addr raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := a.refuses(); err != nil {
		return err
	}
	return a.transport.RequestVote(id, addr, args, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (a abstaining) RequestPreVote(id raft.ServerID, addr raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if err := a.refuses(); err != nil {
		return err
	}
	return a.transport.RequestPreVote(id, addr, args, resp)
}

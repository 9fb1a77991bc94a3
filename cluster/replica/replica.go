// Package replica is this node's member of a raft group, a queue's or the catalog's: raft, its log, its links to
// the other members, and its votes.
//
// It promises: a replica that cannot prove what it has acknowledged neither votes nor leads; an entry that would
// end the replica which applies it is refused where it comes in; a future of raft ends at the latest with the
// replica; a leadership is given to a member that has the log for it. The package does not know what is in an
// entry, when a group needs another leader, or which groups there are.
package replica

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

// CatalogGroup is the number of the catalog's group. No queue has it.
const CatalogGroup = fsm.GroupID(0)

const (
	// Never is a timeout of raft that nobody waits for.
	Never = 24 * time.Hour
	// ChangeWait bounds how long a configuration change waits for raft.
	ChangeWait = 10 * time.Second
	// nudgeWait bounds how long raft may take to accept an entry without content.
	nudgeWait = time.Second
)

// Replica is this node's member of one raft group, a queue's or the catalog's: raft, the store of
// its log, its links to the other members, and whether it may vote. It does not interpret entries.
// A local queue's replica has no raft, only an end.
type Replica struct {
	config Config

	raft      atomic.Pointer[raft.Raft] // nil: not started, or never
	transport Transport
	trust     Trust
	ending    chan struct{} // closed when the replica has ended; then waiting calls give up
	closed    atomic.Bool

	reloading sync.Mutex  // one change of raft's settings at a time
	nudging   atomic.Bool // a nudge is about to begin
	handover  handover

	tenure tenure        // of raft as the leader
	first  *first        // see Begin; nil: it is not a leader that resumes its term
	lacked atomic.Uint64 // how often a member had less than it acknowledged
}

// Config is what a replica needs.
type Config struct {
	Group     fsm.GroupID
	Node      string     // this one
	Preferred []string   // voters that are listed before others
	Mesh      *peer.Mesh // links to the other members
	Log       Log        // nil for a local queue
	Logger    *slog.Logger
	Spawn     func(f func()) // runs f on a goroutine whose end the owner waits for

	TermChanged func() // called when raft is about to show another term; nil: nobody looks at it
	Unsettled   func() // called when members may lack something; nil: likewise
}

// New returns a replica whose raft has not been started.
func New(c Config) *Replica { return &Replica{config: c, ending: make(chan struct{})} }

// Node is the name of this node.
func (r *Replica) Node() string { return r.config.Node }

// Raft is the replica's raft, for who runs the replica; nil: it has not been started, or never is.
func (r *Replica) Raft() *raft.Raft { return r.raft.Load() }

// Ending is closed when the replica has ended.
func (r *Replica) Ending() <-chan struct{} { return r.ending }

// TenureEnded notes that raft's state has changed: who has led leads no more, or anew.
func (r *Replica) TenureEnded() { r.tenure.end() }

// Transport is what the mesh provides for the group, below what raft uses.
func (r *Replica) Transport() Transport { return r.transport }

// Log stores a replica's log, term, vote and snapshots.
type Log interface {
	raft.LogStore
	raft.StableStore
	Snapshots() raft.SnapshotStore
	Proof
}

// overlappingLog is a log that is written before it is durable, if its acknowledgements wait for
// that.
type overlappingLog interface {
	peer.Durability
	Overlap()
}

// Transport is what the mesh provides for a group.
type Transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
	Reached(node string, term uint64) peer.Reached
	Sent(node string, term uint64) uint64
	Lacks(node string, term, index uint64)
	Remind(node string, args *raft.AppendEntriesRequest, behind func(entries bool))
	Exchange(peer.Snapshots)
}

// Opening says how a replica starts.
type Opening struct {
	Config  *raft.Config
	Machine raft.FSM
	// Founders are the members of a group without earlier state; if empty, the replica learns its
	// members from the leader.
	Founders []string
	// Transport returns the transport that raft uses.
	Transport func(Transport) raft.Transport
	Resumes   *Resumption // where it goes on; nil: with what is on disk
	Newest    uint32      // version that this program supports
	Admits    func(l *raft.Log, newest uint32) error
	Fail      func(code int, why string) // ends the process
	Prompt    bool                       // heartbeats do not wait for those of other groups
}

// connect registers the replica with the mesh for requests from other members.
func (r *Replica) connect(o *Opening) *entryCheck {
	check := newEntryCheck(r.config.Log, o)
	take := r.config.Mesh.TransportFor
	if o.Resumes != nil && o.Resumes.Leads {
		take = r.config.Mesh.TransportOfLeader
	}
	r.transport = take(r.config.Group, check).(Transport)
	r.config.Mesh.Withhold(r.config.Group, r.IsLearner)
	if log, ok := r.config.Log.(overlappingLog); ok {
		r.config.Mesh.Await(r.config.Group, log)
		log.Overlap()
	}
	if o.Prompt {
		r.config.Mesh.Prompt(r.config.Group)
	}
	return check
}

// Start starts raft, and founds the group if it has no earlier state on this node.
func (r *Replica) Start(o Opening) error {
	check := r.connect(&o)
	if o.Resumes != nil {
		return r.resume(&o, check)
	}
	over, snapshots := o.Transport(r.transport), r.config.Log.Snapshots()
	past, err := r.HasPast()
	if err != nil {
		return fmt.Errorf("look for existing state: %w", err)
	}
	if !past && len(o.Founders) > 0 {
		var members raft.Configuration
		for _, m := range o.Founders {
			members.Servers = append(members.Servers, raft.Server{ID: raft.ServerID(m), Address: raft.ServerAddress(m)})
		}
		if err := raft.BootstrapCluster(o.Config, r.config.Log, r.config.Log, snapshots, over, members); err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
	}
	return r.run(&o, check, r.stable(), snapshots, over)
}

// stable is where raft keeps its term and vote.
func (r *Replica) stable() raft.StableStore {
	return voteStore{r.config.Log, &r.trust, r.config.TermChanged}
}

// run runs raft.
func (r *Replica) run(o *Opening, check *entryCheck, stable raft.StableStore, snapshots raft.SnapshotStore, over raft.Transport) error {
	started, err := raft.NewRaft(o.Config, o.Machine, raftsLog{r.config.Log, r.tenure.over, r.ending, r.config.Unsettled, r.first}, stable, snapshots, over)
	if err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	check.raft.Store(started)
	r.raft.Store(started)
	return nil
}

// HasPast reports whether this node has been a member before.
func (r *Replica) HasPast() (bool, error) {
	if r.config.Log.Doubt() != "" {
		return true, nil
	}
	return raft.HasExistingState(r.config.Log, r.config.Log, r.config.Log.Snapshots())
}

// End makes all calls that wait for the replica give up, and reports whether this was the first
// time.
func (r *Replica) End() bool {
	if r.closed.Swap(true) {
		return false
	}
	close(r.ending)
	return true
}

// IsClosed reports whether the replica has ended.
func (r *Replica) IsClosed() bool { return r.closed.Load() }

// Role returns this replica's role and term according to raft.
func (r *Replica) Role() (raft.RaftState, uint64) {
	is := r.raft.Load()
	return is.State(), is.CurrentTerm()
}

// IsLeader reports whether raft has made this replica the leader.
func (r *Replica) IsLeader() bool {
	is := r.raft.Load()
	return is != nil && is.State() == raft.Leader
}

// LeadsIn returns the term in which this replica is raft's leader.
func (r *Replica) LeadsIn() (term uint64, ok bool) {
	is := r.raft.Load()
	if is == nil {
		return 0, false
	}
	// Raft stops leading before it moves on to another term.
	term = is.CurrentTerm()
	return term, is.State() == raft.Leader && is.CurrentTerm() == term
}

// Leader returns the name of the leading node as far as raft knows, or "".
func (r *Replica) Leader() string {
	is := r.raft.Load()
	if is == nil {
		return ""
	}
	_, id := is.LeaderWithID()
	return string(id)
}

// Position is a position in a log. By raft's rules the later position is the one with the
// greater term or, in the same term, with the greater index.
type Position struct{ Term, Index uint64 }

func (p Position) compare(o Position) int {
	return cmp.Or(cmp.Compare(p.Term, o.Term), cmp.Compare(p.Index, o.Index))
}

// Less reports whether another position is later.
func (p Position) Less(o Position) bool { return p.compare(o) < 0 }

// LastIndex returns the index of the last entry in the log.
func (r *Replica) LastIndex() uint64 { return r.raft.Load().LastIndex() }

// LastStored is LastIndex, also of an entry that raft has stored and is about to show.
func (r *Replica) LastStored() uint64 {
	last, _ := r.config.Log.LastIndex() // it has no errors
	return max(last, r.LastIndex())
}

// LogEnd returns the position of the last entry in the log.
func (r *Replica) LogEnd() Position { return r.PositionOf(r.LastIndex()) }

// PositionOf returns the position of an entry; the term is 0 if the log does not have it, unless a snapshot
// ends with it.
func (r *Replica) PositionOf(index uint64) Position {
	p := Position{Index: index}
	var l raft.Log
	if r.config.Log.GetLog(p.Index, &l) == nil {
		p.Term = l.Term
		return p
	}
	// Nothing follows the snapshot.
	if list, err := r.config.Log.Snapshots().List(); err == nil && len(list) > 0 && list[0].Index == p.Index {
		p.Term = list[0].Term
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

// Follows reports whether the log of a member, of which last says the last index, reaches as far as that of its leader, or up to lag
// entries less far. It is compared with what the leader had before the member was asked: until that has answered a busy leader has
// many more.
func Follows(leader func() Progress, lag uint64, last func() (uint64, bool)) bool {
	goal := leader().Commit
	reached, ok := last()
	return ok && reached+lag >= goal
}

// Progress reports the log position and the role of this replica, as far as raft is concerned.
func (r *Replica) Progress() Progress {
	is := r.raft.Load()
	if is == nil {
		return Progress{}
	}
	p := Progress{
		Role: strings.ToLower(is.State().String()), Term: is.CurrentTerm(),
		Last: is.LastIndex(), Commit: is.CommitIndex(), Applied: is.AppliedIndex(),
	}
	for _, s := range is.GetConfiguration().Configuration().Servers {
		if s.ID == raft.ServerID(r.config.Node) {
			p.Voter = s.Suffrage == raft.Voter && !r.IsLearner()
		}
		if p.Role == "leader" && s.Suffrage == raft.Voter {
			p.Voters = append(p.Voters, string(s.ID))
		}
	}
	return p
}

// Reload changes settings of raft while it runs.
func (r *Replica) Reload(change func(c *raft.ReloadableConfig)) error {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	was := r.raft.Load().ReloadableConfig()
	c := was
	if change(&c); c == was {
		return nil
	}
	return r.raft.Load().ReloadConfig(c)
}

// EndingWith makes a raft future end with ErrRaftShutdown when the replica ends. When raft shuts
// down, it leaves futures unanswered that wait in one of its channels: entries to take, and
// entries to apply. The future has a channel that prevents this, but raft sets it for some kinds
// only. Nothing else writes that field, and only Error reads it.
func EndingWith[F raft.Future](r *Replica, f F) F {
	v := reflect.ValueOf(f)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return f // it has its answer already
	}
	if c := v.Elem().FieldByName("ShutdownCh"); c.IsValid() && c.CanSet() {
		c.Set(reflect.ValueOf(r.ending))
	}
	return f
}

// Barrier returns when everything committed before has been applied here. Only the leader can do
// this. timeout bounds how long raft takes to accept it; 0 means no bound.
func (r *Replica) Barrier(timeout time.Duration) error {
	return EndingWith(r, r.raft.Load().Barrier(timeout)).Error()
}

// Member is a member of a raft group.
type Member struct {
	Node  string
	Voter bool
}

// Configuration returns the members of the group as this replica knows them. A
// replica that has just been added knows none.
func (r *Replica) Configuration() []Member {
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
func (r *Replica) Voters() []string {
	return VotersOf(r.Configuration(), r.config.Preferred)
}

// VotersOf returns the names of the voters among members, the preferred ones first.
func VotersOf(members []Member, preferred []string) (names []string) {
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

// Has reports whether a node is a member, voter or not.
func (r *Replica) Has(node string) bool {
	return slices.ContainsFunc(r.Configuration(), func(m Member) bool { return m.Node == node })
}

// Needs reports whether the reachable voters are no majority without this one.
func (r *Replica) Needs(node string) bool {
	up, voters := 0, 0
	for _, m := range r.Configuration() {
		if !m.Voter {
			continue
		}
		voters++
		if m.Node == r.config.Node || m.Node != node && r.config.Mesh.Alive(m.Node) {
			up++
		}
	}
	return up <= voters/2
}

// Add makes a node a non-voting member. Only the leader can do this.
func (r *Replica) Add(node string) error {
	return EndingWith(r, r.raft.Load().AddNonvoter(raft.ServerID(node), raft.ServerAddress(node), 0, ChangeWait)).Error()
}

// Promote gives a member a vote. Only the leader can do this.
func (r *Replica) Promote(node string) error {
	return EndingWith(r, r.raft.Load().AddVoter(raft.ServerID(node), raft.ServerAddress(node), 0, ChangeWait)).Error()
}

// Remove removes a member. Only the leader can do this.
func (r *Replica) Remove(node string) error {
	return EndingWith(r, r.raft.Load().RemoveServer(raft.ServerID(node), 0, ChangeWait)).Error()
}

// Reached returns how far a member's log reaches, as its leader knows in a term.
func (r *Replica) Reached(node string, term uint64) peer.Reached {
	return r.transport.Reached(node, term)
}

// Nudge makes raft send to all members, by an entry without content. It does not wait for the
// commit: the member that lacks entries may be needed for it. While the leadership moves, the barrier
// of that move makes raft send.
func (r *Replica) Nudge() {
	if !r.handover.moving.Load() {
		r.raft.Load().Barrier(nudgeWait)
	}
}

// NudgeSoon is nudge for callers that must not wait. Calls made before a pending nudge has begun
// need no second one.
func (r *Replica) NudgeSoon() {
	if r.nudging.CompareAndSwap(false, true) {
		r.config.Spawn(func() {
			r.nudging.Store(false)
			r.Nudge()
		})
	}
}

// header is that of requests which this replica makes beside raft.
func (r *Replica) header() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(r.config.Node), Addr: []byte(r.config.Node)}
}

// reminder is what raft sends when its timers end: who leads in a term, and which entry is committed.
func (r *Replica) reminder(term uint64, at Position) *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{
		RPCHeader: r.header(), Term: term, PrevLogEntry: at.Index, PrevLogTerm: at.Term, LeaderCommitIndex: at.Index,
	}
}

// Remind tells a member what raft would by its timers, which are too long for it: that this replica leads, and
// what is committed.
func (r *Replica) Remind(node string) {
	at := r.PositionOf(r.raft.Load().CommitIndex())
	term, leads := r.LeadsIn() // later: what was committed then still is
	if !leads || at.Term == 0 {
		return
	}
	r.transport.Remind(node, r.reminder(term, at), func(entries bool) {
		if r.lacks(); entries {
			r.NudgeSoon()
		}
	})
}

// Back sends something to a member that may have missed what was on its way, or that this replica leads: its node
// has come up, or it asks. It does not wait.
func (r *Replica) Back(node string) {
	term, leads := r.LeadsIn()
	if last := r.LastIndex(); leads && r.Reached(node, term).Index >= last && r.raft.Load().CommitIndex() >= last {
		r.Remind(node)
	} else {
		r.NudgeSoon()
	}
}

// HasNoLeader sends something to a member that knows no leader and whose log ends at the given
// index: for example, it has just opened, and what was sent before is lost.
func (r *Replica) HasNoLeader(node string, end uint64) {
	term, leads := r.LeadsIn()
	if !leads || r.Reached(node, term).Busy {
		return
	}
	r.transport.Lacks(node, term, end)
	r.lacks()
	r.Back(node)
}

// Lacked returns how often a member had less than it acknowledged.
func (r *Replica) Lacked() uint64 { return r.lacked.Load() }

// lacks records that a member has less than it acknowledged.
func (r *Replica) lacks() {
	if r.lacked.Add(1); r.config.Unsettled != nil {
		r.config.Unsettled()
	}
}

// Doubt returns why the replica does not vote on this node, or nil if it does.
func (r *Replica) Doubt() *Doubt { return r.trust.Doubt() }

// IsLearner reports whether the replica cannot prove what it has acknowledged.
func (r *Replica) IsLearner() bool { return r.trust.IsLearner() }

// Trusted is what is known of that.
func (r *Replica) Trusted() *Trust { return &r.trust }

// Learner is what is needed of a replica, learner or not, to bring learners up to date.
type Learner interface {
	Trusted() *Trust
	Founders() []string // the members as the catalog has them: a learner may not know raft's
	Role() (role raft.RaftState, term uint64)
	LastIndex() uint64
	LogEnd() Position
	Barrier(timeout time.Duration) error // appends an entry, if this replica leads
	Votes()                              // it is a learner no longer
	IsClosed() bool
}

// ErrLearner is returned for a vote that a learner is asked for.
var ErrLearner = errors.New("the replica cannot prove what it has acknowledged, and does not vote until a leader has brought it up to date")

// Proof is what a store knows of a replica's past.
type Proof interface {
	// Doubt says why the replica cannot prove what it has acknowledged; empty:
	// it can.
	Doubt() string
	// Prove notes, durably, that a leader has brought it up to date.
	Prove() error
}

// Trust is whether a replica may vote and lead. One that cannot prove what it
// has acknowledged is a learner: it stores and applies what a leader sends, and
// takes part in no election until it has been brought up to date. See DESIGN.md.
type Trust struct {
	proof Proof
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

// Open takes up what the store says.
func (t *Trust) Open(p Proof, now fsm.Time) {
	t.proof = p
	if why := p.Doubt(); why != "" {
		t.doubt.Store(&Doubt{Since: now, Why: why})
	}
}

// Doubt is nil if there is none.
func (t *Trust) Doubt() *Doubt { return t.doubt.Load() }

// IsLearner reports whether there is a doubt.
func (t *Trust) IsLearner() bool { return t.doubt.Load() != nil }

// Refuses is why the replica should not stand for election.
func (t *Trust) Refuses() error {
	if t.IsLearner() {
		return ErrLearner
	}
	return nil
}

// Prove makes a voter of a learner that has been brought up to date.
func (t *Trust) Prove() error {
	if err := t.proof.Prove(); err != nil {
		return err
	}
	t.doubt.Store(nil)
	return nil
}

// SetStuck reports whether that is news.
func (t *Trust) SetStuck(stuck bool) bool {
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
	trust       *Trust
	termChanged func() // nil: nobody looks at terms
}

// Set implements raft.StableStore.
func (v voteStore) Set(key, value []byte) error {
	if string(key) == raftlog.VotedForKey && v.trust.IsLearner() {
		return ErrLearner
	}
	return v.StableStore.Set(key, value)
}

// SetUint64 implements raft.StableStore. Raft stores the term of a vote first.
func (v voteStore) SetUint64(key []byte, value uint64) error {
	if string(key) == raftlog.VoteTermKey && v.trust.IsLearner() {
		return ErrLearner
	}
	err := v.StableStore.SetUint64(key, value)
	if v.termChanged != nil && string(key) == raftlog.TermKey {
		v.termChanged()
	}
	return err
}

// VotedFor implements electable.
func (r *Replica) VotedFor(term uint64) string {
	if last, err := r.config.Log.GetUint64([]byte(raftlog.VoteTermKey)); err != nil || last != term {
		return ""
	}
	candidate, _ := r.config.Log.Get([]byte(raftlog.VotedForKey)) // none then
	return string(candidate)
}

// AbstainingTransport is a transport over which a replica asks for no votes that should not
// stand. A learner could not take them, and those it asks would go on to another
// term.
type AbstainingTransport struct {
	Transport
	Refuses func() error // why it should not; nil: it may
}

// RequestVote implements raft.Transport.
func (a AbstainingTransport) RequestVote(id raft.ServerID, addr raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := a.Refuses(); err != nil {
		return err
	}
	return a.Transport.RequestVote(id, addr, args, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (a AbstainingTransport) RequestPreVote(id raft.ServerID, addr raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if err := a.Refuses(); err != nil {
		return err
	}
	return a.Transport.RequestPreVote(id, addr, args, resp)
}

// Package catalog is this node's replica of the catalog, the definitions that all nodes share: it proposes changes,
// applies them to the machine of package fsm/catalog, and says which view of them a node may route by.
//
// It promises: what a proposal is answered with is in the views of all nodes that may route; a node routes by its
// view only while that holds everything that anybody has been told is done. It does not know what the definitions
// are for, which nodes there should be, or queues and their groups.
package catalog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// The catalog is a single group, so it can keep raft's short timers. Its leader's lease is longer by the slack
// of the links, see peer.Mesh.Prompt, and nothing rests on it: route leases rest on terms.
const (
	catalogHeartbeat = time.Second
	catalogLease     = catalogHeartbeat
	catalogCommit    = 500 * time.Millisecond
	catalogRetry     = 50 * time.Millisecond
	foundEvery       = 10 * time.Millisecond // a founder looks whether it reaches the others
	catalogSnapshots = 2 * time.Minute
	catalogThreshold = 8192
	catalogTrailing  = 1024
	catalogApplyWait = 5 * time.Second
)

// Config holds what the catalog's group needs.
type Config struct {
	Node  string
	Store *raftlog.Catalog
	Mesh  *peer.Mesh
	Kind  peer.Kind // of calls to the leader and of lease requests
	// KindApplied is the kind of messages that report what a node has applied.
	KindApplied peer.Kind
	Incarnation [16]byte // of this process
	Clock       func() fsm.Time
	Newest      uint32 // latest machine version that this program supports
	Exit        func(code int)
	Logger      *slog.Logger
	// Host brings this node's replica up to date if it is a learner, brings learners of others up
	// to date if this node leads, and reports when a leader makes no progress. nil: none of this
	// is done.
	Host Host
	// heartbeat is raft's timeout for heartbeats and elections. 0: catalogHeartbeat.
	heartbeat time.Duration
	// Changed is called after each entry with what the entry has changed. It runs on the applying
	// goroutine and must not block.
	Changed func(Change)
}

// Host is the host of this node's queue groups, as the catalog knows it.
type Host interface {
	// Learn brings the catalog's replica on this node up to date if it is a learner, and has it answer learners.
	Learn(k replica.Learner)
	// Awake is a time that does not pass while the process is kept from running.
	Awake() time.Duration
	// Bound is for how long of that time a leader may make no progress.
	Bound() time.Duration
	// Resigned counts a leadership of the catalog that was given up.
	Resigned(s replica.Stalled)
}

// Catalog runs the catalog's raft group on this node: it connects the parts and proposes entries.
type Catalog struct {
	*replica.Replica
	applier     catalogApplier
	convergence convergence
	lease       routeLease
	notices     *replica.Notices
	numbers     numbers
	gather      gather
	watchdog    catalogWatch
	election    atomic.Int64 // raft's ElectionTimeout, ns
	ceding      atomic.Bool  // the leadership, or it has been ceded a short time ago

	config Config
	slog   *slog.Logger
	tasks  *worker.Tasks
}

// New returns an empty catalog. Start makes it a member of the group.
func New(c Config) *Catalog {
	k := &Catalog{config: c, slog: c.Logger.With("group", "catalog"), tasks: worker.NewTasks(nil)}
	k.convergence.init(c.Node)
	k.numbers.init()
	k.gather.tasks, k.gather.commit = k.tasks, func(ctx context.Context, c []*logpb.CatalogCommand, failed func(error)) ([]*logpb.CatalogResult, error) {
		return k.propose(ctx, false, c, failed)
	}
	k.election.Store(int64(catalogHeartbeat))
	k.Replica = replica.New(replica.Config{Group: replica.CatalogGroup, Node: c.Node, Mesh: c.Mesh, Log: c.Store, Logger: k.slog, Spawn: k.tasks.Go})
	k.applier = catalogApplier{
		newest: c.Newest, exit: c.Exit, slog: c.Logger, changed: c.Changed, machine: &catalog.Catalog{},
		applied: k.convergence.applied,
	}
	k.applier.probes = replica.Probes{
		Lock: &k.applier.probing, Index: func() (uint64, error) { return k.View().Index(), nil },
		Freeze: func() func() (string, error) {
			v := k.View()
			return func() (string, error) { return fmt.Sprintf("%x", v.Hash()), nil }
		},
	}
	k.applier.view.Store(k.applier.machine.View())
	k.lease = newRouteLease(c.Node, c.Logger)
	k.lease.voters, k.lease.ask, k.lease.spawn = k.Voters, k.askLease, k.tasks.Go
	k.lease.apply = func(ctx context.Context, granted *peerpb.CatalogReply) error {
		return k.convergence.await(ctx, granted.Index)
	}
	k.lease.renewed = func(granted *peerpb.CatalogReply) { k.convergence.learn(granted.Held) }
	k.watchdog.worker = worker.New(worker.Options{})
	k.notices = replica.NewNotices(k.Replica)
	return k
}

// SetHost sets the host that the catalog works with, see Config.Host. It must be called
// before Start.
func (k *Catalog) SetHost(h Host) { k.config.Host = h }

// Started reports whether Start has been called.
func (k *Catalog) Started() bool { return k.Raft() != nil }

// Start starts this node's member of the catalog's group. Without earlier state, it starts from
// the founders' configuration; without founders, it learns the members from the leader.
func (k *Catalog) Start(founders []string) error {
	c := k.config
	k.Trusted().Open(c.Store, c.Clock())
	if past, err := k.HasPast(); past || err != nil {
		k.convergence.answersFor(longestLease) // an earlier process of this node may have
	}
	c.Mesh.HandleCall(c.Kind, k.onCall)
	err := k.Replica.Start(replica.Opening{
		Config: k.raftConfig(), Machine: &k.applier, Founders: founders, Newest: c.Newest, Admits: admitCatalogEntry, Fail: k.applier.fail, Prompt: true,
		Transport: func(t replica.Transport) raft.Transport {
			return replica.AbstainingTransport{Transport: t, Refuses: k.refuses}
		},
	})
	if err != nil {
		return fmt.Errorf("catalog: %w", err)
	}
	c.Mesh.Handle(c.KindApplied, k.onApplied)
	k.Raft().RegisterObserver(raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.LeaderObservation:
			k.lease.worker.Wake()
		case raft.RaftState:
			k.TenureEnded()
			k.watchdog.worker.Wake()
		}
		return false
	}))
	k.tasks.Go(func() { k.lease.keep(k.tasks.Life()) })
	k.tasks.Go(k.reportApplied)
	k.tasks.Go(k.standFirst)
	if h := c.Host; h != nil {
		k.tasks.Go(func() { k.watchdog.worker.Run(k.Ending(), k.watch) })
		h.Learn(k)
	}
	return nil
}

// standFirst has this node stand for election at once where nobody can lead: as the only voter, or, in
// a cluster that is being founded, as the first voter once it reaches all others. Raft's own timers are
// for leaders that are lost, and take one to two seconds.
func (k *Catalog) standFirst() {
	if k.IsLearner() {
		return
	}
	voters := k.Voters()
	if len(voters) != 1 && k.Raft().LastIndex() > 1 || len(voters) == 0 || slices.Min(voters) != k.Node() {
		return
	}
	tick := time.NewTicker(foundEvery)
	defer tick.Stop()
	for {
		if !slices.ContainsFunc(voters, func(v string) bool { return !k.config.Mesh.Alive(v) }) {
			k.config.Mesh.Campaign(replica.CatalogGroup)
			return
		}
		select {
		case <-tick.C:
		case <-k.Ending():
			return
		}
		if k.Leader() != "" || k.Raft().LastIndex() > 1 {
			return
		}
	}
}

func (k *Catalog) raftConfig() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(k.Node())
	c.HeartbeatTimeout = cmp.Or(k.config.heartbeat, catalogHeartbeat)
	if k.IsLearner() {
		c.HeartbeatTimeout = replica.Never // it does not campaign
	}
	c.ElectionTimeout = c.HeartbeatTimeout
	c.LeaderLeaseTimeout, c.CommitTimeout = catalogLease, catalogCommit
	c.SnapshotInterval, c.SnapshotThreshold, c.TrailingLogs = catalogSnapshots, catalogThreshold, catalogTrailing
	c.NoLegacyTelemetry, c.ShutdownOnRemove, c.BatchApplyCh = true, false, false
	c.Logger = replica.NewLogger(&replica.LogGate{Now: time.Now}, k.slog)
	return c
}

// Close stops the group.
func (k *Catalog) Close() error {
	defer k.tasks.Wait()
	k.tasks.Refuse()
	k.convergence.close()
	k.End()
	r := k.Raft()
	if r == nil {
		return nil
	}
	k.lease.drop()
	f := r.Shutdown()
	k.config.Mesh.DropGroup(replica.CatalogGroup) // ends requests under way to nodes that are gone
	return f.Error()
}

// View returns the newest view that this node has applied.
func (k *Catalog) View() *catalog.View { return k.applier.View() }

// Leads reports whether this node leads the catalog and has applied everything committed before its term. It
// costs an entry once in a term.
func (k *Catalog) Leads(ctx context.Context) bool {
	_, ok := k.beginTerm(ctx)
	return ok
}

// LeadsStill is Leads, and nobody else has led by the time it was called: the view holds everything that
// anybody has committed. It costs an entry each time.
func (k *Catalog) LeadsStill() bool {
	return k.IsLeader() && k.wait(k.Raft().Barrier(replica.ChangeWait)) == nil
}

// Transfer makes another node the leader, see group.Group.Transfer. What is proposed meanwhile is refused, and
// proposed again.
func (k *Catalog) Transfer(to string) error {
	term, leads := k.LeadsIn()
	if !leads {
		return replica.ErrNotLeading
	}
	if err := k.RefusesMove(to); err != nil {
		return err
	}
	err := k.Move(to, term)
	k.MoveEnded(err)
	return err
}

// HashAt is group.Group.HashAt of the catalog.
func (k *Catalog) HashAt(at uint64, wait time.Duration) (index uint64, hash string, err error) {
	return k.applier.probes.HashAt(at, wait, k.Ending())
}

// Founders returns the members that this node knows.
func (k *Catalog) Founders() []string {
	names := []string{k.Node()}
	for _, p := range k.config.Mesh.Peers() {
		names = append(names, p.Node)
	}
	return names
}

// Votes is called when the replica is no longer a learner.
func (k *Catalog) Votes() {
	k.slog.Info("this node's catalog is up to date again, and the node votes")
	err := k.Reload(func(c *raft.ReloadableConfig) {
		c.HeartbeatTimeout, c.ElectionTimeout = catalogHeartbeat, time.Duration(k.election.Load())
	})
	if err != nil {
		k.slog.Warn("raft timers of the catalog not set", "error", err)
	}
}

// adaptElections has a candidate wait as long for votes as two answers of a majority take: one to the question
// whether it might win, and the vote.
func (k *Catalog) adaptElections() {
	was, want := k.election.Load(), catalogHeartbeat+2*k.config.Mesh.Slack(k.Voters()...)
	if (want-time.Duration(was)).Abs() < catalogHeartbeat/4 || k.IsLearner() || !k.election.CompareAndSwap(was, int64(want)) {
		return
	}
	if err := k.Reload(func(c *raft.ReloadableConfig) { c.ElectionTimeout = want }); err != nil {
		k.slog.Warn("raft timers of the catalog not set", "error", err)
	}
}

// Propose commits commands in one entry and returns their results once this node and all nodes
// that may route have applied the entry. It may be unknown whether an attempt was lost. Once this process
// has registered, the commands are performed once however often they are proposed; before, they
// must be safe to repeat. A single command may share its entry with those of others, see gather.
func (k *Catalog) Propose(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	if len(commands) == 1 {
		if size, may := k.gathers(commands[0]); may {
			return k.gather.propose(ctx, commands[0], size)
		}
	}
	return k.propose(ctx, false, commands, func(error) {})
}

// Note is Propose for changes that no client is told of: it waits only for this node's view.
func (k *Catalog) Note(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	return k.propose(ctx, true, commands, func(error) {})
}

// propose proposes until it is answered, or ctx ends. failed is called with the error of each attempt before.
func (k *Catalog) propose(ctx context.Context, internal bool, commands []*logpb.CatalogCommand, failed func(error)) ([]*logpb.CatalogResult, error) {
	mark, err := k.mark(ctx)
	if err != nil {
		return nil, err
	}
	if mark != nil {
		defer k.numbers.end(mark.Number)
	}
	entry, err := logpb.Marshal(&logpb.CatalogEntry{
		Version: k.View().FSMVersion(), Now: int64(k.config.Clock()), Commands: commands, Proposal: mark,
	})
	if err != nil {
		return nil, fmt.Errorf("encode catalog entry: %w", err)
	}
	for {
		results, index, err := k.attempt(ctx, entry, internal)
		if err == nil && len(results) != len(commands) { // a node that lies: callers read their results
			err = fmt.Errorf("%d results for %d commands", len(results), len(commands))
		}
		if err == nil {
			return results, k.convergence.await(ctx, index)
		}
		failed(err)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("catalog: %w (last attempt: %w)", ctx.Err(), err)
		case <-time.After(catalogRetry):
		}
	}
}

// mark returns what marks one more proposal of this process; nil: it has not registered.
func (k *Catalog) mark(ctx context.Context) (*logpb.Proposal, error) {
	if !k.isRegistered(k.View()) {
		return nil, nil
	}
	mark := &logpb.Proposal{Node: k.Node(), Incarnation: k.config.Incarnation[:]}
	return mark, k.numbers.begin(ctx, mark)
}

// isRegistered reports whether this process is the one that a view has under its node's name.
func (k *Catalog) isRegistered(v *catalog.View) bool {
	n, known := v.NodeByName(k.Node())
	return known && n.GetBoot() != 0 && bytes.Equal(n.GetIncarnation(), k.config.Incarnation[:])
}

var errNoCatalogLeader = errors.New("the catalog has no leader")

// attempt proposes once, on this node or at the leader.
func (k *Catalog) attempt(ctx context.Context, entry []byte, internal bool) ([]*logpb.CatalogResult, uint64, error) {
	leader := k.Leader()
	switch leader {
	case "":
		return nil, 0, errNoCatalogLeader
	case k.Node():
		return k.lead(ctx, k.Node(), entry, internal)
	}
	ctx, cancel := context.WithTimeout(ctx, catalogApplyWait)
	defer cancel()
	reply, err := peer.Ask[peerpb.CatalogReply](ctx, k.config.Mesh, leader, k.config.Kind, &peerpb.CatalogRequest{Entry: entry, Internal: internal})
	if err != nil {
		return nil, 0, err
	}
	if !reply.Ok {
		return nil, 0, errors.New(reply.Error)
	}
	k.convergence.learn(reply.Held)
	results := make([]*logpb.CatalogResult, len(reply.Results))
	for i, r := range reply.Results {
		results[i] = &logpb.CatalogResult{}
		if err := logpb.Unmarshal(r, results[i]); err != nil {
			return nil, 0, err
		}
	}
	return results, reply.Index, nil
}

// lead proposes on this node what one of the nodes wants, and returns once all nodes have applied it.
func (k *Catalog) lead(ctx context.Context, from string, entry []byte, internal bool) ([]*logpb.CatalogResult, uint64, error) {
	if _, ok := k.beginTerm(ctx); !ok {
		return nil, 0, errNoCatalogLeader
	}
	entry, results, index, err := k.admit(from, entry)
	if err != nil || results != nil {
		if err == nil && !internal {
			err = k.convergence.awaitConverged(ctx, index)
		}
		return results, index, err
	}
	if k.Moves() {
		return nil, 0, replica.ErrTransferring
	}
	f := k.Raft().Apply(entry, catalogApplyWait)
	if err := k.wait(f); err != nil {
		return nil, 0, err
	}
	k.notifyFollowers()
	if !internal {
		if err := k.convergence.awaitConverged(ctx, f.Index()); err != nil {
			return nil, 0, err
		}
	}
	return f.Response().([]*logpb.CatalogResult), f.Index(), nil
}

// admit validates an entry, which comes from a node, before it enters the log, since every replica
// has to apply it from then on, and returns it as it is to be proposed, see admitted. results: how an
// entry that is not proposed is answered, which is what those hold that have applied index. nil: it
// is proposed.
func (k *Catalog) admit(from string, entry []byte) (_ []byte, results []*logpb.CatalogResult, index uint64, err error) {
	view := k.View()
	known := view.FSMVersion()
	e, err := decodeCatalog(entry, known)
	if err != nil {
		return nil, nil, 0, err
	}
	if e.Version == 0 {
		return nil, nil, 0, fmt.Errorf("catalog entry has version 0, but the cluster has %d", known)
	}
	if err := catalog.AdmitProposal(e.Proposal, from); err != nil {
		return nil, nil, 0, err
	}
	if answered, ok := view.Answered(e.Proposal); ok {
		return nil, answered, view.Index(), nil
	}
	entry, results, err = admitted(view, e, entry)
	return entry, results, 0, err
}

// notifyFollowers tells all members of the group what has been committed.
func (k *Catalog) notifyFollowers() {
	if term, index, appliedTerm := k.convergence.committed(); term == appliedTerm { // otherwise it no longer leads, and others announce its commits
		k.notices.Send(replica.Notice{Index: index, Term: appliedTerm, Leads: term})
	}
}

// wait waits for a raft operation as the leader. The work that waits here must make progress.
func (k *Catalog) wait(f raft.Future) error {
	if k.watchdog.waiting.Add(1) == 1 {
		k.watchdog.worker.Wake()
	}
	defer k.watchdog.waiting.Add(-1)
	return replica.EndingWith(k.Replica, f).Error()
}

// onCall performs an operation for another node that only the leader can perform, or answers its
// lease request.
func (k *Catalog) onCall(ctx context.Context, from string, req []byte) ([]byte, error) {
	var m peerpb.CatalogRequest
	if err := proto.Unmarshal(req, &m); err != nil {
		return nil, err
	}
	switch {
	case m.Lease != nil:
		return proto.Marshal(k.onLease(ctx, from, m.Lease))
	case m.Hold != 0:
		return proto.Marshal(k.onHold(ctx, m.Hold))
	}
	ctx, cancel := context.WithTimeout(ctx, catalogApplyWait)
	defer cancel()
	results, index, err := k.lead(ctx, from, m.Entry, m.Internal)
	if err != nil {
		return proto.Marshal(&peerpb.CatalogReply{Error: err.Error()})
	}
	reply := &peerpb.CatalogReply{Ok: true, Index: index}
	if !m.Internal {
		reply.Held = index
	}
	for _, r := range results {
		encoded, err := logpb.Marshal(r)
		if err != nil {
			return nil, err
		}
		reply.Results = append(reply.Results, encoded)
	}
	return proto.Marshal(reply)
}

// Change says which queues an entry of the catalog concerns.
type Change struct {
	Added, Removed []fsm.QueueID
	Configured     []fsm.QueueID // their effective settings have changed
	Moved          []fsm.QueueID // their members have changed
	Rights         bool          // what users may do has changed
	Users, VHosts  []string      // that have gone
	Nodes          bool          // nodes have come, started anew, or gone
	// Everything is set when the whole view was replaced by a snapshot.
	Everything bool
}

// catalogApplier applies the catalog's entries to its machine, and is what raft
// takes for its state machine. After each entry it publishes a new view.
type catalogApplier struct {
	newest  uint32 // version of the machines that this program supports
	exit    func(code int)
	slog    *slog.Logger
	changed func(Change)
	applied func(view *catalog.View, index, term uint64) // after changed

	machine *catalog.Catalog // used by raft's applying goroutine only
	view    atomic.Pointer[catalog.View]

	probing sync.Mutex // of probes
	probes  replica.Probes
}

// Apply implements raft.FSM.
func (a *catalogApplier) Apply(l *raft.Log) any {
	var e logpb.CatalogEntry
	if err := logpb.Unmarshal(l.Data, &e); err != nil {
		a.fail(replica.CodeDamaged, fmt.Sprintf("catalog entry %d cannot be decoded: %v", l.Index, err))
	}
	a.mustSupport(e.Version)
	results := a.machine.Apply(l.Index, &e)
	a.mustSupport(a.machine.View().FSMVersion())
	a.publish()
	var change Change
	if !a.machine.Repeated() {
		change = changeOf(&e, results)
	}
	a.changed(change)
	a.applied(a.View(), l.Index, l.Term)
	return results
}

// changeOf says what the commands of an entry have changed, by their answers.
func changeOf(e *logpb.CatalogEntry, results []*logpb.CatalogResult) (change Change) {
	for i, r := range results {
		if e.Commands[i].GetDeclareQueue() != nil && r.Changed && !r.Adopted && r.Refusal == 0 {
			change.Added = append(change.Added, fsm.QueueID(r.Queue))
		}
		for _, id := range r.Added {
			change.Added = append(change.Added, fsm.QueueID(id))
		}
		for _, id := range r.Deleted {
			change.Removed = append(change.Removed, fsm.QueueID(id))
		}
		for _, id := range r.Configured {
			change.Configured = append(change.Configured, fsm.QueueID(id))
		}
		for _, id := range r.Moved {
			change.Moved = append(change.Moved, fsm.QueueID(id))
		}
		c := e.Commands[i]
		change.noteRights(c, r)
		change.Nodes = change.Nodes || r.Changed && (c.GetRegisterNode() != nil || c.GetAdmitNode() != nil || c.GetForgetNode() != nil || c.GetRecoverCluster() != nil || c.GetDeclareDead() != nil)
	}
	return change
}

// noteRights notes what a command has changed of what users may do.
func (change *Change) noteRights(c *logpb.CatalogCommand, r *logpb.CatalogResult) {
	if !r.Changed {
		return
	}
	switch m := c.Body.(type) {
	case *logpb.CatalogCommand_Together:
		for _, c := range m.Together.GetCommands() {
			change.noteRights(c, r)
		}
		return
	case *logpb.CatalogCommand_Describe, *logpb.CatalogCommand_PutAccessKey, *logpb.CatalogCommand_DeleteAccessKey:
	case *logpb.CatalogCommand_DeleteVhost:
		change.VHosts = append(change.VHosts, m.DeleteVhost.GetName())
	case *logpb.CatalogCommand_DeleteUser:
		change.Users = append(change.Users, m.DeleteUser.GetName())
	case *logpb.CatalogCommand_PutPermission, *logpb.CatalogCommand_DeletePermission,
		*logpb.CatalogCommand_PutTopicPermission, *logpb.CatalogCommand_DeleteTopicPermission:
	default:
		return
	}
	change.Rights = true
}

// Snapshot implements raft.FSM. It costs nothing: a view never changes, so it is written while entries are applied.
func (a *catalogApplier) Snapshot() (raft.FSMSnapshot, error) {
	return catalogSnapshot{a.machine.View()}, nil
}

// Restore implements raft.FSM.
func (a *catalogApplier) Restore(rc io.ReadCloser) error {
	defer rc.Close()
	state, err := readCatalogSnapshot(rc)
	if err != nil {
		return err
	}
	return a.restore(state)
}

// publish makes the machine's view the newest one.
func (a *catalogApplier) publish() {
	v := a.machine.View()
	a.probing.Lock()
	defer a.probing.Unlock()
	a.view.Store(v)
	a.probes.Answer(v.Index())
}

// View is the newest view.
func (a *catalogApplier) View() *catalog.View { return a.view.Load() }

func (a *catalogApplier) restore(state *logpb.CatalogSnapshot) (err error) {
	a.mustSupport(catalog.SnapshotVersion(state))
	if a.machine, err = catalog.Restore(state); err != nil {
		return fmt.Errorf("restore catalog: %w", err)
	}
	a.publish()
	a.changed(Change{Everything: true})
	a.applied(a.View(), a.machine.View().Index(), 0)
	return nil
}

// readCatalogSnapshot reads a state from the stream of a snapshot.
func readCatalogSnapshot(stream io.Reader) (*logpb.CatalogSnapshot, error) {
	r, err := raftlog.ReadState(stream)
	if err != nil {
		return nil, fmt.Errorf("read catalog snapshot: %w", err)
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read catalog snapshot: %w", err)
	}
	state := new(logpb.CatalogSnapshot)
	if err := logpb.Unmarshal(raw, state); err != nil {
		return nil, fmt.Errorf("decode catalog snapshot: %w", err)
	}
	return state, nil
}

// mustSupport ends the process if the cluster has gone on to a version that
// this program is too old for.
func (a *catalogApplier) mustSupport(version uint32) {
	if newest := a.newest; version > newest {
		a.fail(replica.CodeTooOld, replica.NeedsNewer(version, newest))
	}
}

func (a *catalogApplier) fail(code int, why string) {
	a.slog.Error("node must stop", "code", code, "reason", why)
	a.exit(code)
	select {}
}

// catalogSnapshot is a state that is to be written.
type catalogSnapshot struct{ view *catalog.View }

// Persist implements raft.FSMSnapshot.
func (s catalogSnapshot) Persist(sink raft.SnapshotSink) error {
	if k, ok := sink.(*raftlog.Sink); ok {
		k.SetLive(nil) // its entries have no payloads
	}
	for part := range s.view.SnapshotParts() {
		encoded, err := logpb.Marshal(part)
		if err == nil {
			_, err = sink.Write(encoded)
		}
		if err != nil {
			sink.Cancel()
			return fmt.Errorf("write catalog snapshot: %w", err)
		}
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (catalogSnapshot) Release() {}

// watchRest is how often the leader of a catalog is checked for which nothing waits. Whoever begins to
// wait has it checked.
const watchRest = time.Second

// catalogWatch is what is known of the progress of the catalog's leader on this
// node, and of when it has resigned. The catalog has no elections but raft's own,
// so the leader itself chooses its transferee.
type catalogWatch struct {
	waiting  atomic.Int64                    // for answers of raft as the leader
	stall    atomic.Pointer[replica.Stalled] // beyond the bound; nil: it makes progress
	noVote   atomic.Int64                    // until then it does not stand for election, by the watch's time
	resigned replica.Resigning
	worker   *worker.Worker // woken when raft's state changes, and when something begins to wait

	entries replica.Mark // of the worker's goroutine
}

// watch checks the progress of the catalog while this node leads it.
func (k *Catalog) watch(time.Time) time.Duration {
	k.check(k.config.Host.Awake())
	return k.watchAgain(k.watchdog.waiting.Load() > 0 || k.watchdog.entries.Waits)
}

// watchAgain is when the progress is checked again, if something waits or not; 0: when raft's state
// changes.
func (k *Catalog) watchAgain(waits bool) time.Duration {
	switch {
	case !k.IsLeader():
		return 0
	case waits:
		return replica.WatchEvery
	}
	return worker.Next(watchRest)
}

// check has this node give the catalog up if it leads that and makes no progress.
func (k *Catalog) check(now time.Duration) {
	h, d := k.config.Host, &k.watchdog
	s := k.stall(now)
	if bound := h.Bound(); s.For < bound || s.For < bound+k.config.Mesh.Slack(k.Voters()...) {
		d.stall.Store(nil)
		return
	}
	s.Keeps = k.WhyKeep(&d.resigned, now)
	d.stall.Store(&s)
	if s.Keeps != "" {
		return
	}
	d.resigned.Begin(s.Term, now)
	d.noVote.Store(int64(now + replica.ShortPause))
	k.slog.Warn("the catalog's leader is making no progress and resigns", "reason", s.Reason, "for", s.For.Round(time.Millisecond),
		"term", s.Term, "last", s.Last, "commit", s.Commit, "applied", s.Applied)
	h.Resigned(s)
	k.tasks.Go(func() {
		if to := k.transferee(s.Term); to != "" {
			k.Yield(to, s.Term, true)
		}
	})
}

// stall returns for how long the leader's work makes no progress: what its log
// has, or is to take, is not applied.
func (k *Catalog) stall(now time.Duration) replica.Stalled {
	r, d := k.Raft(), &k.watchdog
	if r.State() != raft.Leader {
		d.entries = replica.Mark{}
		return replica.Stalled{}
	}
	s := replica.Stalled{Reason: replica.StuckCatalog, Term: r.CurrentTerm(), Last: r.LastIndex(), Commit: r.CommitIndex(), Applied: r.AppliedIndex()}
	// Raft counts as applied what it has handed to the machine.
	s.For = d.entries.Update(s.Last > s.Applied || d.waiting.Load() > 0, s.Applied+k.convergence.appliedIndex(), now)
	return s
}

// errResignedLately is returned for a vote that a node would ask for which has given
// the catalog up lately: with the longest log it would win, and stall again.
var errResignedLately = errors.New("the node gave up the catalog a short time ago")

// refuses is why this node should not stand for election.
func (k *Catalog) refuses() error {
	if until := k.watchdog.noVote.Load(); until != 0 && until > int64(k.config.Host.Awake()) {
		return errResignedLately
	}
	return k.Trusted().Refuses()
}

// transferee is the voter that has acknowledged most of those that are up; empty: none is. If it does not take
// over, this node steps down, and another one is elected.
func (k *Catalog) transferee(term uint64) (best string) {
	for _, n := range k.Voters() {
		if n != k.Node() && k.config.Mesh.Alive(n) && (best == "" || k.Reached(n, term).Index > k.Reached(best, term).Index) {
			best = n
		}
	}
	return best
}

// Stall says how the catalog stalls, if this node leads it and its work makes no
// progress; nil: it makes progress.
func (k *Catalog) Stall() *replica.Stalled { return k.watchdog.stall.Load() }

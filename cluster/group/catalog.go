package group

import (
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
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// The catalog is one group, so it may keep raft's quick timers.
const (
	catalogHeartbeat = time.Second
	catalogLease     = 500 * time.Millisecond
	catalogCommit    = 500 * time.Millisecond
	catalogRetry     = 50 * time.Millisecond
	catalogSnapshots = 2 * time.Minute
	catalogThreshold = 8192
	catalogTrailing  = 1024
	catalogApplyWait = 5 * time.Second
	catalogGroup     = fsm.GroupID(0)
)

// CatalogConfig is what the catalog's group needs.
type CatalogConfig struct {
	Node  string
	Store *raftlog.Catalog
	Mesh  *peer.Mesh
	Kind  peer.Kind // of the calls to the leader, and of questions for leases
	// KindApplied is that of messages that say what a node has applied.
	KindApplied peer.Kind
	Incarnation [16]byte // of this process
	Clock       func() fsm.Time
	Newest      uint32 // version of the machines that this program supports
	Exit        func(code int)
	Logger      *slog.Logger
	// Host brings this node's replica up to date if it is a learner, and those
	// of others if this one leads, and says when a leader makes no progress;
	// nil: nobody does.
	Host *Host
	// Changed is told after each entry. It is called on the applying goroutine
	// and must not block.
	Changed func(CatalogChange)
}

// CatalogChange says which queues an entry of the catalog concerns.
type CatalogChange struct {
	Added, Removed []fsm.QueueID
	Configured     []fsm.QueueID // their effective settings have changed
	Moved          []fsm.QueueID // their members have changed
	Rights         bool          // what users may do has changed
	Users, VHosts  []string      // that have gone
	Nodes          bool          // nodes have come, started anew, or gone
	// Everything is set when the whole view was replaced by a snapshot.
	Everything bool
}

// Catalog runs the catalog's raft group on this node.
type Catalog struct {
	config  CatalogConfig
	raft    atomic.Pointer[raft.Raft] // nil: not started
	machine *catalog.Catalog          // used by raft's applying goroutine only
	view    atomic.Pointer[catalog.View]

	mu          sync.Mutex
	changed     sync.Cond // something that follows has
	applied     uint64    // index of the last entry in the view, and its term
	appliedTerm uint64
	nodes       []string // of the cluster, by the view
	notices     map[string]*notice
	holders     holders
	held        uint64      // index that all nodes hold that may route
	timer       *time.Timer // to look at the holders again
	yielded     time.Time   // the leadership was last given away for a node out of reach
	closed      bool

	trust   trust
	steward steward
	lease   lease
	life    context.Context // ends when Close begins
	end     context.CancelFunc
	ending  chan struct{} // closed then
	done    sync.WaitGroup
}

// NewCatalog returns an empty catalog; Start makes it the group's.
func NewCatalog(c CatalogConfig) *Catalog {
	k := &Catalog{
		config: c, machine: &catalog.Catalog{}, ending: make(chan struct{}),
		notices: map[string]*notice{}, lease: newLease(),
	}
	k.life, k.end = context.WithCancel(context.Background())
	k.changed.L = &k.mu
	k.view.Store(k.machine.View())
	return k
}

// HasPast reports whether this node has been part of a catalog before.
func (k *Catalog) HasPast() (bool, error) {
	if k.config.Store.Doubt() != "" {
		return true, nil
	}
	return raft.HasExistingState(k.config.Store, k.config.Store, k.config.Store.Snapshots())
}

// Started reports whether Start has been called.
func (k *Catalog) Started() bool { return k.raft.Load() != nil }

// Start starts this node's member of the catalog's group. Without a past, the
// founders' configuration is its beginning; without founders it learns from the
// leader who the members are.
func (k *Catalog) Start(founders []string) error {
	c := k.config
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(c.Node)
	rc.LeaderLeaseTimeout, rc.CommitTimeout = catalogLease, catalogCommit
	rc.SnapshotInterval, rc.SnapshotThreshold, rc.TrailingLogs = catalogSnapshots, catalogThreshold, catalogTrailing
	rc.NoLegacyTelemetry, rc.ShutdownOnRemove, rc.BatchApplyCh = true, false, false
	rc.Logger = newRaftLogger(c.Logger.With("group", "catalog"))
	k.trust.open(c.Store, c.Clock())
	rc.HeartbeatTimeout = catalogHeartbeat
	if k.trust.unproven() {
		rc.HeartbeatTimeout = never // it does not stand
	}
	rc.ElectionTimeout = rc.HeartbeatTimeout
	judge := newJudge(c.Store, c.Newest, admitCatalogEntry)
	transport := modest{c.Mesh.TransportFor(catalogGroup, judge).(transport), k.refuses}
	c.Mesh.Withhold(catalogGroup, k.trust.unproven)
	c.Mesh.Prompt(catalogGroup)
	past, err := k.HasPast()
	if err != nil {
		return fmt.Errorf("catalog: look for existing state: %w", err)
	}
	if !past && len(founders) > 0 {
		var members raft.Configuration
		for _, m := range founders {
			members.Servers = append(members.Servers, raft.Server{ID: raft.ServerID(m), Address: raft.ServerAddress(m)})
		}
		err := raft.BootstrapCluster(rc, c.Store, c.Store, c.Store.Snapshots(), transport, members)
		if err != nil {
			return fmt.Errorf("catalog: bootstrap: %w", err)
		}
	}
	c.Mesh.HandleCall(c.Kind, k.onCall)
	r, err := raft.NewRaft(rc, catalogMachine{k}, c.Store, ballots{c.Store, &k.trust}, c.Store.Snapshots(), transport)
	if err != nil {
		return fmt.Errorf("catalog: start raft: %w", err)
	}
	judge.raft.Store(r)
	k.raft.Store(r)
	c.Mesh.Handle(c.KindApplied, k.onApplied)
	leaders := raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		if _, changed := o.Data.(raft.LeaderObservation); changed {
			k.lease.hasten()
		}
		return false
	})
	r.RegisterObserver(leaders)
	k.done.Go(k.keepLease)
	k.done.Go(k.reportApplied)
	if h := c.Host; h != nil {
		k.done.Go(k.keepProgress)
		h.catalog.Store(k)
		if k.trust.unproven() {
			h.lessons.begin(catalogGroup, k)
		}
	}
	return nil
}

// Close ends the group.
func (k *Catalog) Close() error {
	k.mu.Lock()
	k.closed = true
	if k.timer != nil {
		k.timer.Stop()
	}
	k.mu.Unlock()
	k.end()
	close(k.ending)
	r := k.raft.Load()
	if r == nil {
		return nil
	}
	k.dropLease()
	f := r.Shutdown()
	k.config.Mesh.DropGroup(catalogGroup) // requests under way to nodes that are gone end now
	err := f.Error()
	k.done.Wait()
	return err
}

// View is the newest view this node has applied.
func (k *Catalog) View() *catalog.View { return k.view.Load() }

// Leader names the node that leads the catalog, empty if unknown.
func (k *Catalog) Leader() string {
	r := k.raft.Load()
	if r == nil {
		return ""
	}
	_, id := r.LeaderWithID()
	return string(id)
}

// Transfer makes another node the leader. Without success this one stays it.
func (k *Catalog) Transfer(to string) error {
	return endingWith(k.raft.Load().LeadershipTransferToServer(raft.ServerID(to), raft.ServerAddress(to)), k.ending).Error()
}

// Progress says how far this node's replica is.
func (k *Catalog) Progress() Progress {
	r := k.raft.Load()
	if r == nil {
		return Progress{}
	}
	p := progressOf(r, k.config.Node)
	p.Voter = p.Voter && !k.trust.unproven()
	return p
}

// Propose commits commands in one entry and returns their results when all
// nodes that may route hold it, and this one. Whether an attempt was lost may be
// unknown, so the commands must be ones that may be repeated.
func (k *Catalog) Propose(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	return k.propose(ctx, false, commands)
}

// Note is Propose of what nobody is told of: it waits for this node's view
// only.
func (k *Catalog) Note(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	return k.propose(ctx, true, commands)
}

func (k *Catalog) propose(ctx context.Context, internal bool, commands []*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	entry, err := logpb.Marshal(&logpb.CatalogEntry{Version: k.View().FSMVersion(), Now: int64(k.config.Clock()), Commands: commands})
	if err != nil {
		return nil, fmt.Errorf("encode catalog entry: %w", err)
	}
	for {
		results, index, err := k.attempt(ctx, entry, internal)
		if err == nil && len(results) != len(commands) { // a node that lies: callers look at their results
			err = fmt.Errorf("%d results of %d commands", len(results), len(commands))
		}
		if err == nil {
			return results, k.await(ctx, index)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("catalog: %w (last attempt: %w)", ctx.Err(), err)
		case <-time.After(catalogRetry):
		}
	}
}

var errNoCatalogLeader = errors.New("the catalog has no leader")

// attempt proposes once, here or at the leader.
func (k *Catalog) attempt(ctx context.Context, entry []byte, internal bool) ([]*logpb.CatalogResult, uint64, error) {
	leader := k.Leader()
	switch leader {
	case "":
		return nil, 0, errNoCatalogLeader
	case k.config.Node:
		return k.lead(ctx, entry, internal)
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
	k.learn(reply.Held)
	results := make([]*logpb.CatalogResult, len(reply.Results))
	for i, r := range reply.Results {
		results[i] = &logpb.CatalogResult{}
		if err := logpb.Unmarshal(r, results[i]); err != nil {
			return nil, 0, err
		}
	}
	return results, reply.Index, nil
}

// lead proposes on this node and returns when all nodes hold the entry.
func (k *Catalog) lead(ctx context.Context, entry []byte, internal bool) ([]*logpb.CatalogResult, uint64, error) {
	if _, ok := k.enterOffice(ctx); !ok {
		return nil, 0, errNoCatalogLeader
	}
	if refused, err := k.admit(entry); err != nil || refused != nil {
		return refused, 0, err
	}
	f := k.raft.Load().Apply(entry, catalogApplyWait)
	if err := k.ask(f); err != nil {
		return nil, 0, err
	}
	k.tellFollowers()
	if !internal {
		if err := k.awaitHeld(ctx, f.Index()); err != nil {
			return nil, 0, err
		}
	}
	return f.Response().([]*logpb.CatalogResult), f.Index(), nil
}

// admit looks at an entry, which may be another node's, before it enters the log.
// There every replica has to apply it, for ever. An entry with a command that is
// not admitted is answered so as a whole, and proposed not at all.
func (k *Catalog) admit(entry []byte) (refused []*logpb.CatalogResult, err error) {
	view := k.View()
	known := view.FSMVersion()
	e, err := decodeCatalog(entry, known)
	if err != nil {
		return nil, err
	}
	if e.Version == 0 {
		return nil, fmt.Errorf("catalog entry of version 0, the cluster has %d", known)
	}
	for _, c := range e.Commands {
		err := catalog.Admit(c)
		if err == nil {
			err = view.Fits(c)
		}
		if err != nil {
			return slices.Repeat([]*logpb.CatalogResult{catalog.Refuse(err)}, len(e.Commands)), nil
		}
	}
	return nil, nil
}

// appliedIndex is that of the last entry in the view.
func (k *Catalog) appliedIndex() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.applied
}

// await returns when this node has applied index.
func (k *Catalog) await(ctx context.Context, index uint64) error {
	return k.awaitChange(ctx, "an entry", func() bool { return k.applied >= index })
}

// awaitChange returns when done, which is asked under mu, is true.
func (k *Catalog) awaitChange(ctx context.Context, what string, done func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.changed.Broadcast()
	})
	defer stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	for !done() {
		if ctx.Err() != nil {
			return fmt.Errorf("catalog: wait for %s: %w", what, ctx.Err())
		}
		k.changed.Wait()
	}
	return nil
}

// onCall does for another node what only the leader can do, or answers its
// question for a lease.
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
	results, index, err := k.lead(ctx, m.Entry, m.Internal)
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

// catalogMachine is the catalog as raft's state machine.
type catalogMachine struct{ k *Catalog }

func (m catalogMachine) Apply(l *raft.Log) any {
	k := m.k
	var e logpb.CatalogEntry
	if err := logpb.Unmarshal(l.Data, &e); err != nil {
		m.fail(codeDamaged, fmt.Sprintf("catalog entry %d cannot be decoded: %v", l.Index, err))
	}
	m.mustSupport(e.Version)
	results := k.machine.Apply(l.Index, &e)
	m.mustSupport(k.machine.View().FSMVersion())
	k.view.Store(k.machine.View())
	var change CatalogChange
	for i, r := range results {
		if e.Commands[i].GetDeclareQueue() != nil && r.Changed && r.Refusal == 0 {
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
	k.config.Changed(change)
	k.hasApplied(l.Index, l.Term)
	return results
}

// noteRights notes what a command has changed of what users may do.
func (change *CatalogChange) noteRights(c *logpb.CatalogCommand, r *logpb.CatalogResult) {
	if !r.Changed {
		return
	}
	switch m := c.Body.(type) {
	case *logpb.CatalogCommand_DeleteVhost:
		change.VHosts = append(change.VHosts, m.DeleteVhost.GetName())
	case *logpb.CatalogCommand_DeleteUser:
		change.Users = append(change.Users, m.DeleteUser.GetName())
	case *logpb.CatalogCommand_PutPermission, *logpb.CatalogCommand_DeletePermission:
	default:
		return
	}
	change.Rights = true
}

// hasApplied lets those go on who wait for an index.
func (k *Catalog) hasApplied(index, term uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.applied, k.appliedTerm = index, term
	k.nodes = k.nodes[:0]
	for _, n := range k.View().Nodes() {
		k.nodes = append(k.nodes, n.Name)
	}
	if k.holders.open && term == k.holders.term {
		k.holders.last = index
		k.recount()
	}
	k.changed.Broadcast()
}

func (m catalogMachine) Snapshot() (raft.FSMSnapshot, error) {
	state, err := logpb.Marshal(m.k.machine.Snapshot())
	return catalogSnapshot{state}, err
}

func (m catalogMachine) Restore(rc io.ReadCloser) error {
	defer rc.Close()
	state, err := readCatalogSnapshot(rc)
	if err != nil {
		return err
	}
	return m.restore(state)
}

func (m catalogMachine) restore(state *logpb.CatalogSnapshot) (err error) {
	m.mustSupport(catalog.SnapshotVersion(state))
	if m.k.machine, err = catalog.Restore(state); err != nil {
		return fmt.Errorf("restore catalog: %w", err)
	}
	m.k.view.Store(m.k.machine.View())
	m.k.config.Changed(CatalogChange{Everything: true})
	m.k.hasApplied(m.k.machine.View().Index(), 0)
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
func (m catalogMachine) mustSupport(version uint32) {
	if newest := m.k.config.Newest; version > newest {
		m.fail(codeTooOld, fmt.Sprintf("the cluster's fsm_version is %d, this program supports up to %d", version, newest))
	}
}

func (m catalogMachine) fail(code int, why string) {
	m.k.config.Logger.Error("node must stop", "code", code, "reason", why)
	m.k.config.Exit(code)
	select {}
}

type catalogSnapshot struct{ state []byte }

func (s catalogSnapshot) Persist(sink raft.SnapshotSink) error {
	if k, ok := sink.(*raftlog.Sink); ok {
		k.SetLive(nil) // its entries have no payloads
	}
	if _, err := sink.Write(s.state); err != nil {
		sink.Cancel()
		return fmt.Errorf("write catalog snapshot: %w", err)
	}
	return sink.Close()
}

func (catalogSnapshot) Release() {}

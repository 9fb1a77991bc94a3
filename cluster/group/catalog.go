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
	Node   string
	Store  *raftlog.Catalog
	Mesh   *peer.Mesh
	Kind   peer.Kind // of the calls that forward proposals
	Clock  func() fsm.Time
	Newest uint32 // version of the machines that this program supports
	Exit   func(code int)
	Logger *slog.Logger
	// Changed is told after each entry. It is called on the applying goroutine
	// and must not block.
	Changed func(CatalogChange)
}

// CatalogChange says which queues an entry of the catalog concerns.
type CatalogChange struct {
	Added, Removed []fsm.QueueID
	Configured     []fsm.QueueID // their effective settings have changed
	Moved          []fsm.QueueID // their members have changed
	VHosts         bool          // vhosts have gone
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

	mu      sync.Mutex
	changed sync.Cond // applied has grown
	applied uint64
	nudge   bool // a barrier is under way that tells followers what is committed
	closed  bool
	ending  chan struct{} // closed when Close begins
	done    sync.WaitGroup
}

// NewCatalog returns an empty catalog; Start makes it the group's.
func NewCatalog(c CatalogConfig) *Catalog {
	k := &Catalog{config: c, machine: &catalog.Catalog{}, ending: make(chan struct{})}
	k.changed.L = &k.mu
	k.view.Store(k.machine.View())
	return k
}

// HasPast reports whether this node has been part of a catalog before.
func (k *Catalog) HasPast() (bool, error) {
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
	rc.HeartbeatTimeout, rc.ElectionTimeout = catalogHeartbeat, catalogHeartbeat
	rc.LeaderLeaseTimeout, rc.CommitTimeout = catalogLease, catalogCommit
	rc.SnapshotInterval, rc.SnapshotThreshold, rc.TrailingLogs = catalogSnapshots, catalogThreshold, catalogTrailing
	rc.NoLegacyTelemetry, rc.ShutdownOnRemove, rc.BatchApplyCh = true, false, false
	rc.Logger = newRaftLogger(c.Logger.With("group", "catalog"))
	transport := c.Mesh.Transport(catalogGroup)
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
	r, err := raft.NewRaft(rc, catalogMachine{k}, c.Store, c.Store, c.Store.Snapshots(), transport)
	if err != nil {
		return fmt.Errorf("catalog: start raft: %w", err)
	}
	k.raft.Store(r)
	return nil
}

// Close ends the group.
func (k *Catalog) Close() error {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	close(k.ending)
	r := k.raft.Load()
	if r == nil {
		return nil
	}
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
	return progressOf(r, k.config.Node)
}

// Propose commits commands in one entry and returns their results when this
// node's view holds them. Whether an attempt was lost may be unknown, so the
// commands must be ones that may be repeated.
func (k *Catalog) Propose(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	entry, err := (&logpb.CatalogEntry{Version: k.View().FSMVersion(), Now: int64(k.config.Clock()), Commands: commands}).MarshalVT()
	if err != nil {
		return nil, fmt.Errorf("encode catalog entry: %w", err)
	}
	for {
		results, index, err := k.attempt(ctx, entry)
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

// Refresh returns when this node's view holds what anybody has been told is
// committed, as far as the leader can be asked.
func (k *Catalog) Refresh(ctx context.Context) error {
	leader := k.Leader()
	switch leader {
	case "":
		return errNoCatalogLeader
	case k.config.Node:
		return nil
	}
	answer, err := k.config.Mesh.Call(ctx, leader, k.config.Kind, nil)
	if err != nil {
		return err
	}
	var reply peerpb.CatalogReply
	if err := reply.UnmarshalVT(answer); err != nil {
		return err
	}
	if !reply.Ok {
		return errNoCatalogLeader
	}
	return k.await(ctx, reply.Index)
}

// attempt proposes once, here or at the leader.
func (k *Catalog) attempt(ctx context.Context, entry []byte) ([]*logpb.CatalogResult, uint64, error) {
	leader := k.Leader()
	switch leader {
	case "":
		return nil, 0, errNoCatalogLeader
	case k.config.Node:
		return k.lead(entry)
	}
	req, err := (&peerpb.CatalogRequest{Entry: entry}).MarshalVT()
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, catalogApplyWait)
	defer cancel()
	answer, err := k.config.Mesh.Call(ctx, leader, k.config.Kind, req)
	if err != nil {
		return nil, 0, err
	}
	var reply peerpb.CatalogReply
	if err := reply.UnmarshalVT(answer); err != nil {
		return nil, 0, err
	}
	if !reply.Ok {
		return nil, 0, errors.New(reply.Error)
	}
	results := make([]*logpb.CatalogResult, len(reply.Results))
	for i, r := range reply.Results {
		results[i] = &logpb.CatalogResult{}
		if err := results[i].UnmarshalVT(r); err != nil {
			return nil, 0, err
		}
	}
	return results, reply.Index, nil
}

// lead proposes on this node and lets followers know soon.
func (k *Catalog) lead(entry []byte) ([]*logpb.CatalogResult, uint64, error) {
	if !k.Started() {
		return nil, 0, errNoCatalogLeader
	}
	if refused, err := k.admit(entry); err != nil || refused != nil {
		return refused, 0, err
	}
	f := endingWith(k.raft.Load().Apply(entry, catalogApplyWait), k.ending)
	if err := f.Error(); err != nil {
		return nil, 0, err
	}
	k.tellFollowers()
	return f.Response().([]*logpb.CatalogResult), f.Index(), nil
}

// admit looks at an entry, which may be another node's, before it enters the log.
// There every replica has to apply it, for ever. An entry with a command that is
// not admitted is answered so as a whole, and proposed not at all.
func (k *Catalog) admit(entry []byte) (refused []*logpb.CatalogResult, err error) {
	var e logpb.CatalogEntry
	if err := e.UnmarshalVT(entry); err != nil {
		return nil, fmt.Errorf("catalog entry cannot be decoded: %w", err)
	}
	if known := k.View().FSMVersion(); e.Version == 0 || e.Version > known {
		return nil, fmt.Errorf("catalog entry of version %d, the cluster has %d", e.Version, known)
	}
	for _, c := range e.Commands {
		if err := catalog.Admit(c); err != nil {
			return slices.Repeat([]*logpb.CatalogResult{catalog.Refuse(err)}, len(e.Commands)), nil
		}
	}
	return nil, nil
}

// tellFollowers commits an empty entry behind the last one: followers learn of
// a commit from what follows it, and clients wait for their view.
func (k *Catalog) tellFollowers() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.nudge || k.closed || len(k.Configuration()) == 1 {
		return
	}
	k.nudge = true
	k.done.Go(func() {
		k.mu.Lock()
		k.nudge = false
		k.mu.Unlock()
		_ = endingWith(k.raft.Load().Barrier(catalogApplyWait), k.ending).Error() // without it they learn a little later
	})
}

// await returns when this node has applied index.
func (k *Catalog) await(ctx context.Context, index uint64) error {
	stop := context.AfterFunc(ctx, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.changed.Broadcast()
	})
	defer stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.applied < index {
		if ctx.Err() != nil {
			return fmt.Errorf("catalog: wait for index %d: %w", index, ctx.Err())
		}
		k.changed.Wait()
	}
	return nil
}

// onCall proposes for another node.
func (k *Catalog) onCall(_ context.Context, _ string, req []byte) ([]byte, error) {
	var m peerpb.CatalogRequest
	if err := m.UnmarshalVT(req); err != nil {
		return nil, err
	}
	if len(m.Entry) == 0 { // see Refresh
		return (&peerpb.CatalogReply{Ok: k.Leader() == k.config.Node, Index: k.View().Index()}).MarshalVT()
	}
	results, index, err := k.lead(m.Entry)
	if err != nil {
		return (&peerpb.CatalogReply{Error: err.Error()}).MarshalVT()
	}
	reply := &peerpb.CatalogReply{Ok: true, Index: index}
	for _, r := range results {
		encoded, err := r.MarshalVT()
		if err != nil {
			return nil, err
		}
		reply.Results = append(reply.Results, encoded)
	}
	return reply.MarshalVT()
}

// catalogMachine is the catalog as raft's state machine.
type catalogMachine struct{ k *Catalog }

func (m catalogMachine) Apply(l *raft.Log) any {
	k := m.k
	var e logpb.CatalogEntry
	if err := e.UnmarshalVT(l.Data); err != nil {
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
		change.VHosts = change.VHosts || r.Changed && c.GetDeleteVhost() != nil
		change.Nodes = change.Nodes || r.Changed && (c.GetRegisterNode() != nil || c.GetAdmitNode() != nil || c.GetForgetNode() != nil || c.GetDeclareDead() != nil)
	}
	k.config.Changed(change)
	k.wake(l.Index)
	return results
}

// wake lets those go on who wait for an index.
func (k *Catalog) wake(index uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.applied = index
	k.changed.Broadcast()
}

func (m catalogMachine) Snapshot() (raft.FSMSnapshot, error) {
	state, err := m.k.machine.Snapshot().MarshalVT()
	return catalogSnapshot{state}, err
}

func (m catalogMachine) Restore(rc io.ReadCloser) error {
	defer rc.Close()
	raw, err := io.ReadAll(rc)
	if err != nil {
		return fmt.Errorf("read catalog snapshot: %w", err)
	}
	var state logpb.CatalogSnapshot
	if err := state.UnmarshalVT(raw); err != nil {
		return fmt.Errorf("decode catalog snapshot: %w", err)
	}
	m.mustSupport(catalog.SnapshotVersion(&state))
	if m.k.machine, err = catalog.Restore(&state); err != nil {
		return fmt.Errorf("restore catalog: %w", err)
	}
	m.k.view.Store(m.k.machine.View())
	m.k.config.Changed(CatalogChange{Everything: true})
	m.k.wake(m.k.machine.View().Index())
	return nil
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
	if _, err := sink.Write(s.state); err != nil {
		sink.Cancel()
		return fmt.Errorf("write catalog snapshot: %w", err)
	}
	return sink.Close()
}

func (catalogSnapshot) Release() {}

package group

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

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

// catalogApplier applies the catalog's entries to its machine, and is what raft
// takes for its state machine. After each entry it publishes a new view.
type catalogApplier struct {
	newest  uint32 // version of the machines that this program supports
	exit    func(code int)
	slog    *slog.Logger
	changed func(CatalogChange)
	applied func(view *catalog.View, index, term uint64) // after changed

	machine *catalog.Catalog // used by raft's applying goroutine only
	view    atomic.Pointer[catalog.View]

	probing sync.Mutex // of probes
	probes  probes
}

// Apply implements raft.FSM.
func (a *catalogApplier) Apply(l *raft.Log) any {
	var e logpb.CatalogEntry
	if err := logpb.Unmarshal(l.Data, &e); err != nil {
		a.fail(codeDamaged, fmt.Sprintf("catalog entry %d cannot be decoded: %v", l.Index, err))
	}
	a.mustSupport(e.Version)
	results := a.machine.Apply(l.Index, &e)
	a.mustSupport(a.machine.View().FSMVersion())
	a.publish()
	var change CatalogChange
	if !a.machine.Repeated() {
		change = changeOf(&e, results)
	}
	a.changed(change)
	a.applied(a.View(), l.Index, l.Term)
	return results
}

// changeOf says what the commands of an entry have changed, by their answers.
func changeOf(e *logpb.CatalogEntry, results []*logpb.CatalogResult) (change CatalogChange) {
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
	return change
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

// Snapshot implements raft.FSM.
func (a *catalogApplier) Snapshot() (raft.FSMSnapshot, error) {
	state, err := logpb.Marshal(a.machine.Snapshot())
	return catalogSnapshot{state}, err
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
	a.probes.answer(v.Index())
}

// View is the newest view.
func (a *catalogApplier) View() *catalog.View { return a.view.Load() }

func (a *catalogApplier) restore(state *logpb.CatalogSnapshot) (err error) {
	a.mustSupport(catalog.SnapshotVersion(state))
	if a.machine, err = catalog.Restore(state); err != nil {
		return fmt.Errorf("restore catalog: %w", err)
	}
	a.publish()
	a.changed(CatalogChange{Everything: true})
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
		a.fail(codeTooOld, needsNewer(version, newest))
	}
}

func (a *catalogApplier) fail(code int, why string) {
	a.slog.Error("node must stop", "code", code, "reason", why)
	a.exit(code)
	select {}
}

// catalogSnapshot is an encoded state.
type catalogSnapshot struct{ state []byte }

// Persist implements raft.FSMSnapshot.
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

// Release implements raft.FSMSnapshot.
func (catalogSnapshot) Release() {}

package group

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// applier is the group as raft's state machine.
type applier struct{ g *Group }

var _ raft.BatchingFSM = applier{}

// ApplyBatch performs entries and passes their effects on if this node leads.
func (a applier) ApplyBatch(logs []*raft.Log) []any {
	g := a.g
	<-g.started
	g.apply(logs)
	size, headers := 0, 0
	for _, l := range logs {
		size += len(l.Data) + len(l.Extensions)
		headers += len(l.Data) + entryOverhead
	}
	if !g.hasStopped() { // else no snapshot will cover them
		g.host.snapshots.applies(g, int64(headers))
	}
	g.applied.Add(uint64(len(logs)))
	g.entries.Add(uint64(len(logs)))
	g.bytes.Add(uint64(size))
	g.host.snapshots.touch(g)
	return make([]any, len(logs))
}

// serves reports whether effects are to leave. The caller holds g.mu.
func (g *Group) serves() bool {
	return g.leading.Load() != 0 && !g.barred() && g.order.leads()
}

// apply performs entries, and passes their effects on if this node leads.
func (g *Group) apply(logs []*raft.Log) {
	if deadline, ticked, lead := g.applyAll(logs); lead {
		defer g.contain("arm the timer")
		g.timer.applied(g, deadline, ticked)
	}
}

// applyAll performs entries. lead: their effects have been passed on. A machine
// that panics is stopped: entries that come after are stored, not applied.
func (g *Group) applyAll(logs []*raft.Log) (deadline fsm.Time, ticked, lead bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return 0, false, false
	}
	if lead = g.serves(); lead {
		g.outgoing.lock()
		defer g.outgoing.unlockAndRun(g)
	}
	var l *raft.Log
	defer func() { // first of all: nobody performs the work of a group that is quarantined
		if p := recover(); p != nil {
			g.stop(fmt.Sprintf("apply entry %d of term %d", l.Index, l.Term), p)
			lead = false
		}
	}()
	for _, l = range logs {
		if l.Type == raft.LogCommand {
			ticked = g.applyEntry(l, lead) || ticked
		}
	}
	if lead {
		g.outgoing.add(&g.effects)
	} else {
		g.freeOnly(&g.effects)
	}
	g.effects.Reset()
	return g.machine.NextDeadline(), ticked, lead
}

// freeOnly is what a follower does of effects. What a queue that has ended leaves
// may be much: that is freed where work is done. The caller holds g.mu.
func (g *Group) freeOnly(e *fsm.Effects) {
	if len(e.Released) > 0 {
		g.order.release(e.Released)
	}
	if e.Rest != nil {
		g.outgoing.lock()
		defer g.outgoing.unlockAndRun(g)
		g.outgoing.next.rest = e.Rest
	}
}

// entryOverhead is what an entry costs to apply, beside its header, in bytes of
// headers.
const entryOverhead = 64

// Apply performs one entry.
func (a applier) Apply(l *raft.Log) any { return a.ApplyBatch([]*raft.Log{l})[0] }

// applyEntry performs the commands of one entry and reports whether one of
// them was a tick. The caller holds g.mu, and the outgoing work's lock if it leads.
func (g *Group) applyEntry(l *raft.Log, lead bool) (ticked bool) {
	e := logpb.EntryFromVTPool()
	defer e.ReturnToVTPool()
	if err := e.UnmarshalVT(l.Data); err != nil {
		g.host.fail(codeDamaged, fmt.Sprintf("group %d: entry %d cannot be decoded: %v", g.spec.Group, l.Index, err))
	}
	if newest := g.host.config.Newest; e.Version > newest {
		g.host.fail(codeTooOld, fmt.Sprintf("group %d: entry %d is of version %d, this program supports up to %d", g.spec.Group, l.Index, e.Version, newest))
	}
	if lead {
		before := g.machine.Dead()
		defer func() { g.host.dead.note(g.spec.Local, before, g.machine.Dead()) }()
	}
	m := fsm.Meta{Index: l.Index, Term: l.Term, Now: fsm.Time(e.Now), Version: e.Version}
	for _, c := range e.Commands {
		m.Session = fsm.SessionFrom(c.Session)
		if c.Kind == logpb.Command_TICK {
			ticked = true
			if lead {
				g.noteLateness(m.Now)
			}
		}
		r := g.machine.Apply(m, c, &g.effects)
		if c.Kind == logpb.Command_ENQUEUE {
			m.Offset += c.Enqueue.GetSize()
		}
		if lead && c.Seq > 0 {
			g.outgoing.outcome(m.Session, c.Seq, r)
		}
	}
	return ticked
}

// noteLateness tells how late a tick is. The caller holds g.mu.
func (g *Group) noteLateness(now fsm.Time) {
	if due, what := g.machine.NextDue(); due != 0 && due <= now {
		g.host.config.Late(what, fsm.Millis(now-due))
	}
}

// Snapshot captures the machine; writing it happens elsewhere.
func (a applier) Snapshot() (_ raft.FSMSnapshot, err error) {
	g := a.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return nil, ErrStopped
	}
	defer func() {
		if p := recover(); p != nil {
			g.stop("capture a snapshot", p)
			err = ErrStopped
		}
	}()
	view := g.machine.Snapshot()
	return &snapshot{group: g, view: view, origin: g.origin, replay: g.host.snapshots.captured(g)}, nil
}

// Restore replaces the machine by a snapshot's.
//
// A machine that panics is stopped. The replica opens all the same, or goes on
// behind the snapshot: its log is whole, so others can count on its votes.
func (a applier) Restore(rc io.ReadCloser) (err error) {
	defer rc.Close()
	state, err := raftlog.ReadState(rc)
	if err != nil {
		return err
	}
	g := a.g
	g.mu.Lock()
	defer g.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			g.stop("restore a snapshot", p)
			err = nil
		}
	}()
	m := g.host.newMachine(g.spec)
	if err := m.Restore(state); errors.Is(err, queue.ErrVersion) {
		g.host.fail(codeTooOld, fmt.Sprintf("group %d: %v", g.spec.Group, err))
	} else if err != nil {
		return fmt.Errorf("restore the machine: %w", err)
	}
	g.machine, g.stopped, g.origin = m, false, g.log.Origin()
	g.host.snapshots.captured(g)
	g.log.Started(m.Live, m.Index())
	return nil
}

// liveSink is a snapshot sink that wants to know which entries hold payloads
// of live messages, and what the machine goes back to.
type liveSink interface {
	SetLive(indexes []uint64)
	SetOrigin(origin uint64)
}

type snapshot struct {
	group   *Group
	view    *queue.Snapshot
	origin  uint64
	replay  int64 // what need not be applied again once it is written, in bytes of headers
	written bool
}

// Persist writes the machine's state without bodies.
func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	err := s.persist(sink)
	if err != nil {
		sink.Cancel()
		return fmt.Errorf("write snapshot: %w", err)
	}
	err = sink.Close()
	s.written = err == nil
	return err
}

func (s *snapshot) persist(sink raft.SnapshotSink) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.group.mu.Lock()
			defer s.group.mu.Unlock()
			s.group.stop("write a snapshot", p)
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

// Release notes what has to be applied again all the same: the snapshot was not
// written. Of a machine that has failed or was replaced meanwhile nothing is.
func (s *snapshot) Release() {
	g := s.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if !s.written && s.origin == g.origin && !g.stopped {
		g.host.snapshots.applies(g, s.replay)
	}
}

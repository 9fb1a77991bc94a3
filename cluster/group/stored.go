package group

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// InspectQueue reads a queue's replica, and computes its state as if all
// entries were committed.
func InspectQueue(from *raftlog.Group, q *catalog.Queue, newest uint32) (s replica.Stored, stats queue.Stats, err error) {
	m := queue.New(q.Name, q.ID)
	m.Supports(newest)
	last, err := from.LastIndex()
	if err != nil {
		return s, stats, err
	}
	s, err = walkStored(from, m, last, math.MaxUint32)
	s.Doubt = from.Doubt()
	if s.Failed == "" {
		stats = m.Stats()
	}
	return s, stats, err
}

// walkStored has a new machine take what is stored up to an entry: the newest snapshot, and the entries behind it, none of
// which may be of a version after newest.
func walkStored(from *raftlog.Group, m *queue.Machine, to uint64, newest uint32) (replica.Stored, error) {
	var effects fsm.Effects
	return replica.WalkTo(from, to, func(r io.Reader) error {
		state, err := raftlog.ReadState(r)
		if err != nil {
			return err
		}
		return m.Restore(state)
	}, func(l *raft.Log) error {
		defer effects.Reset()
		return applyStored(m, l, newest, &effects)
	})
}

// applyStored performs one entry.
func applyStored(m *queue.Machine, l *raft.Log, newest uint32, effects *fsm.Effects) error {
	var e logpb.Entry
	if err := e.UnmarshalVT(l.Data); err != nil {
		return fmt.Errorf("entry %d cannot be decoded: %w", l.Index, err)
	}
	if e.Version > newest {
		return fmt.Errorf("entry %d has version %d", l.Index, e.Version)
	}
	for meta, c := range queue.Commands(l.Index, l.Term, &e) {
		m.Apply(meta, c, effects)
	}
	return nil
}

// copyBatch is how many entries are copied at a time.
const copyBatch = 64

// CopyQueue makes a group of one store what it is in another one, payloads
// included. What it was before is deleted.
func CopyQueue(to, from *raftlog.Store, id fsm.GroupID) error {
	src, err := from.Group(id)
	if err != nil {
		return err
	}
	if err := to.DropGroup(id); err != nil {
		return err
	}
	dst, err := to.Group(id)
	if err != nil {
		return err
	}
	next, err := copySnapshot(dst, src)
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	first, err := src.FirstIndex()
	if err != nil {
		return err
	}
	last, err := src.LastIndex()
	if err != nil {
		return err
	}
	for next = max(next, first); next <= last; {
		var logs []*raft.Log
		for ; next <= last && len(logs) < copyBatch; next++ {
			l := &raft.Log{}
			if err := src.GetLog(next, l); err != nil {
				return fmt.Errorf("entry %d: %w", next, err)
			}
			if err := src.Complete(l); err != nil {
				return err
			}
			logs = append(logs, l)
		}
		if err := dst.StoreLogs(logs); err != nil {
			return err
		}
	}
	term, err := src.GetUint64([]byte(raftlog.TermKey))
	if err != nil {
		return err
	}
	return dst.SetUint64([]byte(raftlog.TermKey), term)
}

// copySnapshot copies the newest snapshot, if there is one, and returns the
// index of the first entry behind it.
func copySnapshot(dst, src *raftlog.Group) (next uint64, err error) {
	list, err := src.Snapshots().List()
	if err != nil || len(list) == 0 {
		return 1, err
	}
	meta, r, err := src.Snapshots().Open(list[0].ID)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	sink, err := dst.Snapshots().Create(meta.Version, meta.Index, meta.Term, meta.Configuration, meta.ConfigurationIndex, nil)
	if err != nil {
		return 0, err
	}
	if _, err := io.Copy(sink, r); err != nil {
		return 0, errors.Join(err, sink.Cancel())
	}
	return meta.Index + 1, sink.Close()
}

// Replayer reads a queue's history: the newest snapshot, if there is one, then each
// entry behind it.
type Replayer interface {
	Restore(state io.Reader) error
	// Apply must not keep anything of e.
	Apply(index, term uint64, e *logpb.Entry) error
}

// ErrNoHistory is returned by Replay for a local queue, which has no log.
var ErrNoHistory = errors.New("the queue has no log")

// ReplayStored is Replay for a node that has stopped. Not all of the entries need
// have been committed.
func ReplayStored(from *raftlog.Group, to Replayer) (replica.Stored, error) {
	last, err := from.LastIndex()
	if err != nil {
		return replica.Stored{}, err
	}
	s, err := replay(from, last, to)
	s.Doubt = from.Doubt()
	return s, errors.Join(err, s.Failure())
}

func replay(from *raftlog.Group, last uint64, to Replayer) (replica.Stored, error) {
	return replica.WalkTo(from, last, func(r io.Reader) error {
		state, err := raftlog.ReadState(r)
		if err != nil {
			return err
		}
		return to.Restore(state)
	}, func(l *raft.Log) error {
		var e logpb.Entry
		if err := e.UnmarshalVT(l.Data); err != nil {
			return err
		}
		return to.Apply(l.Index, l.Term, &e)
	})
}

// index and freeze are for the probes of a queue. The caller holds mu.
func (a *applier) index() (uint64, error) {
	if a.stopped {
		return 0, ErrStopped
	}
	return a.machine.Index(), nil
}

func (a *applier) freeze() func() (string, error) {
	state := a.machine.Snapshot()
	return func() (string, error) {
		h := sha256.New()
		_, err := state.WriteTo(h)
		return fmt.Sprintf("%x", h.Sum(nil)), err
	}
}

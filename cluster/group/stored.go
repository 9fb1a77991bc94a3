package group

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// Stored is what the store of a node that has stopped holds of a group.
type Stored struct {
	Last, Term uint64 // of the last entry; 0: there is none
	// Voters are those of the newest configuration.
	Voters []string
	Doubt  string // why it may hold less than it has acknowledged; empty: it can prove that it does not
	// Failed is why the state could not be computed; empty: it was.
	Failed string
}

// Beyond reports whether a log holds everything that counts as committed if
// both it and another one are to be believed: raft elects the one that does.
func (s *Stored) Beyond(other *Stored) bool {
	return s.Term > other.Term || s.Term == other.Term && s.Last > other.Last
}

// disk is what raft keeps a group in.
type disk interface {
	raft.LogStore
	raft.StableStore
	Snapshots() raft.SnapshotStore
}

// walk reads a group: its newest snapshot, then each entry behind it. Both
// functions may fail; the entries are read to their end all the same, for the
// configurations among them.
func walk(from disk, restore func(io.Reader) error, apply func(*raft.Log) error) (s Stored, err error) {
	last, err := from.LastIndex()
	if err != nil {
		return s, err
	}
	return walkTo(from, last, restore, apply)
}

// walkTo is walk up to an entry.
func walkTo(from disk, last uint64, restore func(io.Reader) error, apply func(*raft.Log) error) (s Stored, err error) {
	failed := func(err error) {
		if err != nil && s.Failed == "" {
			s.Failed = err.Error()
		}
	}
	list, err := from.Snapshots().List()
	if err != nil {
		return s, err
	}
	if len(list) > 0 {
		meta, r, err := from.Snapshots().Open(list[0].ID)
		if err != nil {
			return s, err
		}
		failed(contained(func() error { return restore(r) }))
		r.Close()
		s.Last, s.Term, s.Voters = meta.Index, meta.Term, voterNames(meta.Configuration)
	}
	for index := s.Last + 1; index <= last; index++ {
		var l raft.Log
		if err := from.GetLog(index, &l); errors.Is(err, raft.ErrLogNotFound) && s.Last == 0 {
			continue // it begins later
		} else if err != nil {
			return s, fmt.Errorf("entry %d: %w", index, err)
		}
		s.Last, s.Term = l.Index, l.Term
		switch {
		case l.Type == raft.LogConfiguration:
			s.Voters = voterNames(raft.DecodeConfiguration(l.Data))
		case l.Type == raft.LogCommand && s.Failed == "":
			failed(contained(func() error { return apply(&l) }))
		}
	}
	return s, nil
}

// contained runs f, and makes a panic an error: what cannot be computed can be
// reported all the same.
func contained(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}

func voterNames(c raft.Configuration) []string {
	var names []string
	for _, m := range c.Servers {
		if m.Suffrage == raft.Voter {
			names = append(names, string(m.ID))
		}
	}
	return names
}

// InspectQueue reads a queue's replica, and computes its state as if all
// entries were committed.
func InspectQueue(from *raftlog.Group, q *catalog.Queue, newest uint32) (s Stored, stats queue.Stats, err error) {
	m := queue.New(q.Name, q.ID)
	m.Supports(newest)
	var effects fsm.Effects
	s, err = walk(from, func(r io.Reader) error {
		state, err := raftlog.ReadState(r)
		if err != nil {
			return err
		}
		return m.Restore(state)
	}, func(l *raft.Log) error {
		defer effects.Reset()
		return applyStored(m, l, &effects)
	})
	s.Doubt = from.Doubt()
	if s.Failed == "" {
		stats = m.Stats()
	}
	return s, stats, err
}

// applyStored performs one entry.
func applyStored(m *queue.Machine, l *raft.Log, effects *fsm.Effects) error {
	var e logpb.Entry
	if err := e.UnmarshalVT(l.Data); err != nil {
		return fmt.Errorf("entry %d cannot be decoded: %w", l.Index, err)
	}
	for meta, c := range queue.Commands(l.Index, l.Term, &e) {
		m.Apply(meta, c, effects)
	}
	return nil
}

// InspectCatalog reads the catalog of a node, as if all entries were committed.
func InspectCatalog(from *raftlog.Catalog) (s Stored, view *catalog.View, err error) {
	c := &catalog.Catalog{}
	s, err = walk(from, func(stream io.Reader) error {
		state, err := readCatalogSnapshot(stream)
		if err != nil {
			return err
		}
		c, err = catalog.Restore(state)
		return err
	}, func(l *raft.Log) error {
		var e logpb.CatalogEntry
		if err := logpb.Unmarshal(l.Data, &e); err != nil {
			return fmt.Errorf("entry %d cannot be decoded: %w", l.Index, err)
		}
		c.Apply(l.Index, &e)
		return nil
	})
	s.Doubt = from.Doubt()
	if err == nil && s.Failed != "" {
		err = errors.New(s.Failed)
	}
	if err != nil {
		return s, nil, err
	}
	return s, c.View(), nil
}

// TakeOver makes a node the only member of a group, by an entry in its log: all
// entries that are there count as committed then, whether or not a majority ever
// had them. Commands follow it. The term is one that nobody has been in, as far
// as this log knows: none of the former members can have such entries.
func TakeOver(group disk, at *Stored, node string, commands ...[]byte) (last uint64, err error) {
	term, err := group.GetUint64([]byte(raftlog.TermKey))
	if err != nil {
		return 0, err
	}
	term = max(term, at.Term) + 1
	alone := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(node), Address: raft.ServerAddress(node)}}}
	logs := []*raft.Log{{Index: at.Last + 1, Term: term, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(alone)}}
	for _, c := range commands {
		logs = append(logs, &raft.Log{Index: at.Last + 1 + uint64(len(logs)), Term: term, Type: raft.LogCommand, Data: c})
	}
	if err := group.SetUint64([]byte(raftlog.TermKey), term); err != nil {
		return 0, err
	}
	return at.Last + uint64(len(logs)), group.StoreLogs(logs)
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
func ReplayStored(from *raftlog.Group, to Replayer) (Stored, error) {
	last, err := from.LastIndex()
	if err != nil {
		return Stored{}, err
	}
	s, err := replay(from, last, to)
	s.Doubt = from.Doubt()
	return s, errors.Join(err, s.failure())
}

func (s *Stored) failure() error {
	if s.Failed == "" {
		return nil
	}
	return errors.New(s.Failed)
}

func replay(from *raftlog.Group, last uint64, to Replayer) (Stored, error) {
	return walkTo(from, last, func(r io.Reader) error {
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

// Errors of HashAt.
var (
	ErrPassed     = errors.New("the replica has already applied later entries")
	ErrNotReached = errors.New("the replica did not reach that entry in time")
)

// probe waits for the state of a machine once it has applied an entry.
type probe struct {
	at    uint64                 // index of an entry; the first one from there on counts
	index uint64                 // of the entry that it was
	hash  func() (string, error) // of the state then
	done  chan struct{}
}

// probes wait for entries of one machine.
type probes struct {
	lock   sync.Locker                   // no entry is applied, and no probe answered, while it is held
	index  func() (uint64, error)        // of the last entry that was applied; the lock is held
	freeze func() func() (string, error) // returns what hashes the state as it is; the lock is held

	waiting []*probe
}

// hashAt implements HashAt of a group and of the catalog.
func (ps *probes) hashAt(at uint64, wait time.Duration, ending <-chan struct{}) (index uint64, hash string, err error) {
	p := &probe{at: at, done: make(chan struct{})}
	if err := ps.await(p); err != nil {
		return 0, "", err
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		ps.abandon(p)
		return 0, "", ErrNotReached
	case <-ending:
		return 0, "", ErrNotReached
	}
	hash, err = p.hash()
	return p.index, hash, err
}

// await makes p wait, or ends it at once.
func (ps *probes) await(p *probe) error {
	ps.lock.Lock()
	defer ps.lock.Unlock()
	index, err := ps.index()
	switch {
	case err != nil:
		return err
	case p.at != 0 && p.at < index:
		return ErrPassed
	case p.at == 0 || p.at == index:
		ps.end(p, index)
	default:
		ps.waiting = append(ps.waiting, p)
	}
	return nil
}

func (ps *probes) end(p *probe, index uint64) {
	p.index, p.hash = index, ps.freeze()
	close(p.done)
}

// abandon removes p. The caller must not wait for it any more.
func (ps *probes) abandon(p *probe) {
	ps.lock.Lock()
	defer ps.lock.Unlock()
	ps.waiting = slices.DeleteFunc(ps.waiting, func(x *probe) bool { return x == p })
}

// answer ends the probes that wait for an entry up to the one that was applied last, whose index it
// is. The caller holds the lock.
func (ps *probes) answer(index uint64) {
	ps.waiting = slices.DeleteFunc(ps.waiting, func(p *probe) bool {
		if p.at > index {
			return false
		}
		ps.end(p, index)
		return true
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

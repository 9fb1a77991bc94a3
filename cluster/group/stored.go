package group

import (
	"errors"
	"fmt"
	"io"

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

package replica

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
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

// Failure is Failed as an error.
func (s *Stored) Failure() error {
	if s.Failed == "" {
		return nil
	}
	return errors.New(s.Failed)
}

// Disk is what raft keeps a group in.
type Disk interface {
	raft.LogStore
	raft.StableStore
	Snapshots() raft.SnapshotStore
}

// Walk reads a group: its newest snapshot, then each entry behind it. Both
// functions may fail; the entries are read to their end all the same, for the
// configurations among them.
func Walk(from Disk, restore func(io.Reader) error, apply func(*raft.Log) error) (s Stored, err error) {
	last, err := from.LastIndex()
	if err != nil {
		return s, err
	}
	return WalkTo(from, last, restore, apply)
}

// WalkTo is walk up to an entry.
func WalkTo(from Disk, last uint64, restore func(io.Reader) error, apply func(*raft.Log) error) (s Stored, err error) {
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

// TakeOver makes a node the only member of a group, by an entry in its log: all
// entries that are there count as committed then, whether or not a majority ever
// had them. Commands follow it. The term is one that nobody has been in, as far
// as this log knows: none of the former members can have such entries.
func TakeOver(group Disk, at *Stored, node string, commands ...[]byte) (last uint64, err error) {
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

package peer

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// What raft would take, and must not be given. It stores the term of whoever
// asks for its vote, decodes configurations and panics on one that is none, and
// writes entries at whatever index they have.
const (
	// maxTermJump is by how much a term may lie above the one that the group is
	// in: an election each second for more than a hundred years.
	maxTermJump = 1 << 32
	// maxTerm and maxIndex are what no group comes to.
	maxTerm  = 1 << 62
	maxIndex = 1 << 62
	// maxEntries is above what raft puts into a request: 64 by default.
	maxEntries = 256
	// maxConfiguration bounds raft's encoding of the members of a group, which
	// is decoded by recursion.
	maxConfiguration = 64 << 10
	maxMembers       = 1024
)

var (
	// errFar refuses a term that lies too far above the present one.
	errFar = errors.New("peer: a term that is too far ahead")
	// errEntry refuses an entry that the group could not apply.
	errEntry = errors.New("peer: an entry that cannot be applied")
)

// Validator says what a group takes from other nodes. It is called on the goroutine
// that receives, and must not block.
type Validator interface {
	// Term is the one that the member is in, and Stands reports whether it stands for election there.
	Term() uint64
	Stands() bool
	// Entry says why a command, which the leader has committed or not yet, could not be applied;
	// nil: it can.
	Entry(l *raft.Log, committed bool) error
}

// vetCommand says why a request makes no sense, whatever state its group is in;
// nil: it does. Who sends such a one is not a node of this program.
func vetCommand(cmd any) error {
	switch r := cmd.(type) {
	case *raft.AppendEntriesRequest:
		return vetAppend(r)
	case *raft.RequestVoteRequest:
		return vetPosition(r.Term, r.LastLogIndex, r.LastLogTerm)
	case *raft.RequestPreVoteRequest:
		return vetPosition(r.Term, r.LastLogIndex, r.LastLogTerm)
	case *raft.InstallSnapshotRequest:
		return vetSnapshot(r)
	}
	return nil
}

// vetPosition is about a term and a log position, which cannot be of a later term.
func vetPosition(term, index, of uint64) error {
	if term >= maxTerm || index >= maxIndex || of > term {
		return fmt.Errorf("%w: term %d, entry %d of term %d", errProtocol, term, index, of)
	}
	return nil
}

func vetAppend(r *raft.AppendEntriesRequest) error {
	if len(r.Entries) > maxEntries {
		return fmt.Errorf("%w: %d entries at once", errTooMuch, len(r.Entries))
	}
	if err := vetPosition(r.Term, r.PrevLogEntry, r.PrevLogTerm); err != nil {
		return err
	}
	if r.LeaderCommitIndex >= maxIndex {
		return fmt.Errorf("%w: entries committed up to %d", errProtocol, r.LeaderCommitIndex)
	}
	index, term := r.PrevLogEntry, r.PrevLogTerm
	for _, l := range r.Entries {
		if index++; l.Index != index || l.Term < term || l.Term > r.Term {
			return fmt.Errorf("%w: entry %d of term %d where entry %d is next, term %d to %d", errProtocol, l.Index, l.Term, index, term, r.Term)
		}
		if err := vetType(l); err != nil {
			return err
		}
		term = l.Term
	}
	return nil
}

func vetType(l *raft.Log) error {
	switch l.Type {
	case raft.LogCommand, raft.LogNoop, raft.LogBarrier:
		return nil
	case raft.LogConfiguration:
		return vetConfiguration(l.Data)
	}
	return fmt.Errorf("%w: an entry of type %d", errProtocol, l.Type)
}

func vetSnapshot(r *raft.InstallSnapshotRequest) error {
	if err := vetPosition(r.Term, r.LastLogIndex, r.LastLogTerm); err != nil {
		return err
	}
	if r.LastLogIndex == 0 || r.ConfigurationIndex > r.LastLogIndex || r.SnapshotVersion != raft.SnapshotVersionMax {
		return fmt.Errorf("%w: a snapshot up to entry %d with members of entry %d, version %d", errProtocol, r.LastLogIndex, r.ConfigurationIndex, r.SnapshotVersion)
	}
	return vetConfiguration(r.Configuration)
}

// vetConfiguration says why bytes are no configuration that a group can have.
func vetConfiguration(p []byte) (err error) {
	if len(p) > maxConfiguration {
		return fmt.Errorf("%w: a configuration of %d bytes", errTooMuch, len(p))
	}
	defer func() {
		if recover() != nil { // that is how raft says so
			err = fmt.Errorf("%w: a configuration that cannot be decoded", errProtocol)
		}
	}()
	c := raft.DecodeConfiguration(p)
	names, voters := map[raft.ServerID]bool{}, 0
	for _, s := range c.Servers {
		if s.ID == "" || string(s.ID) != string(s.Address) || names[s.ID] || s.Suffrage < raft.Voter || s.Suffrage > raft.Staging {
			return fmt.Errorf("%w: a configuration with member %q at %q", errProtocol, s.ID, s.Address)
		}
		names[s.ID] = true
		if s.Suffrage == raft.Voter {
			voters++
		}
	}
	if voters == 0 || len(c.Servers) > maxMembers {
		return fmt.Errorf("%w: a configuration with %d voters of %d members", errProtocol, voters, len(c.Servers))
	}
	return nil
}

// termOf is the term that a request would take its group to; 0: none.
func termOf(cmd any) uint64 {
	switch r := cmd.(type) {
	case *raft.AppendEntriesRequest:
		return r.Term
	case *raft.RequestVoteRequest:
		return r.Term
	case *raft.RequestPreVoteRequest:
		return r.Term
	case *raft.InstallSnapshotRequest:
		return r.Term
	}
	return 0
}

// validate says why a group does not take a request that makes sense as such; a nil
// validator takes all of them.
func validate(v Validator, cmd any) error {
	if v == nil {
		return nil
	}
	if term := termOf(cmd); term > maxTermJump {
		if now := v.Term(); term > now+maxTermJump {
			return fmt.Errorf("%w: %d, the group is in %d", errFar, term, now)
		}
	}
	if a, ok := cmd.(*raft.AppendEntriesRequest); ok {
		for _, l := range a.Entries {
			if l.Type != raft.LogCommand {
				continue
			}
			if err := v.Entry(l, l.Index <= a.LeaderCommitIndex); err != nil {
				return fmt.Errorf("%w: entry %d: %w", errEntry, l.Index, err)
			}
		}
	}
	return nil
}

// vetAnswer says why an answer to a request of a term makes no sense; nil: it
// does. Raft stores the terms of those who refuse it their vote.
func vetAnswer(response any, requestTerm uint64) error {
	_, term := answerBody(response)
	if r, ok := response.(*raft.RequestPreVoteResponse); ok {
		term = r.Term
	}
	if term >= maxTerm || term > requestTerm+maxTermJump {
		return fmt.Errorf("%w: %d in the answer to a request of term %d", errFar, term, requestTerm)
	}
	return nil
}

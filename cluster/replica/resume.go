package replica

import (
	"bytes"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
)

// Resumption is where raft goes on that has run in this process before, rather than with what is on disk.
type Resumption struct {
	// Leads: it led in Term until it ended, and leads in it again, without a vote: no entry of the term exists that
	// is not in the log.
	Leads bool
	// Serves: it needs nobody to serve again, so its group says with what it begins, see Replica.Begin.
	Serves bool
	Term   uint64 // the stored one
	// At is the last entry that the machine has, and Members the configuration up to there, of the entry MembersAt.
	At        Position
	Members   raft.Configuration
	MembersAt uint64

	starting atomic.Bool   // NewRaft has not returned
	started  chan struct{} // closed when it has, and the replica knows its raft
}

// resume runs raft where it was. A leader stands in the term that it has led in, which all members let it.
func (r *Replica) resume(o *Opening, check *entryCheck) error {
	of, t, stable := o.Resumes, r.transport, r.stable()
	of.started = make(chan struct{})
	if of.Leads && of.Serves {
		r.first = newFirst(of, r)
		o.Machine = firstMachine{o.Machine.(raft.BatchingFSM), r.first}
	}
	if of.Leads {
		t, stable = resumedLinks{t, of, r.first}, resumedTerm{stable, of}
	}
	of.starting.Store(true)
	defer func() {
		of.starting.Store(false)
		close(of.started)
	}()
	o.Config.NoSnapshotRestoreOnStart = true
	return r.run(o, check, stable, resumedSnapshots{r.config.Log.Snapshots(), of}, o.Transport(t))
}

// resumedSnapshots shows raft one snapshot while it starts: the machine as it is.
type resumedSnapshots struct {
	raft.SnapshotStore
	of *Resumption
}

// List implements raft.SnapshotStore.
func (s resumedSnapshots) List() ([]*raft.SnapshotMeta, error) {
	if !s.of.starting.Load() {
		return s.SnapshotStore.List()
	}
	return []*raft.SnapshotMeta{{
		Version: raft.SnapshotVersionMax, ID: "asleep", Index: s.of.At.Index, Term: s.of.At.Term,
		Configuration: s.of.Members, ConfigurationIndex: s.of.MembersAt,
	}}, nil
}

// Open implements raft.SnapshotStore.
func (s resumedSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	return s.SnapshotStore.Open(id)
}

// resumedTerm shows raft the term before that of a leader until it stands for election in it. What it stores then
// is what is stored.
type resumedTerm struct {
	raft.StableStore
	of *Resumption
}

// GetUint64 implements raft.StableStore.
func (s resumedTerm) GetUint64(key []byte) (uint64, error) {
	if s.of.starting.Load() && string(key) == raftlog.TermKey {
		return s.of.Term - 1, nil
	}
	return s.StableStore.GetUint64(key)
}

// SetUint64 implements raft.StableStore.
func (s resumedTerm) SetUint64(key []byte, value uint64) error {
	if have, err := s.StableStore.GetUint64(key); err == nil && (have == value || string(key) == raftlog.TermKey && value < have) {
		return nil
	}
	return s.StableStore.SetUint64(key, value)
}

// Set implements raft.StableStore.
func (s resumedTerm) Set(key, value []byte) error {
	if have, err := s.StableStore.Get(key); err == nil && bytes.Equal(have, value) && s.votedFor() {
		return nil
	}
	return s.StableStore.Set(key, value)
}

// votedFor reports whether the stored vote is of the leader's term.
func (s resumedTerm) votedFor() bool {
	term, err := s.StableStore.GetUint64([]byte(raftlog.VoteTermKey))
	return err == nil && term == s.of.Term
}

// resumedLinks gives a leader the votes of the other members in its own term: they have made it the leader. And it sends
// them what the leader begins with.
type resumedLinks struct {
	Transport
	of    *Resumption
	first *first // nil: raft begins by itself
}

// AppendEntries implements raft.Transport.
func (v resumedLinks) AppendEntries(id raft.ServerID, addr raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if v.first != nil {
		v.first.join(args)
	}
	return v.Transport.AppendEntries(id, addr, args, resp)
}

// AppendEntriesPipeline implements raft.Transport.
func (v resumedLinks) AppendEntriesPipeline(id raft.ServerID, addr raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := v.Transport.AppendEntriesPipeline(id, addr)
	if v.first == nil || err != nil {
		return p, err
	}
	return &firstPipeline{AppendPipeline: p, first: v.first}, nil
}

// RequestVote implements raft.Transport.
func (v resumedLinks) RequestVote(id raft.ServerID, addr raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if args.Term == v.of.Term {
		<-v.of.started // a leader replicates
		*resp = raft.RequestVoteResponse{RPCHeader: args.RPCHeader, Term: args.Term, Granted: true}
		return nil
	}
	return v.Transport.RequestVote(id, addr, args, resp)
}

package raftlog

import (
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// syncCount counts the syncs of Pebble's log and of the ledger.
type syncCount struct{ log, ledger atomic.Int64 }

func (c *syncCount) MaybeError(op errorfs.Op) error {
	switch {
	case !isSync(op):
	case strings.HasSuffix(op.Path, ".log"):
		c.log.Add(1)
	case strings.Contains(op.Path, ledgerNamePrefix):
		c.ledger.Add(1)
	}
	return nil
}

func (c *syncCount) String() string { return "(count)" }

// BenchmarkVote is what an election asks of the disk of a candidate, or of a voter, alone: a term, a vote, and the
// wait until they are durable. All of its syncs of one file come one after the other.
func BenchmarkVote(b *testing.B) {
	count := &syncCount{}
	s := mustOpen(b, errorfs.Wrap(vfs.Default, count), b.TempDir()+"/db")
	g := mustGroup(b, s, 1)
	g.Overlap()
	must(b, g.StoreLog(configLog(1, 1, "a", "b", "c")))
	log, ledger := count.log.Load(), count.ledger.Load()
	b.ReportAllocs()
	b.ResetTimer()
	for term := range uint64(b.N) {
		must(b, g.SetUint64([]byte(TermKey), term+2))
		must(b, g.SetUint64([]byte(VoteTermKey), term+2))
		must(b, g.Set([]byte(VotedForKey), []byte("candidate "+strconv.FormatUint(term, 10))))
		g.awaitDurable()
	}
	b.StopTimer()
	b.ReportMetric(float64(count.log.Load()-log)/float64(b.N), "syncs/op")
	b.ReportMetric(float64(count.ledger.Load()-ledger)/float64(b.N), "ledger-syncs/op")
	must(b, s.Close())
}

// BenchmarkVotes is what a node's death asks of the disk of a voter: a vote of each of 3,334 groups that are not loaded.
func BenchmarkVotes(b *testing.B) {
	s, err := Open(b.TempDir()+"/db", Options{})
	must(b, err)
	ballots := make([]Ballot, 3334)
	for i := range ballots {
		id := fsm.GroupID(i + 1)
		g := mustGroup(b, s, id)
		g.Overlap()
		g.voters.count = 2 // StoreLog need not wait
		must(b, g.StoreLog(&raft.Log{Index: 1, Term: 1}))
		ballots[i] = Ballot{Group: id, Term: 1, Index: 1, IndexTerm: 1}
	}
	for _, x := range ballots {
		mustGroup(b, s, x.Group).awaitDurable()
		s.Unload(x.Group)
	}
	used := cpu()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		for i := range ballots {
			ballots[i].Term++
		}
		if slices.Contains(s.Vote("n1", ballots), false) {
			b.Fatal("a group does not vote")
		}
	}
	b.StopTimer()
	b.ReportMetric(float64((cpu()-used).Microseconds())/float64(b.N)/float64(len(ballots)), "cpu-µs/vote")
	must(b, s.Close())
}

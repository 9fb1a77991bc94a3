package raftlog

import (
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
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

package raftlog

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

// Blocks of tables that have been read once are read from memory, whatever memtables there are: who starts
// reads the header of each entry by itself, and many of them are in one block.
func TestBlocksAreCached(t *testing.T) {
	o := testOptions(t, vfs.NewMem())
	o.CacheBytes, o.MemTableBytes = 1, blockCacheBytes
	s, err := Open("db", o)
	must(t, err)
	g := mustGroup(t, s, 1)
	const small, large = 1000, 600
	mustStore(t, g, 1, small, 1)
	for i := range uint64(large) { // until memtables have their full size
		must(t, g.StoreLog(&raft.Log{Index: small + i + 1, Term: 1, Data: make([]byte, 64<<10)}))
	}
	must(t, s.db.Flush())
	// A compaction reads blocks, too, which would be counted below.
	must(t, s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false))
	before := s.db.Metrics().BlockCache
	for i := range uint64(small) {
		var l raft.Log
		must(t, g.GetLog(i+1, &l))
	}
	after := s.db.Metrics().BlockCache
	if read, found := after.Misses-before.Misses, after.Hits-before.Hits; found < small || read > small/10 {
		t.Errorf("%d blocks were read, and %d found in memory", read, found)
	}
	must(t, s.Close())
}

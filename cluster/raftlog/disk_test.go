package raftlog

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// sizedOptions are those of a store on a real disk, and how many entries of 10 KB it is to take: in a
// short run both are a fifth. QUORATE_DISK_ENTRIES sets the number of entries.
func sizedOptions(t *testing.T) (o Options, entries uint64) {
	part := 1
	if testing.Short() {
		part = 5
	}
	o = testOptions(t, nil)
	o.MemTableBytes = 8 << 20 / int64(part)
	return o, uint64(envOr("QUORATE_DISK_ENTRIES", 10000/part))
}

// TestOnePinnedEntryDoesNotPinTheLog writes much more than it keeps: of all
// entries one stays live. The disk must hold little more than that, and the
// entry must stay readable.
func TestOnePinnedEntryDoesNotPinTheLog(t *testing.T) {
	const size, batch, every = 10 << 10, 50, 500
	o, entries := sizedOptions(t)
	dir := t.TempDir()
	s, err := Open(dir, o)
	must(t, err)
	g := mustGroup(t, s, 1)
	payload := make([]byte, size)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(payload)
	const pinned = 777
	peak := uint64(0)
	for from := uint64(1); from <= entries; from += batch {
		var logs []*raft.Log
		var gone []uint64
		for i := from; i < from+batch; i++ {
			p := bytes.Clone(payload)
			p[0], p[1] = byte(i), byte(i>>8)
			logs = append(logs, &raft.Log{Index: i, Term: 1, Data: []byte("header"), Extensions: p})
			if i != pinned {
				gone = append(gone, i)
			}
		}
		must(t, g.StoreLogs(logs))
		g.Release(gone)
		if last := from + batch - 1; last%every == 0 {
			mustSave(t, g, last, 1, []byte("state"), pinned)
			first, err := g.FirstIndex()
			must(t, err)
			must(t, g.DeleteRange(first, last-64))
			peak = max(peak, s.Metrics().DiskBytes)
		}
	}
	check := func() {
		t.Helper()
		p, err := g.Payload(fsm.Ref{Index: pinned, Size: size})
		must(t, err)
		if len(p) != size || p[0] != pinned&0xff || p[1] != pinned>>8 || !bytes.Equal(p[2:], payload[2:]) {
			t.Error("the pinned payload differs")
		}
	}
	forgetCache(g)
	check()
	must(t, s.Close())
	s, err = Open(dir, o)
	must(t, err)
	g = mustGroup(t, s, 1)
	check()
	must(t, s.db.Flush())
	m := s.Metrics()
	must(t, s.Close())
	onDisk := dirBytes(t, dir)
	t.Logf("%d MB written to the log, at most %d MB on disk, %d KB in the end", entries*size>>20, peak>>20, onDisk>>10)
	// Write-ahead logs of the memtables, recycled ones, and what waits for compaction.
	if limit := uint64(15 * o.MemTableBytes); peak > limit {
		t.Errorf("%d MB on disk, want at most %d", peak>>20, limit>>20)
	}
	if m.DiskBytes > uint64(6*o.MemTableBytes) {
		t.Errorf("%d bytes on disk in the end", m.DiskBytes)
	}
}

func dirBytes(t *testing.T, dir string) (n int64) {
	t.Helper()
	names, err := vfs.Default.List(dir)
	must(t, err)
	for _, name := range names {
		st, err := vfs.Default.Stat(vfs.Default.PathJoin(dir, name))
		must(t, err)
		n += st.Size()
	}
	return n
}

// TestBacklogGivesItsDiskBack truncates a log whose messages are all live, and
// then settles them a few at a time, while little else is written.
func TestBacklogGivesItsDiskBack(t *testing.T) {
	const size, batch = 10 << 10, 50
	o, entries := sizedOptions(t)
	traffic := entries / 5
	s, err := Open(t.TempDir(), o)
	must(t, err)
	defer func() { must(t, s.Close()) }()
	g := mustGroup(t, s, 1)
	for from := uint64(1); from <= entries; from += batch {
		var logs []*raft.Log
		for i := from; i < from+batch; i++ {
			logs = append(logs, &raft.Log{Index: i, Term: 1, Data: []byte("header"), Extensions: make([]byte, size)})
		}
		must(t, g.StoreLogs(logs))
	}
	must(t, g.DeleteRange(1, entries-1))
	full := s.Metrics().DiskBytes
	if full < entries*size {
		t.Fatalf("a backlog of %d bytes is in %d", entries*size, full)
	}
	for from := uint64(1); from < entries; from += 5 {
		g.Release([]uint64{from, from + 1, from + 2, from + 3, from + 4})
	}
	if n := g.LiveBytes(); n != 0 && n != size {
		t.Errorf("%d live bytes", n)
	}
	other := mustGroup(t, s, 2)
	for i := uint64(1); i <= traffic; i++ { // other traffic
		must(t, other.StoreLog(&raft.Log{Index: i, Term: 1, Data: make([]byte, 100), Extensions: make([]byte, 12<<10)}))
	}
	limit := traffic*13<<10 + 8*uint64(o.MemTableBytes)
	tick, patience := time.NewTicker(20*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	left := s.Metrics().DiskBytes
wait: // for compactions, which run beside the traffic
	for i := traffic + 1; left > limit; i++ {
		must(t, other.StoreLog(&raft.Log{Index: i, Term: 1, Data: make([]byte, 100)}))
		select {
		case <-tick.C:
		case <-patience:
			break wait
		}
		left = s.Metrics().DiskBytes
	}
	t.Logf("%d MB, then %d MB", full>>20, left>>20)
	if left > limit {
		t.Errorf("%d MB are left on disk, want at most %d", left>>20, limit>>20)
	}
}

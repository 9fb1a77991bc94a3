package raftlog

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

func TestTruncationKeepsLivePayloads(t *testing.T) {
	for _, c := range []struct {
		name    string
		entries uint64
		dead    func(i uint64) bool
	}{
		{"few", 20, func(i uint64) bool { return i != 7 && i != 8 }},
		{"all dead", 500, func(uint64) bool { return true }},
		{"none dead", 500, func(uint64) bool { return false }},
		{"one in the middle of many", 500, func(i uint64) bool { return i != 251 }},
		{"first and last of many", 500, func(i uint64) bool { return i != 1 && i != 499 }},
		{"every other", 500, func(i uint64) bool { return i%2 == 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := vfs.NewMem()
			g := mustGroup(t, mustOpen(t, fs, "db"), 1)
			mustStore(t, g, 1, c.entries+10, 1)
			var dead, live, pinned []uint64
			for i := uint64(1); i <= c.entries+10; i++ {
				switch {
				case i <= c.entries && c.dead(i):
					dead = append(dead, i)
				case i%5 != 0:
					live = append(live, i)
					if i <= c.entries {
						pinned = append(pinned, i)
					}
				}
			}
			g.Release(dead)
			must(t, g.DeleteRange(1, c.entries))
			check := func() {
				t.Helper()
				mustBounds(t, g, c.entries+1, c.entries+10)
				mustPayload(t, g, 1, live...)
				mustNoPayload(t, g, dead...)
				mustMissing(t, g, 1, c.entries)
			}
			check()
			g = reopen(t, fs, g)
			check()
			g.Release(pinned)
			g.Release(pinned)
			mustNoPayload(t, g, pinned...)
			mustRecords(t, g, kindPayload, 8)
			mustRecords(t, g, kindPin, 0)
			mustRecords(t, g, kindHeader, 10)
			g = reopen(t, fs, g)
			mustNoPayload(t, g, pinned...)
			must(t, g.s.Close())
		})
	}
}

// mustRecords checks how many records of a kind a group has on disk.
func mustRecords(t testing.TB, g *Group, k kind, want int) {
	t.Helper()
	n, err := countRecords(g, k)
	must(t, err)
	if n != want {
		t.Errorf("%d records of kind %#x, want %d", n, k, want)
	}
}

// Also when nothing follows the snapshot, what is deleted behind it keeps its
// live payloads, and the log's end stays acknowledged.
func TestWholeLogBehindSnapshot(t *testing.T) {
	fs := vfs.NewMem()
	g := mustGroup(t, mustOpen(t, fs, "db"), 1)
	mustStore(t, g, 1, 7, 2)
	mustSave(t, g, 7, 2, []byte("state"), 1, 2, 3, 4, 6, 7)
	must(t, g.DeleteRange(1, 7))
	for range 2 {
		forgetCache(g)
		mustBounds(t, g, 0, 0)
		mustPayload(t, g, 2, 1, 2, 3, 4, 6, 7)
		if r := g.place.get(); r.index != 7 || r.indexTerm != 2 {
			t.Errorf("the ledger has entry %d of term %d", r.index, r.indexTerm)
		}
		g = reopen(t, fs, g)
		mustDoubt(t, g, "")
	}
	must(t, g.s.Close())
}

func TestReleaseOrderDoesNotMatter(t *testing.T) {
	g := newGroup(t)
	mustStore(t, g, 1, 400, 1)
	must(t, g.DeleteRange(1, 390))
	var all []uint64
	for i := uint64(390); i >= 1; i-- {
		if i != 203 {
			all = append(all, i, i)
		}
	}
	g.Release(append(all, 0, 100000))
	mustPayload(t, g, 1, 203)
	mustRecords(t, g, kindPin, 1)
	mustRecords(t, g, kindPayload, 9)
}

func TestStartedFreesWhatACrashBroughtBack(t *testing.T) {
	fs := vfs.NewMem()
	g := mustGroup(t, mustOpen(t, fs, "db"), 1)
	mustStore(t, g, 1, 30, 1)
	must(t, g.DeleteRange(1, 20))
	g = reopen(t, fs, g) // nothing was released: as if the releases were lost
	live := map[uint64]bool{4: true, 19: true, 23: true}
	g.Started(func(i uint64) bool { return live[i] }, 24)
	mustPayload(t, g, 1, 4, 19, 23, 26, 27, 28, 29)
	mustNoPayload(t, g, 1, 2, 3, 18)
	must(t, g.DeleteRange(21, 29))
	mustNoPayload(t, g, 21, 22, 24)
	mustPayload(t, g, 1, 4, 19, 23, 26, 27, 28, 29)
	must(t, g.s.Close())
}

func TestSetLiveIsAuthoritative(t *testing.T) {
	g := newGroup(t)
	mustStore(t, g, 1, 40, 1)
	must(t, g.DeleteRange(1, 10))
	// Nobody released the others, but they may still be read.
	mustSave(t, g, 30, 1, []byte("state"), 3, 12, 29)
	must(t, g.DeleteRange(11, 20))
	forgetCache(g)
	mustPayload(t, g, 1, 1, 2, 3, 11, 12, 28, 29)
	g.Release([]uint64{12})
	mustSave(t, g, 35, 1, []byte("state"), 3, 29)
	must(t, g.DeleteRange(21, 30))
	mustNoPayload(t, g, 12)
	mustPayload(t, g, 1, 3, 29, 31, 32, 39)
	mustNoPayload(t, g, 1, 2, 11, 28)
	mustRecords(t, g, kindPayload, 2+8)
}

func TestReclaimable(t *testing.T) {
	s, err := Open("db", func() Options {
		o := testOptions(t, vfs.NewMem())
		o.TrailingLogs = 4
		return o
	}())
	must(t, err)
	defer s.Close()
	g, other := mustGroup(t, s, 1), mustGroup(t, s, 2)
	sizes := func(logs []*raft.Log, dead func(uint64) bool) (n int64) {
		for _, l := range logs {
			n += int64(headerSize(l))
			if dead(l.Index) {
				n += int64(len(l.Extensions))
			}
		}
		return n
	}
	want := func(what string, w, total int64) {
		t.Helper()
		if got := g.Reclaimable(); got != w {
			t.Errorf("%s: %d reclaimable, want %d", what, got, w)
		}
		if got := s.Reclaimable(); got != total {
			t.Errorf("%s: %d reclaimable in the store, want %d", what, got, total)
		}
	}
	logs := makeLogs(1, 20, 1)
	must(t, g.StoreLogs(logs[:3]))
	want("only trailing entries", 0, 0)
	must(t, g.StoreLogs(logs[3:12]))
	none := func(uint64) bool { return false }
	want("headers", sizes(logs[:8], none), sizes(logs[:8], none))
	g.Release([]uint64{2, 3, 11})
	g.Release([]uint64{2, 3, 11, 11})
	dead := func(i uint64) bool { return i == 2 || i == 3 || i == 11 }
	want("dead", sizes(logs[:8], dead), sizes(logs[:8], dead))
	must(t, g.StoreLogs(logs[12:]))
	want("more", sizes(logs[:16], dead), sizes(logs[:16], dead))
	must(t, g.DeleteRange(15, 20))
	want("after a conflict", sizes(logs[:10], dead), sizes(logs[:10], dead))
	must(t, other.StoreLogs(makeLogs(1, 10, 1)))
	theirs := sizes(makeLogs(1, 6, 1), none)
	must(t, g.DeleteRange(1, 6))
	want("after truncation", sizes(logs[6:10], dead), sizes(logs[6:10], dead)+theirs)
	must(t, g.DeleteRange(7, 13))
	want("with nothing left", 0, theirs)
	if got := g.LiveBytes(); got != sizes(logs[:14], func(i uint64) bool { return !dead(i) })-sizes(logs[:14], none) {
		t.Errorf("%d live bytes", got)
	}
	if got := other.EntriesSinceSnapshot(); got != 10 {
		t.Errorf("%d entries since the snapshot", got)
	}
	mustSave(t, other, 4, 1, nil)
	if got := other.EntriesSinceSnapshot(); got != 6 {
		t.Errorf("%d entries since the snapshot", got)
	}
}

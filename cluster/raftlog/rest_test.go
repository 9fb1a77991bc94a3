package raftlog

import (
	"path"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

// logBytes returns how many logs of Pebble there are, and their length.
func logBytes(t *testing.T, fs vfs.FS) (logs int, length int64) {
	t.Helper()
	names, err := fs.List("db")
	must(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, ".log") {
			logs++
			length += size(t, fs, path.Join("db", name))
		}
	}
	return logs, length
}

// fill stores entries, with snapshots behind which most of them are deleted.
func fill(t *testing.T, g *Group, from, to uint64) {
	t.Helper()
	for i := from; i <= to; i++ {
		must(t, g.StoreLogs([]*raft.Log{{Index: i, Term: 1, Data: []byte("header"), Extensions: make([]byte, 32<<10)}}))
		if first, err := g.FirstIndex(); err == nil && i%16 == 0 {
			mustSave(t, g, i-8, 1, nil)
			must(t, g.DeleteRange(first, i-8))
		}
	}
}

// What a store has written and no longer needs, it gives back once it rests: old logs, and what is
// in the present one.
func TestDiskAtRest(t *testing.T) {
	fs := vfs.NewMem()
	o := testOptions(t, fs)
	o.segmentFrom = 0
	s, err := Open("db", o)
	must(t, err)
	g := mustGroup(t, s, 1)
	fill(t, g, 1, 400)
	if logs, length := logBytes(t, fs); logs < 2 || length < 1<<20 {
		t.Fatalf("%d logs of %d bytes: nothing to give back", logs, length)
	}
	ended, poll := time.After(time.Minute), time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for logs, length := logBytes(t, fs); logs > 1 || length > 64<<10; logs, length = logBytes(t, fs) {
		s.giveBack(64 << 10) // a flush makes another log obsolete, soon
		select {
		case <-poll.C:
		case <-ended:
			t.Fatalf("%d logs of %d bytes are left", logs, length)
		}
	}
	fill(t, g, 401, 800)                      // Pebble wants to write over logs that are gone
	if logs, _ := logBytes(t, fs); logs < 2 { // one is written, and one is to be written over
		t.Errorf("%d logs: what is given back is not made again", logs)
	}
	g = reopen(t, fs, g)
	lead(t, g, 2)
	var l raft.Log
	must(t, getWhole(g, 800, &l))
	if len(l.Extensions) != 32<<10 {
		t.Errorf("the last entry has %d bytes", len(l.Extensions))
	}
	must(t, g.s.Close())
}

// What has died in tables that wait to be compacted is given back once a store rests.
func TestTablesAtRest(t *testing.T) {
	o := testOptions(t, vfs.NewMem())
	o.MemTableBytes = 64 << 20 // flushed when the test says so
	s, err := Open("db", o)
	must(t, err)
	g := mustGroup(t, s, 1)
	next := uint64(1)
	for !untidy(s.db.Metrics(), 0) { // Pebble may compact by itself
		fill(t, g, next, next+47)
		next += 48
		must(t, s.db.Flush())
	}
	s.tidy(t.Context(), 0)
	const live = 24 * 33 << 10 // see fill
	if m := s.db.Metrics(); untidy(m, 0) || m.Total().TablesSize > live {
		t.Errorf("%d bytes are left after %d entries, %d in tables of the first level", m.Total().TablesSize, next-1, m.Levels[0].TablesSize)
	}
	must(t, s.Close())
}

// A store that rests does not rewrite much for little.
func TestUntidy(t *testing.T) {
	for _, tt := range []struct {
		young, old int64
		untidy     bool
	}{
		{0, 0, false},
		{0, 1000, false},
		{100, 0, false}, // no more than may be
		{101, 0, true},
		{101, 303, true},
		{101, 304, false},
		{1000, 3000, true},
	} {
		m := &pebble.Metrics{}
		m.Levels[0].TablesSize, m.Levels[6].TablesSize = tt.young, tt.old
		if untidy(m, 100) != tt.untidy {
			t.Errorf("%d young and %d old bytes: %v", tt.young, tt.old, !tt.untidy)
		}
	}
}

// Logs are given back while others are made, and none of those that a crash needs.
func TestNothingNeededIsGivenBack(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := mustOpen(t, fs, "db")
	g := mustGroup(t, s, 1)
	stop := make(chan struct{})
	var giving sync.WaitGroup
	giving.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				s.giveBack(256 << 10)
				runtime.Gosched()
			}
		}
	})
	const entries, step = 400, 80
	for i := uint64(1); i <= entries; i += step {
		fill(t, g, i, i+step-1)
		last := i + step - 1
		crashed := mustOpen(t, fs.CrashClone(vfs.CrashCloneCfg{}), "db")
		h := mustGroup(t, crashed, 1)
		if d := h.Doubt(); d != "" {
			t.Fatalf("after %d entries: %s", last, d)
		}
		if got, err := h.LastIndex(); err != nil || got != last {
			t.Fatalf("%d entries are left of %d (%v)", got, last, err)
		}
		must(t, crashed.Close())
	}
	close(stop)
	giving.Wait()
	must(t, s.Close())
}

package raftlog

import (
	"path"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

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
	s := mustOpen(t, fs, "db")
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
	must(t, g.GetLog(800, &l))
	if len(l.Extensions) != 32<<10 {
		t.Errorf("the last entry has %d bytes", len(l.Extensions))
	}
	must(t, g.s.Close())
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

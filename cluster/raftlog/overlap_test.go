package raftlog

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"
)

// syncGate keeps syncs of Pebble's log waiting while it is shut, or what it is told to.
type syncGate struct {
	hits    func(errorfs.Op) bool // nil: syncs of Pebble's log
	mu      sync.Mutex
	shut    chan struct{} // nil: it is open
	arrived chan struct{} // a sync has come to the gate while it was shut
}

func (s *syncGate) MaybeError(op errorfs.Op) error {
	hits := strings.HasSuffix(op.Path, ".log") && isSync(op)
	if s.hits != nil {
		hits = s.hits(op)
	}
	if hits {
		s.mu.Lock()
		shut := s.shut
		s.mu.Unlock()
		if shut != nil {
			s.arrived <- struct{}{}
			<-shut
		}
	}
	return nil
}

func (s *syncGate) String() string { return "(gate)" }

func (s *syncGate) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut = make(chan struct{})
}

// pass lets through what waits, and nothing that comes later.
func (s *syncGate) pass() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.shut)
	s.shut = make(chan struct{})
}

func (s *syncGate) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut != nil {
		close(s.shut)
		s.shut = nil
	}
}

// overlapped is a group of two voters that syncs behind, on a disk whose syncs can be kept waiting.
type overlapped struct {
	t    *testing.T
	disk *vfs.MemFS
	gate *syncGate
	*Group
}

func configLog(index, term uint64, voters ...raft.ServerID) *raft.Log {
	var c raft.Configuration
	for _, v := range voters {
		c.Servers = append(c.Servers, raft.Server{ID: v, Address: raft.ServerAddress(v)})
	}
	c.Servers = append(c.Servers, raft.Server{ID: "learner", Address: "learner", Suffrage: raft.Nonvoter})
	return &raft.Log{Index: index, Term: term, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(c)}
}

// newOverlapped has a configuration of these voters as its first entry, and nine others.
func newOverlapped(t *testing.T, voters ...raft.ServerID) *overlapped {
	o := &overlapped{t: t, disk: vfs.NewCrashableMem(), gate: &syncGate{arrived: make(chan struct{}, 100)}}
	s := mustOpen(t, errorfs.Wrap(o.disk, o.gate), "db")
	t.Cleanup(func() {
		o.gate.open()
		must(t, s.Close())
	})
	o.Group = mustGroup(t, s, 1)
	o.Overlap()
	must(t, o.StoreLog(configLog(1, 1, voters...)))
	mustStore(t, o.Group, 2, 10, 1)
	o.awaitDurable()
	o.s.ledger.sync()
	return o
}

// crashed is the group after a power failure that leaves what was synced.
func (o *overlapped) crashed() *Group {
	disk := o.disk.CrashClone(vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(1, 1))})
	s := mustOpen(o.t, disk, "db")
	o.t.Cleanup(func() { must(o.t, s.Close()) })
	g := mustGroup(o.t, s, 1)
	mustDoubt(o.t, g, "")
	return g
}

// announced is closed once what is written now is durable.
func (o *overlapped) announced() <-chan struct{} {
	c := make(chan struct{})
	o.WhenDurable(o.Written(), func() { close(c) })
	return c
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func mustClose(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatalf("not in time: %s", what)
	}
}

// What StoreLogs leaves behind can be read, and is announced when it is synced and the ledger has it,
// not before. A power failure before that takes it away, and nothing else.
func TestOverlap(t *testing.T) {
	o := newOverlapped(t, "a", "b")
	o.gate.close()
	mustStore(t, o.Group, 11, 20, 1)
	done := o.announced()
	mustBounds(t, o.Group, 1, 20)
	var l raft.Log
	for i := uint64(11); i <= 20; i++ {
		must(t, getWhole(o.Group, i, &l))
	}
	if isClosed(done) {
		t.Error("announced before it is synced")
	}
	if r := o.place.get(); r.index != 10 {
		t.Errorf("the ledger has entry %d, of what is synced the last is 10", r.index)
	}
	mustBounds(t, o.crashed(), 1, 10)
	o.gate.open()
	mustClose(t, done, "the announcement")
	if r := o.place.get(); r.index != 20 {
		t.Errorf("entries are announced, and the ledger ends at %d", r.index)
	}
	mustBounds(t, o.crashed(), 1, 20)
}

// Who waits for one write is not kept waiting for the next, and calls come in order.
func TestAnnouncementsInOrder(t *testing.T) {
	o := newOverlapped(t, "a", "b")
	const count = 200
	var mu sync.Mutex
	var order []uint64
	all := make(chan struct{})
	for i := uint64(11); i < 11+count; i++ {
		mustStore(t, o.Group, i, i, 1)
		seq := o.Written()
		o.WhenDurable(seq, func() {
			mu.Lock()
			defer mu.Unlock()
			if order = append(order, seq); len(order) == count {
				close(all)
			}
		})
	}
	mustClose(t, all, "all announcements")
	if !slices.IsSorted(order) {
		t.Errorf("announced in the order %v", order)
	}
	o.gate.close()
	mustStore(t, o.Group, 11+count, 11+count, 1)
	first := o.announced()
	<-o.gate.arrived
	mustStore(t, o.Group, 12+count, 12+count, 1)
	second := o.announced()
	o.gate.pass()
	mustClose(t, first, "the announcement of what is durable")
	<-o.gate.arrived
	if isClosed(second) {
		t.Error("a write is announced with the one before it")
	}
	o.gate.open()
	mustClose(t, second, "the last announcement")
}

// A group that no other member need acknowledge is durable when StoreLogs returns, and so is every
// configuration, with all before it.
func TestWhoMustNotOverlap(t *testing.T) {
	stays := func(*overlapped) {}
	for name, c := range map[string]struct {
		voters []raft.ServerID
		before func(o *overlapped)
		entry  func(index uint64) *raft.Log
	}{
		"single voter":                  {[]raft.ServerID{"a"}, stays, func(i uint64) *raft.Log { return makeLog(i, 2) }},
		"configuration that leaves one": {[]raft.ServerID{"a", "b"}, stays, func(i uint64) *raft.Log { return configLog(i, 2, "a") }},
		"configuration that leaves two": {[]raft.ServerID{"a", "b", "c"}, stays, func(i uint64) *raft.Log { return configLog(i, 2, "a", "b") }},
		"after one that leaves one": {[]raft.ServerID{"a", "b"}, func(o *overlapped) {
			must(o.t, o.StoreLog(configLog(11, 2, "a")))
		}, func(i uint64) *raft.Log { return makeLog(i, 2) }},
		"after one that was taken back": {[]raft.ServerID{"a"}, func(o *overlapped) {
			must(o.t, o.StoreLog(configLog(11, 2, "a", "b")))
			must(o.t, o.DeleteRange(11, 11))
		}, func(i uint64) *raft.Log { return makeLog(i, 2) }},
		"after one in a snapshot": {[]raft.ServerID{"a", "b"}, func(o *overlapped) {
			_, _, stream := mustRead(o.t, source(o.t))
			k, err := o.Snapshots().Create(1, 30, 2, raft.Configuration{Servers: testConfig.Servers[:1]}, 30, nil)
			must(o.t, err)
			_, err = k.Write(stream)
			must(o.t, err)
			must(o.t, k.Close())
		}, func(i uint64) *raft.Log { return makeLog(i, 2) }},
		"unknown": {nil, stays, func(i uint64) *raft.Log { return makeLog(i, 2) }},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOverlapped(t, c.voters...)
			c.before(o)
			last, _ := o.LastIndex()
			entry := c.entry(max(last, o.SnapshotIndex()) + 1)
			o.gate.close()
			stored := make(chan struct{})
			go func() {
				defer close(stored)
				if err := o.StoreLog(entry); err != nil {
					t.Error(err)
				}
			}()
			// It waits for the disk for as long as that takes: a moment shows it.
			select {
			case <-stored:
				t.Error("StoreLogs returns before its entry is synced")
			case <-time.After(50 * time.Millisecond):
			}
			o.gate.open()
			mustClose(t, stored, "StoreLogs")
			if last, _ := o.crashed().LastIndex(); last != entry.Index {
				t.Errorf("the log ends at %d after a power failure, want %d", last, entry.Index)
			}
		})
	}
}

// How many vote is known again after a restart: from the log, and from the snapshot before it.
func TestVotersAfterRestart(t *testing.T) {
	for name, c := range map[string]struct {
		act  func(g *Group)
		want int
	}{
		"log":      {func(*Group) {}, 3},
		"later":    {func(g *Group) { must(t, g.StoreLog(configLog(11, 1, "a", "b"))) }, 2},
		"snapshot": {func(g *Group) { mustSave(t, g, 10, 1, []byte("state")); must(t, g.DeleteRange(1, 10)) }, 2},
		"log behind a snapshot": {func(g *Group) {
			must(t, g.StoreLog(configLog(11, 1, "a")))
			mustSave(t, g, 10, 1, []byte("state"))
		}, 1},
		"snapshot of the log": {func(g *Group) { mustSave(t, g, 10, 1, []byte("state")) }, 2},
		"broken": {func(g *Group) {
			must(t, g.StoreLog(&raft.Log{Index: 11, Term: 1, Type: raft.LogConfiguration, Data: []byte{1}}))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			g := mustGroup(t, mustOpen(t, fs, "db"), 1)
			must(t, g.StoreLog(configLog(1, 1, "a", "b", "c")))
			mustStore(t, g, 2, 10, 1)
			c.act(g)
			g = reopen(t, fs, g)
			if g.voters.count != c.want {
				t.Errorf("%d voters, want %d", g.voters.count, c.want)
			}
			must(t, g.s.Close())
		})
	}
}

// A shorter log, a snapshot and a proof stand behind everything written before them.
func TestWhatWaitsForOverlap(t *testing.T) {
	for name, c := range map[string]struct {
		act  func(g *Group) error
		last uint64 // of the log after a power failure
	}{
		"proof":     {func(g *Group) error { return g.Prove() }, 20},
		"save":      {func(g *Group) error { return save(g, 10, 1, []byte("state"), nil) }, 20},
		"conflict":  {func(g *Group) error { return g.DeleteRange(15, 20) }, 20}, // not synced
		"overwrite": {func(g *Group) error { return g.StoreLog(configLog(15, 2, "a", "b")) }, 15},
		"drop":      {func(g *Group) error { return g.s.DropGroup(1) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOverlapped(t, "a", "b")
			o.gate.close()
			mustStore(t, o.Group, 11, 20, 1)
			acted := make(chan struct{})
			go func() {
				defer close(acted)
				if err := c.act(o.Group); err != nil {
					t.Error(err)
				}
			}()
			select {
			case <-acted:
				t.Error("it does not wait for what was written before")
			case <-time.After(50 * time.Millisecond):
			}
			o.gate.open()
			mustClose(t, acted, name)
			if name == "drop" {
				return
			}
			if last, _ := o.crashed().LastIndex(); last != c.last {
				t.Errorf("the log ends at %d after a power failure, want %d", last, c.last)
			}
			if r := o.place.get(); name == "conflict" && r.index != 14 {
				t.Errorf("the ledger ends at %d behind a conflict at 15", r.index)
			}
		})
	}
}

// mustBreak returns an overlapped group of two members, whose disk fails from now on at the operations that hits names,
// and the exits of its process.
func mustBreak(t *testing.T, hits func(op errorfs.Op) bool) (*Group, exits) {
	t.Helper()
	b, e := &breaker{hits: hits}, make(exits, 10)
	opts := testOptions(t, errorfs.Wrap(vfs.NewMem(), b))
	opts.Exit = e.exit
	s, err := Open("db", opts)
	must(t, err)
	g := mustGroup(t, s, 1)
	g.Overlap()
	must(t, g.StoreLog(configLog(1, 1, "a", "b")))
	b.on.Store(true)
	return g, e
}

// A disk that fails ends the process, and nothing is announced.
func TestFailedSyncBehindExits(t *testing.T) {
	g, e := mustBreak(t, isSync)
	e.mustExit(t, func() {
		mustStore(t, g, 2, 10, 1)
		announced := make(chan struct{})
		g.WhenDurable(g.Written(), func() { close(announced) })
		<-announced
	})
}

// Beyond a bound StoreLogs waits for the disk, so that one that hangs fills no memory.
func TestOverlapIsBounded(t *testing.T) {
	o := newOverlapped(t, "a", "b")
	o.gate.close()
	o.s.syncer.bytes.Store(maxUnsynced + 1)
	stored := make(chan struct{})
	go func() {
		defer close(stored)
		mustStore(t, o.Group, 11, 11, 1)
	}()
	select {
	case <-stored:
		t.Error("it does not wait")
	case <-time.After(50 * time.Millisecond):
	}
	o.gate.open()
	mustClose(t, stored, "StoreLogs")
	o.s.syncer.bytes.Store(0)
}

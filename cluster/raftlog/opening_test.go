package raftlog

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/quorate/quorate/fsm"
)

// crashable copies a stopped disk to one that can lose its power. All of it is
// durable.
func crashable(t testing.TB, from vfs.FS) *vfs.MemFS {
	t.Helper()
	to := vfs.NewCrashableMem()
	names, err := from.List("")
	must(t, err)
	for _, name := range names {
		copyDir(t, from, name, to, name)
	}
	for _, dir := range append(slices.DeleteFunc(names, func(n string) bool { return n == "ledger-db" }), "") {
		d, err := to.OpenDir(dir)
		must(t, err)
		must(t, d.Sync())
		must(t, d.Close())
	}
	return to
}

// withoutStamp makes a stopped store one of a version before ledgers.
func withoutStamp(t testing.TB, fs vfs.FS) {
	t.Helper()
	s := mustOpen(t, fs, "db")
	b := s.db.NewBatch()
	s.remove(b, stampKey)
	s.commit(b, pebble.Sync)
	must(t, s.Close())
}

// camera takes pictures of a disk as power losses would leave it: before one of
// so many writes, whoever does it, without all that was not synced, and with it.
type camera struct {
	mu       sync.Mutex
	disk     *vfs.MemFS
	every    int
	writes   int
	pictures []*vfs.MemFS
}

// MaybeError implements errorfs.Injector. It never injects an error.
func (c *camera) MaybeError(op errorfs.Op) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	if c.writes++; c.writes%c.every == 0 {
		for _, percent := range []int{0, 100} {
			c.pictures = append(c.pictures, c.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(1, 2))}))
		}
	}
	return nil
}

// String implements fmt.Stringer.
func (c *camera) String() string { return "(camera)" }

// taken returns the pictures.
func (c *camera) taken() []*vfs.MemFS {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.pictures)
}

// A power loss while a store is being opened, or a group dropped, changes nothing
// of what is found out: what could be proven before can be proven after it, and
// what could not cannot.
func TestPowerLossWhileOpening(t *testing.T) {
	whole := func(t *testing.T, s *Store) {
		for id := fsm.GroupID(1); id < 4; id++ {
			mustDoubt(t, mustGroup(t, s, id), "")
		}
		mustBounds(t, mustGroup(t, s, 1), 1, 10)
		mustHaveVoted(t, mustGroup(t, s, 1), 4, "a")
		mustHaveVoted(t, mustGroup(t, s, 3), 7, "c")
	}
	for _, c := range []struct {
		name  string
		every int // so many writes there is a picture
		disk  func(t *testing.T) *vfs.MemFS
		act   func(t *testing.T, s *Store) // once it is open; nil: nothing
		check func(t *testing.T, s *Store)
	}{
		{"whole", 1, func(t *testing.T) *vfs.MemFS { return stopped(t) }, nil, whole},
		{"first ledger", 1, func(t *testing.T) *vfs.MemFS {
			fs := stopped(t)
			withoutStamp(t, fs)
			must(t, fs.Remove("ledger-db"))
			return fs
		}, nil, whole},
		{"new", 1, func(*testing.T) *vfs.MemFS { return vfs.NewMem() }, nil, func(t *testing.T, s *Store) {
			mustStore(t, mustGroup(t, s, 1), 1, 3, 1)
			mustDoubt(t, mustGroup(t, s, 1), "")
		}},
		{"lost", 1, func(t *testing.T) *vfs.MemFS {
			fs := stopped(t)
			must(t, fs.RemoveAll("db"))
			return fs
		}, nil, func(t *testing.T, s *Store) {
			for id := fsm.GroupID(1); id < 4; id++ {
				mustDoubt(t, mustGroup(t, s, id), doubtLostStore)
			}
			mustHaveVoted(t, mustGroup(t, s, 3), 7, "c")
		}},
		{"damaged table", 25, func(t *testing.T) *vfs.MemFS {
			fs, table := tabled(t)
			flip(t, fs, table, mustFind(t, fs, table, "<group 7, entry 3>")+20000, 3)
			return mustDie(t, fs, readAll)
		}, nil, func(t *testing.T, s *Store) { mustHoldAllBut(t, s, 7) }},
		{"damaged group", 1, func(t *testing.T) *vfs.MemFS {
			fs := stopped(t)
			s := mustOpen(t, fs, "db")
			s.condemn(s.ledger.place(1), "a record")
			must(t, s.Close())
			return fs
		}, func(t *testing.T, s *Store) { mustGroup(t, s, 1) }, func(t *testing.T, s *Store) {
			g := mustGroup(t, s, 1)
			mustDoubt(t, g, "a record")
			mustBounds(t, g, 0, 0)
			mustHaveVoted(t, g, 4, "a")
		}},
		{"first records of groups", 1, func(*testing.T) *vfs.MemFS { return vfs.NewMem() }, func(t *testing.T, s *Store) {
			mustStore(t, mustGroup(t, s, 1), 1, 3, 1)
			must(t, install(mustGroup(t, s, 2), 50, 2, streamOf(2, "state", []uint64{3, 4}), 100))
			mustVoteFor(t, mustGroup(t, s, 3), 7, "c")
		}, func(t *testing.T, s *Store) {
			for id := fsm.GroupID(1); id < 4; id++ {
				mustDoubt(t, mustGroup(t, s, id), "")
			}
		}},
		{"drop", 1, func(t *testing.T) *vfs.MemFS { return stopped(t) }, func(t *testing.T, s *Store) {
			mustGroup(t, s, 1)
			must(t, s.DropGroup(1))
		}, func(t *testing.T, s *Store) {
			if g := mustGroup(t, s, 1); g.entries.last() == 0 {
				mustRecords(t, g, kindPayload, 0) // who cleans up drops it once more
				return
			}
			mustBounds(t, mustGroup(t, s, 1), 1, 10)
			mustDoubt(t, mustGroup(t, s, 1), "")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cam := &camera{disk: crashable(t, c.disk(t)), every: c.every}
			s := mustOpenQuietly(t, errorfs.Wrap(cam.disk, cam))
			if c.act != nil {
				c.act(t, s)
			}
			after := cam.disk.CrashClone(vfs.CrashCloneCfg{})
			must(t, s.Close())
			pictures := append(cam.taken(), after)
			for i, fs := range pictures {
				s := mustOpenQuietly(t, fs)
				if i == len(pictures)-1 && c.name == "drop" {
					mustBounds(t, mustGroup(t, s, 1), 0, 0)
				}
				c.check(t, s)
				must(t, s.Close())
				if t.Failed() {
					t.Fatalf("in picture %d of %d", i+1, len(pictures))
				}
			}
			t.Logf("%d pictures", len(pictures))
		})
	}
}

// before does something before each write of the ledger.
type before struct{ act atomic.Pointer[func()] }

// MaybeError implements errorfs.Injector. It never injects an error.
func (b *before) MaybeError(op errorfs.Op) error {
	if act := b.act.Load(); act != nil && op.Kind == errorfs.OpFileWriteAt && strings.Contains(op.Path, "ledger") {
		(*act)()
	}
	return nil
}

// String implements fmt.Stringer.
func (b *before) String() string { return "(before)" }

// The ledger is lowered before entries are deleted: a power loss between the two
// leaves a log that is longer, and no doubt.
func TestLedgerIsLoweredFirst(t *testing.T) {
	b, disk := &before{}, vfs.NewCrashableMem()
	s := mustOpen(t, errorfs.Wrap(disk, b), "db")
	g := mustGroup(t, s, 1)
	mustStore(t, g, 1, 10, 1)
	s.ledger.sync()
	var mu sync.Mutex
	var pictures []*vfs.MemFS
	act := func() {
		mu.Lock()
		defer mu.Unlock()
		must(t, s.db.LogData(nil, pebble.Sync)) // whatever the store was told by now is durable
		pictures = append(pictures, disk.CrashClone(vfs.CrashCloneCfg{}))
	}
	b.act.Store(&act)
	must(t, g.DeleteRange(6, 10))
	b.act.Store(nil)
	must(t, s.Close())
	if len(pictures) == 0 {
		t.Error("the ledger is not lowered")
	}
	for _, fs := range pictures {
		s := mustOpenQuietly(t, fs)
		mustDoubt(t, mustGroup(t, s, 1), "")
		must(t, s.Close())
	}
}

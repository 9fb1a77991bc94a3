package raftlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

const tabledGroups = 12

// tabled is a disk with a stopped store whose groups lie in one table, each in
// blocks of its own; and that table.
func tabled(t *testing.T) (fs *vfs.MemFS, table string) {
	t.Helper()
	fs = vfs.NewMem()
	o := testOptions(t, fs)
	o.MemTableBytes = 64 << 20
	o.segmentFrom = 0
	s, err := Open("db", o)
	must(t, err)
	for id := fsm.GroupID(1); id <= tabledGroups; id++ {
		g := mustGroup(t, s, id)
		mustVoteFor(t, g, 2, "a")
		for i := uint64(1); i <= 4; i++ {
			must(t, g.StoreLog(&raft.Log{Index: i, Term: 2, Data: []byte("header"), Extensions: large(id, i)}))
		}
	}
	must(t, s.db.Compact(context.Background(), []byte{0}, []byte{0xff}, false))
	levels, err := s.db.SSTables()
	must(t, err)
	tables := slices.Concat(levels...)
	if len(tables) != 1 {
		t.Fatalf("%d tables, want 1", len(tables))
	}
	must(t, s.Close())
	return fs, fmt.Sprintf("db/%06d.sst", tables[0].BackingSSTNum)
}

// large is a payload section of more than a block.
func large(id fsm.GroupID, index uint64) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("<group %d, entry %d>", id, index)), 2500)
}

// mustFind returns where in a file text begins.
func mustFind(t *testing.T, fs vfs.FS, path, text string) int64 {
	t.Helper()
	f, err := fs.Open(path)
	must(t, err)
	defer f.Close()
	all, err := io.ReadAll(f)
	must(t, err)
	at := bytes.Index(all, []byte(text))
	if at < 0 {
		t.Fatalf("%s does not hold %q", path, text)
	}
	return int64(at)
}

// mustDie runs a process that ends for what it finds, and returns the disk it
// leaves.
func mustDie(t *testing.T, fs *vfs.MemFS, f func(s *Store)) *vfs.MemFS {
	t.Helper()
	e := make(exits, 1)
	o := testOptions(t, fs)
	o.Exit = e.exit
	e.mustExit(t, func() {
		s, err := Open("db", o)
		if err == nil {
			f(s)
		}
	})
	return mustClone(t, fs)
}

func readAll(s *Store) {
	for id := fsm.GroupID(1); id <= tabledGroups; id++ {
		g, _ := s.Group(id)
		var l raft.Log
		for i := uint64(1); i <= 4; i++ {
			_ = getWhole(g, i, &l)
		}
	}
}

func compactAll(s *Store) {
	_ = s.db.Compact(context.Background(), []byte{0}, []byte{0xff}, false)
}

func addAndCompact(s *Store) {
	g, _ := s.Group(40)
	_ = g.StoreLogs(makeLogs(1, 3, 1))
	_ = s.db.Flush()
	compactAll(s)
}

// mustHoldAllBut checks that all groups are whole but those in doubt.
func mustHoldAllBut(t *testing.T, s *Store, doubted ...fsm.GroupID) {
	t.Helper()
	for id := fsm.GroupID(1); id <= tabledGroups; id++ {
		g := mustGroup(t, s, id)
		mustHaveVoted(t, g, 2, "a")
		if slices.Contains(doubted, id) {
			mustBounds(t, g, 0, 0)
			mustDoubt(t, g, "a table of the log store")
			continue
		}
		mustDoubt(t, g, "")
		mustBounds(t, g, 1, 4)
		for i := uint64(1); i <= 4; i++ {
			var l raft.Log
			must(t, getWhole(g, i, &l))
			if !bytes.Equal(l.Extensions, large(id, i)) {
				t.Errorf("group %d, entry %d is another", id, i)
			}
		}
	}
}

// A damaged block costs the groups whose records it may hold, and one process:
// the next one serves all others, compacts, and goes on.
func TestDamagedBlockCostsItsGroups(t *testing.T) {
	for _, c := range []struct {
		name    string
		text    string
		meet    func(s *Store)
		doubted []fsm.GroupID
	}{
		{"read, within a group", "<group 7, entry 3>", readAll, []fsm.GroupID{7}},
		{"compacted, within a group", "<group 7, entry 3>", addAndCompact, []fsm.GroupID{7}},
		{"read, between groups", "<group 7, entry 4>", readAll, []fsm.GroupID{7, 8}},
		{"the last block", fmt.Sprintf("<group %d, entry 4>", tabledGroups), readAll, []fsm.GroupID{tabledGroups}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs, table := tabled(t)
			flip(t, fs, table, mustFind(t, fs, table, c.text)+20000, 3)
			fs = mustDie(t, fs, c.meet)
			for range 3 {
				s := mustOpen(t, fs, "db")
				mustHoldAllBut(t, s, c.doubted...)
				compactAll(s)
				mustHoldAllBut(t, s, c.doubted...)
				must(t, s.Close())
			}
			s := mustOpen(t, fs, "db")
			for _, id := range c.doubted { // a leader rebuilds it
				g := mustGroup(t, s, id)
				for i := uint64(1); i <= 4; i++ {
					must(t, g.StoreLog(&raft.Log{Index: i, Term: 2, Data: []byte("header"), Extensions: large(id, i)}))
				}
				must(t, g.Prove())
			}
			must(t, s.Close())
			s = mustOpen(t, fs, "db")
			mustHoldAllBut(t, s)
			must(t, s.Close())
			if _, err := fs.Stat("db" + asideSuffix); err == nil {
				t.Error("the store was put aside")
			}
		})
	}
}

// A table whose index cannot be read costs all groups within its bounds. The
// second time that damage is found in a table, it is taken out as a whole; the
// third time the store is put aside.
func TestDamageThatCannotBeNarrowed(t *testing.T) {
	fs, table := tabled(t)
	s := mustOpen(t, fs, "db")
	for range 2 {
		s.suspected(table)
	}
	if h := s.ledger.getHead(); h.suspects[0].times != 1 || h.hopeless {
		t.Errorf("twice the same: %+v", h)
	}
	must(t, s.Close())
	s = mustOpen(t, fs, "db") // nothing is found in it: it is taken out as a whole
	all := []fsm.GroupID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	mustHoldAllBut(t, s, all...)
	must(t, s.Close())

	fs, table = tabled(t)
	flip(t, fs, table, mustFind(t, fs, table, "<group 7, entry 3>"), 0)
	fs = mustDie(t, fs, readAll)
	s = mustOpen(t, fs, "db")
	mustHoldAllBut(t, s, 7)
	levels, err := s.db.SSTables()
	must(t, err)
	all = []fsm.GroupID{7}
	for _, x := range slices.Concat(levels...) { // what compactions have left of it
		if fmt.Sprintf("db/%06d.sst", x.BackingSSTNum) == table {
			r := pebble.KeyRange{Start: aligned(x.Smallest.UserKey), End: prefixEnd(aligned(x.Largest.UserKey))}
			for id := fsm.GroupID(1); id <= tabledGroups; id++ {
				if touches(r, id) {
					all = append(all, id)
				}
			}
		}
	}
	s.suspected(table)
	must(t, s.Close())
	s = mustOpen(t, fs, "db")
	mustHoldAllBut(t, s, all...)
	if s.suspects() {
		t.Error("the table is still suspected")
	}
	must(t, s.Close())
}

// Where a damaged table is cut out, another one may be damaged beside the cut, and nobody has noticed. It costs the
// groups whose records may lie there, and they say so.
func TestDamageBesideDamage(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, fs, "db")
	add := func(from, to uint64) {
		for i := from; i <= to; i++ {
			must(t, mustGroup(t, s, 1).StoreLog(&raft.Log{Index: i, Term: 1, Data: large(1, i)[:20_000]}))
		}
	}
	add(1, 8)
	compactAll(s)
	s.writeStamp(stamp{s.ledger.head.identity, s.ledger.head.boot})
	must(t, s.db.Flush())
	add(9, 9)
	levels, err := s.db.SSTables()
	must(t, err)
	tables := slices.Concat(levels...)
	if len(tables) != 2 || !bytes.Equal(tables[0].Largest.UserKey, stampKey) {
		t.Fatalf("tables %+v, want one of the stamp before another", tables)
	}
	s.suspected(fmt.Sprintf("db/%06d.sst", tables[0].BackingSSTNum))
	must(t, s.Close())
	path := fmt.Sprintf("db/%06d.sst", tables[1].BackingSSTNum)
	flip(t, fs, path, mustFind(t, fs, path, "<group 1, entry 1>"), 3)
	for range 2 {
		s = mustOpen(t, fs, "db")
		mustBounds(t, mustGroup(t, s, 1), 0, 0)
		mustDoubt(t, mustGroup(t, s, 1), "a table of the log store")
		must(t, s.Close())
	}
}

// reading counts the files of a filesystem that are open to be read.
type reading struct {
	vfs.FS
	open   atomic.Int64
	noStat bool // of those that are opened
}

func (r *reading) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := r.FS.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	r.open.Add(1)
	return &readFile{f, r}, nil
}

type readFile struct {
	vfs.File
	of *reading
}

func (f *readFile) Stat() (vfs.FileInfo, error) {
	if f.of.noStat {
		return nil, syscall.EIO
	}
	return f.File.Stat()
}

func (f *readFile) Close() error {
	f.of.open.Add(-1)
	return f.File.Close()
}

// Whatever a damaged table looks like, it is closed again: a start looks into many.
func TestDamagedTableIsClosed(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, r *reading, table string) (found bool){
		"nothing is found": func(*testing.T, *reading, string) bool { return false },
		"a block": func(t *testing.T, r *reading, table string) bool {
			flip(t, r.FS, table, mustFind(t, r.FS, table, "<group 7, entry 3>"), 0)
			return true
		},
		"its end": func(t *testing.T, r *reading, table string) bool {
			flip(t, r.FS, table, size(t, r.FS, table)-1, 0)
			return false
		},
		"its size": func(_ *testing.T, r *reading, _ string) bool {
			r.noStat = true
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs, table := tabled(t)
			s := mustOpen(t, fs, "db")
			defer s.Close()
			r := &reading{FS: fs}
			found := damage(t, r, table)
			low, high := prefixOf(kindStable, 1), prefixOf(kindPayload, tabledGroups)
			lower, upper, _ := s.narrow(r, "db", manifestNumber(manifestPrefix+strings.TrimSuffix(fs.PathBase(table), ".sst")), low, high)
			if within := !bytes.Equal(lower, low) && !bytes.Equal(upper, high); within != found {
				t.Errorf("between %x and %x", lower, upper)
			}
			if n := r.open.Load(); n != 0 {
				t.Errorf("%d files are left open", n)
			}
		})
	}
}

func TestManySuspectsAreHopeless(t *testing.T) {
	var h ledgerHead
	for n := range uint64(maxSuspects) {
		for range 2 {
			if !h.suspect(n + 1) {
				t.Fatalf("%d tables are too many", n+1)
			}
		}
	}
	if h.suspect(100) {
		t.Error("no end of suspects")
	}
	x := &h.suspects[3]
	for times := uint8(2); times <= 3; times++ {
		x.pending = false
		if ok := h.suspect(4); ok != (times == 2) || x.times != times || !x.pending {
			t.Errorf("damaged again: %v, %+v", ok, *x)
		}
	}
	back, ok := parseHead(h.append(nil))
	if !ok || back != h {
		t.Errorf("%+v is read as %+v", h, back)
	}
}

// What Pebble cannot open is put aside, the newest of it kept, and an empty
// store begun. All groups are in doubt, with their votes.
func TestUnusableStoreIsPutAside(t *testing.T) {
	manifest := func(t *testing.T, fs *vfs.MemFS) {
		names, err := fs.List("db")
		must(t, err)
		for _, name := range names {
			if strings.HasPrefix(name, "MANIFEST") {
				flip(t, fs, fs.PathJoin("db", name), 20, 1)
			}
		}
	}
	for name, damage := range map[string]func(t *testing.T, fs *vfs.MemFS){
		"manifest": manifest,
		"no table": func(t *testing.T, fs *vfs.MemFS) {
			names, err := fs.List("db")
			must(t, err)
			for _, name := range names {
				if strings.HasSuffix(name, ".sst") {
					must(t, fs.Remove(fs.PathJoin("db", name)))
				}
			}
		},
		"another file": func(t *testing.T, fs *vfs.MemFS) {
			s := mustOpen(t, fs, "db")
			s.suspected("db/000001.blob")
			must(t, s.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs, _ := tabled(t)
			damage(t, fs)
			for range 2 {
				s := mustOpen(t, fs, "db")
				if s.suspects() {
					t.Error("a new store is suspected")
				}
				for id := fsm.GroupID(1); id <= tabledGroups; id++ {
					g := mustGroup(t, s, id)
					mustDoubt(t, g, "put aside")
					mustBounds(t, g, 0, 0)
					mustHaveVoted(t, g, 2, "a")
				}
				mustDoubt(t, mustGroup(t, s, 50), "")
				must(t, s.Close())
			}
			old, err := fs.List("db" + asideSuffix)
			must(t, err)
			if !slices.ContainsFunc(old, func(n string) bool { return strings.HasPrefix(n, "MANIFEST") }) {
				t.Errorf("aside are %v", old)
			}
			s := mustOpen(t, fs, "db")
			mustStore(t, mustGroup(t, s, 60), 1, 2, 1)
			must(t, s.db.Flush())
			must(t, s.Close())
			manifest(t, fs)
			s = mustOpen(t, fs, "db") // the second time
			mustDoubt(t, mustGroup(t, s, 60), "put aside")
			must(t, s.Close())
			names, err := fs.List("")
			must(t, err)
			if len(names) != 3 { // store, ledger, and what is aside
				t.Errorf("files %v", names)
			}
		})
	}
}

// A store that cannot be opened for another reason than damage stays where it is.
func TestStoreThatIsWholeIsNotPutAside(t *testing.T) {
	fs, _ := tabled(t)
	for _, cause := range []error{syscall.EACCES, syscall.ENOSPC, syscall.EMFILE, syscall.EIO} {
		broken := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if strings.Contains(op.Path, "MANIFEST") {
				return &os.PathError{Op: "open", Path: op.Path, Err: cause}
			}
			return nil
		}))
		if s, err := Open("db", testOptions(t, broken)); !errors.Is(err, cause) {
			t.Errorf("%v: %v, %v", cause, s, err)
		}
	}
	first := mustOpen(t, fs, "db")
	if s, err := Open("db", testOptions(t, fs)); err == nil {
		t.Errorf("a store in use opens: %v", s)
	}
	must(t, first.Close())
	if isStoreDamage(fmt.Errorf("written in unknown format major version %d", pebble.FormatNewest+1)) {
		t.Error("a store of a later version is taken for damaged")
	}
	s := mustOpen(t, fs, "db")
	mustHoldAllBut(t, s)
	must(t, s.Close())
}

// Pebble takes some damage in its manifest for the end of it. The ledger knows
// how long it was.
func TestManifestThatSeemsToEnd(t *testing.T) {
	fs, _ := tabled(t)
	names, err := fs.List("db")
	must(t, err)
	at := slices.IndexFunc(names, func(n string) bool { return manifestNumber(n) != 0 })
	path := fs.PathJoin("db", names[at])
	length := size(t, fs, path)
	f, err := fs.Open(path)
	must(t, err)
	all, err := io.ReadAll(f)
	must(t, err)
	must(t, f.Close())
	step := int64(2*thorough - 1)
	if testing.Short() {
		step = max(step, 5)
	}
	for keep := int64(0); keep < length; keep += step { // as if the rest had never been written
		fs := mustClone(t, fs)
		f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
		must(t, err)
		_, err = f.Write(all[:keep])
		must(t, err)
		must(t, f.Close())
		s := mustOpenQuietly(t, fs)
		mustDoubt(t, mustGroup(t, s, 1), "put aside")
		must(t, s.Close())
	}
	f, err = fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = f.WriteAt([]byte("the beginning of a record that power cut short"), length)
	must(t, err)
	must(t, f.Close())
	s := mustOpen(t, fs, "db")
	mustHoldAllBut(t, s)
	must(t, s.Close())
}

func mustOpenQuietly(t *testing.T, fs vfs.FS) *Store {
	t.Helper()
	s, err := Open("db", flipOptions(t, fs, func(int) { panic("exit") }))
	must(t, err)
	return s
}

// A log that does not join its snapshot is damaged.
func TestHoleBehindSnapshotIsDamage(t *testing.T) {
	fs := vfs.NewMem()
	g := mustGroup(t, mustOpen(t, fs, "db"), 1)
	mustStore(t, g, 1, 9, 1)
	mustSave(t, g, 4, 1, []byte("state"))
	must(t, g.DeleteRange(1, 4))
	must(t, g.s.db.Delete(indexKey(kindHeader, 1, 5), pebble.Sync))
	g = reopen(t, fs, g)
	mustBounds(t, g, 0, 0)
	mustDoubt(t, g, "entry 5 is missing")
	must(t, g.s.Close())
}

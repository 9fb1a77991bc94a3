package raftlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/fsm"
)

// flipDisk is a disk with a store that has stopped, and what its groups went
// through.
type flipDisk struct {
	fs    *vfs.MemFS
	files map[string][]string // kind → paths
	pasts map[fsm.GroupID][]*model
}

const flipGroups = 5

// newFlipDisk runs random histories of a few groups in one store. tables says
// whether part of it is flushed, killed whether it stops without being closed.
func newFlipDisk(t *testing.T, seed uint64, tables, killed bool) *flipDisk {
	t.Helper()
	mem := vfs.NewMem()
	if killed {
		mem = vfs.NewCrashableMem()
	}
	d := &flipDisk{fs: mem, pasts: map[fsm.GroupID][]*model{}, files: map[string][]string{}}
	s, err := Open("db", flipOptions(t, d.fs, func(int) { panic("exit") }))
	must(t, err)
	r := rand.New(rand.NewPCG(seed, 0))
	actors := map[fsm.GroupID]*actor{}
	for id := fsm.GroupID(1); id <= flipGroups; id++ {
		d.pasts[id] = []*model{newModel()}
		actors[id] = &actor{
			g: mustGroup(t, s, id), m: newModel(), d: seedDice{r}, term: 1, small: true,
			acted: func(m *model, _ bool) {
				m.reopen()
				d.pasts[id] = append(d.pasts[id], m)
			},
		}
	}
	for step := range flipGroups * 30 {
		_, err := actors[fsm.GroupID(step%flipGroups+1)].step()
		must(t, err)
		if tables && step%40 == 39 && step < flipGroups*25 {
			must(t, s.db.Flush())
		}
	}
	if killed {
		d.fs = d.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: r})
	}
	must(t, s.Close())
	d.list(t)
	return d
}

func (d *flipDisk) list(t *testing.T) {
	t.Helper()
	d.files["ledger"] = []string{"ledger-db"}
	names, err := d.fs.List("db")
	must(t, err)
	segments, err := d.fs.List("db/" + segmentsFolder)
	must(t, err)
	for _, name := range segments {
		d.files["segment"] = append(d.files["segment"], d.fs.PathJoin("db", segmentsFolder, name))
	}
	for _, name := range names {
		kind := "other"
		switch {
		case name == segmentsFolder:
			continue
		case strings.HasSuffix(name, ".log"):
			kind = "log"
		case strings.HasSuffix(name, ".sst"):
			kind = "table"
		case strings.HasPrefix(name, "MANIFEST"):
			kind = "manifest"
		case strings.HasPrefix(name, "OPTIONS"):
			kind = "options"
		}
		d.files[kind] = append(d.files[kind], d.fs.PathJoin("db", name))
	}
}

// flipOptions are those of a process that ends by telling exit, and says nothing.
func flipOptions(t *testing.T, fs vfs.FS, exit func(int)) Options {
	o := testOptions(t, fs)
	o.MemTableBytes = 256 << 10
	o.Logger = slog.New(slog.DiscardHandler)
	o.Exit = exit
	return o
}

// mustClone copies a stopped disk.
func mustClone(t *testing.T, from vfs.FS) *vfs.MemFS {
	t.Helper()
	to := vfs.NewMem()
	names, err := from.List("")
	must(t, err)
	for _, name := range names {
		copyDir(t, from, name, to, name)
	}
	return to
}

// flip changes one bit of a file.
func flip(t *testing.T, fs vfs.FS, path string, at int64, bit int) {
	t.Helper()
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	must(t, err)
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	must(t, err)
	b[0] ^= 1 << bit
	_, err = f.WriteAt(b, at)
	must(t, err)
	must(t, f.Close())
}

// used returns how long a file is without the zeros at its end.
func used(t *testing.T, fs vfs.FS, path string) int64 {
	t.Helper()
	return int64(len(bytes.TrimRight(content(t, fs, path), "\x00")))
}

func size(t *testing.T, fs vfs.FS, path string) int64 {
	t.Helper()
	st, err := fs.Stat(path)
	must(t, err)
	return st.Size()
}

// lives is one process on a disk: it opens the store, looks at everything and
// compacts it. doubts are those of the groups.
func (d *flipDisk) lives(t *testing.T, fs *vfs.MemFS) (doubts map[fsm.GroupID]string, exited bool, err error) {
	exit := make(chan int, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v", p)
			}
		}()
		doubts, err = d.inspect(t, fs, func(code int) {
			select {
			case exit <- code:
			default:
			}
			select {}
		})
	}()
	select {
	case <-ended:
		return doubts, false, err
	case code := <-exit:
		if code != ExitCode {
			return nil, true, fmt.Errorf("exit code %d", code)
		}
		return nil, true, nil
	case <-time.After(time.Minute):
		return nil, false, errors.New("it hangs")
	}
}

func (d *flipDisk) inspect(t *testing.T, fs *vfs.MemFS, exit func(int)) (map[fsm.GroupID]string, error) {
	s, err := Open("db", flipOptions(t, fs, exit))
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	doubts := map[fsm.GroupID]string{}
	for id, past := range d.pasts {
		g, err := s.Group(id)
		if err != nil {
			return nil, fmt.Errorf("group %d: %w", id, err)
		}
		if doubts[id] = g.Doubt(); doubts[id] != "" {
			continue
		}
		err = isWhole(g, past)
		if pebble.IsCorruptionError(err) { // the test has read it
			exit(ExitCode)
		}
		if err != nil {
			return nil, fmt.Errorf("group %d is in no doubt, and %w", id, err)
		}
	}
	if err := s.db.Compact(context.Background(), []byte{0}, []byte{0xff}, false); err != nil {
		return nil, fmt.Errorf("compact: %w", err)
	}
	for id := range d.pasts {
		g, err := s.Group(id)
		if err != nil {
			return nil, err
		}
		last, _ := g.end()
		if err := g.StoreLogs(makeLogs(last+1, last+2, 1000)); err != nil {
			return nil, err
		}
		if err := errors.Join(g.DeleteRange(last+1, last+2), g.SetUint64([]byte("other"), 1)); err != nil {
			return nil, err
		}
	}
	return doubts, s.Close()
}

// isWhole checks that a group is as it was at some time since it acknowledged
// something for the last time.
func isWhole(g *Group, past []*model) error {
	end := past[len(past)-1]
	var all error
	for i := len(past) - 1; i >= 0; i-- {
		m := past[i]
		_, last := m.bounds()
		_, wantLast := end.bounds()
		last, wantLast = max(last, m.snapIndex), max(wantLast, end.snapIndex)
		if end.hasStable(g) { // the ledger gives back what the store has lost of that
			m = m.clone()
			m.stable = end.stable
		}
		if last != wantLast || m.terms[last] != end.terms[last] || m.stable[TermKey] != end.stable[TermKey] {
			continue
		}
		err := compare(g, m)
		if err == nil {
			return nil
		}
		all = errors.Join(all, err)
	}
	return fmt.Errorf("not whole: %w", all)
}

// few is how many of so many random tries are made in a short run, and under the race detector.
func few(tries int) int {
	if testing.Short() {
		tries = (tries + 4) / 5
	}
	return (tries + thorough - 1) / thorough
}

// TestFlips flips single bits of stopped stores. Afterwards the store opens,
// and each group has everything that it had acknowledged, or is in doubt. A
// process may find damage and end, if the next ones get on. QUORATE_FLIPS sets
// the number of flips of each kind of file and disk, QUORATE_FLIP_SEED the seed.
func TestFlips(t *testing.T) {
	flips, seed := envOr("QUORATE_FLIPS", few(20)), uint64(envOr("QUORATE_FLIP_SEED", 1))
	for _, c := range []struct {
		name           string
		tables, killed bool
	}{{"log only", false, false}, {"killed", false, true}, {"tables", true, false}, {"tables, killed", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			d := newFlipDisk(t, seed, c.tables, c.killed)
			for kind, paths := range d.files {
				r := rand.New(rand.NewPCG(seed, uint64(len(kind))))
				noticed, ended := 0, 0
				for range flips {
					path := paths[r.IntN(len(paths))]
					n := used(t, d.fs, path)
					if n == 0 {
						continue
					}
					at := r.Int64N(n)
					if r.IntN(3) == 0 {
						at = max(0, n-1-r.Int64N(500)) // heads of tables, and ends of logs, lie there
					}
					doubts, exits := d.flipped(t, path, at, r.IntN(8))
					noticed += min(doubts, 1)
					ended += exits
					if t.Failed() {
						return
					}
				}
				t.Logf("%s: %d of %d flips put groups in doubt, %d processes ended", kind, noticed, flips, ended)
			}
		})
	}
}

// flipped flips one bit of a copy of the disk, and starts processes on it until
// one gets through. It returns how many groups are in doubt then, and how many
// processes ended.
func (d *flipDisk) flipped(t *testing.T, path string, at int64, bit int) (doubts, exits int) {
	t.Helper()
	fs := mustClone(t, d.fs)
	flip(t, fs, path, at, bit)
	for ; exits < 5; exits++ {
		found, exited, err := d.lives(t, fs)
		if err != nil {
			t.Errorf("bit %d of byte %d of %s, process %d: %v", bit, at, path, exits+1, err)
			return 0, exits
		}
		if !exited {
			for _, why := range found {
				doubts += min(len(why), 1)
			}
			return doubts, exits
		}
		fs = mustClone(t, fs)
	}
	t.Errorf("bit %d of byte %d of %s: no process gets through", bit, at, path)
	return 0, exits
}

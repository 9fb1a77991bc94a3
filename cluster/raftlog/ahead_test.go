package raftlog

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"
)

func content(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	must(t, err)
	b, err := io.ReadAll(f)
	must(t, err)
	must(t, f.Close())
	return b
}

// A log has what was written, then zeros; small syncs seldom find too few of
// them, large ones write none, and nothing else gets any.
func TestZerosAhead(t *testing.T) {
	const none, step = vfs.WriteCategoryUnspecified, 64 << 10
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name, file  string
		record      int
		reuse, fail bool
		grows       bool // with each sync
	}{
		{name: "small", file: "000001.log", record: 100},
		{name: "of any size", file: "000001.log", record: step / aheadShare},
		{name: "large", file: "000001.log", record: 3 * step, grows: true},
		{name: "old file", file: "000001.log", record: 100, reuse: true},
		{name: "refused", file: "000001.log", record: 100, fail: true, grows: true},
		{name: "manifest", file: "MANIFEST-000001", record: 100, grows: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := vfs.NewMem()
			b := &breaker{hits: func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileWriteAt }}
			b.on.Store(c.fail)
			z := newZeroAhead(errorfs.Wrap(mem, b), 32*step)
			old := 0
			f, err := z.Create(c.file, none)
			must(t, err)
			if c.reuse {
				old = 5 * step
				_, err := f.Write(bytes.Repeat([]byte("x"), old))
				must(t, err)
				must(t, f.Close())
				f, err = z.ReuseForWrite(c.file, "000002.log", none)
				must(t, err)
				c.file = "000002.log"
			}
			var want []byte
			grown, last := 0, old
			const syncs = 2000
			for range syncs {
				p := make([]byte, 1+r.IntN(c.record))
				if c.grows {
					p = make([]byte, c.record)
				}
				for i := range p {
					p[i] = byte(1 + len(want) + i)
				}
				want = append(want, p...)
				_, err := f.Write(append([]byte(nil), p...)) // a MemFS may change it
				must(t, err)
				must(t, f.SyncData())
				if n := int(size(t, mem, c.file)); n != last {
					grown, last = grown+1, n
				}
				if len(want) > 20*step {
					break
				}
			}
			must(t, f.Close())
			got := content(t, mem, c.file)
			if !bytes.HasPrefix(got, want) {
				t.Fatal("it is not what was written")
			}
			rest := got[len(want):]
			if c.reuse && len(want) < old {
				rest = got[old:]
			}
			if len(bytes.Trim(rest, "\x00")) > 0 || len(rest) > step+step/aheadShare {
				t.Errorf("%d bytes follow, not all zero", len(rest))
			}
			most := len(want)/step + 1
			if c.grows && len(rest) > 0 || !c.grows && (grown > most || !c.reuse && grown == 0) {
				t.Errorf("the file grew %d times for %d bytes, and has %d more", grown, len(want), len(rest))
			}
		})
	}
}

// Small syncs among large ones write no zeros: they would be written over at once.
func TestNoZerosUnderLoad(t *testing.T) {
	const step = 64 << 10
	f, err := newZeroAhead(vfs.NewMem(), 32*step).Create("000001.log", vfs.WriteCategoryUnspecified)
	must(t, err)
	write := func(n int) *zeroAheadFile {
		_, err := f.Write(make([]byte, n))
		must(t, err)
		must(t, f.SyncData())
		return f.(*zeroAheadFile)
	}
	write(3 * step)
	for i := range 300 {
		n := 100
		if i%3 == 0 {
			n = step
		}
		if log := write(n); log.filled > log.at {
			t.Fatalf("%d zeros after sync %d, of %d bytes", log.filled-log.at, i, n)
		}
	}
	for i := 0; write(100).filled == f.(*zeroAheadFile).at; i++ {
		if i > 10*aheadMemory {
			t.Fatal("no zeros although only small syncs come")
		}
	}
	must(t, f.Close())
}

// A log that was cut off is read to its last record, wherever in a block that ends.
func TestZerosEndLog(t *testing.T) {
	const block = 32 << 10
	for more := range 80 {
		disk := vfs.NewCrashableMem()
		s := mustOpen(t, disk, "db")
		g := mustGroup(t, s, 1)
		for i := uint64(1); i <= 3; i++ {
			l := &raft.Log{Index: i, Term: 1, Type: raft.LogCommand, Data: []byte(fmt.Sprintf("header %d", i))}
			if i == 2 {
				room := block - ended(t, disk, "db")%block
				l.Extensions = bytes.Repeat([]byte("p"), room-250+more*3)
			}
			must(t, g.StoreLogs([]*raft.Log{l}))
			crashed := disk.CrashClone(vfs.CrashCloneCfg{})
			again := mustOpen(t, crashed, "db")
			h := mustGroup(t, again, 1)
			if last, err := h.LastIndex(); err != nil || last != i || h.Doubt() != "" {
				t.Errorf("%d more bytes: the log ends at %d of %d, %v, %s", more, last, i, err, h.Doubt())
			}
			must(t, again.Close())
		}
		must(t, s.Close())
	}
}

// ended returns where the records of the only log in a folder end.
func ended(t *testing.T, fs vfs.FS, dir string) int {
	t.Helper()
	names, err := fs.List(dir)
	must(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, ".log") {
			return len(bytes.TrimRight(content(t, fs, path.Join(dir, name)), "\x00"))
		}
	}
	t.Fatalf("no log among %v", names)
	return 0
}

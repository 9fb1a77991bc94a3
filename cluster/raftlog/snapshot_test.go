package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

func someState(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b)
	return b
}

func TestSnapshotComesBack(t *testing.T) {
	for _, size := range []int{0, 1, 7, 8, 100, chunkSize - 1, chunkSize, chunkSize + 1, 70*chunkSize + 5} {
		fs := vfs.NewMem()
		g := mustGroup(t, mustOpen(t, fs, "db"), 1)
		mustStore(t, g, 1, 9, 3)
		state := someState(size)
		mustSave(t, g, 4, 3, []byte("older"))
		mustSave(t, g, 6, 3, state, 1, 2, 3, 4, 6)
		check := func() {
			t.Helper()
			meta, got, _ := mustRead(t, g)
			if !bytes.Equal(got, state) {
				t.Errorf("state of %d bytes differs", size)
			}
			if meta.Index != 6 || meta.Term != 3 || meta.ConfigurationIndex != 1 || meta.Version != 1 ||
				len(meta.Configuration.Servers) != 2 || meta.Configuration.Servers[1] != testConfig.Servers[1] {
				t.Errorf("description %+v", meta)
			}
			mustRecords(t, g, kindChunk, (size+chunkSize-1)/chunkSize)
		}
		check()
		g = reopen(t, fs, g)
		check()
		mustSave(t, g, 7, 3, nil)
		mustRecords(t, g, kindChunk, 0)
		must(t, g.s.Close())
	}
}

func TestOnlyTheNewestSnapshotOpens(t *testing.T) {
	g := newGroup(t)
	if list, err := g.Snapshots().List(); err != nil || len(list) != 0 {
		t.Fatalf("%d snapshots, %v", len(list), err)
	}
	mustStore(t, g, 1, 9, 1)
	mustSave(t, g, 4, 1, []byte("older"))
	list, err := g.Snapshots().List()
	must(t, err)
	_, r, err := g.Snapshots().Open(list[0].ID)
	must(t, err)
	mustSave(t, g, 6, 1, []byte("newer"))
	if _, _, err := g.Snapshots().Open(list[0].ID); !errors.Is(err, ErrNoSnapshot) {
		t.Errorf("the old one opens: %v", err)
	}
	sr, err := ReadState(r) // an open one stays readable
	must(t, err)
	state, err := io.ReadAll(sr)
	must(t, err)
	if string(state) != "older" {
		t.Errorf("state %q", state)
	}
	must(t, r.Close())
	must(t, r.Close())
	if _, err := r.Read(make([]byte, 1)); err == nil {
		t.Error("a closed reader reads")
	}
	if err := save(g, 5, 1, []byte("late"), nil); err == nil {
		t.Error("an older snapshot replaces a newer one")
	}
	if _, state, _ := mustRead(t, g); string(state) != "newer" {
		t.Errorf("state %q", state)
	}
	mustRecords(t, g, kindChunk, 1)
}

func TestSinkNeedsOneKind(t *testing.T) {
	g := newGroup(t)
	k, err := g.Snapshots().Create(1, 3, 1, testConfig, 1, nil)
	must(t, err)
	_, err = k.Write([]byte("a state without its live entries"))
	must(t, err)
	if k.Close() == nil {
		t.Error("it closes")
	}
	if k.Close() == nil {
		t.Error("it closes the second time")
	}
	k, err = g.Snapshots().Create(1, 3, 1, testConfig, 1, nil)
	must(t, err)
	_, err = k.Write(someState(5 * chunkSize))
	must(t, err)
	must(t, k.Cancel())
	must(t, k.Cancel())
	if k.Close() == nil {
		t.Error("a cancelled one closes")
	}
	if _, err := k.Write([]byte("x")); err == nil {
		t.Error("a cancelled one takes more")
	}
	mustRecords(t, g, kindChunk, 0)
	if _, err := g.Snapshots().Create(0, 3, 1, testConfig, 1, nil); err == nil {
		t.Error("an unknown version is accepted")
	}
}

// source is a group with a snapshot at 30: live are 2, 4 (truncated), 13, 22
// (still in the log), and 35 behind it.
func source(t testing.TB) *Group {
	g := newGroup(t)
	mustStore(t, g, 1, 40, 2)
	live := []uint64{2, 3, 4, 13, 22, 24}
	g.Release(except(1, 30, live...))
	mustSave(t, g, 30, 2, someState(3*chunkSize+17), live...)
	must(t, g.DeleteRange(1, 10))
	g.Release([]uint64{3, 24})
	return g
}

// except lists the numbers from first to last without some.
func except(first, last uint64, without ...uint64) []uint64 {
	var list []uint64
	for i := first; i <= last; i++ {
		if !slices.Contains(without, i) {
			list = append(list, i)
		}
	}
	return list
}

func TestInstall(t *testing.T) {
	_, state, stream := mustRead(t, source(t))
	for _, c := range []struct {
		name  string
		piece int
		setup func(g *Group)
		first uint64 // of the log afterwards
		last  uint64
	}{
		{"empty", 1 << 20, func(*Group) {}, 0, 0},
		{"byte by byte", 1, func(*Group) {}, 0, 0},
		{"shorter log", 1000, func(g *Group) { mustStore(t, g, 1, 12, 1) }, 0, 0},
		{"longer log", 1000, func(g *Group) { mustStore(t, g, 1, 36, 1) }, 31, 36},
		{"truncated log", 1000, func(g *Group) {
			mustStore(t, g, 1, 20, 1)
			mustSave(t, g, 15, 1, []byte("old"), 1, 2, 6, 14)
			must(t, g.DeleteRange(1, 12))
		}, 0, 0},
		{"installed before", 1000, func(g *Group) {
			must(t, install(g, 30, 2, stream, 4096))
		}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := vfs.NewMem()
			g := mustGroup(t, mustOpen(t, fs, "db"), 1)
			lead(t, g, 1)
			c.setup(g)
			must(t, install(g, 30, 2, stream, c.piece))
			check := func() {
				t.Helper()
				mustBounds(t, g, c.first, c.last)
				mustPayload(t, g, 2, 2, 4, 13, 22)
				mustNoPayload(t, g, 1, 3, 6, 14, 24)
				mustRecords(t, g, kindForeign, 4)
				mustRecords(t, g, kindForeignPin, 4)
				mustRecords(t, g, kindPin, 0)
				mustRecords(t, g, kindChunk, 4)
				meta, got, again := mustRead(t, g)
				if !bytes.Equal(got, state) || !bytes.Equal(again, stream) || meta.Index != 30 || meta.Term != 2 {
					t.Errorf("the snapshot differs: %+v", meta)
				}
			}
			check()
			g = reopen(t, fs, g)
			check()
			// Raft compacts, then goes on behind the snapshot.
			must(t, g.DeleteRange(0, 30))
			mustStore(t, g, 31, 50, 3)
			check2 := func() {
				t.Helper()
				lead(t, g, 9)
				mustPayload(t, g, 2, 2, 4, 13, 22)
				mustPayload(t, g, 3, 31, 49)
			}
			check2()
			g.Release(except(1, 45, 4, 22, 31, 33))
			mustSave(t, g, 45, 3, []byte("mine"), 4, 22, 31, 33)
			must(t, g.DeleteRange(31, 40))
			mustPayload(t, g, 2, 4, 22)
			mustPayload(t, g, 3, 31, 33, 46)
			mustNoPayload(t, g, 2, 13, 32)
			g = reopen(t, fs, g)
			mustPayload(t, g, 2, 4, 22)
			mustPayload(t, g, 3, 31, 33, 46)
			g.Release([]uint64{4, 22, 31, 33})
			mustNoPayload(t, g, 4, 22, 31, 33)
			mustRecords(t, g, kindForeign, 0)
			mustRecords(t, g, kindForeignPin, 0)
			must(t, g.s.Close())
		})
	}
}

// Raft compares the entry before the first one that a leader sends. After a
// snapshot was installed over a longer log, that entry is the snapshot's last.
func TestInstalledSnapshotAnswersForItsLastEntry(t *testing.T) {
	_, _, stream := mustRead(t, source(t))
	g := newGroup(t)
	mustStore(t, g, 1, 36, 1)
	must(t, install(g, 30, 2, stream, 1<<20))
	var l raft.Log
	must(t, getWhole(g, 30, &l))
	if l.Index != 30 || l.Term != 2 || l.Type != raft.LogNoop {
		t.Errorf("entry %+v", l)
	}
	mustMissing(t, g, 29)
	if g.StoreLog(makeLog(30, 3)) == nil || g.StoreLog(makeLog(7, 3)) == nil {
		t.Error("entries that the snapshot stands for are stored anew")
	}
	mustBounds(t, g, 31, 36)
	must(t, g.DeleteRange(31, 36))
	mustMissing(t, g, 30, 31)
}

func TestBadStreamChangesNothing(t *testing.T) {
	_, _, good := mustRead(t, source(t))
	bad := map[string][]byte{
		"empty":           {},
		"only the magic":  good[:8],
		"cut in state":    good[:1000],
		"cut in sections": good[:len(good)-30],
		"cut at the end":  good[:len(good)-1],
		"too long":        append(bytes.Clone(good), 0),
		"no end":          good[:len(good)-partHead],
	}
	bad["another count"] = append(bytes.Clone(good[:len(good)-partHead]), appendEnd(nil, 5)...)
	leftOut := appendPart(append(appendStreamHead(nil, 1, sum(nil, []byte("s"))), 's'), partKept, pinOf(1, 7, 1), nil)
	leftOut[len(leftOut)-1] ^= 1
	bad["a section that is left out, and flipped"] = appendEnd(leftOut, 1)
	r := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		b := bytes.Clone(good)
		at := r.IntN(len(b))
		if r.IntN(2) == 0 {
			at = len(b) - 1 - r.IntN(200) // sections are a small part
		}
		b[at] ^= 1 << r.IntN(8)
		bad[fmt.Sprintf("flip at %d", at)] = b
	}
	g := newGroup(t)
	mustStore(t, g, 1, 12, 1)
	mustSave(t, g, 8, 1, []byte("old"), 2, 7)
	must(t, g.DeleteRange(1, 5))
	for name, stream := range bad {
		if install(g, 30, 2, stream, 4096) == nil {
			t.Errorf("%s: accepted", name)
		}
		mustBounds(t, g, 6, 12)
		mustPayload(t, g, 1, 2, 7, 12)
		if _, state, _ := mustRead(t, g); string(state) != "old" {
			t.Fatalf("%s: state %q", name, state)
		}
	}
	mustRecords(t, g, kindForeign, 0)
	mustRecords(t, g, kindForeignPin, 0)
	mustRecords(t, g, kindChunk, 1)
	if install(g, 7, 1, good, 4096) == nil {
		t.Error("a snapshot older than the own one is installed")
	}
}

// What an install that was never finished has left is deleted, and counts for
// nothing before.
func TestLeftoversOfInstall(t *testing.T) {
	fs := vfs.NewMem()
	g := mustGroup(t, mustOpen(t, fs, "db"), 1)
	mustStore(t, g, 1, 4, 1)
	b := g.s.db.NewBatch()
	p := pin{index: 9, size: 5, check: 1, number: 1}
	g.setPin(b, p)
	g.s.setSealed(b, g.sectionKey(p), []byte("other"))
	g.s.setSealed(b, numberKey(kindChunk, 1, 1, 0), []byte("state"))
	g.s.commit(b, pebble.Sync)
	g = reopen(t, fs, g)
	mustNoPayload(t, g, 9)
	if n := g.LiveBytes(); n != g.entries.live {
		t.Errorf("%d live bytes, %d of them in the log", n, g.entries.live)
	}
	for _, k := range []kind{kindForeign, kindForeignPin, kindChunk} {
		mustRecords(t, g, k, 0)
	}
	must(t, g.s.Close())
}

func TestReadStateRefuses(t *testing.T) {
	_, state, stream := mustRead(t, source(t))
	read := func(b []byte) ([]byte, error) {
		r, err := ReadState(bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(r)
	}
	if got, err := read(stream[:streamHead+len(state)]); err != nil || !bytes.Equal(got, state) {
		t.Errorf("the state alone: %v", err)
	}
	flipped := bytes.Clone(stream)
	flipped[streamHead+len(state)/2] ^= 4
	for name, b := range map[string][]byte{
		"nothing": nil, "short head": stream[:10], "other bytes": []byte("01234567890123456789"),
		"short state": stream[:100], "flipped": flipped,
	} {
		if _, err := read(b); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// What is released while a snapshot is being sent is in the stream anyway.
func TestOpenSnapshotIsAView(t *testing.T) {
	g := source(t)
	_, _, want := mustRead(t, g)
	list, err := g.Snapshots().List()
	must(t, err)
	meta, r, err := g.Snapshots().Open(list[0].ID)
	must(t, err)
	g.Release(except(1, 40))
	mustSave(t, g, 40, 2, []byte("next"))
	must(t, g.DeleteRange(11, 40))
	got, err := io.ReadAll(r)
	must(t, err)
	must(t, r.Close())
	if !bytes.Equal(got, want) || meta.Size != int64(len(want)) {
		t.Error("the stream changed under its reader")
	}
	if _, _, now := mustRead(t, g); len(now) != streamHead+4+partHead {
		t.Errorf("%d bytes for a snapshot without live payloads", len(now))
	}
}

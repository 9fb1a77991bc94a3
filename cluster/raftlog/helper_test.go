package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// testSegmentFrom lets about half of the tests' payload sections lie in segments.
const testSegmentFrom = 20

// testOptions are small, and fail the test if the store wants to exit.
func testOptions(t testing.TB, fs vfs.FS) Options {
	return Options{
		FS: fs, CacheBytes: 1 << 20, MemTableBytes: 1 << 20, segmentFrom: testSegmentFrom, segmentBytes: 256,
		Logger: slog.New(slog.NewTextHandler(newTestWriter(t), &slog.HandlerOptions{Level: slog.LevelError})),
		Exit:   func(code int) { panic(fmt.Sprintf("exit %d", code)) },
	}
}

// testWriter writes to a test's log until the test ends. A store whose disk is dead
// cannot close everything, and the goroutines it leaves may log later.
type testWriter struct {
	t     testing.TB
	mu    sync.Mutex
	ended bool
}

func newTestWriter(t testing.TB) *testWriter {
	w := &testWriter{t: t}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = true
	})
	return w
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.t.Logf("%s", bytes.TrimSpace(p))
	}
	return len(p), nil
}

func mustOpen(t testing.TB, fs vfs.FS, dir string) *Store {
	t.Helper()
	s, err := Open(dir, testOptions(t, fs))
	must(t, err)
	return s
}

func mustGroup(t testing.TB, s *Store, id fsm.GroupID) *Group {
	t.Helper()
	g, err := s.Group(id)
	must(t, err)
	return g
}

// newGroup returns group 1 of a store in memory that is closed at the end.
func newGroup(t testing.TB) *Group {
	t.Helper()
	s := mustOpen(t, vfs.NewMem(), "db")
	t.Cleanup(func() { must(t, s.Close()) })
	return mustGroup(t, s, 1)
}

// reopen closes a group's store and returns the group as it is on disk.
func reopen(t testing.TB, fs vfs.FS, g *Group) *Group {
	t.Helper()
	must(t, g.s.Close())
	return mustGroup(t, mustOpen(t, fs, "db"), g.id)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// body is the payload section of the tests' entries: recognisable and of
// varying length. Every fifth entry has none.
func body(index, term uint64) []byte {
	if index%5 == 0 {
		return nil
	}
	return bytes.Repeat([]byte(fmt.Sprintf("<%d/%d>", index, term)), int(index%7)+1)
}

func makeLog(index, term uint64) *raft.Log {
	return &raft.Log{
		Index: index, Term: term, Type: raft.LogCommand,
		Data: []byte(fmt.Sprintf("header %d/%d", index, term)), Extensions: body(index, term),
	}
}

func makeLogs(from, to, term uint64) []*raft.Log {
	var logs []*raft.Log
	for i := from; i <= to; i++ {
		logs = append(logs, makeLog(i, term))
	}
	return logs
}

func mustStore(t testing.TB, g *Group, from, to, term uint64) {
	t.Helper()
	must(t, g.StoreLogs(makeLogs(from, to, term)))
}

// lead makes GetLog return payload sections.
func lead(t testing.TB, g *Group, term uint64) {
	t.Helper()
	must(t, g.SetUint64([]byte("CurrentTerm"), term))
}

func mustBounds(t testing.TB, g *Group, first, last uint64) {
	t.Helper()
	f, err := g.FirstIndex()
	must(t, err)
	l, err := g.LastIndex()
	must(t, err)
	if f != first || l != last {
		t.Fatalf("log is %d to %d, want %d to %d", f, l, first, last)
	}
}

// getWhole reads an entry with its payload section.
func getWhole(g *Group, index uint64, l *raft.Log) error {
	if err := g.GetLog(index, l); err != nil {
		return err
	}
	return g.Complete(l)
}

// mustEntries checks whole entries, all of one term, and that none follows.
func mustEntries(t testing.TB, g *Group, from, to, term uint64) {
	t.Helper()
	var l raft.Log
	for i := from; i <= to; i++ {
		must(t, getWhole(g, i, &l))
		want := makeLog(i, term)
		if l.Index != i || l.Term != term || l.Type != want.Type || !bytes.Equal(l.Data, want.Data) {
			t.Fatalf("entry %d is %+v", i, l)
		}
		if !bytes.Equal(l.Extensions, want.Extensions) {
			t.Fatalf("payload section of entry %d is %q, want %q", i, l.Extensions, want.Extensions)
		}
	}
	mustMissing(t, g, from-1, to+1)
}

func mustMissing(t testing.TB, g *Group, indexes ...uint64) {
	t.Helper()
	for _, i := range indexes {
		var l raft.Log
		if err := getWhole(g, i, &l); !errors.Is(err, raft.ErrLogNotFound) {
			t.Fatalf("entry %d: %+v, %v, want none", i, l, err)
		}
	}
}

func refOf(index, term uint64) fsm.Ref {
	return fsm.Ref{Index: index, Size: uint32(len(body(index, term)))}
}

func mustPayload(t testing.TB, g *Group, term uint64, indexes ...uint64) {
	t.Helper()
	for _, i := range indexes {
		p, err := g.Payload(refOf(i, term))
		must(t, err)
		if !bytes.Equal(p, body(i, term)) {
			t.Fatalf("payload of entry %d is %q", i, p)
		}
	}
}

func mustNoPayload(t testing.TB, g *Group, indexes ...uint64) {
	t.Helper()
	for _, i := range indexes {
		g.s.cache = newCache(1 << 20)
		if p, err := g.Payload(refOf(i, 1)); !errors.Is(err, ErrNoPayload) {
			t.Fatalf("payload of entry %d is %q, %v, want none", i, p, err)
		}
	}
}

// forgetCache makes the next reads go to disk.
func forgetCache(g *Group) { g.s.cache = newCache(1 << 20) }

var testConfig = raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a:1"}, {ID: "b", Address: "b:1"}}}

// mustSave takes a snapshot the way raft and a machine do.
func mustSave(t testing.TB, g *Group, index, term uint64, state []byte, live ...uint64) {
	t.Helper()
	must(t, save(g, index, term, state, live))
}

func save(g *Group, index, term uint64, state []byte, live []uint64) error {
	k, err := g.Snapshots().Create(1, index, term, testConfig, 1, nil)
	if err != nil {
		return err
	}
	if _, err := k.Write(state); err != nil {
		return err
	}
	k.(*Sink).SetLive(live)
	if err := k.Close(); err != nil {
		return err
	}
	return k.Close() // raft closes what the machine has closed
}

// mustRead returns the newest snapshot's description, state and stream.
func mustRead(t testing.TB, g *Group) (*raft.SnapshotMeta, []byte, []byte) {
	t.Helper()
	list, err := g.Snapshots().List()
	must(t, err)
	if len(list) != 1 {
		t.Fatalf("%d snapshots, want 1", len(list))
	}
	meta, r, err := g.Snapshots().Open(list[0].ID)
	must(t, err)
	stream, err := io.ReadAll(r)
	must(t, err)
	must(t, r.Close())
	if int64(len(stream)) != meta.Size {
		t.Fatalf("stream has %d bytes, its description says %d", len(stream), meta.Size)
	}
	sr, err := ReadState(bytes.NewReader(stream))
	must(t, err)
	state, err := io.ReadAll(sr)
	must(t, err)
	return meta, state, stream
}

// install gives a stream to a group the way raft does, in pieces.
func install(g *Group, index, term uint64, stream []byte, piece int) error {
	k, err := g.Snapshots().Create(1, index, term, testConfig, 1, nil)
	if err != nil {
		return err
	}
	for len(stream) > 0 {
		n := min(piece, len(stream))
		if _, err := k.Write(stream[:n]); err != nil {
			return errors.Join(err, k.Cancel())
		}
		stream = stream[n:]
	}
	return k.Close()
}

// Past reports whether the ledger says that this node held a replica of the
// group that acknowledged something, whether or not the store has any of it.
func (s *Store) Past(id fsm.GroupID) bool {
	s.ledger.mu.Lock()
	p := s.ledger.places[id]
	s.ledger.mu.Unlock()
	if p == nil || !p.known() {
		return false
	}
	r := p.get()
	return r.index > 0 || r.term > 0 || r.doubt != ""
}

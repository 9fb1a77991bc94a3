package raftlog

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

func TestEmptyLog(t *testing.T) {
	g := newGroup(t)
	mustBounds(t, g, 0, 0)
	mustMissing(t, g, 0, 1)
	must(t, g.DeleteRange(0, 10))
	must(t, g.StoreLogs(nil))
	if g.IsMonotonic() {
		t.Error("gaps are refused")
	}
}

func TestEntriesComeBackWhole(t *testing.T) {
	fs := vfs.NewMem()
	g := mustGroup(t, mustOpen(t, fs, "db"), 1)
	at := time.Unix(1700000000, 123456789)
	logs := []*raft.Log{
		{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(testConfig)},
		{Index: 2, Term: 1, Type: raft.LogNoop},
		{Index: 3, Term: 2, Type: raft.LogCommand, Data: []byte("h"), Extensions: []byte("payload"), AppendedAt: at},
		{Index: 4, Term: 2, Type: raft.LogBarrier, AppendedAt: at},
		{Index: 5, Term: 3, Type: raft.LogCommand, Data: bytes.Repeat([]byte("d"), 9000), Extensions: bytes.Repeat([]byte("e"), 300000)},
		{Index: 6, Term: 3, Type: raft.LogCommand, Extensions: []byte("no header")},
	}
	must(t, g.StoreLogs(logs[:2]))
	must(t, g.StoreLog(logs[2]))
	must(t, g.StoreLogs(logs[3:]))
	check := func() {
		t.Helper()
		mustBounds(t, g, 1, 6)
		for _, want := range logs {
			var l raft.Log
			must(t, getWhole(g, want.Index, &l))
			if l.Index != want.Index || l.Term != want.Term || l.Type != want.Type ||
				!bytes.Equal(l.Data, want.Data) || !bytes.Equal(l.Extensions, want.Extensions) || !l.AppendedAt.Equal(want.AppendedAt) {
				t.Errorf("entry %d differs: term %d, type %v, %d and %d bytes", want.Index, l.Term, l.Type, len(l.Data), len(l.Extensions))
			}
		}
	}
	lead(t, g, 3)
	check()
	forgetCache(g)
	check()
	g = reopen(t, fs, g)
	lead(t, g, 4)
	check()
	must(t, g.s.Close())
}

func TestGroupsAreApart(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, fs, "db")
	ids := []fsm.GroupID{1, 2, 255, 256, 0xffffffff}
	for n, id := range ids {
		mustStore(t, mustGroup(t, s, id), 1, uint64(n)+3, uint64(id))
		lead(t, mustGroup(t, s, id), uint64(id))
	}
	must(t, s.DropGroup(255))
	must(t, s.Close())
	s = mustOpen(t, fs, "db")
	got, err := s.GroupIDs()
	must(t, err)
	if len(got) != 4 || got[0] != 1 || got[1] != 2 || got[2] != 256 || got[3] != 0xffffffff {
		t.Errorf("groups %v", got)
	}
	for n, id := range ids {
		g := mustGroup(t, s, id)
		if id == 255 {
			mustBounds(t, g, 0, 0)
			continue
		}
		lead(t, g, uint64(id)+1)
		mustEntries(t, g, 1, uint64(n)+3, uint64(id))
	}
	must(t, s.Close())
}

func TestStoreLogsReplacesSuffix(t *testing.T) {
	g := newGroup(t)
	lead(t, g, 1)
	mustStore(t, g, 1, 9, 1)
	mustStore(t, g, 6, 7, 2)
	mustBounds(t, g, 1, 7)
	var l raft.Log
	for i := uint64(1); i <= 7; i++ {
		must(t, getWhole(g, i, &l))
		if want := uint64(1 + i/6); l.Term != want || !bytes.Equal(l.Extensions, body(i, want)) {
			t.Errorf("entry %d has term %d", i, l.Term)
		}
	}
	mustMissing(t, g, 8, 9)
}

func TestStoreLogsRefusesDisorder(t *testing.T) {
	g := newGroup(t)
	mustStore(t, g, 1, 3, 1)
	for _, logs := range [][]*raft.Log{
		{makeLog(4, 1), makeLog(6, 1)},
		{makeLog(4, 1), makeLog(4, 1)},
		{makeLog(0, 1)},
	} {
		if g.StoreLogs(logs) == nil {
			t.Errorf("entries %d … %d are accepted", logs[0].Index, logs[len(logs)-1].Index)
		}
	}
	mustBounds(t, g, 1, 3)
	if g.DeleteRange(2, 2) == nil {
		t.Error("a hole is accepted")
	}
}

func TestGapTruncatesWhatIsBefore(t *testing.T) {
	fs := vfs.NewMem()
	g := mustGroup(t, mustOpen(t, fs, "db"), 1)
	mustStore(t, g, 1, 4, 1)
	mustStore(t, g, 101, 104, 2)
	g = reopen(t, fs, g)
	lead(t, g, 2)
	mustBounds(t, g, 101, 104)
	mustEntries(t, g, 101, 104, 2)
	mustPayload(t, g, 1, 1, 2, 3, 4)
	must(t, g.s.Close())
}

func TestConflictingSuffix(t *testing.T) {
	fs := vfs.NewMem()
	g := mustGroup(t, mustOpen(t, fs, "db"), 1)
	lead(t, g, 1)
	mustStore(t, g, 1, 9, 1)
	g.Release([]uint64{3, 7, 8})
	must(t, g.DeleteRange(6, 9))
	mustEntries(t, g, 1, 5, 1)
	mustStore(t, g, 6, 12, 2)
	mustPayload(t, g, 2, 7, 8)
	mustSave(t, g, 8, 2, []byte("s"), 1, 2, 4, 6, 7, 8)
	must(t, g.DeleteRange(1, 8))
	mustNoPayload(t, g, 3)
	mustPayload(t, g, 2, 6, 7, 8) // the marks of 7 and 8 went with their entries
	g = reopen(t, fs, g)
	lead(t, g, 3)
	mustEntries(t, g, 9, 12, 2)
	mustPayload(t, g, 1, 1, 2, 4)
	mustPayload(t, g, 2, 6, 7, 8)
	must(t, g.s.Close())
}

func TestConflictFromTheFirstEntryDeletes(t *testing.T) {
	g := newGroup(t)
	mustStore(t, g, 1, 4, 1)
	must(t, g.DeleteRange(1, 4))
	mustBounds(t, g, 0, 0)
	mustNoPayload(t, g, 1, 2, 3, 4)
	mustRecords(t, g, kindHeader, 0)
	mustRecords(t, g, kindPayload, 0)
	mustStore(t, g, 1, 2, 2)
	mustPayload(t, g, 2, 1, 2)
}

func TestStable(t *testing.T) {
	fs := vfs.NewMem()
	g := mustGroup(t, mustOpen(t, fs, "db"), 1)
	if n, err := g.GetUint64([]byte("CurrentTerm")); n != 0 || err != nil {
		t.Errorf("missing number: %d, %v", n, err)
	}
	if v, err := g.Get([]byte("LastVoteCand")); len(v) != 0 || err != nil {
		t.Errorf("missing value: %q, %v", v, err)
	}
	must(t, g.SetUint64([]byte("CurrentTerm"), 7))
	must(t, g.SetUint64([]byte("CurrentTerm"), 8))
	must(t, g.Set([]byte("LastVoteCand"), []byte("node")))
	must(t, g.Set([]byte("empty"), nil))
	g = reopen(t, fs, g)
	if n, err := g.GetUint64([]byte("CurrentTerm")); n != 8 || err != nil {
		t.Errorf("number: %d, %v", n, err)
	}
	if v, err := g.Get([]byte("LastVoteCand")); string(v) != "node" || err != nil {
		t.Errorf("value: %q, %v", v, err)
	}
	if _, err := g.GetUint64([]byte("LastVoteCand")); err == nil {
		t.Error("a name passes for a number")
	}
	must(t, g.s.Close())
}

// Raft reads entries without payload sections, unless they are in memory; who sends them gets the sections, and
// those of no other entry.
func TestGetLogReadsNoPayloads(t *testing.T) {
	fs := vfs.NewMem()
	g := mustGroup(t, mustOpen(t, fs, "db"), 1)
	mustStore(t, g, 1, 4, 3)
	must(t, g.StoreLog(&raft.Log{Index: 5, Term: 3, Type: raft.LogNoop}))
	g = reopen(t, fs, g)
	must(t, g.SetUint64([]byte(TermKey), 4)) // as when raft has become a leader
	var l, bare, replaced raft.Log
	must(t, g.GetLog(2, &l))
	if len(l.Extensions) != 0 || string(l.Data) != "header 2/3" {
		t.Errorf("entry %+v is read with its payload section", l)
	}
	if _, _, misses := g.s.cache.stats(); misses == 0 {
		t.Error("the entry was in memory")
	}
	must(t, g.Complete(&l))
	if !bytes.Equal(l.Extensions, body(2, 3)) {
		t.Errorf("payload section %q", l.Extensions)
	}
	l = raft.Log{}
	if must(t, g.GetLog(2, &l)); !bytes.Equal(l.Extensions, body(2, 3)) {
		t.Errorf("entry %+v is in memory", l)
	}
	must(t, getWhole(g, 5, &bare))
	if bare.Extensions != nil {
		t.Errorf("an entry without a payload section is read with %q", bare.Extensions)
	}
	must(t, g.GetLog(3, &replaced))
	mustStore(t, g, 3, 3, 4)
	if err := g.Complete(&replaced); err == nil || len(replaced.Extensions) > 0 {
		t.Errorf("entry 3 of term %d gets the section of another term: %q", replaced.Term, replaced.Extensions)
	}
	mustSave(t, g, 3, 4, nil)
	must(t, g.DeleteRange(1, 3))
	if err := g.Complete(&raft.Log{Index: 3, Term: 4, Extensions: leftOut}); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("a truncated entry: %v", err)
	}
	must(t, g.s.Close())
}

func TestDroppedGroupRefuses(t *testing.T) {
	g := newGroup(t)
	mustStore(t, g, 1, 4, 1)
	mustSave(t, g, 3, 1, []byte("state"), 1)
	must(t, g.DeleteRange(1, 3))
	mustStore(t, g, 5, 9, 1)
	must(t, g.s.DropGroup(1))
	if g.StoreLog(makeLog(10, 1)) == nil || g.Set([]byte("a"), []byte("b")) == nil || save(g, 9, 1, nil, nil) == nil || g.Prove() == nil {
		t.Error("a dropped group stores")
	}
	g.Release([]uint64{1, 6})
	if n := g.s.Reclaimable(); n != 0 {
		t.Errorf("%d bytes reclaimable in no group", n)
	}
	again := mustGroup(t, g.s, 1)
	mustBounds(t, again, 0, 0)
	mustNoPayload(t, again, 1, 6)
	it, err := g.s.db.NewIter(nil)
	must(t, err)
	defer it.Close()
	if it.SeekGE([]byte{byte(kindStamp) + 1}) {
		t.Errorf("record %x is left", it.Key())
	}
}

// A reference that reaches beyond its payload section gets nothing, whether the section is in
// memory or has to be read.
func TestReferenceBeyondItsSection(t *testing.T) {
	g := newGroup(t)
	mustStore(t, g, 1, 4, 1)
	for _, where := range []string{"memory", "the store"} {
		for _, beyond := range []fsm.Ref{{Size: 1}, {Offset: 1}, {Offset: 1 << 31}} {
			ref := refOf(3, 1)
			ref.Offset, ref.Size = beyond.Offset, ref.Size+beyond.Size
			if p, err := g.Payload(ref); err == nil {
				t.Errorf("from %s: %+v gets %q", where, ref, p)
			}
		}
		forgetCache(g)
	}
}

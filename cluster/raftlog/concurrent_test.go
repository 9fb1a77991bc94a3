package raftlog

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// TestConcurrentUse lets raft's goroutines and the readers of payloads loose
// on a few groups at a time: one appends, one applies and releases, one takes
// snapshots and truncates, one replicates, one delivers, one sends snapshots.
func TestConcurrentUse(t *testing.T) {
	s := mustOpen(t, vfs.NewMem(), "db")
	var groups sync.WaitGroup
	for id := fsm.GroupID(1); id <= 3; id++ {
		groups.Go(func() { useConcurrently(t, mustGroup(t, s, id)) })
	}
	groups.Wait()
	must(t, checkSegments(s))
	if n := s.Reclaimable(); n < 0 {
		t.Errorf("%d reclaimable", n)
	}
	must(t, s.Close())
}

func useConcurrently(t *testing.T, g *Group) {
	const entries = 1000
	live := func(i uint64) bool { return i%97 == 0 && i%5 != 0 }
	if g.id == 2 {
		(&actor{g: g}).lag(nil)
	}
	var stored, applied atomic.Uint64
	var wg sync.WaitGroup
	until := func(f func()) {
		wg.Go(func() {
			for applied.Load() < entries {
				f()
			}
		})
	}
	if err := g.SetUint64([]byte("CurrentTerm"), 1); err != nil {
		t.Error(err)
	}
	wg.Go(func() {
		for i := uint64(1); i <= entries; i += 10 {
			if err := g.StoreLogs(makeLogs(i, i+9, 1)); err != nil {
				t.Error(err)
			}
			stored.Store(i + 9)
		}
	})
	wg.Go(func() {
		for i := uint64(1); i <= entries; {
			if stored.Load() < i {
				continue
			}
			var l raft.Log
			if err := getWhole(g, i, &l); err != nil || !bytes.Equal(l.Data, makeLog(i, 1).Data) {
				t.Errorf("apply %d: %v", i, err)
			}
			if !live(i) {
				g.Release([]uint64{i})
			}
			applied.Store(i)
			i++
		}
	})
	until(func() { // snapshots and truncation
		at := applied.Load()
		if at <= g.SnapshotIndex()+100 {
			return
		}
		var alive []uint64
		for i := uint64(1); i <= at; i++ {
			if live(i) {
				alive = append(alive, i)
			}
		}
		if err := save(g, at, 1, []byte("state"), alive); err != nil {
			t.Error(err)
		}
		first, _ := g.FirstIndex()
		if err := g.DeleteRange(first, at-20); err != nil {
			t.Error(err)
		}
	})
	at := uint64(0)
	until(func() { // replication to a slow follower
		at++
		var l raft.Log
		err := getWhole(g, at, &l)
		switch {
		case errors.Is(err, raft.ErrLogNotFound):
			if first, _ := g.FirstIndex(); at >= first {
				at = applied.Load()
			} else {
				at = first
			}
		case err != nil || !bytes.Equal(l.Extensions, body(at, 1)) || l.Index != at:
			t.Errorf("replicate %d: %+v, %v", at, l, err)
		}
	})
	until(func() { // deliveries
		for i := uint64(97); i <= applied.Load(); i += 97 {
			if p, err := g.Payload(refOf(i, 1)); live(i) && (err != nil || !bytes.Equal(p, body(i, 1))) {
				t.Errorf("payload %d: %q, %v", i, p, err)
			}
		}
	})
	until(func() { // a snapshot for a follower
		list, _ := g.Snapshots().List()
		if len(list) == 0 {
			return
		}
		meta, r, err := g.Snapshots().Open(list[0].ID)
		if errors.Is(err, ErrNoSnapshot) {
			return
		}
		n, err := io.Copy(io.Discard, r)
		if err != nil || n != meta.Size {
			t.Errorf("stream of %d bytes, %v, want %d", n, err, meta.Size)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	if g.id == 3 {
		until(func() { g.s.tidySegments(0, 1) })
	}
	wg.Wait()
}

func TestCache(t *testing.T) {
	c := newCache(cacheShards * 10000)
	e := func(n int) *entry { return &entry{header: true, ext: make([]byte, n), payload: uint32(n)} }
	key := func(i uint64) cacheKey { return cacheKey{1, 1, i} }
	for i := uint64(0); i < 1000; i++ {
		c.put(key(i), e(808))
		c.get(key(0)) // always in use
	}
	bytes, hits, misses := c.stats()
	if bytes > cacheShards*10000 || bytes < cacheShards*8000 {
		t.Errorf("%d bytes", bytes)
	}
	if hits != 1000 || misses != 0 {
		t.Errorf("%d hits, %d misses", hits, misses)
	}
	if c.get(key(999)) == nil || c.get(key(500)) != nil || c.get(cacheKey{2, 1, 999}) != nil || c.get(cacheKey{1, 2, 999}) != nil {
		t.Error("the wrong entries stay")
	}
	c.put(key(5000), e(20000))
	if c.get(key(5000)) != nil {
		t.Error("an entry larger than a shard is kept")
	}
	c.put(key(6000), &entry{ext: make([]byte, 10), payload: 10})
	c.put(key(6000), e(10))
	if !c.get(key(6000)).whole() {
		t.Error("the fuller entry is refused")
	}
	if !c.admits(key(1), admitAtOnce) || c.admits(key(1), admitAtOnce+1) || !c.admits(key(1), admitAtOnce+1) {
		t.Error("large entries are not admitted with the second read")
	}
}

// A large entry is read for one message without being kept.
func TestLargeEntryForOneMessage(t *testing.T) {
	g := newGroup(t)
	g.s.cache = newCache(16 << 20)
	l := makeLog(1, 1)
	l.Extensions = bytes.Repeat([]byte("0123456789"), 30000)
	must(t, g.StoreLog(l))
	g.s.cache = newCache(16 << 20)
	for read, want := range []int64{0, 300000 + cacheOverhead, 300000 + cacheOverhead} {
		p, err := g.Payload(fsm.Ref{Index: 1, Offset: 5, Size: 10})
		must(t, err)
		if string(p) != "5678901234" {
			t.Errorf("payload %q", p)
		}
		if cap(p) > 16 {
			t.Errorf("read %d: the slice reaches %d bytes far", read, cap(p))
		}
		if bytes, _, _ := g.s.cache.stats(); bytes != want {
			t.Errorf("read %d: %d bytes in the cache, want %d", read, bytes, want)
		}
	}
	for _, ref := range []fsm.Ref{{Index: 1, Offset: 299999, Size: 2}, {Index: 1, Offset: 1 << 31, Size: 1 << 31}} {
		if _, err := g.Payload(ref); err == nil || errors.Is(err, ErrNoPayload) {
			t.Errorf("%+v: %v", ref, err)
		}
		forgetCache(g)
	}
}

package raftlog

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkAppend appends single entries to many groups at once, each synced,
// and lets the payloads die young: what a busy node does to its store.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{300, 64 << 10} {
		for _, groups := range []int{1, 30, 100} {
			b.Run(fmt.Sprintf("%dB/%dgroups", size, groups), func(b *testing.B) { benchAppend(b, size, groups) })
		}
	}
}

func benchAppend(b *testing.B, size, groups int) {
	s, err := Open(b.TempDir(), Options{})
	must(b, err)
	defer s.Close()
	payload := make([]byte, size)
	header := make([]byte, 60)
	// Truncation keeps the dead bytes of all groups below half a memtable.
	every := uint64(max(8, DefaultMemTableBytes/4/groups/size))
	var left atomic.Int64
	left.Store(int64(b.N))
	b.SetBytes(int64(size))
	b.ResetTimer()
	start := cpu()
	var wg sync.WaitGroup
	for id := range groups {
		g := mustGroup(b, s, fsm.GroupID(id+1))
		wg.Go(func() {
			for i := uint64(1); left.Add(-1) >= 0; i++ {
				if err := g.StoreLog(&raft.Log{Index: i, Term: 1, Data: header, Extensions: payload}); err != nil {
					b.Error(err)
				}
				g.Release([]uint64{i})
				if i%every == 0 {
					if err := g.DeleteRange(1, i-4); err != nil {
						b.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64((cpu()-start).Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
	b.ReportMetric(float64(s.Metrics().WrittenBytes)/float64(b.N)/float64(size+len(header)), "written/byte")
}

// BenchmarkPayload reads single payloads of a backlog from disk, in order and
// at random.
func BenchmarkPayload(b *testing.B) {
	const entries = 20000
	for _, size := range []int{300, 16 << 10} {
		s, err := Open(b.TempDir(), Options{})
		must(b, err)
		g := mustGroup(b, s, 1)
		for i := uint64(1); i < entries; i += 100 {
			var logs []*raft.Log
			for n := i; n < i+100; n++ {
				logs = append(logs, &raft.Log{Index: n, Term: 1, Data: make([]byte, 60), Extensions: make([]byte, size)})
			}
			must(b, g.StoreLogs(logs))
		}
		must(b, g.DeleteRange(1, entries-1))
		must(b, s.db.Flush())
		for _, order := range []string{"sequential", "random", "cached"} {
			b.Run(fmt.Sprintf("%dB/%s", size, order), func(b *testing.B) {
				s.cache = newCache(DefaultCacheBytes)
				b.ReportAllocs()
				for n := range b.N {
					i := uint64(n%(entries-1) + 1)
					switch order {
					case "random":
						i = rand.Uint64N(entries-1) + 1
					case "cached":
						i = uint64(n%1000 + 1)
					}
					if _, err := g.Payload(fsm.Ref{Index: i, Size: uint32(size)}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		must(b, s.Close())
	}
}

// BenchmarkLoad loads groups with a log of 1000 entries.
func BenchmarkLoad(b *testing.B) {
	s, err := Open(b.TempDir(), Options{})
	must(b, err)
	defer s.Close()
	const groups = 50
	for id := fsm.GroupID(1); id <= groups; id++ {
		must(b, mustGroup(b, s, id).StoreLogs(makeLogs(1, 1000, 1)))
	}
	must(b, s.db.Flush())
	b.ResetTimer()
	for n := range b.N {
		if _, err := s.load(fsm.GroupID(n%groups + 1)); err != nil {
			b.Fatal(err)
		}
	}
}

package catalog

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/quorate/quorate/proto/logpb"
)

// mustName makes a catalog of three nodes with so many queues and no bindings. Each declare is read from
// its bytes, as a replica reads it.
func mustName(t testing.TB, queues int) *Catalog {
	c := &Catalog{}
	mustApply(t, c, "node n1 a", "node n2 b", "node n3 c", "initialize / guest")
	for done := 0; done < queues; {
		e := &logpb.CatalogEntry{Version: 1}
		for ; len(e.Commands) < 1000 && done < queues; done++ {
			e.Commands = append(e.Commands, declareNamed(fmt.Sprintf("orders.region-%02d.queue-%07d", done%64, done)))
		}
		read := new(logpb.CatalogEntry)
		if err := logpb.Unmarshal(encoded(e), read); err != nil {
			t.Fatal(err)
		}
		c.Apply(c.View().Index()+1, read)
	}
	if n := c.View().QueueCount(); n != queues {
		t.Fatalf("%d queues instead of %d", n, queues)
	}
	return c
}

func declareNamed(name string) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{
		Vhost: "/", Name: name, Durable: true, Members: []uint32{1, 2, 3},
	}}}
}

// A state that is written in parts is read as one. No part has more queues than a run.
func TestSnapshotParts(t *testing.T) {
	for _, n := range []int{0, 1, snapshotRun, snapshotRun + 1} {
		c := mustName(t, n)
		want := c.Hash()
		var state []byte
		parts := 0
		for part := range c.View().SnapshotParts() {
			if parts++; len(part.Queues) > snapshotRun || parts == 1 && len(part.Queues) > 0 {
				t.Errorf("part %d has %d queues", parts, len(part.Queues))
			}
			state = append(state, encoded(part)...)
			c.Apply(c.View().Index()+1, entryOf(t, fmt.Sprintf("queue / later-%d members=1", parts))) // meanwhile
		}
		read := new(logpb.CatalogSnapshot)
		if err := logpb.Unmarshal(state, read); err != nil {
			t.Fatal(err)
		}
		again, err := Restore(read)
		if err != nil {
			t.Fatal(err)
		}
		if again.Hash() != want || parts != 1+(n+snapshotRun-1)/snapshotRun {
			t.Errorf("%d queues: another state in %d parts", n, parts)
		}
	}
}

// BenchmarkNames is the catalog beside so many names: what one entry costs, what a look-up does, what a state
// takes in memory and on disk, and what it takes to write and to read that.
func BenchmarkNames(b *testing.B) {
	for _, n := range []int{10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("names=%d", n), func(b *testing.B) {
			before := liveHeap()
			c := mustName(b, n)
			each := float64(liveHeap()-before) / float64(n)
			b.Run("declare", func(b *testing.B) {
				index := c.View().Index()
				b.ReportAllocs()
				for b.Loop() {
					c.Apply(index+1, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{declareNamed("another")}})
					c.Apply(index+2, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{{
						Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{Vhost: "/", Name: "another"}},
					}}})
					index += 2
				}
				b.ReportMetric(each, "B/name")
			})
			b.Run("find", func(b *testing.B) {
				v, keys := c.View(), [1]string{fmt.Sprintf("orders.region-%02d.queue-%07d", (n/2)%64, n/2)}
				dst := make([]*Queue, 0, 4)
				b.ReportAllocs()
				for b.Loop() {
					if queues, _, err := v.Route("/", "", &Message{Keys: keys[:]}, dst[:0]); err != nil || len(queues) != 1 {
						b.Fatal(err)
					}
				}
			})
			b.Run("node", func(b *testing.B) { // one node has started anew, another is declared dead
				for b.Loop() {
					mustApply(b, c, "node n2 b2")
					n2, _ := c.View().NodeByName("n2")
					mustApply(b, c, fmt.Sprintf("dead n2 %d", n2.GetBoot()))
				}
			})
			b.Run("snapshot", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					b.SetBytes(int64(len(encoded(c.Snapshot()))))
				}
			})
			b.Run("restore", func(b *testing.B) {
				state := encoded(c.Snapshot())
				b.SetBytes(int64(len(state)))
				b.ReportAllocs()
				for b.Loop() {
					s := new(logpb.CatalogSnapshot)
					if err := logpb.Unmarshal(state, s); err != nil {
						b.Fatal(err)
					}
					if _, err := Restore(s); err != nil {
						b.Fatal(err)
					}
				}
			})
			runtime.KeepAlive(c)
		})
	}
}

func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

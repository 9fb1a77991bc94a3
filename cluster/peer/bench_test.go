package peer

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// eachSecurity runs a benchmark over plain links and over TLS.
func eachSecurity(b *testing.B, name string, run func(b *testing.B, tune func(*Config))) {
	b.Run("plain/"+name, func(b *testing.B) { run(b, nil) })
	b.Run("TLS/"+name, func(b *testing.B) {
		a := mustAuthority(b)
		run(b, func(cfg *Config) { cfg.Security = &Security{Keys: a.mustKeys(cfg.Node)} })
	})
}

// processorTime is what this process has used.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkAppend pipelines requests of one entry over loopback TCP to a
// consumer that answers at once.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{300, 64 << 10, 250 << 10, 1 << 20} {
		eachSecurity(b, fmt.Sprintf("%dB", size), func(b *testing.B, tune func(*Config)) {
			c := newCluster(b, true, 2, tune)
			c.startAll(nil)
			pl, err := c.members["n1"].Transport(1).AppendEntriesPipeline("n2", "n2")
			if err != nil {
				b.Fatal(err)
			}
			defer pl.Close()
			consumer := c.members["n2"].Transport(1).Consumer()
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			go func() {
				ok := &raft.AppendEntriesResponse{Term: 1, Success: true}
				for {
					select {
					case rpc := <-consumer:
						rpc.Respond(ok, nil)
					case <-ctx.Done():
						return
					}
				}
			}()
			data := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			start := processorTime()
			done := make(chan struct{})
			go func() {
				defer close(done)
				for range b.N {
					<-pl.Consumer()
				}
			}()
			for i := range b.N {
				req := &raft.AppendEntriesRequest{
					RPCHeader: raft.RPCHeader{ProtocolVersion: 3}, Term: 1,
					PrevLogEntry: uint64(i), Entries: []*raft.Log{{Index: uint64(i) + 1, Term: 1, Data: data}},
				}
				if _, err := pl.AppendEntries(req, new(raft.AppendEntriesResponse)); err != nil {
					b.Fatal(err)
				}
			}
			<-done
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "entries/s")
			b.ReportMetric(float64((processorTime()-start).Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
		})
	}
}

// BenchmarkAlone sends one entry at a time: the cost of all wake-ups.
func BenchmarkAlone(b *testing.B) {
	c := newCluster(b, true, 2, nil)
	c.startAll(nil)
	consumer := c.members["n2"].Transport(1).Consumer()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	go func() {
		for {
			select {
			case rpc := <-consumer:
				rpc.Respond(&raft.AppendEntriesResponse{Term: 1, Success: true}, nil)
			case <-ctx.Done():
				return
			}
		}
	}()
	trans := c.members["n1"].Transport(1)
	req := &raft.AppendEntriesRequest{Term: 1, Entries: []*raft.Log{{Index: 1, Data: make([]byte, 300)}}}
	b.ReportAllocs()
	for b.Loop() {
		if err := trans.AppendEntries("n2", "n2", req, new(raft.AppendEntriesResponse)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSend measures messages of the application.
func BenchmarkSend(b *testing.B) {
	for _, size := range []int{300, 64 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			c := newCluster(b, true, 2, nil)
			got := make(chan struct{}, 1000)
			c.startAll(func(m *member) {
				m.Handle(testMessage, func(string, []byte, []byte) { got <- struct{}{} })
			})
			m := c.members["n1"]
			head, payload := make([]byte, 30), make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if i >= 500 { // as many under way
					<-got
				}
				if err := m.Send("n2", testMessage, head, payload); err != nil {
					b.Fatal(err)
				}
			}
			for range min(b.N, 500) {
				<-got
			}
		})
	}
}

package group

import (
	"sync/atomic"
	"testing"

	"github.com/quorate/quorate/proto/logpb"
)

// counting counts answers, and asks for nothing else.
type counting struct {
	answered atomic.Uint64
	wake     chan struct{}
}

func (c *counting) Perform(_ *Group, w *Work) {
	n := uint64(0)
	for i := range w.Outcomes {
		n += w.Outcomes[i].Run
	}
	c.answered.Add(n)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *counting) Undecided(*Group, string) {}
func (c *counting) Led(*Group, uint64) {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// BenchmarkSubmit is the way of one message: submitted, batched, applied and
// answered, with so many under way at a time. The queue drops its head, so that
// payloads are freed as fast as they come.
func BenchmarkSubmit(b *testing.B) {
	config := &QueueConfig{MaxLengthPlusOne: 101}
	b.Run("replica", func(b *testing.B) {
		submitMany(b, func(n *lone) *Group {
			g, err := n.Open(Spec{Group: 1, Queue: 1 << 16, VHost: "/", Name: "q1", Members: []string{"n1"}, Config: config})
			if err != nil {
				b.Fatal(err)
			}
			return g
		})
	})
	b.Run("local", func(b *testing.B) {
		submitMany(b, func(n *lone) *Group { return n.OpenLocal(localSpec(1, config)) })
	})
}

func submitMany(b *testing.B, open func(n *lone) *Group) {
	const underWay = 512
	c := &counting{wake: make(chan struct{}, 1)}
	n := mustHost(b, b.TempDir(), func(conf *HostConfig) { conf.Outside = c })
	g := open(n)
	for g.Leading() == 0 {
		<-c.wake
	}
	body := make([]byte, 100)
	b.ReportAllocs()
	b.ResetTimer()
	for sent := uint64(0); sent < uint64(b.N); {
		if sent-c.answered.Load() >= underWay {
			<-c.wake
			continue
		}
		sent++
		batch := Batch{
			Commands: AppendCommand(nil, &logpb.Command{
				Kind: logpb.Command_ENQUEUE, Session: session.Proto(), Seq: sent,
				Enqueue: &logpb.Enqueue{Size: uint32(len(body))},
			}),
			Count: 1, Payloads: [][]byte{body}, Bytes: len(body),
		}
		if err := g.Submit(batch); err != nil {
			b.Fatal(err)
		}
	}
	for c.answered.Load() < uint64(b.N) {
		<-c.wake
	}
}

package broker

import (
	"slices"
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// replicated is a queue's log and machine without raft. What is submitted
// is lost.
type replicated struct {
	spec group.Spec

	mu       sync.Mutex
	machine  *queue.Machine
	now      func() fsm.Time
	index    uint64
	payloads map[uint64][]byte // sections, by index
}

func newReplicated(q *catalog.Queue, w *world) *replicated {
	r := &replicated{
		spec:    group.Spec{Group: q.Group, Queue: q.ID, VHost: q.VHost, Name: q.Name},
		machine: queue.New(q.Name, q.ID), payloads: map[uint64][]byte{},
		now: func() fsm.Time { return fsm.Time(w.clock.Load()) },
	}
	config := w.catalog.View().Settings(q, catalog.Defaults{})
	r.apply(w.t, group.BatchOf(&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: config}}))
	return r
}

func (r *replicated) Spec() group.Spec { return r.spec }

func (r *replicated) Leading() uint64 { return 1 }

func (r *replicated) View(f func(*queue.Machine)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.machine)
}

// Guard lets the test fail.
func (r *replicated) Guard(_ string, f func()) bool {
	f()
	return true
}

func (r *replicated) Submit(group.Batch) error {
	return nil
}

func (r *replicated) Payload(ref fsm.Ref) ([]byte, error) {
	return r.payloads[ref.Index][ref.Offset : ref.Offset+ref.Size], nil
}

// apply makes an entry of a batch and answers its commands.
func (r *replicated) apply(t fatal, b group.Batch) []group.Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.index++
	r.payloads[r.index] = slices.Concat(b.Payloads...)
	var eff fsm.Effects
	var all []group.Outcome
	m := fsm.Meta{Index: r.index, Term: 1, Now: r.now()}
	for _, c := range commands(t, b) {
		m.Session = fsm.SessionFrom(c.Session)
		result := r.machine.Apply(m, c, &eff)
		m.Offset += c.Enqueue.GetSize()
		if c.Seq > 0 {
			all = append(all, group.Outcome{First: c.Seq, Run: 1, Result: result})
		}
	}
	return all
}

// bodies lists what the queue holds, in order.
func (r *replicated) bodies() (all []string) {
	r.View(func(m *queue.Machine) {
		for x := range m.Messages() {
			p, _ := r.Payload(x.Ref)
			all = append(all, string(fsm.Payload(p).Body()))
		}
	})
	return all
}

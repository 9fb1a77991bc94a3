package grouptest

import (
	"slices"
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// Queue is a queue's log and machine, always led. What is submitted waits until
// it is committed or lost: nothing is applied but by Apply and Commit.
type Queue struct {
	spec group.Spec
	now  func() fsm.Time

	mu       sync.Mutex // guards what follows
	machine  *queue.Machine
	index    uint64
	payloads map[uint64][]byte // sections, by index
	waiting  []group.Batch
	letters  []fsm.DeadLetter
}

// NewQueue returns the queue that the catalog describes, configured.
func NewQueue(t Fatal, c *Catalog, q *catalog.Queue) *Queue {
	r := &Queue{
		spec:    group.Spec{Group: q.Group, Queue: q.ID, VHost: q.VHost, Name: q.Name},
		machine: queue.New(q.Name, q.ID), payloads: map[uint64][]byte{}, now: c.Stamp,
	}
	config := c.View().Settings(q, catalog.Defaults{})
	r.Apply(t, group.BatchOf(&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: config}}))
	return r
}

// Spec says which group it is.
func (r *Queue) Spec() group.Spec { return r.spec }

// Leading is the term.
func (r *Queue) Leading() uint64 { return 1 }

// View reads the machine.
func (r *Queue) View(f func(*queue.Machine)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.machine)
}

// Guard lets a panic fail the test.
func (r *Queue) Guard(_ string, f func()) bool {
	f()
	return true
}

// Submit keeps a batch.
func (r *Queue) Submit(b group.Batch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, b)
	return nil
}

// Waiting lists the batches that are submitted and neither committed nor lost.
func (r *Queue) Waiting() []group.Batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.waiting)
}

// Lose drops the n oldest batches that wait.
func (r *Queue) Lose(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = r.waiting[n:]
}

// Commit applies the oldest batch that waits, if there is one.
func (r *Queue) Commit(t Fatal) {
	r.mu.Lock()
	if len(r.waiting) == 0 {
		r.mu.Unlock()
		return
	}
	b := r.waiting[0]
	r.waiting = r.waiting[1:]
	r.mu.Unlock()
	r.Apply(t, b)
}

// Apply makes an entry of a batch and answers its numbered commands.
func (r *Queue) Apply(t Fatal, b group.Batch) []group.Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.index++
	r.payloads[r.index] = slices.Concat(b.Payloads...)
	var eff fsm.Effects
	defer func() { r.letters = append(r.letters, eff.DeadLetters...) }()
	var all []group.Outcome
	m := fsm.Meta{Index: r.index, Term: 1, Now: r.now(), Version: fsm.NewestVersion}
	for _, c := range Commands(t, b) {
		m.Session = fsm.SessionFrom(c.Session)
		result := r.machine.Apply(m, c, &eff)
		m.Offset += c.Enqueue.GetSize()
		if c.Seq > 0 {
			all = append(all, group.Outcome{First: c.Seq, Run: 1, Result: result})
		}
	}
	return all
}

// Payload reads what an entry has brought.
func (r *Queue) Payload(ref fsm.Ref) ([]byte, error) {
	return r.payloads[ref.Index][ref.Offset : ref.Offset+ref.Size], nil
}

// Index is that of the last entry.
func (r *Queue) Index() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.index
}

// DeadLetters lists the letters of no outbox since the beginning.
func (r *Queue) DeadLetters() []fsm.DeadLetter {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.letters)
}

// Outbox counts the letters in the outbox.
func (r *Queue) Outbox() (n uint64) {
	r.View(func(m *queue.Machine) { n = m.Stats().Outbox.Messages })
	return n
}

// Bodies lists the messages that the queue holds, in order.
func (r *Queue) Bodies() (all []string) {
	r.View(func(m *queue.Machine) {
		for x := range m.Messages() {
			p, _ := r.Payload(x.Ref)
			all = append(all, string(fsm.Payload(p).Body()))
		}
	})
	return all
}

// String is the machine's state.
func (r *Queue) String() (text string) {
	r.View(func(m *queue.Machine) { text = m.String() })
	return text
}

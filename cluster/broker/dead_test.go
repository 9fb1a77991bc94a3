package broker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// replicated is a queue's log and machine without raft. What is submitted
// waits until it is committed, or lost.
type replicated struct {
	spec group.Spec

	mu       sync.Mutex
	machine  *queue.Machine
	now      func() fsm.Time
	index    uint64
	payloads map[uint64][]byte // sections, by index
	waiting  []group.Batch
	sent     []fsm.DeadLetter // what was to be sent once
}

func newReplicated(q *catalog.Queue, w *world) *replicated {
	r := &replicated{
		spec:    group.Spec{Group: q.Group, Queue: q.ID, VHost: q.VHost, Name: q.Name},
		machine: queue.New(q.Name, q.ID), payloads: map[uint64][]byte{},
		now: func() fsm.Time { return fsm.Time(w.clock.Load()) },
	}
	config := w.catalog.View().Settings(q, catalog.Defaults{})
	r.apply(w.t, commandsOf(&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: config}}))
	return r
}

func (r *replicated) Spec() group.Spec { return r.spec }

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

func (r *replicated) Submit(b group.Batch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, b)
	return nil
}

func (r *replicated) Payload(ref fsm.Ref) ([]byte, error) {
	return r.payloads[ref.Index][ref.Offset : ref.Offset+ref.Size], nil
}

// commit applies the oldest batch that waits, if there is one.
func (r *replicated) commit(t fatal) {
	r.mu.Lock()
	if len(r.waiting) == 0 {
		r.mu.Unlock()
		return
	}
	b := r.waiting[0]
	r.waiting = r.waiting[1:]
	r.mu.Unlock()
	r.apply(t, b)
}

// apply makes an entry of a batch and answers its commands.
func (r *replicated) apply(t fatal, b group.Batch) []group.Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.index++
	r.payloads[r.index] = slices.Concat(b.Payloads...)
	var eff fsm.Effects
	defer func() { r.sent = append(r.sent, eff.DeadLetters...) }()
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

func (r *replicated) outbox() (n uint64) {
	r.View(func(m *queue.Machine) { n = m.Stats().Outbox.Messages })
	return n
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

// letterbox is a queue whose messages die at once, and two that take them.
type letterbox struct {
	w       *world
	source  *replicated
	targets map[fsm.QueueID]*replicated
	f       *forwarder
	watched []*stream.Route
}

func newLetterbox(t fatal, targets ...string) *letterbox {
	w := newWorld(t)
	arguments := &fsm.Table{Fields: []*logpb.Field{
		{Name: "x-dead-letter-exchange", Value: &logpb.Value{Tag: 'S', Str: []byte("amq.fanout")}},
		{Name: "x-message-ttl", Value: &logpb.Value{Tag: 'l', Int: 0}},
	}}
	r := w.commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{
		Vhost: "/", Name: "hold", Durable: true, Members: []uint32{1}, Arguments: arguments,
	}}})
	q, _ := w.View().QueueByID(fsm.QueueID(r.Queue))
	b := &letterbox{w: w, source: newReplicated(q, w), targets: map[fsm.QueueID]*replicated{}}
	for _, name := range targets {
		b.addTarget(name)
	}
	b.start()
	return b
}

func (b *letterbox) addTarget(name string) *catalog.Queue {
	q := b.w.mustQueue(name)
	b.w.commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: &logpb.Bind{
		Vhost: "/", Source: "amq.fanout", Destination: name,
	}}})
	b.targets[q.ID] = newReplicated(q, b.w)
	return q
}

// start makes a forwarder as a new leader does.
func (b *letterbox) start() {
	if b.f != nil {
		b.f.stop()
	}
	b.f = newForwarder(b.w.broker, b.source)
	b.f.running = true // only the test runs it
}

// run lets the forwarder look once.
func (b *letterbox) run() {
	b.f.mu.Lock()
	b.f.again = true
	b.f.mu.Unlock()
	b.f.run()
	b.f.mu.Lock()
	b.f.running = true
	b.f.mu.Unlock()
}

// die makes a message die.
func (b *letterbox) die(t fatal, body string) {
	p := payload(body)
	b.source.apply(t, group.Batch{
		Commands: group.AppendCommand(nil, &logpb.Command{
			Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: uint32(len(p))},
		}),
		Count: 1, Payloads: [][]byte{p}, Bytes: len(p),
	})
}

// carry takes what is on its way to the targets there, and their answers back,
// each with the chance that lose does not lose it.
func (b *letterbox) carry(t fatal, lose func() bool) {
	for id, r := range b.targets {
		target := b.w.broker.routes.Find(id)
		if target == nil {
			continue
		}
		for _, l := range target.Streams() {
			for _, batch := range take(l) {
				if lose() {
					continue
				}
				if answers := r.apply(t, batch); !lose() {
					tell(l, answers...)
				}
			}
		}
	}
}

// longStall is as long as a stream waits at most before it sends again, in
// milliseconds.
const longStall = 48_000

// settle lets everything come to an end, without any more losses.
func (b *letterbox) settle(t fatal) {
	t.Helper()
	for range 40 {
		if b.source.outbox() == 0 {
			return
		}
		b.w.clock.Add(proposeAgain + longStall)
		b.watched = b.w.broker.routes.Watch(b.watched)
		b.run()
		for len(b.source.waiting) > 0 {
			b.source.commit(t)
		}
		b.carry(t, func() bool { return false })
	}
	t.Fatalf("%d letters never leave:\n%v", b.source.outbox(), b.source.machine)
}

// Letters arrive at every target once and in order, although proposals,
// transfers and answers get lost and leaders change in between.
func TestForwarderProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newLetterbox(t, "a", "b")
		chance := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		lose := func() bool { return chance.IntN(3) == 0 }
		var want []string
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch chance.IntN(8) {
			case 0, 1:
				want = append(want, fmt.Sprint("letter ", len(want)))
				b.die(t, want[len(want)-1])
			case 2:
				b.source.commit(t)
			case 3:
				if n := len(b.source.waiting); n > 0 && lose() {
					b.source.waiting = b.source.waiting[1:]
				}
			case 4:
				b.carry(t, lose)
			case 5:
				if lose() {
					b.start()
				}
			case 6:
				b.w.clock.Add(chance.Int64N(proposeAgain))
			default:
				b.run()
			}
		}
		b.settle(t)
		for id, r := range b.targets {
			if got := r.bodies(); !slices.Equal(got, want) {
				t.Fatalf("target %d holds %q, want %q", id, got, want)
			}
		}
	})
}

// A forwarder that waits for an effect proposes nothing twice.
func TestForwarderIsPatient(t *testing.T) {
	b := newLetterbox(t, "a")
	for i := range 10 {
		b.die(t, fmt.Sprint(i))
	}
	for range 5 {
		b.run()
	}
	if n := len(b.source.waiting); n != 1 {
		t.Fatalf("%d routes are proposed, want 1", n)
	}
	b.source.commit(t)
	b.run()
	b.carry(t, func() bool { return false })
	for range 5 {
		b.run()
	}
	if n := len(b.source.waiting); n != 1 {
		t.Fatalf("%d settlements are proposed, want 1", n)
	}
	b.source.commit(t)
	for range 5 {
		b.run()
	}
	if n := len(b.source.waiting); n != 0 || b.source.outbox() != 0 {
		t.Errorf("%d proposals at the end, %d letters left", n, b.source.outbox())
	}
}

// Letters to a target that goes away are over; those to another one are not.
func TestForwarderTargetDeleted(t *testing.T) {
	b := newLetterbox(t, "a")
	gone := b.addTarget("gone")
	b.die(t, "1")
	b.run()
	b.source.commit(t)
	b.run()
	b.w.deleteQueue(gone)
	b.die(t, "2")
	b.settle(t)
	var left []queue.Target
	b.w.clock.Add(proposeAgain)
	b.run()
	b.source.commit(t)
	b.run()
	b.source.View(func(m *queue.Machine) { left = m.Targets(0, 100) })
	if len(left) != 1 || left[0].ID == gone.ID || len(b.f.streams) != 1 {
		t.Errorf("targets %v and %d streams are left", left, len(b.f.streams))
	}
	for id, r := range b.targets {
		want := []string{"1", "2"}
		if id == gone.ID {
			want = nil
		}
		if got := r.bodies(); !slices.Equal(got, want) {
			t.Errorf("target %d holds %q, want %q", id, got, want)
		}
	}
}

// A target that this node's catalog does not know yet is waited for, not
// taken for gone.
func TestForwarderUnknownTarget(t *testing.T) {
	b := newLetterbox(t)
	next := fsm.QueueID((b.w.index + 1) << 16)
	b.die(t, "1")
	b.source.apply(t, commandsOf(&logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: &logpb.RouteDead{
		First: 1, Routes: []*logpb.DeadRoute{{Targets: []uint64{uint64(next)}}}, // by a leader that knows more
	}}))
	for range 3 {
		b.w.clock.Add(proposeAgain)
		b.run()
	}
	if len(b.source.waiting) != 0 {
		t.Fatalf("the source is told %v", commands(t, b.source.waiting[0]))
	}
	q := b.addTarget("a")
	if q.ID != next {
		t.Fatalf("the queue has the id %d, expected %d", q.ID, next)
	}
	b.settle(t)
	if got := b.targets[next].bodies(); !slices.Equal(got, []string{"1"}) {
		t.Errorf("the target holds %q", got)
	}
}

// What the log settles that a stream has not got to yet, by a former leader's
// answers, is left out; but not before the stream has heard of what it has sent.
func TestForwarderBehindItsLog(t *testing.T) {
	b := newLetterbox(t, "a")
	a := b.target(t, "a")
	b.die(t, "1")
	b.run()
	b.source.commit(t)
	b.run() // letter 1 is in the stream
	l := b.w.broker.routes.Find(a.spec.Queue).Streams()[0]
	b.die(t, "2")
	b.die(t, "3")
	to := &logpb.DeadRoute{Targets: []uint64{uint64(a.spec.Queue)}}
	b.source.apply(t, commandsOf(
		&logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: &logpb.RouteDead{First: 2, Routes: []*logpb.DeadRoute{to, to}}},
		&logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{Target: uint64(a.spec.Queue), Upto: 2}},
	))
	for seq, body := range []string{"1", "2"} { // what the former leader has sent
		p := payload(body)
		batch := commandsOf(&logpb.Command{
			Kind: logpb.Command_ENQUEUE, Session: b.f.id.Proto(), Seq: uint64(seq + 1), Enqueue: &logpb.Enqueue{Size: uint32(len(p))},
		})
		batch.Payloads, batch.Bytes = [][]byte{p}, len(p)
		a.apply(t, batch)
	}
	b.run()
	b.f.mu.Lock()
	waiting := l.Waiting()
	b.f.mu.Unlock()
	if waiting != 1 {
		t.Errorf("%d letters wait for answers, want the first one only", waiting)
	}
	for range 2 { // no time passes
		b.carry(t, func() bool { return false })
		b.run()
	}
	b.carry(t, func() bool { return false })
	if got := a.bodies(); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("the target holds %q", got)
	}
}

// What is on its way to one target is bounded by bytes.
func TestForwarderBytes(t *testing.T) {
	b := newLetterbox(t, "a")
	const size = forwardBytes / 3
	for range 12 {
		b.die(t, string(make([]byte, size)))
	}
	b.run()
	b.source.commit(t)
	b.run()
	for _, tr := range b.f.streams {
		if tr.bytes < forwardBytes || tr.bytes > forwardBytes+2*size {
			t.Errorf("%d bytes are on their way", tr.bytes)
		}
	}
	b.settle(t)
	for _, r := range b.targets {
		if got := len(r.bodies()); got != 12 {
			t.Errorf("%d letters have arrived", got)
		}
	}
}

func TestCycle(t *testing.T) {
	death := func(queue string, reason logpb.Death_Reason) *logpb.Death {
		return &logpb.Death{Queue: queue, Reason: reason}
	}
	const expired, rejected = logpb.Death_EXPIRED, logpb.Death_REJECTED
	for _, tc := range []struct {
		name   string
		deaths []*logpb.Death
		want   bool
	}{
		{"first death", []*logpb.Death{death("a", expired)}, false},
		{"back to where it died", []*logpb.Death{death("a", expired), death("b", expired)}, true},
		{"to itself", []*logpb.Death{death("b", expired)}, true},
		{"rejected on the way", []*logpb.Death{death("a", rejected), death("b", expired)}, false},
		{"rejected before", []*logpb.Death{death("a", expired), death("b", expired), death("c", rejected)}, true},
		{"rejected there", []*logpb.Death{death("b", rejected)}, false},
	} {
		if got := cycle(tc.deaths, "b"); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

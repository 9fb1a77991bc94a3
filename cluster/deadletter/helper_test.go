package deadletter

import (
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// fatal is what fails a test: a testing.TB or a rapid.T.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// world is a node alone, in a time of its own, that sends dead letters.
type world struct {
	t      fatal
	sender *Sender
	table  *stream.Table
	clock  atomic.Int64 // ms
	boot   atomic.Uint64
	stale  atomic.Bool // the view may be out of date
	odd    atomic.Int64
	broken atomic.Bool // submitting panics
	view   atomic.Pointer[catalog.View]

	mu      sync.Mutex // guards what follows
	catalog catalog.Catalog
	index   uint64
}

var (
	_ Host        = (*world)(nil)
	_ stream.Host = (*world)(nil)
)

func newWorld(t fatal) *world {
	w := &world{t: t}
	w.view.Store(w.catalog.View())
	w.clock.Store(1_000_000)
	w.boot.Store(7)
	w.table = stream.NewTable(w)
	w.sender = New(Config{Node: "n1", Host: w, Routes: w.table, Properties: noProperties{}, Logger: slog.New(slog.DiscardHandler)})
	w.commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{
		Name: "n1", PeerAddress: "n1", Incarnation: []byte("0123456789abcdef"),
	}}})
	w.commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Initialize{Initialize: &logpb.Initialize{
		Vhost:      &logpb.PutVhost{Name: "/"},
		User:       &logpb.PutUser{Name: "guest", Tags: []string{"administrator"}},
		Permission: &logpb.PutPermission{User: "guest", Vhost: "/", Configure: ".*", Write: ".*", Read: ".*"},
	}}})
	return w
}

func (w *world) Name() string                             { return "n1" }
func (w *world) NodeName(fsm.NodeID) string               { return "n1" }
func (w *world) View() *catalog.View                      { return w.view.Load() }
func (w *world) Fresh() bool                              { return !w.stale.Load() }
func (w *world) Self() (fsm.NodeID, uint64)               { return 1, w.boot.Load() }
func (w *world) Now() int64                               { return w.clock.Load() }
func (w *world) Stamp() fsm.Time                          { return fsm.Time(w.clock.Load()) }
func (w *world) Used(*catalog.Exchange)                   {}
func (w *world) OddAnswer(fsm.QueueID, string, fsm.Code)  { w.odd.Add(1) }
func (w *world) Ask(*stream.Route, string, stream.Resync) {}
func (w *world) Leads(*stream.Route, string) uint64       { return 0 }

func (w *world) Submit(*stream.Route, string, group.Batch) bool {
	if w.broken.Load() {
		panic("injected")
	}
	return true
}

func (w *world) Guard(_ string, f func()) (ok bool) {
	defer func() { _ = recover() }()
	f()
	return true
}

func (w *world) Spawn(doing string, f func()) bool {
	go w.Guard(doing, f)
	return true
}

func (w *world) QueueGone(id fsm.QueueID) {
	w.sender.Drop(id)
	w.table.QueueGone(id)
}

func (w *world) commit(c *logpb.CatalogCommand) *logpb.CatalogResult {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.index++
	r := w.catalog.Apply(w.index, &logpb.CatalogEntry{Version: 1, Now: w.clock.Load(), Commands: []*logpb.CatalogCommand{c}})
	w.view.Store(w.catalog.View())
	if r[0].Refusal != 0 {
		w.t.Fatalf("catalog refuses: %s", r[0].Text)
	}
	return r[0]
}

// mustQueue makes a queue in the catalog.
func (w *world) mustQueue(name string) *catalog.Queue {
	w.t.Helper()
	r := w.commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{
		Vhost: "/", Name: name, Durable: true, Members: []uint32{1},
	}}})
	q, ok := w.View().QueueByID(fsm.QueueID(r.Queue))
	if !ok {
		w.t.Fatalf("queue %s is not there", name)
	}
	return q
}

// deleteQueue removes a queue from the catalog, and tells the node.
func (w *world) deleteQueue(q *catalog.Queue) {
	w.t.Helper()
	w.commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{
		Vhost: "/", Name: q.Name, Id: uint64(q.ID),
	}}})
	w.QueueGone(q.ID)
}

type noProperties struct{}

func (noProperties) Expiration([]byte) string                  { return "" }
func (noProperties) Headers([]byte, []*logpb.Death) *fsm.Table { return nil }
func (noProperties) Copies([]byte) []string                    { return nil }
func (noProperties) Property([]byte, string) []byte            { return nil }
func (noProperties) Delay([]byte) fsm.Millis                   { return 0 }
func (noProperties) Delayed(properties []byte) []byte          { return properties }
func (noProperties) Deaths([]byte) []*logpb.Death              { return nil }
func (noProperties) Redirected(properties []byte) []byte       { return properties }

func payload(body string) fsm.Payload {
	return append(fsm.AppendPayloadHead(nil, "", "k", nil), body...)
}

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
	f       *outboxSender
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

// start makes a sender as a new leader does.
func (b *letterbox) start() {
	if b.f != nil {
		b.f.stop()
	}
	b.f = newOutboxSender(b.w.sender, b.source)
	b.f.running = true // only the test runs it
}

// run lets the sender look once.
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
		target := b.w.table.Find(id)
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
		b.watched = b.w.table.Watch(b.watched)
		b.run()
		for len(b.source.waiting) > 0 {
			b.source.commit(t)
		}
		b.carry(t, func() bool { return false })
	}
	t.Fatalf("%d letters never leave:\n%v", b.source.outbox(), b.source.machine)
}

// take collects what a stream has to send, as its route does.
func take(s *stream.Stream) []group.Batch {
	var all []group.Batch
	for full := true; full; {
		b := stream.NewLoad()
		full = s.Take(&b)
		b.Submit(func(b group.Batch) bool {
			all = append(all, b)
			return true
		})
	}
	return all
}

// commands decodes a batch.
func commands(t fatal, b group.Batch) []*logpb.Command {
	t.Helper()
	var e logpb.Entry
	if err := e.UnmarshalVT(b.Commands); err != nil {
		t.Fatalf("a batch cannot be decoded: %v", err)
	}
	if len(e.Commands) != b.Count {
		t.Fatalf("a batch has %d commands and says %d", len(e.Commands), b.Count)
	}
	return e.Commands
}

// tell gives a stream answers of its leader.
func tell(s *stream.Stream, answers ...group.Outcome) {
	leader, _, _ := s.Route().Leader()
	s.Answer(leader, answers)
}

func code(seq uint64, c fsm.Code) group.Outcome {
	return group.Outcome{First: seq, Run: 1, Result: fsm.Result{Code: c}}
}

// mustEventually waits for a state that other goroutines bring about.
func mustEventually(t fatal, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time")
		}
	}
}

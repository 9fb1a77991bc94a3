package deadletter

import (
	"log/slog"
	"sync/atomic"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/stream/streamtest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// world is a node alone, in a time of its own, that sends dead letters.
type world struct {
	*grouptest.Catalog
	t      grouptest.Fatal
	sender *Sender
	table  *stream.Table
	boot   atomic.Uint64
	stale  atomic.Bool // the view may be out of date
	odd    atomic.Int64
	broken atomic.Bool // submitting panics
}

var (
	_ Host        = (*world)(nil)
	_ stream.Host = (*world)(nil)
)

func newWorld(t grouptest.Fatal) *world {
	w := &world{Catalog: grouptest.NewCatalog(t), t: t}
	w.boot.Store(7)
	w.table = stream.NewTable(w)
	w.sender = New(Config{Node: "n1", Host: w, Routes: w.table, Properties: grouptest.NoProperties{}, Logger: slog.New(slog.DiscardHandler)})
	return w
}

func (w *world) Name() string                             { return "n1" }
func (w *world) NodeName(fsm.NodeID) string               { return "n1" }
func (w *world) Fresh() bool                              { return !w.stale.Load() }
func (w *world) Self() (fsm.NodeID, uint64)               { return 1, w.boot.Load() }
func (w *world) Used(*catalog.Exchange)                   {}
func (w *world) OddAnswer(fsm.QueueID, string, fsm.Code)  { w.odd.Add(1) }
func (w *world) Ask(*stream.Route, string, stream.Resync) {}
func (w *world) Want(*stream.Route)                       {}
func (w *world) Leads([]*stream.Route, string) []uint64   { return nil }

func (w *world) Submit(*stream.Route, string, group.Batch) error {
	if w.broken.Load() {
		panic("injected")
	}
	return nil
}

func (w *world) Try(_ string, f func()) (ok bool) {
	defer func() { _ = recover() }()
	f()
	return true
}

func (w *world) Spawn(doing string, f func()) bool {
	go w.Try(doing, f)
	return true
}

func (w *world) QueueGone(id fsm.QueueID) {
	w.sender.Drop(id)
	w.table.QueueGone(id)
}

// deleteQueue removes a queue from the catalog, and tells the node.
func (w *world) deleteQueue(q *catalog.Queue) {
	w.t.Helper()
	w.Delete(q)
	w.QueueGone(q.ID)
}

// letterbox is a queue whose messages die at once, and two that take them.
type letterbox struct {
	w       *world
	source  *grouptest.Queue
	targets map[fsm.QueueID]*grouptest.Queue
	f       *outboxSender
}

func newLetterbox(t grouptest.Fatal, targets ...string) *letterbox {
	w := newWorld(t)
	arguments := &fsm.Table{Fields: []*logpb.Field{
		{Name: "x-dead-letter-exchange", Value: &logpb.Value{Tag: 'S', Str: []byte("amq.fanout")}},
		{Name: "x-message-ttl", Value: &logpb.Value{Tag: 'l', Int: 0}},
	}}
	q := w.MustDeclare(&logpb.DeclareQueue{Vhost: "/", Name: "hold", Durable: true, Members: []uint32{1}, Arguments: arguments})
	b := &letterbox{w: w, source: grouptest.NewQueue(t, w.Catalog, q), targets: map[fsm.QueueID]*grouptest.Queue{}}
	for _, name := range targets {
		b.addTarget(name)
	}
	b.start()
	return b
}

func (b *letterbox) addTarget(name string) *catalog.Queue {
	q := b.w.MustQueue(name)
	b.w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: &logpb.Bind{
		Vhost: "/", Source: "amq.fanout", Destination: name,
	}}})
	b.targets[q.ID] = grouptest.NewQueue(b.w.t, b.w.Catalog, q)
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
func (b *letterbox) die(t grouptest.Fatal, body string) {
	p := grouptest.Payload(body)
	b.source.Apply(t, grouptest.Enqueue(p))
}

// carry takes what is on its way to the targets there, and their answers back,
// each with the chance that lose does not lose it.
func (b *letterbox) carry(t grouptest.Fatal, lose func() bool) {
	for id, r := range b.targets {
		target := b.w.table.Find(id)
		if target == nil {
			continue
		}
		for _, l := range target.Streams() {
			for _, batch := range streamtest.Take(l) {
				if lose() {
					continue
				}
				if answers := r.Apply(t, batch); !lose() {
					streamtest.Tell(l, answers...)
				}
			}
		}
	}
}

// recall has targets say what they have of what was sent to them, as a leader does that is asked.
func (b *letterbox) recall() {
	for id, r := range b.targets {
		target := b.w.table.Find(id)
		if target == nil {
			continue
		}
		for _, l := range target.Streams() {
			oldest := l.Next() - uint64(l.Waiting())
			var answers []group.Outcome
			r.View(func(m *queue.Machine) {
				p := queue.PositionOf(m, l.ID())
				for n := oldest; n < p.Next; n++ {
					answers = append(answers, group.Outcome{First: n, Run: 1, Result: queue.AnswerAgain(m, l.ID(), &logpb.Command{Seq: n}, nil)})
				}
				expected := fsm.Result{Code: fsm.Gap, Next: max(p.Next, oldest)}
				answers = append(answers, group.Outcome{First: l.Next(), Run: 1, Result: expected})
			})
			streamtest.Tell(l, answers...)
		}
	}
}

// drain lets everything come to an end, without any more losses.
func (b *letterbox) drain(t grouptest.Fatal) {
	t.Helper()
	for range 40 {
		if b.source.Outbox() == 0 {
			return
		}
		b.w.Clock.Add(proposeAgain)
		b.recall()
		b.run()
		for len(b.source.Waiting()) > 0 {
			b.source.Commit(t)
		}
		b.carry(t, func() bool { return false })
	}
	t.Fatalf("%d letters never leave:\n%v", b.source.Outbox(), b.source)
}

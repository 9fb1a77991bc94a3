package broker

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/deadletter"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// fatal is what fails a test: a testing.TB or a rapid.T.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// world is a broker without links or groups, in a time of its own.
type world struct {
	t       fatal
	broker  *Broker
	host    *testedHost
	clock   atomic.Int64                 // ms
	stale   atomic.Bool                  // the view may be out of date
	view    atomic.Pointer[catalog.View] // what others may read
	mu      sync.Mutex                   // guards what follows
	catalog catalog.Catalog
	index   uint64
}

func newWorld(t fatal) *world {
	w := &world{t: t}
	w.view.Store(w.catalog.View())
	w.clock.Store(1_000_000)
	w.broker = New(Config{
		Node: "n1", Catalog: w, Properties: noProperties{}, Logger: slog.New(slog.DiscardHandler),
		Clock:           func() fsm.Time { return fsm.Time(w.clock.Load()) },
		Stamp:           func() fsm.Time { return fsm.Time(w.clock.Load()) },
		LeaderlessGrace: time.Minute, GroupSize: 3,
	})
	w.host = &testedHost{Host: (*host)(w.broker), submit: map[fsm.QueueID]func(string, group.Batch) bool{}}
	w.broker.routes = stream.NewTable(w.host)
	w.broker.letters = deadletter.New(deadletter.Config{
		Node: "n1", Host: (*host)(w.broker), Routes: w.broker.routes, Properties: noProperties{}, Logger: w.broker.slog,
	})
	w.broker.boot.Store(7)
	w.broker.self.Store(1)
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

// View and Propose make the world the broker's catalog.
func (w *world) View() *catalog.View { return w.view.Load() }

func (w *world) Refresh(ctx context.Context) error {
	for w.stale.Load() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		default:
			runtime.Gosched()
		}
	}
	return nil
}

func (w *world) Fresh() bool { return !w.stale.Load() }

func (w *world) Isolated() string { return "" }

func (w *world) Converge(context.Context) error { return nil }

func (w *world) Note(ctx context.Context, cs ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	return w.Propose(ctx, cs...)
}

func (w *world) Propose(_ context.Context, cs ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.index++
	r := w.catalog.Apply(w.index, &logpb.CatalogEntry{Version: 1, Now: w.clock.Load(), Commands: cs})
	w.view.Store(w.catalog.View())
	return r, nil
}

func (w *world) commit(c *logpb.CatalogCommand) *logpb.CatalogResult {
	w.t.Helper()
	r, _ := w.Propose(context.Background(), c)
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

// deleteQueue removes a queue from the catalog, and tells the broker.
func (w *world) deleteQueue(q *catalog.Queue) {
	w.t.Helper()
	w.commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{
		Vhost: "/", Name: q.Name, Id: uint64(q.ID),
	}}})
	w.broker.QueueGone(q.ID)
}

// mustSession opens a session that tells c.
func (w *world) mustSession(c *recorder) *Session {
	w.t.Helper()
	conn, err := w.broker.Connect(context.Background(), "guest", "/")
	if err != nil {
		w.t.Fatalf("connect: %v", err)
	}
	s, err := conn.OpenSession(c)
	if err != nil {
		w.t.Fatalf("open session: %v", err)
	}
	return s
}

type noProperties struct{}

func (noProperties) Expiration([]byte) string                  { return "" }
func (noProperties) Headers([]byte, []*logpb.Death) *fsm.Table { return nil }
func (noProperties) Copies([]byte) []string                    { return nil }
func (noProperties) Property([]byte, string) []byte            { return nil }
func (noProperties) Describe([]byte, *fsm.Message) *fsm.Table  { return &fsm.Table{} }
func (noProperties) Delay([]byte) fsm.Millis                   { return 0 }
func (noProperties) Delayed(properties []byte) []byte          { return properties }
func (noProperties) Deaths([]byte) []*logpb.Death              { return nil }
func (noProperties) Redirected(properties []byte) []byte       { return properties }

func payload(body string) fsm.Payload {
	return append(fsm.AppendPayloadHead(nil, "", "k", nil), body...)
}

// recorder is a channel that keeps what it is told.
type recorder struct {
	mu       sync.Mutex
	busy     atomic.Int32
	overlap  atomic.Bool
	settled  map[uint64]int // how often
	refused  int
	messages []fsm.Message
	lost     []error
	log      []string
	gate     chan struct{} // Deliver waits for it; nil: it does not
}

func (r *recorder) enter() func() {
	if r.busy.Add(1) != 1 {
		r.overlap.Store(true)
	}
	r.mu.Lock()
	return func() {
		r.mu.Unlock()
		r.busy.Add(-1)
	}
}

func (r *recorder) Confirmed(first, last uint64, ok bool) {
	defer r.enter()()
	if r.settled == nil {
		r.settled = map[uint64]int{}
	}
	for n := first; n <= last; n++ {
		r.settled[n]++
	}
	if !ok {
		r.refused++
	}
	r.log = append(r.log, "settled")
}

func (r *recorder) Refused(_ fsm.Payload, why *fsm.Refusal) {
	defer r.enter()()
	r.log = append(r.log, fmt.Sprint("refused ", why))
}

func (r *recorder) Returned(p fsm.Payload) {
	defer r.enter()()
	r.log = append(r.log, "returned "+string(p.Body()))
}

func (r *recorder) Deliver(messages []fsm.Message) {
	if r.gate != nil {
		<-r.gate
	}
	defer r.enter()()
	r.messages = append(r.messages, messages...)
	r.log = append(r.log, "deliver")
}

func (r *recorder) Cancelled(uint64) {
	defer r.enter()()
	r.log = append(r.log, "cancelled")
}

func (r *recorder) Revoked(_ uint64, why error) {
	defer r.enter()()
	r.log = append(r.log, "revoked: "+why.Error())
}

func (r *recorder) TimedOut(uint64, []uint64, fsm.Millis) {
	defer r.enter()()
	r.log = append(r.log, "timed out")
}

func (r *recorder) Lost(err error) {
	defer r.enter()()
	r.lost = append(r.lost, err)
	r.log = append(r.log, "lost")
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

func ok(first, run uint64) group.Outcome { return group.Outcome{First: first, Run: run} }

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

// tell gives a stream answers of its leader.
func tell(s *stream.Stream, answers ...group.Outcome) {
	leader, _, _ := s.Route().Leader()
	s.Answer(leader, answers)
}

// mustStream opens a session with one stream.
func mustStream(t fatal) (*world, *recorder, *Session, *stream.Stream) {
	t.Helper()
	w, c := newWorld(t), &recorder{}
	s := w.mustSession(c)
	return w, c, s, streamTo(s, w.mustQueue("q"))
}

// streamTo is the session's stream to a queue.
func streamTo(s *Session, q *catalog.Queue) *stream.Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue(q).stream
}

func publish(s *Session, to *stream.Stream, number uint64, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[to.Queue()].publish(&fsm.Publish{Number: number, Payload: payload(body), TTL: -1, Priority: -1}, nil, 0, false)
}

func request(s *Session, to *stream.Stream, c *logpb.Command) *stream.Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return to.Request(c)
}

func addConsumer(s *Session, to *stream.Stream, number uint64, noAck bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addConsumer(s.queues[to.Queue()], number, noAck)
}

// messages of one consumer, by their delivery numbers.
func messages(consumer uint64, ids ...uint64) stream.DeliveryBatch {
	var d stream.DeliveryBatch
	for _, id := range ids {
		d.Messages = append(d.Messages, fsm.Message{Consumer: consumer, ID: id, Payload: payload(fmt.Sprint(id))})
	}
	return d
}

// testedHost is the broker's host of streams, whose batches a test may take.
type testedHost struct {
	stream.Host
	mu     sync.Mutex
	submit map[fsm.QueueID]func(leader string, b group.Batch) bool
}

func (h *testedHost) Submit(to *stream.Route, leader string, b group.Batch) bool {
	h.mu.Lock()
	submit := h.submit[to.Queue()]
	h.mu.Unlock()
	if submit != nil {
		return submit(leader, b)
	}
	return h.Host.Submit(to, leader, b)
}

// Leads: there is nobody to ask.
func (h *testedHost) Leads(*stream.Route, string) uint64 { return 0 }

// submits sets what becomes of a queue's batches.
func (w *world) submits(q fsm.QueueID, f func(leader string, b group.Batch) bool) {
	w.host.mu.Lock()
	defer w.host.mu.Unlock()
	w.host.submit[q] = f
}

package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/expiry"
	"github.com/quorate/quorate/cluster/failure"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/host"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// world is a node without links or groups, in a time of its own.
type world struct {
	*grouptest.Catalog
	t        grouptest.Fatal
	node     *self.Node
	queues   *queues.Queues
	sessions *Sessions
	host     *testedHost
	stale    atomic.Bool                  // the view may be out of date
	behind   atomic.Pointer[catalog.View] // what the view is instead of the newest, until the next proposal; nil: it is the newest
	headless atomic.Bool                  // the catalog has no leader
	failed   atomic.Int32                 // waits for the newest view that have ended without it
	heals    int32                        // so many waits fail, and the next one brings the newest view; 0: none does
}

// View is the view of the node.
func (w *world) View() *catalog.View {
	if v := w.behind.Load(); v != nil {
		return v
	}
	return w.Catalog.View()
}

func newWorld(t grouptest.Fatal) *world {
	w := &world{Catalog: grouptest.NewCatalog(t), t: t}
	w.node = self.New(self.Config{
		Node: "n1", Mesh: &peer.Mesh{}, Catalog: w, Clock: w.Stamp, Stamp: w.Stamp,
		Logger: slog.New(slog.DiscardHandler), LeaderlessGrace: time.Minute,
	})
	uses := expiry.NewUses(w.node)
	w.queues = queues.New(queues.Config{
		Node: w.node, Uses: uses, Failures: failure.New(w.node, 0), Properties: grouptest.NoProperties{}, Size: 3,
		Between: func(h stream.Host) stream.Host {
			w.host = &testedHost{Host: h, submit: map[fsm.QueueID]func(string, group.Batch) error{}}
			return w.host
		},
	})
	w.sessions = New(Config{Node: w.node, Queues: w.queues, Uses: uses, Properties: grouptest.NoProperties{}})
	w.node.Serve(1, 7)
	return w
}

// close ends what the node does for its clients.
func (w *world) close() {
	w.node.Refuse()
	w.queues.Close()
	w.sessions.Close()
	w.node.Wait()
}

// mustHost gives the node a host for groups.
func (w *world) mustHost() *host.Host {
	w.node.Groups = host.New(host.Config{Config: group.Config{
		Node: "n1", Clock: w.hostClock(), Logger: w.node.Logger, Outside: w.queues, Newest: 1,
		LockCredit: func() fsm.Millis { return 0 }, Version: func() uint32 { return 1 },
		Late: func(queue.Due, fsm.Millis) {},
	}})
	return w.node.Groups
}

// hostClock is the world's time for a host of groups.
func (w *world) hostClock() *clock.Clock {
	return clock.New(clock.Config{
		Node: "n1", Nodes: []string{"n1"}, Wall: func() time.Time { return time.UnixMilli(w.Clock.Load()) }, Logger: w.node.Logger,
		Monotonic: func() time.Duration { return time.Duration(w.Clock.Load()) * time.Millisecond },
		MaxSkew:   func() fsm.Millis { return 1000 },
	})
}

// Refresh and what follows make the world the node's catalog.
func (w *world) Refresh(ctx context.Context) error {
	if w.heals > 0 && w.failed.Load() >= w.heals {
		w.behind.Store(nil)
		w.stale.Store(false)
	}
	for w.stale.Load() {
		select {
		case <-ctx.Done():
			w.failed.Add(1)
			return ctx.Err()
		default:
			runtime.Gosched()
		}
	}
	return nil
}

func (w *world) Fresh() bool { return !w.stale.Load() }

func (w *world) Note(ctx context.Context, cs ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	return w.Propose(ctx, cs...)
}

func (w *world) Propose(_ context.Context, cs ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	if w.headless.Load() {
		return nil, errHeadless
	}
	defer w.behind.Store(nil)
	return w.Apply(cs...), nil
}

var errHeadless = errors.New("the catalog has no leader")

// deleteQueue removes a queue from the catalog, and tells the queues.
func (w *world) deleteQueue(q *catalog.Queue) {
	w.t.Helper()
	w.Delete(q)
	w.queues.QueueGone(q.ID)
}

// mustSession opens a session that tells c.
func (w *world) mustSession(c *recorder) *Session {
	w.t.Helper()
	conn, err := w.sessions.Connect(context.Background(), "guest", "/")
	if err != nil {
		w.t.Fatalf("connect: %v", err)
	}
	s, err := conn.OpenSession(c)
	if err != nil {
		w.t.Fatalf("open session: %v", err)
	}
	return s
}

// recorder is a channel that keeps what it is told.
type recorder struct {
	mu       sync.Mutex
	busy     atomic.Int32
	overlap  atomic.Bool
	settled  map[uint64]int // how often
	refused  int
	why      []error // of each event
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

func (r *recorder) Confirmed(first, last uint64, why error) {
	defer r.enter()()
	if r.settled == nil {
		r.settled = map[uint64]int{}
	}
	for n := first; n <= last; n++ {
		r.settled[n]++
	}
	if r.why = append(r.why, why); !fsm.IsConfirmed(why) {
		r.refused++
	}
	r.log = append(r.log, "settled")
}

func (r *recorder) Refused(_ fsm.Payload, why *fsm.Refusal) {
	defer r.enter()()
	r.log = append(r.log, fmt.Sprint("refused ", why))
}

func (r *recorder) Kept(deliveries []fsm.Held) {
	defer r.enter()()
	r.log = append(r.log, fmt.Sprint("kept ", deliveries))
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

func (r *recorder) Gone(queue fsm.QueueID) {
	defer r.enter()()
	r.log = append(r.log, fmt.Sprint("gone ", queue))
}

func (r *recorder) Revoked(_ uint64, why error) {
	defer r.enter()()
	r.log = append(r.log, "revoked: "+why.Error())
}

func (r *recorder) TimedOut(uint64, []uint64, fsm.Millis, bool) {
	defer r.enter()()
	r.log = append(r.log, "timed out")
}

func (r *recorder) Credited(consumer uint64, now fsm.LinkState) {
	defer r.enter()()
	r.log = append(r.log, fmt.Sprintf("credited %d %+v", consumer, now))
}

func (r *recorder) Settled(number uint64, lost []uint64) {
	defer r.enter()()
	r.log = append(r.log, fmt.Sprintf("settled %d, lost %v", number, lost))
}

func (r *recorder) News(consumer uint64, news *fsm.News) {
	defer r.enter()()
	r.log = append(r.log, fmt.Sprintf("told %d %+v", consumer, *news))
}

func (r *recorder) Lost(err error) {
	defer r.enter()()
	r.lost = append(r.lost, err)
	r.log = append(r.log, "lost")
}

// mustStream opens a session with one stream.
func mustStream(t grouptest.Fatal) (*world, *recorder, *Session, *stream.Stream) {
	t.Helper()
	w, c := newWorld(t), &recorder{}
	s := w.mustSession(c)
	return w, c, s, streamTo(s, w.MustQueue("q"))
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
	s.queues[to.Queue()].publish(&fsm.Publish{Number: number, Payload: grouptest.Payload(body), TTL: -1, Priority: -1}, 0, false, "", nil)
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
		d.Messages = append(d.Messages, fsm.Message{Consumer: consumer, ID: id, Payload: grouptest.Payload(fmt.Sprint(id))})
	}
	return d
}

// testedHost is the queues' host of streams, whose batches a test may take.
type testedHost struct {
	stream.Host
	mu        sync.Mutex
	submit    map[fsm.QueueID]func(leader string, b group.Batch) error
	requested []stream.Resync
	mute      bool // no question is passed on: the test answers
}

func (h *testedHost) Ask(to *stream.Route, leader string, q stream.Resync) {
	h.mu.Lock()
	h.requested = append(h.requested, q)
	mute := h.mute
	h.mu.Unlock()
	if leader == h.Name() && !mute { // there is no link to another one
		h.Host.Ask(to, leader, q)
	}
}

func (h *testedHost) Submit(to *stream.Route, leader string, b group.Batch) error {
	h.mu.Lock()
	submit := h.submit[to.Queue()]
	h.mu.Unlock()
	if submit != nil {
		return submit(leader, b)
	}
	return h.Host.Submit(to, leader, b)
}

// Want: there is nobody to tell.
func (h *testedHost) Want(*stream.Route) {}

// Leads: there is nobody to ask.
func (h *testedHost) Leads([]*stream.Route, string) []uint64 { return nil }

// submits sets what becomes of a queue's batches.
func (w *world) submits(q fsm.QueueID, f func(leader string, b group.Batch) error) {
	w.host.mu.Lock()
	defer w.host.mu.Unlock()
	w.host.submit[q] = f
}

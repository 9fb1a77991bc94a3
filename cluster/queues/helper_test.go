package queues

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/expiry"
	"github.com/quorate/quorate/cluster/failure"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	nodehost "github.com/quorate/quorate/cluster/host"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// world is a node without links, in a time of its own.
type world struct {
	*grouptest.Catalog
	t        grouptest.Fatal
	node     *self.Node
	queues   *Queues
	blind    atomic.Bool // a look at the view panics
	timeless atomic.Bool // a look at the time does
}

func newWorld(t grouptest.Fatal) *world {
	w := &world{Catalog: grouptest.NewCatalog(t), t: t}
	w.node = self.New(self.Config{
		Node: "n1", Mesh: &peer.Mesh{}, Catalog: w, Clock: w.Stamp, Stamp: w.Stamp,
		Logger: slog.New(slog.DiscardHandler), LeaderlessGrace: time.Minute,
	})
	w.queues = New(Config{
		Node: w.node, Uses: expiry.NewUses(w.node), Failures: failure.New(w.node, 0), Properties: grouptest.NoProperties{}, Size: 3,
		Between: func(h stream.Host) stream.Host { return deaf{h} },
	})
	w.node.Serve(1, 7)
	w.node.Groups = nodehost.New(nodehost.Config{Config: group.Config{
		Node: "n1", Clock: w.hostClock(), Logger: w.node.Logger, Outside: w.queues, Newest: 1,
		LockCredit: func() fsm.Millis { return 0 }, Version: func() uint32 { return 1 },
		Late: func(queue.Due, fsm.Millis) {},
	}})
	return w
}

// deaf is a host without leaders: what is submitted is lost.
type deaf struct{ stream.Host }

func (deaf) Submit(*stream.Route, string, group.Batch) error { return nil }
func (deaf) Ask(*stream.Route, string, stream.Resync)        {}
func (deaf) Want(*stream.Route)                              {}
func (deaf) Leads([]*stream.Route, string) []uint64          { return nil }

// hostClock is the world's time for a host of groups.
func (w *world) hostClock() *clock.Clock {
	return clock.New(clock.Config{
		Node: "n1", Nodes: []string{"n1"}, Wall: func() time.Time { return time.UnixMilli(w.Clock.Load()) }, Logger: w.node.Logger,
		Monotonic: func() time.Duration { return time.Duration(w.Clock.Load()) * time.Millisecond },
		MaxSkew:   func() fsm.Millis { return 1000 },
	})
}

// Stamp panics if that is wanted.
func (w *world) Stamp() fsm.Time {
	if w.timeless.Load() {
		panic("injected")
	}
	return w.Catalog.Stamp()
}

// View panics if that is wanted.
func (w *world) View() *catalog.View {
	if w.blind.Load() {
		panic("injected")
	}
	return w.Catalog.View()
}

// deleteQueue removes a queue from the catalog, and tells the queues.
func (w *world) deleteQueue(q *catalog.Queue) {
	w.t.Helper()
	w.Delete(q)
	w.queues.QueueGone(q.ID)
}

// mustOpen opens a local group for a queue, which is dropped with the test.
func (w *world) mustOpen(t *testing.T, q *catalog.Queue) *group.Group {
	t.Cleanup(func() { w.node.Groups.DropLocal(q.Group) })
	return w.node.Groups.OpenLocal(group.Spec{
		Group: q.Group, Queue: q.ID, VHost: "/", Name: "q", Local: true, Members: []string{"n1"}, Config: &logpb.QueueConfig{DeliveryLimit: -1},
	})
}

// client is a session at one queue, with a consumer 5, that keeps what it is told.
type client struct {
	sync.Mutex
	id       fsm.SessionID
	stream   *stream.Stream
	consumer stream.Consumer
	messages []fsm.Message
	log      []string
}

func (w *world) mustClient(q *catalog.Queue) *client {
	r := w.queues.Routes.Route(q)
	c := &client{id: fsm.SessionID{Node: 1, Boot: 7, Num: 1}}
	c.stream = stream.New(c, c, c.id, r)
	r.Attach(c.stream)
	c.Lock()
	defer c.Unlock()
	c.stream.AddConsumer(5, &c.consumer)
	return c
}

// publish sends a message, whose number is 1.
func (c *client) publish() {
	c.Lock()
	defer c.Unlock()
	p := grouptest.Payload("m")
	c.stream.Add(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: uint32(len(p))}}, stream.Pending{Payload: p, Number: 1})
}

// get asks for one message.
func (c *client) get() *stream.Call {
	c.Lock()
	defer c.Unlock()
	return c.stream.Request(&logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}})
}

// position is the last delivery to the consumer that is known, and whether it asks for more.
func (c *client) position() (last uint64, asked bool) {
	c.Lock()
	defer c.Unlock()
	last, asked, _ = c.consumer.Position()
	return last, asked
}

func (c *client) Answered(p *stream.Pending, r fsm.Result) {
	if p.Call != nil {
		p.Call.Finish(r)
		return
	}
	c.log = append(c.log, fmt.Sprint("settled ", p.Number, " ", r.Code == fsm.OK))
}

func (c *client) Lost()   { c.log = append(c.log, "lost") }
func (c *client) Failed() { c.log = append(c.log, "failed") }
func (c *client) Gone()   { c.log = append(c.log, "gone") }

func (c *client) Accept(int) bool  { return true }
func (c *client) CanTake(int) bool { return true }

func (c *client) Deliver(messages []fsm.Message) {
	c.messages = append(c.messages, slices.Clone(messages)...)
	c.log = append(c.log, "deliver")
}

func (c *client) Passed(uint64)           {}
func (c *client) Noticed(n stream.Notice) { c.log = append(c.log, n.Kind.String()) }

// ids are the numbers of the messages.
func (c *client) ids() (all []uint64) {
	for _, m := range c.messages {
		all = append(all, m.ID)
	}
	return all
}

// stored are payloads by the index of their entry.
type stored map[uint64]fsm.Payload

func (p stored) Payload(ref fsm.Ref) ([]byte, error) {
	if p[ref.Index] == nil {
		return nil, errors.New("no payload")
	}
	return p[ref.Index], nil
}

func isKind(err error, k fsm.Kind) bool {
	r, ok := err.(*fsm.Refusal)
	return ok && r.Kind == k
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

package broker

import (
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// courierNumber is the number of the courier's session: no client's.
	courierNumber = 1 << 63
	// courierBytes bounds what the courier has under way.
	courierBytes = 32 << 20
)

// courier brings dead messages to their targets that are in no outbox: those
// of queues that deliver at most once, and those that a queue drops or refuses
// because it is too long. What a target refuses, or what this node loses by its
// own end, is gone. All led queues share its stream to a target.
type courier struct {
	broker *Broker

	mu      sync.Mutex
	streams map[fsm.QueueID]*onceStream
	bytes   int // of the payloads in the streams

	missed atomic.Uint64 // letters with nowhere to go, copies that did not arrive
}

// LostOnce counts the dead letters of no outbox that this node sent, or was to
// send, and that did not arrive: with each target that did not take one, or
// once if there was none.
func (b *Broker) LostOnce() uint64 { return b.courier.missed.Load() }

// send routes dead messages of a queue and sets them on their way. Their
// payloads can be read while it runs.
func (c *courier) send(from source, letters []fsm.DeadLetter) {
	var config *logpb.QueueConfig
	from.View(func(m *queue.Machine) { config = m.Config() })
	view, spec, lost := c.broker.view(), from.Spec(), 0
	for i := range letters {
		l := &letters[i]
		raw, err := from.Payload(l.Ref)
		if err != nil {
			lost++
			continue
		}
		p := fsm.Readable(raw)
		targets, limits := c.broker.deadTargets(view, spec.VHost, config, l, p)
		if len(targets) == 0 {
			c.missed.Add(1)
			continue
		}
		payload := c.broker.deadPayload(config, l, p)
		for _, q := range targets {
			e := c.broker.reenqueue(config, l, p, payload, limits.PlusOne(q))
			c.broker.delayAt(q, e, payload)
			if !c.add(q, e, payload) {
				lost++
			}
		}
	}
	if lost > 0 {
		c.missed.Add(uint64(lost))
		c.broker.slog.Warn("dead letters dropped", "queue", spec.Name, "count", lost)
	}
}

// add puts a letter into the stream to its target; false: there is none, or no
// room.
func (c *courier) add(q *catalog.Queue, e *logpb.Enqueue, payload fsm.Payload) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.stream(c.broker.routes.Route(q))
	if x == nil || x.stream.Over() || c.bytes > courierBytes {
		return false
	}
	x.stream.Add(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e}, stream.Pending{Payload: payload})
	c.bytes += len(payload)
	return true
}

var _ source = (*group.Group)(nil)

// onceStream is the stream to one target. It is owned under the courier's lock.
type onceStream struct {
	courier *courier
	stream  *stream.Stream
}

// stream finds or makes the stream to a queue; nil: this node has no number yet.
// The lock is held.
func (c *courier) stream(r *stream.Route) *onceStream {
	if x := c.streams[r.Queue()]; x != nil {
		return x
	}
	self := fsm.NodeID(c.broker.self.Load())
	if self == 0 {
		return nil
	}
	x := &onceStream{courier: c}
	x.stream = stream.New(x, nil, fsm.SessionID{Node: self, Boot: c.broker.boot.Load(), Num: courierNumber}, r)
	if r.Attach(x.stream); !x.stream.Gone() {
		c.streams[r.Queue()] = x
	}
	return x
}

// restart ends all streams: they belong to a boot that is over.
func (c *courier) restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.streams {
		x.Lost()
	}
}

// Lock takes the courier's lock.
func (x *onceStream) Lock() { x.courier.mu.Lock() }

// Unlock gives it back.
func (x *onceStream) Unlock() { x.courier.mu.Unlock() }

// Answered: the target has the message, or has refused it, or is gone.
func (x *onceStream) Answered(p *stream.Pending, r fsm.Result) {
	x.courier.bytes -= len(p.Payload)
	if r.Code != fsm.OK {
		x.courier.missed.Add(1)
	}
}

// Noticed takes the end of the target.
func (x *onceStream) Noticed(stream.Notice) {
	x.Lock()
	defer x.Unlock()
	x.drop()
}

// Lost: the target took this node for dead. What is on its way is gone; the next
// message begins a new stream, if the node has a new boot number.
func (x *onceStream) Lost() {
	for p := range x.stream.Unanswered() {
		x.courier.bytes -= len(p.Payload)
		x.courier.missed.Add(1)
	}
	x.stream.Abandon()
	x.stream.Route().Detach(x.stream)
	x.drop()
}

// Failed is Lost: what is on its way is gone.
func (x *onceStream) Failed() { x.Lost() }

// drop forgets the stream. The lock is held.
func (x *onceStream) drop() {
	if c := x.courier; c.streams[x.stream.Queue()] == x {
		delete(c.streams, x.stream.Queue())
	}
}

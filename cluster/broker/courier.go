package broker

import (
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/cluster/group"
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

	mu    sync.Mutex
	lanes map[fsm.QueueID]*lane
	bytes int // of the payloads in the lanes

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
	lane := c.lane(c.broker.target(q))
	if lane == nil || lane.over() || c.bytes > courierBytes {
		return false
	}
	lane.add(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e}, op{payload: payload})
	c.bytes += len(payload)
	return true
}

var _ source = (*group.Group)(nil)

// lane finds or makes the stream to a queue; nil: this node has no number yet.
// The lock is held.
func (c *courier) lane(t *target) *lane {
	if l := c.lanes[t.id]; l != nil {
		return l
	}
	self := fsm.NodeID(c.broker.self.Load())
	if self == 0 {
		return nil
	}
	l := newLane(c, fsm.SessionID{Node: self, Boot: c.broker.boot.Load(), Num: courierNumber}, t)
	if t.attach(l); !l.gone {
		c.lanes[t.id] = l
	}
	return l
}

func (c *courier) lock() *sync.Mutex { return &c.mu }

// finished: the target has the message, or has refused it, or is gone. The
// lock is held.
func (c *courier) finished(_ *lane, o *op, r fsm.Result) {
	c.bytes -= len(o.payload)
	if r.Code != fsm.OK {
		c.missed.Add(1)
	}
}

func (c *courier) release() { c.mu.Unlock() }

// deliver: nobody hands messages to the courier.
func (c *courier) deliver(*lane, delivered) {}

// told takes the end of a target.
func (c *courier) told(l *lane, _ told) {
	c.mu.Lock()
	c.drop(l)
	c.mu.Unlock()
}

// lost: the target took this node for dead. What is on its way is gone; the
// next message begins a new stream, if the node has a new boot number.
func (c *courier) lost(l *lane) {
	for _, o := range l.pending[l.head:] {
		c.bytes -= len(o.payload)
		c.missed.Add(1)
	}
	l.abandon()
	l.target.detach(l)
	c.drop(l)
}

// failed is lost: what is on its way is gone.
func (c *courier) failed(l *lane) { c.lost(l) }

// restart ends all streams: they belong to a boot that is over.
func (c *courier) restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lanes {
		c.lost(l)
	}
}

// drop forgets a stream. The lock is held.
func (c *courier) drop(l *lane) {
	if c.lanes[l.target.id] == l {
		delete(c.lanes, l.target.id)
	}
}

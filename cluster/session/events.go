package session

import (
	"sync"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
)

// event is one pending call of SessionEvents. Calls are made without the session's lock, one at a
// time, in the order of the events.
type event struct {
	kind        eventKind
	first, last uint64
	ok, suspend bool
	messages    []fsm.Message
	consumer    uint64
	ids         []uint64
	limit       fsm.Millis
	err         error
	call        *stream.Call
	result      fsm.Result
	payload     fsm.Payload
	held        []fsm.Held
}

// calls is the lock of a session and the queue of calls to its client. What happens under the lock
// becomes events; the goroutine that releases the lock makes the calls without it, unless another
// one is already making calls, which then makes these, too.
//
// Invariant: one goroutine at a time makes calls, in the order of the events.
type calls struct {
	client fsm.SessionEvents
	tasks  *tasks
	// reroute routes publishes again that have lost their queue.
	reroute *publisher
	router  *replyRouter

	mu      sync.Mutex // guards the fields below, and all of the session that says so
	tally   traffic.Tally
	events  []event
	spare   []event // for reuse
	calling bool    // a goroutine makes the calls of events
	closing bool    // the client has closed the session
	isLost  bool    // the client has been told, or is about to be, that the session is over
}

type eventKind uint8

const (
	eventConfirmed eventKind = iota
	eventDeliver
	eventCancelled
	eventRevoked
	eventTimedOut
	eventLost
	eventAnswered
	eventRefused
	eventReturned
	eventKept
	eventReply // the broker's own, to the channel that its routing key names
)

// confirm joins a publish to the last event if it continues its run.
func (c *calls) confirm(number uint64, ok bool) {
	if ok {
		c.tally.Confirmed()
	}
	if n := len(c.events); n > 0 {
		if e := &c.events[n-1]; e.kind == eventConfirmed && e.ok == ok && e.last+1 == number {
			e.last = number
			return
		}
	}
	c.add(event{kind: eventConfirmed, first: number, last: number, ok: ok})
}

// lock takes the session's lock, for work that may produce events for the client.
func (c *calls) lock() { c.mu.Lock() }

// unlock releases the lock. First, publishes that have lost their queue are routed again; then the
// pending calls are made. A call that panics ends the session; those behind it are made all the
// same, because others wait for them.
func (c *calls) unlock() {
	if len(c.reroute.strays) > 0 && !c.tasks.guard("route publishes again", c.reroute.routeStrays) {
		c.reroute.strays = nil
		c.lose(errFault)
	}
	if c.calling {
		c.mu.Unlock()
		return
	}
	c.calling = true
	for len(c.events) > 0 {
		batch := c.events
		c.events = c.spare[:0]
		c.mu.Unlock()
		whole := c.callAll(batch)
		clear(batch)
		c.mu.Lock()
		c.spare = batch
		if !whole {
			c.lose(errFault)
		}
	}
	c.calling = false
	c.mu.Unlock()
}

// add appends an event. The lock is held.
func (c *calls) add(e event) { c.events = append(c.events, e) }

// lose notifies the client, once, that the session is over. The lock is held.
func (c *calls) lose(why error) {
	if c.isLost || c.closing {
		return
	}
	c.isLost = true
	c.add(event{kind: eventLost, err: why})
}

// fail ends the session because work for it has panicked and its state may be half changed. Its
// queues are told as for a closed channel.
func (c *calls) fail() {
	c.lock()
	defer c.unlock()
	c.reroute.refreshing, c.reroute.strays = false, nil
	c.lose(errFault)
}

// LostText is the reason given when sessions end with the boot of their node.
const LostText = "this node was declared dead and its sessions were closed; please reconnect"

var (
	// errLost is returned to users of a session that a queue has given up.
	errLost = fsm.Refuse(fsm.Forced, LostText)
	// errFault is returned to users of a session whose work has panicked.
	errFault = fsm.Refuse(fsm.Internal, "the node closed the channel after an internal error")
)

// callAll delivers a batch of events to the client, and reports whether no call has panicked.
func (c *calls) callAll(batch []event) (whole bool) {
	whole = true
	for called := 0; called < len(batch); {
		if !c.tasks.guard("notify a client", func() {
			for called < len(batch) {
				called++
				c.call(&batch[called-1])
			}
		}) {
			whole = false
		}
	}
	return whole
}

func (c *calls) call(e *event) {
	switch e.kind {
	case eventConfirmed:
		c.client.Confirmed(e.first, e.last, e.ok)
	case eventDeliver:
		c.client.Deliver(e.messages)
	case eventCancelled:
		c.client.Cancelled(e.consumer)
	case eventRevoked:
		c.client.Revoked(e.consumer, e.err)
	case eventTimedOut:
		c.client.TimedOut(e.consumer, e.ids, e.limit, e.suspend)
	case eventLost:
		c.client.Lost(e.err)
	case eventAnswered:
		e.call.Finish(e.result)
	case eventRefused:
		refusal, _ := e.err.(*fsm.Refusal)
		c.client.Refused(e.payload, refusal)
	case eventReturned:
		c.client.Returned(e.payload)
	case eventKept:
		c.client.Kept(e.held)
	case eventReply:
		suffix, _ := fsm.ReplySuffix(string(e.payload.RoutingKey()))
		c.router.send(suffix, e.payload)
	}
}

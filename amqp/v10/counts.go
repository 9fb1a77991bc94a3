package v10

import (
	"sync"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// counts are the windows of a session, the credit of its links and its deliveries: what both the client's
// frames and the broker's events change. Once closed, nothing is pushed and nothing posted.
//
// mu is taken before the outbox's lock, and never held during a call of the broker's session.
type counts struct {
	session *session
	out     outbox

	mu     sync.Mutex
	closed bool
	in     incoming
	client outgoing

	links      map[uint64]*outgoingLink // by their consumer's number
	last       uint64                   // last number used
	incoming   int                      // links
	deliveries unsettled
	held       []heldSend          // nothing behind it is sent before it
	awaited    map[uint64]*awaited // settlements without an answer, by number; their deliveries are in no other list
	// The last number used.
	lastAwaited uint64
	taken       takings
	answers     answers
	// lapses are the deliveries whose locks have ended, in this order; lapse is nil while there are none.
	lapses []lapse
	lapse  *time.Timer
	// renews says that deliveries are to be renewed, and renewal runs while none are, see renewWait.
	renews  bool
	renewal *time.Timer
	head    []byte // reused
}

func (c *counts) init(s *session) { c.session, c.out, c.answers.channel = s, s.conn.out, s.channel }

// close makes all that follows have no effect.
func (c *counts) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.flushAnswers()
	}
	for _, t := range [...]*time.Timer{c.lapse, c.renewal} {
		if t != nil {
			t.Stop()
		}
	}
	for i := range c.held {
		c.forgetAnswer(&c.held[i])
	}
	for _, l := range c.links {
		l.forgetWaiting()
	}
	c.closed, c.held, c.links, c.awaited, c.lapses, c.taken = true, nil, nil, nil, nil, takings{}
}

// transfer counts a frame of the client. false: it had no window.
func (c *counts) transfer() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.in.transfer()
}

// complete counts a message of a link. false: the client had no credit for it.
func (c *counts) complete(l *incomingLink) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.credit.message()
}

// begin gives the client credit on a new link.
func (c *counts) begin(l *incomingLink, count, limit uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.incoming++
	l.credit.begin(count, limit)
	if l.pair == nil || l.pair.mayAnswer() {
		l.announce()
	}
}

// announce tells the client of the credit with which a link begins, unless it knows. counts.mu is held.
func (l *incomingLink) announce() {
	if c := &l.session.counts; !c.closed && !l.gone && !l.announced {
		l.announced = true
		c.pushCredit(l)
	}
}

// end takes the credit of a link away.
func (c *counts) end(l *incomingLink) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.gone = true
	c.incoming--
}

// grant gives the client a new window, and new credit on a link, if that is due. l may be nil.
func (c *counts) grant(l *incomingLink) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	low := c.in.isLow() && c.session.conn.mayGrant()
	if low {
		c.in.refill()
	}
	if l != nil && !l.gone && !c.in.shut && l.credit.refill() {
		c.pushCredit(l)
	} else if low {
		c.pushFlow(&wire.Flow{})
	}
}

// pushCredit tells the client the credit of an incoming link. mu is held.
func (c *counts) pushCredit(l *incomingLink) {
	f := wire.Flow{Handle: wire.Some(l.handle)}
	l.credit.stamp(&f)
	c.pushFlow(&f)
}

// pushFlow completes a flow and pushes it. mu is held.
func (c *counts) pushFlow(f *wire.Flow) {
	c.out.Lock()
	defer c.out.Unlock()
	c.pushFlowLocked(f)
}

// pushFlowLocked is pushFlow for a locked outbox.
func (c *counts) pushFlowLocked(f *wire.Flow) {
	c.in.stamp(f, &c.client)
	if c.out.Takes(false) {
		c.out.PushFrames(wire.AppendFlow(c.out.Encoded(), c.session.channel, f))
	}
}

// takeFlow takes in the client's window. echo: it wants the server's.
func (c *counts) takeFlow(f *wire.Flow, echo bool) *wire.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.client.flow(f.NextIncomingID, f.IncomingWindow) {
		return wire.Errorf(wire.ConditionWindowViolation, "next-incoming-id %d is ahead of next-outgoing-id %d", f.NextIncomingID.Value, c.client.next)
	}
	if c.closed {
		return nil
	}
	c.in.from, c.in.promised = f.NextOutgoingID, f.OutgoingWindow
	c.pump()
	if echo {
		c.pushFlow(&wire.Flow{})
	}
	return nil
}

// setAlarm shuts the client's window, or opens it.
func (c *counts) setAlarm(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && c.in.setAlarm(on) {
		c.pushFlow(&wire.Flow{})
	}
}

// outbox is the connection's outbox for frames.
//
// Lock order: counts.mu, the outbox's, that of outcomes.
type outbox struct{ *amqp.Outbox }

// push appends a frame of a session, or of the connection.
func (o outbox) push(channel uint16, p wire.Composite) {
	o.Lock()
	defer o.Unlock()
	o.pushLocked(channel, p)
}

// pushLocked is push for a locked outbox. The connection itself has no session, so what it says is on channel 0 as a
// session's frames may be.
func (o outbox) pushLocked(channel uint16, p wire.Composite) {
	if o.Takes(false) {
		o.PushFrames(wire.AppendFrame(o.Encoded(), channel, p))
	}
}

// queue makes the writer ask o for the dispositions that can be written.
func (o outbox) queue(outcomes *outcomes) {
	o.Lock()
	defer o.Unlock()
	o.PushLast(outcomes)
}

// pushOutcomes appends the outcomes of a session that are known, and a frame that comes after them.
func (o outbox) pushOutcomes(outcomes *outcomes, p wire.Composite) {
	o.Lock()
	defer o.Unlock()
	o.pushKnown(outcomes)
	o.pushLocked(outcomes.channel, p)
}

// pushKnown appends the outcomes that are known to the locked outbox.
func (o outbox) pushKnown(outcomes *outcomes) {
	if o.Takes(false) {
		o.PushFrames(outcomes.AppendFrames(o.Encoded()))
	}
}

// pushLast appends the outcomes of a session and its last frame. Later outcomes are lost. It returns the publishes
// that had none.
func (o outbox) pushLast(outcomes *outcomes, last wire.Composite) (count, bytes int64) {
	o.Lock()
	defer o.Unlock()
	o.pushKnown(outcomes)
	count, bytes = outcomes.close()
	o.pushLocked(outcomes.channel, last)
	return count, bytes
}

// pushEnd appends the connection's close. Nothing is taken after it.
func (o outbox) pushEnd(p *wire.Close) {
	o.Lock()
	defer o.Unlock()
	if o.Takes(true) {
		o.PushFrames(wire.AppendFrame(o.Encoded(), 0, p))
	}
	o.Close()
}

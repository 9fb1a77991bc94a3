package session

import (
	"math"
	"time"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// maxQueueCredit bounds the credit that a queue has of a consumer, unless that drains: it is given
	// more once half of it is used. So a receiver that says after each message how many it takes
	// costs no command for each.
	maxQueueCredit = 256
	// creditSince is the machine version that knows credit mode.
	creditSince = 3
)

// link is the credit of a consumer in credit mode. The zero link is that of another consumer.
//
// The queue counts deliveries and what drains have used up; so does the client, but it never hears of
// deliveries that were taken back before they came here. So the two counts are kept apart, and
// commands are in the queue's terms: what has come here of its deliveries, and how much may follow.
//
// Invariant: what the queue has of credit, and what is on its way from there, is at most limit - count
// of the newest command.
type link struct {
	on    bool
	count uint64 // the client's: messages that the channel was given, and what drains have used up
	limit uint64 // up to which count the client takes messages
	// allowed is the number of the last delivery that the queue may make by itself, and ahead how far
	// its count is ahead of the number of its newest delivery, both as of the newest answer.
	allowed uint64
	ahead   uint32

	drain, echo bool // the newest flow asks for it, and no command has said so yet
	sent        sentCredit
	onWay       bool        // a command has no answer, or its answer waits for deliveries
	newer       bool        // a flow has come meanwhile
	unsure      bool        // what the queue has of credit is not known: its answer was lost
	listed      bool        // it is in flowing
	answer      *fsm.Result // waits for deliveries
	resting     bool        // a drain that is not finished is asked for again a little later
	pause       time.Duration
}

// sentCredit is what the newest command was to do.
type sentCredit struct {
	limit       uint64
	drain, echo bool
}

// linkAnswer is the note of a command about the credit of a consumer.
type linkAnswer struct{ consumer uint64 }

// takes is how many more messages the client takes.
func (l *link) takes() uint64 { return l.limit - min(l.count, l.limit) }

// state is what the client is told.
func (l *link) state(available uint64, drained bool) fsm.LinkState {
	return fsm.LinkState{DeliveryCount: uint32(l.count), Credit: uint32(l.takes()), Available: available, Drained: drained}
}

// Credit says how many messages a consumer in credit mode may be given from now on. At most one
// command about that is on its way, and a newer flow replaces one that waits.
func (x *consumers) Credit(number uint64, f fsm.Flow) {
	x.session.lock()
	defer x.session.unlock()
	c := x.known[number]
	if b := x.session.browsers.all[number]; b != nil {
		b.flow(&f)
	}
	if c == nil || c.over || !c.link.on {
		return
	}
	l := &c.link
	behind := int64(int32(uint32(l.count) - f.DeliveryCount))
	l.limit = l.count + uint64(min(max(int64(f.Credit)-behind, 0), math.MaxUint32))
	l.drain, l.echo, l.newer, l.resting, l.pause = f.Drain, l.echo || f.Echo, true, false, 0
	x.topUp(number, c)
}

// topUp tells the queue of a consumer what it may hand out, if it has to know. The lock is held.
func (x *consumers) topUp(number uint64, c *consumer) {
	l, to := &c.link, c.at.stream
	if l.onWay || l.resting || c.over || to.Over() || to.Ending() {
		return
	}
	last, _, _ := c.Position()
	has, gives := l.allowed-min(last, l.allowed), l.takes()
	if !l.drain {
		gives = min(gives, maxQueueCredit)
	}
	less, more := l.limit < l.sent.limit && gives < has, gives > has && has <= gives/2
	if !l.drain && !l.echo && !less && !more && !l.unsure {
		return
	}
	l.onWay, l.newer, l.unsure, l.sent = true, false, false, sentCredit{l.limit, l.drain, l.echo}
	l.drain, l.echo = false, false
	to.Add(&logpb.Command{Kind: logpb.Command_CREDIT, Credit: &logpb.Credit{
		Consumer: number, DeliveryCount: uint32(last) + l.ahead, Credit: uint32(gives), Drain: l.sent.drain,
	}}, stream.Pending{Note: linkAnswer{number}})
}

// credited takes the answer to such a command. The lock is held. It must not send another one, since
// the stream is reporting answers: goOn does.
func (x *consumers) credited(number uint64, r fsm.Result) {
	c := x.known[number]
	if c == nil {
		return
	}
	l := &c.link
	switch {
	case r.Code != fsm.OK: // the consumer is over, and its end is told by itself
		return
	case r.Next == 0: // it was answered before, and that got lost; said twice it does no harm
		l.onWay, l.drain, l.echo = false, l.drain || l.sent.drain && !l.newer, l.echo || l.sent.echo
		l.allowed, l.unsure = 0, true
	default:
		l.answer = &r
	}
	x.flows(number, c)
}

// flows makes goOn look at a consumer in credit mode. The lock is held.
func (x *consumers) flows(number uint64, c *consumer) {
	if !c.link.listed {
		c.link.listed = true
		x.flowing = append(x.flowing, number)
	}
}

// noteGiven counts messages that the channel is given. The lock is held.
func (x *consumers) noteGiven(messages []fsm.Message) {
	var last uint64
	var c *consumer
	for i := range messages {
		if number := messages[i].Consumer; number != last || i == 0 {
			last, c = number, x.known[number]
		}
		if c != nil && c.link.on {
			c.link.count++
			x.flows(last, c)
		}
	}
}

// goOn does what deliveries and answers have made due: clients are told, and queues are given more
// credit. The lock is held.
func (x *consumers) goOn() {
	n := len(x.flowing)
	for i := range n {
		number := x.flowing[i]
		c := x.known[number]
		if c == nil || c.over {
			continue
		}
		if c.link.listed = false; c.link.answer == nil || x.heard(number, c) {
			x.topUp(number, c)
		} else {
			x.flows(number, c)
		}
	}
	x.flowing = append(x.flowing[:0], x.flowing[n:]...)
}

// heard acts on the answer to a command, unless deliveries come before: false.
func (x *consumers) heard(number uint64, c *consumer) bool {
	l, r := &c.link, c.link.answer
	if last, _, _ := c.Position(); last+1 < r.Next && (l.sent.drain || l.sent.echo) {
		return false
	}
	l.answer, l.onWay = nil, false
	l.allowed, l.ahead = r.Next-1+uint64(r.Credit), r.DeliveryCount-uint32(r.Next-1)
	drained := l.sent.drain && r.Credit == 0
	switch {
	case drained:
		l.count = max(l.count, l.sent.limit)
	case l.sent.drain && !l.newer: // work that is due may bring another message
		l.drain, l.echo, l.resting = true, l.echo || l.sent.echo, true
		x.drainLater(number, c)
		return true
	}
	if drained || l.sent.echo {
		x.session.add(event{kind: eventCredited, consumer: number, link: l.state(r.Count, drained)})
	}
	return true
}

// drainLater asks again for the end of a drain, after a pause: the leader ticks meanwhile.
func (x *consumers) drainLater(number uint64, c *consumer) {
	c.link.pause = min(max(2*c.link.pause, getPause), longGetPause)
	time.AfterFunc(c.link.pause, func() {
		again := func() {
			x.session.lock()
			defer x.session.unlock()
			if c.link.resting {
				c.link.resting = false
				x.topUp(number, c)
			}
		}
		if !x.node.Try("drain a consumer", again) {
			x.session.fail()
		}
	})
}

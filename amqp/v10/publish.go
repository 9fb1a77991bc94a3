package v10

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// publisher is the publishing side of a session: it passes messages to the broker and tells their outcomes. publish is
// called with the session's gate held, resolve by any goroutine.
//
// Invariant: the connection's flow counts what is waiting in outcomes, and nothing else of this session.
type publisher struct {
	session  *session
	outcomes outcomes
	commands atomic.Bool // there were some
	then     sync.Map    // of posts: their func, by number
	thens    atomic.Int32
	watched  atomic.Bool           // watch runs
	marks    [patienceMarks]uint64 // the newest publishes at the last moments at which watch checked

	// Of the message that is being published, reused.
	message    wire.Message
	properties wire.Properties
	publishing fsm.Publish
	ofMessage  func(name string) []byte // property

	// For the broker's events: the newest reason of a rejection, and what clients see of it.
	why     error
	refusal *wire.Error
}

// init must be called first; p must not be moved afterwards.
func (p *publisher) init(s *session) {
	p.session, p.outcomes.channel, p.outcomes.expect, p.outcomes.release = s, s.channel, s.conn.Out.Expect, s.conn.Flow.Release
	p.ofMessage, p.publishing.Headers = p.property, p.headers
}

// publish passes a message to the broker. An error is the link's; next is a call that blocks.
func (p *publisher) publish(l *link, encoded []byte) (next func(), err *wire.Error) {
	s, m := p.session, &p.message
	if e := m.Parse(encoded); e != nil {
		return nil, protocolError(e)
	}
	if e := m.ReadProperties(&p.properties); e != nil {
		return nil, protocolError(e)
	}
	to, err := l.in.destination(&p.properties)
	if err != nil {
		return nil, p.reject(l, err)
	}
	out := &p.publishing
	*out = fsm.Publish{
		Exchange: to.exchange, RoutingKey: to.key, TTL: -1, Priority: -1, Confirm: !l.in.assembly.settled,
		MessageID: fsm.Label(message.IDText(p.properties.MessageID)), CorrelationID: fsm.Label(message.IDText(p.properties.CorrelationID)),
		Headers: out.Headers, Property: p.ofMessage,
	}
	if m.Header.TTL.Present {
		out.TTL, out.HasExpiration = fsm.Millis(m.Header.TTL.Value), true
	}
	if m.Header.Priority.Present {
		out.Priority = int(m.Header.Priority.Value)
	}
	if user := string(p.properties.UserID); user != "" && user != s.conn.User {
		out.UserError = wire.Errorf(wire.ConditionUnauthorized, "user_id property set to '%s' but authenticated user was '%s'", user, s.conn.User)
	}
	if out.Copies, err = copies(m.Annotations); err != nil {
		return nil, p.reject(l, err)
	}
	if to.isCommand() {
		if err = p.command(out, m); err != nil {
			p.rejectOnly(l, err)
			return nil, nil
		}
	} else {
		var kept wire.MapBytes
		out.Schedule, out.Delay, kept, out.HeadersError = message.AnnotatedTimes(m.Annotations)
		if out.Payload, err = store(to, m, kept); err != nil {
			return nil, err
		}
	}
	size := len(out.Payload)
	s.conn.Flow.Add(1, int64(size))
	l.in.credit.waiting.Add(1)
	out.Number = p.outcomes.add(l.in, l.in.assembly.id, uint32(size), l.in.assembly.settled)
	if isReply(out) {
		return p.later(l, out, p.findRequester), nil
	}
	return p.route(l, out)
}

// route publishes a message that has its number.
func (p *publisher) route(l *link, out *fsm.Publish) (next func(), err *wire.Error) {
	if out.Holdings != nil {
		p.commanded(out.Number)
	}
	routed, e := p.session.broker.Publish(out)
	switch {
	case errors.Is(e, fsm.ErrNotFresh):
		return p.routeLater(l, out), nil
	case e != nil:
		return nil, p.refused(l, out, e)
	case !routed:
		p.resolve(out.Number, out.Number, wire.StateReleased, nil)
	}
	return nil, nil
}

// routesInterval is how often a wait for routes checks whether the connection is ending.
const routesInterval = time.Second

// routeLater publishes a message once the broker is certain of its routes.
func (p *publisher) routeLater(l *link, out *fsm.Publish) func() {
	return p.later(l, out, p.awaitRoutes)
}

// awaitRoutes waits until the broker is certain of its routes. false: the connection has ended.
func (p *publisher) awaitRoutes(out *fsm.Publish) bool {
	for err := errors.New("not yet"); err != nil; {
		if p.session.conn.Context().Err() != nil {
			return false
		}
		ctx, cancel := context.WithTimeout(p.session.conn.Context(), routesInterval)
		err = p.session.broker.Refresh(ctx)
		cancel()
	}
	out.Fresh = true
	return true
}

// later returns the call that publishes a message after wait, which blocks.
func (p *publisher) later(l *link, out *fsm.Publish, wait func(*fsm.Publish) bool) func() {
	s, later := p.session, out
	if out == &p.publishing {
		later = new(fsm.Publish)
		*later = *out
		// Its headers are asked for once more, when the scratch has another message.
		m := p.message
		m.Annotations, m.ApplicationProperties = cloneMap(m.Annotations), cloneMap(m.ApplicationProperties)
		later.Headers = func() *fsm.Table { return message.HeadersOf(&m) }
		later.Property = func(name string) []byte { return message.Properties{}.Property(later.Payload, name) }
		if out.Holdings != nil {
			later.Property = p.keptProperties()
		}
	}
	publish := func() (next func()) {
		s.gate.Lock()
		defer s.gate.Unlock()
		if s.state != sessionOpen {
			return nil
		}
		next, err := p.route(l, later)
		if err != nil {
			s.detach(l, err)
		}
		return next
	}
	return func() {
		if !wait(later) {
			return
		}
		if next := publish(); next != nil {
			next()
		}
	}
}

func cloneMap(m wire.MapBytes) wire.MapBytes { return append(wire.MapBytes(nil), m...) }

// destination is where a message goes.
func (l *incomingLink) destination(p *wire.Properties) (address, *wire.Error) {
	if !l.isRelay {
		return l.to, nil
	}
	if p.To == nil {
		return address{}, wire.Errorf(wire.ConditionPreconditionFailed, "anonymous terminus requires 'to' address to be set")
	}
	to, ok := parseAddress(string(p.To))
	if !ok {
		return address{}, wire.Errorf(wire.ConditionPreconditionFailed, "bad 'to' address string: '%s'", p.To)
	}
	return to, nil
}

// reject ends a delivery that never came to the broker: on a link whose messages say where they go by an outcome, unless it
// is settled; otherwise the error is the link's.
func (p *publisher) reject(l *link, why *wire.Error) *wire.Error {
	if !l.in.isRelay || l.in.assembly.settled {
		return l.in.named(why)
	}
	p.rejectOnly(l, why)
	return nil
}

// rejectOnly is reject for what never ends the link.
func (p *publisher) rejectOnly(l *link, why *wire.Error) {
	number := p.outcomes.add(nil, l.in.assembly.id, 0, l.in.assembly.settled)
	p.resolve(number, number, wire.StateRejected, why)
}

// refused ends a delivery that the broker has refused. An error is the link's, which may have ended meanwhile.
func (p *publisher) refused(l *link, out *fsm.Publish, cause error) *wire.Error {
	e := p.session.refusal("transfer", cause)
	isRelay := l.in != nil && l.in.isRelay
	state := wire.StateRejected
	if e.Condition == wire.ConditionNotFound && !isRelay {
		state = wire.StateReleased
	}
	p.resolve(out.Number, out.Number, state, e)
	another := out.UserError != nil && errors.Is(cause, out.UserError)
	if !another && (isRelay && out.Confirm || e.Condition == wire.ConditionPreconditionFailed) {
		return nil
	}
	if isRelay {
		return l.in.named(e)
	}
	return e
}

// patienceMarks is in how many parts the patience of a client is measured: it is told at most one of them later.
const patienceMarks = 4

// watch tells the client of publishes whose outcomes take longer than it is patient.
func (p *publisher) watch() {
	if !p.watched.Load() && p.session.conn.side.Patience() > 0 && !p.watched.Swap(true) {
		time.AfterFunc(p.session.conn.side.Patience()/patienceMarks, p.check)
	}
}

// check tells of publishes that are overdue, and checks again as long as any has no outcome.
func (p *publisher) check() {
	s := p.session
	defer s.conn.Contain("check outcomes")
	late := p.outcomes.overdue(p.marks[0], func(number uint64) bool {
		_, ends := p.then.Load(number)
		return ends
	})
	if len(late) > 0 {
		p.rejectLate(late)
	}
	copy(p.marks[:], p.marks[1:])
	last, some := p.outcomes.waiting()
	if p.marks[patienceMarks-1] = last; some {
		time.AfterFunc(s.conn.side.Patience()/patienceMarks, p.check)
		return
	}
	clear(p.marks[:])
	p.watched.Store(false)
	if _, some = p.outcomes.waiting(); some { // which has found that it is watched
		p.watch()
	}
}

// rejectLate rejects deliveries whose outcome is not known.
func (p *publisher) rejectLate(ids []uint32) {
	s := p.session
	state := wire.State{Kind: wire.StateRejected, Rejected: wire.Rejected{Error: s.conn.side.Explain(context.DeadlineExceeded)}}
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	for _, id := range ids {
		if !s.counts.closed {
			s.conn.out.push(s.channel, &wire.Disposition{Role: true, First: id, Last: wire.Some(id), Settled: true, State: state})
		}
	}
}

// resolve records the outcome of publishes. why belongs to a rejection.
func (p *publisher) resolve(first, last uint64, state wire.Outcome, why *wire.Error) {
	if state != wire.StateRejected {
		why = nil
	}
	for n := first; n <= last && p.thens.Load() > 0; n++ {
		then, is := p.then.LoadAndDelete(n)
		if !is {
			continue
		}
		p.thens.Add(-1)
		told, e := wire.StateAccepted, then.(func(*wire.Error) *wire.Error)(why)
		if e != nil {
			told = wire.StateRejected
		}
		p.record(n, n, told, e)
	}
	p.record(first, last, state, why)
}

// record records the outcome of those that have none.
func (p *publisher) record(first, last uint64, state wire.Outcome, why *wire.Error) {
	var some [4]*incomingLink
	links := some[:0]
	refused := p.session.conn.protocol.Refused
	queue := p.outcomes.resolve(first, last, state, why, func(x *publishing) {
		if x.settled && state == wire.StateRejected && refused != nil {
			refused()
		}
		if x.link == nil {
			return
		}
		x.link.credit.waiting.Add(-1)
		if n := len(links); n == 0 || links[n-1] != x.link {
			links = append(links, x.link)
		}
	})
	s := p.session
	if p.commands.Load() {
		p.answered(first, last)
	}
	if queue {
		s.conn.out.queue(&p.outcomes)
	}
	for _, l := range links {
		s.counts.grant(l)
	}
	s.conn.grantAgain()
}

// headers and property give the broker what it wants to know of the message that is being published.
func (p *publisher) headers() *fsm.Table { return message.HeadersOf(&p.message) }

func (p *publisher) property(name string) []byte {
	return message.PropertyOf(&p.message, &p.properties, name)
}

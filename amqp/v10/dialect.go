package v10

import (
	"context"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// Dialect is what logins, addresses, messages and outcomes mean at a listener. Frames, windows, credit, and the order in which
// things happen are this package's, whatever the dialect.
type Dialect interface {
	// Open returns the dialect's side of a connection. It does not block.
	Open(*Client) Side
}

// Client is a connection as its dialect sees it. Its User and VHost are set by Login and Connect of the dialect's side.
type Client struct {
	*amqp.Conn
	conn *conn
}

// Side is a dialect's side of one connection. Until the connection is open its reader calls it; then whatever holds the gate
// of a session, where nothing else is said.
type Side interface {
	// Mechanisms are the SASL mechanisms that are offered, the preferred one first.
	Mechanisms() []string
	// Login logs the client in. A *fsm.Refusal: that was not possible now; amqp.ErrRefused: there is no such mechanism, or the
	// response is malformed; any other error refuses the login.
	Login(ctx context.Context, start *wire.SASLInit) error
	// Connect opens the vhost that the client means. What it returns is told with an open and a close.
	Connect(ctx context.Context, o *wire.Open) error
	// Announce completes the server's open.
	Announce(o *wire.Open)

	// Attach answers a client's attach, or returns the call that does, which may block.
	Attach(a *Attach) (next func())
	// Explain returns what a client sees of a broker's error, or of one of this package, which may be explained already. Any goroutine
	// may call it.
	Explain(err error) *wire.Error
	// Unroutable is with what a message is rejected whose queues are gone; nil: it is released. Any goroutine may call it.
	Unroutable() *wire.Error
	// Waits reports whether all that a client sends waits while an alarm is in effect, for which its windows are shut. Otherwise
	// the dialect refuses messages meanwhile.
	Waits() bool
	// Patience is how long a client waits for what becomes of a message; then it is told what Explain makes of a deadline that
	// has passed, and may send it again. 0: until it is known.
	Patience() time.Duration
	// Forgotten is the answer to an outcome of deliveries of which nothing is known any more.
	Forgotten(outcome *wire.State) wire.State

	// Renew is called when rights may have changed. It does not block, and any goroutine may call it.
	Renew()
	// Leave is called once, when the connection has ended after its open.
	Leave()
}

// Incoming takes the messages of a link on which the client sends. The session's gate is held.
type Incoming interface {
	// Take takes in a message. An error ends its link; next is a call that blocks.
	Take(d *Delivery) (next func(), err *wire.Error)
}

// Form is how messages look on a link on which the client receives, and what its outcomes mean there. AppendHead, Body and
// AppendTag depend on nothing but the message, and are called by any goroutine.
type Form interface {
	// AppendHead appends what a delivery begins with. Body is what follows, which is written from where it is.
	AppendHead(dst []byte, m *fsm.Message) []byte
	Body(m *fsm.Message) []byte
	// AppendTag appends the delivery-tag of the delivery with an id: at most 32 bytes.
	AppendTag(dst []byte, id uint32, m *fsm.Message) []byte
	// Singly reports whether an outcome is told for each delivery on its own, in whatever range it comes.
	Singly(outcome *wire.State) bool
	// Settlement returns what an outcome does to deliveries. of is the one that it is for, if it is quiet and is told singly. An
	// error is answered, and the deliveries stay locked, if it is quiet and the client waits for an answer; else it ends their link.
	Settlement(outcome *wire.State, of *Received) (fsm.Settlement, *wire.Error)
	// Answers returns with what an outcome is answered: if it took effect, and if the queue had taken the delivery back.
	Answers(outcome *wire.State) (done *wire.State, lost func() *wire.State)
	// Enlist has an outcome of a delivery on a quiet link take effect with a transaction, and returns the answer to it; nil: it knows no
	// transactions. The delivery stays until Received.Forget.
	Enlist(transaction []byte, outcome *wire.State, of *Received) (answer *wire.State)
	// Keeps reports whether what the client has received stays locked for it, and may be settled by others, when the link ends.
	Keeps() bool
	// Quiet reports whether the client is not told that a lock has ended. What it has received is remembered for Settlement then.
	Quiet() bool
}

// Attach is a client's attach, which is answered by one of its methods. They are called without the session's gate.
type Attach struct {
	*wire.Attach
	Link *Link // that is to be
}

// Received is what is remembered of a message on a quiet link.
type Received struct {
	Sequence uint64
	Acquired uint32
	Edit     []byte

	session *session
	id      uint64 // of the delivery
}

// Forget ends the delivery, which was settled in another way. Any goroutine may call it, without a gate.
func (r *Received) Forget() {
	c := &r.session.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.deliveries.each(uint32(r.id), uint32(r.id), true, func(delivery) {})
	}
}

// Link is the server's end of a link as its dialect sees it.
type Link struct {
	session *session
	link    *link
	over    func() // tells the dialect that it is over; nil: that need not know
	// consumer is its number; 0: it is none.
	consumer uint64
}

// Delivery is a message that has arrived. It is valid while Incoming.Take runs.
type Delivery struct {
	Link    *Link
	Message []byte
	ID      uint32
	Format  uint32
	Settled bool
	// Transaction is the id of the one that it is a part of; nil: none. It may be kept.
	Transaction []byte
}

// Broker is the broker's session. It may be used by what Side.Attach and Incoming.Take return, and by Link.Do.
func (k *Link) Broker() amqp.Session { return k.session.broker }

// Channel is that of the link's session: two links with the same one are of one session, as long as they live.
func (k *Link) Channel() uint16 { return k.session.channel }

// Do has a call made that may block and use the broker's session, once no other is made. It does not block. false: the session
// has ended.
func (k *Link) Do(call func()) bool {
	c := &k.session.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		k.session.post(call)
	}
	return !c.closed
}

// Consumer is the number of the link's consumer, once it is one.
func (k *Link) Consumer() uint64 { return k.consumer }

// waits reports whether a client still waits for the answer: neither side has ended the link. The gate is held.
func (a *Attach) waits() bool {
	s, l := a.Link.session, a.Link.link
	return s.state == sessionOpen && s.links[l.handle] == l && !l.ended
}

// Refuse answers with a link that has nothing at the server's end, and ends it.
func (a *Attach) Refuse(e *wire.Error) {
	s, l := a.Link.session, a.Link.link
	s.gate.Lock()
	defer s.gate.Unlock()
	if a.waits() {
		s.refuseLink(l, a.Attach, e)
	}
}

// Answer returns an answer that repeats what the client says.
func (a *Attach) Answer() *wire.Attach {
	return &wire.Attach{
		Name: a.Name, Handle: a.Handle, Role: !a.Role, SndSettleMode: a.SndSettleMode, RcvSettleMode: a.RcvSettleMode,
		Source: a.Source, Target: a.Target,
	}
}

// Take opens a link on which the client sends messages, with so much credit; the largest is as the answer says. queue is what
// the link ends with, see amqp.Session.Watch; 0: nothing. begin is called before the client knows, unless the session has ended.
func (a *Attach) Take(in Incoming, queue fsm.QueueID, answer *wire.Attach, credit uint32, begin func()) {
	s, l := a.Link.session, a.Link.link
	s.gate.Lock()
	defer s.gate.Unlock()
	if !a.waits() {
		return
	}
	l.in = &incomingLink{
		session: s, handle: l.handle, takes: in, queue: queue,
		assembly: assembly{mode: a.SndSettleMode, limit: int(answer.MaxMessageSize), transacts: true},
	}
	begin()
	s.conn.out.push(s.channel, answer)
	s.counts.begin(l.in, a.InitialDeliveryCount.Or(0), credit)
}

// Consume makes a link a consumer of a queue, which it is before Start answers the attach; Refuse ends it. Number, Tag, NoAck and
// Credit of the consumer follow from the attach. news is told what the queue says of the consumer, without blocking; nil: it is
// not. over is called, with the gate held, if the link is over before it is answered; nil: that need not be known. An error is the
// queue's; if it is not ok either, the session has ended.
func (a *Attach) Consume(ctx context.Context, form Form, spec fsm.ConsumeSpec, news func(*fsm.News), over func()) (ok bool, _ error) {
	s, l := a.Link.session, a.Link.link
	out := &outgoingLink{
		session: s, handle: l.handle, name: a.Name, queue: spec.Queue, form: form, settled: a.SndSettleMode == sendSettled,
		limit: a.MaxMessageSize, second: a.RcvSettleMode == receiveSecond, releases: true, keeps: form.Keeps(), quiet: form.Quiet(), hears: news,
	}
	s.counts.add(out)
	spec.Number, spec.Tag, spec.NoAck, spec.Credit = out.consumer, a.Name, out.settled, true
	err := s.broker.Consume(ctx, spec)
	s.gate.Lock()
	defer s.gate.Unlock()
	if err != nil || !a.waits() {
		s.counts.remove(out)
		return false, err
	}
	l.out, a.Link.consumer, a.Link.over = out, out.consumer, over
	return true, nil
}

// Ask gives a consumer credit for one message, which the client gets once it has given credit itself. It is called before Start.
func (a *Attach) Ask() {
	out := a.Link.link.out
	c := &a.Link.session.counts
	c.mu.Lock()
	out.requested = true
	c.mu.Unlock()
	a.Link.session.broker.Credit(out.consumer, fsm.Flow{Credit: 1})
}

// Start answers the attach of a consumer. begin is called before the client knows, unless the link has ended.
func (a *Attach) Start(answer *wire.Attach, begin func()) {
	s, l := a.Link.session, a.Link.link
	s.gate.Lock()
	defer s.gate.Unlock()
	if a.waits() && l.out != nil {
		begin()
		s.counts.start(l.out, answer)
	}
}

// Respond opens a link on which the dialect sends messages of its own, see Link.Send. begin is as for Take.
func (a *Attach) Respond(answer *wire.Attach, begin func()) {
	s, l := a.Link.session, a.Link.link
	s.gate.Lock()
	defer s.gate.Unlock()
	if !a.waits() {
		return
	}
	l.out = &outgoingLink{
		session: s, handle: l.handle, name: a.Name, form: verbatim{}, settled: true, limit: a.MaxMessageSize, own: new(sending), answers: true,
	}
	begin()
	s.counts.add(l.out)
	s.counts.start(l.out, answer)
}

// Ended has a call made, with the gate held, when the link is over. It is called before the attach is answered.
func (k *Link) Ended(call func()) { k.over = call }

// Detach ends the link with an error. It does not block, and any goroutine may call it.
func (k *Link) Detach(e *wire.Error) {
	s := k.session
	k.Do(func() {
		s.gate.Lock()
		defer s.gate.Unlock()
		if s.state == sessionOpen && s.links[k.link.handle] == k.link {
			s.detach(k.link, e)
		}
	})
}

// maxWaiting is how many messages of a dialect wait for credit.
const maxWaiting = 256

// Send sends a message of the dialect as soon as the link has credit. false: too many wait. Any goroutine may call it, without the
// gate.
func (k *Link) Send(message []byte) bool {
	s := k.session
	s.gate.Lock()
	defer s.gate.Unlock()
	out := k.link.out
	if s.state != sessionOpen || out == nil || !out.isAnswering() {
		return true // it is over
	}
	return out.sendOwn(message)
}

// sendOwn sends a message of a dialect, or has it wait for credit.
func (l *outgoingLink) sendOwn(message []byte) bool {
	c := &l.session.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return true
	case l.own.left == 0 || len(l.waiting) > 0:
		if len(l.waiting) >= maxWaiting {
			return false
		}
		l.session.memory.Add(int64(len(message)))
		l.waiting = append(l.waiting, message)
	default:
		l.sendOwnNow(message)
		c.pump()
	}
	return true
}

// sendOwnNow sends a message of a dialect for which there is credit; it counts as held until its frames are in the outbox.
// counts.mu is held.
func (l *outgoingLink) sendOwnNow(message []byte) {
	l.session.memory.Add(int64(len(message)))
	l.own.take()
	l.session.counts.hold(l, &fsm.Message{Payload: message}, len(message))
}

// sendWaiting sends what waits for credit. counts.mu is held.
func (l *outgoingLink) sendWaiting() {
	for len(l.waiting) > 0 && l.own.left > 0 {
		message := l.waiting[0]
		l.waiting = l.waiting[1:]
		l.session.memory.Add(-int64(len(message)))
		l.sendOwnNow(message)
	}
}

// forgetWaiting forgets what waits for credit. counts.mu is held.
func (l *outgoingLink) forgetWaiting() {
	for _, message := range l.waiting {
		l.session.memory.Add(-int64(len(message)))
	}
	l.waiting = nil
}

// unsent returns the numbers of the messages of a link that keeps what its client has received, which that has not received as
// a whole.
func (l *outgoingLink) unsent() map[uint64]bool {
	if !l.keeps {
		return nil
	}
	c := &l.session.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	numbers := map[uint64]bool{}
	for _, m := range l.early {
		numbers[m.ID] = true
	}
	for _, h := range c.held {
		if h.link == l && h.frames > 0 {
			numbers[h.message.ID] = true
		}
	}
	return numbers
}

// Answer tells the client a state of the dialect's own.
func (d *Delivery) Answer(state *wire.State) {
	if s := d.Link.session; !d.Settled {
		s.conn.out.push(s.channel, &wire.Disposition{Role: true, First: d.ID, Last: wire.Some(d.ID), Settled: true, State: *state})
	}
}

// Accept tells the client that the dialect has what it sent.
func (d *Delivery) Accept() { d.end(wire.StateAccepted, nil) }

// Reject tells the client that the dialect does not take what it sent. What is settled is dropped.
func (d *Delivery) Reject(e *wire.Error) { d.end(wire.StateRejected, e) }

func (d *Delivery) end(state wire.Outcome, e *wire.Error) {
	p := &d.Link.session.publisher
	number := p.outcomes.add(nil, d.ID, 0, d.Settled)
	p.resolve(number, number, state, e)
}

// Publish passes a message to the broker, of which Number and Confirm are set here. It belongs to the caller again once Take has
// returned, and next as well.
func (d *Delivery) Publish(m *fsm.Publish) (next func()) {
	p := &d.Link.session.publisher
	m.Confirm, m.Number = !d.Settled, d.wait(len(m.Payload))
	return p.pass(m)
}

// wait has the delivery wait for what becomes of so many bytes, under the number that it returns.
func (d *Delivery) wait(size int) (number uint64) {
	in, p := d.Link.link.in, &d.Link.session.publisher
	p.session.conn.Flow.Add(1, int64(size))
	in.credit.waiting.Add(1)
	p.watch()
	return p.outcomes.add(in, d.ID, uint32(size), d.Settled)
}

// pass publishes a message that has its number.
func (p *publisher) pass(m *fsm.Publish) (next func()) {
	routed, err := p.session.broker.Publish(m)
	switch {
	case err == fsm.ErrNotFresh:
		return func() { p.passLater(m) }
	case err != nil:
		p.resolve(m.Number, m.Number, wire.StateRejected, p.session.refusal("transfer", err))
	case !routed:
		p.resolve(m.Number, m.Number, wire.StateRejected, p.session.conn.side.Unroutable())
	}
	return nil
}

// passLater is pass once the broker is certain of its routes. It blocks.
func (p *publisher) passLater(m *fsm.Publish) {
	if !p.awaitRoutes(m) {
		return
	}
	s := p.session
	s.gate.Lock()
	if s.state != sessionOpen {
		s.gate.Unlock()
		return
	}
	next := p.pass(m)
	s.gate.Unlock()
	if next != nil {
		next()
	}
}

// Post has something else passed to the broker, of so many bytes: by post, which may block, and whose outcome the broker confirms
// under a number, unless it returns an error. then is told the outcome, nil if it is done, and returns what the client is told; it is
// not called if the session ends before. nil: the client is told the same.
func (d *Delivery) Post(size int, post func(number uint64) error, then func(*wire.Error) *wire.Error) (next func()) {
	p, number := &d.Link.session.publisher, d.wait(size)
	if then != nil {
		p.then.Store(number, then)
		p.thens.Add(1)
	}
	return func() {
		if err := post(number); err != nil {
			p.resolve(number, number, wire.StateRejected, p.session.refusal("transfer", err))
		}
	}
}

// verbatim is the form of messages that are sent as they are.
type verbatim struct{ plainForm }

// AppendHead implements Form.
func (verbatim) AppendHead(dst []byte, _ *fsm.Message) []byte { return dst }

// Body implements Form.
func (verbatim) Body(m *fsm.Message) []byte { return m.Payload }

package amqptest

import (
	"context"
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// session is an amqp.Session. Its events come from a goroutine of its own, one
// at a time, in the order in which they arose.
type session struct {
	broker     *Broker
	connection *connection
	out        fsm.SessionEvents
	ended      chan struct{} // closed when the goroutine has ended

	// Under Broker.mu.
	events       []func(fsm.SessionEvents)
	calling      bool
	closed       bool
	consumers    map[uint64]*consumer
	held         map[uint64]*holding
	watched      map[*queue]bool
	limit        int // of what consumers hold together; 0: none
	heldConfirms []heldConfirm
	dropped      uint64 // publishes accepted and forgotten, up to this one
	confirmed    uint64 // and confirmed, up to this one
}

type heldConfirm struct {
	number uint64
	why    error
}

func (s *session) run() {
	defer close(s.ended)
	b := s.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		for len(s.events) == 0 && s.confirmed == s.dropped && !s.closed {
			b.changed.Wait()
		}
		if s.closed {
			return
		}
		events := s.events
		first, last := s.confirmed+1, s.dropped
		s.events, s.calling, s.confirmed = nil, true, s.dropped
		b.mu.Unlock()
		for _, e := range events {
			e(s.out)
		}
		if last >= first {
			s.out.Confirmed(first, last, nil)
		}
		b.mu.Lock()
		s.calling = false
		b.changed.Broadcast()
	}
}

// event queues a call of the channel. The broker is locked, here and below.
func (s *session) event(e func(fsm.SessionEvents)) {
	if !s.closed {
		s.events = append(s.events, e)
		s.broker.changed.Broadcast()
	}
}

func (s *session) confirm(number uint64, why error) {
	s.event(func(e fsm.SessionEvents) { e.Confirmed(number, number, why) })
}

// hold takes a message into a consumer's hand, or a get's.
func (s *session) hold(token uint64, q *queue, m *message) fsm.Message {
	h := s.held[token]
	if h == nil {
		h = &holding{queue: q, messages: map[uint64]*message{}}
		s.held[token] = h
	}
	h.last++
	h.messages[h.last] = m
	out := m.delivery
	out.Consumer, out.ID, out.Payload, out.Ready = token, h.last, m.payload, uint64(len(q.ready))
	out.Acquired, out.Failed, out.Classic, out.Deaths = m.acquired, m.failed, m.classic, m.deaths
	return out
}

func (s *session) deliver(m fsm.Message) {
	s.event(func(e fsm.SessionEvents) { e.Deliver([]fsm.Message{m}) })
}

func notFound(what, name string) error {
	return fsm.Refuse(fsm.NotFoundKind, fmt.Sprintf("no %s '%s' in vhost '/'", what, name))
}

// Refresh: there is one view. While it is blocked, nobody knows whether that is
// up to date.
func (s *session) Refresh(ctx context.Context) error { return s.broker.enter(ctx, "Refresh") }

// ReplyName is a name for this channel.
func (s *session) ReplyName() string { return fsm.ReplyName("of-this-channel") }

// ReplyNameOf is the name of a consumer of replies.
func (s *session) ReplyNameOf(consumer uint64) string {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	for name, r := range s.broker.replies {
		if r == (requester{s, consumer}) {
			return name
		}
	}
	return ""
}

// Check refuses what Publish refuses.
func (s *session) Check(p *fsm.Publish) error {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	return s.check(p)
}

// Admit refuses what Check refuses, unless publishes are dropped.
func (s *session) Admit(p *fsm.Publish) error {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	if s.broker.drop {
		return nil
	}
	return s.check(p)
}

func (s *session) fresh(p *fsm.Publish) error {
	if !p.Fresh && s.broker.blocked["Refresh"] != nil {
		return fsm.ErrNotFresh
	}
	return nil
}

func (s *session) check(p *fsm.Publish) error {
	if err := s.fresh(p); err != nil {
		return err
	}
	x := s.broker.exchanges[p.Exchange]
	switch {
	case p.Exchange == fsm.CommandExchange:
		return nil
	case x == nil:
		return notFound("exchange", p.Exchange)
	case s.broker.forbidden[p.Exchange]:
		return fsm.Refuse(fsm.AccessRefused, "write access to exchange '"+p.Exchange+"' in vhost '/' refused for user 'guest'")
	case x.internal:
		return fsm.Refuse(fsm.AccessRefused, "cannot publish to internal exchange '"+p.Exchange+"' in vhost '/'")
	case p.TTLError != nil:
		return p.TTLError
	}
	return p.UserError
}

// Publish routes and enqueues.
func (s *session) Publish(p *fsm.Publish) (bool, error) {
	if !p.Payload.Valid() {
		panic("amqptest: payload is not valid")
	}
	b := s.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := s.fresh(p); err != nil {
		return false, err
	}
	b.published++
	if b.drop {
		s.dropped = p.Number
		if s.confirmed+1 == s.dropped {
			b.changed.Broadcast()
		}
		return true, nil
	}
	b.changed.Broadcast()
	if p.Exchange == fsm.CommandExchange && b.command != nil {
		kept, why := b.command(p)
		number := p.Number
		tell := func() {
			if len(kept) > 0 {
				s.event(func(e fsm.SessionEvents) { e.Kept(kept) })
			}
			s.confirm(number, why)
		}
		if b.holdSettled {
			b.heldSettled = append(b.heldSettled, tell)
		} else {
			tell()
		}
		return true, nil
	}
	if err := s.check(p); err != nil {
		return false, err
	}
	if r, ok := b.replies[p.RoutingKey]; ok && p.Exchange == "" {
		r.session.deliver(fsm.Message{Consumer: r.consumer, Payload: p.Payload})
		s.confirm(p.Number, nil)
		return true, nil
	}
	x := b.exchanges[p.Exchange]
	for _, f := range p.Headers().GetFields() {
		if f.Name == "BCC" {
			b.journalf("publish bcc=%d", len(f.Value.Array))
		}
	}
	queues := b.route(x, p.Exchange, p.RoutingKey)
	var why error
	for _, q := range queues {
		if r := b.refuse[q.name]; r != nil {
			why = r
			continue
		}
		q.ready = append(q.ready, &message{payload: p.Payload})
		q.dispatch()
	}
	switch {
	case len(queues) == 0:
	case b.holdConfirms:
		s.heldConfirms = append(s.heldConfirms, heldConfirm{p.Number, why})
	default:
		s.confirm(p.Number, why)
	}
	return len(queues) > 0, nil
}

// Watch finds a queue, whoever owns it.
func (s *session) Watch(ctx context.Context, name string) (fsm.QueueID, error) {
	b := s.broker
	if err := b.enter(ctx, "Watch"); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[name]
	if q == nil {
		return 0, notFound("queue", name)
	}
	if s.watched == nil {
		s.watched = map[*queue]bool{}
	}
	s.watched[q] = true
	return fsm.QueueID(q.token &^ (1 << 63)), nil
}

// Written is no news: the broker bounds nothing.
func (s *session) Written(int, int) {}

// Limit bounds what consumers hold together.
func (s *session) Limit(_ context.Context, prefetch uint16) {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	s.limit = int(prefetch)
	s.dispatchAll()
}

// full reports whether the consumers hold as much as they may together.
func (s *session) full() bool {
	n := 0
	for token, h := range s.held {
		if token>>63 == 0 {
			n += len(h.messages)
		}
	}
	return s.limit > 0 && n >= s.limit
}

// dispatchAll serves all queues of the session's consumers.
func (s *session) dispatchAll() {
	for _, c := range s.consumers {
		c.queue.dispatch()
	}
}

// Settle ends deliveries.
func (s *session) Settle(token uint64, ids []uint64, outcome fsm.Outcome) {
	if !slices.IsSorted(ids) {
		panic("amqptest: ids do not ascend")
	}
	b := s.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.closed {
		panic("amqptest: settle after close")
	}
	name := fmt.Sprint(token)
	if token>>63 != 0 {
		name = "get"
	}
	b.journalf("settle %s %v %v", name, ids, outcome)
	h := s.held[token]
	if c := s.consumers[token]; c != nil {
		c.suspended = false
	}
	if h == nil {
		return
	}
	for _, id := range ids {
		m := h.messages[id]
		if m == nil {
			continue
		}
		delete(h.messages, id)
		if outcome == fsm.Requeue || outcome == fsm.RequeueFailed {
			m.acquired++
			if outcome == fsm.RequeueFailed {
				m.failed++
			}
			h.queue.ready = append(h.queue.ready, m)
		}
	}
	h.queue.dispatch()
	if s.limit > 0 {
		s.dispatchAll()
	}
}

// SettleAs is Settle, and tells at once, unless nothing was ever given: what is shown is not.
func (s *session) SettleAs(token uint64, ids []uint64, how *fsm.Settlement) error {
	if err := s.broker.failure("SettleAs"); err != nil {
		return err
	}
	var lost []uint64
	s.broker.mu.Lock()
	if s.held[token] == nil {
		s.broker.mu.Unlock()
		return nil
	}
	for _, id := range ids {
		if h := s.held[token]; h == nil || h.messages[id] == nil || how.Outcome == fsm.Defer && s.broker.deferred[how.Deferral] {
			lost = append(lost, id)
		} else if len(how.Annotations) > 0 {
			h.messages[id].delivery.Annotations = fsm.AnnotationMap(how.Annotations)
		}
	}
	if how.Deferral != "" || how.Reason != "" || how.DueAt != 0 {
		s.broker.journalf("settlement deferral=%s reason=%s description=%s due=%d", how.Deferral, how.Reason, how.Description, how.DueAt)
	}
	s.broker.mu.Unlock()
	if how.Outcome != fsm.Defer || len(lost) == 0 {
		s.Settle(token, ids, how.Outcome)
	}
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	if how.Deferral != "" {
		s.broker.deferred[how.Deferral] = true
	}
	if !how.Exact && how.Outcome != fsm.Defer {
		lost = nil
	}
	if how.Number == 0 {
		return nil
	}
	number := how.Number
	tell := func() { s.event(func(e fsm.SessionEvents) { e.Settled(number, lost) }) }
	if s.broker.holdSettled {
		s.broker.heldSettled = append(s.broker.heldSettled, tell)
	} else {
		tell()
	}
	return nil
}

// Renew is noted, and has no effect.
func (s *session) Renew(token uint64, ids []uint64) {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	s.broker.journalf("renew %d %v", token, ids)
}

// Consume starts a consumer.
func (s *session) Consume(ctx context.Context, spec fsm.ConsumeSpec) error {
	if b := s.broker; spec.Queue == fsm.ReplyQueue {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.lastID++
		b.replies[fsm.ReplyName(fmt.Sprint(b.lastID))] = requester{s, spec.Number}
		return nil
	}
	q, err := s.find(ctx, "Consume", spec.Queue)
	if err != nil {
		return err
	}
	defer s.broker.mu.Unlock()
	c := &consumer{session: s, queue: q, spec: spec}
	s.consumers[spec.Number] = c
	if spec.Browse {
		q.browsers = append(q.browsers, c)
	} else {
		q.consumers = append(q.consumers, c)
	}
	q.dispatch()
	return nil
}

// Selects: a queue whose name says so lets nobody have a selector.
func (s *session) Selects(_ context.Context, spec fsm.ConsumeSpec) bool {
	return spec.Queue != "unselective"
}

// Credit gives a consumer credit, and answers at once.
func (s *session) Credit(number uint64, f fsm.Flow) {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	c := s.consumers[number]
	if c == nil || !c.spec.Credit {
		return
	}
	c.left = uint32(max(int64(f.Credit)-int64(int32(c.count-f.DeliveryCount)), 0))
	c.queue.dispatch()
	if f.Drain {
		c.count += c.left
		c.left = 0
	}
	if f.Drain || f.Echo {
		now := fsm.LinkState{DeliveryCount: c.count, Credit: c.left, Available: uint64(len(c.queue.ready)), Drained: f.Drain}
		s.event(func(e fsm.SessionEvents) { e.Credited(number, now) })
	}
}

// find begins a call about a queue. Without an error the broker is locked.
func (s *session) find(ctx context.Context, method, name string) (*queue, error) {
	b := s.broker
	if err := b.enter(ctx, method); err != nil {
		return nil, err
	}
	b.mu.Lock()
	q := b.queues[name]
	switch {
	case q == nil:
		b.mu.Unlock()
		return nil, notFound("queue", name)
	case q.owner != nil && q.owner != s.connection:
		b.mu.Unlock()
		return nil, fsm.Refuse(fsm.Locked, "cannot obtain exclusive access to locked queue '"+name+"' in vhost '/'")
	}
	return q, nil
}

// Cancel ends a consumer.
func (s *session) Cancel(ctx context.Context, number uint64) error {
	b := s.broker
	if err := b.enter(ctx, "Cancel"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !s.drop(number) {
		return fsm.Refuse(fsm.NotFoundKind, "no such consumer")
	}
	// No Deliver may come after this call has returned.
	for len(s.events) > 0 || s.calling {
		b.changed.Wait()
	}
	return nil
}

// Drop ends a consumer and does not wait for what is on its way.
func (s *session) Drop(number uint64) {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	s.drop(number)
}

// drop reports whether there was such a consumer. broker.mu is held.
func (s *session) drop(number uint64) bool {
	for name, r := range s.broker.replies {
		if r == (requester{s, number}) {
			delete(s.broker.replies, name)
			return true
		}
	}
	c := s.consumers[number]
	if c == nil {
		return false
	}
	delete(s.consumers, number)
	for _, list := range []*[]*consumer{&c.queue.consumers, &c.queue.browsers} {
		*list = slices.DeleteFunc(*list, func(o *consumer) bool { return o == c })
	}
	s.broker.journalf("cancel %d", number)
	return true
}

// Get takes one message.
func (s *session) Get(ctx context.Context, name string, noAck bool) (fsm.Message, bool, error) {
	q, err := s.find(ctx, "Get", name)
	if err != nil {
		return fsm.Message{}, false, err
	}
	defer s.broker.mu.Unlock()
	if len(q.ready) == 0 {
		return fsm.Message{}, false, nil
	}
	m := q.ready[0]
	q.ready = q.ready[1:]
	out := s.hold(q.token, q, m)
	if noAck {
		delete(s.held[q.token].messages, out.ID)
	}
	return out, true, nil
}

// DeclareQueue makes a queue, or finds it.
func (s *session) DeclareQueue(ctx context.Context, spec fsm.QueueSpec) (fsm.QueueInfo, error) {
	b := s.broker
	if _, is := fsm.ReplySuffix(spec.Name); is {
		b.mu.Lock()
		defer b.mu.Unlock()
		if _, ok := b.replies[spec.Name]; !ok {
			return fsm.QueueInfo{}, notFound("queue", spec.Name)
		}
		return fsm.QueueInfo{Name: spec.Name, Consumers: 1}, nil
	}
	q, err := s.find(ctx, "DeclareQueue", spec.Name)
	created := err != nil
	if err != nil {
		if r, ok := err.(*fsm.Refusal); !ok || r.Kind != fsm.NotFoundKind || spec.Passive {
			return fsm.QueueInfo{}, err
		}
		b.mu.Lock()
		if spec.Name == "" {
			b.lastID++
			if spec.Prefix == "" {
				spec.Prefix = "amq.gen-"
			}
			spec.Name = fmt.Sprintf("%s%d", spec.Prefix, b.lastID)
		}
		q = b.queue(spec.Name)
		q.spec = spec
		if spec.Exclusive {
			q.owner = s.connection
		}
	}
	defer b.mu.Unlock()
	info := q.info()
	info.Created = created
	return info, nil
}

func (q *queue) info() fsm.QueueInfo {
	return fsm.QueueInfo{Name: q.name, Ready: uint64(len(q.ready)), Consumers: uint64(len(q.consumers))}
}

// DescribeQueue describes a queue of the only node.
func (s *session) DescribeQueue(ctx context.Context, name string) (fsm.QueueDetails, error) {
	q, err := s.find(ctx, "DescribeQueue", name)
	if err != nil {
		return fsm.QueueDetails{}, err
	}
	defer s.broker.mu.Unlock()
	d := fsm.QueueDetails{
		QueueInfo: q.info(), VHost: "/", Type: "quorum", Durable: q.spec.Durable, Exclusive: q.owner != nil, AutoDelete: q.spec.AutoDelete,
		Arguments: q.spec.Arguments, Leader: "n1", Replicas: []string{"n1"},
	}
	if d.Exclusive || !d.Durable {
		d.Type = "classic"
	}
	return d, nil
}

// DeleteQueue deletes a queue; a missing one is fine. The channel hears of its
// consumers' end before it has the answer.
func (s *session) DeleteQueue(ctx context.Context, name string, ifUnused, ifEmpty bool) (uint64, error) {
	q, err := s.find(ctx, "DeleteQueue", name)
	if r, ok := err.(*fsm.Refusal); ok && r.Kind == fsm.NotFoundKind {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer s.broker.mu.Unlock()
	switch {
	case ifUnused && len(q.consumers) > 0:
		return 0, fsm.Refuse(fsm.Precondition, "queue '"+name+"' in vhost '/' in use")
	case ifEmpty && len(q.ready) > 0:
		return 0, fsm.Refuse(fsm.Precondition, "queue '"+name+"' in vhost '/' not empty")
	}
	s.broker.deleteQueue(name)
	for len(s.events) > 0 || s.calling {
		s.broker.changed.Wait()
	}
	return uint64(len(q.ready)), nil
}

// PurgeQueue removes ready messages.
func (s *session) PurgeQueue(ctx context.Context, name string) (uint64, error) {
	q, err := s.find(ctx, "PurgeQueue", name)
	if err != nil {
		return 0, err
	}
	defer s.broker.mu.Unlock()
	n := len(q.ready)
	q.ready = nil
	return uint64(n), nil
}

// DeclareExchange makes an exchange, or finds it.
func (s *session) DeclareExchange(ctx context.Context, spec fsm.ExchangeSpec) error {
	b := s.broker
	if err := b.enter(ctx, "DeclareExchange"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch x := b.exchanges[spec.Name]; {
	case x != nil:
	case spec.Passive:
		return notFound("exchange", spec.Name)
	case spec.Type != "direct" && spec.Type != "fanout":
		return fsm.Refuse(fsm.Precondition, fsm.UnknownExchangeType(spec.Type))
	default:
		b.exchanges[spec.Name] = &exchange{kind: spec.Type, internal: spec.Internal}
	}
	return nil
}

// DeleteExchange deletes an exchange; a missing one is fine.
func (s *session) DeleteExchange(ctx context.Context, name string, ifUnused bool) error {
	b := s.broker
	if err := b.enter(ctx, "DeleteExchange"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.exchanges[name]; x != nil && ifUnused && len(x.bindings) > 0 {
		return fsm.Refuse(fsm.Precondition, "exchange '"+name+"' in vhost '/' in use")
	}
	delete(b.exchanges, name)
	return nil
}

// Bind binds a queue; bindings of exchanges are listed and lead nowhere.
func (s *session) Bind(ctx context.Context, spec fsm.BindSpec) error {
	b := s.broker
	if err := b.enter(ctx, "Bind"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.exchanges[spec.Source]
	switch {
	case !spec.ToExchange && b.queues[spec.Destination] == nil:
		return notFound("queue", spec.Destination)
	case spec.ToExchange && b.exchanges[spec.Destination] == nil:
		return notFound("exchange", spec.Destination)
	case x == nil:
		return notFound("exchange", spec.Source)
	case !slices.ContainsFunc(x.bindings, func(o binding) bool { return o.is(spec) }):
		x.bindings = append(x.bindings, binding{spec.Destination, spec.ToExchange, spec.RoutingKey, spec.Arguments})
	}
	return nil
}

// Unbind removes a binding; a missing one is fine.
func (s *session) Unbind(ctx context.Context, spec fsm.BindSpec) error {
	b := s.broker
	if err := b.enter(ctx, "Unbind"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.exchanges[spec.Source]; x != nil {
		x.bindings = slices.DeleteFunc(x.bindings, func(o binding) bool { return o.is(spec) })
	}
	return nil
}

// Bindings lists the bindings of an exchange with a name.
func (s *session) Bindings(ctx context.Context, of fsm.BindSpec) (list []fsm.BindSpec, err error) {
	b := s.broker
	if err := b.enter(ctx, "Bindings"); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.exchanges[of.Source]; x != nil {
		for _, o := range x.bindings {
			if of.Arguments = o.args; o.is(of) {
				list = append(list, of)
			}
		}
	}
	return list, nil
}

// Close puts back what the session holds and waits for its goroutine.
func (s *session) Close(ctx context.Context) {
	b := s.broker
	_ = b.enter(ctx, "Close")
	b.mu.Lock()
	if s.closed {
		panic("amqptest: session closed twice")
	}
	s.closed = true
	delete(b.sessions, s)
	touched := map[*queue]bool{}
	for _, c := range s.consumers {
		c.queue.consumers = slices.DeleteFunc(c.queue.consumers, func(o *consumer) bool { return o == c })
		touched[c.queue] = true
	}
	for name, r := range b.replies {
		if r.session == s {
			delete(b.replies, name)
		}
	}
	for _, token := range sortedTokens(s.held) {
		h := s.held[token]
		for _, id := range h.ids() {
			m := h.messages[id]
			m.acquired++
			m.failed++
			h.queue.ready = append(h.queue.ready, m)
		}
		touched[h.queue] = true
	}
	s.held = nil
	for q := range touched {
		q.dispatch()
	}
	b.journalf("session closed")
	b.mu.Unlock()
	<-s.ended
}

package session

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// stray is a publish that was routed to a queue which is gone. It is routed again by a view that no
// longer holds the queue.
type stray struct {
	publish fsm.Publish // Headers and Property are nil
	fan     *fanout
}

// strayed keeps a publish whose queue is gone. If the view still holds the queue, the publish waits
// for the end of the stream: that view would route it there again. Strays keep the order in which
// they were published. The lock is held.
func (x *publisher) strayed(q *sessionQueue, p *stream.Pending) {
	again, err := publishOf(p, x.properties)
	if err != nil {
		x.node.Logger.Error("message cannot be routed again", "queue", uint64(q.stream.Queue()), "error", err)
		x.copyOver(p, fanOf(p), x.notTaken(q, fsm.OutOfOrder))
		return
	}
	q.strays = append(q.strays, stray{again, fanOf(p)})
	if q.stream.Gone() {
		x.takeStrays(q)
	}
}

// takeStrays releases the strays of a queue that is gone. The lock is held.
func (x *publisher) takeStrays(q *sessionQueue) {
	x.strays = append(x.strays, q.strays...)
	q.strays = nil
}

// publishOf returns the publish that a command was made from.
func publishOf(of *stream.Pending, properties Properties) (fsm.Publish, error) {
	c, err := of.Command()
	if err != nil {
		return fsm.Publish{}, err
	}
	e, payload := c.GetEnqueue(), fsm.Payload(of.Payload)
	p := fsm.Publish{
		Number: of.Number, Exchange: string(payload.Exchange()), RoutingKey: string(payload.RoutingKey()), Payload: payload,
		TTL: fsm.Millis(e.GetTtlPlusOne()) - 1, Priority: int(e.GetPriorityPlusOne()) - 1, HasExpiration: e.GetHasExpiration(),
		Copies: append(properties.Copies(payload), payload.BlindKeys()...), Mandatory: of.Mandatory, Confirm: of.Confirm,
		MessageID: e.GetMessageId(), CorrelationID: e.GetCorrelationId(),
	}
	if w, is := of.Note.(*timing); is {
		p.Schedule, p.Delay = w.schedule, w.delay
	}
	return p, nil
}

// routeStrays routes strays again, by a view that other publishes could be routed by as well;
// without one they wait. A queue of the new route may be gone as well: then there is a view by now
// that knows it. The lock is held.
func (x *publisher) routeStrays() {
	for len(x.strays) > 0 {
		if !x.node.Catalog.Fresh() {
			x.awaitFresh()
			return
		}
		strays := x.strays
		x.strays = nil
		v := x.node.View()
		for i := range strays {
			x.routeStray(v, &strays[i])
		}
	}
}

// awaitFresh continues with strays once the view is up to date. The lock is held.
func (x *publisher) awaitFresh() {
	if x.refreshing {
		return
	}
	x.refreshing = x.node.Spawn("route publishes again", func() {
		if !x.node.Try("route publishes again", x.refreshed) {
			x.session.fail()
		}
	})
}

// refreshed waits until the view is up to date, and continues with strays.
func (x *publisher) refreshed() {
	err := x.node.Catalog.Refresh(x.node.Life())
	x.session.mu.Lock()
	x.refreshing = false
	if err != nil {
		x.session.mu.Unlock() // the node stops: waiting publishes stay unanswered
		return
	}
	x.session.unlock()
}

// routeStray sends one copy of a publish to the queues that it now matches and that were not sent
// one. The user's rights were checked when the publish came. The lock is held.
func (x *publisher) routeStray(v *catalog.View, one *stray) {
	p, fan := &one.publish, one.fan
	queues, limits, err := x.routeAgain(v, p, fan)
	switch {
	case len(queues) == 0:
		x.copyOver(&stream.Pending{Payload: p.Payload, Number: p.Number, Mandatory: p.Mandatory, Confirm: p.Confirm}, fan, err)
		return
	case fan != nil:
		fan.left += len(queues) - 1
		fan.queues = slices.Concat(fan.queues, idsOf(queues))
	case len(queues) > 1:
		fan = &fanout{left: len(queues), worst: fsm.ErrUnroutable, queues: idsOf(queues), chance: mathrand.Uint64()}
	}
	for _, q := range queues {
		x.sendCopy(q, p, fan, limits)
	}
}

// routeAgain returns the queues that a stray matches and that were not sent a copy of it, or the
// outcome of a publish that has none.
func (x *publisher) routeAgain(v *catalog.View, p *fsm.Publish, fan *fanout) (queues []*catalog.Queue, limits catalog.Ceilings, err error) {
	properties := x.properties
	m := &catalog.Message{
		Keys:     append([]string{p.RoutingKey}, p.Copies...),
		Headers:  func() *fsm.Table { return properties.Headers(p.Payload, nil) },
		Property: func(name string) []byte { return properties.Property(p.Payload, name) },
		Chance:   mathrand.Uint64(), Delayed: p.Delay != nil, Local: x.message.Local, Passed: x.message.Passed,
	}
	if fan != nil {
		m.Chance = fan.chance
	}
	queues, limits, err = v.Route(x.session.conn.vhost, p.Exchange, m, nil)
	if err != nil {
		return nil, limits, fsm.ErrUnroutable // the exchange is gone as well
	}
	if m.Delayed {
		if queues, err = x.mayDelay(v, p, m, queues); err != nil {
			return nil, limits, err
		}
	}
	if fan != nil {
		queues = slices.DeleteFunc(queues, func(q *catalog.Queue) bool { return slices.Contains(fan.queues, q.ID) })
	}
	if len(queues) == 0 {
		return nil, limits, fsm.ErrUnroutable
	}
	return queues, limits, nil
}

// mayDelay checks a publish with a delay and its route, and returns the route to use: none if it is
// mandatory and would be unroutable if it were due now.
func (x *publisher) mayDelay(v *catalog.View, p *fsm.Publish, m *catalog.Message, route []*catalog.Queue) ([]*catalog.Queue, error) {
	stores, must := 0, p.Mandatory
	for _, q := range route {
		if q.StoreOf == "" {
			continue
		}
		stores++
		if x, ok := v.Exchange(q.VHost, q.StoreOf); ok && x.MayBeUnroutable() {
			must = false
		}
	}
	switch longest := v.Setting(catalog.ScheduleMaxDelay); {
	case stores == 0:
		return route, nil // the header has no meaning here
	case p.Delay.Err != nil:
		return route, p.Delay.Err
	case int64(p.Delay.For) > longest:
		return route, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid x-delay '%d': it must be at most %d", p.Delay.For, longest))
	case !must || stores < len(route):
		return route, nil
	}
	m.Delayed = false
	now, _, err := v.Route(x.session.conn.vhost, p.Exchange, m, nil)
	if len(now) == 0 {
		route = route[:0]
	}
	return route, err
}

// closeWait bounds how long closing a session waits for its queues.
const closeWait = 3 * time.Second

// abandon ends the session in all queues because its boot is over.
func (s *Session) abandon() {
	s.lock()
	defer s.unlock()
	s.strays = nil
	s.streams.abandon()
	s.lose(errLost)
}

// Close returns what the session holds and ends its consumers. Publishes whose queue is gone are
// routed again first. It does not wait for queues without a leader: they are told once they have
// one.
func (s *Session) Close(ctx context.Context) {
	s.mu.Lock()
	if !s.closing {
		s.conn.in.limits.tallies.channel(s.conn, -1)
	}
	s.closing = true
	s.endAll()
	ends, strays := s.end()
	s.mu.Unlock()
	if len(ends) == 0 && !strays {
		s.forget()
		return
	}
	done := make(chan struct{})
	s.conn.in.node.Spawn("end a session", func() {
		defer close(done)
		s.finish(ends)
	})
	limit := time.NewTimer(closeWait)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	case <-ctx.Done():
	}
}

// strayRetry is the pause before a closing session checks again whether publishes wait for the end
// of their queue.
const strayRetry = 50 * time.Millisecond

// finish waits until the queues know that the session has ended.
func (s *Session) finish(ends []*stream.Call) {
	stop := s.conn.in.node.Life().Done()
	for {
		for _, k := range ends {
			select {
			case <-k.Done():
			case <-stop:
				return
			}
		}
		s.mu.Lock()
		var strays bool
		ends, strays = s.end()
		s.mu.Unlock()
		switch {
		case len(ends) > 0:
		case !strays:
			s.forget()
			return
		default:
			select {
			case <-time.After(strayRetry):
			case <-stop:
				return
			}
		}
	}
}

// forget removes the session from this node.
func (s *Session) forget() {
	s.conn.in.remove(s)
	s.closeTraffic()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.detach()
}

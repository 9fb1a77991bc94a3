package session

import (
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"

	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// publisher routes the messages that a session publishes, sends them to the matching queues, and
// reports the outcomes to the client.
type publisher struct {
	conn       *Connection
	calls      *calls
	streams    *streams
	replies    *replies
	exchange   *commandExchange
	node       *self.Node
	properties Properties

	// Guarded by the session's lock.
	strays     []stray // to be routed again before the lock is released
	refreshing bool    // strays wait for an up-to-date view

	publishMemo // used by the publishing goroutine only
}

// publishMemo is what a publisher caches between publishes.
type publishMemo struct {
	message   catalog.Message // the last one
	route     []*catalog.Queue
	fanned    []fsm.QueueID // the last route that led to several queues; never changed
	allowed   string        // exchange that the user may write to …
	allowedIn *catalog.View
	topics    *catalog.TopicPermission // … and with which routing keys; nil: all
	keys      map[string]struct{}      // that topics has allowed; at most maxAllowedKeys
}

// maxAllowedKeys bounds the routing keys for which no pattern is matched again.
const maxAllowedKeys = 256

// Publish routes a message and sends it to every matching queue.
func (x *publisher) Publish(p *fsm.Publish) (bool, error) {
	if err := x.mayRoute(p); err != nil {
		return false, err
	}
	if p.Exchange == catalog.CommandExchange {
		v := x.node.View()
		if err := x.mayClaim(v, p); err != nil {
			return false, err
		}
		x.counted(p, 0)
		x.exchange.command(v, p)
		return true, nil
	}
	limits, err := x.routePublish(p)
	if err != nil {
		return false, err
	}
	if p.Exchange == "" {
		if suffix, ok := fsm.ReplySuffix(p.RoutingKey); ok && x.publishReply(p, suffix) {
			return true, nil
		}
	}
	if len(x.route) == 0 {
		x.unroutable(p)
		return false, nil
	}
	x.enqueue(p, limits)
	return true, nil
}

// counted counts a publish and its copies.
func (x *publisher) counted(p *fsm.Publish, copies int) {
	x.calls.mu.Lock()
	defer x.calls.mu.Unlock()
	x.calls.tally.Published(p.Exchange, len(p.Payload), copies, p.Confirm)
}

// unroutable counts a publish that has no queue. The channel itself confirms and returns it.
func (x *publisher) unroutable(p *fsm.Publish) {
	x.calls.mu.Lock()
	defer x.calls.mu.Unlock()
	x.calls.tally.Published(p.Exchange, len(p.Payload), 0, p.Confirm)
	x.countUnroutable(p.Mandatory)
	x.calls.tally.Confirmed()
}

// countUnroutable counts a message without a queue. The lock is held.
func (x *publisher) countUnroutable(mandatory bool) {
	what := traffic.DropUnroutable
	if mandatory {
		what = traffic.ReturnUnroutable
	}
	x.calls.tally.Count(what)
}

// Check returns the error that Publish would return.
func (x *publisher) Check(p *fsm.Publish) error {
	if err := x.mayRoute(p); err != nil {
		return err
	}
	_, err := x.routePublish(p)
	return err
}

// Admit returns the error that Publish would return before it looks for queues.
func (x *publisher) Admit(p *fsm.Publish) error {
	if err := x.mayRoute(p); err != nil {
		return err
	}
	v := x.node.View()
	if p.Exchange == catalog.CommandExchange {
		return x.mayClaim(v, p)
	}
	return x.mayWrite(v, p)
}

// mayRoute refuses to route if the view may be out of date. The view must be read after this check.
func (x *publisher) mayRoute(p *fsm.Publish) error {
	if !p.Fresh && !x.node.Catalog.Fresh() {
		return fsm.ErrNotFresh
	}
	return nil
}

// routePublish checks a message and stores its destination queues in route.
func (x *publisher) routePublish(p *fsm.Publish) (limits catalog.Ceilings, err error) {
	v := x.node.View()
	if p.Exchange == catalog.CommandExchange {
		return limits, fsm.Refuse(fsm.NotImplemented, "commands cannot be part of a transaction")
	}
	if err := x.mayWrite(v, p); err != nil {
		return limits, err
	}
	m := &x.message
	m.Headers, m.Property, m.Chance, m.Delayed = p.Headers, p.Property, mathrand.Uint64(), p.Delay != nil
	x.route, limits, err = v.Route(x.conn.vhost, p.Exchange, m, x.route[:0])
	if err == nil && m.Delayed {
		x.route, err = x.mayDelay(v, p, m, x.route)
	}
	return limits, err
}

// mayWrite checks what is known of a message without its body, and stores its routing keys.
func (x *publisher) mayWrite(v *catalog.View, p *fsm.Publish) error {
	if x.allowedIn != v || x.allowed != p.Exchange {
		if err := v.CheckPublish(x.conn.user, x.conn.vhost, p.Exchange); err != nil {
			return err
		}
		x.allowed, x.allowedIn = p.Exchange, v
		if rule := v.TopicRule(x.conn.user, x.conn.vhost, p.Exchange); rule != x.topics {
			x.topics = rule
			clear(x.keys)
		}
	}
	switch {
	case p.WantsReply && !x.replies.takes():
		return errNoReplies
	case p.TTLError != nil:
		return p.TTLError
	case p.HeadersError != nil:
		return p.HeadersError
	}
	x.message.Keys = append(append(x.message.Keys[:0], p.RoutingKey), p.Copies...)
	return x.mayPublishWith(v, p)
}

// enqueue sends a message to the queues in route.
func (x *publisher) enqueue(p *fsm.Publish, limits catalog.Ceilings) {
	var fan *fanout
	if len(x.route) > 1 {
		fan = x.newFanout(x.route)
	}
	x.calls.lock()
	defer x.calls.unlock()
	x.calls.tally.Published(p.Exchange, len(p.Payload), len(x.route), p.Confirm)
	for _, q := range x.route {
		x.sendCopy(q, p, fan, limits)
	}
}

// mayPublishWith returns an error if the user may not publish with the routing key, or for a
// user-id that mayClaim refuses.
func (x *publisher) mayPublishWith(v *catalog.View, p *fsm.Publish) error {
	if x.topics != nil {
		for _, key := range x.message.Keys {
			if err := x.mayUseKey(key); err != nil {
				return err
			}
		}
	}
	return x.mayClaim(v, p)
}

// mayUseKey returns an error if topics does not allow a routing key.
func (x *publisher) mayUseKey(key string) error {
	if _, known := x.keys[key]; known {
		return nil
	}
	if err := x.topics.Check(catalog.Write, key); err != nil {
		return err // which ends the channel
	}
	if len(x.keys) >= maxAllowedKeys {
		clear(x.keys)
	}
	if x.keys == nil {
		x.keys = map[string]struct{}{}
	}
	x.keys[strings.Clone(key)] = struct{}{}
	return nil
}

// mayClaim returns an error for a user-id other than the user's own, unless the user may
// impersonate.
func (x *publisher) mayClaim(v *catalog.View, p *fsm.Publish) error {
	if p.UserError == nil {
		return nil
	}
	if u, ok := v.User(x.conn.user); ok && slices.Contains(u.GetTags(), impersonator) {
		return nil
	}
	return p.UserError
}

// impersonator is the tag of users who may publish under other names.
const impersonator = "impersonator"

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
	now, _, err := v.Route(x.conn.vhost, p.Exchange, m, nil)
	if len(now) == 0 {
		route = route[:0]
	}
	return route, err
}

// publishReply sends a reply and reports whether nothing is left to do for it: its other routing
// keys may match queues.
func (x *publisher) publishReply(p *fsm.Publish, suffix string) (done bool) {
	if p.RequesterGone || !x.calls.router.send(suffix, p.Payload) || len(x.route) > 0 {
		return false
	}
	x.calls.lock()
	defer x.calls.unlock()
	x.calls.tally.Published(p.Exchange, len(p.Payload), 1, p.Confirm)
	x.calls.confirm(p.Number, true)
	return true
}

// sendCopy sends a publish to one queue. The lock is held.
func (x *publisher) sendCopy(q *catalog.Queue, p *fsm.Publish, fan *fanout, limits catalog.Ceilings) {
	u := x.streams.queue(q)
	switch to := u.stream; {
	case to.Gone():
		again := *p
		again.Headers, again.Property = nil, nil
		again.Copies = slices.Clone(p.Copies)
		x.strays = append(x.strays, stray{again, fan})
	case !to.Over() && !to.Ending(): // otherwise the channel is about to end, without a confirm
		u.counts[traffic.Publish]++
		u.routes.Count(p.Exchange)
		u.needs.ask(x.node.View(), q)
		u.publish(p, fan, limits.Of(q).Stored(), q.StoreOf != "", x.groupIn(q, p.Payload))
	}
}

// groupIn returns the group that a message has in a queue; empty: none.
func (x *publisher) groupIn(q *catalog.Queue, p fsm.Payload) string {
	if q.Groups == logpb.QueueConfig_NO_GROUPS {
		return ""
	}
	properties := x.properties
	return q.GroupOf(
		func() *fsm.Table { return properties.Headers(p.Properties(), nil) },
		func(name string) []byte { return properties.Property(p.Properties(), name) },
	)
}

// publishOutcome is the outcome of a publish, or of one copy of it. Of several copies the gravest
// counts: a publish is nacked if one queue has refused it, and is unroutable only if no queue has
// it.
type publishOutcome uint8

const (
	nowhere publishOutcome = iota
	taken
	refused
)

// fanout is shared by the copies of a publish that went to several queues.
type fanout struct {
	left   int            // copies not answered yet
	worst  publishOutcome // gravest outcome of those answered
	queues []fsm.QueueID  // that were sent a copy; other publishes may share the slice
	chance uint64         // that routed it
}

// timing is the note of a publish that makes a request about its time.
type timing struct {
	schedule *fsm.Schedule
	delay    *fsm.Delay
	fan      *fanout
}

// noteOf returns what must be remembered about a publish until it is answered; nil: nothing except
// its command.
func noteOf(p *fsm.Publish, fan *fanout) any {
	switch {
	case p.Schedule != nil || p.Delay != nil:
		return &timing{p.Schedule, p.Delay, fan}
	case fan != nil:
		return fan
	}
	return nil
}

// fanOf returns the fanout that a copy belongs to; nil: it is the only copy.
func fanOf(p *stream.Pending) *fanout {
	switch n := p.Note.(type) {
	case *fanout:
		return n
	case *timing:
		return n.fan
	}
	return nil
}

// copyOver records the outcome of one copy of a publish, and settles the publish with the last one.
// A mandatory publish that is unroutable is returned first. The lock is held.
func (x *publisher) copyOver(number uint64, payload fsm.Payload, mandatory bool, fan *fanout, how publishOutcome) {
	if fan != nil {
		fan.worst = max(fan.worst, how)
		if fan.left--; fan.left > 0 {
			return
		}
		how = fan.worst
	}
	if how == nowhere {
		x.countUnroutable(mandatory)
		if mandatory {
			x.calls.add(event{kind: eventReturned, payload: payload})
		}
	}
	x.calls.confirm(number, how != refused)
}

// answered handles a queue's answer to one copy of a publish. The lock is held.
func (x *publisher) answered(q *sessionQueue, p *stream.Pending, r fsm.Result) {
	how := refused
	switch r.Code {
	case fsm.OK:
		how = taken
	case fsm.Gone:
		x.strayed(q, p)
		return
	case fsm.Rejected:
	default:
		x.conn.in.queues.OddAnswer(q.stream.Queue(), "publish", r.Code)
	}
	x.copyOver(p.Number, p.Payload, p.Mandatory, fanOf(p), how)
}

// newFanout returns the record shared by the copies of a publish to several queues.
func (x *publisher) newFanout(route []*catalog.Queue) *fanout {
	same := slices.EqualFunc(x.fanned, route, func(id fsm.QueueID, q *catalog.Queue) bool { return id == q.ID })
	if !same {
		x.fanned = idsOf(route)
	}
	return &fanout{left: len(route), queues: x.fanned, chance: x.message.Chance}
}

func idsOf(queues []*catalog.Queue) []fsm.QueueID {
	ids := make([]fsm.QueueID, len(queues))
	for i, q := range queues {
		ids[i] = q.ID
	}
	return ids
}

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
		x.copyOver(p.Number, p.Payload, p.Mandatory, fanOf(p), refused)
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
		Copies: append(properties.Copies(payload.Properties()), payload.BlindKeys()...), Mandatory: of.Mandatory,
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
			x.calls.fail()
		}
	})
}

// refreshed waits until the view is up to date, and continues with strays.
func (x *publisher) refreshed() {
	err := x.node.Catalog.Refresh(x.node.Life())
	x.calls.mu.Lock()
	x.refreshing = false
	if err != nil {
		x.calls.mu.Unlock() // the node stops: waiting publishes stay unanswered
		return
	}
	x.calls.unlock()
}

// routeStray sends one copy of a publish to the queues that it now matches and that were not sent
// one. The user's rights were checked when the publish came. The lock is held.
func (x *publisher) routeStray(v *catalog.View, one *stray) {
	p, fan := &one.publish, one.fan
	queues, limits, how := x.routeAgain(v, p, fan)
	switch {
	case how != taken:
		x.copyOver(p.Number, p.Payload, p.Mandatory, fan, how)
		return
	case fan != nil:
		fan.left += len(queues) - 1
		fan.queues = slices.Concat(fan.queues, idsOf(queues))
	case len(queues) > 1:
		fan = &fanout{left: len(queues), queues: idsOf(queues), chance: mathrand.Uint64()}
	}
	for _, q := range queues {
		x.sendCopy(q, p, fan, limits)
	}
}

// routeAgain returns the queues that a stray matches and that were not sent a copy of it. how
// applies if there are none.
func (x *publisher) routeAgain(v *catalog.View, p *fsm.Publish, fan *fanout) (queues []*catalog.Queue, limits catalog.Ceilings, how publishOutcome) {
	properties := x.properties
	m := &catalog.Message{
		Keys:     append([]string{p.RoutingKey}, p.Copies...),
		Headers:  func() *fsm.Table { return properties.Headers(p.Payload.Properties(), nil) },
		Property: func(name string) []byte { return properties.Property(p.Payload.Properties(), name) },
		Chance:   mathrand.Uint64(), Delayed: p.Delay != nil, Local: x.message.Local, Passed: x.message.Passed,
	}
	if fan != nil {
		m.Chance = fan.chance
	}
	queues, limits, err := v.Route(x.conn.vhost, p.Exchange, m, nil)
	if err != nil {
		return nil, limits, nowhere // the exchange is gone as well
	}
	if m.Delayed {
		if queues, err = x.mayDelay(v, p, m, queues); err != nil {
			return nil, limits, refused
		}
	}
	if fan != nil {
		queues = slices.DeleteFunc(queues, func(q *catalog.Queue) bool { return slices.Contains(fan.queues, q.ID) })
	}
	if len(queues) == 0 {
		return nil, limits, nowhere
	}
	return queues, limits, taken
}

// needs caches what a queue must be told about messages. The session's lock guards it.
type needs struct {
	in *catalog.View // where they are from; nil: not asked yet
	as catalog.Needs
}

// ask updates it to a view.
func (n *needs) ask(v *catalog.View, q *catalog.Queue) {
	if n.in != v {
		n.in, n.as = v, v.Needs(q)
	}
}

// tell adds to an enqueue what the queue needs to know about the payload. Most queues need nothing,
// and the properties are not read.
func (x *publisher) tell(e *logpb.Enqueue, payload fsm.Payload, n catalog.Needs) {
	if n.MessageID {
		e.MessageId = string(x.properties.Property(payload.Properties(), catalog.PropertyMessageID))
	}
}

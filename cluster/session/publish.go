package session

import (
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"

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
	node       *node
	tasks      *tasks
	answers    *answers
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
		v := x.node.view()
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
	v := x.node.view()
	if p.Exchange == catalog.CommandExchange {
		return x.mayClaim(v, p)
	}
	return x.mayWrite(v, p)
}

// mayRoute refuses to route if the view may be out of date. The view must be read after this check.
func (x *publisher) mayRoute(p *fsm.Publish) error {
	if !p.Fresh && !x.node.catalog.Fresh() {
		return fsm.ErrNotFresh
	}
	return nil
}

// routePublish checks a message and stores its destination queues in route.
func (x *publisher) routePublish(p *fsm.Publish) (limits catalog.Ceilings, err error) {
	v := x.node.view()
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
		if err := x.mayPublish(v, p.Exchange); err != nil {
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

// mayPublish returns an error if the user may not publish to the exchange.
func (x *publisher) mayPublish(v *catalog.View, exchange string) error {
	return v.CheckPublish(x.conn.user, x.conn.vhost, exchange)
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
	if p.RequesterGone || !x.replies.router.send(suffix, p.Payload) || len(x.route) > 0 {
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
		u.needs.ask(x.node.view(), q)
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
		x.answers.unexpected(q.stream.Queue(), "publish", r.Code)
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

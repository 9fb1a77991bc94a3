package deadletter

import (
	mathrand "math/rand/v2"
	"slices"
	"strconv"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// deadPayload returns a message as its dead letter carries it. What the queue's
// settings say may be longer than a short string: declares and policies of
// former versions were not checked. Then the letter carries as much as it can.
func (s *Sender) deadPayload(c *logpb.QueueConfig, l *fsm.DeadLetter, p fsm.Payload) fsm.Payload {
	how := fsm.Rewrite{Waited: c.DelayedStore}
	switch {
	case l.Redriven:
		how.Redriven = true
		return repack(p, string(p.Exchange()), string(p.RoutingKey()), s.properties.Rewritten(p, how), p.BlindKeys())
	case l.TakenTo != 0:
		return p
	case l.Forwarded && !c.Forward:
		return p // it has got its route before
	case l.Forwarded:
	case isDue(l):
		return repack(p, string(p.Exchange()), string(p.RoutingKey()), s.properties.Rewritten(p, how), p.BlindKeys())
	default:
		how.Died = true
		if l.Remark != (fsm.Remark{}) || len(l.Deaths) > 1 {
			how.Remark = &l.Remark
		}
	}
	w, key, blind := wayOf(c, l), string(p.RoutingKey()), p.BlindKeys()
	if w.hasKey {
		key, blind, how.Redirected = w.key, nil, true
	}
	return repack(p, fsm.Short(w.exchange), key, s.properties.Rewritten(p, how), blind)
}

// refusedLetter returns a letter that was sent from a queue, and that is not taken, as one that has died there of it, with the
// settings by which it goes to another queue. It died when it was sent: whoever sends the letter says the same.
func refusedLetter(c *logpb.QueueConfig, sent *fsm.DeadLetter, from, to string) (*logpb.QueueConfig, fsm.DeadLetter) {
	l := *sent
	l.Reason, l.Forwarded, l.TakenTo, l.Redriven, l.Hops = logpb.Death_UNROUTABLE, false, 0, false, 0
	l.Deaths = continued(&logpb.Death{Reason: l.Reason, Queue: from, Count: 1, Time: int64(l.DiedAt), First: true}, l.Deaths)
	l.Fresh = l.Deaths[0].Count == 1
	return &logpb.QueueConfig{Classic: c.GetClassic(), DeadLetter: true, DeadLetterRoutingKey: to, HasDeadLetterRoutingKey: true}, l
}

// way is where a queue sends letters: to an exchange, with a key of its own or with
// theirs.
type way struct {
	exchange, key string
	hasKey        bool
}

// wayOf returns the way of a letter, which is dead or forwarded.
func wayOf(c *logpb.QueueConfig, l *fsm.DeadLetter) way {
	if l.Forwarded {
		return way{c.ForwardExchange, fsm.Short(c.ForwardRoutingKey), c.HasForwardRoutingKey}
	}
	return way{c.DeadLetterExchange, fsm.Short(c.DeadLetterRoutingKey), c.HasDeadLetterRoutingKey}
}

// reenqueue returns what brings a dead message, which is out now and was p, to
// a target. ceiling is what the exchanges on its way allow + 1; 0: no limit.
func (s *Sender) reenqueue(c *logpb.QueueConfig, l *fsm.DeadLetter, p, out fsm.Payload, ceiling uint64) *logpb.Enqueue {
	e := reenqueued(c, l, out, ceiling)
	if ceiling == forever {
		e.HasExpiration, e.TtlCeilingPlusOne = false, 0
	} else if l.Forwarded && l.HasExpiration { // a dead letter has none any more, whatever it was published with
		e.TtlPlusOne = storedTTL(s.properties.Expiration(out))
	}
	if !isDue(l) {
		e.Deaths = s.deaths(l, p)
	}
	if c.Classic {
		// Within such a queue it may count for nothing, but not for its target.
		e.PriorityPlusOne = storedPriority(s.properties.Property(out, catalog.PropertyPriority))
	}
	e.MessageId = fsm.Label(s.properties.Property(out, catalog.PropertyMessageID))
	e.CorrelationId = fsm.Label(s.properties.Property(out, catalog.PropertyCorrelationID))
	return e
}

// reenqueued is reenqueue without what comes from the payload's properties.
func reenqueued(c *logpb.QueueConfig, l *fsm.DeadLetter, out fsm.Payload, ceiling uint64) *logpb.Enqueue {
	if isDue(l) && !l.Forwarded {
		return depart(l, out, ceiling)
	}
	e := &logpb.Enqueue{
		Size: uint32(len(out)), Head: uint32(out.HeadSize()), Routed: wayOf(c, l).exchange != "", TtlCeilingPlusOne: ceiling,
		PriorityPlusOne: uint32(l.Priority) + 1, ScheduledFor: int64(l.ScheduledFor), Hops: hops(l), Annotations: l.Annotations,
	}
	if l.Forwarded {
		e.HasExpiration, e.Deaths = l.HasExpiration, l.Deaths
	}
	if isCopy(c, l) {
		e.Hops, e.TtlFrom = max(e.Hops, 1)-1, int64(l.DiedAt)
		if l.ExpireAt != 0 && ceiling != forever {
			left := fsm.Some(fsm.Millis(max(l.ExpireAt-l.DiedAt, 0)))
			e.TtlCeilingPlusOne = left.Least(fsm.OptionalFrom[fsm.Millis](ceiling)).Stored()
		}
	}
	return e
}

// forever is fsm.Forever as the log stores it.
var forever = fsm.Some(fsm.Forever).Stored()

// letterCopy is a copy of a letter for a queue, that an exchange with filters has made.
type letterCopy struct {
	queue *catalog.Queue
	edit  []byte // what is changed of it; empty: nothing
	ttl   fsm.Optional[fsm.Millis]
}

// ceiling is how long the copy may live.
func (c letterCopy) ceiling(limits catalog.Ceilings) fsm.Optional[fsm.Millis] {
	if c.ttl == fsm.Some(fsm.Forever) {
		return c.ttl
	}
	return limits.Of(c.queue).Least(c.ttl)
}

// waitsForWay reports whether a letter without a way stays where it is. What goes on as copies, or dies if it is refused,
// does not, and neither does what its queue no longer forwards.
func waitsForWay(c *logpb.QueueConfig, l *fsm.DeadLetter) bool {
	switch {
	case c.DelayedStore:
		return false
	case !l.Forwarded:
		return true
	}
	return c.GetForward() && l.TakenTo == 0 && !c.ForwardCopies && !c.ForwardRefusedDies
}

// isCopy reports whether a letter is a message of which copies go on: they live no longer than it would have, and it is
// no hop for them.
func isCopy(c *logpb.QueueConfig, l *fsm.DeadLetter) bool {
	return l.Forwarded && c.ForwardCopies && l.TakenTo == 0
}

// storedPriority is a priority property as the log has priorities.
func storedPriority(priority []byte) uint32 {
	n, err := strconv.ParseUint(string(priority), 10, 8)
	if err != nil {
		return 0
	}
	return uint32(n) + 1
}

// storedTTL is an expiration property as the log has TTLs.
func storedTTL(expiration string) uint64 {
	ttl, err := strconv.ParseUint(expiration, 10, 63)
	if expiration == "" || err != nil {
		return 0
	}
	return ttl + 1
}

// repack returns a payload with the body of p, which is valid. The other parts
// are from a payload or short strings: they fit. Should they not, the payload
// stays as it is.
func repack(p fsm.Payload, exchange, key string, list []byte, blind []string) fsm.Payload {
	out, err := p.Repack(exchange, key, list, blind)
	if err != nil {
		return p
	}
	return out
}

// depart returns what brings a message that has become due, which is out now, to
// a target: as if it had come there when it was due. ceiling is what the
// exchanges on its way since then allow + 1; 0: no limit.
func depart(l *fsm.DeadLetter, out fsm.Payload, ceiling uint64) *logpb.Enqueue {
	if had := l.Ceiling.Stored(); had != 0 && (ceiling == 0 || had < ceiling) {
		ceiling = had
	}
	return &logpb.Enqueue{
		Size: uint32(len(out)), Head: uint32(out.HeadSize()), Routed: true, PriorityPlusOne: uint32(l.Priority) + 1,
		HasExpiration: l.HasExpiration, TtlPlusOne: l.TTL.Stored(), TtlCeilingPlusOne: ceiling, TtlFrom: int64(l.ScheduledFor),
		Deaths: l.Deaths, Hops: l.Hops, Annotations: l.Annotations,
	}
}

// hops is how often a message was forwarded since somebody last rejected or sent it: other
// deaths are automatic, and a circle of them and of forwarding must end.
func hops(l *fsm.DeadLetter) uint32 {
	if l.Reason == logpb.Death_REJECTED || l.TakenTo != 0 {
		return 0
	}
	return l.Hops
}

// comeTo completes what brings a dead message to a queue: its group and its key there, and by what it counts; at the store of a
// delayed exchange, how long it waits: a delay that is too long is as long as may be.
func (s *Sender) comeTo(to *catalog.Queue, e *logpb.Enqueue, p fsm.Payload) {
	v := s.host.View()
	e.DelayPlusOne = 0
	if to.StoreOf != "" {
		longest := fsm.Millis(v.Setting(catalog.ScheduleMaxDelay))
		e.DelayPlusOne = uint64(min(s.properties.Delay(p), longest)) + 1
	}
	property := func(name string) []byte { return s.properties.Property(p, name) }
	e.GroupId = to.GroupOf(property)
	needs := v.Needs(to)
	if needs.Unique != "" {
		e.UniqueKey = catalog.UniqueKey(needs.Unique, property)
	}
	if needs.Tally != "" {
		e.Tally = fsm.Label(property(needs.Tally))
	}
}

// wayTargets returns the queues that a dead or forwarded message goes to, and how long
// the exchanges on its way let it live there.
func (s *Sender) wayTargets(v *catalog.View, vhost string, c *logpb.QueueConfig, l *fsm.DeadLetter, p fsm.Payload) ([]*catalog.Queue, []letterCopy, catalog.Ceilings) {
	w := wayOf(c, l)
	keys := []string{w.key}
	if !w.hasKey {
		keys = append(s.keys(p), p.BlindKeys()...)
	}
	delayed := (l.Forwarded || !c.DelayedStore) && s.properties.Delay(p) > 0
	queues, copies, limits := s.route(v, vhost, w.exchange, &catalog.Message{Keys: keys, Passed: s.host.Used, Delayed: delayed}, l, p)
	if l.Forwarded {
		return queues, copies, limits
	}
	circle := func(q *catalog.Queue) bool { return cycle(l.Deaths, q.Name) }
	return slices.DeleteFunc(queues, circle), slices.DeleteFunc(copies, func(c letterCopy) bool { return circle(c.queue) }), limits
}

// route completes what an exchange has to know of a letter, and returns the queues that
// it goes to from there; none if there is no such exchange.
func (s *Sender) route(v *catalog.View, vhost, exchange string, m *catalog.Message, l *fsm.DeadLetter, p fsm.Payload) ([]*catalog.Queue, []letterCopy, catalog.Ceilings) {
	m.Headers = func() *fsm.Table { return s.properties.Headers(p, s.deaths(l, p)) }
	m.Property = func(name string) []byte { return s.properties.Property(p, name) }
	m.Chance, m.Local = mathrand.Uint64(), s.leadsHere
	var copies []letterCopy
	m.Filter = func(x *catalog.Exchange) bool {
		made := s.filters.match(v, x, l, p)
		copies = append(copies, made...)
		return len(made) > 0
	}
	queues, limits, err := v.Route(vhost, exchange, m, nil)
	if err != nil {
		return nil, nil, limits
	}
	return queues, copies, limits
}

// keys returns the routing keys of a message that receivers may see.
func (s *Sender) keys(p fsm.Payload) []string {
	return append([]string{string(p.RoutingKey())}, s.properties.Copies(p)...)
}

// isDue reports whether a letter is no dead one: it is a message of a delayed
// exchange that has become due, or is forwarded.
func isDue(l *fsm.DeadLetter) bool { return l.Reason == logpb.Death_NONE }

// dueTargets returns the queues that a message goes to that has become due in
// the store of a delayed exchange.
func (s *Sender) dueTargets(v *catalog.View, store fsm.QueueID, l *fsm.DeadLetter, p fsm.Payload) ([]*catalog.Queue, []letterCopy, catalog.Ceilings) {
	of, ok := v.QueueByID(store)
	if !ok {
		return nil, nil, catalog.Ceilings{}
	}
	return s.route(v, of.VHost, of.StoreOf, &catalog.Message{Keys: append(s.keys(p), p.BlindKeys()...)}, l, p)
}

// cycle reports whether a letter would come back to a queue where it has died
// before without anybody having rejected it on the way.
func cycle(deaths []*logpb.Death, target string) bool {
	for _, d := range deaths {
		if d.Reason == logpb.Death_REJECTED {
			return false
		}
		if d.Queue == target {
			return true
		}
	}
	return false
}

func (s *Sender) leadsHere(q *catalog.Queue) bool { return s.routes.Route(q).IsLeader(s.node) }

// deaths completes the history of a dead message from its payload.
func (s *Sender) deaths(l *fsm.DeadLetter, p fsm.Payload) []*logpb.Death {
	if len(l.Deaths) == 0 || isDue(l) {
		return l.Deaths
	}
	d := l.Deaths[0]
	newest := &logpb.Death{
		Reason: d.Reason, Queue: d.Queue, Count: d.Count, Time: d.Time, First: d.First, LastExchange: string(p.Exchange()),
		Exchange: d.Exchange, RoutingKeys: d.RoutingKeys, OriginalExpiration: d.OriginalExpiration, LastTime: d.LastTime,
		Failed: d.Failed,
	}
	if l.Fresh {
		newest.Exchange, newest.RoutingKeys = newest.LastExchange, s.keys(p)
		if l.HasExpiration {
			newest.OriginalExpiration = s.properties.Expiration(p)
		}
	}
	if l.Fresh && d.First {
		return continued(newest, s.properties.Deaths(p))
	}
	return append([]*logpb.Death{newest}, l.Deaths[1:]...)
}

// continued puts a message's first death in front of the history with which it
// was published. If that has the same pair of queue and reason, the two are one.
func continued(newest *logpb.Death, earlier []*logpb.Death) []*logpb.Death {
	if len(earlier) > 0 {
		newest.First = false // the history names another one, or this pair
	}
	same := slices.IndexFunc(earlier, func(d *logpb.Death) bool { return d.Queue == newest.Queue && d.Reason == newest.Reason })
	if same >= 0 {
		d := earlier[same]
		newest.Count, newest.First = newest.Count+d.Count, d.First
		newest.Exchange, newest.RoutingKeys, newest.OriginalExpiration = d.Exchange, d.RoutingKeys, d.OriginalExpiration
		if d.Time != 0 {
			newest.Time, newest.LastTime = d.Time, newest.Time
		}
		earlier = slices.Delete(slices.Clone(earlier), same, same+1)
	}
	return append([]*logpb.Death{newest}, earlier...)
}

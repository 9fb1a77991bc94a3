package deadletter

import (
	mathrand "math/rand/v2"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// deadPayload returns a message as its dead letter carries it. What the queue's
// settings say may be longer than a short string: declares and policies of
// former versions were not checked. Then the letter carries as much as it can.
func (s *Sender) deadPayload(c *logpb.QueueConfig, l *fsm.DeadLetter, p fsm.Payload) fsm.Payload {
	properties := p.Properties()
	if c.DelayedStore {
		properties = s.properties.Delayed(properties)
	}
	if isDue(l) {
		return repack(p, string(p.Exchange()), string(p.RoutingKey()), properties, p.BlindKeys())
	}
	key, blind := string(p.RoutingKey()), p.BlindKeys()
	if c.HasDeadLetterRoutingKey {
		key, blind = fsm.Short(c.DeadLetterRoutingKey), nil
		properties = s.properties.Redirected(properties)
	}
	return repack(p, fsm.Short(c.DeadLetterExchange), key, properties, blind)
}

// reenqueue returns what brings a dead message, which is out now and was p, to
// a target. ceiling is what the exchanges on its way allow + 1; 0: no limit.
func (s *Sender) reenqueue(c *logpb.QueueConfig, l *fsm.DeadLetter, p, out fsm.Payload, ceiling uint64) *logpb.Enqueue {
	if isDue(l) {
		return depart(l, out, ceiling)
	}
	return &logpb.Enqueue{
		Size: uint32(len(out)), Head: uint32(out.HeadSize()), Routed: c.DeadLetterExchange != "", TtlCeilingPlusOne: ceiling,
		PriorityPlusOne: uint32(l.Priority) + 1, Deaths: s.deaths(l, p), ScheduledFor: int64(l.ScheduledFor),
	}
}

// repack returns a payload with the body of p, which is valid. The other parts
// are from a payload or short strings: they fit. Should they not, the payload
// stays as it is.
func repack(p fsm.Payload, exchange, key string, properties []byte, blind []string) fsm.Payload {
	size := fsm.PayloadSize(len(exchange), len(key), len(properties), len(p.Body())) + fsm.BlindSize(blind)
	out, err := fsm.AppendHead(make([]byte, 0, size), exchange, key, properties, blind)
	if err != nil {
		return p
	}
	return append(out, p.Body()...)
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
		Deaths: l.Deaths,
	}
}

// delayAt completes what brings a dead message to a queue: at the store of a
// delayed exchange it waits. A delay that is too long is as long as may be.
func (s *Sender) delayAt(to *catalog.Queue, e *logpb.Enqueue, p fsm.Payload) {
	e.DelayPlusOne = 0
	if to.StoreOf != "" {
		longest := fsm.Millis(s.host.View().Setting(catalog.ScheduleMaxDelay))
		e.DelayPlusOne = uint64(min(s.properties.Delay(p.Properties()), longest)) + 1
	}
}

// deadTargets returns the queues that a dead message goes to, and how long the
// exchanges on its way let it live there.
func (s *Sender) deadTargets(v *catalog.View, vhost string, c *logpb.QueueConfig, l *fsm.DeadLetter, p fsm.Payload) ([]*catalog.Queue, catalog.Ceilings) {
	keys := []string{fsm.Short(c.DeadLetterRoutingKey)}
	if !c.HasDeadLetterRoutingKey {
		keys = append(s.keys(p), p.BlindKeys()...)
	}
	queues, limits, err := v.Route(vhost, c.DeadLetterExchange, &catalog.Message{
		Keys:     keys,
		Headers:  func() *fsm.Table { return s.properties.Headers(p.Properties(), s.deaths(l, p)) },
		Property: func(name string) []byte { return s.properties.Property(p.Properties(), name) },
		Chance:   mathrand.Uint64(), Local: s.leadsHere, Passed: s.host.Used, Delayed: !c.DelayedStore && s.properties.Delay(p.Properties()) > 0,
	}, nil)
	if err != nil {
		return nil, limits
	}
	return slices.DeleteFunc(queues, func(q *catalog.Queue) bool { return cycle(l.Deaths, q.Name) }), limits
}

// keys returns the routing keys of a message that receivers may see.
func (s *Sender) keys(p fsm.Payload) []string {
	return append([]string{string(p.RoutingKey())}, s.properties.Copies(p.Properties())...)
}

// isDue reports whether a letter is a message of a delayed exchange that has
// become due, and no dead one.
func isDue(l *fsm.DeadLetter) bool { return l.Reason == logpb.Death_NONE }

// dueTargets returns the queues that a message goes to that has become due in
// the store of a delayed exchange.
func (s *Sender) dueTargets(v *catalog.View, store fsm.QueueID, l *fsm.DeadLetter, p fsm.Payload) ([]*catalog.Queue, catalog.Ceilings) {
	of, ok := v.QueueByID(store)
	if !ok {
		return nil, catalog.Ceilings{}
	}
	queues, limits, err := v.Route(of.VHost, of.StoreOf, &catalog.Message{
		Keys:     append(s.keys(p), p.BlindKeys()...),
		Headers:  func() *fsm.Table { return s.properties.Headers(p.Properties(), l.Deaths) },
		Property: func(name string) []byte { return s.properties.Property(p.Properties(), name) },
		Chance:   mathrand.Uint64(), Local: s.leadsHere,
	}, nil)
	if err != nil {
		return nil, limits
	}
	return queues, limits
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
		Exchange: d.Exchange, RoutingKeys: d.RoutingKeys, OriginalExpiration: d.OriginalExpiration,
	}
	if l.Fresh {
		newest.Exchange, newest.RoutingKeys = newest.LastExchange, s.keys(p)
		if l.HasExpiration {
			newest.OriginalExpiration = s.properties.Expiration(p.Properties())
		}
	}
	if l.Fresh && d.First {
		return continued(newest, s.properties.Deaths(p.Properties()))
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
			newest.Time = d.Time
		}
		earlier = slices.Delete(slices.Clone(earlier), same, same+1)
	}
	return append([]*logpb.Death{newest}, earlier...)
}

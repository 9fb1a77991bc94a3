package broker

import (
	"fmt"
	mathrand "math/rand/v2"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// mayDelay looks at a publish with a delay and where it goes, and returns where
// it may go: nowhere if it is mandatory and would go nowhere if it were due now.
func (s *Session) mayDelay(v *catalog.View, p *fsm.Publish, m *catalog.Message, route []*catalog.Queue) ([]*catalog.Queue, error) {
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
		return route, nil // the header means nothing here
	case p.Delay.Err != nil:
		return route, p.Delay.Err
	case int64(p.Delay.For) > longest:
		return route, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid x-delay '%d': it must be at most %d", p.Delay.For, longest))
	case !must || stores < len(route):
		return route, nil
	}
	m.Delayed = false
	now, _, err := v.Route(s.conn.vhost, p.Exchange, m, nil)
	if len(now) == 0 {
		route = route[:0]
	}
	return route, err
}

// isDue reports whether a letter is a message of a delayed exchange that has
// become due, and no dead one.
func isDue(l *fsm.DeadLetter) bool { return l.Reason == logpb.Death_NONE }

// dueTargets returns the queues that a message goes to that has become due in
// the store of a delayed exchange.
func (b *Broker) dueTargets(v *catalog.View, store fsm.QueueID, l *fsm.DeadLetter, p fsm.Payload) ([]*catalog.Queue, catalog.Ceilings) {
	of, ok := v.QueueByID(store)
	if !ok {
		return nil, catalog.Ceilings{}
	}
	queues, limits, err := v.Route(of.VHost, of.StoreOf, &catalog.Message{
		Keys:     append(b.keys(p), p.BlindKeys()...),
		Headers:  func() *fsm.Table { return b.config.Properties.Headers(p.Properties(), l.Deaths) },
		Property: func(name string) []byte { return b.config.Properties.Property(p.Properties(), name) },
		Chance:   mathrand.Uint64(), Local: b.leadsHere,
	}, nil)
	if err != nil {
		return nil, limits
	}
	return queues, limits
}

// depart returns what brings a message that has become due, which is out now, to
// a target: as if it had come there when it was due. ceiling is what the
// exchanges on its way since then allow + 1; 0: no limit.
func depart(l *fsm.DeadLetter, out fsm.Payload, ceiling uint64) *logpb.Enqueue {
	if had := l.CeilingPlusOne; had != 0 && (ceiling == 0 || had < ceiling) {
		ceiling = had
	}
	return &logpb.Enqueue{
		Size: uint32(len(out)), Head: uint32(out.HeadSize()), Routed: true, PriorityPlusOne: uint32(l.Priority) + 1,
		HasExpiration: l.HasExpiration, TtlPlusOne: l.TTLPlusOne, TtlCeilingPlusOne: ceiling, TtlFrom: int64(l.ScheduledFor),
		Deaths: l.Deaths,
	}
}

// delayAt completes what brings a dead message to a queue: at the store of a
// delayed exchange it waits. A delay that is too long is as long as may be.
func (b *Broker) delayAt(to *catalog.Queue, e *logpb.Enqueue, p fsm.Payload) {
	e.DelayPlusOne = 0
	if to.StoreOf != "" {
		longest := fsm.Millis(b.view().Setting(catalog.ScheduleMaxDelay))
		e.DelayPlusOne = uint64(min(b.config.Properties.Delay(p.Properties()), longest)) + 1
	}
}

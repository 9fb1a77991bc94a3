package deadletter

import (
	mathrand "math/rand/v2"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

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

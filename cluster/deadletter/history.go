package deadletter

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

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

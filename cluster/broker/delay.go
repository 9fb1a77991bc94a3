package broker

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
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

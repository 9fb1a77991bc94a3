package catalog

import "github.com/quorate/quorate/fsm"

// Ceilings are the longest times-to-live that the exchanges on a message's way
// allow it in the queues it goes to. A queue that several ways lead to counts
// the exchanges of all of them. The zero Ceilings allow everything. They are
// valid for the View that Route was called on.
type Ceilings struct {
	all  fsm.Optional[fsm.Millis] // not given: no limit, or see each
	each map[*Queue]fsm.Optional[fsm.Millis]
}

// Of returns the limit for one of the queues. In ms; not given: no limit. q
// must be one of the queues that Route has appended.
func (c Ceilings) Of(q *Queue) fsm.Optional[fsm.Millis] {
	if c.each != nil {
		return c.each[q]
	}
	return c.all
}

// ceilings computes the limits on a walk that is done. Only a walk that has
// led from an exchange with a limit to another one, or from another one to an
// exchange with a limit, is done again, one exchange at a time.
//
// x is the exchange published to. An exchange is visited again each time that
// its limit falls, and limits come from finitely many exchanges, so the loop
// ends, even if bindings form a cycle. It allocates; walks without a limit, or
// with one exchange, do not. Requires: m answers as in the first walk, m.Local
// included; a queue that only the first walk has found has no limit.
func (r *router) ceilings(x *Exchange, m *Message) Ceilings {
	if !r.limited {
		return Ceilings{}
	}
	if len(r.further.list) == 0 {
		return Ceilings{all: x.ttl}
	}
	reached := map[string]fsm.Optional[fsm.Millis]{x.Name: x.ttl} // exchange → limit of all ways to it, itself included
	each := map[*Queue]fsm.Optional[fsm.Millis]{}
	for todo := []string{x.Name}; len(todo) > 0; todo = todo[1:] {
		name := todo[0]
		step := router{vh: r.vh, first: name, decoded: r.decoded, table: r.table}
		if name == "" {
			step.byName(m.Keys)
		} else if from := r.vh.exchanges.at(name); from != nil {
			step.visit(from, m)
		}
		for _, q := range step.queues.list {
			each[q] = each[q].Least(reached[name])
		}
		for _, next := range step.further.list {
			had, known := reached[next]
			limit := had.Least(reached[name])
			if to := r.vh.exchanges.at(next); to != nil {
				limit = limit.Least(to.ttl)
			}
			if !known || limit != had {
				reached[next] = limit
				todo = append(todo, next)
			}
		}
	}
	return Ceilings{each: each}
}

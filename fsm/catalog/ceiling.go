package catalog

// Ceilings are the longest times-to-live that the exchanges on a message's way
// allow it in the queues it goes to. A queue that several ways lead to counts
// the exchanges of all of them. The zero Ceilings allow everything.
type Ceilings struct {
	all  uint64            // + 1; 0: no limit, or see each
	each map[*Queue]uint64 // + 1, of the queues that have a limit
}

// PlusOne returns the limit for one of the queues + 1; 0: none.
func (c Ceilings) PlusOne(q *Queue) uint64 {
	if c.each != nil {
		return c.each[q]
	}
	return c.all
}

// ceiling returns the smaller of two limits + 1, where 0 is none.
func ceiling(a, b uint64) uint64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// ceilings computes the limits on a walk that is done. Only a walk that has
// led from an exchange with a limit to another one, or from another one to an
// exchange with a limit, is done again, one exchange at a time.
func (r *router) ceilings(x *Exchange, m *Message) Ceilings {
	if !r.limited {
		return Ceilings{}
	}
	if len(r.further.list) == 0 {
		return Ceilings{all: x.ttlPlusOne}
	}
	reached := map[string]uint64{x.Name: x.ttlPlusOne} // exchange → limit of all ways to it, itself included
	each := map[*Queue]uint64{}
	for todo := []string{x.Name}; len(todo) > 0; todo = todo[1:] {
		name := todo[0]
		step := router{vh: r.vh, first: name, decoded: r.decoded, table: r.table}
		if name == "" {
			step.byName(m.Keys)
		} else if from := r.vh.exchanges.At(name); from != nil {
			step.visit(from, m)
		}
		for _, q := range step.queues.list {
			each[q] = ceiling(each[q], reached[name])
		}
		for _, next := range step.further.list {
			had, known := reached[next]
			limit := ceiling(had, reached[name])
			if to := r.vh.exchanges.At(next); to != nil {
				limit = ceiling(limit, to.ttlPlusOne)
			}
			if !known || limit != had {
				reached[next] = limit
				todo = append(todo, next)
			}
		}
	}
	return Ceilings{each: each}
}

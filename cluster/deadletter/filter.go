package deadletter

import (
	"maps"
	"sync"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// filterTable has the filters of exchanges of type x-filter, each made when a letter first comes to its exchange.
//
// A set follows the bindings of its exchange: when the record of the exchange has changed, all are walked over, and those
// that are new or gone are added or removed. With 100,000 bindings that is some ms after a bind; reading all programs anew
// would be a second.
type filterTable struct {
	filters fsm.Filters // nil: there are none

	mu   sync.Mutex
	sets map[filterKey]*filterSet
}

type filterKey struct{ vhost, exchange string }

// filterSet are the filters of one exchange.
//
// Invariant: the set has the bindings of known, which are those of of.
type filterSet struct {
	mu    sync.Mutex
	set   fsm.FilterSet
	of    *catalog.Exchange
	known map[*catalog.Binding]knownBinding
	next  uint64 // id of the next binding
	walks uint64
}

// knownBinding is a binding in a set, and the walk in which it was last seen.
type knownBinding struct{ id, walk uint64 }

// match returns the copies that an exchange makes of a letter.
func (t *filterTable) match(v *catalog.View, x *catalog.Exchange, l *fsm.DeadLetter, p fsm.Payload) (copies []letterCopy) {
	if t.filters == nil {
		return nil
	}
	s := t.of(v, x)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.follow(x)
	described := func(queue string) []byte { return v.QueueDescription(x.VHost, queue).GetText() }
	for _, c := range s.set.Match(p, fsm.FilterFacts{Sequence: l.Sequence, EnqueuedAt: l.DiedAt, ExpireAt: l.ExpireAt, Described: described}) {
		if q, ok := v.Queue(x.VHost, c.Queue); ok && q.StoreOf == "" && len(c.Edit) <= fsm.MaxFilterEdit {
			copies = append(copies, letterCopy{q, c.Edit, c.TTL})
		}
	}
	return copies
}

// of finds or makes the set of an exchange. Those of exchanges that are gone go when another one is made.
func (t *filterTable) of(v *catalog.View, x *catalog.Exchange) *filterSet {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := filterKey{x.VHost, x.Name}
	s := t.sets[k]
	if s != nil {
		return s
	}
	if t.sets == nil {
		t.sets = map[filterKey]*filterSet{}
	}
	maps.DeleteFunc(t.sets, func(k filterKey, _ *filterSet) bool {
		_, there := v.Exchange(k.vhost, k.exchange)
		return !there
	})
	s = &filterSet{set: t.filters.NewFilterSet(x.VHost, x.Name), known: map[*catalog.Binding]knownBinding{}}
	t.sets[k] = s
	return s
}

// follow makes the set that of the exchange's present bindings.
func (s *filterSet) follow(x *catalog.Exchange) {
	if s.of == x {
		return
	}
	s.of = x
	s.walks++
	for b := range x.Bindings() {
		had, known := s.known[b]
		if !known {
			s.next++
			had.id = s.next
			s.set.Add(had.id, b.Destination, b.Program())
		}
		s.known[b] = knownBinding{had.id, s.walks}
	}
	for b, had := range s.known {
		if had.walk != s.walks {
			s.set.Remove(had.id)
			delete(s.known, b)
		}
	}
}

// edited returns the payload of a transfer: a copy, if an exchange with filters has made it.
func (t *filterTable) edited(c *logpb.QueueConfig, o *queue.Outgoing, p fsm.Payload) fsm.Payload {
	if t.filters == nil || len(o.Edit) == 0 && !isCopy(c, &o.Letter.DeadLetter) {
		return p
	}
	return t.filters.Edited(p, []byte(o.Edit), o.Letter.Sequence)
}

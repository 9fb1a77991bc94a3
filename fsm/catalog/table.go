package catalog

import (
	"fmt"

	"github.com/quorate/quorate/fsm/route"
)

// destination is where a binding leads: a queue, or the exchange of that name.
//
// Exactly one of both is set. Queues are records, which saves a look-up per
// message; exchanges are names, since their records are replaced by each bind.
type destination struct {
	// queue: the record that the vhost has; nil: an exchange
	queue *Queue
	// exchange is empty if it is a queue
	exchange string
}

// table is what the bindings of an exchange make of its type: it finds the
// destinations of a message. Headers exchanges have none, and walk over their
// bindings.
//
// Invariant: the part of the exchange's type has each destination as often as
// there are bindings to it, under their keys or with their weights; the others
// are empty.
//
// It is derived: no snapshot holds it, Restore makes it again from the
// bindings, and the order in which they were made does not show.
type table struct {
	// direct: by routing key
	direct route.Direct[destination]
	// topic: by pattern
	topic route.Topic[destination]
	// fanout: whatever the key
	fanout route.Set[destination]
	// choice: by destination.key, for the four types that choose one
	choice route.Rendezvous[destination]
}

// with returns the table of an exchange of a type with one more binding.
// Requires: b passed checkBinding for the type, and is not in the table yet.
func (t table) with(kind string, b *Binding, to destination) table {
	switch kind {
	case Direct:
		t.direct = t.direct.With(b.RoutingKey, to)
	case Fanout:
		t.fanout = t.fanout.With(to)
	case Topic:
		t.topic = t.topic.With(b.RoutingKey, to)
	case ConsistentHash, ModulusHash, Random, LocalRandom:
		t.choice = t.choice.With(to.key(), to, weightIn(kind, b.RoutingKey))
	}
	return t
}

// without is the inverse of with. Requires: b is in the table with this
// destination.
func (t table) without(kind string, b *Binding, to destination) table {
	switch kind {
	case Direct:
		t.direct = t.direct.Without(b.RoutingKey, to, 1)
	case Fanout:
		t.fanout = t.fanout.Without(to, 1)
	case Topic:
		t.topic = t.topic.Without(b.RoutingKey, to, 1)
	case ConsistentHash, ModulusHash, Random, LocalRandom:
		t.choice = t.choice.Without(to.key(), weightIn(kind, b.RoutingKey))
	}
	return t
}

// place is a destination under a key.
type place struct {
	key string
	to  destination
}

// checkTable compares the bindings of an exchange with what they were made into.
func (x *Exchange) checkTable(lead func(*Binding) (destination, bool)) error {
	times, keys := map[place]int{}, map[string]int{}
	for b := range x.bindings.Values() {
		to, _ := lead(b)
		at := place{b.RoutingKey, to}
		if x.Type == Fanout {
			at.key = ""
		}
		if times[at] == 0 {
			keys[at.key]++
		}
		times[at]++
	}
	direct, topic, fanout := 0, 0, 0
	switch x.Type {
	case Direct:
		direct = len(keys)
	case Topic:
		topic = len(keys)
	case Fanout:
		fanout = len(times)
	}
	if x.table.direct.Len() != direct || x.table.topic.Len() != topic || x.table.fanout.Len() != fanout {
		return fmt.Errorf("%s: tables of %d, %d, %d members, want %d, %d, %d", x,
			x.table.direct.Len(), x.table.topic.Len(), x.table.fanout.Len(), direct, topic, fanout)
	}
	for at, n := range times { // det: any broken place will do
		if set, all := x.table.under(x.Type, at.key); all && (set.Times(at.to) != n || set.Len() != keys[at.key]) {
			return fmt.Errorf("%s has key %q %d times, its table has it %d times", x, at.key, n, set.Times(at.to))
		}
	}
	return x.checkChoice(times)
}

// under returns the destinations under a key of an exchange of a type. ok
// false: the type has no keys. A pattern of a topic exchange is looked up, not
// matched.
func (t *table) under(kind, key string) (set route.Set[destination], ok bool) {
	switch kind {
	case Direct:
		return t.direct.Match(key), true
	case Topic:
		return t.topic.Under(key), true
	case Fanout:
		return t.fanout, true
	}
	return set, false
}

// checkChoice compares the weights of destinations with their bindings.
func (x *Exchange) checkChoice(times map[place]int) error {
	weights := map[string]uint64{}
	switch x.Type {
	case ConsistentHash, ModulusHash, Random, LocalRandom:
		for at, n := range times { // det: a sum
			weights[at.to.key()] += uint64(n) * weightIn(x.Type, at.key)
		}
	}
	for name, want := range weights { // det: any broken place will do
		if _, weight := x.table.choice.Under(name); weight != want {
			return fmt.Errorf("%s: %q has weight %d, its bindings have %d", x, name, weight, want)
		}
	}
	if x.table.choice.Len() != len(weights) {
		return fmt.Errorf("%s: a table of %d destinations, its bindings have %d", x, x.table.choice.Len(), len(weights))
	}
	return nil
}

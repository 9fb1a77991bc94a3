package catalog

import (
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// Check returns the first broken invariant it finds: every record stands
// under its own name in every table it belongs to and in no other, both ends
// of a binding exist, and the table of an exchange's type says what its
// bindings say.
func (v *View) Check() error {
	if err := v.checkNodes(); err != nil {
		return err
	}
	if err := v.checkSettings(); err != nil {
		return err
	}
	if err := v.checkVersions(); err != nil {
		return err
	}
	if err := v.checkLimits(); err != nil {
		return err
	}
	if err := v.checkTokens(); err != nil {
		return err
	}
	queues, owned := 0, 0
	for name, vh := range v.vhosts.All() {
		if vh.row.GetName() != name {
			return fmt.Errorf("vhost %q stands under %q", vh.row.GetName(), name)
		}
		for user, p := range vh.permissions.All() {
			if _, ok := v.User(user); !ok || p.User != user || p.VHost != name {
				return fmt.Errorf("permission of %q in %q stands under %q in %q", p.User, p.VHost, user, name)
			}
		}
		for at, p := range vh.topics.All() {
			if _, ok := v.User(at.user); !ok || p.User != at.user || p.Exchange != at.exchange || p.VHost != name {
				return fmt.Errorf("topic permission of %q at %q in %q stands under %v in %q", p.User, p.Exchange, p.VHost, at, name)
			}
		}
		for key, q := range vh.queues.All() {
			if q.Name != key || q.VHost != name {
				return fmt.Errorf("%s stands under %q in %q", q, key, name)
			}
			if err := v.checkQueue(q); err != nil {
				return err
			}
			queues++
			if q.Exclusive {
				owned++
			}
		}
		if err := vh.checkActive(v.clock); err != nil {
			return err
		}
		if err := vh.check(); err != nil {
			return err
		}
	}
	for _, list := range v.owned.All() {
		owned -= list.Len()
		if list.Len() == 0 {
			return fmt.Errorf("an owner without queues")
		}
	}
	for id := range v.placed.All() {
		if _, ok := v.QueueByID(id); !ok {
			return fmt.Errorf("members of queue %d, which is not there", id)
		}
	}
	if queues != v.byID.Len() || queues != v.byGroup.Len() || owned != 0 {
		return fmt.Errorf("%d queues, %d by id, %d by group, %d exclusive ones not with their owner", queues, v.byID.Len(), v.byGroup.Len(), owned)
	}
	return nil
}

func (v *View) checkNodes() error {
	if v.nodes.Len() != v.nodeNames.Len() {
		return fmt.Errorf("%d nodes, %d by name", v.nodes.Len(), v.nodeNames.Len())
	}
	for number, n := range v.nodes.All() {
		if fsm.NodeID(n.GetNumber()) != number || number == 0 || n.GetNumber() > v.lastNode || n.GetBoot() > v.index || v.nodeNames.At(n.GetName()) != n {
			return fmt.Errorf("node %q has number %d under %d, boot %d", n.GetName(), n.GetNumber(), number, n.GetBoot())
		}
	}
	return nil
}

func (v *View) checkQueue(q *Queue) error {
	byID, _ := v.QueueByID(q.ID)
	byGroup, _ := v.QueueByGroup(q.Group)
	switch {
	case byID != q || byGroup != q:
		return fmt.Errorf("%s is not found by id %d or by group %d", q, q.ID, q.Group)
	case q.Group == 0 || uint64(q.ID)>>16 > v.index:
		return fmt.Errorf("%s has id %d and group %d at index %d", q, q.ID, q.Group, v.index)
	case q.Exclusive && (v.owned.At(q.Owner).At(q.ID) != q || q.Durable):
		return fmt.Errorf("exclusive %s is durable, or not found by its owner", q)
	case !q.Exclusive && q.Owner != Owner{}:
		return fmt.Errorf("%s is not exclusive and has an owner", q)
	case q.StoreOf != "" && v.storeOf(q) != q:
		return fmt.Errorf("%s is not the store of exchange %q", q, q.StoreOf)
	}
	return v.checkPlaced(q)
}

// check looks at exchanges and bindings.
func (vh *vhost) check() error {
	bindings := 0
	for name, x := range vh.exchanges.All() {
		if x.Name != name || x.VHost != vh.row.GetName() || !slices.Contains(exchangeTypes, x.Type) {
			return fmt.Errorf("%s of type %q stands under %q in %q", x, x.Type, name, vh.row.GetName())
		}
		if err := vh.checkTables(x); err != nil {
			return err
		}
		if err := vh.checkStore(x); err != nil {
			return err
		}
		bindings += x.bindings.Len()
	}
	for end, list := range vh.inbound.All() {
		bindings -= list.Len()
		if list.Len() == 0 {
			return fmt.Errorf("%q has an empty list of bindings", end.name)
		}
	}
	if bindings != 0 {
		return fmt.Errorf("%d more bindings by source than by destination", bindings)
	}
	return vh.checkPolicies()
}

// checkTables compares the bindings of an exchange with what they were made into.
func (vh *vhost) checkTables(x *Exchange) error {
	type place struct {
		key string
		to  destination
	}
	places, keys := map[place]int{}, map[string]int{}
	for key, b := range x.bindings.All() {
		if b.key != key || b.Source != x.Name || bindingKey(b.bound) != key {
			return fmt.Errorf("%s has a binding of %q under %q", x, b.Source, key)
		}
		if b.ToExchange && vh.exchanges.At(b.Destination) == nil || !b.ToExchange && vh.queues.At(b.Destination) == nil {
			return fmt.Errorf("%s is bound to %q, which is not there", x, b.Destination)
		}
		if _, ok := vh.inbound.At(b.end()).Get(b); !ok {
			return fmt.Errorf("binding of %s to %q is not known there", x, b.Destination)
		}
		at := place{b.RoutingKey, vh.destinationOf(b)}
		if x.Type == Fanout {
			at.key = ""
		}
		if places[at] == 0 {
			keys[at.key]++
		}
		places[at]++
	}
	direct, topic, fanout, weights := 0, 0, 0, map[string]uint64{}
	for at, times := range places { // det: any broken place will do
		set := x.direct.Match(at.key)
		switch x.Type {
		case Topic:
			set, topic = x.topic.Under(at.key), len(keys)
		case Fanout:
			set, fanout = x.fanout, len(places)
		case ConsistentHash, ModulusHash, Random, LocalRandom:
			weights[at.to.key()] += uint64(times) * weightIn(x, &Binding{RoutingKey: at.key})
			continue
		case Headers:
			continue
		default:
			direct = len(keys)
		}
		if set.Times(at.to) != times || set.Len() != keys[at.key] {
			return fmt.Errorf("%s has key %q %d times, its table has it %d times", x, at.key, times, set.Times(at.to))
		}
	}
	for name, want := range weights { // det: any broken place will do
		if _, weight := x.choice.Under(name); weight != want {
			return fmt.Errorf("%s: %q has weight %d, its bindings have %d", x, name, weight, want)
		}
	}
	if x.choice.Len() != len(weights) {
		return fmt.Errorf("%s: a table of %d destinations, its bindings have %d", x, x.choice.Len(), len(weights))
	}
	if x.direct.Len() != direct || x.topic.Len() != topic || x.fanout.Len() != fanout {
		return fmt.Errorf("%s: tables of %d, %d, %d members, want %d, %d, %d", x, x.direct.Len(), x.topic.Len(), x.fanout.Len(), direct, topic, fanout)
	}
	return nil
}

package catalog

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// declareExchange creates an exchange, or finds the one that is there.
//
// It performs DeclareExchange. If an equivalent exchange exists, nothing
// changes, not even its last use. Ensures: an exchange that delays has a store,
// whose id the answer names in Added.
func (d *draft) declareExchange(m *logpb.DeclareExchange) (*logpb.CatalogResult, error) {
	x, err := d.checkDeclareExchange(noAccess, m)
	if err != nil || x != nil {
		return &logpb.CatalogResult{}, err
	}
	vh, r := d.open(m.GetVhost()), &logpb.CatalogResult{Changed: true}
	vh.addExchange(m)
	d.addStore(vh, m.GetName(), m.GetStoreMembers(), r)
	vh.exchanges.retime(vh.exchanges.at(m.GetName()), d.clock)
	return r, nil
}

// deleteExchange removes an exchange and its bindings. It performs
// DeleteExchange. If-unused counts bindings as a source only.
func (d *draft) deleteExchange(m *logpb.DeleteExchange) (*logpb.CatalogResult, error) {
	exists, err := d.checkDeleteExchange(noAccess, m)
	if err != nil || !exists {
		return &logpb.CatalogResult{}, err
	}
	r := &logpb.CatalogResult{Changed: true}
	d.removeExchanges(d.open(m.GetVhost()), []string{m.GetName()}, r)
	return r, nil
}

// removeExchanges removes exchanges, their bindings and what waits in them, and
// the exchanges that end with these. Names that are not there are left out. r
// names the queues that went.
//
// Requires: vh is open. doomed is used up. Each exchange is removed once,
// however often it is named, so the loop ends even if bindings form a cycle.
// The set of removed exchanges does not depend on the order; r.Deleted is
// sorted so that the answer does not, either.
func (d *draft) removeExchanges(vh *vhost, doomed []string, r *logpb.CatalogResult) {
	for len(doomed) > 0 {
		name := doomed[len(doomed)-1]
		doomed = doomed[:len(doomed)-1]
		x := vh.exchanges.at(name)
		if x == nil {
			continue
		}
		if x.Store != nil {
			d.forgetQueue(vh, x.Store)
			r.Deleted = append(r.Deleted, uint64(x.Store.ID))
		}
		doomed = append(doomed, vh.exchanges.remove(x)...)
	}
	slices.Sort(r.Deleted)
}

// bind makes a binding, or finds the one that is there. It performs Bind.
// Making a binding is a use of the exchanges at both ends, and of those the
// queue is bound to already.
func (d *draft) bind(m *logpb.Bind) (*logpb.CatalogResult, error) {
	if err := d.mayBind(noAccess, m); err != nil {
		return nil, err
	}
	exists, err := d.checkBind(m)
	if err != nil || exists {
		return &logpb.CatalogResult{}, err
	}
	vh := d.open(m.GetVhost())
	vh.addBinding(m)
	vh.exchanges.touchEnds(m, d.clock)
	return &logpb.CatalogResult{Changed: true}, nil
}

// unbind removes a binding. One that is not there is fine. It performs Unbind.
// An auto-delete source that loses its last binding goes, and with it what this
// leaves without a binding.
func (d *draft) unbind(m *logpb.Bind) (*logpb.CatalogResult, error) {
	if err := d.mayBind(noAccess, m); err != nil {
		return nil, err
	}
	b, ok := d.binding(m)
	if !ok {
		return &logpb.CatalogResult{}, nil
	}
	vh := d.open(m.GetVhost())
	r := &logpb.CatalogResult{Changed: true}
	vh.exchanges.touchEnds(m, d.clock)
	if to, _ := vh.lead(b); vh.exchanges.unbind(b, to) {
		d.removeExchanges(vh, []string{b.Source}, r)
	}
	return r, nil
}

// touchExchange notes that an exchange was in use. It performs TouchExchange. A
// use is never later than the clock, and never moves the last use back. A touch
// that is not news opens no vhost.
func (d *draft) touchExchange(m *logpb.TouchExchange) (*logpb.CatalogResult, error) {
	at := min(fsm.Time(m.GetAt()), d.clock)
	vh := d.vhost(m.GetVhost())
	if vh == nil {
		return &logpb.CatalogResult{}, nil
	}
	if last, ends := vh.exchanges.lastUsed(m.GetName()); !ends || at <= last {
		return &logpb.CatalogResult{}, nil
	}
	return &logpb.CatalogResult{Changed: d.open(m.GetVhost()).exchanges.touch(m.GetName(), at)}, nil
}

// expireExchange removes an exchange, unless it was in use too lately.
//
// It performs ExpireExchange. Both m.At and the clock must have reached
// IdleEnd: a proposer whose clock is ahead removes nothing early, and a use
// that was noted before this entry keeps the exchange.
func (d *draft) expireExchange(m *logpb.ExpireExchange) (*logpb.CatalogResult, error) {
	x, ok := d.Exchange(m.GetVhost(), m.GetName())
	if !ok || x.idle == 0 {
		return &logpb.CatalogResult{}, nil
	}
	if last, _ := d.vhost(m.GetVhost()).exchanges.lastUsed(x.Name); x.IdleEnd(last) > min(fsm.Time(m.GetAt()), d.clock) {
		return &logpb.CatalogResult{}, nil
	}
	r := &logpb.CatalogResult{Changed: true}
	d.removeExchanges(d.open(m.GetVhost()), []string{x.Name}, r)
	return r, nil
}

// addStore makes the store of an exchange that delays and has none. members may
// be empty. r names the queue. Requires: vh is open and has the exchange.
// Members that checkPlacement refuses are replaced and cause no error. The
// store does not count against the vhost's limit of queues.
func (d *draft) addStore(vh *vhost, exchange string, members []uint32, r *logpb.CatalogResult) {
	x := vh.exchanges.at(exchange)
	if !x.Delays || x.Store != nil {
		return
	}
	group := d.newGroup()
	m := &logpb.DeclareQueue{
		Vhost: x.VHost, Name: storePrefix + x.Name, Durable: true, Members: members, StoreOf: x.Name,
	}
	if d.checkPlacement(m) != nil {
		m.Members = d.placeStore(group)
	}
	q := newQueue(m, d.storeID(), group)
	d.addQueue(q, 0)
	r.Added = append(r.Added, uint64(q.ID))
}

// placeStore chooses nodes for a store, other ones for each group. There is at
// least one node: it is where the command comes from. It does not weigh load:
// consecutive groups begin at consecutive nodes, in the order of their numbers,
// which is the same on every replica.
func (d *draft) placeStore(group fsm.GroupID) (members []uint32) {
	nodes := d.Nodes()
	for i := range min(len(nodes), storeReplicas) {
		members = append(members, nodes[(int(group)+i)%len(nodes)].GetNumber())
	}
	return members
}

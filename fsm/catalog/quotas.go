package catalog

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// What clients and operators put into the catalog lies in the memory of every
// node. So it has limits, which are settings of the whole cluster. The leader
// asks for every command before it enters the log; Apply does not, as the log
// may hold what an earlier value of a setting has allowed, and what exists stays.

// Fits says why a command asks for more than the cluster allows; nil: it does
// not. What exists may be declared again.
//
// It depends on the settings of v, and may be wrong by the commands that are in
// the log but not yet applied: limits here protect memory and are not exact.
// Kinds that are not named have no limit; what they add is bounded otherwise,
// or made by operators.
func (v *View) Fits(c *logpb.CatalogCommand) error {
	switch m := c.GetBody().(type) {
	case *logpb.CatalogCommand_DeclareQueue:
		return v.fitsQueue(m.DeclareQueue)
	case *logpb.CatalogCommand_DeclareExchange:
		return v.fitsExchange(m.DeclareExchange)
	case *logpb.CatalogCommand_Bind:
		return v.fitsBinding(m.Bind)
	case *logpb.CatalogCommand_PutPolicy:
		return v.FitsArguments("definition of policy", m.PutPolicy.GetName(), m.PutPolicy.GetDefinition())
	case *logpb.CatalogCommand_PutUser:
		return v.fitsText("tags of user", m.PutUser.GetName(), m.PutUser.GetTags()...)
	case *logpb.CatalogCommand_PutVhost:
		if _, exists := v.VHost(m.PutVhost.GetName()); !exists && int64(v.vhostCount()) >= v.Setting(VHostMax) {
			return refuse(fsm.Precondition, "cannot create vhost '%s': vhost limit of %d is reached", m.PutVhost.GetName(), v.Setting(VHostMax))
		}
		return v.fitsText("description and tags of vhost", m.PutVhost.GetName(), append(m.PutVhost.GetTags(), m.PutVhost.GetDescription())...)
	}
	return nil
}

// fitsQueue checks the cluster's limit, the default limit of the vhost, and the
// size of the arguments. A limit given to the vhost is for Apply to check. A
// missing vhost is no matter of size: Apply refuses it.
func (v *View) fitsQueue(m *logpb.DeclareQueue) error {
	vh := v.vhost(m.GetVhost())
	if vh == nil || vh.queues.At(m.GetName()) != nil {
		return nil
	}
	if limit := v.Setting(ClusterQueueLimit); int64(v.QueueCount()) >= limit {
		return refuse(fsm.Precondition, "cannot declare queue '%s': queue limit in cluster (%d) is reached", m.GetName(), limit)
	}
	if q := v.VHostQuota(m.GetVhost(), MaxQueues); !q.Whole {
		if err := vh.checkQueueCount(m.GetName(), q.Limit); err != nil {
			return err
		}
	}
	return v.FitsArguments("arguments of queue", m.GetName(), m.GetArguments())
}

// fitsExchange counts the predeclared exchanges, too.
func (v *View) fitsExchange(m *logpb.DeclareExchange) error {
	vh := v.vhost(m.GetVhost())
	if vh == nil || vh.exchanges.at(m.GetName()) != nil {
		return nil
	}
	if limit := v.Setting(ClusterExchangeLimit); int64(v.exchangeCount()) >= limit {
		return refuse(fsm.Precondition, "cannot declare exchange '%s' in vhost '%s': exchange limit of %d is reached", m.GetName(), m.GetVhost(), limit)
	}
	return v.FitsArguments("arguments of exchange", m.GetName(), m.GetArguments())
}

// fitsBinding bounds the bindings of the source and those to the destination.
// Unlike the others it refuses at the limit what exists, too; the broker does
// not propose that.
func (v *View) fitsBinding(m *logpb.Bind) error {
	vh := v.vhost(m.GetVhost())
	if vh == nil {
		return nil
	}
	limit := v.Setting(MaxBindings)
	if x := vh.exchanges.at(m.GetSource()); x != nil && int64(x.bindings.Len()) >= limit {
		return refuse(fsm.Precondition, "cannot bind to exchange '%s' in vhost '%s': binding limit of %d is reached", m.GetSource(), m.GetVhost(), limit)
	}
	if to := vh.exchanges.inboundAt(endpoint{m.GetDestination(), m.GetToExchange()}); int64(to.Len()) >= limit {
		return refuse(fsm.Precondition, "cannot bind '%s' in vhost '%s': binding limit of %d is reached", m.GetDestination(), m.GetVhost(), limit)
	}
	return v.FitsArguments("arguments of binding to", m.GetDestination(), m.GetArguments())
}

// FitsArguments refuses a table that is too large. what and name say whose. nil
// takes no bytes and no values. Exactly the limit is allowed.
func (cs *clusterSettings) FitsArguments(what, name string, t *fsm.Table) error {
	var s size
	s.table(t)
	return cs.fitsSize(what, name, s)
}

// fitsText is FitsArguments for texts.
func (cs *clusterSettings) fitsText(what, name string, texts ...string) error {
	s := size{values: len(texts)}
	for _, t := range texts {
		s.octets += len(t)
	}
	return cs.fitsSize(what, name, s)
}

func (cs *clusterSettings) fitsSize(what, name string, s size) error {
	if limit := cs.Setting(MaxArgumentBytes); int64(s.octets) > limit {
		return refuse(fsm.Precondition, "%s '%s' have %d bytes, at most %d are allowed", what, fsm.Short(name), s.octets, limit)
	}
	if limit := cs.Setting(MaxArgumentValues); int64(s.values) > limit {
		return refuse(fsm.Precondition, "%s '%s' have %d values, at most %d are allowed", what, fsm.Short(name), s.values, limit)
	}
	return nil
}

// size is what a table takes as AMQP encodes it, its own length left out, and
// how many values are in it, those that hold others included.
type size struct{ octets, values int }

func (s *size) table(t *fsm.Table) {
	for _, f := range t.GetFields() {
		s.octets += 1 + len(f.GetName())
		s.value(f.GetValue())
	}
}

func (s *size) value(v *logpb.Value) {
	s.values++
	s.octets++ // its tag
	switch v.GetTag() {
	case 't', 'b', 'B':
		s.octets++
	case 's', 'u':
		s.octets += 2
	case 'I', 'i', 'f':
		s.octets += 4
	case 'l', 'L', 'T', 'd':
		s.octets += 8
	default: // a text, a decimal, or what holds others
		s.octets += 4 + len(v.GetStr())
		s.table(v.GetTable())
		for _, one := range v.GetArray() {
			s.value(one)
		}
	}
}

package v10

import (
	"slices"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// linkNews is what a client is told of a link by the properties of flows.
type linkNews struct {
	credited bool         // it has given credit
	serving  fsm.NewsKind // fsm.Serving, fsm.Waiting; 0: the queue has no single active consumer
	groups   []string     // that the link has
}

// Properties of flows.
const (
	activeProperty = "rabbitmq:active"
	groupProperty  = "x-group-id"
)

// credit takes in what the client says of its credit. With the first credit it is told whether its link is the active one.
func (c *counts) credit(l *outgoingLink, f *wire.Flow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.requested && l.started && f.LinkCredit.Value > 0 && !c.closed {
		l.sendEarly()
		c.pump()
	}
	n := &l.news
	l.until = f.DeliveryCount.Value + f.LinkCredit.Value
	if !n.credited && f.LinkCredit.Value > 0 && !c.closed {
		n.credited = true
		c.tellActive(l)
		c.pump()
	}
}

// news tells the client what its queue says of a link, unless it knows.
func (c *counts) news(consumer uint64, news *fsm.News) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[consumer]
	if c.closed || l == nil {
		return
	}
	n := &l.news
	switch news.Kind {
	case fsm.Serving, fsm.Waiting:
		if n.serving != news.Kind {
			n.serving = news.Kind
			c.tellActive(l)
		}
	case fsm.GroupsTaken:
		c.tellGroups(l, news.Groups, nil)
	case fsm.GroupsLeft:
		c.tellGroups(l, nil, news.Groups)
	case fsm.GroupsHeld:
		c.tellGroups(l, news.Groups, slices.DeleteFunc(slices.Clone(n.groups), func(g string) bool { return slices.Contains(news.Groups, g) }))
	}
	c.pump()
}

// tellActive tells the client whether its link is the active one, once it has given credit. mu is held.
func (c *counts) tellActive(l *outgoingLink) {
	if n := &l.news; n.serving != 0 && n.credited {
		now := property(activeProperty, wire.AppendBool(nil, n.serving == fsm.Serving))
		for i := range c.held {
			if h := &c.held[i]; h.link == l && h.frames == 0 {
				if _, is := h.flow.Properties.Get(activeProperty); is { // the client does not know that yet
					h.flow.Properties = now
					return
				}
			}
		}
		c.tellProperty(l, now)
	}
}

// property returns a map of one.
func property(name string, value []byte) wire.MapBytes {
	return wire.EndMap(append(wire.AppendSymbol(wire.StartMap(nil), name), value...), 0, 1)
}

// tellGroups tells the client which groups its link has given up, and which it has taken. mu is held.
func (c *counts) tellGroups(l *outgoingLink, taken, left []string) {
	n := &l.news
	for _, g := range left {
		if i := slices.Index(n.groups, g); i >= 0 {
			n.groups = slices.Delete(n.groups, i, i+1)
			c.tellProperty(l, property(groupProperty, wire.AppendNull(nil)))
		}
	}
	for _, g := range taken {
		if !slices.Contains(n.groups, g) {
			n.groups = append(n.groups, g)
			c.tellProperty(l, property(groupProperty, wire.AppendString(nil, g)))
		}
	}
}

// tellProperty queues a flow with properties, behind what was sent before. mu is held.
func (c *counts) tellProperty(l *outgoingLink, properties wire.MapBytes) {
	credit := uint32(max(ahead(l.count, l.until), 0))
	c.held = append(c.held, heldSend{link: l, flow: wire.Flow{
		Handle: wire.Some(l.handle), DeliveryCount: wire.Some(l.count), LinkCredit: wire.Some(credit), Properties: properties,
	}})
}

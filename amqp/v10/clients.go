package v10

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/proto/logpb"
)

// SessionInfo describes an open session. Its numbers are of one moment.
type SessionInfo struct {
	Channel              uint16
	HandleMax            uint32
	NextIncomingID       uint32
	IncomingWindow       uint32
	NextOutgoingID       uint32
	RemoteIncomingWindow uint32 // transfers that the client takes
	RemoteOutgoingWindow uint32 // transfers that it may send, by its own account
	Unsettled            int    // deliveries that it has not settled
	Incoming             []IncomingLinkInfo
	Outgoing             []OutgoingLinkInfo
}

// LinkInfo describes a link, whatever its direction.
type LinkInfo struct {
	Handle        uint32
	Name          string
	Address       *string // of the server's end, as the client gave it; nil: null
	DeliveryCount uint32
	Credit        uint32
}

// IncomingLinkInfo describes a link on which the client publishes.
type IncomingLinkInfo struct {
	LinkInfo
	SettleMode     string // of the sender: unsettled, settled, mixed
	MaxMessageSize int
	Unconfirmed    int // publishes without an outcome
}

// OutgoingLinkInfo describes a link on which the client receives.
type OutgoingLinkInfo struct {
	LinkInfo
	Queue          string
	Settled        bool   // deliveries are settled when they are sent
	MaxMessageSize uint64 // 0: unlimited
	Filters        []FilterInfo
	TimedOut       bool // it gets nothing until the client settles what a consumer timeout has taken back
}

// FilterInfo describes a filter that a queue applies.
type FilterInfo struct {
	Name       string
	Descriptor any          // a uint64, or a string; nil: it has none
	Value      *logpb.Value // nil: of a type that has no counterpart there
}

// Sessions describes the sessions of a connection, ordered by channel. found false: a server has no such connection
// of this protocol.
func Sessions(s *amqp.Server, connection string) (all []SessionInfo, found bool) {
	s.Endpoints(func(e amqp.Endpoint, of *amqp.ConnectionInfo) {
		c, ok := e.(*conn)
		if !ok || of.Name != connection {
			return
		}
		found = true
		for _, s := range c.list.all() {
			all = append(all, s.describe())
		}
	})
	slices.SortFunc(all, func(a, b SessionInfo) int { return cmp.Compare(a.Channel, b.Channel) })
	return all, found
}

// Links counts the links of a server's clients: those on which they publish, and those on which they receive.
func Links(s *amqp.Server) (incoming, outgoing int) {
	s.Endpoints(func(e amqp.Endpoint, _ *amqp.ConnectionInfo) {
		c, ok := e.(*conn)
		if !ok {
			return // it speaks another protocol
		}
		for _, s := range c.list.all() {
			in, out := s.countLinks()
			incoming, outgoing = incoming+in, outgoing+out
		}
	})
	return incoming, outgoing
}

func (s *session) countLinks() (incoming, outgoing int) {
	s.gate.Lock()
	defer s.gate.Unlock()
	for _, l := range s.links {
		switch {
		case l.in != nil:
			incoming++
		case l.out != nil:
			outgoing++
		}
	}
	return incoming, outgoing
}

// Where returns where the session's client is: the name of its connection, what the client calls it, the session's
// channel and the client's address.
func (s *session) Where() (connection, given string, channel uint16, client netip.AddrPort) {
	connection, client = s.conn.Where()
	return connection, s.conn.given(), s.channel, client
}

// describe reads all of a session at one moment. Whoever holds the gate does not wait, so it does not stop traffic.
func (s *session) describe() SessionInfo {
	s.gate.Lock()
	defer s.gate.Unlock()
	c := &s.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	i := SessionInfo{
		Channel: s.channel, HandleMax: s.handleMax, NextIncomingID: c.in.next, IncomingWindow: c.in.left,
		NextOutgoingID: c.client.next, RemoteIncomingWindow: c.client.window, RemoteOutgoingWindow: c.in.remote(),
		Unsettled: c.deliveries.live,
	}
	for _, l := range s.links {
		of := LinkInfo{Handle: l.handle, Name: l.name}
		if l.address.Present {
			of.Address = &l.address.Value
		}
		switch {
		case l.in != nil:
			of.DeliveryCount, of.Credit = l.in.credit.count, l.in.credit.left
			i.Incoming = append(i.Incoming, IncomingLinkInfo{
				LinkInfo: of, SettleMode: settleMode(l.in.assembly.mode), MaxMessageSize: l.in.assembly.limit, Unconfirmed: int(l.in.credit.waiting.Load()),
			})
		case l.out != nil:
			of.DeliveryCount, of.Credit = l.out.count, uint32(max(ahead(l.out.count, l.out.until), 0))
			i.Outgoing = append(i.Outgoing, OutgoingLinkInfo{
				LinkInfo: of, Queue: l.out.queue, Settled: l.out.settled, MaxMessageSize: l.out.limit, Filters: filtersOf(l.out.filter.answer()),
				TimedOut: c.hasTimedOut(l.out),
			})
		}
	}
	slices.SortFunc(i.Incoming, func(a, b IncomingLinkInfo) int { return cmp.Compare(a.Handle, b.Handle) })
	slices.SortFunc(i.Outgoing, func(a, b OutgoingLinkInfo) int { return cmp.Compare(a.Handle, b.Handle) })
	return i
}

// settleMode names a mode. An unknown one is taken for mixed.
func settleMode(mode byte) string {
	switch mode {
	case sendUnsettled:
		return "unsettled"
	case sendSettled:
		return "settled"
	}
	return "mixed"
}

// addressOf returns the address of the server's end of a link.
func addressOf(a *wire.Attach) (address wire.Optional[string]) {
	if a.Role {
		if a.Source != nil {
			address = a.Source.Address
		}
	} else if t, ok := a.Target.(*wire.Target); ok {
		address = t.Address
	}
	return address
}

// hasTimedOut reports whether a link waits until its client has settled what a consumer timeout has taken back. mu is held.
func (c *counts) hasTimedOut(l *outgoingLink) bool {
	return slices.ContainsFunc(c.deliveries.list[c.deliveries.head:], func(d delivery) bool {
		return d.link == l && d.lost && !d.lapses
	})
}

// filtersOf describes the filters of a source.
func filtersOf(m wire.MapBytes) (all []FilterInfo) {
	for w := m.Walk(); w.NextPair(); {
		f, v := FilterInfo{Name: string(w.Key.Bytes())}, w.Value
		if d := v.Walk(); v.Type == wire.Described && d.Next() {
			if d.Value.Type == wire.Ulong {
				f.Descriptor = d.Value.Unsigned()
			} else {
				f.Descriptor = string(d.Value.Bytes())
			}
			d.Next()
			v = d.Value
		}
		f.Value = message.Value(v)
		all = append(all, f)
	}
	return all
}

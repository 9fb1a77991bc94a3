package v091

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/quorate/quorate/amqp"
)

// ChannelInfo describes an open channel.
type ChannelInfo struct {
	Connection    string // its name
	User, VHost   string
	Peer          netip.AddrPort
	Number        uint16
	Closing       bool
	Prefetch      uint16 // of each consumer that begins; 0: no limit
	Shared        uint16 // of all consumers together; 0: no limit
	Consumers     int
	Unacked       int
	Unconfirmed   int // publishes that the client waits for, in confirm mode
	Unanswered    int // publishes that wait for the broker
	Uncommitted   int // publishes in a transaction
	Unsettled     int // settlements in a transaction
	Confirms      bool
	Transactional bool
}

// channelList lists the channels of a connection.
type channelList struct {
	mu  sync.Mutex
	set map[*channel]struct{}
}

func (l *channelList) add(ch *channel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.set == nil {
		l.set = map[*channel]struct{}{}
	}
	l.set[ch] = struct{}{}
}

func (l *channelList) remove(ch *channel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.set, ch)
}

func (l *channelList) all() []*channel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.set))
}

// Channels describes the open channels of a server, ordered by connection and
// number.
func Channels(s *amqp.Server) []ChannelInfo {
	var all []ChannelInfo
	s.Endpoints(func(e amqp.Endpoint, of *amqp.ConnectionInfo) {
		c, ok := e.(*conn)
		if !ok {
			return // it speaks another protocol
		}
		for _, ch := range c.channels.all() {
			i := ch.describe()
			i.Connection, i.User, i.VHost, i.Peer = of.Name, of.User, of.VHost, of.Peer
			all = append(all, i)
		}
	})
	slices.SortFunc(all, func(a, b ChannelInfo) int {
		return cmp.Or(cmp.Compare(a.Connection, b.Connection), cmp.Compare(a.Number, b.Number))
	})
	return all
}

// describe reads what each part of the channel knows, one after the other.
func (ch *channel) describe() ChannelInfo {
	i := ChannelInfo{Number: ch.number}
	ch.gate.Lock()
	i.Closing, i.Prefetch, i.Shared, i.Confirms = !ch.end.isOpen(), ch.prefetch, ch.shared, ch.publisher.confirming
	i.Transactional, i.Uncommitted = ch.tx.on, len(ch.tx.publishes)
	ch.gate.Unlock()
	i.Consumers, i.Unacked, i.Unsettled = ch.consumers.stats()
	i.Unconfirmed, i.Unanswered = ch.publisher.confirms.waiting()
	return i
}

// stats returns how many consumers there are, what they and gets hold, and how much of what they
// held is settled in a transaction.
func (c *consumers) stats() (consumers, unacked, uncommitted int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.byTag), c.deliveries.unacked.live, len(c.deliveries.uncommitted)
}

// waiting returns how many publishes wait: for a confirm to be written, in confirm mode, and for
// the broker.
func (c *confirms) waiting() (unconfirmed, unanswered int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.list[c.head:] {
		if p.state == publishWaiting {
			unanswered++
		}
	}
	if c.on {
		unconfirmed = c.live
	}
	return unconfirmed, unanswered
}

package amqp

import (
	"cmp"
	"crypto/tls"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/fsm"
)

// ConnectionInfo describes an open connection.
type ConnectionInfo struct {
	Name        string // "PEER-IP:PORT -> IP:PORT"
	Given       string // the client's own name for it; empty: none
	User, VHost string
	Peer, Host  netip.AddrPort
	OpenedAt    time.Time
	Mechanism   string // of the login
	Heartbeat   time.Duration
	FrameMax    uint32
	ChannelMax  uint16
	Channels    int
	Received    uint64 // octets
	Sent        uint64 // octets, since it is open
	Reads       uint64 // from the socket, that returned something
	Writes      uint64 // to it
	Pending     int64  // octets that wait to be sent, and what they cost besides
	Held        HeldMemory
	Closing     bool
	Blocked     bool   // by an alarm
	TLS, Cipher string // names; empty: not encrypted
	Certificate string // the subject of the client's certificate; empty: none
	Issuer      string // of the certificate
	ValidFrom   time.Time
	ValidTo     time.Time
	Properties  *fsm.Table
}

// describe is called once, when the connection opens.
func (c *conn) describe() *ConnectionInfo {
	peer, host := addrPort(c.socket.RemoteAddr().String()), addrPort(c.socket.LocalAddr().String())
	i := &ConnectionInfo{
		Name: peer.String() + " -> " + host.String(), User: c.user, VHost: c.vhost, Peer: peer, Host: host,
		OpenedAt: time.Now(), Mechanism: c.mechanism, Heartbeat: c.heartbeat, FrameMax: c.frameMax, ChannelMax: c.channelMax,
		Properties: catalogTable(c.clientProperties),
	}
	if given, ok := c.clientProperties.Get("connection_name"); ok && isText(given) {
		i.Given = given.Str
	}
	if t, ok := c.socket.(*tls.Conn); ok {
		s := t.ConnectionState()
		i.TLS, i.Cipher = tls.VersionName(s.Version), tls.CipherSuiteName(s.CipherSuite)
		if len(s.PeerCertificates) > 0 {
			c := s.PeerCertificates[0]
			i.Certificate, i.Issuer, i.ValidFrom, i.ValidTo = c.Subject.String(), c.Issuer.String(), c.NotBefore, c.NotAfter
		}
	}
	return i
}

func addrPort(s string) netip.AddrPort {
	a, _ := netip.ParseAddrPort(s) // a socket that is not a network socket has no address
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Connections describes the open connections, ordered by name.
func (s *Server) Connections() []ConnectionInfo {
	var all []ConnectionInfo
	for _, c := range s.open() {
		i := *c.stats.info.Load()
		i.Channels = c.stats.channels.count()
		i.Received, i.Sent = c.reader.source.received.Load(), c.stats.sent.Load()
		i.Reads, i.Writes = c.reader.source.reads.Load(), c.stats.writes.Load()
		i.Pending, i.Held = c.out.memory.bytes.Load(), c.heldMemory()
		i.Closing, i.Blocked = c.end.isDone(), c.stats.blocked.Load()
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b ConnectionInfo) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Octets calls f for each open connection, with what it has received and sent.
func (s *Server) Octets(f func(name string, openedAt time.Time, received, sent uint64)) {
	for _, c := range s.open() {
		i := c.stats.info.Load()
		f(i.Name, i.OpenedAt, c.reader.source.received.Load(), c.stats.sent.Load())
	}
}

// CloseConnection ends the connection of this name, with 320 and the reason,
// without waiting. It returns false if there is none.
func (s *Server) CloseConnection(name, reason string) bool {
	for _, c := range s.open() {
		if c.stats.info.Load().Name == name {
			c.fail(errForced(reason))
			return true
		}
	}
	return false
}

// CloseConnections ends all connections, with 320 and the reason. It does not
// wait.
func (s *Server) CloseConnections(reason string) {
	for _, c := range s.open() {
		c.fail(errForced(reason))
	}
}

// Renew checks the current rights of the clients of all connections, see
// Connection.Renew. It closes the connections that are no longer allowed,
// without waiting.
func (s *Server) Renew() {
	for _, c := range s.open() {
		if c.end.isDone() {
			continue
		}
		if e := c.renew(0); e != nil {
			c.fail(e)
		}
	}
}

// open lists the connections that are past their handshake.
func (s *Server) open() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*conn
	for c := range s.conns {
		if c.stats.info.Load() != nil {
			all = append(all, c)
		}
	}
	return all
}

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

func (l *channelList) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.set)
}

func (l *channelList) all() []*channel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.set))
}

// Channels describes the open channels, ordered by connection and number.
func (s *Server) Channels() []ChannelInfo {
	var all []ChannelInfo
	for _, c := range s.open() {
		of := c.stats.info.Load()
		for _, ch := range c.stats.channels.all() {
			i := ch.describe()
			i.Connection, i.User, i.VHost, i.Peer = of.Name, of.User, of.VHost, of.Peer
			all = append(all, i)
		}
	}
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

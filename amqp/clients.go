package amqp

import (
	"crypto/tls"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/fsm"
)

// ConnectionInfo describes an open connection.
type ConnectionInfo struct {
	Name        string // "PEER-IP:PORT -> IP:PORT"
	Protocol    string // as the HTTP API names it
	Container   string // of AMQP 1.0
	Given       string // the client's own name for it; empty: none
	User, VHost string
	Peer, Host  netip.AddrPort
	OpenedAt    time.Time
	Mechanism   string // of the login
	Heartbeat   time.Duration
	FrameMax    uint32
	ChannelMax  uint16
	Channels    int    // or sessions
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
func (c *Conn) describe() *ConnectionInfo {
	name, peer := c.Where()
	i := &ConnectionInfo{
		Name: name, User: c.User, VHost: c.VHost, Peer: peer, Host: addrPort(c.Socket.LocalAddr().String()),
		OpenedAt: time.Now(), Mechanism: c.Mechanism, Heartbeat: c.Heartbeat,
	}
	c.endpoint.Describe(i)
	if t, ok := c.Socket.(*tls.Conn); ok {
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
		i, parts := *c.stats.info.Load(), c.endpoint.Parts()
		i.Channels = len(parts)
		i.Received, i.Sent = c.Source.received.Load(), c.stats.sent.Load()
		i.Reads, i.Writes = c.Source.reads.Load(), c.stats.writes.Load()
		i.Pending, i.Held = c.Out.memory.bytes.Load(), c.heldMemory(parts)
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
		f(i.Name, i.OpenedAt, c.Source.received.Load(), c.stats.sent.Load())
	}
}

// CloseConnection ends the connection of this name, with the reason (fsm.Forced),
// without waiting. It returns false if there is none.
func (s *Server) CloseConnection(name, reason string) bool {
	for _, c := range s.open() {
		if c.stats.info.Load().Name == name {
			c.endpoint.Fail(fsm.Refuse(fsm.Forced, reason))
			return true
		}
	}
	return false
}

// CloseConnections ends all connections, with the reason (fsm.Forced). It does
// not wait.
func (s *Server) CloseConnections(reason string) {
	for _, c := range s.open() {
		c.endpoint.Fail(fsm.Refuse(fsm.Forced, reason))
	}
}

// Renew checks the current rights of the clients of all connections, see
// Connection.Renew. It closes the connections that are no longer allowed,
// without waiting.
func (s *Server) Renew() {
	for _, c := range s.open() {
		if !c.end.isDone() {
			c.endpoint.Renew()
		}
	}
}

// open lists the connections that are past their handshake.
func (s *Server) open() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*Conn
	for c := range s.conns {
		if c.stats.info.Load() != nil {
			all = append(all, c)
		}
	}
	return all
}

// Endpoints calls f for each open connection, with what the protocol knows of it
// and its description.
func (s *Server) Endpoints(f func(Endpoint, *ConnectionInfo)) {
	for _, c := range s.open() {
		f(c.endpoint, c.stats.info.Load())
	}
}

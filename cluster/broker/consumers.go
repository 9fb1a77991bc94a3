package broker

import (
	"net/netip"

	"github.com/quorate/quorate/proto/peerpb"
)

// located is a channel that says where its client is: the name of its
// connection, its number there, and the client's address.
type located interface {
	Where() (connection string, channel uint16, client netip.AddrPort)
}

// ConsumingSessions lists the sessions of this node's clients that have consumers.
func (b *Broker) ConsumingSessions() (list []*peerpb.ConsumingSession) {
	for _, s := range b.allSessions() {
		if d := s.describe(); d != nil {
			list = append(list, d)
		}
	}
	return list
}

// describe says where a session's client is; nil: it has no consumers.
func (s *Session) describe() *peerpb.ConsumingSession {
	s.mu.Lock()
	consuming := len(s.consumers) > 0 // also if some of them are only owed settlements
	s.mu.Unlock()
	at, ok := s.client.(located)
	if !consuming || !ok {
		return nil
	}
	name, channel, client := at.Where()
	return &peerpb.ConsumingSession{
		Boot: s.id.Boot, Session: s.id.Num, User: s.conn.user, Connection: name, Channel: uint32(channel),
		PeerHost: client.Addr().Unmap().String(), PeerPort: uint32(client.Port()),
	}
}

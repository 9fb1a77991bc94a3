package amqp

import (
	"net/netip"

	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
)

// A channel is the fsm.SessionEvents of its session. Its parts store the data
// of events. They take their own lock and the outbox's, never the gate.

// reporting is the text for a panic of a channel while the broker calls it.
const reporting = "take what the broker reports"

// Deliver receives messages for consumers.
func (ch *channel) Deliver(messages []fsm.Message) {
	defer ch.conn.contain(reporting)
	ch.consumers.deliver(messages)
}

// Confirmed receives the outcome of publishes.
func (ch *channel) Confirmed(first, last uint64, ok bool) {
	defer ch.conn.contain(reporting)
	ch.publisher.confirmed(first, last, ok)
}

// Returned receives a mandatory message that turned out to have no destination.
func (ch *channel) Returned(payload fsm.Payload) {
	defer ch.conn.contain(reporting)
	ch.publisher.returned(payload, nil)
}

// Refused receives the answer to a publish that was a command to the broker.
func (ch *channel) Refused(payload fsm.Payload, why *fsm.Refusal) {
	defer ch.conn.contain(reporting)
	if why != nil && why.Kind == fsm.AccessRefused {
		ch.conn.refused(protocolError(why, wire.IDBasicPublish))
	}
	ch.publisher.returned(payload, why)
}

// Cancelled ends a consumer whose queue is gone.
func (ch *channel) Cancelled(number uint64) {
	defer ch.conn.contain(reporting)
	ch.consumers.cancelled(number)
}

// Revoked ends a consumer whose queue the user may no longer read.
func (ch *channel) Revoked(number uint64, why error) {
	defer ch.conn.contain(reporting)
	if ch.consumers.revoked(number, why) {
		ch.conn.refused(protocolError(why, wire.IDBasicConsume))
	}
}

// TimedOut handles deliveries that have gone back because they were held too
// long.
func (ch *channel) TimedOut(number uint64, deliveries []uint64, limit fsm.Millis) {
	defer ch.conn.contain(reporting)
	ch.consumers.timeOut(number, deliveries, errConsumerTimeout(ch.number, limit))
}

// Lost ends a channel whose session the broker has given up.
func (ch *channel) Lost(err error) {
	defer ch.conn.contain(reporting)
	if ch.consumers.lose(err) {
		ch.publisher.commits.lose(err)
	}
}

// Where returns the location of the channel's client: the name of its
// connection, the channel's number there, and the client's address.
func (ch *channel) Where() (connection string, number uint16, client netip.AddrPort) {
	remote, local := ch.conn.socket.RemoteAddr().String(), ch.conn.socket.LocalAddr().String()
	client, _ = netip.ParseAddrPort(remote) // not TCP: no address
	return remote + " -> " + local, ch.number, client
}

package main

import (
	"context"
	"net/netip"
	"sync/atomic"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/metrics"
	"github.com/quorate/quorate/cluster/session"
	"github.com/quorate/quorate/fsm"
)

// brokerAdapter presents the sessions to the AMQP server. It converts concrete types to the
// interfaces of package amqp, and counts what is opened and closed.
type brokerAdapter struct {
	*session.Sessions
	counts *churn
}

// churn counts what clients open and close.
type churn struct {
	connectionsOpened, connectionsClosed, channelsOpened, channelsClosed atomic.Uint64
}

// read reads the closed counts first, so that they never exceed the opened ones.
func (t *churn) read() metrics.Traffic {
	var m metrics.Traffic
	m.ConnectionsClosed, m.ChannelsClosed = t.connectionsClosed.Load(), t.channelsClosed.Load()
	m.ConnectionsOpened, m.ChannelsOpened = t.connectionsOpened.Load(), t.channelsOpened.Load()
	return m
}

// with is read plus the counts of the server and its listeners.
func (t *churn) with(server *amqp.Server, l *limits) metrics.Traffic {
	m := t.read()
	m.Timeouts, m.Blocked = metrics.Timeouts(server.Timeouts()), server.Blocked()
	m.Panics, m.Listeners, m.Held = server.Panics(), l.status(), heldMemory(server.HeldMemory())
	return m
}

func (f brokerAdapter) Login(ctx context.Context, user, password string, remote netip.Addr) error {
	return f.Sessions.Login(byAMQP(ctx), user, password, remote)
}

func (f brokerAdapter) LoginKnown(ctx context.Context, user string, remote netip.Addr) error {
	return f.Sessions.LoginKnown(byAMQP(ctx), user, remote)
}

// byAMQP records for the audit log how a client has connected.
func byAMQP(ctx context.Context) context.Context {
	return audit.With(ctx, audit.Origin{Protocol: "amqp"})
}

// auditRefusals audits what clients are refused.
func auditRefusals(l *audit.Log) func(amqp.Refusal) {
	return func(r amqp.Refusal) {
		action := r.Method
		if action == "" {
			action = "revoke"
		}
		l.Write(audit.Event{
			Kind: audit.Access, Action: action, User: r.User,
			Origin: audit.Origin{Protocol: "amqp", Address: r.Peer.String(), Connection: r.Connection},
			Target: map[string]string{"vhost": r.VHost}, Outcome: audit.Refused, Reason: r.Text,
		})
	}
}

func (f brokerAdapter) Connect(ctx context.Context, user, vhost string) (amqp.Connection, error) {
	c, err := f.Sessions.Enter(ctx, user, vhost)
	if err != nil {
		return nil, err
	}
	f.counts.connectionsOpened.Add(1)
	return connectionAdapter{c, f.counts}, nil
}

type connectionAdapter struct {
	*session.Connection
	counts *churn
}

func (c connectionAdapter) Close(ctx context.Context) {
	c.Connection.Close(ctx)
	c.counts.connectionsClosed.Add(1)
}

func (c connectionAdapter) OpenSession(events fsm.SessionEvents) (amqp.Session, error) {
	s, err := c.Connection.OpenSession(events)
	if err != nil {
		return nil, err
	}
	c.counts.channelsOpened.Add(1)
	return sessionAdapter{s, c.counts}, nil
}

type sessionAdapter struct {
	*session.Session
	counts *churn
}

func (s sessionAdapter) Close(ctx context.Context) {
	s.Session.Close(ctx)
	s.counts.channelsClosed.Add(1)
}

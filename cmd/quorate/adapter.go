package main

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/metrics"
	"github.com/quorate/quorate/cluster/session"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
)

// brokerAdapter presents the sessions to the AMQP server. It converts concrete types to the
// interfaces of package amqp, and counts what is opened and closed.
type brokerAdapter struct {
	*session.Sessions
	counts *churn
}

// churn counts what clients open and close, and what they ask for.
type churn struct {
	connections, channels [traffic.Protocols]turnover
	refused               atomic.Uint64 // messages of which no client was told

	mu       sync.Mutex
	requests map[metrics.Request]uint64
}

// counting returns a function that counts answers to requests that come by a protocol.
func (t *churn) counting(protocol string) func(operation string, status int) {
	return func(operation string, status int) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.requests == nil {
			t.requests = map[metrics.Request]uint64{}
		}
		t.requests[metrics.Request{Protocol: protocol, Operation: operation, Status: status}]++
	}
}

// refuse counts a message that was refused without its client being told.
func (t *churn) refuse() { t.refused.Add(1) }

// turnover counts what was opened and closed.
type turnover struct{ opened, closed atomic.Uint64 }

// read reads the closed counts first, so that they never exceed the opened ones.
func (t *churn) read() (m metrics.Traffic) {
	for p := range t.connections {
		m.Connections[p].Closed, m.Channels[p].Closed = t.connections[p].closed.Load(), t.channels[p].closed.Load()
		m.Connections[p].Opened, m.Channels[p].Opened = t.connections[p].opened.Load(), t.channels[p].opened.Load()
	}
	m.Refused = t.refused.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	m.Requests = maps.Clone(t.requests)
	return m
}

// with is read plus the counts of the server and its listeners.
func (t *churn) with(server *amqp.Server, l *limits) metrics.Traffic {
	m := t.read()
	m.Timeouts, m.Blocked = metrics.Timeouts(server.Timeouts()), server.Blocked()
	m.Panics, m.Listeners, m.Held = server.Panics(), l.status(), heldMemory(server.HeldMemory())
	m.IncomingLinks, m.OutgoingLinks = v10.Links(server)
	return m
}

func (f brokerAdapter) Login(ctx context.Context, user, password string, remote netip.Addr) error {
	return f.Sessions.Login(byAMQP(ctx), user, password, remote)
}

func (f brokerAdapter) LoginByKey(ctx context.Context, name string, remote netip.Addr, same func() bool) error {
	return f.Sessions.LoginByKey(byAMQP(ctx), name, remote, same)
}

func (f brokerAdapter) LoginKnown(ctx context.Context, user string, remote netip.Addr) error {
	return f.Sessions.LoginKnown(byAMQP(ctx), user, remote)
}

// byAMQP records for the audit log how a client has connected.
func byAMQP(ctx context.Context) context.Context {
	return audit.With(ctx, audit.Origin{Protocol: auditName(amqp.ProtocolOf(ctx))})
}

// auditName is the name of a client's protocol in the audit log, where 0-9-1 is amqp.
func auditName(protocol string) string {
	if protocol == traffic.AMQP091.String() {
		return "amqp"
	}
	return protocol
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
			Origin: audit.Origin{Protocol: auditName(r.Protocol), Address: r.Peer.String(), Connection: r.Connection},
			Target: map[string]string{"vhost": r.VHost}, Outcome: audit.Refused, Reason: r.Text,
		})
	}
}

func (f brokerAdapter) Connect(ctx context.Context, user, vhost string) (amqp.Connection, error) {
	c, err := f.Sessions.Enter(byAMQP(ctx), user, vhost)
	if err != nil {
		return nil, err
	}
	p := traffic.ProtocolOf(amqp.ProtocolOf(ctx))
	f.counts.connections[p].opened.Add(1)
	return connectionAdapter{c, &f.counts.connections[p], &f.counts.channels[p]}, nil
}

type connectionAdapter struct {
	*session.Connection
	counts, channels *turnover
}

func (c connectionAdapter) Close(ctx context.Context) {
	c.Connection.Close(ctx)
	c.counts.closed.Add(1)
}

func (c connectionAdapter) OpenSession(events fsm.SessionEvents) (amqp.Session, error) {
	s, err := c.Connection.OpenSession(events)
	if err != nil {
		return nil, err
	}
	c.channels.opened.Add(1)
	return sessionAdapter{s, c.channels}, nil
}

type sessionAdapter struct {
	*session.Session
	counts *turnover
}

func (s sessionAdapter) Close(ctx context.Context) {
	s.Session.Close(ctx)
	s.counts.closed.Add(1)
}

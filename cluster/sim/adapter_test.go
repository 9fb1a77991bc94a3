package sim

import (
	"context"
	"net/netip"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/session"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
)

// brokerAdapter presents the sessions to the AMQP server. Passwords are not
// compared: that costs real time, and nothing here depends on it.
type brokerAdapter struct{ *session.Sessions }

func (f brokerAdapter) Login(context.Context, string, string, netip.Addr) error { return nil }

func (f brokerAdapter) LoginByKey(context.Context, string, netip.Addr, func() bool) error { return nil }

func (f brokerAdapter) LoginKnown(context.Context, string, netip.Addr) error { return nil }

func (f brokerAdapter) Connect(ctx context.Context, user, vhost string) (amqp.Connection, error) {
	c, err := f.Sessions.Enter(ctx, user, vhost)
	if err != nil {
		return nil, err
	}
	return connectionAdapter{c}, nil
}

type connectionAdapter struct{ *session.Connection }

func (c connectionAdapter) OpenSession(events fsm.SessionEvents) (amqp.Session, error) {
	s, err := c.Connection.OpenSession(events)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// clients are the client listener of a process and its connections. It
// implements cluster.Clients.
type clients struct {
	p *process
}

func (c clients) Shut(ctx context.Context, reason string) {
	c.p.server.Suspend(ctx, reason)
	c.p.shut()
}

func (c clients) Open() error {
	c.p.server.Resume()
	if c.p.ready.Load() {
		c.p.serve()
	}
	return nil
}

func (c clients) Expel(reason string)    { c.p.server.CloseConnections(reason) }
func (c clients) Renew()                 { c.p.server.Renew() }
func (c clients) SetAlarm(reason string) { c.p.server.SetAlarm(reason) }
func (c clients) Relieve(excess int64)   { c.p.server.Relieve(excess) }
func (c clients) Hold(user string) func(int64) error {
	return c.p.server.Hold(user)
}
func (c clients) HeldMemory() api.HeldMemory    { return api.HeldMemory{} }
func (c clients) Connections() []api.Connection { return nil }
func (c clients) Flows() []traffic.Flow         { return nil }
func (c clients) Channels() []api.Channel       { return nil }
func (c clients) Sessions(string) []api.Session { return nil }

func (c clients) CloseConnection(_, _ string) bool { return false }

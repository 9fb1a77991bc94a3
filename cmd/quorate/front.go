package main

import (
	"context"
	"net/netip"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/fsm"
)

// frontBroker gives the AMQP front its view of the broker. It only turns
// concrete types into the front's interfaces.
type frontBroker struct{ b *broker.Broker }

func (f frontBroker) Login(ctx context.Context, user, password string, remote netip.Addr) error {
	return f.b.Login(ctx, user, password, remote)
}

func (f frontBroker) ClusterName() string { return f.b.ClusterName() }

func (f frontBroker) Connect(ctx context.Context, user, vhost string) (amqp.Connection, error) {
	c, err := f.b.Connect(ctx, user, vhost)
	if err != nil {
		return nil, err
	}
	return frontConnection{c}, nil
}

type frontConnection struct{ *broker.Connection }

func (c frontConnection) OpenSession(events fsm.SessionEvents) (amqp.Session, error) {
	s, err := c.Connection.OpenSession(events)
	if err != nil {
		return nil, err
	}
	return s, nil
}

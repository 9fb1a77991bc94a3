package v091_test

import (
	"context"
	"testing"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// faulty is a broker that panics where a client asks for it.
type faulty struct{ amqp.Broker }

func (f faulty) Connect(ctx context.Context, user, vhost string) (amqp.Connection, error) {
	c, err := f.Broker.Connect(ctx, user, vhost)
	return faultyConnection{c}, err
}

type faultyConnection struct{ amqp.Connection }

func (c faultyConnection) OpenSession(events fsm.SessionEvents) (amqp.Session, error) {
	s, err := c.Connection.OpenSession(events)
	return faultySession{s}, err
}

type faultySession struct{ amqp.Session }

func (s faultySession) Publish(p *fsm.Publish) (bool, error) {
	if p.RoutingKey == "poison" {
		panic("poison")
	}
	return s.Session.Publish(p)
}

func (s faultySession) PurgeQueue(context.Context, string) (uint64, error) { panic("poison") }

// A panic in work for a connection ends that connection, wherever it happens,
// and leaves nothing behind. The other clients notice nothing.
func TestPanicEndsConnection(t *testing.T) {
	s := mustServe(t, func(c *amqp.Config) { c.Broker = faulty{c.Broker} })
	good := s.mustLogin()
	for i, bad := range []wire.Method{
		&wire.BasicPublish{RoutingKey: "poison"},
		&wire.QueuePurge{Queue: "q"},
	} {
		c := s.mustLogin()
		c.Send(1, &wire.ChannelOpen{})
		if p, is := bad.(*wire.BasicPublish); is {
			c.Publish(1, p, []byte{0, 0}, []byte("m"), 4096)
		} else {
			c.Send(1, bad)
		}
		c.Rest()
		if n := s.Panics(); n != uint64(i+1) {
			t.Errorf("%d panics are counted, want %d", n, i+1)
		}
	}
	good.Send(1, &wire.ChannelOpen{})
	if f, err := good.Receive(); err != nil || wire.PeekID(f.Payload) != wire.IDChannelOpenOK {
		t.Errorf("the other client is answered %v, %v", f, err)
	}
}

package v091_test

import (
	"context"
	"sync"
	"testing"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/fsm"
)

// metered is a broker that tells what its channels say they have written.
type metered struct {
	*amqptest.Broker
	mu      sync.Mutex
	events  fsm.SessionEvents
	written chan report
}

// report is one call of Session.Written.
type report struct{ count, bytes int }

type meteredConnection struct {
	amqp.Connection
	*metered
}

type meteredSession struct {
	amqp.Session
	*metered
}

func (m *metered) Connect(ctx context.Context, user, vhost string) (amqp.Connection, error) {
	c, err := m.Broker.Connect(ctx, user, vhost)
	return &meteredConnection{c, m}, err
}

func (c *meteredConnection) OpenSession(events fsm.SessionEvents) (amqp.Session, error) {
	s, err := c.Connection.OpenSession(events)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = events
	return &meteredSession{s, c.metered}, err
}

func (s *meteredSession) Written(count, bytes int) { s.written <- report{count, bytes} }

// mustReport waits until so much is reported in all.
func (m *metered) mustReport(t *testing.T, what string, want report) {
	t.Helper()
	var got report
	for got.count < want.count {
		r := receive(t, m.written)
		got.count, got.bytes = got.count+r.count, got.bytes+r.bytes
	}
	if got != want {
		t.Errorf("%s: reported %+v, want %+v", what, got, want)
	}
}

// Each delivery is reported once: when it is with the socket, or when there is
// nobody to write it to.
func TestWritten(t *testing.T) {
	m := &metered{Broker: amqptest.NewBroker(), written: make(chan report, 100)}
	s := mustServe(t, func(c *amqp.Config) { c.Broker = m })
	ch := mustChannel(t, s.mustOpen())
	mustDeclare(t, ch, "q")
	for _, noAck := range []bool{false, true} {
		from, err := ch.Consume("q", "", noAck, false, false, false, nil)
		must(t, err)
		go func() {
			for range from {
			}
		}()
	}
	m.mu.Lock()
	events := m.events
	m.mu.Unlock()
	long := fsm.Message{Consumer: 1, ID: 3, Payload: append(fsm.AppendPayloadHead(nil, "", "q", nil), make([]byte, 1<<20)...)}
	short := len(aMessage(1, 1).Payload)
	events.Deliver([]fsm.Message{aMessage(1, 1), aMessage(2, 1), aMessage(1, 2), aMessage(2, 2)})
	m.mustReport(t, "two consumers", report{4, 4 * short})
	events.Deliver([]fsm.Message{long})
	m.mustReport(t, "a long one", report{1, len(long.Payload)})
	events.Deliver([]fsm.Message{aMessage(9, 1), aMessage(9, 2), aMessage(9, 3)})
	m.mustReport(t, "for nobody", report{3, 3 * short})
}

package v091_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// early is a broker whose consumers get a message, and lose their queue, while
// basic.consume is still under way. It keeps what is settled.
type early struct {
	*amqptest.Broker
	quiet   bool // consumers get nothing
	mu      sync.Mutex
	events  fsm.SessionEvents
	settled chan string
}

type earlyConnection struct {
	amqp.Connection
	*early
}

type earlySession struct {
	amqp.Session
	*early
}

func (e *early) Connect(ctx context.Context, user, vhost string) (amqp.Connection, error) {
	c, err := e.Broker.Connect(ctx, user, vhost)
	return &earlyConnection{c, e}, err
}

func (c *earlyConnection) OpenSession(events fsm.SessionEvents) (amqp.Session, error) {
	s, err := c.Connection.OpenSession(events)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = events
	return &earlySession{s, c.early}, err
}

func (s *earlySession) Consume(_ context.Context, spec fsm.ConsumeSpec) error {
	if !s.quiet {
		s.events.Deliver([]fsm.Message{aMessage(spec.Number, 1), aMessage(spec.Number, 2)})
		s.events.Cancelled(spec.Number)
	}
	return nil
}

func (s *earlySession) Settle(consumer uint64, ids []uint64, outcome fsm.Outcome) {
	s.settled <- fmt.Sprint(consumer, ids, outcome)
}

func aMessage(consumer, id uint64) fsm.Message {
	return fsm.Message{Consumer: consumer, ID: id, Payload: fsm.AppendPayloadHead(nil, "", "q", []byte{0, 0})}
}

// TestEarlyEvents checks that nothing of a consumer is seen before its
// consume-ok, and that messages for nobody go back.
func TestEarlyEvents(t *testing.T) {
	broker := &early{settled: make(chan string, 10)}
	s := mustServe(t, func(c *amqp.Config) {
		broker.Broker = c.Broker.(*amqptest.Broker)
		c.Broker = broker
	})
	c := s.mustLogin("consumer_cancel_notify")
	c.Send(1, &wire.ChannelOpen{})
	c.Send(1, &wire.BasicConsume{Queue: "q", ConsumerTag: "c"})
	amqptest.Expect[*wire.ChannelOpenOK](c)
	amqptest.Expect[*wire.BasicConsumeOK](c)
	for tag := uint64(1); tag <= 2; tag++ {
		if d := amqptest.Expect[*wire.BasicDeliver](c); d.DeliveryTag != tag || d.ConsumerTag != "c" {
			t.Errorf("%+v", d)
		}
		if f, err := c.Receive(); err != nil || f.Type != wire.FrameHeader {
			t.Fatal(f, err)
		}
	}
	if m := amqptest.Expect[*wire.BasicCancel](c); m.ConsumerTag != "c" || !m.NoWait {
		t.Errorf("%+v", m)
	}
	broker.events.Deliver([]fsm.Message{aMessage(9, 3), aMessage(1, 3)})
	for _, want := range []string{"9 [3] REQUEUE", "1 [3] REQUEUE"} {
		if got := receive(t, broker.settled); got != want {
			t.Errorf("settled %s, want %s", got, want)
		}
	}
	// What it held before can be settled as ever.
	c.Send(1, &wire.BasicAck{DeliveryTag: 2, Multiple: true})
	if got := receive(t, broker.settled); got != "1 [1 2] ACK" {
		t.Errorf("settled %s", got)
	}
	// Timeouts of what is settled, and of what nobody knows, mean nothing.
	broker.events.TimedOut(1, []uint64{1, 2}, 1000, false)
	broker.events.TimedOut(77, []uint64{1}, 1000, false)
	c.Send(1, &wire.ChannelFlow{Active: true})
	amqptest.Expect[*wire.ChannelFlowOK](c)
}

// TestRevoked checks that a consumer that may not read its queue any more gets
// nothing, and that the client is told so, one way or the other.
func TestRevoked(t *testing.T) {
	for _, capability := range []string{"consumer_cancel_notify", "none"} {
		t.Run(capability, func(t *testing.T) { revoke(t, capability) })
	}
}

func revoke(t *testing.T, capability string) {
	broker := &early{quiet: true, settled: make(chan string, 10)}
	refused := make(chan amqp.Refusal, 10)
	s := mustServe(t, func(c *amqp.Config) {
		c.Refused = func(r amqp.Refusal) { refused <- r }
		broker.Broker = c.Broker.(*amqptest.Broker)
		c.Broker = broker
	})
	c := s.mustLogin(capability)
	c.Send(1, &wire.ChannelOpen{})
	c.Send(1, &wire.BasicConsume{Queue: "q", ConsumerTag: "c"})
	amqptest.Expect[*wire.ChannelOpenOK](c)
	amqptest.Expect[*wire.BasicConsumeOK](c)
	why := fsm.Refuse(fsm.AccessRefused, "read access refused")
	broker.events.Revoked(1, why)
	broker.events.Revoked(1, why)
	broker.events.Deliver([]fsm.Message{aMessage(1, 3)})
	if r := receive(t, refused); r.User != "guest" || r.VHost != "/" || r.Method != "basic.consume" || r.Text != "ACCESS_REFUSED - read access refused" || !r.Peer.IsValid() {
		t.Errorf("%+v", r)
	}
	if capability == "none" {
		if m := amqptest.Expect[*wire.ChannelClose](c); m.ReplyCode != 403 || m.ReplyText != "ACCESS_REFUSED - read access refused" {
			t.Errorf("%+v", m)
		}
		return
	}
	if m := amqptest.Expect[*wire.BasicCancel](c); m.ConsumerTag != "c" || !m.NoWait {
		t.Errorf("%+v", m)
	}
	if got := receive(t, broker.settled); got != "1 [3] REQUEUE" {
		t.Errorf("settled %s", got)
	}
	c.Send(1, &wire.ChannelFlow{Active: true})
	amqptest.Expect[*wire.ChannelFlowOK](c)
}

// TestRenewAll: a client whose connection could not be opened any more is sent
// away with what the broker says, one who may stay stays.
func TestRenewAll(t *testing.T) {
	for kind, want := range map[fsm.Kind]uint16{0: 0, fsm.NotAllowed: 530, fsm.Forced: 320} {
		t.Run(fmt.Sprint(want), func(t *testing.T) {
			refused := make(chan amqp.Refusal, 10)
			s := mustServe(t, func(c *amqp.Config) { c.Refused = func(r amqp.Refusal) { refused <- r } })
			c := s.mustLogin("none")
			c.Send(1, &wire.ChannelOpen{})
			amqptest.Expect[*wire.ChannelOpenOK](c)
			if want == 0 {
				s.Renew()
				c.Send(1, &wire.ChannelFlow{Active: true})
				amqptest.Expect[*wire.ChannelFlowOK](c)
				return
			}
			s.broker.Fail("Renew", fsm.Refuse(kind, "no more"))
			s.Renew()
			if m := amqptest.Expect[*wire.ConnectionClose](c); m.ReplyCode != want || m.FailedMethod != 0 {
				t.Errorf("%+v, want %d", m, want)
			}
			if r := receive(t, refused); r.User != "guest" || r.Method != "" {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestChurn opens, uses, breaks and closes channels from many goroutines while
// the broker times deliveries out. It looks for deadlocks and races.
func TestChurn(t *testing.T) {
	s := mustServe(t, nil)
	conns := []*amqp091.Connection{s.mustOpen(), s.mustOpen(), s.mustOpen()}
	mustDeclare(t, mustChannel(t, conns[0]), "shared")
	var work sync.WaitGroup
	for worker := range 12 {
		work.Go(func() {
			r := rand.New(rand.NewPCG(uint64(worker), 0))
			for range 60 {
				if err := churn(s, conns[worker%len(conns)], r); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	for _, c := range conns {
		must(t, c.Close())
	}
	s.broker.AwaitSessions(0)
}

// churn uses one channel for a while. Errors of the channel are expected,
// those of the connection are not.
func churn(s *server, conn *amqp091.Connection, r *rand.Rand) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if r.IntN(2) == 0 {
		_ = ch.Confirm(false)
	}
	_ = ch.Qos(r.IntN(5), 0, false)
	deliveries, err := ch.Consume("shared", "", r.IntN(2) == 0, false, false, false, nil)
	if err != nil {
		return err
	}
	for range r.IntN(20) {
		_ = ch.Publish("", "shared", true, false, amqp091.Publishing{Body: make([]byte, r.IntN(10_000))})
	}
	for range r.IntN(5) {
		select {
		case d, ok := <-deliveries:
			if ok && r.IntN(2) == 0 {
				_ = d.Nack(true, r.IntN(2) == 0)
			}
		default:
		}
	}
	switch r.IntN(4) {
	case 0:
		_, _ = ch.QueueDeclarePassive("missing", false, false, false, false, nil)
	case 1:
		s.broker.TimeOut("shared", 10)
	case 2:
		_ = ch.Ack(1<<40, false)
	}
	go func() {
		for range deliveries {
		}
	}()
	_ = ch.Close() // it may be closed already
	return nil
}

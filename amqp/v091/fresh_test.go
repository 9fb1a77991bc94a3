package v091_test

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v091/wire"
)

// waiting brings a client to where its publishes wait for routes: channel 1, in
// confirm mode, has published three messages.
func waiting(t *testing.T, b *amqptest.Broker, c *amqptest.Client) {
	t.Helper()
	c.Login(amqptest.Tune())
	for ch := range uint16(2) {
		c.Send(ch+1, &wire.ChannelOpen{})
		amqptest.Expect[*wire.ChannelOpenOK](c)
	}
	c.Send(1, &wire.QueueDeclare{Queue: "q"})
	amqptest.Expect[*wire.QueueDeclareOK](c)
	c.Send(1, &wire.ConfirmSelect{})
	amqptest.Expect[*wire.ConfirmSelectOK](c)
	b.Block("Refresh")
	for range 3 {
		c.Publish(1, &wire.BasicPublish{RoutingKey: "q"}, nil, []byte("x"), 4096)
	}
	b.AwaitBlocked("Refresh")
	synctest.Wait()
	if n := b.Published(); n != 0 {
		t.Errorf("%d messages are published by routes that may be out of date", n)
	}
}

// TestPublishesWait lets the broker not know whether its routes are up to date:
// for much longer than any method may take.
func TestPublishesWait(t *testing.T) {
	inTime(t, func(t *testing.T, b *amqptest.Broker, c *amqptest.Client, _ net.Conn) {
		waiting(t, b, c)
		for range 60 {
			c.Send(2, &wire.QueueDeclare{Queue: "q"})
			amqptest.Expect[*wire.QueueDeclareOK](c)
			<-time.After(time.Second)
		}
		if n := b.Published(); n != 0 {
			t.Errorf("%d messages are published", n)
		}
		b.Unblock("Refresh")
		for confirmed, last := 0, uint64(0); confirmed < 3; { // none keeps its tag for itself
			ack := amqptest.Expect[*wire.BasicAck](c)
			if ack.DeliveryTag > 3 || ack.DeliveryTag <= last {
				t.Fatalf("publish %d is confirmed after %d", ack.DeliveryTag, last)
			}
			if confirmed++; ack.Multiple {
				confirmed = int(ack.DeliveryTag)
			}
			last = ack.DeliveryTag
		}
		if n := b.Published(); n != 3 {
			t.Errorf("%d messages are published", n)
		}
	})
}

// TestChannelOfWaitingPublishesCloses: who wants to go can, after a while.
func TestChannelOfWaitingPublishesCloses(t *testing.T) {
	inTime(t, func(t *testing.T, b *amqptest.Broker, c *amqptest.Client, _ net.Conn) {
		waiting(t, b, c)
		start := time.Now()
		c.Send(1, &wire.ChannelClose{})
		if f, err := c.ReceiveWithin(time.Minute); err != nil || amqptest.FormatFrame(f) != "1 channel.close-ok" {
			t.Errorf("%v, %v", amqptest.FormatFrame(f), err)
		}
		if d := time.Since(start); d < 14*time.Second || d > 17*time.Second {
			t.Errorf("closed after %v", d)
		}
		if n := b.Published(); n != 0 {
			t.Errorf("%d messages are published", n)
		}
	})
}

// TestConnectionOfWaitingPublishesCloses: the same, of a connection; and one that
// breaks does not wait.
func TestConnectionOfWaitingPublishesCloses(t *testing.T) {
	inTime(t, func(t *testing.T, b *amqptest.Broker, c *amqptest.Client, _ net.Conn) {
		waiting(t, b, c)
		start := time.Now()
		c.Send(0, &wire.ConnectionClose{})
		if f, err := c.ReceiveWithin(time.Minute); err != nil || amqptest.FormatFrame(f) != "0 connection.close-ok" {
			t.Errorf("%v, %v", amqptest.FormatFrame(f), err)
		}
		b.AwaitSessions(0)
		if d := time.Since(start); d > 17*time.Second {
			t.Errorf("closed after %v", d)
		}
	})
	inTime(t, func(t *testing.T, b *amqptest.Broker, c *amqptest.Client, conn net.Conn) {
		waiting(t, b, c)
		start := time.Now()
		conn.Close()
		b.AwaitSessions(0)
		if d := time.Since(start); d > time.Second {
			t.Errorf("given up after %v", d)
		}
	})
}

// TestCommitWaits: a transaction is one decision, and waits for routes as one.
func TestCommitWaits(t *testing.T) {
	inTime(t, func(t *testing.T, b *amqptest.Broker, c *amqptest.Client, _ net.Conn) {
		c.Login(amqptest.Tune())
		c.Send(1, &wire.ChannelOpen{})
		amqptest.Expect[*wire.ChannelOpenOK](c)
		c.Send(1, &wire.QueueDeclare{Queue: "q"})
		amqptest.Expect[*wire.QueueDeclareOK](c)
		c.Send(1, &wire.TxSelect{})
		amqptest.Expect[*wire.TxSelectOK](c)
		for range 2 {
			c.Publish(1, &wire.BasicPublish{RoutingKey: "q"}, nil, []byte("x"), 4096)
		}
		b.Block("Refresh")
		c.Publish(1, &wire.BasicPublish{RoutingKey: "q"}, nil, []byte("x"), 4096)
		c.Send(1, &wire.TxCommit{})
		b.AwaitBlocked("Refresh")
		<-time.After(time.Minute)
		if n := b.Published(); n != 0 {
			t.Errorf("%d messages are published", n)
		}
		b.Unblock("Refresh")
		amqptest.Expect[*wire.TxCommitOK](c)
		if n := b.Published(); n != 3 {
			t.Errorf("%d messages are published", n)
		}
	})
}

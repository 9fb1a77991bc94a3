package v091_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// Tests of everything that takes time. They run in virtual time, over a pipe
// in memory.

// inTime runs f with a client on a pipe, in virtual time.
func inTime(t *testing.T, f func(t *testing.T, b *amqptest.Broker, c *amqptest.Client, conn net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		b := amqptest.NewBroker()
		s, err := amqp.New(amqp.Config{Protocols: protocols, Broker: b})
		must(t, err)
		near, far := net.Pipe()
		served := make(chan bool)
		go func() {
			s.ServeConn(far)
			close(served)
		}()
		f(t, b, amqptest.NewClient(t, near), near)
		near.Close()
		<-served
		must(t, s.Shutdown(context.Background()))
	})
}

// expectEnd reads until the connection ends and checks how long that takes.
func expectEnd(t *testing.T, c *amqptest.Client, low, high time.Duration, frames ...string) {
	t.Helper()
	start := time.Now()
	var got []string
	for {
		f, err := c.ReceiveWithin(time.Hour)
		if err != nil {
			break
		}
		if f.Type != wire.FrameHeartbeat {
			got = append(got, amqptest.FormatFrame(f))
		}
	}
	if d := time.Since(start); d < low || d > high {
		t.Errorf("ended after %v, want %v to %v", d, low, high)
	}
	if len(got) != len(frames) {
		t.Fatalf("received %q", got)
	}
	for i := range got {
		if got[i] != frames[i] {
			t.Errorf("got  %s\nwant %s", got[i], frames[i])
		}
	}
}

func TestHandshakeTimeout(t *testing.T) {
	inTime(t, func(t *testing.T, _ *amqptest.Broker, c *amqptest.Client, _ net.Conn) {
		expectEnd(t, c, 10*time.Second, 10*time.Second)
	})
	inTime(t, func(t *testing.T, _ *amqptest.Broker, c *amqptest.Client, _ net.Conn) {
		time.Sleep(3 * time.Second)
		c.Write([]byte(protocolHeader))
		amqptest.Expect[*wire.ConnectionStart](c)
		expectEnd(t, c, 7*time.Second, 7*time.Second)
	})
}

func TestLoginDelay(t *testing.T) {
	login := func(c *amqptest.Client, can ...string) {
		c.Write([]byte(protocolHeader))
		amqptest.Expect[*wire.ConnectionStart](c)
		c.Send(0, amqptest.StartOK("PLAIN", "\x00guest\x00wrong", can...))
	}
	inTime(t, func(t *testing.T, _ *amqptest.Broker, c *amqptest.Client, _ net.Conn) {
		login(c)
		expectEnd(t, c, 3*time.Second, 3*time.Second)
	})
	inTime(t, func(t *testing.T, _ *amqptest.Broker, c *amqptest.Client, _ net.Conn) {
		login(c, "authentication_failure_close")
		start := time.Now()
		amqptest.Expect[*wire.ConnectionClose](c)
		if time.Since(start) != 0 {
			t.Error("the refusal came late")
		}
		expectEnd(t, c, 3*time.Second, 3*time.Second)
	})
}

func TestHeartbeats(t *testing.T) {
	// The server sends one every half interval; the first may take a whole one
	// because connection.open-ok counts.
	inTime(t, func(t *testing.T, _ *amqptest.Broker, c *amqptest.Client, conn net.Conn) {
		c.Login(wire.ConnectionTuneOK{ChannelMax: 1, FrameMax: 4096, Heartbeat: 4})
		for n := range 10 {
			start := time.Now()
			f, err := c.Receive()
			must(t, err)
			if d := time.Since(start); f.Type != wire.FrameHeartbeat || d > 4*time.Second || (n > 0 && d > 2*time.Second) {
				t.Fatalf("%s after %v", amqptest.FormatFrame(f), d)
			}
			c.Write(wire.AppendHeartbeat(nil))
		}
	})
	// A client that sends nothing is dropped, without a word.
	inTime(t, func(t *testing.T, _ *amqptest.Broker, c *amqptest.Client, _ net.Conn) {
		c.Login(wire.ConnectionTuneOK{ChannelMax: 1, FrameMax: 4096, Heartbeat: 1})
		expectEnd(t, c, 2*time.Second, 3500*time.Millisecond)
	})
	// Without heartbeats such a client stays.
	inTime(t, func(t *testing.T, _ *amqptest.Broker, c *amqptest.Client, _ net.Conn) {
		c.Login(amqptest.Tune())
		time.Sleep(24 * time.Hour)
		c.Send(1, &wire.ChannelOpen{})
		amqptest.Expect[*wire.ChannelOpenOK](c)
	})
}

// TestSlowFrame sends a frame octet by octet.
func TestSlowFrame(t *testing.T) {
	inTime(t, func(t *testing.T, _ *amqptest.Broker, c *amqptest.Client, conn net.Conn) {
		c.Login(wire.ConnectionTuneOK{ChannelMax: 1, FrameMax: 4096, Heartbeat: 60})
		start := time.Now()
		var sending sync.WaitGroup
		sending.Go(func() {
			head := []byte{wire.FrameMethod, 0, 1, 0, 0, 8, 0}
			for _, octet := range append(head, make([]byte, 2048)...) {
				if _, err := conn.Write([]byte{octet}); err != nil {
					return
				}
				time.Sleep(2 * time.Second)
			}
		})
		for {
			if _, err := c.ReceiveWithin(time.Hour); err != nil {
				break
			}
		}
		if d := time.Since(start); d < 29*time.Second || d > 31*time.Second {
			t.Errorf("dropped after %v", d)
		}
		sending.Wait()
	})
}

// TestNoEventsAfterClose lets the server wait for a close-ok that never comes.
func TestNoEventsAfterClose(t *testing.T) {
	inTime(t, func(t *testing.T, _ *amqptest.Broker, c *amqptest.Client, _ net.Conn) {
		c.Login(amqptest.Tune())
		c.Send(0, &wire.QueueDeclare{})
		expectEnd(t, c, 30*time.Second, 31*time.Second,
			`0 connection.close reply-code=504 reply-text="CHANNEL_ERROR - unexpected method in connection state running" failed-class=50 failed-method=10`)
	})
}

// TestHeldClient holds a publisher for longer than its heartbeat: that the
// server does not read is no fault of the client.
func TestHeldClient(t *testing.T) {
	inTime(t, func(t *testing.T, b *amqptest.Broker, c *amqptest.Client, conn net.Conn) {
		c.Login(wire.ConnectionTuneOK{ChannelMax: 1, FrameMax: 131072, Heartbeat: 2})
		c.Send(1, &wire.ChannelOpen{})
		c.Send(1, &wire.QueueDeclare{Queue: "q"})
		b.HoldConfirms()
		go func() {
			for range 5000 {
				c.Publish(1, &wire.BasicPublish{RoutingKey: "q"}, nil, []byte("x"), 4096)
			}
			c.Send(1, &wire.QueuePurge{Queue: "q"})
		}()
		go func() {
			time.Sleep(8 * time.Second)
			b.ReleaseConfirms(false)
		}()
		for {
			f, err := c.ReceiveWithin(time.Minute)
			must(t, err)
			if f.Type == wire.FrameMethod && wire.PeekID(f.Payload) == wire.IDQueuePurgeOK {
				break
			}
		}
	})
}

// TestClientThatDoesNotRead has deliveries for a client that never reads them:
// it is dropped, and the deliveries go back.
func TestClientThatDoesNotRead(t *testing.T) {
	inTime(t, func(t *testing.T, b *amqptest.Broker, c *amqptest.Client, conn net.Conn) {
		c.Login(amqptest.Tune())
		c.Send(1, &wire.ChannelOpen{})
		c.Send(1, &wire.QueueDeclare{Queue: "q"})
		amqptest.Expect[*wire.ChannelOpenOK](c)
		amqptest.Expect[*wire.QueueDeclareOK](c)
		c.Send(1, &wire.BasicConsume{Queue: "q", NoAck: true})
		start := time.Now()
		for range 100 {
			m := fsm.Message{Payload: fsm.AppendPayloadHead(nil, "", "q", []byte{0, 0})}
			b.Inject("q", m)
		}
		b.AwaitSessions(0)
		if d := time.Since(start); d < 29*time.Second || d > 31*time.Second {
			t.Errorf("dropped after %v", d)
		}
		if got := b.String(); got != "queue q ready=100 held=0 consumers=0" {
			t.Error(got)
		}
	})
}

// TestOperationTimeout lets the broker not answer.
func TestOperationTimeout(t *testing.T) {
	inTime(t, func(t *testing.T, b *amqptest.Broker, c *amqptest.Client, _ net.Conn) {
		c.Login(amqptest.Tune())
		c.Send(1, &wire.ChannelOpen{})
		amqptest.Expect[*wire.ChannelOpenOK](c)
		b.Block("PurgeQueue")
		start := time.Now()
		c.Send(1, &wire.QueuePurge{Queue: "q"})
		f, err := c.ReceiveWithin(time.Minute)
		must(t, err)
		want := `1 channel.close reply-code=406 reply-text="PRECONDITION_FAILED - operation timed out" failed-class=50 failed-method=30`
		if got := amqptest.FormatFrame(f); got != want || time.Since(start) != 15*time.Second {
			t.Errorf("%s after %v", got, time.Since(start))
		}
	})
}

// TestQueuedRequests sends more to a channel that waits than it will hold, and
// checks that all of it is done, in order.
func TestQueuedRequests(t *testing.T) {
	inTime(t, func(t *testing.T, b *amqptest.Broker, c *amqptest.Client, _ net.Conn) {
		c.Login(amqptest.Tune())
		c.Send(1, &wire.ChannelOpen{})
		amqptest.Expect[*wire.ChannelOpenOK](c)
		b.Block("DeclareQueue")
		go func() {
			c.Send(1, &wire.QueueDeclare{Queue: "q"})
			for range 3000 {
				c.Publish(1, &wire.BasicPublish{RoutingKey: "q"}, nil, []byte("x"), 4096)
			}
			c.Send(1, &wire.QueuePurge{Queue: "q"})
		}()
		b.AwaitBlocked("DeclareQueue")
		synctest.Wait()
		if n := b.Published(); n != 0 {
			t.Errorf("%d publishes overtook a declare", n)
		}
		b.Unblock("DeclareQueue")
		amqptest.Expect[*wire.QueueDeclareOK](c)
		if ok := amqptest.Expect[*wire.QueuePurgeOK](c); ok.MessageCount != 3000 {
			t.Errorf("%d messages", ok.MessageCount)
		}
	})
}

// TestShutdownByForce lets clients not answer the server's close.
func TestShutdownByForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := amqp.New(amqp.Config{Protocols: protocols, Broker: amqptest.NewBroker()})
		must(t, err)
		near, far := net.Pipe()
		go s.ServeConn(far)
		c := amqptest.NewClient(t, near)
		c.Login(amqptest.Tune())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := s.Shutdown(ctx); err != context.DeadlineExceeded {
			t.Errorf("shutdown: %v", err)
		}
		if d := time.Since(start); d != time.Second {
			t.Errorf("shutdown took %v", d)
		}
	})
}

package sim

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/go-amqp"
	rabbit "github.com/rabbitmq/amqp091-go"
)

// inWorld runs a test of clients in a world of three nodes that serve them, within ten virtual minutes.
func inWorld(t *testing.T, test func(ctx context.Context, t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(&script{Seed: 1, Nodes: 3})
		defer w.close()
		for _, name := range w.names {
			go w.start(name)
		}
		if !w.awaitReady() {
			t.Fatal("not all nodes serve clients")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		test(ctx, t, w)
	})
}

// dial10 connects a client of AMQP 1.0 to a node.
func (w *world) dial10(ctx context.Context, t *testing.T, name, node string) *amqp.Session {
	t.Helper()
	socket, err := w.dialer(name)(ctx, "tcp", node+":5672")
	if err != nil {
		t.Fatal(err)
	}
	c, err := amqp.NewConn(ctx, socket, &amqp.ConnOptions{SASLType: amqp.SASLTypePlain("guest", "guest"), ContainerID: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s, err := c.NewSession(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A client of AMQP 1.0 publishes at one node, another one receives at another, and the leader of their queue is killed:
// what was accepted comes, in order, byte for byte.
func TestProtocol10(t *testing.T) {
	inWorld(t, func(ctx context.Context, t *testing.T, w *world) {
		conn, ch, err := w.connect(ctx, w.dialer("declarer"), w.names...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDeclare("q", true, false, false, false, rabbit.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		leader := w.leader("q")
		var others []string
		for _, name := range w.names {
			if name != leader {
				others = append(others, name)
			}
		}
		sender, err := w.dial10(ctx, t, "sender", others[0]).NewSender(ctx, "/queues/q", nil)
		if err != nil {
			t.Fatal(err)
		}
		receiver, err := w.dial10(ctx, t, "receiver", others[1]).NewReceiver(ctx, "/queues/q", &amqp.ReceiverOptions{Credit: 10})
		if err != nil {
			t.Fatal(err)
		}
		const count = 300
		accepted := make(chan struct{})
		go func() {
			defer close(accepted)
			for i := range count {
				if i == count/2 {
					w.crash(leader, false, 100)
				}
				if err := sender.Send(ctx, &amqp.Message{
					Header: &amqp.MessageHeader{Durable: true}, Properties: &amqp.MessageProperties{MessageID: uint64(i)},
					Data: [][]byte{fmt.Appendf(nil, "%d", i), bytes.Repeat([]byte("x"), i)},
				}, nil); err != nil {
					t.Errorf("message %d: %v", i, err)
					return
				}
			}
		}()
		for i := range count {
			m, err := receiver.Receive(ctx, nil)
			if err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
			if len(m.Data) != 2 || string(m.Data[0]) != fmt.Sprint(i) || len(m.Data[1]) != i || m.Properties.MessageID != uint64(i) || !m.Header.Durable {
				t.Fatalf("message %d is %+v", i, m)
			}
			if err := receiver.AcceptMessage(ctx, m); err != nil {
				t.Fatal(err)
			}
		}
		<-accepted
	})
}

// mustQueue declares a queue whose leader is none of the nodes it returns.
func (w *world) mustQueue(ctx context.Context, t *testing.T, name string, args rabbit.Table) (leader string, others []string) {
	t.Helper()
	conn, ch, err := w.connect(ctx, w.dialer("declarer"), w.names...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	args["x-queue-type"] = "quorum"
	if _, err := ch.QueueDeclare(name, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
	leader = w.leader(name)
	for _, name := range w.names {
		if name != leader {
			others = append(others, name)
		}
	}
	return leader, others
}

// A receiver in mode second learns what its outcomes have done, also of those that are on their way when the leader of the
// queue is killed: what it was answered as accepted never comes again. What it has held for too long is released by the
// next leader.
func TestAnswersAcrossLeaders(t *testing.T) {
	inWorld(t, func(ctx context.Context, t *testing.T, w *world) {
		leader, others := w.mustQueue(ctx, t, "q", rabbit.Table{"x-consumer-timeout": 60_000})
		sender, err := w.dial10(ctx, t, "sender", others[0]).NewSender(ctx, "/queues/q", nil)
		if err != nil {
			t.Fatal(err)
		}
		const count = 40
		for i := range count {
			if err := sender.Send(ctx, &amqp.Message{Properties: &amqp.MessageProperties{MessageID: uint64(i)}, Data: [][]byte{{1}}}, nil); err != nil {
				t.Fatal(err)
			}
		}
		mode := amqp.ReceiverSettleModeSecond
		receiver, err := w.dial10(ctx, t, "receiver", others[1]).NewReceiver(ctx, "/queues/q", &amqp.ReceiverOptions{Credit: count, SettlementMode: &mode})
		if err != nil {
			t.Fatal(err)
		}
		var held []*amqp.Message
		for range count {
			m, err := receiver.Receive(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, m)
		}
		for i, m := range held[:count-1] {
			if i == count/2 {
				w.crash(leader, false, 100)
			}
			if err := receiver.AcceptMessage(ctx, m); err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
		}
		other, err := w.dial10(ctx, t, "other", others[0]).NewReceiver(ctx, "/queues/q", &amqp.ReceiverOptions{Credit: count})
		if err != nil {
			t.Fatal(err)
		}
		m, err := other.Receive(ctx, nil) // the one that was held for too long
		if err != nil || m.Properties.MessageID != uint64(count-1) || m.Header.DeliveryCount != 0 {
			t.Fatalf("%+v, %v", m, err)
		}
		// Too late: it ends nothing. This client does not see the answer, since it forgets a delivery that is released.
		late, stop := context.WithTimeout(ctx, 2*time.Second)
		defer stop()
		_ = receiver.AcceptMessage(late, held[count-1])
		if err := other.AcceptMessage(ctx, m); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if m, err := other.Receive(short, nil); err == nil {
			t.Errorf("message %v comes again", m.Properties.MessageID)
		}
	})
}

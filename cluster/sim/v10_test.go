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
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1, 3)
		defer w.close()
		for _, name := range w.names {
			go w.start(name)
		}
		if !w.awaitReady() {
			t.Fatal("not all nodes serve clients")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
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

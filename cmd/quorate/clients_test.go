package main

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v091"
	"github.com/quorate/quorate/cluster/limit"
)

// A node that is drained and revived while it joins its cluster lets clients in once it serves, and not before.
func TestRevivedBeforeItServes(t *testing.T) {
	server, err := amqp.New(amqp.Config{Broker: amqptest.NewBroker(), Protocols: []amqp.Protocol{v091.Protocol{}}})
	if err != nil {
		t.Fatal(err)
	}
	sockets := []socket{{network: "tcp", address: "127.0.0.1:0", limiter: limit.New(limit.Config{Max: 10})}}
	if err := sockets[0].listen(); err != nil {
		t.Fatal(err)
	}
	d := newClientListeners(server, sockets, make(chan error, 1))
	d.Shut(t.Context(), "maintenance")
	if err := d.Open(); err != nil {
		t.Fatal(err)
	}
	if n := len(server.Connections()); n != 0 || d.serves {
		t.Errorf("%d clients before the node serves: %v", n, d.serves)
	}
	d.serveFirst()
	client, err := net.Dial("tcp", sockets[0].address)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("AMQP\x00\x00\x09\x01")); err != nil {
		t.Fatal(err)
	}
	if err := client.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 1)); err != nil {
		t.Errorf("the client is let in: %v", err)
	}
	d.Shut(t.Context(), "end")
	if err := server.Shutdown(t.Context()); err != nil && !errors.Is(err, amqp.ErrServerClosed) {
		t.Error(err)
	}
}

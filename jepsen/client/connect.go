package client

import (
	"context"
	"fmt"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// dialTimeout bounds one attempt to connect, including the handshakes.
const dialTimeout = 5 * time.Second

// closeTimeout bounds the closing of a connection to a broker that may be gone.
const closeTimeout = 200 * time.Millisecond

// Connect makes one attempt to connect to one broker.
func Connect(ctx context.Context, uri string) (*amqp.Connection, error) {
	return connect(ctx, nil, uri, amqp.Config{})
}

// ConnectBy is like Connect, over a connection that dial opens.
func ConnectBy(ctx context.Context, dial Dialer, uri string) (*amqp.Connection, error) {
	return connect(ctx, dial, uri, amqp.Config{})
}

// ConnectAs is like Connect, for another user or vhost.
func ConnectAs(ctx context.Context, uri, user, password, vhost string) (*amqp.Connection, error) {
	return connect(ctx, nil, uri, amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{Username: user, Password: password}}, Vhost: vhost})
}

// Dialer opens the connection for one attempt to connect.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

func connect(ctx context.Context, dial Dialer, uri string, c amqp.Config) (*amqp.Connection, error) {
	c.Heartbeat = 10 * time.Second
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	c.Dial = func(network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		// The client removes the deadline once the connection is open.
		return conn, conn.SetDeadline(time.Now().Add(dialTimeout))
	}
	return amqp.DialConfig(uri, c)
}

// channel connects to one of the brokers, starting with number first, and opens a
// channel. It tries until ctx ends.
func channel(ctx context.Context, dial Dialer, uris []string, first int) (*amqp.Connection, *amqp.Channel, error) {
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for n := first; ; n++ {
		conn, err := connect(ctx, dial, uris[n%len(uris)], amqp.Config{})
		if err == nil {
			var ch *amqp.Channel
			if ch, err = conn.Channel(); err == nil {
				return conn, ch, nil
			}
			_ = conn.CloseDeadline(time.Now().Add(closeTimeout))
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("no broker of %v lets us in: %w", uris, err)
		case <-pause.C:
		}
	}
}

package client

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync"
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

// anyChannel opens one to one of the brokers, starting with number first. It tries until ctx ends.
func anyChannel(ctx context.Context, dial Dialer, uris []string, first int) (Channel, error) {
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for n := first; ; n++ {
		l, err := Open(ctx, dial, uris[n%len(uris)])
		if err == nil {
			return l, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no broker of %v lets us in: %w", uris, err)
		case <-pause.C:
		}
	}
}

const (
	readBuffer = 64 << 10
	// writeBound is how many bytes may wait to be written; beyond it writers wait.
	writeBound = 1 << 20
)

// Gather is a Dialer of connections on which small writes that come close together share a system call, as
// they do in client libraries of other languages; the cost is a hand-over to another goroutine.
func Gather(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return gather(c), nil
}

// gathered is a connection that writes in the background, everything since the last write at once,
// and reads in large pieces.
type gathered struct {
	net.Conn
	in *bufio.Reader

	mu      sync.Mutex
	changed *sync.Cond // there is something to write, or space, or the end
	pending []byte
	err     error // of a write in the background
	closing bool
	done    chan struct{}
}

func gather(c net.Conn) *gathered {
	g := &gathered{Conn: c, in: bufio.NewReaderSize(c, readBuffer), done: make(chan struct{})}
	g.changed = sync.NewCond(&g.mu)
	go g.write()
	return g
}

func (g *gathered) Read(p []byte) (int, error) { return g.in.Read(p) }

// Write hands p to the background; an error is that of an earlier write.
func (g *gathered) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.pending) > writeBound && g.err == nil && !g.closing {
		g.changed.Wait()
	}
	if g.closing {
		return 0, net.ErrClosed
	}
	if g.err != nil {
		return 0, g.err
	}
	g.pending = append(g.pending, p...)
	g.changed.Broadcast()
	return len(p), nil
}

func (g *gathered) write() {
	defer close(g.done)
	var spare []byte
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		for len(g.pending) == 0 && !g.closing {
			g.changed.Wait()
		}
		if len(g.pending) == 0 {
			return
		}
		full := g.pending
		g.pending = spare[:0]
		g.mu.Unlock()
		_, err := g.Conn.Write(full)
		g.mu.Lock()
		spare = full
		if err != nil {
			g.err, g.pending = err, nil
			g.changed.Broadcast()
			return
		}
		g.changed.Broadcast()
	}
}

// Close writes what is pending, within a bound, and closes.
func (g *gathered) Close() error {
	g.mu.Lock()
	g.closing = true
	g.changed.Broadcast()
	g.mu.Unlock()
	_ = g.SetWriteDeadline(time.Now().Add(time.Second))
	<-g.done
	return g.Conn.Close()
}

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/cluster/limit"
	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/traffic"
)

// clientListeners are the listeners for clients; see cluster.Clients.
type clientListeners struct {
	server  *amqp.Server
	sockets []socket
	failed  chan<- error // gets the reason why listening has failed

	mu   sync.Mutex
	open bool
}

// socket is one listening address for clients.
type socket struct {
	network  string
	address  string
	tls      *tls.Config // nil: not encrypted
	limiter  *limit.Limiter
	listener net.Listener // nil: shut
}

func (w *socket) listen() error {
	l, err := listenWithin(w.limiter, w.network, w.address)
	if err != nil {
		return err
	}
	if w.tls != nil {
		l = tls.NewListener(l, w.tls)
	}
	w.listener, w.address = l, l.Addr().String() // even if the port was 0
	return nil
}

func (w *socket) shut() {
	if w.listener != nil {
		w.listener.Close()
		w.listener = nil
	}
}

// newClientListeners returns open listeners that are not served yet.
func newClientListeners(server *amqp.Server, sockets []socket, failed chan<- error) *clientListeners {
	return &clientListeners{server: server, sockets: sockets, failed: failed, open: true}
}

// serve accepts clients at the listeners.
func (d *clientListeners) serve() {
	for _, w := range d.sockets {
		go func() {
			if err := d.server.Serve(w.listener); !errors.Is(err, amqp.ErrServerClosed) {
				d.failed <- err
			}
		}()
	}
}

// Shut implements cluster.Clients.
func (d *clientListeners) Shut(ctx context.Context, reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.server.Suspend(ctx, reason)
	d.shut()
}

// shut closes all listeners, even if nothing has been served there yet. d.mu is held.
func (d *clientListeners) shut() {
	for i := range d.sockets {
		d.sockets[i].shut()
	}
	d.open = false
}

// Open implements cluster.Clients.
func (d *clientListeners) Open() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open {
		return nil
	}
	for i := range d.sockets {
		if err := d.sockets[i].listen(); err != nil {
			d.shut()
			return err
		}
	}
	d.open = true
	d.server.Resume()
	d.serve()
	return nil
}

// serveFirst starts accepting clients, unless the listeners are shut.
func (d *clientListeners) serveFirst() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open {
		d.serve()
	}
}

// Connections implements cluster.Clients.
func (d *clientListeners) Connections() []api.Connection {
	var all []api.Connection
	for _, c := range d.server.Connections() {
		all = append(all, describe(&c))
	}
	return all
}

// Flows implements cluster.Clients.
func (d *clientListeners) Flows() (all []traffic.Flow) {
	d.server.Octets(func(name string, openedAt time.Time, received, sent uint64) {
		all = append(all, traffic.Flow{
			Connection: traffic.FlowOf{Name: name, OpenedAt: openedAt.UnixMilli()}, Octets: traffic.Octets{Received: received, Sent: sent},
		})
	})
	return all
}

// Channels implements cluster.Clients.
func (d *clientListeners) Channels() []api.Channel {
	var all []api.Channel
	for _, c := range d.server.Channels() {
		state := "running"
		if c.Closing {
			state = "closing"
		}
		all = append(all, api.Channel{
			Number: c.Number, User: c.User, UserWhoPerformed: c.User, VHost: c.VHost, State: state,
			Connection: api.ConnectionDetails{Name: c.Connection, PeerHost: c.Peer.Addr().String(), PeerPort: c.Peer.Port()},
			Consumers:  c.Consumers, Prefetch: c.Prefetch, SharedPrefetch: c.Shared, Unacknowledged: c.Unacked,
			Unconfirmed: c.Unconfirmed, Unanswered: c.Unanswered, Uncommitted: c.Uncommitted, Unsettled: c.Unsettled,
			Confirm: c.Confirms, Transactional: c.Transactional,
		})
	}
	return all
}

// Expel implements cluster.Clients.
func (d *clientListeners) Expel(reason string) { d.server.CloseConnections(reason) }

// Renew implements cluster.Clients.
func (d *clientListeners) Renew() { d.server.Renew() }

// SetAlarm implements cluster.Clients.
func (d *clientListeners) SetAlarm(reason string) { d.server.SetAlarm(reason) }

// Relieve implements cluster.Clients.
func (d *clientListeners) Relieve(excess int64) { d.server.Relieve(excess) }

// Hold implements cluster.Clients.
func (d *clientListeners) Hold(user string) func(int64) error { return d.server.Hold(user) }

// HeldMemory implements cluster.Clients.
func (d *clientListeners) HeldMemory() api.HeldMemory { return heldMemory(d.server.HeldMemory()) }

func heldMemory(h amqp.HeldMemory) api.HeldMemory {
	return api.NewHeldMemory(h.Channels, h.Publishes, h.Answers, h.Others)
}

// CloseConnection implements cluster.Clients.
func (d *clientListeners) CloseConnection(name, reason string) bool {
	return d.server.CloseConnection(name, reason)
}

func describe(c *amqp.ConnectionInfo) api.Connection {
	state := "running"
	switch {
	case c.Closing:
		state = "closing"
	case c.Blocked:
		state = "blocked"
	}
	optional := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	validity := ""
	if c.Issuer != "" {
		validity = c.ValidFrom.UTC().Format(time.RFC3339) + " - " + c.ValidTo.UTC().Format(time.RFC3339)
	}
	return api.Connection{
		Name: c.Name, UserProvidedName: c.Given, User: c.User, UserWhoPerformed: c.User, VHost: c.VHost,
		Protocol: "AMQP 0-9-1", Type: "network", State: state, ConnectedAt: c.OpenedAt.UnixMilli(),
		Host: c.Host.Addr().String(), Port: c.Host.Port(), PeerHost: c.Peer.Addr().String(), PeerPort: c.Peer.Port(),
		Channels: c.Channels, ChannelMax: c.ChannelMax, FrameMax: c.FrameMax, Heartbeat: int(c.Heartbeat / time.Second),
		AuthMechanism: c.Mechanism, ReceivedBytes: c.Received, SentBytes: c.Sent, Reads: c.Reads, Writes: c.Writes,
		TLS: c.TLS != "", TLSProtocol: optional(c.TLS), TLSCipher: optional(c.Cipher), CertificateOwner: optional(c.Certificate),
		Issuer: optional(c.Issuer), Validity: optional(validity), PendingBytes: c.Pending, Held: heldMemory(c.Held),
		ClientProperties: mgmt.ObjectOf(c.Properties),
	}
}

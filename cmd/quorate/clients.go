package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v091"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/cluster/limit"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/tables"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/proto/logpb"
)

// clientListeners are the listeners for clients; see cluster.Clients.
type clientListeners struct {
	server  *amqp.Server
	sockets []socket
	failed  chan<- error // gets the reason why listening has failed

	mu     sync.Mutex
	open   bool
	serves bool // see serveFirst
}

// socket is one listening address for clients.
type socket struct {
	network  string
	address  string
	tls      *tls.Config     // nil: not encrypted
	only     []amqp.Protocol // in place of the server's; nil: these
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
			if err := d.server.Serve(w.listener, w.only...); !errors.Is(err, amqp.ErrServerClosed) {
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
	if d.serves {
		d.serve()
	}
	return nil
}

// serveFirst starts accepting clients, unless the listeners are shut: then Open does. Before it nobody does.
func (d *clientListeners) serveFirst() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.serves = true
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
	for _, c := range v091.Channels(d.server) {
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

// Sessions implements cluster.Clients.
func (d *clientListeners) Sessions(connection string) []api.Session {
	all := []api.Session{}
	sessions, _ := v10.Sessions(d.server, connection)
	for _, s := range sessions {
		x := api.Session{
			Channel: s.Channel, HandleMax: s.HandleMax, NextIncomingID: s.NextIncomingID, IncomingWindow: s.IncomingWindow, NextOutgoingID: s.NextOutgoingID,
			RemoteIncomingWindow: s.RemoteIncomingWindow, RemoteOutgoingWindow: s.RemoteOutgoingWindow, Unsettled: s.Unsettled,
			IncomingLinks: []api.IncomingLink{}, OutgoingLinks: []api.OutgoingLink{},
		}
		for _, l := range s.Incoming {
			x.IncomingLinks = append(x.IncomingLinks, api.IncomingLink{
				Link: link(&l.LinkInfo), Address: l.Address, SettleMode: l.SettleMode, MaxMessageSize: l.MaxMessageSize, Unconfirmed: l.Unconfirmed,
			})
		}
		for _, l := range s.Outgoing {
			to := api.OutgoingLink{
				Link: link(&l.LinkInfo), Address: l.Address, Queue: l.Queue, Settled: l.Settled, MaxMessageSize: "unlimited", Filters: []api.Filter{}, TimedOut: l.TimedOut,
			}
			if l.MaxMessageSize > 0 {
				to.MaxMessageSize = l.MaxMessageSize
			}
			for _, f := range l.Filters {
				to.Filters = append(to.Filters, api.Filter{Name: f.Name, Descriptor: f.Descriptor, Value: filterValue(f.Value)})
			}
			x.OutgoingLinks = append(x.OutgoingLinks, to)
		}
		all = append(all, x)
	}
	return all
}

func link(l *v10.LinkInfo) api.Link {
	return api.Link{Handle: l.Handle, Name: l.Name, DeliveryCount: l.DeliveryCount, Credit: l.Credit}
}

// filterValue is a filter's value as RabbitMQ shows it: a map as a list.
func filterValue(v *logpb.Value) any {
	switch {
	case v == nil:
		return nil
	case v.Table == nil:
		return tables.JSONValue(v)
	}
	fields := []api.FilterField{}
	for _, f := range v.Table.Fields {
		fields = append(fields, api.FilterField{Key: f.Name, Value: filterValue(f.Value)})
	}
	return fields
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
		Protocol: c.Protocol, ContainerID: c.Container, Type: "network", State: state, ConnectedAt: c.OpenedAt.UnixMilli(),
		Host: c.Host.Addr().String(), Port: c.Host.Port(), PeerHost: c.Peer.Addr().String(), PeerPort: c.Peer.Port(),
		Channels: c.Channels, ChannelMax: c.ChannelMax, FrameMax: c.FrameMax, Heartbeat: int(c.Heartbeat / time.Second),
		AuthMechanism: c.Mechanism, ReceivedBytes: c.Received, SentBytes: c.Sent, Reads: c.Reads, Writes: c.Writes,
		TLS: c.TLS != "", TLSProtocol: optional(c.TLS), TLSCipher: optional(c.Cipher), CertificateOwner: optional(c.Certificate),
		Issuer: optional(c.Issuer), Validity: optional(validity), PendingBytes: c.Pending, Held: heldMemory(c.Held),
		ClientProperties: tables.JSON(c.Properties),
	}
}

// limits bound the connections to a node, so that its stores and links always have file
// descriptors. A setting of zero stands for the listener's part of the system's limit.
type limits struct {
	descriptors limit.Descriptors
	logger      *slog.Logger
	all         []*limit.Limiter
}

// tooManyRequests is the answer to HTTP clients when there are too many.
const tooManyRequests = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nRetry-After: 10\r\n" +
	"Content-Length: 62\r\n\r\n" + `{"error":"unavailable","reason":"there are too many clients"}` + "\n"

func newLimits(logger *slog.Logger) (*limits, error) {
	files, err := limit.Files()
	if err != nil {
		return nil, err
	}
	descriptors, err := limit.Divide(files)
	if err != nil {
		return nil, err
	}
	return &limits{descriptors: descriptors, logger: logger}, nil
}

// allotment is the limit of plain listeners and their TLS counterparts together.
type allotment struct {
	name, secure   string
	setting, share int
	config         limit.Config
}

// limiter returns the limit of one of them. Over TLS nobody can be answered.
func (c *limits) limiter(b allotment, secure bool) *limit.Limiter {
	if secure {
		b.name, b.config.Answer = b.secure, ""
	}
	return c.bound(b.name, b.setting, b.share, b.config)
}

// bound returns the limit for a listener. setting is the number of connections allowed by its
// setting, share the number allowed by the system.
func (c *limits) bound(name string, setting, share int, more limit.Config) *limit.Limiter {
	if setting > share {
		c.logger.Warn("the limit of open files allows fewer connections than the setting", "listener", name, "setting", setting, "allowed", share)
	}
	more.Name, more.Max, more.Logger = name, limit.Smaller(setting, share), c.logger
	one := limit.New(more)
	c.all = append(c.all, one)
	return one
}

// status reports the state of the limits.
func (c *limits) status() []limit.Status {
	list := make([]limit.Status, len(c.all))
	for i, one := range c.all {
		list[i] = one.Status()
	}
	return list
}

// maxClients is how many clients may be connected, so that those beyond can be told so before
// sockets run out.
func (c *limits) maxClients(setting int) int {
	return limit.Smaller(setting, c.descriptors.Clients-c.descriptors.Clients/8)
}

// listenWithin listens at an address with a limited number of connections.
func listenWithin(c *limit.Limiter, network, address string) (net.Listener, error) {
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return c.Listen(l), nil
}

// listeners are the node's listening sockets.
type listeners struct {
	peers               net.Listener
	management, metrics []socket
	clients             []socket
	bus                 []socket // of management by programs of Azure Service Bus
	busClients          []socket // of these, as clients
	limits              *limits
}

// listen opens all sockets, or none.
func listen(s *settings, logger *slog.Logger) (l listeners, err error) {
	c, err := newLimits(logger)
	if err != nil {
		return l, err
	}
	l.limits = c
	if l.peers, err = listenWithin(c.bound("clustering", s.maxLinks, c.descriptors.Links, limit.Config{}), "tcp", s.peers); err != nil {
		return l, err
	}
	for _, x := range []struct {
		to            *[]socket
		plain, secure []string
		files         tlsFiles
		prefix        string // of the TLS settings
		limiter       allotment
	}{
		{&l.management, some(s.management), some(s.managementTLS.address()), s.managementTLS.or(s.tls), "management.ssl", allotment{"http", "https", s.maxHTTP, c.descriptors.HTTP, limit.Config{Logins: true, Answer: tooManyRequests}}},
		{&l.metrics, some(s.metrics), some(s.metricsTLS.address()), s.metricsTLS.or(s.tls), "prometheus.ssl", allotment{"http/prometheus", "https/prometheus", s.maxScrapers, c.descriptors.Metrics, limit.Config{Answer: tooManyRequests}}},
		{&l.bus, some(s.bus.management), nil, tlsFiles{}, "", allotment{"servicebus/management", "", s.maxHTTP, c.descriptors.HTTP, limit.Config{Answer: tooManyRequests}}},
		{&l.busClients, s.bus.amqp.addresses(), s.bus.amqps.addresses(), s.tls, "ssl_options", allotment{"servicebus", "servicebus/ssl", 0, c.descriptors.Clients, limit.Config{Logins: true}}},
		{&l.clients, s.amqp.addresses(), s.amqps.addresses(), s.tls, "ssl_options", allotment{"amqp", "amqp/ssl", 0, c.descriptors.Clients, limit.Config{Logins: true}}},
	} {
		var config *tls.Config
		if len(x.secure) > 0 {
			if config, err = x.files.config(s.tlsVersions); err != nil {
				l.close()
				return l, fmt.Errorf("settings %s: %w", x.prefix, err)
			}
		}
		if *x.to, err = c.listenAll(x.plain, x.secure, config, x.limiter); err != nil {
			l.close()
			return l, err
		}
	}
	if files := s.bus.managementTLS.or(s.tls); len(l.bus) > 0 && files.cert != "" {
		files.verify = ""
		config, err := files.config(s.tlsVersions)
		if err != nil {
			l.close()
			return l, fmt.Errorf("settings servicebus.management: %w", err)
		}
		l.bus[0].listener = either{l.bus[0].listener, config}
	}
	return l, nil
}

// some is a list of an address, unless that is empty.
func some(address string) []string {
	if address == "" {
		return nil
	}
	return []string{address}
}

// listenAll opens plain listeners and TLS listeners. They share the allotment in equal parts.
func (c *limits) listenAll(plain, secure []string, config *tls.Config, b allotment) (sockets []socket, err error) {
	if n := len(plain) + len(secure); n > 1 {
		b.setting, b.share = (b.setting+n-1)/n, b.share/n
	}
	// Each of several is for the family of its address: all addresses of IPv6 would take those of IPv4 as well.
	network := func(address string) string {
		host, _, _ := net.SplitHostPort(address)
		switch ip := net.ParseIP(host); {
		case len(plain)+len(secure) == 1 || ip == nil:
			return "tcp"
		case ip.To4() != nil:
			return "tcp4"
		default:
			return "tcp6"
		}
	}
	for i, address := range append(slices.Clip(plain), secure...) {
		w := socket{network: network(address), address: address}
		if i >= len(plain) {
			w.tls = config
		}
		w.limiter = c.limiter(b, w.tls != nil)
		if err := w.listen(); err != nil {
			for i := range sockets {
				sockets[i].shut()
			}
			return nil, err
		}
		sockets = append(sockets, w)
	}
	return sockets, nil
}

func (l listeners) close() {
	if l.peers != nil {
		l.peers.Close()
	}
	for _, sockets := range [][]socket{l.management, l.metrics, l.clients, l.bus, l.busClients} {
		for i := range sockets {
			sockets[i].shut()
		}
	}
}

// describe lists the listeners, as operators see them. links: other nodes are taken over TLS only.
func (l listeners) describe(links bool) []api.Listener {
	all := []api.Listener{{Protocol: "clustering", Address: l.peers.Addr().String(), TLS: links}}
	for _, x := range []struct {
		sockets       []socket
		plain, secure string
	}{
		{l.management, "http", "https"}, {l.metrics, "http/prometheus", "https/prometheus"}, {l.clients, "amqp", "amqp/ssl"}, {l.bus, "servicebus/management", ""}, {l.busClients, "servicebus", "servicebus/ssl"},
	} {
		for _, w := range x.sockets {
			protocol := x.plain
			if w.tls != nil {
				protocol = x.secure
			}
			all = append(all, api.Listener{Protocol: protocol, Address: w.address, TLS: w.tls != nil})
		}
	}
	return all
}

// addresses lists the addresses of sockets.
func addresses(sockets []socket) string {
	var all []string
	for _, w := range sockets {
		all = append(all, w.address)
	}
	return strings.Join(all, " ")
}

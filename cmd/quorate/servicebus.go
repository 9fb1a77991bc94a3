package main

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/servicebus"
	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/manage"
	"github.com/quorate/quorate/amqp/servicebus/sas"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/cluster"
	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// busSettings are those of the front for programs of Azure Service Bus.
type busSettings struct {
	amqp, amqps      listenersOf
	management       string // empty: none
	managementTLS    tlsFiles
	vhost            string            // empty: default_vhost
	namespaces       map[string]string // host, in small letters → vhost
	hosts            []string
	rootKey          string // empty: a random one is made
	messageKilobytes int    // of entities of which nobody says it
	file             string // of entities; empty: none
	defaults         string // service or emulator
}

const namespacesKey = "servicebus.namespace."

// busRows are the settings of that front.
var busRows = []setting{
	{"servicebus.listeners.tcp.default", "none", "AMQP of programs of Azure Service Bus: IP:PORT, or a port for all interfaces, usually 5672; none: no listener", listener(func(s *settings) listenersOf { return s.bus.amqp })},
	{"servicebus.listeners.tcp.N", "", "a further listener of this kind, as listeners.tcp.N", listener(func(s *settings) listenersOf { return s.bus.amqp })},
	{"servicebus.listeners.ssl.default", "none", "the same over TLS, usually 5671, with the certificate of ssl_options; none: no listener", listener(func(s *settings) listenersOf { return s.bus.amqps })},
	{"servicebus.listeners.ssl.N", "", "a further listener of this kind, as listeners.tcp.N", listener(func(s *settings) listenersOf { return s.bus.amqps })},
	{"servicebus.management.listener", "none", "management for programs of Azure Service Bus, HTTP and HTTPS on one port: IP:PORT, or a port for all interfaces, usually 5300; none: no listener", optional(address, func(s *settings) *string { return &s.bus.management })},
	{"servicebus.management.certfile", "", "as ssl_options.certfile, which is used with its key if this is empty; without either there is no HTTPS", text(func(s *settings) *string { return &s.bus.managementTLS.cert })},
	{"servicebus.management.keyfile", "", "as ssl_options.keyfile", text(func(s *settings) *string { return &s.bus.managementTLS.key })},
	{"servicebus.vhost", "", "vhost that is the namespace of programs of Azure Service Bus; empty: default_vhost", text(func(s *settings) *string { return &s.bus.vhost })},
	{namespacesKey + "N", "", "vhost that is the namespace of clients that connect to the host N", setNamespace},
	{"servicebus.hosts", "", "comma-separated hosts for which tokens may be made; empty: any", func(s *settings, v string) error {
		s.bus.hosts = nil
		for host := range strings.SplitSeq(strings.ToLower(v), ",") {
			if host = strings.TrimSpace(host); host != "" {
				s.bus.hosts = append(s.bus.hosts, host)
			}
		}
		return nil
	}},
	{busKeySetting, "", "key of the rule RootManageSharedAccessKey of namespaces that have none; empty: a random one. Each node writes the key that holds to service-bus.key in data_dir", text(func(s *settings) *string { return &s.bus.rootKey })},
	{"servicebus.message_kilobytes", "1024", "1 … 32768: MaxMessageSizeInKilobytes of queues and topics of which it is not said, if max_message_size is not less", number(1, 32768, func(s *settings) *int { return &s.bus.messageKilobytes })},
	{busFileSetting, "", "file of entities, as the emulator of Azure Service Bus reads it, which the node imports once it serves clients: what is missing is created, what is there is changed to what the file says, nothing is deleted", text(func(s *settings) *string { return &s.bus.file })},
	{"servicebus.config.defaults", "service", "service or emulator: whose defaults hold for what the file does not say", oneOf(func(s *settings) *string { return &s.bus.defaults }, "service", "emulator")},
}

const busFileSetting = "servicebus.config.file"

const busKeySetting = "servicebus.root_key"

func setNamespace(s *settings, v string) error {
	host := strings.ToLower(strings.TrimPrefix(s.key, namespacesKey))
	if host == "N" || v == "" {
		return nil
	}
	if s.bus.namespaces == nil {
		s.bus.namespaces = map[string]string{}
	}
	s.bus.namespaces[host] = v
	return nil
}

// entityLimits are the node's own.
func (s *settings) entityLimits() entity.Limits {
	return entity.Limits{MessageKilobytes: int64(s.maxMessageSize) >> 10, UsualKilobytes: int64(s.bus.messageKilobytes)}
}

// namespace is the vhost of clients that name no other one.
func (s *settings) namespace() string { return cmp.Or(s.bus.vhost, s.vhost) }

// definitions are the cluster's for the front.
type definitions struct {
	node     *cluster.Node
	backend  mgmt.Backend
	prepared *atomic.Bool // nil: it does not matter
	read     *descriptions
}

func definitionsOf(node *cluster.Node) definitions {
	return definitions{node, node.Management(), nil, new(descriptions)}
}

// descriptions are those of entities that were asked for, as each was last read from the catalog: every link asks for one. Nobody
// changes them.
type descriptions struct{ byKey sync.Map }

// description is what a row of the catalog says.
type description struct {
	row    *logpb.Describe
	entity *entity.Description
}

// of returns what a row says, which is that of a key now; nil: there is none any more.
func (ds *descriptions) of(key string, row *logpb.Describe) (*entity.Description, bool) {
	if row == nil {
		ds.byKey.Delete(key)
		return nil, false
	}
	if last, ok := ds.byKey.Load(key); ok && last.(description).row == row {
		return last.(description).entity, true
	}
	e, err := entity.Decode(row.GetText())
	if err != nil {
		return nil, false
	}
	ds.byKey.Store(key, description{row, e})
	return e, true
}

// busView shows a view to package manage.
type busView struct{ *catalog.View }

// HasQueue implements manage.View.
func (v busView) HasQueue(vhost, name string) bool {
	_, ok := v.Queue(vhost, name)
	return ok
}

// Rules implements manage.View.
func (v busView) Rules(vhost, queue string) []*logpb.Bind {
	return binds(vhost, v.BindingsTo(vhost, queue, false))
}

// RulesFrom implements manage.View.
func (v busView) RulesFrom(vhost, exchange string) []*logpb.Bind {
	return binds(vhost, v.BindingsFrom(vhost, exchange))
}

func binds(vhost string, all []*catalog.Binding) (list []*logpb.Bind) {
	for _, b := range all {
		list = append(list, &logpb.Bind{Vhost: vhost, Source: b.Source, Destination: b.Destination, RoutingKey: b.RoutingKey, Arguments: b.Arguments})
	}
	return list
}

// View implements manage.Broker.
func (d definitions) View(ctx context.Context) manage.View { return busView{d.node.FreshView(ctx)} }

// Change implements manage.Broker.
func (d definitions) Change(ctx context.Context, what string, commands ...*logpb.CatalogCommand) error {
	return d.node.Define(ctx, what, commands...)
}

// NotReady implements manage.Broker. A node is not ready either before its namespaces have their rules and the entities
// of its file.
func (d definitions) NotReady() string {
	if why := d.backend.Node.NotReady(); why != "" || d.prepared == nil || d.prepared.Load() {
		return why
	}
	return "rules and entities of namespaces are not made yet"
}

// Now implements manage.Broker.
func (d definitions) Now() time.Time { return time.UnixMilli(int64(d.backend.Node.Now())) }

// Counts implements manage.Broker.
func (d definitions) Counts(ctx context.Context, vhost string, queues []string) map[string]manage.Counts {
	var ids []fsm.QueueID
	names, counts := map[fsm.QueueID]string{}, map[string]manage.Counts{}
	v := d.backend.Catalog.View()
	for _, name := range queues {
		if q, ok := v.Queue(vhost, name); ok {
			ids, names[q.ID] = append(ids, q.ID), name
		}
	}
	if len(ids) == 0 { // which would be all of them
		return counts
	}
	now := d.Now()
	for id, s := range d.backend.Queues.Stats(ctx, ids...) {
		c := manage.Counts{Active: s.Ready + s.Unacknowledged + s.Deferred, Scheduled: s.Scheduled, Bytes: s.Bytes, Forwarding: s.Forwarding, Letters: s.DeadLetters - s.Forwarding, Accessed: now, Used: s.LastNumber > 0 || s.IdleSince == ""}
		if idle, err := time.Parse(time.RFC3339, s.IdleSince); err == nil { // else it is in use
			c.Accessed = idle
		}
		counts[names[id]] = c
	}
	return counts
}

// Entity finds an entity by its path, whatever the case of that.
func (d definitions) Entity(vhost string, p entity.Path) (*entity.Description, bool) {
	key := p.Key()
	row, _ := d.backend.Catalog.View().Described(vhost, key)
	return d.read.of(vhost+"\x00"+key, row)
}

// Rules lists the rules of a subscription, and says when that was created.
func (d definitions) Rules(vhost string, p entity.Path) ([]*entity.Rule, time.Time) {
	v := d.backend.Catalog.View()
	row, _ := v.Described(vhost, p.Key())
	return manage.RulesOf(busView{v}, vhost, p), time.UnixMilli(row.GetCreated())
}

// AddRule gives a subscription a rule.
func (d definitions) AddRule(ctx context.Context, vhost string, p entity.Path, r *entity.Rule) (bool, error) {
	return manage.AddRule(ctx, d, vhost, p, r)
}

// RemoveRule takes a rule from a subscription.
func (d definitions) RemoveRule(ctx context.Context, vhost string, p entity.Path, name string) (bool, error) {
	return manage.RemoveRule(ctx, d, vhost, p, name)
}

// Rule finds an access rule of a namespace, or of one of its entities.
func (d definitions) Rule(vhost, scope, name string) (*sas.Rule, bool) {
	k, ok := d.backend.Catalog.View().AccessKey(vhost, scope, name)
	if !ok {
		return nil, false
	}
	return manage.RuleOf(k), true
}

// busSkew is how long after its end a token is good.
const busSkew = 5 * time.Second

// speakBus has what programs of Azure Service Bus speak spoken at these sockets.
func speakBus(node *cluster.Node, s *settings, counts *churn, records *audit.Log, at []socket) error {
	protocol := v10.Protocol{
		Ready: node.KeepsBare, Node: s.nodeName, SessionMax: busSessions, LinkMax: s.linkMax, DefaultVHost: s.namespace(), Refused: counts.refuse,
		Dialect: &servicebus.Dialect{
			Directory: definitionsOf(node), VHost: s.namespace(), Namespaces: s.bus.namespaces, Skew: busSkew, Count: counts.counting(traffic.AMQP10.String()),
			Audit: func(c *v10.Client, access, action, rule string, err error) {
				connection, client := c.Where()
				auditEntity(records, audit.Origin{Protocol: auditName(traffic.AMQP10.String()), Address: client.String(), Connection: connection}, access, action, rule, err)
			},
		},
	}
	for i := range at {
		at[i].only = []amqp.Protocol{protocol}
	}
	return protocol.Validate()
}

// busSessions is how many sessions a connection may have: a program opens two for each receiver and keeps them.
const busSessions = 5000

// busServer serves management requests of that front; nil: it has no listener.
type busServer struct{ *http.Server }

// Limits of a request for management.
const (
	busHeader = 10 * time.Second
	busRead   = 30 * time.Second
	busIdle   = 2 * time.Minute
)

// newBusServer returns the server of management requests.
func newBusServer(s *settings, node *cluster.Node, prepared *atomic.Bool, counts *churn, logger *slog.Logger, records *audit.Log) busServer {
	d := definitionsOf(node)
	d.prepared = prepared
	h := manage.New(manage.Config{
		Broker: d, VHost: s.namespace(), Namespaces: s.bus.namespaces, Hosts: s.bus.hosts, Skew: busSkew,
		Limits: s.entityLimits(), Logger: logger, Count: counts.counting("http"),
		Audit: func(r *http.Request, rule, action, path string, err error) {
			auditEntity(records, audit.Origin{Protocol: "servicebus", Address: r.RemoteAddr}, rule, action, path, err)
		},
	})
	return busServer{&http.Server{Handler: h, ReadHeaderTimeout: busHeader, ReadTimeout: busRead, IdleTimeout: busIdle, ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug)}}
}

// auditEntity audits that who has an access rule was to change an entity, or a rule of one.
func auditEntity(records *audit.Log, from audit.Origin, access, action, path string, err error) {
	e := audit.Event{Kind: audit.Definition, Action: action, User: access, Origin: from, Target: map[string]string{"entity": path}, Outcome: audit.OK}
	switch {
	case manage.Denied(err):
		e.Kind, e.Outcome, e.Reason = audit.Access, audit.Refused, err.Error()
	case err != nil:
		e.Outcome, e.Reason = audit.Failed, err.Error()
	}
	records.Write(e)
}

// Serve serves a listener until Shutdown.
func (b busServer) Serve(l net.Listener) error {
	if err := b.Server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// namespaceVHosts are the vhosts that are namespaces.
func (s *settings) namespaceVHosts() []string {
	list := []string{s.namespace()}
	for _, vhost := range s.bus.namespaces {
		list = append(list, vhost)
	}
	return list
}

// readBusFile reads the file of entities; nil: there is none.
func (s *settings) readBusFile() (*manage.File, error) {
	if s.bus.file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(s.bus.file)
	if err != nil {
		return nil, err
	}
	f, err := manage.ParseFile(text, s.bus.defaults == "emulator")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.bus.file, err)
	}
	return f, nil
}

// beside is what a node does beside serving, until it ends.
type beside struct {
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	done   atomic.Bool // what has to be done once
}

func newBeside() *beside {
	ctx, cancel := context.WithCancel(context.Background())
	return &beside{ctx: ctx, cancel: cancel}
}

func (b *beside) end() {
	b.cancel()
	b.tasks.Wait()
}

// prepareBus makes the rule of each namespace that has none, and writes the keys where only the node's user reads
// them; then it imports f, if that is not nil. It tries until it is done, or ctx ends: a cluster whose nodes are being
// upgraded cannot have rules yet.
func prepareBus(b *beside, s *settings, d definitions, f *manage.File, logger *slog.Logger) {
	ctx := b.ctx
	for {
		text, err := rootKeys(ctx, s, d)
		if err == nil {
			err = certs.WritePrivate(filepath.Join(s.dataDir, "service-bus.key"), []byte(text))
		}
		if err == nil && f != nil {
			var done []manage.Imported
			done, err = f.Import(ctx, d, s.namespace(), s.entityLimits(), false)
			for _, x := range done {
				if x.Outcome != manage.Same {
					logger.Info("entity is as the file says", "entity", x.Entity, "outcome", x.Outcome, "differed", x.Differs)
				}
			}
		}
		if err == nil {
			b.done.Store(true)
			return
		}
		logger.Warn("rules and entities of namespaces are not made yet", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// rootRule is the rule that every namespace has.
const rootRule = manage.RootRule

// rootKeys makes the rules that are missing, and lists all: a namespace, a rule and its key a line.
func rootKeys(ctx context.Context, s *settings, d definitions) (text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, vhost := range s.namespaceVHosts() {
		k, ok := d.node.FreshView(ctx).AccessKey(vhost, "", rootRule)
		if !ok {
			k = &logpb.AccessKey{Vhost: vhost, Name: rootRule, Primary: cmp.Or(s.bus.rootKey, manage.NewKey()), Secondary: manage.NewKey(), Send: true, Listen: true, Manage: true, OnlyNew: true}
			c := &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutAccessKey{PutAccessKey: k}}
			if err := d.Change(ctx, "make the rule of namespace "+vhost, c); err != nil {
				return "", err
			}
		}
		text += fmt.Sprintf("%s %s %s\n", vhost, rootRule, k.GetPrimary())
	}
	return text, nil
}

// either is a listener of clients that speak TLS, and of others that do not. config nil: none speaks it.
type either struct {
	net.Listener
	config *tls.Config
}

// Accept implements net.Listener.
func (l either) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil || l.config == nil {
		return c, err
	}
	return &eitherConn{Conn: c, config: l.config}, nil
}

// eitherConn finds out with its first octet which of them it is.
type eitherConn struct {
	net.Conn
	config *tls.Config
	once   sync.Once
	inner  net.Conn
	err    error
}

// handshake is the first octet of TLS.
const handshake = 0x16

func (c *eitherConn) decide() {
	c.once.Do(func() {
		var first [1]byte
		if _, c.err = c.Conn.Read(first[:]); c.err != nil {
			return
		}
		c.inner = &readAgain{c.Conn, first[:]}
		if first[0] == handshake {
			c.inner = tls.Server(c.inner, c.config)
		}
	})
}

// Read implements net.Conn.
func (c *eitherConn) Read(p []byte) (int, error) {
	if c.decide(); c.err != nil {
		return 0, c.err
	}
	return c.inner.Read(p)
}

// Write implements net.Conn. Servers read first.
func (c *eitherConn) Write(p []byte) (int, error) {
	if c.decide(); c.err != nil {
		return 0, c.err
	}
	return c.inner.Write(p)
}

// readAgain begins with octets that have been read.
type readAgain struct {
	net.Conn
	first []byte
}

// Read implements net.Conn.
func (c *readAgain) Read(p []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// devServiceBus has nodes serve programs of Azure Service Bus from a port on, with a certificate for this host of
// their own.
func devServiceBus(nodes []*devNode, dir string, base int) error {
	cert, key := filepath.Join(dir, "servicebus.pem"), filepath.Join(dir, "servicebus.key")
	if err := writeLoopbackCertificate(cert, key); err != nil {
		return fmt.Errorf("dev: certificate: %w", err)
	}
	for i, n := range nodes {
		if at, _ := n.setting("listeners.tcp.default"); at == n.amqp {
			n.amqp = "127.0.0.1:" + strconv.Itoa(base+devOthers+i)
			n.set("listeners.tcp.default", n.amqp)
		}
		n.busAMQP = "127.0.0.1:" + strconv.Itoa(base+i)
		n.setDefault("servicebus.listeners.tcp.default", n.busAMQP)
		n.busAMQP, _ = n.setting("servicebus.listeners.tcp.default")
		n.bus = "127.0.0.1:" + strconv.Itoa(base+devBus+i)
		n.setDefault("servicebus.management.listener", n.bus)
		n.setDefault("servicebus.management.certfile", cert)
		n.setDefault("servicebus.management.keyfile", key)
		n.setDefault(busKeySetting, devBusKey)
		n.bus, _ = n.setting("servicebus.management.listener")
	}
	return nil
}

// setDefault sets a setting that nobody has given.
func (n *devNode) setDefault(key, value string) {
	if _, given := n.setting(key); !given {
		n.set(key, value)
	}
}

// writeLoopbackCertificate makes a certificate for the loopback addresses and some names, signed by itself, unless there is
// a good one.
func writeLoopbackCertificate(certFile, keyFile string, names ...string) error {
	names = append(names, "localhost")
	if have, err := certs.List(certFile); err == nil && time.Until(have[0].Certificate.NotAfter) > devRenew && have[0].Certificate.VerifyHostname(names[0]) == nil {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "localhost"}, NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		certs.WritePrivate(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
		certs.WritePrivate(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})),
	)
}

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/cluster"
	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/cluster/metrics"
	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/origin"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// stopWait bounds an orderly stop.
const stopWait = 20 * time.Second

// list is a flag that may be given several times.
type list []string

func (l *list) String() string     { return fmt.Sprint(*l) }
func (l *list) Set(v string) error { *l = append(*l, v); return nil }

func serverCommand(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("quorate server", flag.ContinueOnError)
	flags.SetOutput(out)
	file := flags.String("config", "", "`file` of settings, one KEY = VALUE a line")
	dataDir := flags.String("data-dir", "", "`folder` of everything durable (setting data_dir)")
	name := flags.String("node-name", "", "`name` of this node (setting node_name)")
	unsafe := flags.Bool("unsafe-test-options", false, "allow settings that break what the server promises")
	var sets list
	flags.Var(&sets, "set", "a setting, `KEY=VALUE`; may be repeated")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dataDir != "" {
		sets = append(sets, "data_dir="+*dataDir)
	}
	if *name != "" {
		sets = append(sets, "node_name="+*name)
	}
	s, err := load(*file, sets)
	if err != nil {
		return err
	}
	if s.testClockFile != "" && !*unsafe {
		return errors.New("setting unsafe.test_clock_file: refused without --unsafe-test-options")
	}
	logger, logTo, err := openLog(s)
	if err != nil {
		return err
	}
	defer logTo.close()
	records, recordsTo, err := openAudit(s, logger)
	if err != nil {
		return err
	}
	defer recordsTo.close()
	defer records.Close()
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	go reopenOn(again, logger, logTo, recordsTo)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	return serve(s, logger, records, stop)
}

// openLog opens the log.
func openLog(s *settings) (*slog.Logger, *logFile, error) {
	to := &logFile{path: s.logFile, to: os.Stderr}
	if err := to.open(); err != nil {
		return nil, nil, err
	}
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warning": slog.LevelWarn, "error": slog.LevelError,
	}
	options := &slog.HandlerOptions{Level: levels[s.logLevel]}
	var h slog.Handler = slog.NewTextHandler(to, options)
	if s.logFormat == "json" {
		h = slog.NewJSONHandler(asciiWriter{to}, options)
	}
	return slog.New(h).With("self", s.nodeName), to, nil
}

// listeners are the node's ways in.
type listeners struct {
	management, metrics, peers net.Listener
	clients                    []way
}

func listen(s *settings) (l listeners, err error) {
	for _, at := range []struct {
		to      *net.Listener
		address string
	}{{&l.peers, s.peers}, {&l.management, s.management}, {&l.metrics, s.metrics}} {
		if *at.to, err = net.Listen("tcp", at.address); err != nil {
			l.close()
			return l, err
		}
	}
	if err := l.listenClients(s); err != nil {
		l.close()
		return l, err
	}
	return l, nil
}

func (l *listeners) listenClients(s *settings) error {
	w, err := listenAt(s.amqp, nil)
	if err != nil {
		return err
	}
	l.clients = append(l.clients, w)
	if s.amqps == "" {
		return nil
	}
	secure, err := s.tls.config()
	if err != nil {
		return fmt.Errorf("settings ssl_options: %w", err)
	}
	if w, err = listenAt(s.amqps, secure); err != nil {
		return err
	}
	l.clients = append(l.clients, w)
	return nil
}

func (l listeners) close() {
	for _, x := range []net.Listener{l.management, l.metrics, l.peers} {
		if x != nil {
			x.Close()
		}
	}
	for i := range l.clients {
		l.clients[i].shut()
	}
}

// describe lists the ways in, as operators see them.
func (l listeners) describe() []api.Listener {
	all := []api.Listener{
		{Protocol: "http", Address: l.management.Addr().String()}, {Protocol: "http/prometheus", Address: l.metrics.Addr().String()},
		{Protocol: "clustering", Address: l.peers.Addr().String()},
	}
	for _, w := range l.clients {
		protocol := "amqp"
		if w.tls != nil {
			protocol = "amqp/ssl"
		}
		all = append(all, api.Listener{Protocol: protocol, Address: w.address})
	}
	return all
}

// addresses lists where clients come to.
func addresses(ways []way) string {
	var all []string
	for _, w := range ways {
		all = append(all, w.address)
	}
	return strings.Join(all, " ")
}

// serve runs a node until it is told to stop.
func serve(s *settings, logger *slog.Logger, records *audit.Log, stop <-chan os.Signal) error {
	ways, security, err := prepare(s, logger)
	if err != nil {
		return err
	}
	defer ways.close()
	wall, stopClock, err := wallClock(s, logger)
	if err != nil {
		return err
	}
	defer stopClock()
	config := nodeConfig(s, ways.peers, wall, logger)
	config.Listeners, config.Audit, config.Security = ways.describe(), records, security
	node, err := cluster.Open(config)
	if err != nil {
		return err
	}
	guard, err := s.guard()
	if err != nil {
		return errors.Join(err, node.Close())
	}
	counts := &traffic{}
	api, page := mgmt.New(node, logger, guard), node.Metrics().Server(logger)
	api.SetAudit(records)
	failed := make(chan error, 5)
	go func() { failed <- api.Serve(ways.management) }()
	go func() { failed <- page.Serve(ways.metrics) }()
	front, err := amqp.New(frontConfig(s, node.Broker(), counts, logger, records))
	if err != nil {
		return errors.Join(err, page.Close(context.Background()), api.Close(context.Background()), node.Close())
	}
	node.Metrics().SetTraffic(func() metrics.Traffic {
		t := counts.read()
		t.Timeouts, t.Blocked = metrics.Timeouts(front.Timeouts()), front.Blocked()
		t.Panics = front.Panics()
		return t
	})
	clients := newDoor(front, ways.clients, failed)
	node.SetDoor(clients)
	joining, cancel := context.WithCancel(context.Background())
	defer cancel()
	joined := make(chan error, 1)
	go func() { joined <- node.Join(joining) }()
	logger.Info("node started", "version", cluster.Version, "peers", ways.peers.Addr().String(), "http", ways.management.Addr().String())
	for {
		select {
		case err = <-joined:
			joined = nil
			if err == nil {
				clients.serveFirst()
				logger.Info("node serves clients", "amqp", addresses(ways.clients))
				continue
			}
		case err = <-failed:
		case sig := <-stop:
			logger.Info("node stops", "signal", sig.String())
		}
		break
	}
	if cancel(); joined != nil {
		<-joined // the node must not join while it is closed
	}
	return errors.Join(err, shutdown(logger, stop, front.Shutdown, page.Close, api.Close,
		func(ctx context.Context) error { node.Leave(ctx); return nil }, func(context.Context) error { return node.Close() }))
}

// frontConfig is what the AMQP front runs with.
func frontConfig(s *settings, b *broker.Broker, counts *traffic, logger *slog.Logger, records *audit.Log) amqp.Config {
	return amqp.Config{
		Broker: frontBroker{b, counts}, Logger: logger,
		FrameMax: uint32(s.frameMax), InitialFrameMax: uint32(s.initialFrameMax), ChannelMax: uint16(s.channelMax),
		Heartbeat: frontHeartbeat(s.heartbeat), HandshakeTimeout: s.handshakeTimeout,
		MaxMessageSize: s.maxMessageSize, MaxConsumers: s.maxConsumers, Version: cluster.Version,
		CertificateUser: s.tls.user, ServerProperties: map[string]string{"product": s.product},
		Refused: auditRefusals(records),
	}
}

// shutdown ends the parts of the node in order: clients first, then what it
// leads is handed over, stores last. A further signal ends all waiting.
func shutdown(logger *slog.Logger, stop <-chan os.Signal, parts ...func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	go func() {
		select {
		case sig := <-stop:
			logger.Info("node stops at once", "signal", sig.String())
			cancel()
		case <-ctx.Done():
		}
	}()
	var errs []error
	for _, end := range parts {
		errs = append(errs, end(ctx))
	}
	logger.Info("node has stopped")
	return errors.Join(errs...)
}

// guard knows the names that URLs of this node may hold: besides the listed
// ones those of its host, long and short, and those that nodes are given by.
func (s *settings) guard() (*origin.Guard, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	short, _, _ := strings.Cut(name, ".")
	own := []string{name, short}
	for _, at := range s.nodes {
		if host, _, err := net.SplitHostPort(at); err == nil {
			own = append(own, host)
		}
	}
	return origin.New(own, s.hosts)
}

// frontHeartbeat turns the setting into the front's value, where negative is none.
func frontHeartbeat(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// wallClock is the node's wall clock; stop ends what it runs.
func wallClock(s *settings, logger *slog.Logger) (wall func() time.Time, stop func(), err error) {
	if s.testClockFile == "" {
		return time.Now, func() {}, nil
	}
	path := s.testClockFile
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.dataDir, path)
	}
	c, err := newTestClock(path, time.Now)
	if err != nil {
		return nil, nil, fmt.Errorf("setting unsafe.test_clock_file: %w", err)
	}
	logger.Warn("wall clock is set by a file", "file", path)
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		c.run(end, logger)
	}()
	return c.wall, func() {
		close(end)
		<-ended
	}, nil
}

func nodeConfig(s *settings, peers net.Listener, wall func() time.Time, logger *slog.Logger) cluster.Config {
	var dialer net.Dialer
	return cluster.Config{
		Name: s.nodeName, ClusterName: s.cluster, DataDir: s.dataDir, Nodes: s.nodes, Contacts: s.contacts,
		Listener: peers,
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		},
		Clock: wall,
		Exit:  os.Exit, Logger: logger, Properties: amqp.Properties{ContinueHistory: s.deadLetters == "3"},
		Defaults:     catalog.Defaults{ConsumerTimeout: fsm.Millis(s.consumerTimeout.Milliseconds()), DisconnectedTimeout: fsm.Millis(s.silentGrace.Milliseconds())},
		DefaultVHost: s.vhost, DefaultUser: s.user, DefaultPassword: s.password, LoopbackUsers: s.loopbackUsers, Logins: s.logins,
		MemTableBytes: int64(s.walSize), RetainedBytes: int64(s.retained), Heartbeat: s.raftHeartbeat, LeaderlessGrace: s.leaderlessGrace, GroupSize: s.groupSize,
		LeaderLocator: catalog.Locator(s.leaderLocator), Watchdog: s.watchdog,
		MemoryLimit: s.memoryLimit, DiskLimit: s.diskLimit,
	}
}

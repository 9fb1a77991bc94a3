package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/servicebus/topics"
	"github.com/quorate/quorate/amqp/v091"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/cluster"
	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/discovery"
	"github.com/quorate/quorate/cluster/metrics"
	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/cluster/origin"
	"github.com/quorate/quorate/cluster/worker"
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
	entities := flags.String("service-bus-config", "", "`file` of entities as the emulator of Azure Service Bus reads it (setting servicebus.config.file)")
	emulator := flags.Bool("service-bus-emulator", false, "be in the place of the emulator of Azure Service Bus: listen where it does, with its key, its file and the variables of its image")
	test := testFlags(flags)
	var sets list
	flags.Var(&sets, "set", "a setting, `KEY=VALUE`; may be repeated")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("server: unexpected argument %q", flags.Arg(0))
	}
	if *dataDir != "" {
		sets = append(sets, "data_dir="+*dataDir)
	}
	if *entities != "" {
		sets = append(sets, busFileSetting+"="+*entities)
	}
	if *name != "" {
		sets = append(sets, "node_name="+*name)
	}
	read := func() (*settings, error) { return load(*file, sets) }
	if *emulator {
		read = func() (*settings, error) {
			s, err := loadOver(*file, emulatorSettings(os.Getenv), sets)
			if err == nil && s.bus.managementTLS.or(s.tls).cert == "" {
				s.bus.managementTLS, err = ownCertificate(s.dataDir)
			}
			return s, err
		}
	}
	s, err := read()
	if err != nil {
		return err
	}
	if err := s.test.check(*test); err != nil {
		return err
	}
	logger, level, logTo, err := openLog(s)
	if err != nil {
		return err
	}
	defer logTo.close()
	for _, n := range s.notices {
		logger.Warn("setting "+n.what, "setting", n.key, "reason", n.why, "page", "configuration.md")
	}
	records, recordsTo, err := openAudit(s, logger)
	if err != nil {
		return err
	}
	defer recordsTo.close()
	defer records.Close()
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	r := &reloader{read: read, logger: logger, level: level, log: logTo, files: []*logFile{logTo, recordsTo}, now: s}
	go r.reloadOn(again)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	return serve(s, logger, records, r, stop)
}

// logLevels are the values of log.console.level.
var logLevels = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warning": slog.LevelWarn, "error": slog.LevelError,
}

// openLog opens the log. Its level can be changed.
func openLog(s *settings) (*slog.Logger, *slog.LevelVar, *logFile, error) {
	to := &logFile{path: s.logFile, to: os.Stderr, when: s.rotation}
	if err := to.open(); err != nil {
		return nil, nil, nil, err
	}
	level := &slog.LevelVar{}
	level.Set(logLevels[s.logLevel])
	options := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(to, options)
	if s.logFormat == "json" {
		h = slog.NewJSONHandler(asciiWriter{to}, options)
	}
	return slog.New(h).With("self", s.nodeName), level, to, nil
}

// serve runs a node until it is told to stop.
func serve(s *settings, logger *slog.Logger, records *audit.Log, again *reloader, stop <-chan os.Signal) error {
	files, err := readDefinitions(s.definitions)
	if err != nil {
		return err
	}
	entities, err := s.readBusFile()
	if err != nil {
		return err
	}
	sockets, security, err := prepare(s, logger)
	if err != nil {
		return err
	}
	defer sockets.close()
	wall, stopClock, err := wallClock(s, logger)
	if err != nil {
		return err
	}
	defer stopClock()
	config := nodeConfig(s, sockets.peers, wall, logger)
	config.Listeners, config.Audit = sockets.describe(security != nil && !security.Mixed), records
	config.OpenFiles, config.MaxConnections = sockets.limits.descriptors.Tables, sockets.limits.maxClients(s.maxConnections)
	if err := s.admission(&config, sockets, security); err != nil {
		return err
	}
	node, err := cluster.Open(config)
	if err != nil {
		return err
	}
	again.opened(node.Management().Resources, s)
	preparing := newBeside()
	defer preparing.end()
	counts, failed := &churn{}, make(chan error, 8)
	bus := newBusServer(s, node, &preparing.done, counts, logger, records)
	node.SampleTraffic()
	node.GovernProcessors()
	watchKeys(security, node)
	api, page, err := serveHTTP(s, node, sockets, logger, records, again, failed)
	if err != nil {
		return errors.Join(err, node.Close())
	}
	server, err := amqp.New(amqpConfig(s, node, counts, logger, records))
	if err = errors.Join(err, speakBus(node, s, counts, records, sockets.busClients)); err != nil {
		return errors.Join(err, page.Close(context.Background()), api.Close(context.Background()), node.Close())
	}
	node.Metrics().SetTraffic(func() metrics.Traffic { return counts.with(server, sockets.limits) })
	serveAt(sockets.bus, bus.Serve, failed)
	clients := newClientListeners(server, append(sockets.clients, sockets.busClients...), failed)
	node.SetClients(clients)
	manager := supervise(logger, node.Management().Node)
	logger.Info("node started", "version", cluster.Version, "peers", sockets.peers.Addr().String(), "http", addresses(sockets.management))
	join := func(ctx context.Context) error {
		return node.Join(ctx, func(ctx context.Context) error {
			l := loader{node.Management(), files, s.skipUnchanged == "true", s.partial == "true", node.SetLacks, logger}
			return l.load(ctx)
		})
	}
	err = joinAndWait(join, logger, stop, failed, func() {
		clients.serveFirst()
		if len(sockets.bus)+len(sockets.busClients) > 0 {
			preparing.tasks.Go(func() { prepareBus(preparing, s, definitionsOf(node), entities, logger) })
		}
		logger.Info("node serves clients", "amqp", addresses(sockets.clients))
		manager.ready()
	})
	return errors.Join(err, shutdown(logger, stop, manager.stop, server.Shutdown, bus.Shutdown, page.Close, api.Close,
		func(ctx context.Context) error { node.Leave(ctx); return nil }, func(context.Context) error { return node.Close() }))
}

// joinAndWait makes a node join its cluster and then serve clients. It returns when the node is
// told to stop, or with the reason why it cannot go on.
func joinAndWait(join func(context.Context) error, logger *slog.Logger, stop <-chan os.Signal, failed <-chan error, serveClients func()) (err error) {
	joining, cancel := context.WithCancel(context.Background())
	defer cancel()
	joined := make(chan error, 1)
	go func() { joined <- join(joining) }()
	for {
		select {
		case err = <-joined:
			joined = nil
			if err == nil {
				serveClients()
				continue
			}
		case err = <-failed:
		case sig := <-stop:
			logger.Info("node is stopping", "signal", sig.String())
		}
		break
	}
	if cancel(); joined != nil {
		<-joined // the node must not join while it is closed
	}
	return err
}

// amqpConfig is the configuration of the AMQP server.
func amqpConfig(s *settings, node *cluster.Node, counts *churn, logger *slog.Logger, records *audit.Log) amqp.Config {
	held := cmp.Or(int64(s.heldByNode), max(s.memoryLimit.OnMachine()/4, 64<<20))
	return amqp.Config{
		HeldByConnection: int64(s.heldByConnection), HeldByNode: held, HeldByUser: cmp.Or(int64(s.heldByUser), held/2),
		Broker: brokerAdapter{node.Sessions(), counts}, Logger: logger,
		// The first one answers what none of them speaks.
		Protocols: []amqp.Protocol{
			v10.Protocol{Ready: node.KeepsBare, Node: s.nodeName, SessionMax: s.sessionMax, LinkMax: s.linkMax, DefaultVHost: s.vhost, Refused: counts.refuse},
			v091.Protocol{ChannelMax: uint16(s.channelMax), MaxConsumers: s.maxConsumers},
		},
		FrameMax: uint32(s.frameMax), InitialFrameMax: uint32(s.initialFrameMax),
		Heartbeat: amqpHeartbeat(s.heartbeat), HandshakeTimeout: s.handshakeTimeout,
		MaxMessageSize: s.maxMessageSize, Version: cluster.Version,
		CertificateUser: certificateUser(s.loginFrom), AnonymousUser: s.anonymous, ServerProperties: map[string]string{"product": s.product},
		Refused: auditRefusals(records),
	}
}

// shutdown ends the parts of the node in order: clients first, then leaderships are handed over,
// stores last. A further signal ends all waiting.
func shutdown(logger *slog.Logger, stop <-chan os.Signal, parts ...func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	go func() {
		select {
		case sig := <-stop:
			logger.Info("node stops immediately", "signal", sig.String())
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

// serveHTTP serves the API and the metrics of a node.
func serveHTTP(s *settings, node *cluster.Node, sockets listeners, logger *slog.Logger, records *audit.Log, again *reloader, failed chan<- error) (*mgmt.Server, *metrics.Server, error) {
	guard, err := s.guard()
	if err != nil {
		return nil, nil, err
	}
	backend := node.Management()
	backend.Effective = func() map[string]string { return again.effective(s) }
	api := mgmt.New(backend, logger, guard)
	api.SetAudit(records)
	page := node.Metrics().Server(logger, metrics.Access{Guard: guard, Login: metricsLogin(s.metricsLogin, api)})
	serveAt(sockets.management, api.Serve, failed)
	serveAt(sockets.metrics, page.Serve, failed)
	return api, page, nil
}

// serveAt serves listeners until the server is closed.
func serveAt(sockets []socket, serve func(net.Listener) error, failed chan<- error) {
	for _, w := range sockets {
		go func() { failed <- serve(w.listener) }()
	}
}

// metricsLogin passes on requests that may see the metrics, by the setting
// prometheus.authentication.enabled, and answers the others.
func metricsLogin(whom string, api *mgmt.Server) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		local := err == nil && from.Addr().Unmap().IsLoopback()
		return whom == "false" || whom == "remote" && local || api.LetsMonitor(w, r)
	}
}

// guard knows the host names that URLs of this node may contain: besides the listed ones those of
// its host, long and short, and those that nodes are given by.
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

// amqpHeartbeat converts the setting to the server's value, where negative means none.
func amqpHeartbeat(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

func nodeConfig(s *settings, peers net.Listener, wall func() time.Time, logger *slog.Logger) cluster.Config {
	finder := discovery.New()
	return cluster.Config{
		Name: s.nodeName, ClusterName: s.cluster, DataDir: s.dataDir, Nodes: s.nodes, Contacts: s.contacts,
		Listener: peers, Versions: s.test.versions(),
		Dial: finder.Dial, Resolve: finder.Addresses,
		Clock: wall,
		Exit:  os.Exit, Logger: logger, Properties: v091.Properties{Properties: message.Properties{ContinueHistory: s.deadLetters == "3"}}, Fields: message.Fields, Filters: topics.Filters{},
		Defaults:     catalog.Defaults{ConsumerTimeout: fsm.Millis(s.consumerTimeout.Milliseconds()), DisconnectedTimeout: fsm.Millis(s.disconnectedTimeout.Milliseconds()), TimeoutAction: catalog.TimeoutAction(s.timeoutAction)},
		DefaultVHost: s.vhost, DefaultQueueType: s.queueType, DefaultUser: s.user, DefaultPassword: s.password, LoopbackUsers: s.loopbackUsers, Logins: s.logins, Seeds: s.seed.seeds(),
		MemTableBytes: int64(s.walSize), RetainedBytes: int64(s.retained), Heartbeat: s.raftHeartbeat, IdleAfter: s.idleAfter, KeepAwake: s.keepAwake, LeaderlessGrace: s.leaderlessGrace, GroupSize: s.groupSize,
		LeaderLocator: catalog.Locator(s.leaderLocator), Watchdog: s.watchdog,
		MemoryLimit: s.memoryLimit, DiskLimit: s.diskLimit,
	}
}

// supervisor tells the service manager that started this process, such as systemd, how it is doing.
// Without one (no NOTIFY_SOCKET) it does nothing.
type supervisor struct {
	logger *slog.Logger
	// every is the interval of signs of life: a third of the time after which the service manager
	// takes the process for dead; 0: it does not want any.
	every  time.Duration
	health health

	ending  chan struct{}
	running sync.WaitGroup
	last    string // the last description sent
}

// health is what a node knows about itself.
type health interface {
	// NotReady says why clients are not served; empty: they are.
	NotReady() string
	// Dead says why the process should be restarted; empty: it makes progress.
	Dead() string
}

// describeEvery is how often the description of the process is checked, unless signs of life are due
// more often.
const describeEvery = time.Second

// supervise begins to describe the process to the service manager.
func supervise(logger *slog.Logger, h health) *supervisor {
	s := &supervisor{logger: logger, health: h, ending: make(chan struct{})}
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		logger.Warn("the service manager's watchdog is not notified", "error", err)
	}
	s.every = limit / 3
	if os.Getenv("NOTIFY_SOCKET") != "" {
		s.running.Go(s.run)
	}
	return s
}

// run keeps the description current, and sends signs of life while the process makes progress. If a
// part of the node is stuck, the check does not return and there are no more signs of life.
func (s *supervisor) run() {
	every := describeEvery
	if s.every > 0 {
		every = min(every, s.every)
	}
	var due time.Time
	worker.Every(s.ending, every, func() {
		var states []string
		if d := s.description(); d != s.last {
			s.last, states = d, append(states, "STATUS="+d)
		}
		if s.every > 0 && !time.Now().Before(due) {
			due = time.Now().Add(s.every)
			if why := s.health.Dead(); why != "" {
				s.logger.Error("the process makes no progress; the service manager's watchdog is not notified", "reason", why)
			} else {
				states = append(states, daemon.SdNotifyWatchdog)
			}
		}
		s.notify(strings.Join(states, "\n"))
	})
}

func (s *supervisor) description() string {
	if why := s.health.NotReady(); why != "" {
		return why
	}
	return "the node serves clients"
}

// notify sends a state, if any.
func (s *supervisor) notify(state string) {
	if state == "" {
		return
	}
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.logger.Warn("the service manager is not notified", "error", err)
	}
}

// ready reports that the node serves clients.
func (s *supervisor) ready() { s.notify(daemon.SdNotifyReady) }

// stop reports that the process ends, and ends the signs of life: the service manager bounds by itself
// how long it waits. It returns when the last check has, or ctx ends.
func (s *supervisor) stop(ctx context.Context) error {
	close(s.ending)
	s.notify(daemon.SdNotifyStopping + "\nSTATUS=the node is stopping")
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	return nil
}

// monitorOption keeps the thread by which Go's runtime watches its processors from going to sleep when
// all of them are idle for a moment: waking it again costs a server that has a message now and then a
// third of its processor time, see cluster/DESIGN.md, "The runtime's monitor". The number is how many
// milliseconds pass between two lines SCHED that the option writes to standard error; it is the largest
// one.
const monitorOption = "schedtrace=2147483647"

// monitored adds the option to those of the runtime, unless they have it, and reports whether they are
// others now.
func monitored(environment []string) ([]string, bool) {
	const name = "GODEBUG="
	options := monitorOption
	var rest []string
	for _, v := range environment {
		if !strings.HasPrefix(v, name) {
			rest = append(rest, v)
			continue
		}
		for _, o := range strings.Split(v[len(name):], ",") {
			if strings.HasPrefix(o, "schedtrace=") {
				return environment, false
			}
		}
		if v != name {
			options = v[len(name):] + "," + monitorOption
		}
	}
	return append(rest, name+options), true
}

// keepMonitorAwake starts the program again in the same process, with the option: the runtime reads it
// when a program starts, and never again. It returns if the option is there or cannot be had.
func keepMonitorAwake() {
	environment, changed := monitored(os.Environ())
	if !changed {
		return
	}
	path, err := os.Executable()
	if err == nil {
		err = syscall.Exec(path, os.Args, environment)
	}
	slog.Debug("the runtime's monitor may sleep", "error", err)
}

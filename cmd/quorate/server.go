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
	"syscall"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/cluster"
	"github.com/quorate/quorate/cluster/mgmt"
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
	logger, closeLog, err := openLog(s)
	if err != nil {
		return err
	}
	defer closeLog()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	return serve(s, logger, stop)
}

// openLog opens the log.
func openLog(s *settings) (*slog.Logger, func(), error) {
	var to io.Writer = os.Stderr
	closeLog := func() {}
	if s.logFile != "" {
		if err := os.MkdirAll(filepath.Dir(s.logFile), 0o700); err != nil {
			return nil, nil, err
		}
		f, err := os.OpenFile(s.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, nil, err
		}
		to, closeLog = f, func() { f.Close() }
	}
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warning": slog.LevelWarn, "error": slog.LevelError,
	}
	options := &slog.HandlerOptions{Level: levels[s.logLevel]}
	var h slog.Handler = slog.NewTextHandler(to, options)
	if s.logFormat == "json" {
		h = slog.NewJSONHandler(to, options)
	}
	return slog.New(h).With("node", s.nodeName), closeLog, nil
}

// listeners are the node's ways in.
type listeners struct{ amqp, management, peers net.Listener }

func listen(s *settings) (l listeners, err error) {
	for _, at := range []struct {
		to      *net.Listener
		address string
	}{{&l.peers, s.peers}, {&l.management, s.management}, {&l.amqp, s.amqp}} {
		if *at.to, err = net.Listen("tcp", at.address); err != nil {
			l.close()
			return l, err
		}
	}
	return l, nil
}

func (l listeners) close() {
	for _, x := range []net.Listener{l.amqp, l.management, l.peers} {
		if x != nil {
			x.Close()
		}
	}
}

// serve runs a node until it is told to stop.
func serve(s *settings, logger *slog.Logger, stop <-chan os.Signal) error {
	ways, err := listen(s)
	if err != nil {
		return err
	}
	defer ways.close()
	node, err := cluster.Open(nodeConfig(s, ways.peers, logger))
	if err != nil {
		return err
	}
	api := mgmt.New(node, logger)
	failed := make(chan error, 3)
	go func() { failed <- api.Serve(ways.management) }()
	front, err := amqp.New(amqp.Config{
		Broker: frontBroker{node.Broker()}, Logger: logger,
		FrameMax: uint32(s.frameMax), InitialFrameMax: uint32(s.initialFrameMax), ChannelMax: uint16(s.channelMax),
		Heartbeat: frontHeartbeat(s.heartbeat), HandshakeTimeout: s.handshakeTimeout,
		MaxMessageSize: s.maxMessageSize, MaxConsumers: s.maxConsumers, Version: cluster.Version,
	})
	if err != nil {
		return errors.Join(err, api.Close(context.Background()), node.Close())
	}
	joining, cancel := context.WithCancel(context.Background())
	defer cancel()
	joined := make(chan error, 1)
	go func() { joined <- node.Join(joining) }()
	logger.Info("node started", "version", cluster.Version, "peers", ways.peers.Addr().String(), "http", ways.management.Addr().String())
	for {
		select {
		case err = <-joined:
			if err == nil {
				joined = nil
				go func() { failed <- front.Serve(ways.amqp) }()
				logger.Info("node serves clients", "amqp", ways.amqp.Addr().String())
				continue
			}
		case err = <-failed:
		case sig := <-stop:
			logger.Info("node stops", "signal", sig.String())
		}
		break
	}
	return errors.Join(err, shutdown(node, front, api, logger))
}

// shutdown ends the node in order: clients first, stores last.
func shutdown(node *cluster.Node, front *amqp.Server, api *mgmt.Server, logger *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	errs := []error{front.Shutdown(ctx), api.Close(ctx), node.Close()}
	logger.Info("node has stopped")
	return errors.Join(errs...)
}

// frontHeartbeat turns the setting into the front's value, where negative is none.
func frontHeartbeat(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

func nodeConfig(s *settings, peers net.Listener, logger *slog.Logger) cluster.Config {
	var dialer net.Dialer
	return cluster.Config{
		Name: s.nodeName, ClusterName: s.cluster, DataDir: s.dataDir, Nodes: s.nodes,
		Listener: peers,
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		},
		Clock: func() fsm.Time { return fsm.Time(time.Now().UnixMilli()) },
		Exit:  os.Exit, Logger: logger, Properties: amqp.Properties{},
		Defaults:     catalog.Defaults{ConsumerTimeout: fsm.Millis(s.consumerTimeout.Milliseconds())},
		DefaultVHost: s.vhost, DefaultUser: s.user, DefaultPassword: s.password, LoopbackUsers: s.loopbackUsers,
		MemTableBytes: int64(s.walSize), Heartbeat: s.raftHeartbeat, LeaderlessGrace: s.leaderlessGrace, SilentGrace: s.silentGrace, GroupSize: s.groupSize,
	}
}

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

// suite is the whole set of measurements on a cluster of its own.
type suite struct {
	binary   string
	dir      string
	json     string
	duration time.Duration
	waiting  int
	passed   int
	only     string

	target  *target
	cluster *cluster.Cluster
	results []result
}

func runSuite(ctx context.Context, fs *flag.FlagSet, args []string) (err error) {
	s := &suite{}
	fs.StringVar(&s.binary, "binary", "bin/quorate", "the server `binary`")
	fs.StringVar(&s.dir, "dir", "", "`folder` for the cluster's data and logs; empty: a temporary one")
	fs.StringVar(&s.json, "json", "", "write the results to this `file` as JSON, too")
	fs.DurationVar(&s.duration, "duration", 15*time.Second, "how `long` each throughput run publishes")
	fs.IntVar(&s.waiting, "backlog", 1_000_000, "`messages` left waiting in the backlog run")
	fs.IntVar(&s.passed, "pinned", 1_000_000, "`messages` passed through behind the pinned one")
	fs.StringVar(&s.only, "only", "", "run only the measurements whose name holds this `text`")
	if err := parse(fs, args); err != nil {
		return err
	}
	if s.dir == "" {
		if s.dir, err = os.MkdirTemp("", "quorate-bench"); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				err = fmt.Errorf("%w\nthe cluster's data and logs are in %s", err, s.dir)
				return
			}
			err = os.RemoveAll(s.dir)
		}()
	}
	if s.cluster, err = cluster.Start(ctx, cluster.Options{Binary: s.binary, Dir: s.dir}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.cluster.Stop()) }()
	s.target = &target{uris: s.cluster.URIs(), queueType: "quorum"}
	s.findProcesses()
	return errors.Join(s.run(ctx), publishResults(s.results, s.json))
}

// findProcesses takes in the nodes' process ids, which change with a restart.
func (s *suite) findProcesses() {
	s.target.pids = nil
	for _, n := range s.cluster.Nodes {
		s.target.pids = append(s.target.pids, n.PID)
	}
}

func (s *suite) run(ctx context.Context) error {
	warm := defaultShape
	warm.duration = 2 * time.Second
	if _, err := throughput(ctx, s.target, warm); err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	pass, wait := backlogShape, backlogShape
	pass.messages, wait.messages = s.passed, s.waiting
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"throughput, 1 queue", func() error { return s.throughput(ctx, 1) }},
		{"throughput, 10 queues", func() error { return s.throughput(ctx, 10) }},
		{"latency", func() error { return s.add(latency(ctx, s.target, 5000, 1024)) }},
		{"ttl", func() error { return s.add(lateness(ctx, s.target, 20_000, 200*time.Millisecond, 5*time.Second)) }},
		{"pinned", func() error { return s.add(pinned(ctx, s.target, pass, filepath.Join(s.dir, "data"))) }},
		{"backlog", func() error { return s.backlog(ctx, wait) }},
	} {
		if !strings.Contains(step.name, s.only) {
			continue
		}
		if err := step.run(); err != nil {
			return err
		}
	}
	return nil
}

// add keeps a result and says at once what it is.
func (s *suite) add(r result, err error) error {
	if err != nil {
		return err
	}
	s.results = append(s.results, r)
	fmt.Printf("%s: %d messages in %.1f s\n", r.Name, r.Messages, r.Seconds)
	return nil
}

func (s *suite) throughput(ctx context.Context, queues int) error {
	shape := defaultShape
	shape.queues, shape.duration = queues, s.duration
	return s.add(throughput(ctx, s.target, shape))
}

// backlog leaves messages waiting, kills and restarts a node and then all
// nodes, and consumes what waits.
func (s *suite) backlog(ctx context.Context, shape shape) error {
	results, err := backlog(ctx, s.target, shape, func(queue string, fill *result) error {
		defer s.findProcesses()
		first := s.cluster.Nodes[:1]
		if err := s.restart(ctx, queue, first, "one node serves again after", fill); err != nil {
			return err
		}
		return s.restart(ctx, queue, s.cluster.Nodes, "the whole cluster serves again after", fill)
	})
	for _, r := range results {
		err = errors.Join(err, s.add(r, nil))
	}
	return err
}

// restart kills nodes, starts them again, and notes how long it takes from the
// start until each answers for the queue.
func (s *suite) restart(ctx context.Context, queue string, nodes []*cluster.Node, name string, r *result) error {
	for _, n := range nodes {
		if err := n.Kill(ctx); err != nil {
			return err
		}
	}
	began := time.Now()
	for _, n := range nodes {
		if err := n.Restart(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, cluster.StartTimeout)
	defer cancel()
	for _, n := range nodes {
		if err := n.AwaitReady(ctx); err != nil {
			return err
		}
		if err := s.awaitQueue(ctx, n, queue); err != nil {
			return err
		}
	}
	r.note(name, time.Since(began).Seconds(), "s")
	return nil
}

// awaitQueue asks a node for the queue until it answers with all messages.
func (s *suite) awaitQueue(ctx context.Context, n *cluster.Node, queue string) error {
	one := target{uris: []string{n.URI()}}
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		ready, err := one.ready(queue)
		if err == nil && ready == s.waiting {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("node %d: %d of %d messages in %s", n.Number, ready, s.waiting, queue), err, ctx.Err())
		case <-poll.C:
		}
	}
}

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

// rejoinTimeout bounds the restart of a node, with however many queues.
const rejoinTimeout = 3 * time.Minute

// step is one measurement of a suite.
type step struct {
	name string
	run  func(ctx context.Context) (result, error)
}

// commonSteps are those that any broker can run.
func commonSteps(t *target, duration time.Duration) []step {
	var all []step
	for _, size := range []int{1024, 100, 10 << 10} {
		for _, queues := range []int{1, 10} {
			s := defaultShape
			s.queues, s.size, s.duration = queues, size, duration
			all = append(all, step{fmt.Sprintf("throughput, %d queues, %d bytes", queues, size),
				func(ctx context.Context) (result, error) { return throughput(ctx, t, s) }})
		}
	}
	return append(all,
		step{"latency", func(ctx context.Context) (result, error) { return latency(ctx, t, during(duration), 1024) }},
		step{"rate", func(ctx context.Context) (result, error) { return fixedRate(ctx, t, during(duration), 1024, 2000) }},
	)
}

// ttlSteps let n messages expire: with one TTL, and with TTLs drawn from a range.
func ttlSteps(t *target, messages int, one, from, to time.Duration) []step {
	return []step{
		{"ttl one", func(ctx context.Context) (result, error) { return lateness(ctx, t, messages, one, one) }},
		{"ttl mixed", func(ctx context.Context) (result, error) { return lateness(ctx, t, messages, from, to) }},
	}
}

func failoverSteps(on faulty, all ...failover) []step {
	var steps []step
	for _, f := range all {
		steps = append(steps, step{f.name(), func(ctx context.Context) (result, error) { return f.run(ctx, on) }})
	}
	return steps
}

// warmUp runs all parts of a broker once before anything is measured.
func warmUp(ctx context.Context, t *target, duration time.Duration) error {
	s := defaultShape
	s.duration = duration
	if _, err := throughput(ctx, t, s); err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	return nil
}

// What counts as idle: of the processors, this part of a core over this long.
const (
	calmPart = 0.1
	calmOver = 500 * time.Millisecond
)

// warmTime is how long a cluster is warmed up, and calmTimeout how long it may take to become idle,
// unless time is short.
const (
	warmTime    = 2 * time.Second
	calmTimeout = 20 * time.Second
)

// calm waits, at most for bound, until the servers have finished the work left by the run before,
// such as deleting its messages from disk. It returns the part of a core that they last used.
func calm(ctx context.Context, pids []int, bound time.Duration) (part float64, err error) {
	for end := clock() + bound; ; {
		before, err := cpuSeconds(pids)
		if err != nil {
			return 0, err
		}
		if err := pause(ctx, calmOver); err != nil {
			return 0, err
		}
		after, err := cpuSeconds(pids)
		if err != nil {
			return 0, err
		}
		part = (after - before) / calmOver.Seconds()
		if part < calmPart || clock() > end {
			return part, nil
		}
	}
}

// selected reports whether a step was requested: its name without its commas contains one of the
// comma-separated texts; none given: all steps.
func selected(name, only string) bool {
	name = strings.ReplaceAll(name, ",", "")
	for text := range strings.SplitSeq(only, ",") {
		if strings.Contains(name, strings.TrimSpace(text)) {
			return true
		}
	}
	return false
}

// suite is the whole set of measurements on a cluster of its own.
type suite struct {
	*lab
	duration time.Duration
	rounds   int
	waiting  int
	passed   int
	expiring int
	slow     int
	queues   int
	away     time.Duration
	behind   int
	restarts int
	later    int
	locks    int
	groups   int
	onward   int
	only     string
}

func runSuite(ctx context.Context, fs *flag.FlagSet, args []string) (err error) {
	s := &suite{lab: labFlags(fs)}
	fs.IntVar(&s.nodes, "nodes", 3, "`number` of nodes of the cluster, 3 to 7; queues have three replicas")
	fs.DurationVar(&s.duration, "duration", 10*time.Second, "how `long` each throughput run publishes")
	fs.IntVar(&s.rounds, "runs", 1, "`rounds`, of which the table shows the medians")
	fs.IntVar(&s.waiting, "backlog", 1_000_000, "`messages` left waiting in the backlog run; 0: no such run")
	fs.IntVar(&s.passed, "pinned", 1_000_000, "`messages` passed through behind the pinned one; 0: no such run")
	fs.IntVar(&s.expiring, "mortal", 1_000_000, "`messages` that die at once in the runs expiry; 0: no such runs")
	fs.IntVar(&s.slow, "timeouts", 10_000, "`consumers` that time out at once in the run timeouts, 1 … 100000; 0: no such run")
	fs.IntVar(&s.queues, "queues", 10_000, "`number` of queues in the run queues, which -only asks for")
	fs.DurationVar(&s.away, "away", time.Minute, "how `long` a follower is away in the run follower away; 0: no such run")
	fs.IntVar(&s.behind, "away-backlog", 1_000_000, "`messages` that wait meanwhile")
	fs.IntVar(&s.restarts, "restart-queues", 300, "`number` of queues in the run restart of all; 0: no such run")
	fs.IntVar(&s.later, "scheduled", 1_000_000, "`messages` that wait until much later in the run scheduled; 0: no such run")
	fs.IntVar(&s.locks, "locks", 100_000, "`locks` held at the same time in the runs locks; 0: no such runs")
	fs.IntVar(&s.groups, "groups", 100_000, "`groups` in the run groups; 0: no such run")
	fs.IntVar(&s.onward, "forward", 100_000, "`messages` of each of the runs forward; 0: no such runs")
	fs.StringVar(&s.only, "only", "", "run only the measurements whose names, without commas, hold one of these comma-separated `texts`")
	if err := parse(fs, args); err != nil {
		return err
	}
	if s.rounds < 1 || s.rounds > 100 {
		return errors.New("-runs must be between 1 and 100")
	}
	if s.nodes < 3 || s.nodes > 7 {
		return errors.New("-nodes must be between 3 and 7")
	}
	if s.slow < 0 || s.slow > maxSlow {
		return fmt.Errorf("-timeouts must be between 0 and %d", maxSlow)
	}
	if s.only == "queues" {
		return manyQueues(ctx, s.lab, s.queues, false)
	}
	var all collection
	err = s.with(ctx, func() error {
		if err := warmUp(ctx, s.target, warmTime); err != nil {
			return err
		}
		for range s.rounds {
			if err := s.round(ctx, &all); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, publishResults(all.medians(), s.json))
}

func (s *suite) round(ctx context.Context, all *collection) error {
	steps := commonSteps(s.target, s.duration)
	steps = append(steps, ttlSteps(s.target, 10_000, 5*time.Second, time.Second, 30*time.Second)...)
	steps = append(steps, failoverSteps(s.lab, failover{queues: 1}, failover{queues: 10},
		failover{queues: 1, freeze: true}, failover{queues: 10, freeze: true})...)
	steps = append(steps, step{"wrong logins", func(ctx context.Context) (result, error) { return s.wrongLogins(ctx, 3*s.duration) }})
	for _, st := range steps {
		if !selected(st.name, s.only) {
			continue
		}
		if _, err := calm(ctx, s.target.pids, calmTimeout); err != nil {
			return err
		}
		r, err := st.run(ctx)
		if err != nil {
			return err
		}
		all.add("", r)
	}
	if selected(hungDisk, s.only) {
		r, ok, err := s.hang(ctx, 1)
		if err != nil {
			return err
		}
		if ok {
			all.add("", r)
		}
	}
	if selected("rolling restart", s.only) {
		if err := rollBoth(ctx, s.lab, defaultRollQueues, defaultRollRate, all); err != nil {
			return err
		}
	}
	if err := s.deaths(ctx, all); err != nil {
		return err
	}
	if s.slow > 0 && selected("timeouts", s.only) {
		if _, err := calm(ctx, s.target.pids, calmTimeout); err != nil {
			return err
		}
		r, err := timeouts(ctx, s.target, s.slow)
		if err != nil {
			return err
		}
		all.add("", r)
	}
	if err := s.timed(ctx, all); err != nil {
		return err
	}
	if err := s.returns(ctx, all); err != nil {
		return err
	}
	pass, wait := backlogShape, backlogShape
	pass.messages, wait.messages = s.passed, s.waiting
	if s.passed > 0 && selected("pinned", s.only) {
		r, err := pinned(ctx, s.target, pass, s.data)
		if err != nil {
			return err
		}
		all.add("", r)
	}
	if s.waiting > 0 && selected("backlog", s.only) {
		return s.backlog(ctx, wait, all)
	}
	return nil
}

// timed schedules messages, holds them by locks, hands out groups, and forwards.
func (s *suite) timed(ctx context.Context, all *collection) error {
	one := func(r result, err error) ([]result, error) { return []result{r}, err }
	shape := defaultShape
	shape.duration = s.duration
	for _, st := range []struct {
		name   string
		wanted bool
		run    func() ([]result, error)
	}{
		{"scheduled", s.later > 0, func() ([]result, error) { return one(scheduled(ctx, s.target, s.later, soonMessages)) }},
		{"locks", s.locks >= lockQueues, func() ([]result, error) { return renewedLocks(ctx, s.target, s.locks, 3) }},
		{"with locks", s.locks > 0, func() ([]result, error) { return lockedThroughput(ctx, s.target, shape) }},
		{"groups", s.groups > 0, func() ([]result, error) { return one(groups(ctx, s.target, s.groups)) }},
		{"forward", s.onward > 0, func() ([]result, error) { return forwarded(ctx, s.target, s.onward) }},
	} {
		if !st.wanted || !selected(st.name, s.only) {
			continue
		}
		if _, err := calm(ctx, s.target.pids, calmTimeout); err != nil {
			return err
		}
		results, err := st.run()
		if err != nil {
			return err
		}
		for _, r := range results {
			all.add("", r)
		}
	}
	return nil
}

// returns takes a follower, and then all nodes, away and back.
func (s *suite) returns(ctx context.Context, all *collection) error {
	if s.away > 0 && selected("follower away", s.only) {
		if _, err := calm(ctx, s.target.pids, calmTimeout); err != nil {
			return err
		}
		r, err := followerAway(ctx, s.lab, s.behind, s.away)
		if err != nil {
			return err
		}
		all.add("", r)
	}
	if s.restarts > 0 && selected("restart of all", s.only) {
		if _, err := calm(ctx, s.target.pids, calmTimeout); err != nil {
			return err
		}
		r, err := restartOfAll(ctx, s.lab, s.restarts)
		if err != nil {
			return err
		}
		all.add("", r)
	}
	return nil
}

// deaths lets messages leave a hold queue whose leader is killed, and a million expire at once.
func (s *suite) deaths(ctx context.Context, all *collection) error {
	if selected("hold", s.only) {
		results, err := heldThroughKill(ctx, s.lab, 10_000, 100*time.Millisecond, 20*time.Second)
		if err != nil {
			return err
		}
		for _, r := range results {
			all.add("", r)
		}
	}
	if s.expiring == 0 || !selected("expiry", s.only) {
		return nil
	}
	for _, deadLetter := range []bool{false, true} {
		if _, err := calm(ctx, s.target.pids, calmTimeout); err != nil {
			return err
		}
		r, err := expireAll(ctx, s.target, s.expiring, deadLetter)
		if err != nil {
			return err
		}
		all.add("", r)
	}
	return nil
}

// backlog leaves messages waiting, kills and restarts a node and then all nodes, and consumes what
// waits.
func (s *suite) backlog(ctx context.Context, shape shape, all *collection) error {
	results, err := backlog(ctx, s.target, shape, func(queue string, fill *result) error {
		defer s.findProcesses()
		first := s.cluster.Nodes[:1]
		if err := s.restart(ctx, queue, first, "one node serves again after", fill); err != nil {
			return err
		}
		return s.restart(ctx, queue, s.cluster.Nodes, "the whole cluster serves again after", fill)
	})
	for _, r := range results {
		all.add("", r)
	}
	return err
}

// restart kills nodes, starts them again, and measures the time from the start until each answers
// for the queue.
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

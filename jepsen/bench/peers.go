package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// peers puts quorate and other brokers through the same loads, one after the
// other in each round.
type peers struct {
	*lab
	duration time.Duration
	rounds   int
	only     string
	// rabbitRoot is the file system in which RabbitMQ is installed; empty: this one.
	rabbitRoot string
	brokers    []*broker
}

// broker is one of the brokers compared.
type broker struct {
	name string // as the flag -brokers has it
	// install ensures that the broker can be started, and sets about.
	install func(ctx context.Context, p *peers, b *broker) error
	about   string
	// with starts three nodes, calls do and stops them. on is nil for a broker whose nodes are not
	// made to fail.
	with func(ctx context.Context, p *peers, do func(t *target, on faulty) error) error

	results collection
}

// knownBrokers are all brokers that can be compared; ratios are those of the first to the others.
func knownBrokers() []*broker {
	var nats string
	build := func(sync string) func(context.Context, *peers, *broker) error {
		return func(ctx context.Context, _ *peers, b *broker) (err error) {
			b.about = "NATS JetStream " + natsVersion + ", work-queue streams with three replicas, " + sync
			nats, err = installNATS(ctx)
			return err
		}
	}
	return []*broker{
		{name: "quorate", with: withQuorate, install: func(_ context.Context, _ *peers, b *broker) error {
			b.about = "quorate, replicated queues"
			return nil
		}},
		{name: "quorate-plain", with: withPlainQuorate, install: func(_ context.Context, _ *peers, b *broker) error {
			b.about = "quorate, links between nodes not encrypted"
			return nil
		}},
		{name: "rabbitmq", with: withRabbit, install: func(ctx context.Context, p *peers, b *broker) error {
			version, err := installRabbit(ctx, p.rabbitRoot)
			b.about = "RabbitMQ " + version + ", quorum queues; other releases differ"
			return err
		}},
		{name: "nats-sync", install: build("synced before each answer (sync_interval: always)"),
			with: func(ctx context.Context, p *peers, do func(*target, faulty) error) error {
				return p.withNATS(ctx, nats, true, do)
			}},
		{name: "nats", install: build("synced every two minutes, the default: a crash of the machines loses messages"),
			with: func(ctx context.Context, p *peers, do func(*target, faulty) error) error {
				return p.withNATS(ctx, nats, false, do)
			}},
	}
}

func runPeers(ctx context.Context, fs *flag.FlagSet, args []string) error {
	p := &peers{lab: labFlags(fs)}
	names := fs.String("brokers", "quorate,rabbitmq,nats-sync,nats", "comma-separated `names` of the brokers; ratios are those of the first to the others")
	fs.DurationVar(&p.duration, "duration", 3*time.Second, "how `long` each run publishes")
	fs.IntVar(&p.rounds, "runs", 1, "`rounds`, of which the table shows the medians")
	fs.StringVar(&p.rabbitRoot, "rabbitmq-root", "", "`folder` with the root file system of a Debian in which rabbitmq-server is installed, in place of this machine's; needs root's rights")
	fs.StringVar(&p.only, "only", "", "run only the measurements whose names, without commas, hold one of these comma-separated `texts`")
	if err := parse(fs, args); err != nil {
		return err
	}
	if p.rounds < 1 || p.rounds > 100 || p.duration <= 0 {
		return errors.New("-runs must be between 1 and 100, -duration more than 0")
	}
	if err := p.choose(*names); err != nil {
		return err
	}
	for _, b := range p.brokers {
		if err := b.install(ctx, p, b); err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
	}
	return errors.Join(p.measure(ctx), p.report())
}

// choose returns the named brokers, in the order named.
func (p *peers) choose(names string) error {
	known := knownBrokers()
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(known, func(b *broker) bool { return b.name == strings.TrimSpace(name) })
		if i < 0 || slices.Contains(p.brokers, known[i]) {
			return fmt.Errorf("-brokers: %q is unknown or named twice", name)
		}
		p.brokers = append(p.brokers, known[i])
	}
	return nil
}

// measure runs every broker once per round. A failure ends that broker's part of the round; the
// rounds go on, and the error is returned in the end.
func (p *peers) measure(ctx context.Context) error {
	var errs []error
	for round := range p.rounds {
		for _, b := range p.brokers {
			label := fmt.Sprintf("round %d of %d, %s", round+1, p.rounds, b.name)
			began := time.Now()
			err := b.with(ctx, p, func(t *target, on faulty) error { return p.steps(ctx, label, b, t, on) })
			progress("%s: %.0f s in all", label, time.Since(began).Seconds())
			if err != nil {
				err = fmt.Errorf("%s: %w", label, err)
				progress("%v", err)
				errs = append(errs, err)
			}
			if ctx.Err() != nil {
				return errors.Join(append(errs, context.Cause(ctx))...)
			}
		}
	}
	return errors.Join(errs...)
}

// Parameters of the peers' runs of expiry and failure: short, so that a round of all brokers takes
// few minutes.
const (
	peerCalm   = 4 * time.Second
	peerTTL    = 2 * time.Second
	peerTTLMax = 5 * time.Second
)

func (p *peers) steps(ctx context.Context, label string, b *broker, t *target, on faulty) error {
	if err := warmUp(ctx, t, time.Second); err != nil {
		return err
	}
	all := commonSteps(t, p.duration)
	if on != nil {
		messages := int(p.duration.Seconds() * ttlRate)
		all = append(all, ttlSteps(t, messages, peerTTL, time.Second, peerTTLMax)...)
		all = append(all, failoverSteps(on, failover{queues: 1}, failover{queues: 10})...)
	}
	for _, st := range all {
		if !selected(st.name, p.only) {
			continue
		}
		if _, err := calm(ctx, t.pids, peerCalm); err != nil {
			return err
		}
		r, err := st.run(ctx)
		if err != nil {
			return err
		}
		r.Broker = b.name
		b.results.add(label, r)
	}
	return nil
}

// report prints the medians of all brokers, run by run.
func (p *peers) report() error {
	var all []result
	fmt.Println(heading())
	for _, b := range p.brokers {
		fmt.Printf("%s: %s\n", b.name, b.about)
		all = append(all, b.results.medians()...)
	}
	fmt.Printf("three nodes each on this machine; medians of %d rounds\n\n", p.rounds)
	var names []string
	for _, b := range p.brokers {
		names = append(names, b.name)
	}
	err := comparison(os.Stdout, names, all)
	if p.json == "" {
		return err
	}
	text, jsonErr := json.MarshalIndent(all, "", "  ")
	if jsonErr != nil {
		return errors.Join(err, jsonErr)
	}
	return errors.Join(err, os.WriteFile(p.json, append(text, '\n'), 0o644))
}

func withQuorate(ctx context.Context, p *peers, do func(*target, faulty) error) error {
	return p.with(ctx, func() error { return do(p.target, p.lab) })
}

func withPlainQuorate(ctx context.Context, p *peers, do func(*target, faulty) error) error {
	plain := *p.lab
	plain.links = linksPlain
	return plain.with(ctx, func() error { return do(plain.target, &plain) })
}

func withRabbit(ctx context.Context, p *peers, do func(*target, faulty) error) error {
	return inFolder(p.dir, func(dir string) error {
		r, err := startRabbit(ctx, dir, p.rabbitRoot)
		if err != nil {
			return err
		}
		return errors.Join(do(r.clients(), r), r.stop())
	})
}

func (p *peers) withNATS(ctx context.Context, binary string, sync bool, do func(*target, faulty) error) error {
	return inFolder(p.dir, func(dir string) error {
		n, err := startNATS(ctx, binary, dir, sync)
		if err != nil {
			return err
		}
		defer n.stop()
		return do(n.target(), nil)
	})
}

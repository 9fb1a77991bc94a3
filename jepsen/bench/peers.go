package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/report"
)

// peer is one of the brokers compared.
type peer struct {
	name, about string
	// install ensures that the broker can be started, and returns its version; nil: it can.
	install func(ctx context.Context) (version string, err error)
	// serve starts three nodes, lets the bench measure them, and stops them.
	serve func(b *bench, measure func()) error
}

// peers are all brokers that can be compared. root is the file system in which RabbitMQ is installed; empty: this one.
func peers(root *string) []peer {
	own := func(links string) func(*bench, func()) error {
		return func(b *bench, measure func()) error {
			l := *b.lab
			if links != "" {
				l.links = links
			}
			b.lab = &l
			return b.onLab(measure)
		}
	}
	const streams = "NATS JetStream %s, work-queue streams with three replicas, "
	return []peer{
		{"quorate", "quorate, replicated queues", nil, own("")},
		{"quorate-plain", "quorate, links between nodes not encrypted", nil, own("plain")},
		{"rabbitmq", "RabbitMQ %s, quorum queues; other releases differ",
			func(ctx context.Context) (string, error) { return installRabbit(ctx, *root) },
			func(b *bench, measure func()) error { return b.onRabbit(*root, measure) }},
		{"nats-sync", streams + "synced before each answer (sync_interval: always)", installNATS,
			func(b *bench, measure func()) error { return b.onNATS(true, measure) }},
		{"nats", streams + "synced every two minutes, the default: a crash of the machines loses messages", installNATS,
			func(b *bench, measure func()) error { return b.onNATS(false, measure) }},
	}
}

// Parameters of the peers' runs of expiry and failure: short, so that a round of all brokers takes
// few minutes.
const (
	peerCalm   = 4 * time.Second
	peerTTL    = 2 * time.Second
	peerTTLMax = 5 * time.Second
)

// peersVerb puts quorate and other brokers through the same loads, one after the other in each round. A failure
// ends that broker's part of the round; the rounds go on, and the error is returned in the end.
func peersVerb(f flags) func(context.Context) error {
	l, file := f.lab(), f.json()
	root := f.String("rabbitmq-root", "", "`folder` with the root file system of a Debian in which rabbitmq-server is installed, in place of this machine's; needs root's rights")
	names := f.String("brokers", "quorate,rabbitmq,nats-sync,nats", "comma-separated `names` of the brokers; ratios are those of the first to the others")
	duration := f.Duration("duration", 3*time.Second, "how `long` each run publishes")
	rounds, only := f.rounds(), f.only()
	return func(ctx context.Context) error {
		brokers, err := choose(peers(root), *names)
		if err != nil {
			return err
		}
		for i, p := range brokers {
			if p.install == nil {
				continue
			}
			version, err := p.install(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			brokers[i].about = fmt.Sprintf(p.about, version)
		}
		var errs []error
		results := make([][]report.Result, len(brokers))
		for round := range *rounds {
			for i, p := range brokers {
				label, began := fmt.Sprintf("round %d of %d, %s: ", round+1, *rounds, p.name), clock()
				b := &bench{ctx: ctx, lab: l, label: label, broker: p.name}
				err := p.serve(b, func() { b.peerSteps(*duration, *only) })
				progress("%s%.0f s in all", label, (clock() - began).Seconds())
				if err != nil {
					progress("%s%v", label, err)
					errs = append(errs, fmt.Errorf("%s%w", label, err))
				}
				results[i] = append(results[i], b.results...)
				if ctx.Err() != nil {
					return errors.Join(append(errs, context.Cause(ctx))...)
				}
			}
		}
		var all []report.Result
		var measured []string
		fmt.Println(report.Heading())
		for i, p := range brokers {
			fmt.Printf("%s: %s\n", p.name, p.about)
			measured, all = append(measured, p.name), append(all, report.Medians(results[i])...)
		}
		fmt.Printf("three nodes each on this machine; medians of %d rounds\n\n", *rounds)
		return errors.Join(append(errs, report.Compare(os.Stdout, measured, all, *file))...)
	}
}

// peerSteps are those that the broker can run.
func (b *bench) peerSteps(duration time.Duration, only string) {
	b.warmUp(time.Second)
	all := b.commonSteps(duration)
	if b.speaks10(b.ctx) {
		all = append(all, b.protocolSteps(duration, false)...)
	}
	if b.on != nil {
		n := int(duration.Seconds() * ttlRate)
		all = slices.Concat(all, b.ttlSteps(n, peerTTL, time.Second, peerTTLMax), b.failoverSteps(failover{queues: 1}, failover{queues: 10}))
	}
	b.steps(only, peerCalm, all)
}

// choose returns the named brokers, in the order named.
func choose(known []peer, names string) (chosen []peer, err error) {
	for name := range strings.SplitSeq(names, ",") {
		is := func(p peer) bool { return p.name == strings.TrimSpace(name) }
		i := slices.IndexFunc(known, is)
		if i < 0 || slices.ContainsFunc(chosen, is) {
			return nil, fmt.Errorf("-brokers: %q is unknown or named twice", name)
		}
		chosen = append(chosen, known[i])
	}
	return chosen, nil
}

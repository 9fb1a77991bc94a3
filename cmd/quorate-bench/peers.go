package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"
)

// peers puts quorate and another broker through the same loads, one after the
// other in each round.
type peers struct {
	*lab
	duration time.Duration
	rounds   int
	only     string

	ours, theirs collection
}

func runPeers(ctx context.Context, fs *flag.FlagSet, args []string) error {
	p := &peers{lab: labFlags(fs)}
	fs.DurationVar(&p.duration, "duration", 10*time.Second, "how `long` each throughput run publishes")
	fs.IntVar(&p.rounds, "runs", 1, "`rounds`, of which the tables show the medians")
	fs.StringVar(&p.only, "only", "", "run only the measurements whose names hold one of these comma-separated `texts`")
	if err := parse(fs, args); err != nil {
		return err
	}
	if p.rounds < 1 || p.rounds > 100 {
		return errors.New("-runs must be between 1 and 100")
	}
	version, err := installRabbit(ctx)
	if err != nil {
		return err
	}
	for range p.rounds {
		err = p.with(ctx, func() error { return p.steps(ctx, p.target, "quorate", &p.ours) })
		if err == nil {
			err = p.rabbit(ctx)
		}
		if err != nil {
			break
		}
	}
	ours, theirs := p.ours.medians(), p.theirs.medians()
	fmt.Println("\nquorate, three nodes")
	err = errors.Join(err, publishResults(ours, p.json))
	fmt.Printf("\nRabbitMQ %s (the installed package; newer releases differ), three nodes, quorum queues\n", version)
	return errors.Join(err, table(os.Stdout, theirs), ratios(os.Stdout, ours, theirs))
}

func (p *peers) rabbit(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp(p.dir, "quorate-bench-rabbitmq")
	if err != nil {
		return err
	}
	r, err := startRabbit(ctx, dir)
	if err != nil {
		return err
	}
	err = errors.Join(p.steps(ctx, r.target(), "RabbitMQ", &p.theirs), r.stop())
	if err != nil {
		return fmt.Errorf("%w\nRabbitMQ's data and logs are in %s", err, dir)
	}
	return os.RemoveAll(dir)
}

func (p *peers) steps(ctx context.Context, t *target, broker string, to *collection) error {
	if err := warmUp(ctx, t); err != nil {
		return fmt.Errorf("%s: %w", broker, err)
	}
	for _, st := range commonSteps(t, p.duration) {
		if !selected(st.name, p.only) {
			continue
		}
		if err := calm(ctx, t.pids); err != nil {
			return fmt.Errorf("%s: %w", broker, err)
		}
		r, err := st.run(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", broker, err)
		}
		fmt.Print(broker, ": ")
		to.add(r)
	}
	return nil
}

// ratios writes, for each run of both, the quotient of our figure and theirs.
func ratios(w io.Writer, ours, theirs []result) error {
	other := map[string]result{}
	for _, r := range theirs {
		other[r.Name] = r
	}
	fmt.Fprintln(w, "\nquorate / RabbitMQ")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "run\tmsg/s\tp50\tp99\tmax\tserver CPU\tpeak RSS\twritten\t")
	for _, a := range ours {
		b, both := other[a.Name]
		if !both {
			continue
		}
		x, y := a.Times, b.Times
		if x == nil || y == nil {
			x, y = &quantiles{}, &quantiles{}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", a.Name,
			ratio(a.PerSecond, b.PerSecond), ratio(x.P50, y.P50), ratio(x.P99, y.P99), ratio(x.Max, y.Max),
			ratio(a.ServerCPU, b.ServerCPU), ratio(float64(a.PeakRSS), float64(b.PeakRSS)), ratio(a.Written, b.Written))
	}
	return t.Flush()
}

// ratio is empty where one of the two was not measured.
func ratio(a, b float64) string {
	if a == 0 || b == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", a/b)
}

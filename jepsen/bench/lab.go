package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/quorate/quorate/jepsen/cluster"
)

// lab starts its own clusters on loopback.
type lab struct {
	binary string
	dir    string // parent of the clusters' folders
	json   string
	nodes  int    // 0: three
	links  string // between nodes: tls or plain

	data    string // folder of the running cluster's data
	cluster *cluster.Cluster
	target  *target
}

// labFlags adds the flags of every command that starts its own cluster.
func labFlags(fs *flag.FlagSet) *lab {
	l := &lab{}
	fs.StringVar(&l.binary, "binary", "bin/quorate", "the server `binary`")
	fs.StringVar(&l.dir, "dir", "", "`folder` for clusters' data and logs; empty: that for temporary files")
	fs.StringVar(&l.json, "json", "", "write the results to this `file` as JSON, too")
	fs.StringVar(&l.links, "links", linksTLS, "links between the nodes: tls or plain")
	return l
}

// Values of the flag links.
const (
	linksTLS   = "tls"
	linksPlain = "plain"
)

// options are those of the clusters to start.
func (l *lab) options(dir string) (cluster.Options, error) {
	o := cluster.Options{Binary: l.binary, Dir: dir, Nodes: l.nodes}
	switch l.links {
	case linksTLS:
	case linksPlain:
		o.Args = []string{"--set=cluster.ssl=none"}
	default:
		return o, fmt.Errorf("-links is %s or %s, not %q", linksTLS, linksPlain, l.links)
	}
	return o, nil
}

// start starts a cluster in a folder.
func (l *lab) start(ctx context.Context, dir string) (*cluster.Cluster, error) {
	o, err := l.options(dir)
	if err != nil {
		return nil, err
	}
	return cluster.Start(ctx, o)
}

// inFolder calls do with a new folder in parent, which is kept if anything goes wrong.
func inFolder(parent string, do func(dir string) error) error {
	dir, err := os.MkdirTemp(parent, "quorate-bench")
	if err != nil {
		return err
	}
	if err := do(dir); err != nil {
		return fmt.Errorf("%w\nthe cluster's data and logs are in %s", err, dir)
	}
	return os.RemoveAll(dir)
}

// with starts a cluster, calls do, and stops the cluster.
func (l *lab) with(ctx context.Context, do func() error) error {
	return inFolder(l.dir, func(dir string) (err error) {
		l.data = filepath.Join(dir, "data")
		if l.cluster, err = l.start(ctx, dir); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.cluster.Stop()) }()
		l.target = &target{uris: l.cluster.URIs(), queueType: "quorum"}
		l.findProcesses()
		return do()
	})
}

// findProcesses records the nodes' process ids, which change with a restart.
func (l *lab) findProcesses() {
	l.target.pids = nil
	for _, n := range l.cluster.Nodes {
		l.target.pids = append(l.target.pids, n.PID)
	}
}

func (l *lab) clients() *target { return l.target }

func (l *lab) leader(ctx context.Context, queue string) (int, error) {
	n, err := l.cluster.Leader(ctx, queue)
	if err != nil {
		return 0, err
	}
	return slices.Index(l.cluster.Nodes, n), nil
}

func (l *lab) kill(ctx context.Context, node int) error { return l.cluster.Nodes[node].Kill(ctx) }

// rejoin starts a killed node again and waits until it serves clients.
func (l *lab) rejoin(ctx context.Context, node int) error {
	n := l.cluster.Nodes[node]
	if err := n.Restart(); err != nil {
		return err
	}
	defer l.findProcesses()
	ctx, cancel := context.WithTimeout(ctx, rejoinTimeout)
	defer cancel()
	return n.AwaitReady(ctx)
}

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/quorate/quorate/jepsen/cluster"
)

// lab starts clusters of its own on loopback.
type lab struct {
	binary string
	dir    string // parent of the clusters' folders
	json   string

	data    string // folder of the running cluster's data
	cluster *cluster.Cluster
	target  *target
}

// labFlags adds the flags every command with a cluster of its own has.
func labFlags(fs *flag.FlagSet) *lab {
	l := &lab{}
	fs.StringVar(&l.binary, "binary", "bin/quorate", "the server `binary`")
	fs.StringVar(&l.dir, "dir", "", "`folder` for clusters' data and logs; empty: that for temporary files")
	fs.StringVar(&l.json, "json", "", "write the results to this `file` as JSON, too")
	return l
}

// with starts a three-node cluster with settings (KEY=VALUE), calls do, and
// stops the cluster. Its folder stays if anything went wrong.
func (l *lab) with(ctx context.Context, do func() error, settings ...string) (err error) {
	dir, err := os.MkdirTemp(l.dir, "quorate-bench")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\nthe cluster's data and logs are in %s", err, dir)
			return
		}
		err = os.RemoveAll(dir)
	}()
	binary, err := withSettings(l.binary, dir, settings)
	if err != nil {
		return err
	}
	l.data = filepath.Join(dir, "data")
	if l.cluster, err = cluster.Start(ctx, cluster.Options{Binary: binary, Dir: dir}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.cluster.Stop()) }()
	l.target = &target{uris: l.cluster.URIs(), queueType: "quorum"}
	l.findProcesses()
	return do()
}

// withSettings returns a program that runs the binary with the settings added.
func withSettings(binary, dir string, settings []string) (string, error) {
	if len(settings) == 0 {
		return binary, nil
	}
	binary, err := filepath.Abs(binary)
	if err != nil {
		return "", err
	}
	script := "#!/bin/sh\nexec " + quote(binary) + ` "$@"`
	for _, s := range settings {
		script += " --set " + quote(s)
	}
	path := filepath.Join(dir, "quorate-with-settings")
	return path, os.WriteFile(path, []byte(script+"\n"), 0o755)
}

// quote makes a word of a shell out of s.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// findProcesses takes in the nodes' process ids, which change with a restart.
func (l *lab) findProcesses() {
	l.target.pids = nil
	for _, n := range l.cluster.Nodes {
		l.target.pids = append(l.target.pids, n.PID)
	}
}

// without is the cluster as clients see it that do not connect to a node.
func (l *lab) without(gone *cluster.Node) *target {
	t := &target{queueType: l.target.queueType}
	for _, n := range l.cluster.Nodes {
		if n != gone {
			t.uris, t.pids = append(t.uris, n.URI()), append(t.pids, n.PID)
		}
	}
	return t
}

// rejoin starts a killed node again and waits until it serves clients.
func (l *lab) rejoin(ctx context.Context, n *cluster.Node) error {
	if err := n.Restart(); err != nil {
		return err
	}
	defer l.findProcesses()
	ctx, cancel := context.WithTimeout(ctx, rejoinTimeout)
	defer cancel()
	return n.AwaitReady(ctx)
}

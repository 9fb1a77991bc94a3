package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/quorate/quorate/jepsen/cluster"
)

// hang is the run in which the leader's disk hangs, on a cluster of its own whose nodes have disks
// of their own. It is skipped where such disks cannot be created.
func (l *lab) hang(ctx context.Context, queues int) (r result, ok bool, err error) {
	dir, err := os.MkdirTemp(l.dir, "quorate-bench")
	if err != nil {
		return r, false, err
	}
	var disks []*cluster.Disk
	defer func() {
		for _, d := range disks {
			err = errors.Join(err, d.Close())
		}
		if err == nil {
			err = os.RemoveAll(dir)
		}
	}()
	for k := range 3 {
		d, err := cluster.NewDisk(filepath.Join(dir, "data", fmt.Sprint("n", k+1)))
		if errors.Is(err, cluster.ErrNoDisks) {
			fmt.Fprintf(os.Stderr, "%s: left out: %v\n", hungDisk, err)
			return r, false, nil
		}
		if err != nil {
			return r, false, err
		}
		disks = append(disks, d)
	}
	own := &lab{binary: l.binary, nodes: l.nodes, links: l.links, dir: dir, data: filepath.Join(dir, "data")}
	if own.cluster, err = own.start(ctx, dir); err != nil {
		return r, false, err
	}
	defer func() { err = errors.Join(err, own.cluster.Stop()) }()
	own.target = &target{uris: own.cluster.URIs(), queueType: "quorum"}
	own.findProcesses()
	r, err = failover{queues: queues, disks: disks}.run(ctx, own)
	return r, err == nil, err
}

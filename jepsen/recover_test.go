package jepsen

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/workload"
)

// Two of three nodes are lost for good, with their data. The third one becomes
// a cluster by the operator's word, serves everything that it has, which is all
// that was confirmed, and two new nodes take the places of the others.
func TestRecover(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 2*time.Minute)
	tool, err := cluster.BuildTool(r.ctx, filepath.Dir(binary))
	r.must(err)
	const queues = 3
	var names []string
	for i := range queues {
		names = append(names, fmt.Sprint("kept", i))
	}
	r.mustDeclare(0, names...)
	stopped := r.publishInTurn(names, 2000, 512)
	r.must(r.awaitConfirms(r.ctx, 5000**scale))
	r.must(stopped())
	r.mustConverge() // a single replica may lack what the two others had confirmed

	survivor := r.Nodes[2]
	if out, err := survivor.Recover(r.ctx, tool, "--yes"); err == nil {
		t.Fatalf("a running node is recovered: %s", out)
	}
	for _, n := range r.Nodes {
		r.must(n.Kill(r.ctx))
	}
	for _, n := range r.Nodes[:2] {
		r.must(n.LoseData())
	}
	out, err := survivor.Recover(r.ctx, tool)
	r.must(err)
	for _, want := range append([]string{"Abandoned nodes: n1, n2", "Nothing has been changed"}, names...) {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in:\n%s", want, out)
		}
	}
	began := time.Now()
	_, err = survivor.Recover(r.ctx, tool, "--yes")
	r.must(err)
	r.must(survivor.Restart())
	r.must(survivor.AwaitReady(r.ctx))
	t.Logf("one node serves %v after the decision", time.Since(began).Round(time.Millisecond))
	for _, n := range r.Nodes[:2] {
		r.must(n.Restart())
		r.must(n.AwaitReady(r.ctx))
	}
	r.must(r.awaitMembers(r.ctx, names, 3))
	r.mustConverge()
	for _, q := range names {
		r.must(workload.Drain(r.ctx, r.Nodes[0].URI(), q, "drain "+q, r.History))
	}
	h := r.History
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h))
	r.mustConverge()
}

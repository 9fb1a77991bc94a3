package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A node that has lost a part of its data folder comes back without a hand, and
// elects nobody before it holds what it had: everything confirmed is there when
// the node that led is gone. It is the member that it was if what is left shows
// how it voted; else it joins anew.
func TestLostFolders(t *testing.T) {
	for _, tc := range []struct {
		name   string
		lost   []string
		rejoin bool
	}{
		{"queues", []string{"queues"}, false},
		{"catalog", []string{"catalog"}, false},
		{"both", []string{"queues", "catalog"}, false},
		{"both ledgers", []string{"ledger-queues", "ledger-catalog"}, false},
		{"queues and ledger", []string{"queues", "ledger-queues"}, true},
		{"catalog and ledger", []string{"catalog", "ledger-catalog"}, true},
		{"all but the node's file", []string{"queues", "ledger-queues", "catalog", "ledger-catalog", "node.lock", "node.json.copy"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			lostFolders(t, tc.lost, tc.rejoin)
		})
	}
}

func lostFolders(t *testing.T, lost []string, rejoin bool) {
	c := mustCluster(t)
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
	publish := func(n int) {
		for i := range n {
			cl.publish("q", fmt.Sprint("message ", i))
		}
		cl.confirmed()
	}
	publish(50)
	c.mustAgree()
	old, _ := c.all["n1"].View().NodeByName("n3")
	c.crash("n3")
	publish(10)
	for _, part := range lost {
		path := filepath.Join(c.dir, "n3", part)
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	c.mustOpen("n3")
	c.mustMembers("q", names...)
	until(t, "all nodes vote on the catalog", func() bool { return len(c.all["n1"].catalog.Voters()) == 3 })
	n := c.all["n3"]
	until(t, "nothing is in doubt", func() bool { return len(n.host.Learners()) == 0 && n.catalog.Doubt() == nil })
	now, _ := c.all["n1"].View().NodeByName("n3")
	if anew := !bytes.Equal(now.Identity, old.Identity); anew != rejoin {
		t.Errorf("it has joined anew: %v", anew)
	}
	publish(1)
	c.mustAgree()
	c.crash("n1")
	late := c.mustClient("n3")
	until(t, "everything is there", func() bool {
		info, err := late.count("q")
		return err == nil && info.Ready == 61
	})
}

// A node that has lost its catalog elects nobody while the only node that has
// all of it is down: with its vote, one that has missed a declaration could
// begin a history without it. When the third one is back, all goes on.
func TestLearnerElectsNobodyAlone(t *testing.T) {
	c := mustCluster(t)
	c.crash("n2")
	c.mustClient("n1").mustDeclare("missed by n2")
	c.crash("n1")
	c.crash("n3")
	if err := os.RemoveAll(filepath.Join(c.dir, "n3", "catalog")); err != nil {
		t.Fatal(err)
	}
	joined := make(chan error, 2)
	for _, name := range []string{"n2", "n3"} {
		n, err := Open(c.config(name))
		if err != nil {
			t.Fatal(err)
		}
		c.all[name] = n
		go func() { joined <- n.Join(t.Context()) }()
	}
	learner := c.all["n3"].catalog
	until(t, "n3 knows that it has lost its catalog", func() bool { return learner.Doubt() != nil })
	until(t, "they are linked", func() bool { return c.all["n2"].Online("n3") && c.all["n3"].Online("n2") })
	<-time.After(5 * time.Second) // n2 stands every second or two
	for _, name := range []string{"n2", "n3"} {
		if leader := c.all[name].catalog.Leader(); leader != "" {
			t.Errorf("%s leads the catalog, says %s", leader, name)
		}
	}
	if learner.Doubt() == nil {
		t.Error("n3 believes itself")
	}
	c.mustOpen("n1")
	for range cap(joined) {
		if err := <-joined; err != nil {
			t.Error(err)
		}
	}
	until(t, "n3 is up to date", func() bool { return learner.Doubt() == nil })
	for _, name := range names {
		until(t, "the queue is known at "+name, func() bool {
			_, ok := c.all[name].View().Queue("/", "missed by n2")
			return ok
		})
	}
	c.mustClient("n1").mustDeclare("later")
	c.mustAgree()
}

// The only node of a cluster that has lost its past does not begin a new one: it
// says so.
func TestLostFoldersOfOne(t *testing.T) {
	for _, lost := range []string{"queues", "catalog"} {
		c := mustCluster(t, alone)
		c.stop("n1")
		for _, part := range []string{lost, "ledger-" + lost} {
			if err := os.RemoveAll(filepath.Join(c.dir, "n1", part)); err != nil {
				t.Fatal(err)
			}
		}
		n, err := Open(c.config("n1"))
		if err == nil {
			c.all["n1"] = n
			t.Errorf("a node without %s starts", lost)
			continue
		}
		if !strings.Contains(err.Error(), "has lost its "+lost) {
			t.Errorf("without %s: %v", lost, err)
		}
	}
}

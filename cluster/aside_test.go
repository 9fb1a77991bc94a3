package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/quorate/quorate/cluster/membership"
	"github.com/quorate/quorate/cluster/mgmt/api"
)

// Two of three nodes are put back from older images and are the majority. The third keeps what it has of a queue
// that they know nothing of; what it sees being deleted it drops at once.
func TestOlderImagesDeleteNothing(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	p := c.mustClient("n1")
	p.mustDeclare("old")
	p.publish("old", "m")
	p.confirmed()
	c.mustAgree()
	c.closeAll()
	images, newest := t.TempDir(), t.TempDir()
	move := func(to, from string, what ...string) {
		t.Helper()
		for _, name := range what {
			if err := os.RemoveAll(filepath.Join(to, name)); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(filepath.Join(to, name), os.DirFS(filepath.Join(from, name))); err != nil {
				t.Fatal(err)
			}
		}
	}
	move(images, c.dir, "n1", "n2")
	c.mustOpen(names...)
	p = c.mustClient("n2")
	p.mustDeclare("new")
	p.publish("new", "m")
	p.confirmed()
	c.mustAgree()
	group := func(queue string) (id uint32) {
		t.Helper()
		q, ok := c.all["n3"].View().Queue("/", queue)
		if !ok {
			t.Fatalf("n3 does not know the queue %s", queue)
		}
		return uint32(q.Group)
	}
	stored := func(id uint32) bool {
		t.Helper()
		ids, err := c.all["n3"].stores.queues.GroupIDs()
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range ids {
			if uint32(x) == id {
				return true
			}
		}
		return false
	}
	older, newer := group("old"), group("new")
	c.closeAll()
	move(newest, c.dir, "n1", "n2")
	move(c.dir, images, "n1", "n2")
	c.mustGoOnWithout("n3")
	until(t, "n3 goes by the catalog of the others", func() bool { _, known := c.all["n3"].View().Queue("/", "new"); return !known })
	if !stored(newer) || slices.ContainsFunc(c.all["n3"].local.ReplicasOf("", false), func(r api.Replica) bool { return r.Name == "new" }) {
		t.Error("n3 has nothing of the queue, or serves it")
	}
	c.mustClient("n2").mustDelete("old")
	until(t, "n3 has dropped what was deleted", func() bool { return !stored(older) })
	if !stored(newer) {
		t.Error("n3 has dropped the other queue, too")
	}

	c.closeAll()
	move(c.dir, newest, "n1", "n2") // what n3 has of the catalog is later than what they have, and goes
	if err := os.RemoveAll(filepath.Join(c.dir, "n3", membership.CatalogFolder)); err != nil {
		t.Fatal(err)
	}
	c.mustOpen(names...)
	until(t, "the queue is known again", func() bool {
		for _, r := range c.all["n3"].local.ReplicasOf("new", false) {
			return r.Ready == 1
		}
		return false
	})
}

// mustGoOnWithout starts all nodes, one of them when the others have a catalog's leader, in a later term than it has
// seen: a majority that went back gives terms out again.
func (c *nodes) mustGoOnWithout(late string) {
	c.t.Helper()
	delete(c.all, late)
	open := func(name string) {
		n, err := Open(c.config(name))
		if err != nil {
			c.t.Fatal(err)
		}
		c.all[name] = n
	}
	for round := range 3 {
		for _, name := range names {
			if name != late && round > 0 {
				c.crash(name)
			}
			if name != late {
				open(name)
			}
		}
		until(c.t, "the others have a leader", func() bool {
			return slices.ContainsFunc(names, func(name string) bool { n := c.all[name]; return n != nil && n.catalog.Fresh() })
		})
	}
	var joined sync.WaitGroup
	for name, n := range c.all {
		joined.Go(func() {
			if err := n.Join(deadline(c.t)); err != nil {
				c.t.Errorf("%s does not join: %v", name, err)
			}
		})
	}
	c.mustOpen(late)
	joined.Wait()
}

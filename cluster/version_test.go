package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/membership"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
)

// mustBeAt waits until all nodes know the cluster to be of a version, and all
// replicas of a queue that has just been used are of it. What is large went to
// segments from segmentsSince on, and to none before.
func (c *nodes) mustBeAt(version uint32, queue string) {
	c.t.Helper()
	until(c.t, fmt.Sprint("all nodes are at version ", version), func() bool {
		for _, n := range c.all {
			if n.View().FSMVersion() != version || n.local.Status().FSMVersion != version {
				return false
			}
		}
		return true
	})
	cl := c.mustClient(c.other())
	defer cl.close()
	before := map[string]time.Time{}
	for name := range c.all {
		before[name] = c.segmentsWritten(name)
	}
	cl.publish(queue, fmt.Sprint("at version ", version))
	cl.publish(queue, strings.Repeat("large", 10<<10))
	cl.confirmed()
	c.mustAgree()
	for name, n := range c.all {
		if written := c.segmentsWritten(name); written.After(before[name]) != (version >= segmentsSince) {
			c.t.Errorf("at version %d the segments of %s were last written %v, %v before", version, name, written, before[name])
		}
		for _, g := range n.host.Groups() {
			if v := versionOf(g); v != version && g.Spec().Name == queue {
				c.t.Errorf("the replica of %s at %s is of version %d, want %d", queue, name, v, version)
			}
		}
	}
}

// segmentsWritten is when a node last wrote to its segments; zero: it has none.
func (c *nodes) segmentsWritten(name string) (last time.Time) {
	c.t.Helper()
	paths, err := filepath.Glob(filepath.Join(c.dir, name, membership.QueuesFolder, "segments", "*"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
}

func versionOf(g *group.Group) (v uint32) {
	g.View(func(m *queue.Machine) { v = m.Version() })
	return v
}

// A new cluster has the newest version as soon as its nodes are ready: what clients declare first
// has the type that its vhost says, which is classic unless a setting says otherwise.
func TestFounded(t *testing.T) {
	for setting, want := range map[string]string{"": catalog.ClassicType, catalog.QuorumType: catalog.QuorumType} {
		c := mustCluster(t, func(c *nodes) {
			c.first, c.through = []string{"n1"}, "n1"
			c.change = func(config *Config) { config.DefaultQueueType = setting }
		})
		view := c.all["n1"].View()
		if view.FSMVersion() != fsm.NewestVersion || view.DefaultQueueType("/") != want {
			t.Errorf("version %d, queues are %s", view.FSMVersion(), view.DefaultQueueType("/"))
		}
		cl := c.mustClient("n1")
		cl.mustDeclare("q")
		cl.mustDeclare("named", text("x-queue-type", catalog.ClassicType))
		for name, want := range map[string]string{"q": want, "named": catalog.ClassicType} {
			if q, ok := c.all["n1"].View().Queue("/", name); !ok || q.Type() != want {
				t.Errorf("%s is %s", name, q.Type())
			}
		}
		cl.close()
	}
}

// mustBeRefused starts a node that must not become part of the cluster.
func (c *nodes) mustBeRefused(name, words string) {
	c.t.Helper()
	n, err := Open(c.config(name))
	if err != nil {
		c.t.Fatal(err)
	}
	err = n.Join(deadline(c.t))
	c.all[name] = n
	c.crash(name)
	if err == nil || !strings.Contains(err.Error(), words) {
		c.t.Fatalf("%s joins: %v, want %q", name, err, words)
	}
}

// mustBeTooOld starts a node whose program is too old for what the others have committed.
func (c *nodes) mustBeTooOld(name string) {
	c.t.Helper()
	exits := make(chan int, 8)
	config := c.config(name)
	config.Exit = func(code int) {
		exits <- code
		runtime.Goexit() // as the process would
	}
	n, err := Open(config)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(deadline(c.t))
	joined := make(chan error, 1)
	go func() { joined <- n.Join(ctx) }()
	select {
	case code := <-exits:
		if code != tooOld {
			c.t.Errorf("%s ends with %d, want %d", name, code, tooOld)
		}
		cancel()
		<-joined
	case err := <-joined:
		c.t.Errorf("%s joins: %v", name, err)
		cancel()
	}
	c.all[name] = n
	c.crash(name)
}

// tooOld is the exit code of a node whose program does not support the cluster's version.
const tooOld = 76

// A rolling upgrade: the cluster stays at version 1 as long as one node
// supports nothing else, goes to 2 with the last one, and then neither takes a
// node back that is too old nor one that is too new.
func TestMixedVersions(t *testing.T) {
	t.Parallel()
	old, both := fsm.Versions{Oldest: 1, Newest: 1}, fsm.Versions{Oldest: 1, Newest: 2}
	c := mustCluster(t, func(c *nodes) { c.versions = map[string]fsm.Versions{"n1": old, "n2": old, "n3": old} })
	c.mustClient("n1").mustDeclare("q")
	c.mustBeAt(1, "q")
	for _, name := range names {
		c.stop(name)
		c.versions[name] = both
		c.mustOpen(name)
		if name == "n3" {
			break
		}
		c.mustBeAt(1, "q")
		err := retried(t, func(ctx context.Context) error {
			return c.all[name].Management().Settings.PutSetting(ctx, catalog.FSMVersion, new(int64(2)))
		})
		if !isRefusal(err, fsm.Precondition) {
			t.Errorf("the version is raised by hand: %v", err)
		}
		c.mustBeAt(1, "q")
		refused := c.all[name].View().Index()
		until(t, "all nodes have the entry that was refused", func() bool {
			return !slices.ContainsFunc(names, func(n string) bool { return c.all[n].View().Index() < refused })
		})
	}
	c.mustBeAt(2, "q")
	if i := slices.IndexFunc(c.all["n2"].Management().Settings.Settings(), func(s api.Setting) bool { return s.Name == catalog.FSMVersion && s.Value == 2 }); i < 0 {
		t.Errorf("settings: %v", c.all["n2"].Management().Settings.Settings())
	}
	c.crash("n2")
	c.versions["n2"] = fsm.Versions{Oldest: 3, Newest: 4}
	c.mustBeRefused("n2", "the cluster's fsm_version is 2, and node n2 supports 3 to 4")
	c.versions["n2"] = both
	c.mustOpen("n2")
	c.mustBeAt(2, "q")
	c.crash("n2")
	c.mustClient("n1").mustDeclare("missed")
	c.versions["n2"] = old
	c.mustBeTooOld("n2")
	c.versions["n2"] = both
	c.mustOpen("n2")
	c.mustBeAt(2, "q")
}

// TestLimitsOfVersion3: before version 3 no queue knows who has set its delivery limit; with the
// rise the leaders tell those that have one of their own, and nobody is elected for it.
func TestLimitsOfVersion3(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, func(c *nodes) {
		c.versions = map[string]fsm.Versions{}
		for _, name := range names {
			c.versions[name] = fsm.Versions{Oldest: 1, Newest: 2}
		}
	})
	cl := c.mustClient("n1")
	cl.mustDeclare("plain")
	cl.mustDeclare("limited", integer("x-delivery-limit", 20))
	told := func(queueName string) (all bool) {
		all = true
		for _, n := range c.all {
			q, ok := n.View().Queue("/", queueName)
			if !ok {
				return false
			}
			n.host.Group(q.Group).View(func(m *queue.Machine) { all = all && m.Config().DeliveryLimitSet })
		}
		return all
	}
	c.mustBeAt(2, "limited")
	if told("limited") {
		t.Error("a queue of version 2 knows who has set its limit")
	}
	for _, name := range names {
		c.stop(name)
		c.versions[name] = fsm.Versions{Oldest: 1, Newest: 3}
		c.mustOpen(name)
	}
	c.mustBeAt(3, "limited")
	until(t, "all replicas know who has set the limit", func() bool { return told("limited") })
	if told("plain") {
		t.Error("somebody has set the limit of the other queue")
	}
}

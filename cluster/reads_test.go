package cluster

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/cluster/watchdog"
)

// readDisk is a filesystem whose reads of segments and of the queues' tables are counted, and can hang or
// fail: as on a disk with bad sectors, or where paths are lost. Writes and syncs go on.
type readDisk struct {
	vfs.FS
	bodies atomic.Int64 // bytes read from segments
	failed atomic.Int32 // reads

	mu   sync.Mutex
	shut chan struct{} // nil: reads do not hang
	err  error         // of each read of a table; nil: they succeed
}

// mustReadDisks starts three nodes with such disks.
func mustReadDisks(t *testing.T, options ...func(*nodes)) (*nodes, map[string]*readDisk) {
	t.Helper()
	disks := map[string]*readDisk{}
	for _, name := range names {
		disks[name] = &readDisk{FS: vfs.Default}
	}
	c := mustCluster(t, append(options, func(c *nodes) { c.change = func(o *Config) { o.FS = disks[o.Name] } })...)
	t.Cleanup(func() { // before the nodes are closed
		for _, d := range disks {
			d.hang(false)
			d.fail(nil)
		}
	})
	return c, disks
}

// hang makes reads that begin from now on wait, or lets them all go on.
func (d *readDisk) hang(yes bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if yes {
		d.shut = make(chan struct{})
	} else if d.shut != nil {
		close(d.shut)
		d.shut = nil
	}
}

// fail makes reads of tables fail from now on; nil: they succeed again.
func (d *readDisk) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func (d *readDisk) pass(table bool) error {
	d.mu.Lock()
	shut, err := d.shut, d.err
	d.mu.Unlock()
	if shut != nil {
		<-shut
	}
	if !table || err == nil {
		return nil
	}
	d.failed.Add(1)
	return err
}

// Open implements vfs.FS.
func (d *readDisk) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.Open(name, o...)
	if table := path.Ext(name) == ".sst"; err == nil && strings.Contains(name, "queues") && (table || path.Ext(name) == ".seg") {
		f = readFile{f, d, table}
	}
	return f, err
}

type readFile struct {
	vfs.File
	d     *readDisk
	table bool
}

// ReadAt implements vfs.File.
func (f readFile) ReadAt(p []byte, at int64) (int, error) {
	if err := f.d.pass(f.table); err != nil {
		return 0, err
	}
	n, err := f.File.ReadAt(p, at)
	if !f.table {
		f.d.bodies.Add(int64(n))
	}
	return n, err
}

// mustUseSegments waits until all nodes write large bodies to segments.
func (c *nodes) mustUseSegments() {
	c.t.Helper()
	for _, n := range c.all {
		until(c.t, "segments are used", func() bool { return n.View().FSMVersion() >= segmentsSince })
	}
}

// A node that starts reads what it has to know about the messages that wait, and none of their bodies; who has
// missed some gets them.
func TestRestartReadsNoBodies(t *testing.T) {
	t.Parallel()
	c, disks := mustReadDisks(t)
	const messages = 50
	body := strings.Repeat("x", 40<<10)
	publish := func(node string, n int) {
		t.Helper()
		p := c.mustClient(node)
		for range n {
			p.publish("q", body)
			p.confirmed()
		}
		p.close()
	}
	c.mustClient("n1").mustDeclare("q")
	c.mustUseSegments()
	publish("n2", messages)
	c.mustAgree()
	c.closeAll()
	for _, d := range disks {
		d.bodies.Store(0)
	}
	c.mustOpen(names...)
	publish("n2", 1)
	c.mustAgree()
	for name, d := range disks {
		if read := d.bodies.Load(); read > messages*int64(len(body))/20 {
			t.Errorf("%s has read %d bytes of %d", name, read, messages*len(body))
		}
	}
	late := c.other(c.mustLeader("q"))
	c.stop(late)
	publish(c.other(late), 5)
	for _, name := range names {
		if name != late { // what they send is not in memory any more
			c.stop(name)
		}
	}
	c.mustOpen(names...)
	c.mustAgree()
	until(t, late+" leads", func() bool { // it reads what it was sent
		for name, n := range c.all {
			for _, g := range n.host.Groups() {
				if name != late {
					_ = g.Transfer(late)
				}
			}
		}
		return c.leader("q") == late
	})
	reader := c.mustClient(late)
	reader.mustConsume("q", 1, 0)
	reader.await("all messages", func() bool { return len(reader.inbox) == messages+6 })
	for i, m := range reader.bodies() {
		if m != body {
			t.Errorf("message %d has %d bytes", i, len(m))
		}
	}
}

// A replica that could not be opened when its node started is open soon after it can be. Until then the node says so.
func TestReplicaThatCannotBeOpenedAtOnce(t *testing.T) {
	t.Parallel()
	c, disks := mustReadDisks(t)
	p := c.mustClient("n1")
	for i := range 3 {
		p.mustDeclare(fmt.Sprint("q", i))
		p.publish(fmt.Sprint("q", i), "m")
	}
	p.confirmed()
	for range 2 { // so that all is in tables
		c.crash("n3")
		c.mustOpen("n3")
	}
	c.mustAgree()
	c.crash("n3")
	n, err := Open(c.config("n3"))
	if err != nil {
		t.Fatal(err)
	}
	c.all["n3"] = n
	disks["n3"].fail(syscall.EMFILE)
	if err := n.Join(deadline(t)); err != nil {
		t.Fatal(err)
	}
	url := mustServe(t, n)
	until(t, "replicas are tried again", func() bool {
		closed := n.local.Closed()
		return len(closed) == 3 && closed[0].Attempts > 1 && closed[2].Attempts > 1
	})
	if s := n.local.Status(); len(s.Closed) != 3 || !strings.Contains(s.Closed[0].Reason, syscall.EMFILE.Error()) || !slices.Contains(s.Alarms, "replicas_closed") {
		t.Errorf("closed %+v, alarms %v", s.Closed, s.Alarms)
	}
	if status, _, _ := request(t, "GET", url+"/api/health/checks/closed-replicas", "guest", "guest"); status != 503 {
		t.Errorf("the check of closed replicas answers %d", status)
	}
	status, body, _ := request(t, "GET", url+"/api/health/checks/ready-to-serve-clients", "", "")
	if reason := body.(map[string]any)["reason"]; status != 200 || reason == nil {
		t.Errorf("the node is ready: %d, %v", status, reason)
	}
	failures := n.placement.Local.Failures()
	c.crash("n2") // n3 is needed
	disks["n3"].fail(nil)
	c.mustAgree()
	if open, closed := len(n.host.Groups()), n.local.Closed(); open != 3 || len(closed) > 0 || failures < 6 {
		t.Errorf("%d replicas are open, closed are %v; %d failures", open, closed, failures)
	}
}

// A leader whose disk answers no reads any more leads nothing soon: others confirm, and deliver.
func TestLeaderWhoseReadsHang(t *testing.T) {
	t.Parallel()
	c, disks := mustReadDisks(t, func(c *nodes) { c.bounds = watchdog.Bounds{Disk: 500 * time.Millisecond, DiskExit: -1} })
	p := c.mustClient("n1")
	p.mustDeclare("q")
	c.mustUseSegments()
	body := strings.Repeat("x", 40<<10)
	for range 5 {
		p.publish("q", body)
		p.confirmed()
	}
	c.mustAgree()
	c.closeAll()
	c.mustOpen(names...) // so that bodies are read
	leader := c.mustLeader("q")
	other := c.other(leader)
	p = c.mustClient(other)
	p.publish("q", body)
	p.confirmed()
	disks[leader].hang(true)
	taker := c.mustClient(other)
	taker.mustConsume("q", 1, 0)
	p.publish("q", body)
	p.confirmed()
	taker.await("all messages", func() bool { return len(taker.inbox) == 7 })
	if now := c.mustLeader("q"); now == leader || c.all[leader].watchdog.Unfit() == "" {
		t.Errorf("%s leads, its disk: %q", now, c.all[leader].watchdog.Unfit())
	}
	disks[leader].hang(false)
	until(t, "the disk is back", func() bool { return c.all[leader].watchdog.Unfit() == "" })
	c.mustAgree()
}

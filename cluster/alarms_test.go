package cluster

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// machine pretends to be a node's machine, with 1000 bytes of memory and a
// limit of 500.
type machine struct {
	used, free atomic.Int64
	fault      atomic.Bool // whoever looks at it panics
}

func newMachine() *machine {
	m := &machine{}
	m.free.Store(1000)
	return m
}

func (m *machine) MemoryTotal() int64 { return 1000 }
func (m *machine) MemoryUsed() int64 {
	if m.fault.Load() {
		panic("a fault of the machine")
	}
	return m.used.Load()
}
func (m *machine) DiskFree() (int64, error) { return m.free.Load(), nil }
func (m *machine) Release()                 {}
func (m *machine) LimitHeap(int64)          {}

// machine is what a node runs on.
func (c *nodes) machine(name string) *machine {
	if c.machines == nil {
		c.machines = map[string]*machine{}
	}
	if c.machines[name] == nil {
		c.machines[name] = newMachine()
	}
	return c.machines[name]
}

// alarmed notes the alarm, as publishers would.
type alarmed struct {
	Clients
	mu     sync.Mutex
	reason string
}

func (a *alarmed) SetAlarm(reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reason = reason
}

func (a *alarmed) alarm() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reason
}

// TestResourceAlarms has alarms at nodes in turn: all block, until there is none
// any more or the node that has one has died.
func TestResourceAlarms(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	clients := map[string]*alarmed{}
	connect := func(name string) {
		clients[name] = &alarmed{}
		c.all[name].alarm.Block(clients[name])
	}
	for _, name := range names {
		connect(name)
	}
	expect := func(want string) {
		t.Helper()
		until(t, "all nodes say "+want, func() bool {
			for name := range c.all {
				if clients[name].alarm() != want {
					return false
				}
			}
			return true
		})
	}
	c.machine("n1").used.Store(500)
	expect("low on memory")
	soon(t, "n2 lists the alarm", func() string {
		if a := c.all["n2"].replicas.Alarms(t.Context()); !slices.Equal(a, []api.Alarm{{Node: "n1", Resource: "memory"}}) {
			return fmt.Sprintf("alarms %v", a)
		}
		return ""
	})
	if err := c.all["n2"].alarm.SetLimit("disk_free_limit", api.Limit{Absolute: "1001"}); err != nil {
		t.Fatal(err)
	}
	expect("low on memory & disk")
	want := []api.Node{
		{Name: "n1", Type: "disc", Running: true, Answers: true, MemoryUsed: 500, MemoryLimit: 500, MemoryAlarm: true, DiskFree: 1000},
		{Name: "n2", Type: "disc", Running: true, Answers: true, MemoryLimit: 500, DiskFree: 1000, DiskFreeLimit: 1001, DiskFreeAlarm: true},
		{Name: "n3", Type: "disc", Running: true, Answers: true, MemoryLimit: 500, DiskFree: 1000},
	}
	soon(t, "n3 lists the nodes", func() string {
		nodes := c.all["n3"].replicas.Nodes(t.Context())
		for i := range nodes {
			p := &nodes[i].NodeProcess
			if p.PID != strconv.Itoa(os.Getpid()) || p.Processors == 0 || p.Goroutines == 0 || p.FilesUsed == 0 || p.FilesTotal < p.FilesUsed || p.RatesMode != "basic" || p.Plugins == nil || p.Partitions == nil {
				return fmt.Sprintf("process %+v", *p)
			}
			*p = api.NodeProcess{}
			if r := &nodes[i].NodeRaft; r.SyncMS > 0 && r.Certificates != nil {
				*r = api.NodeRaft{} // of a real disk; whoever answered has a list
			}
		}
		if !reflect.DeepEqual(nodes, want) {
			return fmt.Sprintf("nodes %+v", nodes)
		}
		return ""
	})
	c.machine("n1").used.Store(499)
	expect("low on disk")

	// A link that breaks and a node that is not heard of for a while: what
	// they missed, they learn.
	c.net.cut("n3")
	expect("low on disk")
	c.net.setMuted("n3", true)
	until(t, "n3 counts no alarm of nodes that it cannot reach", func() bool { return clients["n3"].alarm() == "" })
	c.net.setMuted("n3", false)
	expect("low on disk")

	// The alarm of a node that dies is over, and begins again with it.
	c.crash("n2")
	expect("")
	c.machine("n2").free.Store(-1)
	c.mustOpen("n2")
	connect("n2")
	expect("low on disk")
	c.machine("n2").free.Store(0)
	expect("")
}

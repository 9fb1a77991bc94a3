package alarm

import (
	"log/slog"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// Links are those to the other nodes.
type Links interface {
	Peers() []peer.PeerStatus
	Alive(node string) bool
	Send(node string, k peer.Kind, head []byte, payloads ...[]byte) error
	// Complain records that another node has sent an invalid message.
	Complain(from, what string, err error)
}

// Publishers are the clients of this node that publish.
type Publishers interface {
	// SetAlarm sets why publishers are blocked; empty: they are not. It does not
	// wait.
	SetAlarm(reason string)
	// Relieve makes publishers give up what they make this node hold, if that is
	// why its memory is short by excess bytes. It does not wait.
	Relieve(excess int64)
}

// Cluster combines the resource alarms of all nodes. While any node has one,
// publishers are blocked at all of them.
//
// A node announces its alarms to the others when they change, whenever a link
// comes up, and once in every Interval while there are any. Alarms of another node
// count while it is up: its message may arrive before it counts as up, and remains
// until it is reported down.
//
// Invariant: no list in others is empty; own may be.
type Cluster struct {
	watch *Watch
	links Links
	kind  peer.Kind // of the message
	log   *slog.Logger

	mu         sync.Mutex
	own        []string            // of Memory and Disk, sorted
	others     map[string][]string // the same by node
	announced  map[string]string   // own, as each node has heard it last
	publishers Publishers          // nil: there are none
	reason     string              // why publishers are blocked; empty: they are not
}

// NewCluster returns a Cluster that knows of no alarms yet.
func NewCluster(watch *Watch, links Links, kind peer.Kind, log *slog.Logger) *Cluster {
	return &Cluster{watch: watch, links: links, kind: kind, log: log, others: map[string][]string{}, announced: map[string]string{}}
}

// Run checks this node until done is closed.
func (c *Cluster) Run(done <-chan struct{}) {
	worker.Every(done, Interval, func() { c.checked(c.watch.Check()) })
}

// Resources are the memory and the disk of this node at the last check.
func (c *Cluster) Resources() Resources { return c.watch.Resources() }

// checked handles the result of a check of this node.
func (c *Cluster) checked(r Resources) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lasts := r.MemoryAlarm && slices.Contains(c.own, Memory)
	c.own = r.Alarms()
	for _, p := range c.links.Peers() {
		c.announce(p.Node)
	}
	c.evaluate()
	if lasts && c.publishers != nil { // blocked publishers cannot help it themselves
		c.publishers.Relieve(r.MemoryUsed - r.MemoryLimit)
	}
}

// announce sends a node the alarms of this one, unless there are none and the
// other node knows that. mu is held.
func (c *Cluster) announce(node string) {
	now := strings.Join(c.own, ",")
	if last, any := c.announced[node]; any && now == "" && last == now {
		return
	}
	message, err := proto.Marshal(&peerpb.ResourceAlarms{Resources: c.own})
	if err == nil {
		err = c.links.Send(node, c.kind, message)
	}
	if err == nil {
		c.announced[node] = now
	}
}

// PeerChanged handles another node's coming up or going down.
func (c *Cluster) PeerChanged(ev peer.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.announced, ev.Node)
	if ev.Up {
		c.announce(ev.Node)
	} else {
		delete(c.others, ev.Node)
	}
	c.evaluate()
}

// Receive handles the alarms of another node.
func (c *Cluster) Receive(from string, message, _ []byte) {
	var m peerpb.ResourceAlarms
	if err := proto.Unmarshal(message, &m); err != nil {
		c.links.Complain(from, "resource alarms of a node could not be decoded", err)
		return
	}
	known := slices.DeleteFunc(m.Resources, func(what string) bool { return what != Memory && what != Disk })
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(known) == 0 {
		delete(c.others, from)
	} else {
		c.others[from] = known
	}
	c.evaluate()
}

// Block sets the publishers that are blocked from now on.
func (c *Cluster) Block(p Publishers) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.publishers = p
	p.SetAlarm(c.reason)
}

// Blocked says why publishers are blocked; empty: they are not.
func (c *Cluster) Blocked() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

// evaluate blocks or unblocks publishers. mu is held.
func (c *Cluster) evaluate() {
	inEffect := func(what string) bool {
		if slices.Contains(c.own, what) {
			return true
		}
		for node, others := range c.others {
			if slices.Contains(others, what) && c.links.Alive(node) {
				return true
			}
		}
		return false
	}
	reason := ""
	switch memory, disk := inEffect(Memory), inEffect(Disk); {
	case memory && disk:
		reason = "low on memory & disk"
	case memory:
		reason = "low on memory"
	case disk:
		reason = "low on disk"
	}
	if reason == c.reason {
		return
	}
	if c.reason = reason; reason != "" {
		c.log.Warn("the cluster blocks publishers", "reason", reason)
	} else {
		c.log.Info("the cluster no longer blocks publishers")
	}
	if c.publishers != nil {
		c.publishers.SetAlarm(reason)
	}
}

// SetLimit changes vm_memory_high_watermark or disk_free_limit of this node
// until it is restarted. An error is the caller's fault.
func (c *Cluster) SetLimit(name string, to api.Limit) error {
	kind, ok := map[string]struct {
		set  func(Limit) Resources
		part func(float64) (Limit, error)
	}{
		"vm_memory_high_watermark": {c.watch.SetMemory, Fraction},
		"disk_free_limit":          {c.watch.SetDisk, Part},
	}[name]
	if !ok {
		return fsm.Refuse(fsm.NotFoundKind, "no limit '"+name+"'")
	}
	var l Limit
	var err error
	switch {
	case to.Relative != nil && to.Absolute == "":
		l, err = kind.part(*to.Relative)
	case to.Relative == nil && to.Absolute != "":
		l, err = ParseSize(to.Absolute)
	default:
		return fsm.Refuse(fsm.Precondition, "a limit must be either relative or absolute")
	}
	if err != nil {
		return fsm.Refuse(fsm.Precondition, name+": "+err.Error())
	}
	c.checked(kind.set(l))
	return nil
}

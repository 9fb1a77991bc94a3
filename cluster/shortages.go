package cluster

import (
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// shortages knows what this node and the others have too little of. While any
// node is short of anything, publishers are shut out at all of them.
//
// A node tells the others when that changes, whenever a link comes up, and
// once in every alarm.Pace as long as it is short of something. What a node
// has said counts while it is up: it may be heard before that, and die before
// that.
type shortages struct {
	node  *Node
	watch *alarm.Watch

	mu     sync.Mutex
	own    []string            // of alarm.Memory and alarm.Disk, sorted
	others map[string][]string // the same by node; never empty
	told   map[string]string   // what a node was last told
	door   Door                // nil: there are no clients
	reason string              // as clients are told; empty: none
}

func newShortages(n *Node) *shortages {
	c := n.config
	if c.Probe == nil {
		c.Probe = alarm.System{DataDir: c.DataDir}
	}
	return &shortages{
		node: n, others: map[string][]string{}, told: map[string]string{},
		watch: alarm.New(alarm.Config{Memory: c.MemoryLimit, Disk: c.DiskLimit, Probe: c.Probe, Logger: n.slog, Now: time.Now}),
	}
}

// run checks this node as long as it lives.
func (s *shortages) run() {
	tick := time.NewTicker(alarm.Pace)
	defer tick.Stop()
	for {
		s.found(s.watch.Check())
		select {
		case <-s.node.life.Done():
			return
		case <-tick.C:
		}
	}
}

// found takes the result of a check of this node.
func (s *shortages) found(f alarm.Figures) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = f.Short()
	for _, p := range s.node.mesh.Peers() {
		s.tell(p.Node)
	}
	s.judge()
}

// tell tells a node what this one is short of, if need be. mu is held.
func (s *shortages) tell(node string) {
	now := strings.Join(s.own, ",")
	if last, any := s.told[node]; any && now == "" && last == now {
		return
	}
	message, err := proto.Marshal(&peerpb.Shortage{Resources: s.own})
	if err == nil {
		err = s.node.mesh.Send(node, broker.KindShortage, message)
	}
	if err == nil {
		s.told[node] = now
	}
}

// peerChanged takes what happens to other nodes.
func (s *shortages) peerChanged(ev peer.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.told, ev.Node)
	if ev.Up {
		s.tell(ev.Node)
	} else {
		delete(s.others, ev.Node)
	}
	s.judge()
}

// hear takes what another node is short of.
func (s *shortages) hear(from string, message, _ []byte) {
	var m peerpb.Shortage
	if err := proto.Unmarshal(message, &m); err != nil {
		s.node.mesh.Complain(from, "shortage of a node is not understood", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(m.Resources) == 0 {
		delete(s.others, from)
	} else {
		s.others[from] = slices.DeleteFunc(m.Resources, func(what string) bool { return what != alarm.Memory && what != alarm.Disk })
	}
	s.judge()
}

// serve has the door obey from now on.
func (s *shortages) serve(d Door) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.door = d
	d.SetAlarm(s.reason)
}

// judge shuts publishers out or lets them in again. mu is held.
func (s *shortages) judge() {
	short := func(what string) bool {
		if slices.Contains(s.own, what) {
			return true
		}
		for node, others := range s.others {
			if slices.Contains(others, what) && s.node.mesh.Alive(node) {
				return true
			}
		}
		return false
	}
	reason := ""
	switch memory, disk := short(alarm.Memory), short(alarm.Disk); {
	case memory && disk:
		reason = "low on memory & disk"
	case memory:
		reason = "low on memory"
	case disk:
		reason = "low on disk"
	}
	if reason == s.reason {
		return
	}
	if s.reason = reason; reason != "" {
		s.node.slog.Warn("the cluster blocks publishers", "reason", reason)
	} else {
		s.node.slog.Info("the cluster no longer blocks publishers")
	}
	if s.door != nil {
		s.door.SetAlarm(reason)
	}
}

// SetLimit changes vm_memory_high_watermark or disk_free_limit of this node
// until it is restarted. An error is the caller's fault.
func (n *Node) SetLimit(name string, to api.Limit) error {
	set := map[string]func(alarm.Limit) alarm.Figures{
		"vm_memory_high_watermark": n.shortages.watch.SetMemory,
		"disk_free_limit":          n.shortages.watch.SetDisk,
	}[name]
	if set == nil {
		return fsm.Refuse(fsm.NotFoundKind, "no limit '"+name+"'")
	}
	var l alarm.Limit
	var err error
	switch {
	case to.Relative != nil && to.Absolute == "":
		l, err = alarm.Part(*to.Relative)
	case to.Relative == nil && to.Absolute != "":
		l, err = alarm.ParseSize(to.Absolute)
	default:
		return fsm.Refuse(fsm.Precondition, "a limit is either relative or absolute")
	}
	if err != nil {
		return fsm.Refuse(fsm.Precondition, name+": "+err.Error())
	}
	n.shortages.found(set(l))
	return nil
}

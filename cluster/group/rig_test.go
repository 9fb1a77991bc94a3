package group

import (
	"time"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
)

// NewHost opens the host of a node. Package host, which knows this one, sets it: a test of an instance has a real host.
var NewHost func(c HostConfig) NodeHost

// HostConfig is what tests set of a host's settings.
type HostConfig struct {
	Config
	Drains    func(node string) bool
	Progress  time.Duration
	Awake     func() time.Duration
	Retained  int64
	KeepAwake int
}

// NodeHost is what tests need of a host.
type NodeHost interface {
	Start()
	Close()
	Open(spec Spec) (*Group, error)
	OpenLocal(spec Spec) *Group
	TakeUp(spec func(id fsm.GroupID) (s Spec, ok bool)) (n int)
	Group(id fsm.GroupID) *Group
	Groups() []*Group
	Led() []*Group
	Learners() []*Group
	Quarantined() []*Group
	Drop(id fsm.GroupID) error
	DropLocal(id fsm.GroupID) bool
	Leave(id fsm.GroupID)
	PeerChanged(ev peer.Event)
	Want(id fsm.GroupID, members []string)
	Reconfigure(ids []fsm.GroupID)
	ReconfigureAll()
	Withdraw()
	Return()
	Bound() time.Duration
	// Resigned returns the number of leaderships given up, by reason, and the last one.
	Resigned() (count map[string]uint64, of *Group, last replica.Stalled)

	Panics() uint64
	CommitLatency() time.Duration
	Deaths() Deaths
	TakeDeaths() map[fsm.QueueID]Died
	Meters() Meters
}

// left returns the replicas of a group on the hosts that run, one that leads first.
func (c *trio) left(id fsm.GroupID) (all []*Group) {
	for _, h := range c.hosts {
		if g := h.Group(id); !h.closed && g != nil {
			if all = append(all, g); g.Leading() != 0 {
				all[0], all[len(all)-1] = g, all[0]
			}
		}
	}
	return all
}

// mustStop ends a host as a process ends.
func (c *trio) mustStop(at int) { c.hosts[at].shut(c.t) }

// leadAt has the first host lead a group.
func (c *trio) leadAt(id fsm.GroupID) *Group {
	c.t.Helper()
	c.mustOpen(id)
	g := c.hosts[0].Group(id)
	await(c.t, "the first member leads", func() bool {
		if g.Leading() == 0 {
			_ = c.mustLead(id).Transfer("n1")
		}
		return g.Leading() != 0
	})
	return g
}

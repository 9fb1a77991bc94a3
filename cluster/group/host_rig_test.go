package group_test

import (
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/host"
	"github.com/quorate/quorate/cluster/replica"
)

func init() {
	group.NewHost = func(c group.HostConfig) group.NodeHost {
		return nodeHost{host.New(host.Config{
			Config: c.Config, Drains: c.Drains, Progress: c.Progress, Awake: c.Awake, Retained: c.Retained, KeepAwake: c.KeepAwake, Reclaimable: 32 << 20,
			KindElection: 16, KindLearner: 18,
		})}
	}
}

// nodeHost is a host as the tests of a group use it.
type nodeHost struct{ *host.Host }

// Resigned implements group.NodeHost.
func (h nodeHost) Resigned() (count map[string]uint64, of *group.Group, last replica.Stalled) {
	count, all := h.Resignations()
	if len(all) > 0 {
		of, last = all[len(all)-1].Group, all[len(all)-1].Stalled
	}
	return count, of, last
}

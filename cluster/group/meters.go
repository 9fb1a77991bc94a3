package group

import (
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/durations"
)

// meters count what the replicas of queues on a node do, local queues left out. None of them costs
// more than some atomic additions for a batch of entries, a request or a snapshot.
type meters struct {
	applies   durations.Histogram // of batches of committed entries
	snapshots durations.Histogram // that were written
	led       atomic.Uint64       // how often a replica has begun to lead
	refused   atomic.Uint64       // requests to append, by other members
	copies    atomic.Uint64       // commands that leaders had already, and kept out of their logs
	early     atomic.Uint64       // and those that came before one that is missing
}

// Meters are what the replicas of queues on a node have done since it started, local queues left out.
type Meters struct {
	Applies   durations.Counts // of batches of committed entries
	Snapshots durations.Counts // that were written
	Led       uint64           // how often a replica has begun to lead
	Refused   uint64           // requests to append that other members have refused
	// Commands, of local queues as well, that did not enter a log: because they had been taken already, and
	// because one before them is missing.
	Copies, Early uint64
}

// Meters returns what the replicas of queues have done.
func (h *Host) Meters() Meters {
	m := &h.applying.meters
	return Meters{
		Applies: m.applies.Read(), Snapshots: m.snapshots.Read(), Led: m.led.Load(), Refused: m.refused.Load(),
		Copies: m.copies.Load(), Early: m.early.Load(),
	}
}

// refusals is a transport that counts the requests to append that other members refuse. Behind a
// refusal in a pipeline raft sends the request again without one.
type refusals struct {
	transport
	count *atomic.Uint64
}

// AppendEntries implements raft.Transport.
func (r refusals) AppendEntries(id raft.ServerID, addr raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := r.transport.AppendEntries(id, addr, args, resp)
	if err == nil && !resp.Success {
		r.count.Add(1)
	}
	return err
}

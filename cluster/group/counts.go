package group

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/durations"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// latency is how long entries take until they are committed: a mean in which the latest weigh most.
type latency struct{ ns atomic.Int64 }

// weight is the number of entries after which an older one counts for about a third.
const weight = 16

// observe adds an entry. Concurrent ones may be left out.
func (l *latency) observe(took time.Duration) {
	was := l.ns.Load()
	if was == 0 {
		l.ns.CompareAndSwap(0, max(int64(took), 1))
		return
	}
	l.ns.CompareAndSwap(was, max(was+(int64(took)-was)/weight, 1))
}

// mean is 0 before the first entry.
func (l *latency) mean() time.Duration { return time.Duration(l.ns.Load()) }

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

// applierNode is shared by the appliers of a node.
type applierNode struct {
	newest uint32 // version of an entry that this program supports
	// late is called with the lateness of a tick.
	late func(what queue.Due, late fsm.Millis)
	// fail ends the process: the node must not serve data it cannot read.
	fail    func(code int, why string)
	deaths  deaths
	lengths lengths
	boots   func(g fsm.GroupID, sessions, suspected []queue.Boot)
	meters  meters
}

// deaths counts the messages that died in queues while this node led them. A death is counted only
// by the node that led when it was applied.
type deaths struct {
	mu    sync.Mutex
	queue Deaths
	fresh map[fsm.QueueID]Died // since they were last taken; nil: none
}

// Deaths are the deaths in replicated queues and in those of one node.
type Deaths struct{ Replicated, Local queue.Dead }

// Died counts messages that died in a queue while this node led it.
type Died struct {
	Expired      uint64
	DeadLettered uint64 // for any reason, and went to a dead-letter exchange or into the outbox
}

// add adds the deaths of one entry of a queue.
func (d *deaths) add(id fsm.QueueID, local bool, before, after queue.Dead) {
	if before == after {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	of := &d.queue.Replicated
	if local {
		of = &d.queue.Local
	}
	more := after.Minus(before)
	*of = of.Plus(more)
	died := d.fresh[id]
	for reason, by := range more.By {
		for fate, n := range by {
			if logpb.Death_Reason(reason+1) == logpb.Death_EXPIRED {
				died.Expired += n
			}
			if queue.Disposition(fate) != queue.Dropped {
				died.DeadLettered += n
			}
		}
	}
	if died == (Died{}) {
		return
	}
	if d.fresh == nil {
		d.fresh = map[fsm.QueueID]Died{}
	}
	d.fresh[id] = died
}

// take returns what was added since the last call, by queue.
func (d *deaths) take() map[fsm.QueueID]Died {
	d.mu.Lock()
	defer d.mu.Unlock()
	fresh := d.fresh
	d.fresh = nil
	return fresh
}

func (d *deaths) all() Deaths {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queue
}

// lengths are the queues whose length, or whose leader, has changed since they were last taken: of queues in
// which nothing happens, nobody asks.
//
// Invariant: outside of mu, a demand whose listed is round + 1 has its queue in fresh.
type lengths struct {
	round atomic.Uint64 // how often they were taken
	mu    sync.Mutex
	fresh map[fsm.QueueID]fsm.GroupID // nil: none
}

// changed notes that a queue that this node leads has another length. The caller holds the lock of the applier.
func (l *lengths) changed(d *demand, id fsm.QueueID, of fsm.GroupID) {
	if d.listed != l.round.Load()+1 {
		d.listed = l.add(id, of)
	}
}

// roleChanged has the length of a queue read again, and forgets which boots of nodes it knows if it is not led here.
func (n *applierNode) roleChanged(s *Spec, leads bool) {
	n.lengths.add(s.Queue, s.Group)
	if !leads {
		n.boots(s.Group, nil, nil)
	}
}

// add lists a queue, and returns the round in which it is listed.
func (l *lengths) add(id fsm.QueueID, of fsm.GroupID) (round uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fresh == nil {
		l.fresh = map[fsm.QueueID]fsm.GroupID{}
	}
	l.fresh[id] = of
	return l.round.Load() + 1
}

// take returns the queues that have been listed since the last call. What changes from now on is listed again,
// so their lengths are to be read afterwards.
func (l *lengths) take() map[fsm.QueueID]fsm.GroupID {
	l.mu.Lock()
	defer l.mu.Unlock()
	fresh := l.fresh
	l.fresh = nil
	l.round.Add(1)
	return fresh
}

package group

import (
	"maps"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/durations"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

func observed(c durations.Counts) (n uint64) {
	for _, of := range c.Of {
		n += of
	}
	return n
}

// What replicas do is counted: leaderships, batches that were applied, snapshots that were written.
func TestMeters(t *testing.T) {
	n := mustHost(t, t.TempDir())
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	mustSubmit(t, g, enqueues(1, -1, "a"))
	n.outside.await(t, "an answer", func() bool { return answered(n.outside.outcomes) == 1 })
	await(t, "the batch is counted", func() bool { return observed(n.Meters().Applies) > 0 })
	before := n.Meters()
	if before.Led != 1 || observed(before.Snapshots) != 0 || before.Refused != 0 {
		t.Errorf("before: %+v", before)
	}
	if err := g.in().WriteSnapshot(); err != nil {
		t.Fatal(err)
	}
	if m := n.Meters(); observed(m.Snapshots) != 1 || m.Snapshots.Sum <= 0 {
		t.Errorf("after a snapshot: %+v", m.Snapshots)
	}
	if all := n.store.Metrics().Syncs; observed(all) == 0 {
		t.Errorf("no durable write: %+v", all)
	}
}

// answering is a transport whose members take requests or refuse them.
type answering struct {
	replica.Transport
	takes bool
	err   error
}

func (a *answering) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, _ *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	resp.Success = a.takes
	return a.err
}

// A request that a member refuses is counted; one that does not arrive is not.
func TestRefusals(t *testing.T) {
	var m meters
	for _, to := range []*answering{{takes: true}, {}, {err: raft.ErrTransportShutdown}, {}} {
		err := refusals{to, &m.refused}.AppendEntries("n2", "n2", &raft.AppendEntriesRequest{}, &raft.AppendEntriesResponse{})
		if err != to.err {
			t.Errorf("%+v: %v", to, err)
		}
	}
	if n := m.refused.Load(); n != 2 {
		t.Errorf("%d", n)
	}
}

// What died is taken once, by queue: expired messages whatever became of them, and messages that were
// sent on whatever they died of.
func TestTakeDeaths(t *testing.T) {
	var d deaths
	before := queue.Dead{By: queue.Deaths{{1, 1, 1, 1}}}
	d.add(7, false, before, queue.Dead{By: queue.Deaths{{2, 3, 1, 1}, {4, 0, 5, 0}}})
	d.add(7, false, queue.Dead{}, queue.Dead{By: queue.Deaths{{1}}})
	d.add(8, true, queue.Dead{}, queue.Dead{Purged: 1})
	if got := d.take(); !maps.Equal(got, map[fsm.QueueID]Died{7: {Expired: 4, DeadLettered: 7}}) {
		t.Errorf("%+v", got)
	}
	if got := d.take(); len(got) != 0 {
		t.Errorf("again: %+v", got)
	}
}

// A message that expires in a queue which the node leads is among them.
func TestDeathsOfAQueue(t *testing.T) {
	n := mustHost(t, t.TempDir())
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	mustSubmit(t, g, enqueues(1, 1, "a"))
	died := map[fsm.QueueID]Died{}
	await(t, "it expires", func() bool {
		maps.Copy(died, n.TakeDeaths())
		return len(died) > 0
	})
	if want := map[fsm.QueueID]Died{g.Spec().Queue: {Expired: 1}}; !maps.Equal(died, want) {
		t.Errorf("%+v, want %+v", died, want)
	}
}

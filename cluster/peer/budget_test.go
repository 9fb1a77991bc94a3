package peer

import (
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// Groups that take nothing hold no more than the node's budget, each its share,
// and one that comes later still gets its requests. Who was refused sends again
// until everything is there.
func TestInboundBudget(t *testing.T) {
	const size, groups, each = 64 << 10, 8, 30
	c := newCluster(t, false, 2, nil)
	c.startAll(nil)
	n1, n2 := c.members["n1"], c.members["n2"]
	n2.groups.memory.limit = 16 * size
	results := make(chan error, groups*each)
	send := func(id fsm.GroupID) {
		a := appendOf(1, 1)
		a.Entries[0].Extensions = make([]byte, size-1000)
		go func() {
			results <- n1.Transport(id).AppendEntries("n2", "n2", a, new(raft.AppendEntriesResponse))
		}()
	}
	held := func(id fsm.GroupID) int {
		tr := n2.Transport(id).(*transport).inbox
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return tr.used
	}
	for id := range fsm.GroupID(groups) {
		n2.Transport(id)
		for range each {
			send(id)
		}
	}
	mustWait(t, func() bool {
		for id := range fsm.GroupID(groups) {
			if held(id) == 0 {
				return false
			}
		}
		return true
	}, "a group gets nothing")
	for id := range fsm.GroupID(groups) {
		if n := held(id); n > 9*size {
			t.Errorf("group %d holds %d bytes of %d", id, n, n2.groups.memory.limit)
		}
	}
	if n := n2.groups.memory.used.Load(); n > n2.groups.memory.limit+groups*size {
		t.Errorf("all hold %d bytes, more than %d", n, n2.groups.memory.limit)
	}
	late := n2.Transport(groups).Consumer()
	send(groups)
	rpc := mustReceive(t, late, "request")
	rpc.Respond(&raft.AppendEntriesResponse{Term: 1, Success: true}, nil)
	if err := mustReceive(t, results, "answer"); err != nil {
		t.Error(err)
	}
	for id := range fsm.GroupID(groups) {
		go func() {
			for {
				select {
				case rpc := <-n2.Transport(id).Consumer():
					rpc.Respond(&raft.AppendEntriesResponse{Term: 1, Success: true}, nil)
				case <-t.Context().Done():
					return
				}
			}
		}()
	}
	for range groups * each {
		if err := mustReceive(t, results, "answer"); err != nil {
			t.Fatal(err)
		}
	}
	mustWait(t, func() bool { return n2.groups.memory.used.Load() == 0 }, "what is answered still counts")
}

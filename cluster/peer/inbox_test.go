package peer

import (
	"testing"

	"github.com/hashicorp/raft"
)

// A request that comes when raft has just made room goes behind those that wait for it.
func TestRequestsKeepTheirOrder(t *testing.T) {
	b := newInbox(nil, &groups{spawn: func(func()) {}}, nil)
	ask := func(number uint64) {
		b.enqueue(request{cmd: &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: number, PrevLogTerm: 1}})
	}
	for number := range uint64(depth + 1) {
		ask(number + 1)
	}
	<-b.consumer
	b.mu.Lock()
	b.inflight = b.inflight[1:] // raft has answered
	b.mu.Unlock()
	ask(depth + 2)
	b.mu.Lock()
	b.refill()
	b.mu.Unlock()
	for want := uint64(2); want <= depth+1; want++ {
		if rpc := <-b.consumer; rpc.Command.(*raft.AppendEntriesRequest).PrevLogEntry != want {
			t.Fatalf("%+v comes, want request %d", rpc.Command, want)
		}
	}
}

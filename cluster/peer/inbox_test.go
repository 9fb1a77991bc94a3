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

// An entry that raft has not answered is found by its index and term, wherever it waits.
func TestArriving(t *testing.T) {
	b := newInbox(nil, &groups{spawn: func(func()) {}}, nil)
	for i := range uint64(depth + 2) {
		a := &raft.AppendEntriesRequest{Term: 4, PrevLogEntry: 10 + 2*i, PrevLogTerm: 3}
		for index := a.PrevLogEntry + 1; index <= a.PrevLogEntry+2; index++ {
			a.Entries = append(a.Entries, &raft.Log{Index: index, Term: 3 + i%2, Extensions: []byte{byte(index)}})
		}
		b.enqueue(request{cmd: a})
	}
	b.enqueue(request{cmd: &raft.RequestVoteRequest{Term: 4}})
	b.enqueue(request{cmd: &raft.AppendEntriesRequest{Term: 4}})
	if len(b.inflight) != depth || len(b.queue) != 4 {
		t.Fatalf("%d requests are in flight, %d wait", len(b.inflight), len(b.queue))
	}
	for index := uint64(0); index < 50; index++ {
		for term := uint64(2); term < 6; term++ {
			i := (index - 11) / 2
			want := index > 10 && i < depth+2 && term == 3+i%2
			if got := b.arriving(index, term); (got != nil) != want || want && got[0] != byte(index) {
				t.Errorf("entry %d of term %d: %v, want it found: %v", index, term, got, want)
			}
		}
	}
}

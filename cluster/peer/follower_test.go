package peer

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// appendOf is a request with one entry behind index.
func appendOf(term, index uint64) *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: 3}, Term: term, PrevLogEntry: index, PrevLogTerm: term, LeaderCommitIndex: index + 5,
		Entries: []*raft.Log{{Index: index + 1, Term: term, Data: []byte("entry")}},
	}
}

// Entries for a group that the other node has not opened yet get there when it
// has: who sends them does not fail, asks without the entries meanwhile, and
// commits nothing by asking that the follower may have to replace.
func TestEntriesWaitForTheGroup(t *testing.T) {
	c := newCluster(t, false, 2, func(cfg *Config) { cfg.EarlyWait = -1 })
	c.startAll(nil)
	n1, n2 := c.members["n1"], c.members["n2"]
	leader := n1.Transport(9).(*transport)
	result, resp := make(chan error, 1), new(raft.AppendEntriesResponse)
	go func() { result <- leader.AppendEntries("n2", "n2", appendOf(4, 7), resp) }()
	mustWait(t, func() bool { return leader.Reached("n2", 4).Busy }, "nothing is sent")
	select {
	case err := <-result:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(5 * firstPause):
	}
	follower := n2.Transport(9)
	ask := mustReceive(t, follower.Consumer(), "question")
	if a := ask.Command.(*raft.AppendEntriesRequest); len(a.Entries) != 0 || a.PrevLogEntry != 7 || a.PrevLogTerm != 4 || a.LeaderCommitIndex != 7 {
		t.Errorf("it asks with %+v", a)
	}
	ask.Respond(&raft.AppendEntriesResponse{Term: 4, LastLog: 7, Success: true}, nil)
	whole := mustReceive(t, follower.Consumer(), "request")
	if a := whole.Command.(*raft.AppendEntriesRequest); len(a.Entries) != 1 || a.LeaderCommitIndex != 12 {
		t.Errorf("it sends %+v", a)
	}
	whole.Respond(&raft.AppendEntriesResponse{Term: 4, LastLog: 8, Success: true}, nil)
	if err := mustReceive(t, result, "answer"); err != nil || !resp.Success || resp.LastLog != 8 {
		t.Errorf("%+v, %v", resp, err)
	}
	if r := leader.Reached("n2", 4); r != (Reached{Index: 8}) {
		t.Errorf("the leader knows of it: %+v", r)
	}
}

// A follower whose log ends elsewhere says so to the question already, and the
// entries are not sent for nothing. One that never opens the group is given up.
func TestEntriesAreNotSentForNothing(t *testing.T) {
	c := newCluster(t, false, 2, func(cfg *Config) { cfg.EarlyWait, cfg.ReconnectWait = -1, 300*time.Millisecond })
	c.startAll(nil)
	leader := c.members["n1"].Transport(9).(*transport)
	resp := new(raft.AppendEntriesResponse)
	if err := leader.AppendEntries("n2", "n2", appendOf(4, 7), resp); !errors.Is(err, ErrUnknownGroup) {
		t.Errorf("a group that is never opened: %v", err)
	}
	result, questions := make(chan error, 1), c.members["n2"].Transport(9).Consumer()
	go func() { result <- leader.AppendEntries("n2", "n2", appendOf(4, 7), resp) }()
	mustWait(t, func() bool { return leader.Reached("n2", 4).Busy }, "nothing is sent")
	rpc := mustReceive(t, questions, "question")
	rpc.Respond(&raft.AppendEntriesResponse{Term: 4, LastLog: 3, NoRetryBackoff: true}, nil)
	if err := mustReceive(t, result, "answer"); err != nil || resp.Success || resp.LastLog != 3 || !resp.NoRetryBackoff {
		t.Errorf("%+v, %v", resp, err)
	}
	if r := leader.Reached("n2", 4); r != (Reached{}) {
		t.Errorf("the leader knows of it: %+v", r)
	}
}

// What a member has acknowledged counts in the term in which it did, and no
// longer once it says that its log ends earlier.
func TestReached(t *testing.T) {
	f := new(follower)
	f.acknowledged(3, 10)
	f.acknowledged(3, 8)
	if f.acknowledged(2, 20); f.term != 3 || f.index != 10 {
		t.Errorf("%d in term %d", f.index, f.term)
	}
	f.lacks(2, 1)
	if f.lacks(3, 7); f.index != 7 {
		t.Errorf("it lacks what follows 7, not %d", f.index)
	}
	if f.acknowledged(4, 2); f.term != 4 || f.index != 2 {
		t.Errorf("%d in term %d", f.index, f.term)
	}
	for term, want := range map[uint64]uint64{3: 0, 4: 2, 5: 0} { // what it had may be gone in another term
		if r := f.reached(term); r.Index != want {
			t.Errorf("in term %d it has reached %d, want %d", term, r.Index, want)
		}
	}
}

// What is sent to a node now arrives behind the entries that its link was given in this term, unless some of
// them wait, or the link is another one.
func TestSent(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	c.startAll(nil)
	leader := c.members["n1"].Transport(9).(*transport)
	c.members["n2"].Transport(9)
	pl, err := leader.AppendEntriesPipeline("n2", "n2")
	if err != nil {
		t.Fatal(err)
	}
	defer pl.Close()
	if got := leader.Sent("n2", 4); got != 0 {
		t.Errorf("%d is sent before anything is", got)
	}
	for index := range uint64(3) {
		if _, err := pl.AppendEntries(appendOf(4, index+7), new(raft.AppendEntriesResponse)); err != nil {
			t.Fatal(err)
		}
	}
	mustWait(t, func() bool { return leader.Sent("n2", 4) == 10 }, "the entries are not sent")
	if a, b := leader.Sent("n2", 5), leader.Sent("nobody", 4); a != 0 || b != 0 {
		t.Errorf("sent in another term %d, to who is no node %d", a, b)
	}
	l, err := c.members["n1"].link("n2")
	if err != nil {
		t.Fatal(err)
	}
	f := leader.followers.of("n2")
	l.out.mu.Lock()
	l.out.queued[classRaft]++
	l.out.mu.Unlock()
	if got := leader.Sent("n2", 4); got != 0 {
		t.Errorf("%d is sent while something waits", got)
	}
	l.out.mu.Lock()
	l.out.queued[classRaft]--
	l.out.mu.Unlock()
	if f.lastSent(l, 4) != 10 || f.lastSent(new(link), 4) != 0 {
		t.Error("another link has been given it")
	}
}

// Nothing is kept of a node that has left the cluster.
func TestFollowersForget(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	m := c.create("n1")
	tr := m.Mesh.Transport(1).(*transport)
	m.Transport(2)
	tr.followers.of("n2").acknowledged(1, 5)
	tr.followers.of("n3")
	m.RemovePeer("n2")
	if tr.followers.byNode["n2"] != nil || tr.followers.byNode["n3"] == nil {
		t.Errorf("known are %v", tr.followers.byNode)
	}
}

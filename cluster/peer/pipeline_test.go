package peer

import (
	"testing"

	"github.com/hashicorp/raft"
)

// startPipeline returns a pipeline from n1 and the consumer of its group at n2.
func startPipeline(t *testing.T) (*cluster, raft.AppendPipeline, <-chan raft.RPC) {
	t.Helper()
	c := newCluster(t, false, 2, nil)
	c.startAll(nil)
	pl, err := c.members["n1"].Transport(1).AppendEntriesPipeline("n2", "n2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pl.Close() })
	return c, pl, c.members["n2"].Transport(1).Consumer()
}

func pipelined(i int, size int) *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: 3}, Term: 1,
		PrevLogEntry: uint64(i), Entries: []*raft.Log{{Index: uint64(i) + 1, Term: 1, Data: make([]byte, size)}},
	}
}

func answerAll(consumer <-chan raft.RPC, count int) {
	for range count {
		rpc := <-consumer
		r := rpc.Command.(*raft.AppendEntriesRequest)
		rpc.Respond(&raft.AppendEntriesResponse{Term: 1, LastLog: r.Entries[0].Index, Success: true}, nil)
	}
}

// More answers than the channel holds wait for raft without blocking the link.
func TestPipelineOrderAndOverflow(t *testing.T) {
	const count = 5 * window
	_, pl, consumer := startPipeline(t)
	go answerAll(consumer, count)
	for i := range count {
		if _, err := pl.AppendEntries(pipelined(i, 100), new(raft.AppendEntriesResponse)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range count {
		f := mustReceive(t, pl.Consumer(), "answer")
		if err := f.Error(); err != nil {
			t.Fatal(err)
		}
		if f.Request().Entries[0].Index != uint64(i)+1 || f.Response().LastLog != uint64(i)+1 || f.Start().IsZero() {
			t.Fatalf("answer %d is for %d", i, f.Request().Entries[0].Index)
		}
	}
}

// Entries, and the news that something is committed, leave at once; only what repeats that waits
// for company.
func TestNewsIsNotLazy(t *testing.T) {
	_, pl, consumer := startPipeline(t)
	for _, tc := range []struct {
		name    string
		entries int
		commit  uint64
		lazy    bool
	}{{"an entry", 1, 0, false}, {"that it is committed", 0, 1, false}, {"the same again", 0, 1, true}} {
		args := pipelined(1, 10)
		args.Entries, args.LeaderCommitIndex = args.Entries[:tc.entries], tc.commit
		f, err := pl.AppendEntries(args, new(raft.AppendEntriesResponse))
		if err != nil {
			t.Fatal(err)
		}
		rpc := mustReceive(t, consumer, tc.name)
		rpc.Respond(&raft.AppendEntriesResponse{Term: 1, Success: true}, nil)
		mustReceive(t, pl.Consumer(), "answer")
		if f.(*appendFuture).lazy != tc.lazy {
			t.Errorf("%s waits: %v", tc.name, !tc.lazy)
		}
	}
}

func TestPipelineWindow(t *testing.T) {
	for _, tc := range []struct {
		name        string
		size, allow int
	}{
		{"requests", 10, window},
		{"bytes", 3 << 20, 2},
		{"one is always allowed", 9 << 20, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, pl, consumer := startPipeline(t)
			passed := make(chan error, window+1)
			go func() {
				for i := range tc.allow + 1 {
					_, err := pl.AppendEntries(pipelined(i, tc.size), new(raft.AppendEntriesResponse))
					passed <- err
				}
			}()
			for range tc.allow {
				if err := mustReceive(t, passed, "request"); err != nil {
					t.Fatal(err)
				}
			}
			p := pl.(*pipeline)
			p.mu.Lock()
			requests := p.requests
			p.mu.Unlock()
			if requests != tc.allow || len(passed) > 0 {
				t.Fatalf("%d requests under way", requests)
			}
			answerAll(consumer, 1)
			if err := mustReceive(t, passed, "room"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestPipelineEndsWithTheLink(t *testing.T) {
	c, pl, consumer := startPipeline(t)
	for i := range 3 {
		if _, err := pl.AppendEntries(pipelined(i, 10), new(raft.AppendEntriesResponse)); err != nil {
			t.Fatal(err)
		}
	}
	mustReceive(t, consumer, "request")
	c.net.cut("n1", c.addrs["n2"])
	for range 3 {
		f := mustReceive(t, pl.Consumer(), "failed request")
		if f.Error() == nil || f.Response().Success {
			t.Fatal("a request succeeded over a broken link")
		}
	}
	if _, err := pl.AppendEntries(pipelined(9, 10), new(raft.AppendEntriesResponse)); err == nil {
		t.Fatal("a broken pipeline goes on")
	}
}

func TestIdlePipelineSurvivesTheLink(t *testing.T) {
	c, pl, consumer := startPipeline(t)
	send := func(i int) {
		t.Helper()
		go answerAll(consumer, 1)
		if _, err := pl.AppendEntries(pipelined(i, 10), new(raft.AppendEntriesResponse)); err != nil {
			t.Fatal(err)
		}
		if err := mustReceive(t, pl.Consumer(), "answer").Error(); err != nil {
			t.Fatal(err)
		}
	}
	send(1)
	m := c.members["n1"]
	mustEvent(t, m, isUp("n2"), "up")
	c.net.cut("n1", c.addrs["n2"])
	mustEvent(t, m, isUp("n2"), "up again")
	send(2)
}

func TestRejectionEndsPipeline(t *testing.T) {
	_, pl, consumer := startPipeline(t)
	if _, err := pl.AppendEntries(pipelined(1, 10), new(raft.AppendEntriesResponse)); err != nil {
		t.Fatal(err)
	}
	rpc := mustReceive(t, consumer, "request")
	rpc.Respond(&raft.AppendEntriesResponse{Term: 1}, nil)
	if f := mustReceive(t, pl.Consumer(), "answer"); f.Error() != nil || f.Response().Success {
		t.Fatal("a rejection is an answer")
	}
	if _, err := pl.AppendEntries(pipelined(2, 10), new(raft.AppendEntriesResponse)); err == nil {
		t.Fatal("a broken pipeline goes on")
	}
}

// An answer that comes when the pipeline has ended is not one that raft has seen: the member counts as
// lacking what it acknowledges, so that it is sent that again.
func TestLateAnswerIsNotReached(t *testing.T) {
	for name, end := range map[string]func(pl *pipeline){
		"in time": nil,
		"closed":  func(pl *pipeline) { pl.Close() },
		"broken":  func(pl *pipeline) { pl.mu.Lock(); pl.broken = true; pl.mu.Unlock() },
	} {
		t.Run(name, func(t *testing.T) {
			c, pl, consumer := startPipeline(t)
			if _, err := pl.AppendEntries(pipelined(1, 10), new(raft.AppendEntriesResponse)); err != nil {
				t.Fatal(err)
			}
			rpc := mustReceive(t, consumer, "request")
			if end != nil {
				end(pl.(*pipeline))
			}
			rpc.Respond(&raft.AppendEntriesResponse{Term: 1, Success: true}, nil)
			member := c.members["n1"].Mesh.groups.find(1)
			mustWait(t, func() bool { return !member.Reached("n2", 1).Busy }, "no answer comes")
			if got, want := member.Reached("n2", 1).Index == 2, end == nil; got != want {
				t.Errorf("it has reached what it acknowledged: %v", got)
			}
		})
	}
}

func TestDroppedGroupEndsPipeline(t *testing.T) {
	c, pl, _ := startPipeline(t)
	result := make(chan error, 1)
	go func() {
		for {
			if _, err := pl.AppendEntries(pipelined(1, 10), new(raft.AppendEntriesResponse)); err != nil {
				result <- err
				return
			}
		}
	}()
	p := pl.(*pipeline)
	mustWait(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.requests == window
	}, "window never fills")
	c.members["n1"].DropGroup(1)
	if err := mustReceive(t, result, "end"); err == nil {
		t.Fatal("it goes on")
	}
}

// What raft has not taken yet goes first, even if there is room again.
func TestOverflowGoesFirst(t *testing.T) {
	first, second := new(appendFuture), new(appendFuture)
	pl := &pipeline{done: make(chan raft.AppendFuture, 1), overflow: []raft.AppendFuture{first}}
	if pl.hand(second); len(pl.done) != 0 || len(pl.overflow) != 2 || pl.overflow[1] != second {
		t.Errorf("%d answers overtake, %d wait", len(pl.done), len(pl.overflow))
	}
}

package peer

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// A member that is to stand for election does so before it hears of anything else, be it that other requests wait for it.
func TestLeaderStandsFirst(t *testing.T) {
	c := newCluster(t, false, 2, func(cfg *Config) { cfg.EarlyWait = time.Minute })
	c.startAll(nil)
	m := c.members["n2"]
	result := make(chan error, 1)
	go func() {
		result <- c.members["n1"].Transport(9).AppendEntries("n2", "n2", &raft.AppendEntriesRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: 3}, Term: 1, PrevLogEntry: 1, PrevLogTerm: 1,
		}, new(raft.AppendEntriesResponse))
	}()
	mustWait(t, func() bool { return m.Waits(9) }, "nothing waits")
	from := m.TransportOfLeader(9, nil).Consumer()
	first := mustReceive(t, from, "first request")
	if _, stands := first.Command.(*raft.TimeoutNowRequest); !stands {
		t.Errorf("it hears of %T first", first.Command)
	}
	first.Respond(&raft.TimeoutNowResponse{}, nil)
	second := mustReceive(t, from, "second request")
	second.Respond(&raft.AppendEntriesResponse{}, nil)
	mustReceive(t, result, "answer")
}

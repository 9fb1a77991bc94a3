package replica

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// taker is a transport that takes what fits.
type taker struct {
	Transport
	took []*raft.Log
}

func (k *taker) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest, _ *raft.AppendEntriesResponse) error {
	k.took = args.Entries
	return nil
}

// Requests to a follower that lags fit into a message of the mesh; raft sees
// how far they reach.
func TestBoundedRequests(t *testing.T) {
	entry := func(data, extensions int) *raft.Log {
		return &raft.Log{Data: make([]byte, data), Extensions: make([]byte, extensions)}
	}
	const limit = MaxRequestBytes
	for _, tc := range []struct {
		name    string
		entries []*raft.Log
		want    int
	}{
		{"none", nil, 0},
		{"small ones", []*raft.Log{entry(1, 0), entry(1, 9), entry(1, 0)}, 3},
		{"as many as fit", []*raft.Log{entry(9, limit/2-9), entry(0, limit/2), entry(1, 0)}, 2},
		{"one that is larger", []*raft.Log{entry(9, limit), entry(1, 0)}, 1},
		{"one that is larger behind others", []*raft.Log{entry(1, 0), entry(1, 0), entry(0, limit), entry(1, 0)}, 2},
	} {
		k, args := &taker{}, &raft.AppendEntriesRequest{Entries: tc.entries}
		if err := (BoundedTransport{k, &longGroup{}, &longGroup{}, &longGroup{}}).AppendEntries("n2", "n2", args, nil); err != nil {
			t.Fatal(err)
		}
		if len(k.took) != tc.want || len(args.Entries) != tc.want {
			t.Errorf("%s: %d are sent, raft sees %d, want %d", tc.name, len(k.took), len(args.Entries), tc.want)
		}
	}
}

// longGroup is a group with a log so long; it counts how often raft is to be
// triggered, and how often it pauses.
type longGroup struct {
	end            uint64
	nudges, paused int
	reserved       []int // bytes of each request that waits for the budget
	given          int   // reservations that are over, each after its pause
}

func (g *longGroup) Reserve(_ raft.ServerID, bytes int) func() {
	g.reserved = append(g.reserved, bytes)
	return func() {
		if g.given++; g.paused != len(g.reserved) {
			g.given = -1
		}
	}
}

func (g *longGroup) LastIndex() uint64 { return g.end }

func (g *longGroup) NudgeSoon() { g.nudges++ }

func (g *longGroup) Complete(*raft.Log) error { return nil }

func (g *longGroup) Pause(raft.ServerID, time.Duration, int) {
	g.paused++
}

// openPipe takes every request.
type openPipe struct {
	raft.AppendPipeline
	taken int
}

func (p *openPipe) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.taken++
	return nil, nil
}

// A pipeline goes on by itself as long as entries are left, and gives way to
// one request after the other when they are many.
func TestPipelineGoesOn(t *testing.T) {
	for _, tc := range []struct {
		entries     int
		left        uint64
		nudge, take int
	}{
		{MaxAppendEntries, 0, 0, 1},
		{MaxAppendEntries, 1, 1, 1},
		{MaxAppendEntries, lagsMuch, 1, 1},
		{MaxAppendEntries, lagsMuch + 1, 1, 0},
		{MaxAppendEntries - 1, 0, 0, 1},
		{MaxAppendEntries - 1, 5, 0, 1},
		{0, 0, 0, 1},
	} {
		g, pipe := &longGroup{end: 1000 + tc.left}, &openPipe{}
		args := &raft.AppendEntriesRequest{Entries: make([]*raft.Log, tc.entries)}
		if tc.entries > 0 {
			args.Entries[tc.entries-1] = &raft.Log{Index: 1000}
		}
		_, err := boundedPipeline{pipe, g, g}.AppendEntries(args, &raft.AppendEntriesResponse{})
		if (err == nil) != (tc.take == 1) || g.nudges != tc.nudge || pipe.taken != tc.take {
			t.Errorf("%d entries, %d left: %v, triggered %d times, %d requests sent", tc.entries, tc.left, err, g.nudges, pipe.taken)
		}
	}
}

// Pauses are made between requests to a member that lags much, not at the end.
func TestWhoIsHeldBack(t *testing.T) {
	for _, tc := range []struct {
		entries int
		left    uint64
		paused  int
	}{{32, lagsMuch + 1, 1}, {32, lagsMuch, 0}, {1, lagsMuch + 1, 1}, {0, lagsMuch + 1, 0}} {
		g, args := &longGroup{end: 1000 + tc.left}, &raft.AppendEntriesRequest{}
		for i := range tc.entries {
			args.Entries = append(args.Entries, &raft.Log{Index: uint64(1001 - tc.entries + i)})
		}
		if err := (BoundedTransport{&taker{}, g, g, g}).AppendEntries("n2", "n2", args, nil); err != nil || g.paused != tc.paused || len(g.reserved) != tc.paused || g.given != tc.paused {
			t.Errorf("%d entries, %d left: paused %d times, reserved %v, %d given back after that (%v)", tc.entries, tc.left, g.paused, g.reserved, g.given, err)
		}
	}
}

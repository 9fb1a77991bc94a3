package replica

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
)

// evidence is what a store knows of a past.
type evidence struct {
	doubt string
	err   error // of a proof
}

func (e evidence) Doubt() string { return e.doubt }
func (e evidence) Prove() error  { return e.err }

// A learner becomes a voter only when that is noted: it would be a learner again after a restart.
// Until then it does not stand for election.
func TestProofIsStored(t *testing.T) {
	for _, failed := range []error{raftlog.ErrDropped, nil} {
		var x Trust
		x.Open(evidence{"the store is older than its ledger", failed}, 5)
		if err := x.Prove(); err != failed || x.IsLearner() != (failed != nil) {
			t.Errorf("the store answers %v: proven %v, a learner %v", failed, err, x.IsLearner())
		}
		if why := x.Refuses(); (why == ErrLearner) != (failed != nil) {
			t.Errorf("the store answers %v: it does not stand since %v", failed, why)
		}
	}
}

// A replica whose store is lost has a past, even if nothing else is left of it than its doubt.
func TestDoubtIsPast(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "queues")
	for _, lost := range []bool{false, true} {
		s, err := raftlog.Open(dir, raftlog.Options{Exit: func(int) { panic("exit") }})
		if err != nil {
			t.Fatal(err)
		}
		g, err := s.Group(7)
		if err != nil {
			t.Fatal(err)
		}
		r := New(Config{Log: g})
		if past, err := r.HasPast(); err != nil || past != lost || (g.Doubt() != "") != lost {
			t.Errorf("lost %v: it has a past: %v, doubt %q, %v", lost, past, g.Doubt(), err)
		}
		if err := g.StoreLog(&raft.Log{Index: 1, Term: 1}); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// box counts requests for votes.
type box struct {
	Transport
	raft.StableStore
	questions int
	stored    []string
}

func (b *box) RequestVote(raft.ServerID, raft.ServerAddress, *raft.RequestVoteRequest, *raft.RequestVoteResponse) error {
	b.questions++
	return nil
}

func (b *box) RequestPreVote(raft.ServerID, raft.ServerAddress, *raft.RequestPreVoteRequest, *raft.RequestPreVoteResponse) error {
	b.questions++
	return nil
}

func (b *box) Set(key, _ []byte) error {
	b.stored = append(b.stored, string(key))
	return nil
}

func (b *box) SetUint64(key []byte, _ uint64) error {
	b.stored = append(b.stored, string(key))
	return nil
}

// A learner asks nobody for a vote, and stores none: neither its term nor its
// candidate. It stores terms. A voter does all of that.
func TestLearnerHasNoVote(t *testing.T) {
	for _, doubt := range []string{"lost", ""} {
		tr, b := &Trust{}, &box{}
		tr.Open(evidence{doubt: doubt}, 1)
		asks, stores := AbstainingTransport{b, tr.Refuses}, voteStore{b, tr, nil}
		for what, err := range map[string]error{
			"asks for a vote":               asks.RequestVote("n2", "n2", nil, nil),
			"asks whether it would get one": asks.RequestPreVote("n2", "n2", nil, nil),
			"stores a vote's term":          stores.SetUint64([]byte(raftlog.VoteTermKey), 5),
			"stores a candidate":            stores.Set([]byte(raftlog.VotedForKey), []byte("n2")),
		} {
			if (err == nil) != (doubt == "") || err != nil && !errors.Is(err, ErrLearner) {
				t.Errorf("in doubt %q, it %s: %v", doubt, what, err)
			}
		}
		if err := stores.SetUint64([]byte(raftlog.TermKey), 5); err != nil {
			t.Error(err)
		}
		questions, stored := 0, []string{raftlog.TermKey}
		if doubt == "" {
			questions, stored = 2, []string{raftlog.VoteTermKey, raftlog.VotedForKey, raftlog.TermKey}
		}
		slices.Sort(b.stored)
		slices.Sort(stored)
		if b.questions != questions || !slices.Equal(b.stored, stored) {
			t.Errorf("in doubt %q: %d requests, stored %q", doubt, b.questions, b.stored)
		}
	}
}

// A member that asks who leads says where its log ends: that is what its leader
// takes it to have from then on, and it is sent something. One to which something
// is on its way waits for that.
func TestMemberWithoutLeaderLags(t *testing.T) {
	k := mustKin(t)
	g, last := k.all[0], uint64(0)
	_, term := g.Role()
	await(t, "all have everything", func() bool {
		last = g.LastIndex()
		for _, n := range []string{"n2", "n3"} {
			if r := g.Reached(n, term); r.Busy || r.Index < last {
				return false
			}
		}
		return last == g.LastIndex()
	})
	noted := k.unsettled[0].Load()
	g.nudging.Store(true) // nothing is sent
	if g.HasNoLeader("n2", last-1); k.unsettled[0].Load() == noted {
		t.Error("nobody is told that a member lacks something")
	}
	if r := g.Reached("n2", term); r.Index != last-1 {
		t.Errorf("it is taken to have entry %d, its log ends at %d", r.Index, last-1)
	}
	g.nudging.Store(false)
	g.HasNoLeader("n2", last-1)
	await(t, "it is sent something", func() bool { return g.LastIndex() > last && g.Reached("n2", term).Index > last })

	k.meshes[1].DropGroup(1)
	k.meshes[1].Transport(1) // of which nothing is taken
	g.Nudge()
	await(t, "something is on its way", func() bool { return g.Reached("n2", term).Busy })
	was := g.Reached("n2", term).Index
	g.HasNoLeader("n2", 1)
	if r := g.Reached("n2", term); r.Index != was {
		t.Errorf("it is taken to have entry %d, not %d, although something is on its way", r.Index, was)
	}
}

// A member that has all that its leader had when it was asked follows, however much more that has by the time of the answer.
func TestFollows(t *testing.T) {
	for _, c := range []struct {
		last uint64
		ok   bool
		want bool
	}{{1000, true, true}, {990, true, true}, {989, true, false}, {1000, false, false}} {
		commit := uint64(1000)
		got := Follows(func() Progress { return Progress{Commit: commit} }, 10, func() (uint64, bool) {
			commit += 5000
			return c.last, c.ok
		})
		if got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

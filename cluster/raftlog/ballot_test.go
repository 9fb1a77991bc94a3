package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
)

// ballotGroup is what a group has when it is asked for its vote.
type ballotGroup struct {
	lastTerm, last  uint64 // of its log; 0: there is none
	snapshot        bool   // the log is only that
	term            uint64
	voted           uint64 // in this term; 0: never
	candidate       string
	doubt           bool
	loaded, unread  bool
	ballots         []Ballot
	ballotCandidate []string
}

// drawGroup draws a group and what it is asked.
func drawGroup(t *rapid.T, id fsm.GroupID) (x ballotGroup) {
	number := func(to uint64, what string) uint64 { return rapid.Uint64Range(0, to).Draw(t, what) }
	names := rapid.SampledFrom([]string{"a", "b"})
	if x.term = number(4, "term"); x.term > 0 {
		x.lastTerm = number(x.term, "last term")
		if x.voted = number(x.term, "vote"); x.voted > 0 {
			x.candidate = names.Draw(t, "candidate")
		}
	}
	if x.lastTerm > 0 {
		x.last = 1 + number(3, "last")
		x.snapshot = rapid.Bool().Draw(t, "snapshot")
	}
	x.doubt = number(4, "doubt") == 0
	x.loaded, x.unread = rapid.Bool().Draw(t, "loaded"), rapid.Bool().Draw(t, "unread")
	for range 1 + number(2, "ballots") {
		x.ballots = append(x.ballots, Ballot{Group: id, Term: 1 + number(5, "asked term"), Index: number(5, "asked last"), IndexTerm: number(5, "asked last term")})
		x.ballotCandidate = append(x.ballotCandidate, names.Draw(t, "asking"))
	}
	return x
}

// make brings a group into this state.
func (x *ballotGroup) make(t testing.TB, s *Store, id fsm.GroupID) {
	g := mustGroup(t, s, id)
	must(t, g.SetUint64([]byte(TermKey), max(x.voted, 1)))
	if x.voted > 0 {
		mustVoteFor(t, g, x.voted, x.candidate)
	}
	if x.last > 0 {
		mustStore(t, g, 1, x.last, x.lastTerm)
	}
	if x.snapshot {
		mustSave(t, g, x.last, x.lastTerm, []byte("state"))
		must(t, g.DeleteRange(1, x.last))
	}
	must(t, g.SetUint64([]byte(TermKey), max(x.term, 1)))
	if x.doubt {
		g.place.change(func(r *record) { r.doubt = "a doubt" })
	}
}

// cannotVote is the store of a learner, which takes no vote, as cluster/group has it.
type cannotVote struct{ *Group }

var errLearner = errors.New("a learner")

func (c cannotVote) Set(key, value []byte) error {
	if string(key) == VotedForKey && c.Doubt() != "" {
		return errLearner
	}
	return c.Group.Set(key, value)
}

func (c cannotVote) SetUint64(key []byte, value uint64) error {
	if string(key) == VoteTermKey && c.Doubt() != "" {
		return errLearner
	}
	return c.Group.SetUint64(key, value)
}

// noMachine is a machine without a state.
type noMachine struct{ raft.FSM }

// askRaft returns what raft answers to ballots with what a group has on disk.
func askRaft(t testing.TB, g *Group, x *ballotGroup) (votes []bool) {
	c := raft.DefaultConfig()
	c.LocalID, c.Logger = "x", hclog.NewNullLogger()
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout, c.CommitTimeout = time.Hour, time.Hour, time.Hour, time.Hour
	c.NoSnapshotRestoreOnStart = true
	addr, trans := raft.NewInmemTransport("")
	_, from := raft.NewInmemTransport("")
	from.Connect(addr, trans)
	r, err := raft.NewRaft(c, noMachine{}, g, cannotVote{g}, g.Snapshots(), trans)
	must(t, err)
	for i, b := range x.ballots {
		var resp raft.RequestVoteResponse
		must(t, from.RequestVote("x", addr, &raft.RequestVoteRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, Addr: []byte(x.ballotCandidate[i])},
			Term:      b.Term, LastLogIndex: b.Index, LastLogTerm: b.IndexTerm,
		}, &resp))
		votes = append(votes, resp.Granted)
	}
	must(t, r.Shutdown().Error())
	return votes
}

// stateOf is what a group has on disk of terms and votes, and what its ledger has.
func stateOf(t testing.TB, s *Store, id fsm.GroupID) string {
	var b bytes.Buffer
	it, err := s.db.NewIter(nil)
	must(t, err)
	defer it.Close()
	prefix := prefixOf(kindStable, id)
	for ok := it.SeekGE(prefix); ok && hasPrefix(it.Key(), prefix); ok = it.Next() {
		fmt.Fprintf(&b, "%s: %x\n", it.Key()[len(prefix):], it.Value())
	}
	g := mustGroup(t, s, id)
	index, term := g.end()
	fmt.Fprintf(&b, "ends at %d/%d, ledger: %+v", term, index, g.place.get())
	return b.String()
}

// Groups that vote together say what raft would say in each, and have on disk what it would leave there, whether they
// are loaded, unloaded, or were never read.
func TestVoteIsRafts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const n = fsm.GroupID(4)
		fs := vfs.NewMem()
		s := mustOpen(t, fs, "db")
		all := map[fsm.GroupID]*ballotGroup{}
		for id := fsm.GroupID(1); id <= n; id++ {
			x := drawGroup(rt, id)
			all[id] = &x
			x.make(t, s, id)
		}
		must(t, s.Close())
		other := crashable(t, fs)

		s = mustOpen(t, fs, "db")
		var want, got []bool
		for round := range 3 {
			for _, candidate := range []string{"a", "b"} {
				var ballots []Ballot
				for id := fsm.GroupID(1); id <= n; id++ {
					x := all[id]
					if !x.unread {
						mustGroup(t, s, id)
						if !x.loaded {
							s.Unload(id)
						}
					}
					if round < len(x.ballots) && x.ballotCandidate[round] == candidate {
						ballots = append(ballots, x.ballots[round])
					}
				}
				got = append(got, s.Vote(candidate, ballots)...)
			}
		}
		for id := fsm.GroupID(1); id <= n; id++ {
			mustKnowVote(t, mustGroup(t, s, id))
		}
		must(t, s.Close())

		s = mustOpen(t, other, "db")
		answers := map[fsm.GroupID][]bool{}
		for id, x := range all {
			answers[id] = askRaft(t, mustGroup(t, s, id), x)
		}
		must(t, s.Close())
		for round := range 3 {
			for _, candidate := range []string{"a", "b"} {
				for id := fsm.GroupID(1); id <= n; id++ {
					if x := all[id]; round < len(x.ballots) && x.ballotCandidate[round] == candidate {
						want = append(want, answers[id][round])
					}
				}
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			rt.Errorf("votes %v, raft's are %v", got, want)
		}

		s, o := mustOpen(t, fs, "db"), mustOpen(t, other, "db")
		for id := fsm.GroupID(1); id <= n; id++ {
			if is, want := stateOf(t, s, id), stateOf(t, o, id); is != want {
				rt.Errorf("group %d has\n%s\nraft leaves\n%s", id, is, want)
			}
		}
		must(t, s.Close())
		must(t, o.Close())
	})
}

// mustKnowVote checks that a group that is in memory says what is on disk of its term and vote.
func mustKnowVote(t testing.TB, g *Group) {
	t.Helper()
	for _, name := range []string{TermKey, VoteTermKey, VotedForKey} {
		is, err := g.Get([]byte(name))
		must(t, err)
		if want, err := getSealed(g.s.db, g.stable.key([]byte(name))); !bytes.Equal(is, want) {
			t.Errorf("group %d says %s is %x, on disk it is %x: %v", g.id, name, is, want, err)
		}
	}
}

// A group does not vote while it has something under way: an entry may come to be that the voter does not count.
func TestBusyGroupsDoNotVote(t *testing.T) {
	o := newOverlapped(t, "a", "b")
	ballot := []Ballot{{Group: 1, Term: 9, Index: 99, IndexTerm: 9}}
	o.gate.close()
	must(t, o.StoreLog(&raft.Log{Index: 11, Term: 1}))
	if o.s.Vote("a", ballot)[0] {
		t.Error("it votes with an unsynced entry")
	}
	o.gate.open()
	o.awaitDurable()
	o.stable.mu.Lock()
	if o.s.Vote("a", ballot)[0] {
		t.Error("it votes while a term is stored")
	}
	o.stable.mu.Unlock()
	if !o.s.Vote("a", ballot)[0] {
		t.Error("it does not vote when it is idle")
	}
}

// A vote that was told is there after a power failure; one at any write before leaves each group with the vote or
// without it, and none in doubt.
func TestVotesSurvivePowerLoss(t *testing.T) {
	const n = 5
	fs := stopped(t) // group 1 has entries, and voted in term 4; 3 voted in term 7
	s := mustOpen(t, fs, "db")
	for id := fsm.GroupID(10); id < 10+n; id++ {
		idle(t, s, id)
	}
	must(t, s.Close())
	cam := &camera{disk: crashable(t, fs), every: 1}
	s = mustOpenQuietly(t, errorfs.Wrap(cam.disk, cam))
	var ballots []Ballot
	for id := fsm.GroupID(10); id < 10+n; id++ {
		g := mustGroup(t, s, id)
		if g.Overlap(); id%2 == 0 && !s.Unload(id) {
			t.Fatal("a group cannot be unloaded")
		}
		ballots = append(ballots, Ballot{Group: id, Term: 3, Index: 5, IndexTerm: 2})
	}
	before := len(cam.taken())
	for i, vote := range s.Vote("n2", ballots) {
		if !vote {
			t.Errorf("group %d does not vote", ballots[i].Group)
		}
	}
	after := cam.disk.CrashClone(vfs.CrashCloneCfg{})
	pictures := append(cam.taken()[before:], after)
	must(t, s.Close())
	for i, fs := range pictures {
		s := mustOpenQuietly(t, fs)
		for _, b := range ballots {
			g := mustGroup(t, s, b.Group)
			mustDoubt(t, g, "")
			mustBounds(t, g, 1, 5)
			if who, _ := g.Get([]byte(VotedForKey)); string(who) == "n2" || i == len(pictures)-1 {
				mustHaveVoted(t, g, 3, "n2")
			} else if term, _ := g.GetUint64([]byte(VoteTermKey)); string(who) != "n1" || term != 2 {
				t.Errorf("the vote is in term %d for %q", term, who)
			}
		}
		must(t, s.Close())
	}
	if len(pictures) < 6 {
		t.Errorf("only %d pictures", len(pictures))
	}
}

// A thousand votes take two syncs, and not one each. Who asks again waits for the disk again: the first answer may be on its way there.
func TestVotesShareSyncs(t *testing.T) {
	count := &syncCount{}
	s := mustOpen(t, errorfs.Wrap(vfs.NewMem(), count), "db")
	var ballots []Ballot
	for id := fsm.GroupID(1); id <= 1000; id++ {
		must(t, mustGroup(t, s, id).StoreLog(&raft.Log{Index: 1, Term: 1}))
		ballots = append(ballots, Ballot{Group: id, Term: 2, Index: 1, IndexTerm: 1})
		s.Unload(id)
	}
	s.ledger.sync()
	log, ledger := count.log.Load(), count.ledger.Load()
	for range 2 {
		for i, vote := range s.Vote("a", ballots) {
			if !vote {
				t.Fatalf("group %d does not vote", i+1)
			}
		}
	}
	if l, d := count.log.Load()-log, count.ledger.Load()-ledger; l < 2 || l > 20 || d < 2 || d > 20 { // those that come by time are more on a slow machine
		t.Errorf("%d syncs of the log, %d of the ledger", l, d)
	}
	must(t, s.Close())
}

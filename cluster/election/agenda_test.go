package election

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
)

// quiet is a group in whose election nothing happens. It notes how often it is looked at.
type quiet struct {
	crowdMember
	looked int
	locked bool // the lock was held when the log was read
}

func (q *quiet) Role() (raft.RaftState, uint64) {
	q.looked++
	return q.crowdMember.Role()
}

func (q *quiet) LogEnd() replica.Position {
	e := q.n.elections
	if !e.mu.TryLock() {
		q.locked = true
		return replica.Position{}
	}
	e.mu.Unlock()
	return q.crowdMember.LogEnd()
}

// An election is looked at when something changes for it, and once a second; nobody waits for the logs of all.
func TestElectionsThatAreLookedAt(t *testing.T) {
	const groups = 1000
	c := newCrowd(t, 0, 0)
	n, all := c.nodes["b"], map[fsm.GroupID]*quiet{}
	e := n.elections
	e.find = func(id fsm.GroupID) Electable { return all[id] }
	for id := range fsm.GroupID(groups) {
		all[id] = &quiet{crowdMember: crowdMember{n: n, id: id}}
		e.Begin(all[id])
	}
	looked := func(what string, want ...fsm.GroupID) {
		t.Helper()
		e.advance(c.now)
		n := 0
		for _, q := range all {
			if q.locked {
				t.Fatalf("%s: a log is read under the lock", what)
			}
			if q.looked > 0 {
				n++
			}
		}
		for _, id := range want {
			if all[id].looked == 0 {
				t.Errorf("%s: group %d is not looked at", what, id)
			}
		}
		if len(want) > 0 && n != len(want) || want == nil && n != groups {
			t.Errorf("%s: %d groups are looked at", what, n)
		}
		for _, q := range all {
			q.looked = 0
		}
	}
	none := []fsm.GroupID{}
	looked("at first")
	c.now = c.now.Add(10 * time.Millisecond)
	e.note("c", Item{Kind: itemPosition, Group: 7, Term: 1}, c.now)
	all[7].looked = 0
	looked("a position", 7)
	all[8].term = 2
	e.TermChanged(8)
	c.now = c.now.Add(termShown)
	looked("a term", 8)
	e.Want(9, []string{"b"})
	looked("somebody waits", 9)
	if due := e.agenda.take(c.now); len(due) != len(none) {
		t.Errorf("%d are due although nothing has happened", len(due))
	}
	e.PeersChanged()
	looked("a node has come")
	c.now = c.now.Add(positionsEvery)
	looked("a second has passed")
}

// The moment that a backoff names is the first at which it is this candidate's turn.
func TestBackoffNext(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		s := slots{candidates: 1 + random.IntN(3), spread: func(d time.Duration) time.Duration { return d / 2 }}
		now := time.Unix(1000, 0)
		var b electionBackoff
		for range random.IntN(6) {
			b.taken(now, s)
			now = now.Add(time.Duration(random.IntN(3000)) * time.Millisecond)
		}
		rank := random.IntN(4)
		if b.mine(now, rank, s) {
			continue
		}
		next := b.next(rank, s)
		if rank >= s.candidates {
			if !next.IsZero() {
				t.Fatalf("a member that has no slot may stand at %v", next)
			}
			continue
		}
		limit := now.Add(time.Minute)
		for now = now.Add(time.Millisecond); !b.mine(now, rank, s) && now.Before(limit); now = now.Add(time.Millisecond) {
			if b.next(rank, s).Before(now) {
				t.Fatalf("it has been this candidate's turn before %v", now)
			}
		}
		if early := next.Sub(now); early > time.Millisecond || early < -longestSlot/4 { // or late in the slot, by chance
			t.Fatalf("its turn comes at %v, not at %v", now, next)
		}
	}
}

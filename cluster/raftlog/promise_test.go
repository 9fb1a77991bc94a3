package raftlog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"
)

// promise is what others know of a member: that it has voted, or that it has an entry.
type promise struct {
	term      uint64
	candidate string // of a vote
	index     uint64 // of an entry
}

// promiser is a member that answers as raft does, and whose answers leave when the store says so. Its power fails at
// random filesystem operations, whoever does them.
type promiser struct {
	t    *testing.T
	r    *rand.Rand
	g    *Group
	disk *vfs.MemFS
	odds int  // against a power failure at a write
	born bool // what it was founded with it writes with what comes next

	mu      sync.Mutex
	power   *rand.Rand        // decides when it fails, and what is left
	votes   map[uint64]string // that have left, for ever
	left    []promise         // since the store was opened
	armed   bool
	crashed *vfs.MemFS // the disk after the failure; nil: there was none
	known   []promise  // what had left by then
	at      string
}

// MaybeError implements errorfs.Injector. It never injects an error.
func (p *promiser) MaybeError(op errorfs.Op) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && p.armed && p.crashed == nil && p.power.IntN(p.odds) == 0 {
		p.crashed = p.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * p.power.IntN(3), RNG: p.power})
		p.known, p.at = append([]promise(nil), p.left...), fmt.Sprintf("%v %s", op.Kind, op.Path)
	}
	return nil
}

func (p *promiser) String() string { return "(power)" }

// open opens the store that the last power failure has left.
func (p *promiser) open(single bool) {
	s := mustOpen(p.t, errorfs.Wrap(p.disk, p), "db")
	p.g = mustGroup(p.t, s, 1)
	p.g.Overlap()
	if p.born {
		p.g.Found(foundedBy(single))
	} else if last, _ := p.g.LastIndex(); last == 0 && single {
		must(p.t, p.g.StoreLog(configLog(1, 1, "me")))
	} else if last == 0 {
		must(p.t, p.g.StoreLog(configLog(1, 1, "me", "a", "b")))
	}
}

func (p *promiser) number(key string) uint64 {
	n, err := p.g.GetUint64([]byte(key))
	must(p.t, err)
	return n
}

func (p *promiser) candidate() string {
	c, err := p.g.Get([]byte(VotedForKey))
	must(p.t, err)
	return string(c)
}

// leaves notes that somebody knows of a promise.
func (p *promiser) leaves(x promise) func() {
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if x.candidate != "" {
			if had := p.votes[x.term]; had != "" && had != x.candidate {
				p.t.Errorf("in term %d it votes for %s, and has voted for %s", x.term, x.candidate, had)
			}
			p.votes[x.term] = x.candidate
		}
		p.left = append(p.left, x)
	}
}

// persist is raft's persistVote.
func (p *promiser) persist(term uint64, candidate string) {
	must(p.t, p.g.SetUint64([]byte(VoteTermKey), term))
	must(p.t, p.g.Set([]byte(VotedForKey), []byte(candidate)))
}

// requested is what raft does with a request for a vote of somebody whose log is long enough.
func (p *promiser) requested(term uint64, candidate string) {
	switch now := p.number(TermKey); {
	case term < now:
		return
	case term > now:
		must(p.t, p.g.SetUint64([]byte(TermKey), term))
	}
	if voted := p.candidate(); p.number(VoteTermKey) != term || voted == "" {
		p.persist(term, candidate)
	} else if voted != candidate {
		return
	}
	p.g.WhenDurable(p.g.Written(), p.leaves(promise{term: term, candidate: candidate}))
}

// stands is what raft does as a candidate: others answer before its own vote is stored, and after.
func (p *promiser) stands(single bool) {
	term := p.number(TermKey) + 1
	must(p.t, p.g.SetUint64([]byte(TermKey), term))
	early := p.r.IntN(2) == 0
	if early && !single {
		p.g.WhenVoted(term, p.leaves(promise{term: term, candidate: "me"}))
	}
	p.persist(term, "me")
	if single {
		p.leaves(promise{term: term, candidate: "me"})()
	} else if !early {
		p.g.WhenVoted(term, p.leaves(promise{term: term, candidate: "me"}))
	}
}

// appends is what raft does with entries of a leader.
func (p *promiser) appends(term uint64) {
	now := p.number(TermKey)
	if term < now {
		return
	}
	must(p.t, p.g.SetUint64([]byte(TermKey), term))
	last, err := p.g.LastIndex()
	must(p.t, err)
	to := last + 1 + p.r.Uint64N(3)
	mustStore(p.t, p.g, last+1, to, term)
	p.g.WhenDurable(p.g.Written(), p.leaves(promise{term: term, index: to}))
}

// keeps returns an error unless a group stands by what has left.
func keeps(g *Group, promises []promise) (err error) {
	if why := g.Doubt(); why != "" {
		return errors.New(why)
	}
	term, _ := g.GetUint64([]byte(TermKey))
	voted, _ := g.GetUint64([]byte(VoteTermKey))
	whom, _ := g.Get([]byte(VotedForKey))
	last, _ := g.LastIndex()
	for _, x := range promises {
		switch {
		case term < x.term:
			err = fmt.Errorf("it is in term %d", term)
		case x.candidate != "" && (voted < x.term || voted == x.term && string(whom) != x.candidate):
			err = fmt.Errorf("its vote in term %d is for %q", voted, whom)
		case last < x.index:
			err = fmt.Errorf("its log ends at %d", last)
		}
		if err != nil {
			return fmt.Errorf("%w, after %+v has left", err, x)
		}
	}
	return nil
}

// Whenever the power fails, what others know of a member is still true of it: it has the term of each vote and of each
// entry that it has acknowledged, or a later one, and no other vote in that term, be it a voter, a candidate, or the
// only member. QUORATE_CRASH_RUNS sets the number of histories, QUORATE_CRASH_SEED the first one.
func TestPromisesSurvivePowerLoss(t *testing.T) {
	runs, first := envOr("QUORATE_CRASH_RUNS", 6), envOr("QUORATE_CRASH_SEED", 1)
	failures, promises := 0, 0
	for seed := first; seed < first+runs && !t.Failed(); seed++ {
		p := &promiser{t: t, r: rand.New(rand.NewPCG(uint64(seed), 7)), power: rand.New(rand.NewPCG(uint64(seed), 8)), disk: vfs.NewCrashableMem(), odds: 40, votes: map[uint64]string{}}
		single := seed%3 == 0
		p.open(single)
		p.arm(true)
		for step := 0; step < 300 && !t.Failed(); step++ {
			p.step(single)
			if !p.failed() {
				continue
			}
			failures, promises = failures+1, promises+len(p.known)
			p.restart(seed, step, single)
		}
		p.arm(false)
		must(t, p.g.s.Close())
	}
	t.Logf("%d power failures, %d promises", failures, promises)
	if failures < runs || promises < runs*10 {
		t.Errorf("only %d power failures, %d promises", failures, promises)
	}
}

func (p *promiser) arm(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = on
}

func (p *promiser) failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.crashed != nil
}

func (p *promiser) step(single bool) {
	term := p.number(TermKey) + p.r.Uint64N(3)
	switch x := p.r.IntN(10); {
	case x < 5:
		p.requested(term, string(rune('a'+p.r.IntN(2))))
	case x < 7:
		p.stands(single)
	case x < 9:
		p.appends(term)
	default:
		p.g.awaitDurable()
	}
}

// restart goes on with what the power failure has left. What left the old process after it did not happen.
func (p *promiser) restart(seed, step int, single bool) {
	old := p.g.s
	p.mu.Lock()
	p.armed = false
	known, disk, at := p.known, p.crashed, p.at
	p.mu.Unlock()
	must(p.t, old.Close())
	p.mu.Lock()
	p.votes = map[uint64]string{}
	for _, x := range known {
		if x.candidate != "" {
			p.votes[x.term] = x.candidate
		}
	}
	p.left, p.known, p.crashed, p.disk = known, nil, nil, disk
	p.mu.Unlock()
	p.open(single)
	if err := keeps(p.g, known); err != nil {
		p.t.Errorf("seed %d, power lost at %s in step %d: %v", seed, at, step, err)
	}
	p.arm(true)
}

// A vote takes one sync of the store, with the term that it is in, and one of the ledger beside it. Term and vote
// return at once; the vote counts behind all that was written before.
func TestVoteTakesOneSync(t *testing.T) {
	count := &syncCount{}
	o := newOverlapped(t, "a", "b", "c")
	o.gate.hits = func(op errorfs.Op) bool {
		_ = count.MaybeError(op)
		return strings.HasSuffix(op.Path, ".log") && isSync(op)
	}
	o.gate.close()
	mustStore(t, o.Group, 11, 20, 1)
	<-o.gate.arrived
	log, ledger := count.log.Load(), count.ledger.Load()
	early, late, acknowledged := make(chan struct{}), make(chan struct{}), make(chan struct{})
	must(t, o.SetUint64([]byte(TermKey), 9))
	o.WhenVoted(9, func() { close(early) })
	must(t, o.SetUint64([]byte(VoteTermKey), 9))
	must(t, o.Set([]byte(VotedForKey), []byte("b")))
	o.WhenVoted(9, func() { close(late) })
	o.WhenDurable(o.Written(), func() { close(acknowledged) })
	o.gate.pass() // the entries
	<-o.gate.arrived
	if isClosed(early) || isClosed(late) || isClosed(acknowledged) {
		t.Error("a vote counts before it is durable")
	}
	o.gate.pass()
	for _, c := range []chan struct{}{early, late, acknowledged} {
		mustClose(t, c, "the vote")
	}
	if log, ledger := count.log.Load()-log, count.ledger.Load()-ledger; log != 1 || ledger > 2 {
		t.Errorf("%d syncs of the store, %d of the ledger", log, ledger) // one of the ledger may be for the entries
	}
	o.gate.open()
	g := o.crashed()
	mustHaveVoted(t, g, 9, "b")
	mustBounds(t, g, 1, 20)
}

// A vote of a member that decides alone, or may, is durable when Set returns.
func TestWhoseVoteIsAwaited(t *testing.T) {
	for name, voters := range map[string][]raft.ServerID{"single voter": {"a"}, "unknown": nil} {
		t.Run(name, func(t *testing.T) {
			o := newOverlapped(t, voters...)
			must(t, o.SetUint64([]byte(TermKey), 9))
			must(t, o.SetUint64([]byte(VoteTermKey), 9))
			o.gate.close()
			voted := make(chan struct{})
			go func() {
				defer close(voted)
				if err := o.Set([]byte(VotedForKey), []byte("a")); err != nil {
					t.Error(err)
				}
			}()
			select {
			case <-voted:
				t.Error("a vote that decides is not durable")
			case <-time.After(50 * time.Millisecond):
			}
			o.gate.open()
			mustClose(t, voted, "the vote")
			mustHaveVoted(t, o.crashed(), 9, "a")
			counts := make(chan struct{})
			o.WhenVoted(9, func() { close(counts) })
			mustClose(t, counts, "the vote counts")
		})
	}
}

// A disk that fails ends the process, and the vote does not leave.
func TestFailedSyncOfVoteExits(t *testing.T) {
	for _, hits := range []func(op errorfs.Op) bool{
		func(op errorfs.Op) bool { return isSync(op) && strings.HasSuffix(op.Path, ".log") },
		func(op errorfs.Op) bool { return isSync(op) && strings.Contains(op.Path, ledgerNamePrefix) },
	} {
		g, e := mustBreak(t, hits)
		e.mustExit(t, func() {
			mustVoteFor(t, g, 2, "b")
			announced := make(chan struct{})
			g.WhenVoted(2, func() { close(announced) })
			<-announced
		})
	}
}

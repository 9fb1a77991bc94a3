package group

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// order decides which entry of a queue comes next, and keeps what entries
// carry. In nothing else do a replica and a local queue differ.
type order interface {
	// commit gives an entry its place. nil: it has it, and is applied.
	commit(l *raft.Log) raft.ApplyFuture
	// barrier returns when what is committed has been applied on this node.
	barrier(timeout time.Duration) error
	// payload reads what an entry carried; release frees it.
	payload(ref fsm.Ref) ([]byte, error)
	release(indexes []uint64)

	// opened reports whether the methods below can be called.
	opened() bool
	term() uint64
	leader() string
	// applied is the index of the last entry that the machine has seen, and
	// position about the same and the term, whatever locks of the group are held.
	applied() uint64
	position() (term, index uint64)
	progress() Progress
	// snapshot is the index of the newest snapshot; -1: there is none.
	snapshot() int64

	// leads reports whether this node may lead in the present term.
	leads() bool
	// takeOver returns when all of earlier terms is applied, and the term that
	// this is known for; 0: this node leads no more.
	takeOver() uint64
	// led and leaderless note that the queue has a leader, or is to get one.
	led()
	leaderless()
	// tellCommitted tells the other members what is committed, unless an entry is about to.
	tellCommitted(term uint64)

	// end has the group take nothing more. What goes on in its goroutines may
	// go on for a moment.
	end()
}

// replicated is the order that raft keeps.
type replicated struct{ g *Group }

func (r replicated) commit(l *raft.Log) raft.ApplyFuture {
	return endingWith(r.g.raft.Load().ApplyLog(*l, 0), r.g.ending)
}

// barrier makes followers learn what is committed: it commits an entry without
// content.
func (r replicated) barrier(timeout time.Duration) error { return r.g.replica.barrier(timeout) }

func (r replicated) payload(ref fsm.Ref) ([]byte, error) { return r.g.store.Payload(ref) }

func (r replicated) release(indexes []uint64) {
	r.g.store.Release(indexes)
	r.g.usage.note()
}

func (r replicated) opened() bool {
	select {
	case <-r.g.applier.started:
		return true
	default:
		return false
	}
}

func (r replicated) term() uint64 { return r.g.raft.Load().CurrentTerm() }

func (r replicated) leader() string { return r.g.replica.leader() }

func (r replicated) applied() uint64 { return r.g.raft.Load().AppliedIndex() }

func (r replicated) position() (term, index uint64) { return r.term(), r.applied() }

func (r replicated) progress() Progress { return r.g.replica.progress() }

func (r replicated) snapshot() int64 {
	list, err := r.g.log.Snapshots().List()
	if err != nil || len(list) == 0 {
		return -1
	}
	return int64(list[0].Index)
}

func (r replicated) leads() bool { return r.g.isLeader() }

func (r replicated) takeOver() uint64 {
	r.g.host.watch.add(r.g)
	awaitClocks(r.g.host.config.Clock, r.g.ending)
	return r.catchUp()
}

// A new leader checks after firstCheck whether its first entry is committed, and then again after a part of the time
// that this has taken, at most longestCheck.
const (
	firstCheck   = time.Millisecond
	checkPart    = 8
	longestCheck = 500 * time.Millisecond
)

// catchUp returns when everything committed by earlier leaders is applied. It returns the term for
// which that is known, or 0 if this replica no longer leads.
func (r replicated) catchUp() (term uint64) {
	check, began := time.NewTimer(0), time.Now()
	defer check.Stop()
	for {
		select {
		case <-check.C:
		case <-r.g.ending:
			return 0
		}
		term, leads := r.g.leadsIn()
		if !leads || r.g.barred() {
			return 0
		}
		if r.caughtUp(term) {
			return term
		}
		check.Reset(min(firstCheck+time.Since(began)/checkPart, longestCheck))
	}
}

// caughtUp reports whether an entry of a term is committed, and so all of earlier terms, and the machine
// has what is in them. Raft begins each term with an entry of its own, without content.
func (r replicated) caughtUp(term uint64) bool {
	committed := r.g.raft.Load().CommitIndex()
	return r.g.positionOf(committed).term == term && r.g.applier.hasUpTo(committed)
}

func (r replicated) led() { r.g.host.elections.end(r.g.spec.Group) }

// tellCommitted implements order. Raft itself would tell them with the next entry, or after CommitTimeout.
func (r replicated) tellCommitted(term uint64) {
	g := r.g
	committed := g.raft.Load().CommitIndex()
	if g.proposer.busy() || g.lastIndex() > committed {
		return
	}
	notices := commitNotices{replica: &g.replica, followers: map[string]*commitNotice{}}
	notices.send(commitNotice{index: committed, term: g.positionOf(committed).term, leads: term})
}

func (r replicated) leaderless() { r.g.host.elections.begin(r.g) }

func (r replicated) end() {
	g := r.g
	if !g.replica.end() {
		return
	}
	f := g.raft.Load().Shutdown()
	g.mesh.DropGroup(g.spec.Group) // requests under way to nodes that are gone end now
	g.leadership.end()
	g.timer.stop()
	if err := f.Error(); err != nil {
		g.slog.Warn("raft shutdown", "error", err)
	}
	g.usage.captured() // nothing is applied any more
}

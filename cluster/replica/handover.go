package replica

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// Times of a handover.
const (
	drainTime = time.Second // for what has been proposed, and for what the other one lacks; see MovePatience
	// resignTime is how long a member may take to win the election it was told
	// to hold, which mostly takes a few milliseconds.
	resignTime = 2 * time.Second
	// takeoverEvery is how often it is checked whether another member has taken over.
	takeoverEvery = 5 * time.Millisecond
	// After a move that has failed the next one is refused for a pause that doubles each time.
	firstMovePause   = time.Second
	longestMovePause = 30 * time.Second
)

// handover gives the leadership of a replica to another member. Whoever wants that has a reason and somebody
// in mind; there is one way, and one attempt at a time:
//
//   - a move is wanted by somebody: a drain, a rebalance, an operator, a member that reaches more of the
//     others. The replica could go on, and does if nobody takes over.
//   - A replica that must not lead, because it is quarantined, has resigned, or its node has withdrawn, yields:
//     it steps down if nobody takes over.
//
// The other member is told to stand for election, which raft does at once and its voters accept. That works
// also if the raft of this replica hangs.
type handover struct {
	under  atomic.Bool // somebody has been told to stand
	moving atomic.Bool // a move is under way: nothing may be appended that the other member lacks

	mu    sync.Mutex
	pause time.Duration // the last one; 0: no move has failed
	again time.Time     // before then no move is tried
}

var errUnderWay = fmt.Errorf("%w: another attempt is under way", ErrNotHandedOver)

// ErrNotHandedOver is returned for a leadership that its holder still has, or
// has lost to nobody in particular, after the time for its transfer.
var ErrNotHandedOver = errors.New("the leadership was not handed over")

// rests says for how long no move will be tried.
func (h *handover) rests() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Until(h.again)
}

// MayMove reports whether a transfer is tried: for a while after one that has failed, none is.
func (r *Replica) MayMove() bool { return r.handover.rests() <= 0 }

// MoveEnded records how a move has ended.
func (r *Replica) MoveEnded(err error) { r.handover.ended(err) }

func (h *handover) ended(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.pause, h.again = 0, time.Time{}
		return
	}
	h.pause = min(max(2*h.pause, firstMovePause), longestMovePause)
	h.again = time.Now().Add(h.pause)
}

// RefusesMove is why a move to a member is not even tried.
func (r *Replica) RefusesMove(to string) error {
	switch wait := r.handover.rests(); {
	case !slices.Contains(r.Voters(), to) || to == r.config.Node:
		return fmt.Errorf("%w: %s is not another voter of the group", ErrNotHandedOver, to)
	case !r.config.Mesh.Alive(to):
		return fmt.Errorf("%w: %s is down", ErrNotHandedOver, to)
	case wait > 0:
		return fmt.Errorf("%w: the last attempt failed; the next one is possible in %v", ErrNotHandedOver, wait.Round(time.Millisecond))
	}
	return nil
}

// BeginMove begins a move as Move does: until end is called nothing is to be appended, and no other move begins.
func (r *Replica) BeginMove() (end func(), err error) {
	if !r.handover.moving.CompareAndSwap(false, true) {
		return nil, errUnderWay
	}
	return func() { r.handover.moving.Store(false) }, nil
}

// Moves reports whether a move is under way.
func (r *Replica) Moves() bool { return r.handover.moving.Load() }

// Move has a member take over that gets what it lacks before. It returns nil when this replica no longer
// leads in the term. Nothing is proposed meanwhile.
func (r *Replica) Move(to string, term uint64) error {
	end, err := r.BeginMove()
	if err != nil {
		return err
	}
	defer end()
	if err := r.catchUp(to, term); err != nil {
		return err
	}
	return r.tellToStand(to, term)
}

// MovePatience is how long each step of a move may take before the other member stands.
func (r *Replica) MovePatience(to string) time.Duration { return r.patience(drainTime, to) }

// patience is how long a step of a handover may take: longer where the other member, or a majority, is far.
func (r *Replica) patience(near time.Duration, to string) time.Duration {
	return near + max(r.config.Mesh.Slack(to), r.config.Mesh.Slack(r.Voters()...))
}

// catchUp returns when a member has everything that is in the log, and nothing waits for raft any more: a
// candidate that lacks an entry loses.
func (r *Replica) catchUp(to string, term uint64) error {
	patience := r.MovePatience(to)
	limit, check := time.NewTimer(patience), time.NewTicker(takeoverEvery)
	defer limit.Stop()
	defer check.Stop()
	committed := make(chan error, 1)
	r.config.Spawn(func() { committed <- r.Barrier(patience) })
	for committed != nil || r.Reached(to, term).Index < r.LastIndex() {
		select {
		case err := <-committed:
			if committed = nil; err != nil {
				return fmt.Errorf("%w: %w", ErrNotHandedOver, err)
			}
		case <-check.C:
		case <-limit.C:
			return fmt.Errorf("%w: %s lacks entries", ErrNotHandedOver, to)
		case <-r.ending:
			return ErrNotLeading
		}
	}
	return nil
}

// Yield has a member take over from a replica that must not lead in a term. If it does not, the replica
// steps down, and whoever can is elected. hangs says that its raft may hang: the other one has to win with
// what it has.
func (r *Replica) Yield(to string, term uint64, hangs bool) {
	give := r.Move
	if hangs {
		give = r.tellToStand
	}
	err := give(to, term)
	if err == nil || errors.Is(err, errUnderWay) || r.IsClosed() {
		return
	}
	r.config.Logger.Warn("no member has taken over from a leader that must not lead: it steps down", "to", to, "error", err)
	r.config.Mesh.Resign(r.config.Group, term+1, to)
}

// tellToStand tells a member to stand for election at once. It returns nil when this node no longer leads in the
// term. It does not wait for an answer for longer than that member may take to win: its raft may hang, too.
func (r *Replica) tellToStand(to string, term uint64) error {
	if !r.handover.under.CompareAndSwap(false, true) {
		return errUnderWay
	}
	defer r.handover.under.Store(false)
	answer, t := make(chan error, 1), r.transport
	r.config.Spawn(func() {
		answer <- t.TimeoutNow(raft.ServerID(to), raft.ServerAddress(to), &raft.TimeoutNowRequest{RPCHeader: r.header()}, &raft.TimeoutNowResponse{})
	})
	limit, check := time.NewTimer(r.patience(resignTime, to)), time.NewTicker(takeoverEvery)
	defer limit.Stop()
	defer check.Stop()
	for {
		if now, leads := r.LeadsIn(); !leads || now != term {
			return nil
		}
		select {
		case err := <-answer:
			if answer = nil; err != nil {
				return fmt.Errorf("%w: %w", ErrNotHandedOver, err)
			}
		case <-check.C:
		case <-limit.C:
			return fmt.Errorf("%w: %s did not win the election in time", ErrNotHandedOver, to)
		case <-r.ending:
			return nil
		}
	}
}

// Campaigns is what stand needs of the mesh.
type Campaigns interface {
	Campaign(group fsm.GroupID)
	StepDown(group fsm.GroupID, term uint64, other string)
}

// Candidate is what stand needs of a replica.
type Candidate interface {
	Voters() []string
	Role() (role raft.RaftState, term uint64)
}

// Stand makes raft stand for election. A candidate that has lost would remain one. It is therefore first made a
// follower, by a vote request in the next term that claims a log too short for any vote.
func Stand(l Campaigns, group fsm.GroupID, node string, c Candidate) {
	switch role, term := c.Role(); role {
	case raft.Candidate:
		for _, m := range c.Voters() {
			if m != node {
				l.StepDown(group, term+1, m)
				break
			}
		}
	case raft.Follower:
	default:
		return
	}
	l.Campaign(group)
}

// ErrNotLeading is returned for a submission to a replica that does not lead or has not yet
// applied everything its predecessor committed.
var ErrNotLeading = errors.New("this node does not lead the group")

// ErrTransferring is returned for a submission to a leader that is handing its leadership over: either
// it goes on soon, and says so, or another one does.
var ErrTransferring = errors.New("the leadership is being transferred")

package group

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Times of a handover.
const (
	drainTime = time.Second // for what has been proposed, and for what the other one lacks; see patience
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

// rests says for how long no move will be tried.
func (h *handover) rests() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Until(h.again)
}

// MayMove reports whether a transfer is tried: for a while after one that has failed, none is.
func (r *replica) MayMove() bool { return r.handover.rests() <= 0 }

// ended records how a move has ended.
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

// refuses is why a move to a member is not even tried.
func (h *handover) refuses(r *replica, to string) error {
	switch wait := h.rests(); {
	case !slices.Contains(r.Voters(), to) || to == r.node:
		return fmt.Errorf("%w: %s is not another voter of the group", ErrNotHandedOver, to)
	case !r.mesh.Alive(to):
		return fmt.Errorf("%w: %s is down", ErrNotHandedOver, to)
	case wait > 0:
		return fmt.Errorf("%w: the last attempt failed; the next one is possible in %v", ErrNotHandedOver, wait.Round(time.Millisecond))
	}
	return nil
}

// move has a member take over that gets what it lacks before. It returns nil when this replica no longer
// leads in the term. Nothing is proposed meanwhile.
func (h *handover) move(r *replica, to string, term uint64) error {
	if !h.moving.CompareAndSwap(false, true) {
		return errUnderWay
	}
	defer h.moving.Store(false)
	if err := h.catchUp(r, to, term); err != nil {
		return err
	}
	return h.tell(r, to, term)
}

// patience is how long a step of a handover may take: longer where the other member, or a majority, is far.
func (*handover) patience(r *replica, near time.Duration, to string) time.Duration {
	return near + max(r.mesh.Slack(to), r.mesh.Slack(r.Voters()...))
}

// catchUp returns when a member has everything that is in the log, and nothing waits for raft any more: a
// candidate that lacks an entry loses.
func (h *handover) catchUp(r *replica, to string, term uint64) error {
	patience := h.patience(r, drainTime, to)
	limit, check := time.NewTimer(patience), time.NewTicker(takeoverEvery)
	defer limit.Stop()
	defer check.Stop()
	committed := make(chan error, 1)
	r.spawn(func() { committed <- r.barrier(patience) })
	for committed != nil || r.reached(to, term).Index < r.lastIndex() {
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

// yield has a member take over from a replica that must not lead in a term. If it does not, the replica
// steps down, and whoever can is elected. hangs says that its raft may hang: the other one has to win with
// what it has.
func (h *handover) yield(r *replica, to string, term uint64, hangs bool) {
	give := h.move
	if hangs {
		give = h.tell
	}
	err := give(r, to, term)
	if err == nil || errors.Is(err, errUnderWay) || r.isClosed() {
		return
	}
	r.slog.Warn("no member has taken over from a leader that must not lead: it steps down", "to", to, "error", err)
	r.mesh.Resign(r.id, term+1, to)
}

// tell tells a member to stand for election at once. It returns nil when this node no longer leads in the
// term. It does not wait for an answer for longer than that member may take to win: its raft may hang, too.
func (h *handover) tell(r *replica, to string, term uint64) error {
	if !h.under.CompareAndSwap(false, true) {
		return errUnderWay
	}
	defer h.under.Store(false)
	answer, t := make(chan error, 1), r.transport
	r.spawn(func() {
		answer <- t.TimeoutNow(raft.ServerID(to), raft.ServerAddress(to), &raft.TimeoutNowRequest{RPCHeader: r.header()}, &raft.TimeoutNowResponse{})
	})
	limit, check := time.NewTimer(h.patience(r, resignTime, to)), time.NewTicker(takeoverEvery)
	defer limit.Stop()
	defer check.Stop()
	for {
		if now, leads := r.leadsIn(); !leads || now != term {
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

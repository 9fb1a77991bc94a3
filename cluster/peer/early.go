package peer

import (
	"time"

	"github.com/quorate/quorate/fsm"
)

const (
	maxEarly      = 4096
	maxEarlyBytes = 16 << 20
)

// earlyRequests wait for groups that do not exist yet: the members of a new group
// are created at slightly different times. They are guarded by their owner's lock.
//
//	count = Σ len(byGroup[g]) ≤ maxEarly, none of which is 0
//	bytes = Σ size ≤ maxEarlyBytes
//	the requests of a group are in the order in which they came
//	timing, if count > 0
type earlyRequests struct {
	wait    time.Duration // negative: nothing is kept
	byGroup map[fsm.GroupID][]earlyRequest
	count   int
	bytes   int
	timer   *time.Timer
	timing  bool
	due     func() // runs on a goroutine of its own; has expire called
}

type earlyRequest struct {
	request
	until time.Time
}

func (e *earlyRequests) init(wait time.Duration, due func()) {
	e.wait, e.due = wait, due
	e.byGroup = make(map[fsm.GroupID][]earlyRequest)
}

// add keeps r if it may.
func (e *earlyRequests) add(group fsm.GroupID, r request) bool {
	if e.wait < 0 || e.count >= maxEarly || e.bytes+r.size > maxEarlyBytes {
		return false
	}
	e.byGroup[group] = append(e.byGroup[group], earlyRequest{r, time.Now().Add(e.wait)})
	e.count++
	e.bytes += r.size
	e.arm(e.wait)
	return true
}

func (e *earlyRequests) arm(d time.Duration) {
	switch {
	case e.timing:
		return
	case e.timer == nil:
		e.timer = time.AfterFunc(d, e.due)
	default:
		e.timer.Reset(d)
	}
	e.timing = true
}

// take removes what is kept for a group.
func (e *earlyRequests) take(group fsm.GroupID) []request {
	var all []request
	for _, r := range e.byGroup[group] {
		e.count--
		e.bytes -= r.size
		all = append(all, r.request)
	}
	delete(e.byGroup, group)
	return all
}

// expire removes what has been kept for long enough. It is called when due says
// so.
func (e *earlyRequests) expire(now time.Time) []request {
	var late []request
	e.timing = false
	for group, kept := range e.byGroup {
		for len(kept) > 0 && !kept[0].until.After(now) {
			late = append(late, kept[0].request)
			e.count--
			e.bytes -= kept[0].size
			kept = kept[1:]
		}
		if e.byGroup[group] = kept; len(kept) == 0 {
			delete(e.byGroup, group)
		}
	}
	if e.count > 0 {
		e.arm(e.wait/8 + time.Millisecond)
	}
	return late
}

// clear drops everything: nobody waits for answers any more.
func (e *earlyRequests) clear() {
	if e.timer != nil {
		e.timer.Stop()
	}
	clear(e.byGroup)
	e.count, e.bytes = 0, 0
}

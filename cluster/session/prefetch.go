package session

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// idleAfter is how long a consumer has had credit and no delivery when its queue counts as idle,
	// in ms: others may have its part of the limit.
	idleAfter = 20
	// quantum is how long a consumer keeps the last part of a limit that is smaller than the number
	// of consumers that want one, in ms.
	quantum = 50
	// limitWait bounds how long a new limit waits until queues have heard of it.
	limitWait = time.Second
	// unlimited is what a consumer without a prefetch may hold.
	unlimited = fsm.MaxHeld
)

// sharedLimit is a limit on what the consumers of a channel hold together. Each consumer gets a part
// of it, which its queue knows as its prefetch; queues say when messages are ready for a consumer
// that has none left. Gets, consumers without acknowledgements and those in credit mode do not count.
//
// Invariant, from the answer to the limit on: Σ used() of the consumers, and orphans, is at most
// limit, except for what was delivered under a higher one.
type sharedLimit struct {
	limit      int            // 0: none
	orphans    map[uint64]int // unsettled deliveries of consumers whose queue is gone
	timer      *time.Timer    // rebalances while somebody waits; nil: none was needed yet
	unbalanced bool           // something has changed since rebalance
}

// part is a consumer's part of a limit. The zero part is that of a consumer that does not count.
type part struct {
	request *logpb.Consume // as the client has asked; nil: it does not count
	shared  bool           // the queue knows its part
	// granted is what the queue was asked for last, and ceiling the most that may be in effect until
	// all such requests are answered.
	granted, ceiling int
	unanswered       int
	wants            bool  // messages are ready that it has no credit for
	changed, active  int64 // when it was granted what it has, and was delivered something, ms
}

// limitAnswer is the note of a request about a consumer's part.
type limitAnswer struct {
	consumer uint64
	heard    chan struct{} // closed then; nil: nobody waits
}

// cap is how much a consumer may hold by its own prefetch.
func (p *part) cap() int {
	if n := int(p.request.Prefetch); n > 0 {
		return min(n, unlimited)
	}
	return unlimited
}

// used is how much of the limit a consumer takes: what the client has, and what may come.
func (c *consumer) used() int {
	if c.request == nil {
		return 0
	}
	if c.over {
		return c.Unsettled
	}
	return max(c.ceiling, c.Unsettled)
}

// counted lists the consumers that count and are not over, those first that have waited longest.
func (x *consumers) counted() (numbers []uint64) {
	for number, c := range x.known {
		if c.request != nil && !c.over {
			numbers = append(numbers, number)
		}
	}
	slices.SortFunc(numbers, func(a, b uint64) int {
		if d := x.known[a].changed - x.known[b].changed; d != 0 {
			return int(d)
		}
		return int(a) - int(b)
	})
	return numbers
}

// free is how much of the limit nobody uses.
func (x *consumers) free() int {
	left := x.limit
	for _, c := range x.known {
		left -= c.used()
	}
	for _, n := range x.orphans {
		left -= n
	}
	return left
}

// begin is the request that registers a consumer, with its part of the limit. The lock is held.
func (x *consumers) begin(c *consumer, request *logpb.Consume) *logpb.Consume {
	if request.NoAck || request.Credit {
		return request
	}
	c.request = request
	if x.limit == 0 {
		return request
	}
	n := max(min(c.cap(), x.free()), 0)
	c.shared, c.granted, c.ceiling, c.changed = true, n, n, x.node.Now()
	return c.with(n)
}

// with is the request for a part of n.
func (p *part) with(n int) *logpb.Consume {
	r := proto.Clone(p.request).(*logpb.Consume)
	r.Prefetch, r.Shared = uint32(n), true
	return r
}

// grant asks the queue of a consumer to let it hold n. The lock is held.
func (x *consumers) grant(number uint64, c *consumer, n int, heard chan struct{}) {
	if !c.shared {
		c.shared, c.ceiling = true, unlimited
	}
	c.granted, c.wants, c.changed = n, false, x.node.Now()
	c.ceiling = max(c.ceiling, n)
	x.ask(number, c, c.with(n), heard)
}

// ask sends a request about a consumer's part. The lock is held.
func (x *consumers) ask(number uint64, c *consumer, r *logpb.Consume, heard chan struct{}) {
	to := c.at.stream
	if to.Gone() || to.Over() || to.Ending() {
		if heard != nil {
			close(heard)
		}
		return
	}
	c.unanswered++
	to.Add(&logpb.Command{Kind: logpb.Command_CONSUME, Consume: r}, stream.Pending{Note: limitAnswer{number, heard}})
}

// limitHeard handles the answer to ask. The lock is held.
func (x *consumers) limitHeard(a limitAnswer) {
	if a.heard != nil {
		close(a.heard)
	}
	c := x.known[a.consumer]
	if c == nil {
		return
	}
	if c.unanswered--; c.unanswered == 0 {
		c.ceiling = c.granted
	}
	x.unbalanced = true
}

// wanted notes that messages are ready for a consumer that has no credit. The lock is held.
func (x *consumers) wanted(number uint64) {
	if c := x.known[number]; c != nil && c.shared && !c.over {
		c.wants, x.unbalanced = true, true
		x.rebalance()
	}
}

// Limit sets how many unsettled deliveries the consumers of the channel may have together; 0: any
// number. It returns once the queues know, as far as they can be reached.
func (x *consumers) Limit(ctx context.Context, limit uint16) {
	ctx, cancel := context.WithTimeout(ctx, limitWait)
	defer cancel()
	x.calls.mu.Lock()
	x.limit = int(limit)
	var waits []chan struct{}
	numbers := x.counted()
	parts := x.divide(numbers)
	for i, number := range numbers {
		c := x.known[number]
		if limit == 0 {
			if c.shared {
				c.shared, c.wants, c.granted = false, false, unlimited
				x.ask(number, c, c.request, nil)
			}
			continue
		}
		heard := make(chan struct{})
		waits = append(waits, heard)
		x.grant(number, c, parts[i], heard)
	}
	x.calls.mu.Unlock()
	for _, heard := range waits {
		select {
		case <-heard:
		case <-ctx.Done():
			return
		}
	}
}

// divide returns the parts of consumers under a new limit: equal ones, except that nobody gets more
// than it uses as long as others use more than their parts. They get the rest by rebalance.
func (x *consumers) divide(numbers []uint64) []int {
	parts, left := make([]int, len(numbers)), x.free()
	for i, number := range numbers {
		n := x.limit / len(numbers)
		if i < x.limit%len(numbers) {
			n++
		}
		c := x.known[number]
		parts[i] = min(n, c.cap())
		left -= max(parts[i]-c.used(), 0)
	}
	for i := len(parts) - 1; i >= 0 && left < 0; i-- {
		less := min(max(parts[i]-x.known[numbers[i]].used(), 0), -left)
		parts[i] -= less
		left += less
	}
	return parts
}

// rebalance gives what is free to consumers that want more, and takes it from others if nothing is
// free, if that may have changed. The lock is held. It adds commands to streams, so it must not be
// called while one reports answers: sessionQueue.Unlock does so afterwards.
func (x *consumers) rebalance() {
	if !x.unbalanced || x.limit == 0 || x.calls.closing {
		return
	}
	x.unbalanced = false
	numbers := x.counted()
	hungry := slices.DeleteFunc(slices.Clone(numbers), func(n uint64) bool {
		c := x.known[n]
		return !c.wants || c.granted >= c.cap()
	})
	slices.SortStableFunc(hungry, func(a, b uint64) int { return x.known[a].granted - x.known[b].granted })
	free := x.free()
	for i, number := range hungry {
		if free <= 0 {
			hungry = hungry[i:]
			break
		}
		c, before := x.known[number], x.known[number].used()
		x.grant(number, c, min(c.cap(), max(c.granted, c.Unsettled)+max(1, free/(len(hungry)-i))), nil)
		free -= c.used() - before
		if i == len(hungry)-1 {
			return
		}
	}
	if len(hungry) > 0 {
		x.takeFor(hungry, numbers)
	}
}

// takeFor asks consumers to give up parts for those that want more: all that is idle, and what is
// more than a fair share. Where there is no part for each, the parts take turns.
func (x *consumers) takeFor(hungry, numbers []uint64) {
	t := x.survey(numbers)
	for _, number := range hungry {
		if t.answers > 0 {
			t.answers-- // one is about to be free
			continue
		}
		donor, left := x.donor(number, numbers, t)
		if donor == 0 {
			continue
		}
		c := x.known[donor]
		if idle := c.Unsettled <= left; idle {
			t.answers += c.granted - left - 1
		} else {
			t.settlements += c.granted - left
		}
		x.grant(donor, c, left, nil)
	}
	if x.mayIdle(numbers) || x.limit < t.active {
		x.wait()
	}
}

// survey is what takeFor knows about all consumers.
type survey struct {
	active      int // consumers that have a part, or want one
	fair        int // share of each
	answers     int // what is free once queues have answered
	settlements int // and once the client has settled deliveries
	now         int64
}

func (x *consumers) survey(numbers []uint64) *survey {
	t := &survey{now: x.node.Now()}
	for _, number := range numbers {
		c := x.known[number]
		if c.granted > 0 || c.wants {
			t.active++
		}
		held := max(c.granted, c.Unsettled)
		t.answers += max(c.ceiling-held, 0)
		t.settlements += held - c.granted
	}
	t.fair = max(1, x.limit/max(t.active, 1))
	return t
}

// donor finds the consumer that gives most to the one that wants more, and what it keeps; 0: none
// has anything to give now. What is idle is given to anyone, the rest only to consumers that have
// less than their share, and only if nothing is free once the client has settled.
func (x *consumers) donor(hungry uint64, numbers []uint64, t *survey) (donor uint64, left int) {
	poor := x.known[hungry].granted < t.fair && t.settlements == 0
	largest := 0
	for _, number := range numbers {
		c := x.known[number]
		if number == hungry || c.granted == 0 || c.unanswered > 0 {
			continue
		}
		keeps := c.granted
		switch {
		case c.Unsettled < c.granted && t.now-max(c.active, c.changed) >= idleAfter:
			keeps = c.Unsettled
		case poor && c.granted > t.fair:
			keeps = t.fair
		case poor && x.limit < t.active && t.now-c.changed >= quantum:
			keeps = c.granted - 1
		}
		if gives := c.granted - keeps; gives > largest {
			donor, left, largest = number, keeps, gives
		}
	}
	return donor, left
}

// mayIdle reports whether a consumer may turn out to be idle.
func (x *consumers) mayIdle(numbers []uint64) bool {
	return slices.ContainsFunc(numbers, func(n uint64) bool { return x.known[n].Unsettled < x.known[n].granted })
}

// wait rebalances a little later: whether a queue is idle, only time tells.
func (x *consumers) wait() {
	const later = idleAfter * time.Millisecond
	if x.timer == nil {
		x.timer = time.AfterFunc(later, x.rebalanceLater)
		return
	}
	x.timer.Reset(later)
}

// rebalanceLater is run by a timer, so a panic ends the channel: otherwise nobody would notice.
func (x *consumers) rebalanceLater() {
	again := func() {
		x.calls.lock()
		defer x.calls.unlock()
		x.unbalanced = true
		x.rebalance()
	}
	if !x.calls.node.Try("redistribute a limit", again) {
		x.calls.fail()
	}
}

// noteActive notes that consumers are delivered something. The lock is held.
func (x *consumers) noteActive(messages []fsm.Message) {
	if x.limit == 0 {
		return
	}
	now := x.node.Now()
	for i := range messages {
		if c := x.known[messages[i].Consumer]; c != nil {
			c.active = now
		}
	}
}

// orphanSettled counts settlements of deliveries whose queue is gone. The lock is held.
func (x *consumers) orphanSettled(number uint64, count int) {
	if n, ok := x.orphans[number]; ok {
		if n -= count; n > 0 {
			x.orphans[number] = n
		} else {
			delete(x.orphans, number)
		}
		x.unbalanced = true
	}
}

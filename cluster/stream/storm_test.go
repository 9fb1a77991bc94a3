package stream

import (
	"fmt"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/group"
)

// storm is a publisher with a window of messages whose leader is so far away, and applies so many bytes a
// millisecond, in the order of arrival.
type storm struct {
	oneWay, rate int64
	lose         int // the batch that is lost, once; 0: none
}

// What the storm has come to.
type stormed struct {
	confirmed     int
	took, longest int64 // ms; without a confirm
	deepest       int64 // bytes that waited at the leader at a time
	sent, entered float64
}

const stormSize, stormWindow, stormTotal = 40 << 10, 250, 1500

// late is something that arrives at a time.
type late[T any] struct {
	at   int64
	what T
}

// arrived takes off the list what has arrived.
func arrived[T any](list *[]late[T], now int64) (all []T) {
	for len(*list) > 0 && (*list)[0].at <= now {
		all = append(all, (*list)[0].what)
		*list = (*list)[1:]
	}
	return all
}

// run publishes in a time of its own until everything is confirmed, or for ten minutes.
func (x storm) run(t *testing.T) (r stormed) {
	h, c := newHost(t), &client{}
	s, m := h.mustStream(c), &leaderRules{keeps: true}
	body := strings.Repeat("x", stormSize)
	var wire []late[group.Batch]
	var asks []late[Resync]
	var answers []late[[]group.Outcome]
	start := h.Clock.Load()
	published, batches, free, last := uint64(0), 0, int64(0), int64(0)
	for now := start; len(c.answered) < stormTotal && now < start+600_000; now++ {
		h.Clock.Store(now)
		for published < stormTotal && int(published)-len(c.answered) < stormWindow {
			published++
			c.publish(published, body)
		}
		for s.dirty {
			for _, b := range take(s) {
				r.sent += float64(b.Count)
				if batches++; batches != x.lose {
					wire = append(wire, late[group.Batch]{now + x.oneWay, b})
				}
			}
		}
		answer := func(at int64, o []group.Outcome) {
			if len(o) > 0 {
				answers = append(answers, late[[]group.Outcome]{at + x.oneWay, o})
			}
		}
		for _, b := range arrived(&wire, now) {
			answer(now, m.submit(t, b))
		}
		for _, q := range arrived(&asks, now) {
			answer(now, m.recall(q))
		}
		depth := int64(0)
		for i := range m.queue {
			depth += int64(m.queue[i].Bytes)
		}
		r.deepest = max(r.deepest, depth)
		for ; len(m.queue) > 0 && free <= now; free++ {
			free = max(free, now) + int64(m.queue[0].Bytes)/x.rate
			answer(free, m.applyNext(t))
		}
		for _, o := range arrived(&answers, now) {
			before := len(c.answered)
			tell(s, o...)
			if len(c.answered) > before {
				if last != 0 {
					r.longest = max(r.longest, now-last)
				}
				last = now
			}
		}
		if now%250 == 0 {
			for _, q := range c.overdue() {
				asks = append(asks, late[Resync]{now + x.oneWay, q})
			}
		}
		r.took = now - start
	}
	r.confirmed = len(c.answered)
	r.sent, r.entered = r.sent/stormTotal, float64(m.entered)/stormTotal
	return r
}

// One batch that gets lost, at any distance and rate, costs one window over the link, nothing twice in the
// log, and a pause of a few round trips and the time for what is queued.
func TestOneLostBatch(t *testing.T) {
	for _, x := range []storm{
		{1, 20_000, 20}, {20, 20_000, 20}, {100, 20_000, 20}, {200, 20_000, 20}, {200, 20_000, 0},
		{1, 2500, 20}, {1, 2500, 0}, {200, 2500, 20}, {500, 1000, 20}, {500, 1000, 1},
	} {
		t.Run(fmt.Sprintf("%d ms, %d bytes per ms, batch %d lost", x.oneWay, x.rate, x.lose), func(t *testing.T) {
			r := x.run(t)
			t.Logf("%d of %d confirmed in %d ms, sent %.2f times, %.2f times in the log, longest gap %d ms, up to %d MB at the leader",
				r.confirmed, stormTotal, r.took, r.sent, r.entered, r.longest, r.deepest>>20)
			if limit := 6*x.oneWay + 2*stormWindow*stormSize/x.rate; r.confirmed != stormTotal || r.longest > limit {
				t.Errorf("%d of %d confirmed, %d ms without a confirm, the limit is %d", r.confirmed, stormTotal, r.longest, limit)
			}
			if r.entered != 1 || r.sent > 1.2 {
				t.Errorf("sent %.2f times, and %.2f times in the log", r.sent, r.entered)
			}
			if r.deepest > stormWindow*stormSize*11/10 {
				t.Errorf("%d bytes wait at the leader, more than the window", r.deepest)
			}
		})
	}
}

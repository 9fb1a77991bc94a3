package checker

import (
	"cmp"
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// ClockError is how wrong a corrected clock may be: reading another node's clock
// on a busy machine is not exact.
const ClockError = 50 * time.Millisecond

// held is a delivery and what its holder did with it.
type held struct {
	history.Op              // the delivery
	then       []history.Op // in the order of their calls
	gaveUp     time.Duration
	lost       time.Duration // when its session was last heard of; 0: it was not lost
}

// until is how long the holder's lock lasts at least, by what the broker had
// answered before the call of an op; all of it for a zero op. The lock of a group
// may have begun long before the delivery: only renewals tell, unless it lasts until its
// holder ends it.
func (d *held) until(before time.Duration) time.Duration {
	end := d.Call + d.Lock
	if d.Group != "" && d.Lock < history.Forever {
		end = 0
	}
	for _, o := range d.then {
		if o.Kind == history.Renew && o.Result == history.OK && (before == 0 || o.Return <= before) {
			end = max(end, o.Call+o.Lock)
		}
	}
	if d.gaveUp != 0 {
		end = min(end, d.gaveUp)
	}
	if d.lost != 0 {
		end = min(end, d.lost)
	}
	return end
}

// holds returns all deliveries in the order in which they were received.
func holds(h *history.History) []*held {
	var all []*held
	by := map[int]*held{}
	lost := map[string]time.Duration{}
	for _, o := range h.Ops {
		switch o.Kind {
		case history.Deliver:
			d := &held{Op: o}
			all, by[o.On] = append(all, d), d
		case history.Lost:
			lost[o.Client] = max(o.Call, 1)
		}
	}
	for _, o := range h.Ops {
		d := by[o.On]
		if d == nil || o.Kind == history.Deliver {
			continue
		}
		d.then = append(d.then, o)
		if o.Kind != history.Renew && (d.gaveUp == 0 || o.Call < d.gaveUp) {
			d.gaveUp = o.Call
		}
	}
	for _, d := range all {
		d.lost = lost[d.Client]
		slices.SortStableFunc(d.then, func(a, b history.Op) int { return cmp.Compare(a.Call, b.Call) })
	}
	slices.SortStableFunc(all, func(a, b *held) int { return cmp.Compare(a.Return, b.Return) })
	return all
}

// Locks finds locks that ended too soon: a message that came to somebody else
// while its holder's lock lasted, and a holder that was told so early that its
// lock was lost.
func Locks(h *history.History) Verdict { return locks(h, ClockError) }

// locks is Locks with an error of clocks that is allowed.
func locks(h *history.History, allowed time.Duration) Verdict {
	p := problems{name: "lock"}
	before := map[uint64][]*held{}
	for _, d := range holds(h) {
		for _, old := range before[d.Key] {
			first, second := old, d
			if d.Turn < old.Turn { // it was handed out before, and took longer to arrive
				first, second = d, old
			}
			if end := first.until(0); second.Return < end-allowed {
				p.add("key %d came to %s at %v, and %s held it until %v", d.Key, second.Client, second.Return, first.Client, end)
			}
		}
		for i, o := range d.then {
			if o.Result != history.No || settledBefore(d.then[:i]) {
				continue
			}
			if end := refusedEnd(d, o); o.Return < end-allowed {
				p.add("key %d: %s is refused to %s at %v, and its lock lasted until %v", d.Key, o.Kind, o.Client, o.Return, end)
			}
		}
		before[d.Key] = append(before[d.Key], d)
	}
	return p.found()
}

// refusedEnd is how long a lock lasted at least when an op on it was called.
func refusedEnd(d *held, o history.Op) time.Duration {
	alone := *d
	if alone.gaveUp == o.Call {
		alone.gaveUp = 0
	}
	return alone.until(o.Call)
}

// settledBefore reports whether one of the ops may have ended the delivery.
func settledBefore(ops []history.Op) bool {
	return slices.ContainsFunc(ops, func(o history.Op) bool { return o.Kind != history.Renew && o.Result != history.No })
}

// Finished finds messages that were settled twice, and confirmed ones that
// nobody settled although all were to be.
func Finished(h *history.History) Verdict {
	p := problems{name: "finished"}
	certain, perhaps := map[uint64]int{}, map[uint64]bool{}
	for _, o := range h.Ops {
		if o.Kind != history.Settle {
			continue
		}
		switch o.Result {
		case history.OK:
			certain[o.Key]++
		case history.Unknown:
			perhaps[o.Key] = true
		}
	}
	for _, a := range h.Attempts {
		switch n := certain[a.Key]; {
		case n > 1:
			p.add("key %d was settled %d times", a.Key, n)
		case n == 0 && !perhaps[a.Key] && a.Result == history.OK:
			p.add("key %d was confirmed at %v and never settled", a.Key, a.Return)
		}
	}
	return p.found()
}

// Holders finds groups that two clients held at the same time.
func Holders(h *history.History) Verdict {
	p := problems{name: "holders"}
	groups := map[string][]*held{}
	for _, d := range holds(h) {
		if d.Group == "" {
			continue
		}
		for _, old := range groups[d.Group] {
			if end := old.until(0); old.Client != d.Client && d.Return < end-ClockError && d.Return < d.until(0) {
				p.add("group %s: %s got key %d at %v, and %s held key %d until %v", d.Group, d.Client, d.Key, d.Return, old.Client, old.Key, end)
			}
		}
		groups[d.Group] = append(groups[d.Group], d)
	}
	return p.found()
}

// GroupOrder finds messages of a group that a client received for the first time,
// or settled for certain, behind a later one of the same channel.
func GroupOrder(h *history.History) Verdict {
	p := problems{name: "group order"}
	type stream struct {
		group, publisher string
		epoch            int
		client           string
	}
	received := map[stream]uint64{}
	done := map[stream]history.Op{}
	of := map[int]*held{}
	for _, d := range holds(h) {
		of[d.On] = d
		s, ok := streamOf(h, d)
		if !ok {
			continue
		}
		at := stream{d.Group, s.Publisher, s.Epoch, d.Client}
		if last := received[at]; !d.Again && last > d.Key {
			p.add("group %s: key %d came to %s at %v behind key %d", d.Group, d.Key, d.Client, d.Return, last)
		}
		if !d.Again {
			received[at] = max(received[at], d.Key)
		}
	}
	settles := slices.Clone(h.Ops)
	slices.SortStableFunc(settles, func(a, b history.Op) int { return cmp.Compare(a.Return, b.Return) })
	for _, o := range settles {
		d := of[o.On]
		if d == nil || o.Kind != history.Settle || o.Result != history.OK {
			continue
		}
		s, ok := streamOf(h, d)
		if !ok {
			continue
		}
		at := stream{group: d.Group, publisher: s.Publisher, epoch: s.Epoch}
		if last := done[at]; last.Key > o.Key && last.Return < o.Call {
			p.add("group %s: key %d was settled at %v behind key %d at %v", d.Group, o.Key, o.Call, last.Key, last.Return)
		}
		if done[at].Key < o.Key {
			done[at] = o
		}
	}
	return p.found()
}

// streamOf returns the attempt of a delivery that belongs to a group.
func streamOf(h *history.History, d *held) (history.Attempt, bool) {
	if d.Group == "" || d.Key == 0 || d.Key > uint64(len(h.Attempts)) {
		return history.Attempt{}, false
	}
	return h.Attempts[d.Key-1], true
}

// Deferred finds deferred messages that came without being asked for, and those
// that were asked for, promised, and did not come.
func Deferred(h *history.History) Verdict {
	p := problems{name: "deferred"}
	var parked, asked []history.Op
	for _, o := range h.Ops {
		switch {
		case o.Kind == history.Defer && o.Result == history.OK:
			parked = append(parked, o)
		case o.Kind == history.Receive && o.Result != history.No:
			asked = append(asked, o)
		}
	}
	all := holds(h)
	for _, o := range parked {
		for _, d := range all {
			if d.Key == o.Key && d.Return > o.Return && !slices.ContainsFunc(asked, func(a history.Op) bool {
				return a.Key == o.Key && a.Call > o.Call && a.Call < d.Return
			}) {
				p.add("key %d was deferred at %v and came to %s at %v, unasked", o.Key, o.Return, d.Client, d.Return)
				break
			}
		}
	}
	lost := map[string]bool{}
	for _, o := range h.Ops {
		lost[o.Client] = lost[o.Client] || o.Kind == history.Lost && o.Result != history.OK
	}
	for _, o := range asked {
		if o.Result == history.OK && !lost[o.Client] && !slices.ContainsFunc(all, func(d *held) bool {
			return d.Key == o.Key && d.Client == o.Client && d.Return > o.Call
		}) {
			p.add("key %d was promised to %s at %v and did not come", o.Key, o.Client, o.Return)
		}
	}
	return p.found()
}

package checker

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// Lives judges messages by their ids, each from its publish to its end, whatever features
// its queues have. Attempts and ops name queues; each delivery has the number of those
// before it in its queue.
type Lives struct {
	// Dead is the queue of dead letters.
	Dead string
	// Forwards are queues whose messages go on to another one.
	Forwards map[string]string
	// Once are queues that take a message once, in how many attempts it is published, if
	// not more than a time lies between these.
	Once map[string]time.Duration
	// Refuses are queues whose refused messages are dead letters.
	Refuses map[string]bool
	// Orders are queues whose groups are in the order in which each channel published.
	Orders map[string]bool
}

// MaxLen is why a message ends that a length limit has dropped: its letter is sent once.
const MaxLen = "maxlen at_most_once"

// life is what became of an attempt in a queue.
type life struct {
	*history.Attempt
	queue  string
	handed []*held      // in the order of their numbers
	ends   []history.Op // what the record of ends has
}

// first returns the delivery that was received first.
func (l *life) first() *held {
	return slices.MinFunc(l.handed, func(a, b *held) int { return cmp.Compare(a.Return, b.Return) })
}

// place is an attempt in a queue.
type place struct {
	queue string
	key   uint64
}

// lives returns what became of attempts, by attempt and queue.
func lives(h *history.History) map[place]*life {
	all := map[place]*life{}
	at := func(queue string, key uint64) *life {
		if key == 0 || key > uint64(len(h.Attempts)) {
			return &life{}
		}
		p := place{queue, key}
		if all[p] == nil {
			all[p] = &life{Attempt: &h.Attempts[key-1], queue: queue}
		}
		return all[p]
	}
	for _, d := range holds(h) {
		l := at(d.Queue, d.Key)
		l.handed = append(l.handed, d)
	}
	for _, o := range h.Ops {
		if o.Kind == history.Ended {
			l := at(o.Queue, o.Key)
			l.ends = append(l.ends, o)
		}
	}
	for _, l := range all {
		slices.SortStableFunc(l.handed, func(a, b *held) int { return cmp.Compare(a.Turn, b.Turn) })
	}
	return all
}

// way returns the queues that an attempt may come to, in order.
func (c Lives) way(a *history.Attempt) []string {
	way := []string{a.Queue}
	if to := c.Forwards[a.Queue]; to != "" {
		way = append(way, to)
	}
	return append(way, c.Dead)
}

// settles returns the best answer to a settlement of a delivery: that it holds, or may.
func (d *held) settles() history.Result {
	best := history.No
	for _, o := range d.then {
		if o.Kind == history.Settle && (o.Result == history.OK || o.Result == history.Unknown && best == history.No) {
			best = o.Result
		}
	}
	return best
}

// lost says why an attempt has no end; "": it has one.
func (c Lives) lost(all map[place]*life, a *history.Attempt) string {
	way := c.way(a)
	for i := len(way) - 1; i >= 0; i-- {
		l := all[place{way[i], a.Key}]
		if l == nil {
			continue
		}
		for _, o := range l.ends {
			if o.Why == MaxLen {
				return ""
			}
		}
		if len(l.ends) > 0 {
			return fmt.Sprintf("it left queue %s (%s) and did not arrive", l.queue, l.ends[len(l.ends)-1].Why)
		}
		last := l.handed[len(l.handed)-1]
		for _, d := range l.handed {
			// What was handed out again was not settled by an ack that nobody answered.
			if s := d.settles(); s == history.OK || s == history.Unknown && d == last {
				return ""
			}
		}
		return fmt.Sprintf("delivery %d from queue %s, to %s at %v, was the last one", last.Turn, l.queue, last.Client, last.Return)
	}
	return "it never came"
}

// Missed returns the confirmed attempts that neither were settled nor ended as they may, in
// order, and what is known of each.
func (c Lives) Missed(h *history.History) (missed []history.Attempt, why []string) {
	all := lives(h)
	ended := map[string]map[uint64]bool{} // of queues that take a message once, by the message
	for i := range h.Attempts {
		if a := &h.Attempts[i]; c.Once[a.Queue] != 0 && c.lost(all, a) == "" {
			if ended[a.Queue] == nil {
				ended[a.Queue] = map[uint64]bool{}
			}
			ended[a.Queue][a.Message] = true
		}
	}
	for i := range h.Attempts {
		a := &h.Attempts[i]
		if a.Result != history.OK || ended[a.Queue][a.Message] {
			continue
		}
		if w := c.lost(all, a); w != "" {
			missed, why = append(missed, *a), append(why, w)
		}
	}
	return missed, why
}

// Dropped returns how many messages a length limit has dropped, and those of them whose
// letters, which are sent once, did not arrive.
func (c Lives) Dropped(h *history.History) (n int, gone []uint64) {
	all := lives(h)
	for _, l := range inOrder(all) {
		if !slices.ContainsFunc(l.ends, func(o history.Op) bool { return o.Why == MaxLen }) || l.Result != history.OK {
			continue
		}
		if n++; all[place{c.Dead, l.Key}] == nil {
			gone = append(gone, l.Key)
		}
	}
	return n, gone
}

// Lost finds confirmed messages that have no end.
func (c Lives) Lost(h *history.History) Verdict {
	p := problems{name: "lost"}
	missed, why := c.Missed(h)
	for i, a := range missed {
		p.add("key %d, published to queue %s at %v and confirmed at %v: %s", a.Key, a.Queue, a.Call, a.Return, why[i])
	}
	return p.found()
}

// Ghosts finds deliveries of what was never published, or was refused, or from a queue
// to which it does not go.
func (c Lives) Ghosts(h *history.History) Verdict {
	p := problems{name: "ghost"}
	for _, d := range holds(h) {
		switch {
		case d.Key == 0:
			p.add("a damaged body from queue %s at %v", d.Queue, d.Return)
			continue
		case d.Key > uint64(len(h.Attempts)):
			p.add("key %d from queue %s was never published", d.Key, d.Queue)
			continue
		}
		switch a := &h.Attempts[d.Key-1]; {
		case !slices.Contains(c.way(a), d.Queue):
			p.add("key %d belongs to queue %s and came from %s", d.Key, a.Queue, d.Queue)
		case a.Result == history.No && (d.Queue != c.Dead || !c.Refuses[a.Queue]):
			p.add("key %d was refused and came from queue %s at %v", d.Key, d.Queue, d.Return)
		}
	}
	return p.found()
}

// Doubled finds messages that came twice for the first time, deliveries that are not marked
// as what they are, and those after an end.
func (c Lives) Doubled(h *history.History) Verdict {
	p := problems{name: "doubled"}
	proven := provenBy(h)
	for _, l := range inOrder(lives(h)) {
		if len(l.handed) == 0 {
			continue
		}
		over, why := math.MaxInt, ""
		for _, o := range l.ends {
			if o.Turn < over {
				over, why = o.Turn, fmt.Sprintf("it ended there (%s) after %d deliveries", o.Why, o.Turn)
			}
		}
		for i, d := range l.handed {
			switch {
			case i > 0 && l.handed[i-1].Turn == d.Turn:
				p.add("key %d: delivery %d from queue %s came to %s at %v and to %s at %v", l.Key, d.Turn, l.queue, l.handed[i-1].Client, l.handed[i-1].Return, d.Client, d.Return)
			case d.Again != (d.Turn > 0):
				p.add("key %d: delivery %d from queue %s to %s at %v is marked as redelivered: %t", l.Key, d.Turn, l.queue, d.Client, d.Return, d.Again)
			case d.Turn >= over:
				p.add("key %d: delivery %d from queue %s came to %s at %v, and %s", l.Key, d.Turn, l.queue, d.Client, d.Return, why)
			}
			if over == math.MaxInt && proven(d) {
				over, why = d.Turn+1, fmt.Sprintf("%s had settled delivery %d", d.Client, d.Turn)
			}
		}
	}
	c.repeated(h, &p)
	return p.found()
}

// repeated finds messages of which a queue has taken two attempts: the second was taken
// before it was delivered.
func (c Lives) repeated(h *history.History, p *problems) {
	first := map[place]*history.Attempt{} // by the message
	for _, l := range inOrder(lives(h)) {
		window := c.Once[l.queue]
		if window == 0 || len(l.handed) == 0 {
			continue
		}
		at := place{l.queue, l.Message}
		if a := first[at]; a != nil && l.first().Return < a.Call+window {
			p.add("message %d came from queue %s as key %d and as key %d", l.Message, l.queue, a.Key, l.Key)
		}
		first[at] = l.Attempt
	}
}

// provenBy returns what reports whether the settlement of a delivery is known to hold: it
// was answered, or something that the same channel asked of the same queue later was, and no
// lock could end.
func provenBy(h *history.History) func(*held) bool {
	type asker struct{ client, queue string }
	answered := map[asker]time.Duration{}
	for _, o := range h.Ops {
		if o.Kind != history.Deliver && o.Result == history.OK {
			at := asker{o.Client, o.Queue}
			answered[at] = max(answered[at], o.Call)
		}
	}
	return func(d *held) bool {
		for _, o := range d.then {
			if o.Kind != history.Settle {
				continue
			}
			if o.Result == history.OK || o.Result == history.Unknown && d.gaveUp == o.Call && d.Lock == history.Forever && answered[asker{o.Client, d.Queue}] > o.Call {
				return true
			}
		}
		return false
	}
}

// Held finds messages, and groups, that two clients held at the same time.
func (c Lives) Held(h *history.History) Verdict {
	p := problems{name: "holders"}
	for _, l := range inOrder(lives(h)) {
		for i := 1; i < len(l.handed); i++ {
			if a, b := l.handed[i-1], l.handed[i]; b.Return < a.until(0)-ClockError {
				p.add("key %d of queue %s came to %s at %v, and %s held it until %v", l.Key, l.queue, b.Client, b.Return, a.Client, a.until(0))
			}
		}
	}
	// longest are, of a group, the holds of two clients that last longest.
	longest := map[string][2]*held{}
	for _, d := range holds(h) {
		if d.Group == "" || d.Queue == c.Dead {
			continue
		}
		group := d.Queue + " " + d.Group
		two := longest[group]
		for _, old := range two {
			if old != nil && old.Client != d.Client && d.Return < old.until(0)-ClockError && d.Return < d.until(0) {
				p.add("group %s of queue %s: %s got key %d at %v, and %s held key %d until %v", d.Group, d.Queue, d.Client, d.Key, d.Return, old.Client, old.Key, old.until(0))
			}
		}
		longest[group] = longer(two, d)
	}
	return p.found()
}

// longer returns the holds of two clients that last longest, of two and one more.
func longer(two [2]*held, d *held) [2]*held {
	for i, old := range two {
		if old == nil || old.Client == d.Client {
			if old == nil || old.until(0) < d.until(0) {
				two[i] = d
			}
			break
		}
		if i == 1 && two[1].until(0) < d.until(0) {
			two[1] = d
		}
	}
	if two[1] != nil && two[0].until(0) < two[1].until(0) {
		two[0], two[1] = two[1], two[0]
	}
	return two
}

// Early finds messages that came before they were due: for the first time, as dead letters of
// those that expired, or after a retry that its consumer has put off.
func (c Lives) Early(h *history.History) Verdict {
	p := problems{name: "early"}
	all := lives(h)
	for _, l := range inOrder(all) {
		if len(l.handed) == 0 {
			continue
		}
		first := l.first()
		origin := all[place{l.Attempt.Queue, l.Key}]
		expired := l.queue == c.Dead && origin != nil && slices.ContainsFunc(origin.ends, func(o history.Op) bool { return strings.HasPrefix(o.Why, "expired ") })
		switch {
		case l.queue == l.Attempt.Queue && first.Return < l.Call+l.Wait-Grain:
			p.add("key %d, published to queue %s at %v to wait for %v, came at %v", l.Key, l.queue, l.Call, l.Wait, first.Return)
		case expired && first.Return < l.Call+l.TTL-Grain:
			p.add("key %d, published to queue %s at %v for %v, had expired at %v", l.Key, l.Attempt.Queue, l.Call, l.TTL, first.Return)
		}
		for i, d := range l.handed {
			for _, o := range d.then {
				if o.Kind != history.Retry || o.Result != history.OK {
					continue
				}
				for _, next := range l.handed[i+1:] {
					if next.Return < o.Call+o.Due-Grain {
						p.add("key %d of queue %s was to be retried at %v and came at %v", l.Key, l.queue, o.Call+o.Due, next.Return)
					}
				}
			}
		}
	}
	return p.found()
}

// Order finds messages of a group that came for the first time to somebody who held it,
// behind a later one of the same channel: one that the same client got, or that was settled
// before.
func (c Lives) Order(h *history.History) Verdict {
	p := problems{name: "group order"}
	type stream struct {
		queue, group, publisher string
		epoch                   int
		client                  string // "": settled, by anybody
	}
	// moments are deliveries and settlements, in the order of their ends.
	type moment struct {
		at      time.Duration
		on      *held
		settled bool
	}
	var all []moment
	for _, d := range holds(h) {
		if d.Group == "" || !c.Orders[d.Queue] || d.Key == 0 || d.Key > uint64(len(h.Attempts)) {
			continue
		}
		all = append(all, moment{d.Return, d, false})
		for _, o := range d.then {
			if o.Kind == history.Settle && o.Result == history.OK {
				all = append(all, moment{o.Return, d, true})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b moment) int { return cmp.Compare(a.at, b.at) })
	last := map[stream]uint64{}
	for _, m := range all {
		a := &h.Attempts[m.on.Key-1]
		s := stream{m.on.Queue, m.on.Group, a.Publisher, a.Epoch, ""}
		if m.settled {
			last[s] = max(last[s], a.Key)
			continue
		}
		if m.on.Turn == 0 && m.at < m.on.until(0) && last[s] > a.Key {
			p.add("group %s of queue %s: key %d came to %s at %v, when key %d was settled", s.group, s.queue, a.Key, m.on.Client, m.at, last[s])
		}
		s.client = m.on.Client
		if m.on.Turn == 0 && last[s] > a.Key {
			p.add("group %s of queue %s: key %d came to %s at %v behind key %d", s.group, s.queue, a.Key, m.on.Client, m.at, last[s])
		}
		if m.on.Turn == 0 {
			last[s] = max(last[s], a.Key)
		}
	}
	return p.found()
}

// inOrder returns lives by queue and key.
func inOrder(all map[place]*life) []*life {
	var out []*life
	for _, l := range all {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b *life) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.queue, b.queue)) })
	return out
}

// atLeastFailed is how often a message has been delivered that is parked for the first time: it has
// failed once more than the default limit allows.
const atLeastFailed = 21

// Parked finds messages that are listed as parked and are not, or that came though nobody had put
// them back: what is parked was published, has failed often enough, was not settled, is listed once,
// and is handed out again only after an unpark.
func (c Lives) Parked(h *history.History) Verdict {
	p := problems{name: "parked"}
	all := lives(h)
	var unparks []history.Op
	for _, o := range h.Ops {
		if o.Kind == history.Unpark && o.Result != history.No {
			unparks = append(unparks, o)
		}
	}
	// unparked reports whether messages of a queue may have been put back between two moments.
	unparked := func(queue string, from, to time.Duration) bool {
		return slices.ContainsFunc(unparks, func(o history.Op) bool {
			return o.Queue == queue && o.Call < to && (o.Result == history.Unknown || o.Return > from)
		})
	}
	type line struct {
		client, queue string
		key           uint64
	}
	listed := map[line]bool{}
	for _, o := range h.Ops {
		if o.Kind != history.Parked {
			continue
		}
		at := line{o.Client, o.Queue, o.Key}
		if listed[at] {
			p.add("key %d is twice in a list of what is parked in queue %s at %v", o.Key, o.Queue, o.Return)
		}
		listed[at] = true
		l := all[place{o.Queue, o.Key}]
		if l == nil || l.Attempt.Queue != o.Queue {
			p.add("key %d is parked in queue %s at %v, and never came from it", o.Key, o.Queue, o.Return)
			continue
		}
		if o.Turn < atLeastFailed {
			p.add("key %d is parked in queue %s at %v after %d deliveries", o.Key, o.Queue, o.Return, o.Turn)
		}
		for _, d := range l.handed {
			if slices.ContainsFunc(d.then, func(s history.Op) bool {
				return s.Kind == history.Settle && s.Result == history.OK && s.Return < o.Call
			}) {
				p.add("key %d is parked in queue %s at %v, and %s has settled it", o.Key, o.Queue, o.Return, d.Client)
			}
			if d.Turn >= o.Turn && !unparked(o.Queue, o.Call, d.Return) {
				p.add("key %d is parked in queue %s at %v, and came to %s at %v", o.Key, o.Queue, o.Return, d.Client, d.Return)
			}
		}
	}
	return p.found()
}

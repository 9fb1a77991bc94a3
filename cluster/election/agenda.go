package election

import (
	"cmp"
	"container/heap"
	"time"

	"github.com/quorate/quorate/fsm"
)

// agenda holds the elections of a node, those first that are looked at first: each when something has changed
// for it, or at a time that it has named.
type agenda struct{ byTime electionHeap }

// add has an election looked at by a time; zero: at once.
func (a *agenda) add(v *election, at time.Time) {
	if v.place < 0 || at.Before(v.at) {
		v.at = at
		a.byTime.put(v)
	}
}

// take removes and returns the elections that are due.
func (a *agenda) take(now time.Time) (due []*election) {
	for a.byTime.Len() > 0 && !a.byTime.list[0].at.After(now) {
		due = append(due, heap.Pop(&a.byTime).(*election))
	}
	return due
}

// next is how long it takes until the first one is due; 0: there is none.
func (a *agenda) next() time.Duration {
	if a.byTime.Len() == 0 {
		return 0
	}
	return max(time.Until(a.byTime.list[0].at), electionPause)
}

// scheduled is where an election is on the agenda, and among those that wait for the window.
type scheduled struct {
	at               time.Time // when it is checked, while it is on the agenda
	place, waitPlace int       // -1: it is not there
}

// electionHeap is a heap of elections that knows where each is.
type electionHeap struct {
	list  []*election
	less  func(v, w *election) bool
	place func(v *election) *int // in the list; -1: it is not there
}

func newAgenda() agenda {
	return agenda{electionHeap{
		less:  func(v, w *election) bool { return v.at.Before(w.at) },
		place: func(v *election) *int { return &v.place },
	}}
}

// newWaiting returns the elections in which it is this node's turn, those first that somebody waits for, then in
// order of time.
func newWaiting() electionHeap {
	return electionHeap{
		less: func(v, w *election) bool {
			if v.urgent != w.urgent {
				return v.urgent
			}
			return cmp.Or(v.ready.Compare(w.ready), cmp.Compare(v.group.ID(), w.group.ID())) < 0
		},
		place: func(v *election) *int { return &v.waitPlace },
	}
}

// put adds an election, or moves it to where it belongs now.
func (h *electionHeap) put(v *election) {
	if i := *h.place(v); i >= 0 {
		heap.Fix(h, i)
	} else {
		heap.Push(h, v)
	}
}

// remove takes an election out if it is there.
func (h *electionHeap) remove(v *election) {
	if i := *h.place(v); i >= 0 {
		heap.Remove(h, i)
	}
}

// Len implements heap.Interface.
func (h *electionHeap) Len() int { return len(h.list) }

// Less implements heap.Interface.
func (h *electionHeap) Less(i, j int) bool { return h.less(h.list[i], h.list[j]) }

// Swap implements heap.Interface.
func (h *electionHeap) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	*h.place(h.list[i]), *h.place(h.list[j]) = i, j
}

// Push implements heap.Interface.
func (h *electionHeap) Push(v any) {
	*h.place(v.(*election)) = len(h.list)
	h.list = append(h.list, v.(*election))
}

// Pop implements heap.Interface.
func (h *electionHeap) Pop() any {
	last := len(h.list) - 1
	v := h.list[last]
	h.list[last], h.list = nil, h.list[:last]
	*h.place(v) = -1
	return v
}

// termShown is when raft shows a term that it has stored.
const termShown = 5 * time.Millisecond

// TermChanged has the election of a group looked at, if there is one: raft is about to show another term.
func (e *Elections) TermChanged(id fsm.GroupID) { e.touch(id, e.now().Add(termShown)) }

// touch has the election of a group looked at by a time, if there is one.
func (e *Elections) touch(id fsm.GroupID, at time.Time) {
	e.mu.Lock()
	v := e.running[id]
	if v != nil {
		e.agenda.add(v, at)
	}
	e.mu.Unlock()
	if v != nil {
		e.worker.Wake()
	}
}

// PeersChanged has all elections looked at: a node has come up or gone down.
func (e *Elections) PeersChanged() {
	e.mu.Lock()
	for _, v := range e.running {
		e.agenda.add(v, time.Time{})
	}
	e.mu.Unlock()
	e.worker.Wake()
}

// electionBackoff says when which candidate may campaign. Two that stand at once split
// the votes, and one that stands while another's votes are still on their way
// takes away what that one wins. So each candidate has a time slot, by its rank; and
// whoever campaigns has a whole slot for it, from when the term was seen to
// rise, before the next one may. The slots of each round are twice as long as
// those of the one before, and so is each one after a campaign that failed: a
// machine that is too busy for elections must not get more of them. Votes that are
// on their way are no failure: who has voted for a candidate gives it votesTime.
// All of this is longer where a candidate is heard of late: who stands as well,
// because it has heard of nobody, makes two losers, and costs three terms.
type electionBackoff struct {
	began  time.Time     // when the present slot did; zero: none has
	slot   int           // number of the present one
	unused int           // slots in which nobody campaigned
	failed int           // slots that were used and are over
	used   bool          // somebody has campaigned in this slot
	open   bool          // who has campaigned has this member's vote, and a node that is up: the votes are on their way
	late   time.Duration // when in this slot to campaign
	slack  time.Duration // by how much later than among near nodes others hear of a candidate
	seen   time.Time     // up to when slots have been counted
}

// slots say how long slots are, and whose.
type slots struct {
	candidates int
	spread     func(time.Duration) time.Duration // by chance, from 0 to below
}

// taken notes that somebody campaigns now. The present slot is theirs; if it
// was another's for most of its time, then the next one, since slots do not
// begin at the same moment everywhere.
func (b *electionBackoff) taken(now time.Time, s slots) {
	length := b.advance(now, s)
	if b.used && now.Sub(b.began) >= length/2 {
		b.end()
	}
	b.began, b.used = now, true
}

// mine reports whether the candidate of this rank may campaign now. A campaign
// begins in the first half of a slot, since loads differ. After a failure it begins
// a little late, by chance: two who count slots differently, each standing in a
// slot of its own, would otherwise stand at once for ever.
func (b *electionBackoff) mine(now time.Time, rank int, s slots) bool {
	length := b.advance(now, s)
	passed := now.Sub(b.began)
	return !b.used && b.slot%s.candidates == rank && passed >= b.late && passed < length/2
}

// next is when the candidate of this rank may campaign if nobody does before; zero: never. It is called after
// mine.
func (b *electionBackoff) next(rank int, s slots) time.Time {
	if rank >= s.candidates {
		return time.Time{}
	}
	ahead := *b
	if !ahead.used && ahead.slot%s.candidates == rank && ahead.seen.Sub(ahead.began) < ahead.length(s)/2 {
		return ahead.began.Add(ahead.late) // later in the present slot
	}
	for {
		ahead.began = ahead.began.Add(ahead.length(s))
		if ahead.end(); ahead.slot%s.candidates == rank {
			return ahead.began
		}
	}
}

// hold leaves the time since the last count out: somebody whose turn it is has to wait.
func (b *electionBackoff) hold(now time.Time) {
	if !b.began.IsZero() {
		b.began = b.began.Add(now.Sub(b.seen))
	}
	b.seen = now
}

// advance counts the slots up to now, and returns how long the present one is.
func (b *electionBackoff) advance(now time.Time, s slots) time.Duration {
	if b.began.IsZero() {
		b.began = now
	}
	b.seen = now
	length := b.length(s)
	for now.Sub(b.began) >= length {
		b.began = b.began.Add(length)
		b.end()
		length = b.length(s)
		if b.failed > 0 {
			b.late = s.spread(length / 4)
		}
	}
	return length
}

// end ends the present slot.
func (b *electionBackoff) end() {
	b.slot++
	if b.used {
		b.failed++
	} else {
		b.unused++
	}
	b.used = false
}

// length is how long the present slot is.
func (b *electionBackoff) length(s slots) time.Duration {
	doublings := max(b.failed, b.unused/s.candidates)
	length := min((slotTime+b.slack)<<min(doublings, 10), longestSlot)
	if b.used && b.open {
		return max(length, votesTime+b.slack)
	}
	return length
}

// Bounds of a window.
const (
	firstWindow = 16
	minWindow   = 4 // a raft that hangs when it is told to stand keeps a place for long
	maxWindow   = 256
)

// inTime is how long a campaign may take on a machine that has time for it: other members let a candidate
// have a slot, and a machine that needs half of it has too much to do.
const inTime = slotTime / 2

// window bounds how many campaigns of a node are under way, that is, not decided yet: it grows with each
// one that is decided in time, and is halved when one is not. So a machine with little time holds few
// elections at once, each of which is over before the next member stands, and all of them together cost
// what one costs, times their number.
//
//	minWindow ≤ size ≤ maxWindow
type window struct {
	size  int
	under int       // campaigns under way; it may be above size, which may shrink
	cut   time.Time // when it was last halved
}

func newWindow() window { return window{size: firstWindow} }

func (w *window) full() bool { return w.under >= w.size }

// begin records a campaign that stands in a term.
func (w *window) begin(now time.Time, term uint64) *campaign {
	w.under++
	return &campaign{began: now, term: term}
}

// decided records that a campaign is over, with a leader or by a later term.
func (w *window) decided(now time.Time, c *campaign) {
	w.under--
	if w.check(now, c); !c.late {
		w.size = min(w.size+1, maxWindow)
	}
}

// check halves the window if a campaign is late, but for all that are late together only once.
func (w *window) check(now time.Time, c *campaign) {
	if c.late || now.Sub(c.began) < inTime {
		return
	}
	c.late = true
	if now.Sub(w.cut) >= slotTime {
		w.size, w.cut = max(w.size/2, minWindow), now
	}
}

// campaign is one that this node has begun.
type campaign struct {
	began time.Time
	term  uint64 // in which it stands
	late  bool   // it has not been decided in time
}

// attempt is how far a member has got with a campaign of its own.
type attempt struct {
	under     *campaign // nil: none is under way
	candidacy candidacy // when its turn came
	waits     time.Time // for the window: when the others were last told; zero: it does not wait
	other     rival
}

// rival is another member that stands, or waits to stand. It counts until raft here has heard of it.
type rival struct {
	node   string
	term   uint64 // in which it stands
	stands bool   // it no longer waits
	said   time.Time
}

// candidacy is what a member knew when its turn to campaign came.
type candidacy struct {
	alive []string
	slots slots
}

// checkCampaign ends the campaign of this node if others have moved on to a later term, or if it has had its time.
func (e *Elections) checkCampaign(v *election, now time.Time) {
	if v.under == nil {
		return
	}
	e.window.check(now, v.under)
	if _, term := v.group.Role(); term > v.under.term || now.Sub(v.under.began) >= longestSlot {
		e.window.decided(now, v.under)
		v.under = nil
	}
}

// admit chooses those that campaign now: as many of those whose turn it is as the window has room for.
func (e *Elections) admit(r *electionRound) (list []Electable) {
	for e.waiting.Len() > 0 && !e.window.full() {
		v := heap.Pop(&e.waiting).(*election)
		if v.under != nil {
			e.window.decided(r.now, v.under)
		}
		if !v.waits.IsZero() {
			v.backoff.hold(r.now)
		}
		v.under, v.waits = e.window.begin(r.now, standsIn(v.group)), time.Time{}
		e.tell(v, itemStands, v.under.term, v.candidacy.alive, r) // whose raft may take long to hear of it
		v.backoff.taken(r.now, v.candidacy.slots)
		e.agenda.add(v, r.now.Add(inTime))
		list = append(list, v.group)
	}
	return list
}

// tellWaiting tells the other members of those that have to wait for the window: they do not count slots
// meanwhile.
func (e *Elections) tellWaiting(due []*election, r *electionRound) {
	for _, v := range due {
		if v.waitPlace >= 0 && r.now.Sub(v.waits) >= positionsEvery {
			v.waits = r.now
			_, term := v.group.Role()
			e.tell(v, itemWaits, term, v.candidacy.alive, r)
		}
	}
}

// Want records that somebody at this node waits for a group to have a leader, and tells its members.
func (e *Elections) Want(id fsm.GroupID, members []string) {
	e.mu.Lock()
	for _, m := range members {
		if m != e.node {
			e.wants[m] = AppendItem(e.wants[m], Item{Kind: ItemWant, Group: id})
		}
	}
	e.mu.Unlock()
	if g := e.find(id); g != nil {
		g.Want(e.now())
	}
	e.touch(id, time.Time{})
	e.worker.Wake() // the items leave
}

// urgency says whether an election may rest, see rests.
type urgency struct {
	dead   time.Time // since when the leader's node has been unreachable; zero: it is not
	back   time.Time // since when it has been reachable again; zero: it never was unreachable, or still is
	due    time.Time // when somebody will need a leader; zero: somebody does
	urgent bool      // somebody waits
}

// rests reports whether the election has time: the leader's node has died, may come back, and nobody waits.
// A false alarm then costs a busy machine nothing but the groups that have work.
func (v *election) rests(now time.Time, reached map[string]bool) bool {
	v.urgent = v.urgent || v.group.Wanted(now)
	switch {
	case v.leader == "", reached[v.leader]:
		if !v.dead.IsZero() {
			v.dead, v.back = time.Time{}, now
		}
		return false
	case v.dead.IsZero():
		v.dead, v.back = now, time.Time{}
		delete(v.positions, v.leader)
	}
	return !v.urgent && now.Before(v.restsUntil())
}

// restsUntil is when an election that rests ends its patience.
func (v *election) restsUntil() time.Time {
	if end := v.dead.Add(DeathPatience); end.Before(v.due) {
		return end
	}
	return v.due
}

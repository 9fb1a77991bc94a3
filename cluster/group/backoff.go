package group

import "time"

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

package group

import "time"

// turns says when which candidate may campaign. Two that stand at once split
// the votes, and one that stands while another's votes are still on their way
// takes away what that one wins. So candidates take turns, by their rank; and
// whoever campaigns has a whole turn for it, from when the term was seen to
// rise, before the next one may. The turns of each round are twice as long as
// those of the one before, and so is each one after a campaign that failed: a
// machine that is too busy for elections must not get more of them.
type turns struct {
	began  time.Time     // when the present turn did; zero: none has
	number int           // of the present turn
	passed int           // turns in which nobody campaigned
	failed int           // turns that were taken and are over
	used   bool          // somebody has campaigned in this turn
	late   time.Duration // when in this turn to campaign
}

// pace of turns.
type pace struct {
	candidates int
	shortest   time.Duration
	spread     func(time.Duration) time.Duration // by chance, from 0 to below
}

// taken notes that somebody campaigns now. The present turn is theirs; if it
// was another's for most of its time, then the next one, since turns do not
// begin at the same moment everywhere.
func (t *turns) taken(now time.Time, p pace) {
	turn := t.pass(now, p)
	if t.used && now.Sub(t.began) >= turn/2 {
		t.next()
	}
	t.began, t.used = now, true
}

// mine reports whether the candidate of this rank may campaign now. A turn
// begins in its first half, since loads differ. After a failure it begins a
// little late, by chance: two who count turns differently, each standing in a
// turn of its own, would otherwise stand at once for ever.
func (t *turns) mine(now time.Time, rank int, p pace) bool {
	turn := t.pass(now, p)
	passed := now.Sub(t.began)
	return !t.used && t.number%p.candidates == rank && passed >= t.late && passed < turn/2
}

// pass counts the turns up to now, and returns how long the present one is.
func (t *turns) pass(now time.Time, p pace) time.Duration {
	if t.began.IsZero() {
		t.began = now
	}
	turn := t.length(p)
	for now.Sub(t.began) >= turn {
		t.began = t.began.Add(turn)
		t.next()
		turn = t.length(p)
		if t.failed > 0 {
			t.late = p.spread(turn / 4)
		}
	}
	return turn
}

func (t *turns) next() {
	t.number++
	if t.used {
		t.failed++
	} else {
		t.passed++
	}
	t.used = false
}

// length is how long the present turn is.
func (t *turns) length(p pace) time.Duration {
	doublings := max(t.failed, t.passed/p.candidates)
	return max(p.shortest, min(p.shortest<<min(doublings, 10), longestTurn))
}

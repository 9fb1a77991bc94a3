package peer

import (
	"slices"
	"time"
)

const (
	// redialMin … redialMax: the growing pause between attempts to dial an address.
	redialMin = 30 * time.Millisecond
	redialMax = 250 * time.Millisecond
	// maxSlow is how often an attempt to dial an address is given twice the time of the one before.
	maxSlow = 3
)

// addresses is where a node may be. The one that is due first is tried, those that are due at once in
// order. What is known of one says nothing about another.
//
//	linked is empty: there has been no link, or not at one of those that are known now
type addresses struct {
	all    []*address
	linked string // the one of the last link
}

// address is one of them.
//
//	slow ≤ maxSlow
//	refusedFor > 0 only if all attempts since the last link were refused, or do
//	not count; then refusedAt is when the last one was
type address struct {
	name       string
	slow       int           // attempts that took too long since the last link there
	delay      time.Duration // before the next attempt; 0: none has failed
	due        time.Time     // when it is tried next; zero: at once
	refusedAt  time.Time
	refusedFor time.Duration // leaves out what does not count
}

// set replaces them, and forgets nothing about those that remain. Those that are new are tried at once.
func (a *addresses) set(names []string) {
	if slices.EqualFunc(a.all, names, func(one *address, name string) bool { return one.name == name }) {
		return
	}
	was := a.all
	a.all = nil
	for _, name := range names {
		one := &address{name: name}
		if i := slices.IndexFunc(was, func(x *address) bool { return x.name == name }); i >= 0 {
			one = was[i]
		}
		a.all = append(a.all, one)
	}
	if !slices.Contains(names, a.linked) {
		a.linked = ""
	}
}

// next is the one to be tried; nil: there is none.
func (a *addresses) next() *address {
	if len(a.all) == 0 {
		return nil
	}
	return slices.MinFunc(a.all, func(x, y *address) int { return x.due.Compare(y.due) })
}

// reached notes that there is a link to one. It is the first to be tried when that breaks.
func (a *addresses) reached(one *address) {
	a.linked = one.name
	one.slow, one.delay, one.due = 0, 0, time.Time{}
	for _, x := range a.all {
		x.refusedFor = 0
	}
}

// lost notes that the link broke: what was refused before counts no more.
func (a *addresses) lost() {
	for _, x := range a.all {
		x.refusedAt = time.Time{}
	}
}

// counts reports whether who refuses connections at this address says something about the node. Once
// the node has been at another one, it may be anybody's host.
func (a *addresses) counts(one *address) bool { return a.linked == "" || one.name == a.linked }

// refusedFor is for how long every attempt to dial the node has been refused.
func (a *addresses) refusedFor() (shortest time.Duration) {
	first := true
	for _, x := range a.all {
		if a.counts(x) && (first || x.refusedFor < shortest) {
			shortest, first = x.refusedFor, false
		}
	}
	return shortest
}

// refused notes that the host at this address has refused a connection.
func (x *address) refused(now time.Time) {
	if !x.refusedAt.IsZero() {
		// Of a pause in which this process was stopped little counts.
		x.refusedFor += min(now.Sub(x.refusedAt), 2*redialMax)
	}
	x.refusedAt = now
}

// failed notes that an attempt to dial one has taken so long and failed, and when the next is due, spread
// by chance. alive: the node has had a link until a moment ago, and a pause is the shortest there is. An
// address at which nobody answers, and where the node has not been, takes a fifth of the time.
func (a *addresses) failed(x *address, refused, alive bool, took time.Duration, now time.Time, spread func(time.Duration) time.Duration) {
	if refused {
		x.refused(now)
	} else {
		x.refusedAt, x.refusedFor = time.Time{}, 0
	}
	if !refused && !alive {
		x.slow = min(x.slow+1, maxSlow)
	}
	if x.delay = min(x.delay*5/4, redialMax); alive || x.delay == 0 {
		x.delay = redialMin
	}
	pause := x.delay/2 + spread(x.delay/2)
	if !a.counts(x) {
		pause = max(pause, 4*took)
	}
	x.due = now.Add(pause)
}

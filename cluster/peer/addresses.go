package peer

import "slices"

// addresses is where a node may be. They are tried in turn, the one that was
// tried with success again and again.
//
//	0 ≤ at < max(1, len(all))
//	linked is empty: there has been no link, or not at one of those that are known now
type addresses struct {
	all    []string
	at     int    // the one that is tried next
	linked string // the one of the last link
}

// set replaces them. The first one is tried next, unless nothing has changed.
func (a *addresses) set(all []string) {
	if slices.Equal(a.all, all) {
		return
	}
	a.all, a.at = all, 0
	if !slices.Contains(all, a.linked) {
		a.linked = ""
	}
}

// next is the one to be tried; empty: there is none.
func (a *addresses) next() string {
	if len(a.all) == 0 {
		return ""
	}
	return a.all[a.at]
}

// failed notes that no link came of one. If it is still the one to be tried, the
// one after it is next.
func (a *addresses) failed(one string) {
	if one == a.next() && len(a.all) > 0 {
		a.at = (a.at + 1) % len(a.all)
	}
}

// reached notes that there is a link to one.
func (a *addresses) reached(one string) { a.linked = one }

// isElsewhere reports whether the node has been at another address than this
// one. Whoever refuses connections here proves nothing about the node then: it
// may be anybody's host.
func (a *addresses) isElsewhere(one string) bool { return a.linked != "" && one != a.linked }

package catalog

import (
	"fmt"
	"iter"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// TouchEvery is how often a use is recorded of something that is deleted after
// being idle for this long. In ms, at most 30 s, and at most a tenth of idle,
// so that IdleEnd is late by no more than that.
func TouchEvery(idle fsm.Millis) fsm.Millis { return min(idle/10, 30_000) }

// IdleEnd is when an exchange that is deleted when idle may be deleted, if it
// was last used at active: after its idle time plus the time for which a use
// may go unrecorded. Requires: Idle() ≠ 0.
func (x *Exchange) IdleEnd(active fsm.Time) fsm.Time {
	return active.Add(x.idle).Add(TouchEvery(x.idle))
}

// Idle is how long an exchange must be idle to be deleted; 0: it never is. 0 ≤
// Idle() ≤ MaxTTL, in ms.
func (x *Exchange) Idle() fsm.Millis { return x.idle }

// TouchDue reports whether a use at an instant must be recorded for an exchange
// that is deleted when idle. A node calls it before it proposes a
// TouchExchange, so that frequent uses cost few log entries.
func (vs *vhosts) TouchDue(x *Exchange, at fsm.Time) bool {
	if vh := vs.vhost(x.VHost); vh != nil {
		last, ends := vh.exchanges.lastUsed(x.Name)
		return ends && at >= last.Add(TouchEvery(x.idle))
	}
	return false
}

// IdleExchanges iterates over the exchanges that are deleted when idle, in no
// particular order, with their last recorded use. It costs O(vhosts + such
// exchanges), not O(exchanges): the leader calls it twice a second.
func (vs *vhosts) IdleExchanges() iter.Seq2[*Exchange, fsm.Time] {
	return func(yield func(*Exchange, fsm.Time) bool) {
		for vh := range vs.all() {
			for x, last := range vh.exchanges.idle() {
				if !yield(x, last) {
					return
				}
			}
		}
	}
}

// IdleSources iterates over the exchanges that are deleted when idle and that a
// queue is bound to, in no particular order. An exchange with several bindings
// to the queue comes once for each.
func (vs *vhosts) IdleSources(q *Queue) iter.Seq[*Exchange] {
	return func(yield func(*Exchange) bool) {
		vh := vs.vhost(q.VHost)
		if vh == nil || !vh.exchanges.anyIdle() {
			return
		}
		for b := range vh.exchanges.inboundAt(endpoint{q.Name, false}).All() {
			if x := vh.exchanges.at(b.Source); x.idle != 0 && !yield(x) {
				return
			}
		}
	}
}

// checkExchangeIdle refuses an invalid idle time. Apply does not call it: the
// log may hold declares that were never checked for it.
func (s *clusterSettings) checkExchangeIdle(where string, args *fsm.Table) error {
	if value := lookup(args, idleArgument); value != nil {
		if reason := between(0, MaxTTL)(value); reason != "" {
			return invalidArgument(idleArgument, where, reason)
		}
	}
	return s.checkIdle(where, args)
}

// idleTime is how long an exchange must be idle to be deleted, by argument and
// policies. Exchanges that cannot be deleted are never idle. As with the TTL,
// only policies for exchanges alone count: a policy for queues that does not
// specify apply-to must not delete an exchange of a similar name.
//
// It depends on the name, the arguments and match; 0 ≤ result ≤ MaxTTL. The
// value of policies comes first, operators' as the strong side; then policies
// against the argument. An argument that is no integer, or negative, counts as
// none, as older logs may have it.
func (x *Exchange) idleTime() fsm.Millis {
	if strings.HasPrefix(x.Name, reserved) {
		return 0
	}
	key := findPolicyKey("auto-delete-on-idle")
	var by *logpb.Value
	for _, p := range []*Policy{x.match.policy, x.match.operator} { // the stronger one last
		if p == nil || p.ApplyTo != applyExchanges {
			continue
		}
		if v := lookup(p.Definition, key.name); v != nil && by != nil {
			by = key.merge.apply(v, by)
		} else if v != nil {
			by = v
		}
	}
	argument := lookup(x.Arguments, idleArgument)
	if n, ok := integer(argument); !ok || n < 0 {
		argument = nil
	}
	switch {
	case by == nil:
		by = argument
	case argument != nil:
		by = key.argue.apply(by, argument)
	}
	n, _ := integer(by)
	return fsm.Millis(min(n, MaxTTL))
}

// lastUsed is the last recorded use of an exchange. ends false: it is never
// idle.
func (xs *exchanges) lastUsed(name string) (last fsm.Time, ends bool) { return xs.lastUse.Get(name) }

// anyIdle reports whether any exchange is deleted when idle.
func (xs *exchanges) anyIdle() bool { return xs.lastUse.Len() > 0 }

// idle iterates over the exchanges that are deleted when idle, in no particular
// order, with their last use.
func (xs *exchanges) idle() iter.Seq2[*Exchange, fsm.Time] {
	return func(yield func(*Exchange, fsm.Time) bool) {
		for name, last := range xs.lastUse.All() {
			if !yield(xs.at(name), last) {
				return
			}
		}
	}
}

// touch records a use of an exchange, if it is deleted when idle. It reports
// whether that changed anything. It never moves the last use back. Requires: at
// is not after the clock.
func (xs *exchanges) touch(name string, at fsm.Time) bool {
	last, ends := xs.lastUsed(name)
	if !ends || at <= last {
		return false
	}
	xs.lastUse = xs.lastUse.With(name, at)
	return true
}

// touchSources records the use of the exchanges that a queue is bound to. It
// costs O(bindings to the queue), and nothing if no exchange is ever idle. The
// order is invisible: all get the same instant.
func (xs *exchanges) touchSources(queue string, at fsm.Time) {
	if !xs.anyIdle() {
		return
	}
	for b := range xs.inboundAt(endpoint{queue, false}).All() {
		xs.touch(b.Source, at)
	}
}

// touchEnds records the use of both ends of a binding that was made or removed.
func (xs *exchanges) touchEnds(m *logpb.Bind, at fsm.Time) {
	xs.touch(m.GetSource(), at)
	if m.GetToExchange() {
		xs.touch(m.GetDestination(), at)
	} else {
		xs.touchSources(m.GetDestination(), at)
	}
}

// retime records the use of an exchange that is new, or has new settings. It
// also forgets the last use of one that is never idle any more. Without it the
// invariant of lastUse does not hold, so it follows each put that may change
// idle.
func (xs *exchanges) retime(x *Exchange, at fsm.Time) {
	if x.idle != 0 {
		xs.lastUse = xs.lastUse.With(x.Name, max(at, xs.lastUse.At(x.Name)))
	} else {
		xs.lastUse = xs.lastUse.Without(x.Name)
	}
}

// saveUse writes the section of the idle exchanges in a snapshot. Rows are by
// name.
func (xs *exchanges) saveUse(to *logpb.CatalogSnapshot) {
	for _, x := range xs.list() {
		if last, ends := xs.lastUsed(x.Name); ends {
			to.Idle = append(to.Idle, &logpb.ExchangeActivity{Vhost: x.VHost, Name: x.Name, Active: int64(last)})
		}
	}
}

// restoreUse reads a row of saveUse. Exchanges that are not listed start anew,
// see retime. Requires: retime was called for the exchange, so an error means
// that the snapshot and its policies disagree.
func (xs *exchanges) restoreUse(row *logpb.ExchangeActivity) error {
	if _, ends := xs.lastUsed(row.GetName()); !ends {
		return fmt.Errorf("exchange %q in %q is never idle", row.GetName(), row.GetVhost())
	}
	xs.lastUse = xs.lastUse.With(row.GetName(), fsm.Time(row.GetActive()))
	return nil
}

// checkUse checks that exactly the exchanges that are deleted when idle have a
// last use, and that it is not in the future.
func (xs *exchanges) checkUse(clock fsm.Time) error {
	ends := 0
	for x := range xs.values() {
		if x.idle != x.idleTime() {
			return fmt.Errorf("%s is idle after %d, not %d", x, x.idle, x.idleTime())
		}
		last, known := xs.lastUsed(x.Name)
		if known != (x.idle != 0) || last > clock {
			return fmt.Errorf("%s was last active at %d (known %v), now is %d", x, last, known, clock)
		}
		if known {
			ends++
		}
	}
	if ends != xs.lastUse.Len() {
		return fmt.Errorf("the last use of %d exchanges, %d are there", xs.lastUse.Len(), ends)
	}
	return nil
}

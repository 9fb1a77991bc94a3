package catalog

import (
	"fmt"
	"iter"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// TouchEvery is how often the use of something that is deleted when it has
// been idle for so long is noted.
func TouchEvery(idle fsm.Millis) fsm.Millis { return min(idle/10, 30_000) }

// IdleEnd is when an exchange that is deleted when idle may go, if nobody has
// used it since active: its time, and as long again as a use of it may go
// without being noted.
func (x *Exchange) IdleEnd(active fsm.Time) fsm.Time {
	return active.Add(x.idle).Add(TouchEvery(x.idle))
}

// Idle is how long an exchange has to be idle to be deleted; 0: it never is.
func (x *Exchange) Idle() fsm.Millis { return x.idle }

// TouchDue reports whether a use at an instant is to be noted of an exchange
// that is deleted when idle.
func (vs *vhosts) TouchDue(x *Exchange, at fsm.Time) bool {
	if vh := vs.vhost(x.VHost); vh != nil {
		last, ends := vh.exchanges.lastUsed(x.Name)
		return ends && at >= last.Add(TouchEvery(x.idle))
	}
	return false
}

// IdleExchanges walks over the exchanges that are deleted when idle, in no
// particular order, and says when each was last known to be in use.
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

// IdleSources walks over the exchanges that are deleted when idle and that a
// queue is bound to, in no particular order.
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

// checkExchangeIdle refuses an idle time that no exchange can have. Apply does
// not ask: the log may hold declares that never were checked so.
func (s *clusterSettings) checkExchangeIdle(where string, args *fsm.Table) error {
	if value := lookup(args, idleArgument); value != nil {
		if reason := between(0, MaxTTL)(value); reason != "" {
			return invalidArgument(idleArgument, where, reason)
		}
	}
	return s.checkIdle(where, args)
}

// idleTime is how long an exchange has to be idle to be deleted, by argument
// and policies. Exchanges that cannot be deleted are never idle. As with the
// TTL, only policies for nothing but exchanges count: one for queues that does
// not say what it applies to must not delete an exchange of a similar name.
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

// lastUsed is when an exchange was last known to be in use. ends false: it is
// never idle.
func (xs *exchanges) lastUsed(name string) (last fsm.Time, ends bool) { return xs.lastUse.Get(name) }

// anyIdle reports whether any exchange is deleted when idle.
func (xs *exchanges) anyIdle() bool { return xs.lastUse.Len() > 0 }

// idle walks over the exchanges that are deleted when idle, in no particular
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

// touch notes that an exchange was in use, if it is deleted when idle. It
// reports whether that is news.
func (xs *exchanges) touch(name string, at fsm.Time) bool {
	last, ends := xs.lastUsed(name)
	if !ends || at <= last {
		return false
	}
	xs.lastUse = xs.lastUse.With(name, at)
	return true
}

// touchSources notes the use of the exchanges that a queue is bound to.
func (xs *exchanges) touchSources(queue string, at fsm.Time) {
	if !xs.anyIdle() {
		return
	}
	for b := range xs.inboundAt(endpoint{queue, false}).All() {
		xs.touch(b.Source, at)
	}
}

// touchEnds notes the use of what a binding that was made or removed joins.
func (xs *exchanges) touchEnds(m *logpb.Bind, at fsm.Time) {
	xs.touch(m.GetSource(), at)
	if m.GetToExchange() {
		xs.touch(m.GetDestination(), at)
	} else {
		xs.touchSources(m.GetDestination(), at)
	}
}

// retime notes the use of an exchange that is new, or has new settings.
func (xs *exchanges) retime(x *Exchange, at fsm.Time) {
	if x.idle != 0 {
		xs.lastUse = xs.lastUse.With(x.Name, max(at, xs.lastUse.At(x.Name)))
	} else {
		xs.lastUse = xs.lastUse.Without(x.Name)
	}
}

// saveUse is the section of the idle exchanges in a snapshot.
func (xs *exchanges) saveUse(to *logpb.CatalogSnapshot) {
	for _, x := range xs.list() {
		if last, ends := xs.lastUsed(x.Name); ends {
			to.Idle = append(to.Idle, &logpb.ExchangeActivity{Vhost: x.VHost, Name: x.Name, Active: int64(last)})
		}
	}
}

// restoreUse takes up a row of saveUse. Exchanges that are not listed begin anew,
// see retime.
func (xs *exchanges) restoreUse(row *logpb.ExchangeActivity) error {
	if _, ends := xs.lastUsed(row.GetName()); !ends {
		return fmt.Errorf("exchange %q in %q is never idle", row.GetName(), row.GetVhost())
	}
	xs.lastUse = xs.lastUse.With(row.GetName(), fsm.Time(row.GetActive()))
	return nil
}

// checkUse: a last use is known of the exchanges that are deleted when idle
// and of no others, and it is not in the future.
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

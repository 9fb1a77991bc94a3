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
func (v *View) TouchDue(x *Exchange, at fsm.Time) bool {
	if vh := v.vhosts.At(x.VHost); vh != nil {
		active, ends := vh.active.Get(x.Name)
		return ends && at >= active.Add(TouchEvery(x.idle))
	}
	return false
}

// IdleExchanges walks over the exchanges that are deleted when idle, in no
// particular order, and says when each was last known to be in use.
func (v *View) IdleExchanges() iter.Seq2[*Exchange, fsm.Time] {
	return func(yield func(*Exchange, fsm.Time) bool) {
		for vh := range v.vhosts.Values() {
			for name, active := range vh.active.All() {
				if !yield(vh.exchanges.At(name), active) {
					return
				}
			}
		}
	}
}

// IdleSources walks over the exchanges that are deleted when idle and that a
// queue is bound to, in no particular order.
func (v *View) IdleSources(q *Queue) iter.Seq[*Exchange] {
	return func(yield func(*Exchange) bool) {
		vh := v.vhosts.At(q.VHost)
		if vh == nil || vh.active.Len() == 0 {
			return
		}
		for b := range vh.inbound.At(endpoint{q.Name, false}).All() {
			if x := vh.exchanges.At(b.Source); x.idle != 0 && !yield(x) {
				return
			}
		}
	}
}

// checkExchangeIdle refuses an idle time that no exchange can have. Apply does
// not ask: the log may hold declares that never were checked so.
func (v *View) checkExchangeIdle(where string, args *fsm.Table) error {
	if value := lookup(args, idleArgument); value != nil {
		if reason := between(0, MaxTTL)(value); reason != "" {
			return invalidArgument(idleArgument, where, reason)
		}
	}
	return v.checkIdle(where, args)
}

// idleTime is how long an exchange has to be idle to be deleted, by argument
// and policies. Exchanges that cannot be deleted are never idle. As with the
// TTL, only policies for nothing but exchanges count: one for queues that is
// not told what it applies to must not delete an exchange of a similar name.
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

// touch notes that an exchange was in use, if it is deleted when idle. It
// reports whether that is news.
func (vh *vhost) touch(name string, at fsm.Time) bool {
	active, ends := vh.active.Get(name)
	if !ends || at <= active {
		return false
	}
	vh.active = vh.active.With(name, at)
	return true
}

// touchSources notes the use of the exchanges that a queue is bound to.
func (vh *vhost) touchSources(queue string, at fsm.Time) {
	if vh.active.Len() == 0 {
		return
	}
	for b := range vh.inbound.At(endpoint{queue, false}).All() {
		vh.touch(b.Source, at)
	}
}

// touchEnds notes the use of what a binding that was made or removed joins.
func (vh *vhost) touchEnds(m *logpb.Bind, at fsm.Time) {
	vh.touch(m.GetSource(), at)
	if m.GetToExchange() {
		vh.touch(m.GetDestination(), at)
	} else {
		vh.touchSources(m.GetDestination(), at)
	}
}

// retime notes the use of an exchange that is new, or has new settings.
func (vh *vhost) retime(x *Exchange, at fsm.Time) {
	if x.idle != 0 {
		vh.active = vh.active.With(x.Name, max(at, vh.active.At(x.Name)))
	} else {
		vh.active = vh.active.Without(x.Name)
	}
}

// touchExchange notes that an exchange was in use.
func (d *draft) touchExchange(m *logpb.TouchExchange) (*logpb.CatalogResult, error) {
	at := min(fsm.Time(m.GetAt()), d.clock)
	vh := d.vhosts.At(m.GetVhost())
	if vh == nil {
		return &logpb.CatalogResult{}, nil
	}
	if active, ends := vh.active.Get(m.GetName()); !ends || at <= active {
		return &logpb.CatalogResult{}, nil
	}
	return &logpb.CatalogResult{Changed: d.open(m.GetVhost()).touch(m.GetName(), at)}, nil
}

// expireExchange removes an exchange, unless it was in use too lately.
func (d *draft) expireExchange(m *logpb.ExpireExchange) (*logpb.CatalogResult, error) {
	x, ok := d.Exchange(m.GetVhost(), m.GetName())
	if !ok || x.idle == 0 || x.IdleEnd(d.vhosts.At(m.GetVhost()).active.At(x.Name)) > min(fsm.Time(m.GetAt()), d.clock) {
		return &logpb.CatalogResult{}, nil
	}
	r := &logpb.CatalogResult{Changed: true}
	d.removeExchanges(d.open(m.GetVhost()), []string{x.Name}, r)
	return r, nil
}

// idleRows lists when the exchanges of vhosts were last in use.
func (v *View) idleRows(vhosts []*logpb.PutVhost) (rows []*logpb.ExchangeActivity) {
	for _, row := range vhosts {
		vh := v.vhosts.At(row.GetName())
		for _, x := range v.Exchanges(row.GetName()) {
			if active, ends := vh.active.Get(x.Name); ends {
				rows = append(rows, &logpb.ExchangeActivity{Vhost: x.VHost, Name: x.Name, Active: int64(active)})
			}
		}
	}
	return rows
}

// restoreIdle takes up what idleRows has listed. Exchanges that are not listed
// begin anew.
func (d *draft) restoreIdle(rows []*logpb.ExchangeActivity) error {
	for _, vh := range d.opened { // det: vhosts have nothing to do with each other
		for x := range vh.exchanges.Values() {
			vh.retime(x, d.clock)
		}
	}
	for _, row := range rows {
		vh, err := d.restored(row.GetVhost())
		if err != nil {
			return err
		}
		if _, ends := vh.active.Get(row.GetName()); !ends {
			return fmt.Errorf("exchange %q in %q is never idle", row.GetName(), row.GetVhost())
		}
		vh.active = vh.active.With(row.GetName(), fsm.Time(row.GetActive()))
	}
	return nil
}

// checkActive: a last use is known of the exchanges that are deleted when idle
// and of no others, and it is not in the future.
func (vh *vhost) checkActive(clock fsm.Time) error {
	ends := 0
	for x := range vh.exchanges.Values() {
		if x.idle != x.idleTime() {
			return fmt.Errorf("%s is idle after %d, not %d", x, x.idle, x.idleTime())
		}
		active, known := vh.active.Get(x.Name)
		if known != (x.idle != 0) || active > clock {
			return fmt.Errorf("%s was last active at %d (known %v), now is %d", x, active, known, clock)
		}
		if known {
			ends++
		}
	}
	if ends != vh.active.Len() {
		return fmt.Errorf("the last use of %d exchanges, %d are there", vh.active.Len(), ends)
	}
	return nil
}

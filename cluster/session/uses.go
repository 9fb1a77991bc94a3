package session

import (
	"context"
	"sync"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// noteWait bounds how long the broker tries to record the use of exchanges. The next use is
// recorded anew.
const noteWait = 5 * time.Second

// uses holds the uses of exchanges that are deleted when idle until the catalog has them.
//
// Invariant: noting is empty unless running; pending is empty unless running or the broker closes.
type uses struct {
	*node
	*tasks
	mu      sync.Mutex
	pending map[exchangeName]fsm.Time // since when the use is known
	noting  map[exchangeName]struct{} // in the entry under way
	running bool
}

// exchangeName identifies an exchange among all vhosts.
type exchangeName struct{ vhost, name string }

// exchange records the use of an exchange that is deleted when idle. The catalog gets only one use
// per period, and the caller does not wait for it.
func (u *uses) exchange(x *catalog.Exchange) {
	now := u.stamp()
	if !u.view().TouchDue(x, now) {
		return
	}
	name := exchangeName{x.VHost, x.Name}
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, noting := u.noting[name]; noting {
		return
	}
	if u.pending == nil {
		u.pending = map[exchangeName]fsm.Time{}
	}
	u.pending[name] = now
	if !u.running {
		u.running = u.spawn("record uses", u.propose)
	}
}

// sources records the use of the exchanges that a queue is bound to: use of the queue is use of
// them.
func (u *uses) sources(q *catalog.Queue) {
	for x := range u.view().IdleSources(q) {
		u.exchange(x)
	}
}

// ends records the use of both ends of an existing binding that is made again. For a new binding
// the catalog does so itself.
func (u *uses) ends(m *logpb.Bind) {
	v := u.view()
	if x, ok := v.Exchange(m.Vhost, m.Source); ok {
		u.exchange(x)
	}
	if x, ok := v.Exchange(m.Vhost, m.Destination); ok && m.ToExchange {
		u.exchange(x)
	}
	if q, ok := v.Queue(m.Vhost, m.Destination); ok && !m.ToExchange {
		u.sources(q)
	}
}

// propose proposes uses to the catalog until there are none left.
func (u *uses) propose() {
	ctx, cancel := u.whileOpen()
	defer cancel()
	done := false
	defer func() {
		if !done {
			u.stopped() // after a panic: the next use starts again
		}
	}()
	for {
		u.mu.Lock()
		if len(u.pending) == 0 || ctx.Err() != nil {
			u.running, u.noting, done = false, nil, true
			u.mu.Unlock()
			return
		}
		var touches []*logpb.CatalogCommand
		u.noting = map[exchangeName]struct{}{}
		for name, at := range u.pending {
			u.noting[name] = struct{}{}
			touches = append(touches, TouchExchange(name.vhost, name.name, at))
		}
		u.pending = nil
		u.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, noteWait)
		if _, err := u.catalog.Note(ctx, touches...); err != nil {
			u.slog.Debug("uses of exchanges not recorded", "exchanges", len(touches), "error", err)
		}
		cancel()
	}
}

// stopped records that uses are no longer being proposed.
func (u *uses) stopped() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running, u.noting = false, nil
}

// TouchExchange is the command that records the use of an exchange.
func TouchExchange(vhost, name string, at fsm.Time) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_TouchExchange{
		TouchExchange: &logpb.TouchExchange{Vhost: vhost, Name: name, At: int64(at)},
	}}
}

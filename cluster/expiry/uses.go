package expiry

import (
	"context"
	"sync"

	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// Uses holds the uses of exchanges that are deleted when idle until the catalog has them. The next use of one that
// the catalog does not get is recorded anew.
//
// Invariant: noting is empty unless running; pending is empty unless running or the node closes.
type Uses struct {
	node    *self.Node
	mu      sync.Mutex
	pending map[exchangeName]fsm.Time // since when the use is known
	noting  map[exchangeName]struct{} // in the entry under way
	running bool
}

// NewUses returns what holds no uses yet.
func NewUses(n *self.Node) *Uses { return &Uses{node: n} }

// exchangeName identifies an exchange among all vhosts.
type exchangeName struct{ vhost, name string }

// Used records the use of an exchange that is deleted when idle. The catalog gets only one use
// per period, and the caller does not wait for it.
func (u *Uses) Used(x *catalog.Exchange) {
	now := u.node.Stamp()
	if !u.node.View().TouchDue(x, now) {
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
		u.running = u.node.Spawn("record uses", u.propose)
	}
}

// Sources records the use of the exchanges that a queue is bound to: use of the queue is use of
// them.
func (u *Uses) Sources(q *catalog.Queue) {
	for x := range u.node.View().IdleSources(q) {
		u.Used(x)
	}
}

// Ends records the use of both ends of an existing binding that is made again. For a new binding
// the catalog does so itself.
func (u *Uses) Ends(m *logpb.Bind) {
	v := u.node.View()
	if x, ok := v.Exchange(m.Vhost, m.Source); ok {
		u.Used(x)
	}
	if x, ok := v.Exchange(m.Vhost, m.Destination); ok && m.ToExchange {
		u.Used(x)
	}
	if q, ok := v.Queue(m.Vhost, m.Destination); ok && !m.ToExchange {
		u.Sources(q)
	}
}

// propose proposes uses to the catalog until there are none left.
func (u *Uses) propose() {
	ctx := u.node.Life()
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
			touches = append(touches, touch(name.vhost, name.name, at))
		}
		u.pending = nil
		u.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, commitWait)
		if _, err := u.node.Catalog.Note(ctx, touches...); err != nil {
			u.node.Logger.Debug("uses of exchanges not recorded", "exchanges", len(touches), "error", err)
		}
		cancel()
	}
}

// stopped records that uses are no longer being proposed.
func (u *Uses) stopped() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running, u.noting = false, nil
}

// touch is the command that records the use of an exchange.
func touch(vhost, name string, at fsm.Time) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_TouchExchange{
		TouchExchange: &logpb.TouchExchange{Vhost: vhost, Name: name, At: int64(at)},
	}}
}

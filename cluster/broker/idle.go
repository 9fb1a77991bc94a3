package broker

import (
	"context"
	"sync"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// noteWait bounds how long it is tried to note that exchanges were in use. The
// next use is noted anew.
const noteWait = 5 * time.Second

// uses are those of exchanges that are deleted when idle, on their way into
// the catalog.
type uses struct {
	mu      sync.Mutex
	pending map[exchangeName]fsm.Time // since when the use is known
	noting  map[exchangeName]struct{} // in the entry under way
	running bool
}

// exchangeName is that of an exchange among all vhosts.
type exchangeName struct{ vhost, name string }

// used is told of each use of an exchange that is deleted when idle. The
// catalog hears of one in a while, and not from somebody who waits for it.
func (b *Broker) used(x *catalog.Exchange) {
	now := b.config.Stamp()
	if !b.view().TouchDue(x, now) {
		return
	}
	u, name := &b.uses, exchangeName{x.VHost, x.Name}
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
		u.running = b.spawn("note uses", b.noteUses)
	}
}

// usedSources notes the use of the exchanges that a queue is bound to: what is
// done with the queue is use of them.
func (b *Broker) usedSources(q *catalog.Queue) {
	for x := range b.view().IdleSources(q) {
		b.used(x)
	}
}

// usedEnds notes the use of what a binding joins that is made once more. The
// catalog itself notes that of one which is new.
func (b *Broker) usedEnds(m *logpb.Bind) {
	v := b.view()
	if x, ok := v.Exchange(m.Vhost, m.Source); ok {
		b.used(x)
	}
	if x, ok := v.Exchange(m.Vhost, m.Destination); ok && m.ToExchange {
		b.used(x)
	}
	if q, ok := v.Queue(m.Vhost, m.Destination); ok && !m.ToExchange {
		b.usedSources(q)
	}
}

// noteUses tells the catalog of uses until there are none left.
func (b *Broker) noteUses() {
	ctx, cancel := b.whileOpen()
	defer cancel()
	u := &b.uses
	done := false
	defer func() {
		if !done {
			u.rest() // a panic: the next use begins again
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
		if _, err := b.config.Catalog.Note(ctx, touches...); err != nil {
			b.slog.Debug("use of exchanges not noted", "exchanges", len(touches), "error", err)
		}
		cancel()
	}
}

// rest notes that nobody tells the catalog of uses any more.
func (u *uses) rest() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running, u.noting = false, nil
}

// TouchExchange is the command that notes the use of an exchange.
func TouchExchange(vhost, name string, at fsm.Time) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_TouchExchange{
		TouchExchange: &logpb.TouchExchange{Vhost: vhost, Name: name, At: int64(at)},
	}}
}

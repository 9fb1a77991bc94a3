package fsmtest

import (
	"github.com/quorate/quorate/proto/logpb"
)

// lockTerms draws what a consumer wants of locks.
func (g *generator) lockTerms(c *logpb.Consume) {
	c.Lock = uint64(of(g, "own lock", 500, 1000, 0, 1, 1<<40))
	c.MaxLock = uint64(of(g, "own max lock", 0, 0, 1500, 1))
	c.LockAutoRenew = uint64(of(g, "auto-renew", 0, 0, 1200, 5000, 1))
	c.LockHead = g.oneIn("lock head", 3)
	c.LockDetachGrace = uint64(of(g, "grace", 0, 800, 0, 5000, 1))
}

// owing draws a consumer that holds something or has lost it, and tells its
// deliveries; nil: there is none.
func (g *generator) owing() (*consumer, []uint64) {
	var owing []*consumer
	for _, c := range g.q.holders() {
		if len(g.q.held(c)) > 0 || len(c.timedOut) > 0 || len(c.lost) > 0 {
			owing = append(owing, c)
		}
	}
	if len(owing) == 0 {
		return nil, nil
	}
	c := owing[g.n("holder", len(owing))]
	var ids []uint64
	for _, x := range g.q.held(c) {
		ids = append(ids, x.delivery)
	}
	for _, l := range c.timedOut {
		ids = append(ids, l.id)
	}
	return c, append(ids, c.lost...)
}

// forHolder sends a command about what c holds: as its own session, or as
// another one, or nobody, that names it.
func (g *generator) forHolder(c *consumer, holder **logpb.Session, cmd *logpb.Command) *logpb.Command {
	if !g.q.isDetached(c) && !g.oneIn("for another", 8) {
		return g.owner(c.id.Session).send(cmd)
	}
	*holder = c.id.Session.Proto()
	if g.oneIn("for nobody", 3) {
		return cmd
	}
	return g.client().send(cmd)
}

// renew draws a renewal of something that is held, or was.
func (g *generator) renew() *logpb.Command {
	c, ids := g.owing()
	if c == nil {
		return g.enqueue()
	}
	r := &logpb.Renew{Consumer: c.id.Number, Duration: uint64(of(g, "duration", 0, 0, 100, 1, 3000, 1<<41))}
	for range g.n("ranges", 3) {
		r.Ranges = append(r.Ranges, ids[g.n("first", len(ids))], 1+uint64(g.n("length", 4)))
	}
	r.Numbers = g.numbers()
	return g.forHolder(c, &r.Holder, &logpb.Command{Kind: logpb.Command_RENEW, Renew: r})
}

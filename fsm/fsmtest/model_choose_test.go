package fsmtest

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// chooses is what a consumer with a selector has.
type chooses struct {
	selector string
	last     uint64 // Choose
	searched uint64 // all that was ready up to this entry
	drain    uint64 // since this entry; 0: none
}

// choose hands to a consumer with a selector what is named for it.
func (q *model) choose(c *logpb.Choose) fsm.Result {
	if q.version < 3 || len(c.GetMessages()) > 256 || !slices.IsSorted(c.GetMessages()) {
		return fsm.Result{Code: fsm.Invalid}
	}
	have := q.consumer(fsm.ConsumerID{Session: fsm.SessionFrom(c.GetSession()), Number: c.GetConsumer()})
	if have == nil || have.cancelled || have.selector == "" || q.isDown(have.id.Session) {
		return fsm.Result{Code: fsm.NotFound}
	}
	if c.Number != have.last+1 {
		return fsm.Result{Code: fsm.Rejected}
	}
	have.last++
	have.searched = max(have.searched, c.Searched)
	if q.config.Forward || q.ending() != nil {
		return fsm.Result{}
	}
	for _, n := range c.Messages {
		i := slices.IndexFunc(q.messages, func(x *message) bool { return x.seq == n && (x.place == ready || x.place == returned) })
		if i < 0 || !q.mayHave(q.messages[i], have.minTTL) || q.messages[i].expireAt != 0 && q.messages[i].expireAt <= q.clock {
			continue
		}
		if !q.hasCredit(have) || q.handOuts == 0 {
			break
		}
		q.handOuts--
		q.checkOut(q.messages[i], have)
	}
	return fsm.Result{}
}

// choose draws what is chosen for a consumer with a selector: mostly the next choice, of what is ready.
func (g *generator) choose() *logpb.Command {
	all := slices.DeleteFunc(slices.Clone(g.q.consumers), func(c *consumer) bool { return c.selector == "" && !g.oneIn("chooses not", 20) })
	if len(all) == 0 {
		return g.credit()
	}
	of := all[g.n("who chooses", len(all))]
	c := &logpb.Choose{Session: of.id.Session.Proto(), Consumer: of.id.Number, Number: of.last + 1}
	if g.oneIn("out of turn", 10) {
		c.Number += uint64(g.n("turn", 3)) - 1
	}
	for _, x := range g.q.messages {
		if !g.oneIn("not chosen", 3) {
			c.Messages = append(c.Messages, x.seq)
		}
	}
	if g.oneIn("searched", 2) {
		c.Searched = g.meta.Index - min(g.meta.Index, uint64(g.n("searched up to", 4)))
	}
	return &logpb.Command{Kind: logpb.Command_CHOOSE, Choose: c}
}

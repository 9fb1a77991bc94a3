package fsmtest

import "github.com/quorate/quorate/proto/logpb"

// taste is what most settings of a history have, so that it shows.
type taste struct {
	ordered bool // they hand out what expires first
	window  bool // they have a window against duplicates
	least   bool // consumers ask for a least TTL
	groups  bool // they have groups
	parks   bool // they park what fails too often
	credit  bool // consumers are in credit mode
	pauses  bool // they are paused and resumed
	unique  bool // they go by keys
	limits  bool // they limit the prefetch of consumers
	loads   bool // the least loaded consumer is served first
	takes   bool // messages are taken
	tallies bool // they count by the value of a header
}

func (x *taste) draw(g *generator, groups bool) {
	x.ordered = g.oneIn("ordered", 5)
	x.window = g.oneIn("window", 5)
	x.least = g.oneIn("least", 3)
	x.parks = g.oneIn("parks", 4)
	if x.credit = g.oneIn("credit", 4); x.credit {
		g.meta.Version = newestVersion
	}
	if x.pauses = g.oneIn("pauses", 4); x.pauses {
		g.meta.Version = newestVersion
	}
	if x.unique = g.oneIn("unique", 4); x.unique {
		g.meta.Version = newestVersion
	}
	x.limits, x.loads = g.oneIn("limits", 4), g.oneIn("loads", 3)
	if x.takes = g.oneIn("takes", 4); x.takes {
		g.meta.Version = newestVersion
	}
	x.tallies = g.oneIn("tallies", 3)
	if x.groups = groups || g.oneIn("groups", 3); x.groups {
		x.ordered, x.least = false, false
	}
}

func (x *taste) settings(g *generator, c *logpb.QueueConfig) {
	if x.window != g.oneIn("other window", 20) {
		c.DedupWindow = uint64(of(g, "dedup window", 20_000, 1000, 100, 1))
	}
	c.DeadlineOrder = x.ordered != g.oneIn("other order", 20) && !x.groups
	if x.parks != g.oneIn("other limit", 12) {
		c.DeadLetter, c.DeliveryLimitSet, c.DeliveryLimit = false, false, int64(of(g, "low limit", 0, 0, 1))
	}
	c.Paused = g.oneIn("paused", 30) || x.pauses && g.oneIn("paused by policy", 8)
	c.Unique = x.unique != g.oneIn("other uniqueness", 20)
	if x.limits != g.oneIn("other limit of prefetch", 20) {
		c.MaxPrefetch = of[uint32](g, "most", 1, 2, 5, 100)
	}
	if x.loads != g.oneIn("other order of consumers", 12) {
		c.Dispatch = logpb.QueueConfig_LEAST_LOADED
	}
	x.groupSettings(g, c)
}

// consumer gives a consumer what only such queues look at. The values are around
// those of the TTLs.
func (x *taste) consumer(g *generator, c *logpb.Consume) {
	if !x.least || g.oneIn("takes all", 3) {
		return
	}
	c.MinTtl = uint64(of(g, "least TTL", 1, 5, 10, 50, 100, 1000, 2000))
	if g.oneIn("odd TTL", 4) {
		c.MinTtl = uint64(1 + g.n("any TTL", 20))
	}
}

// message gives a message what only such queues look at.
func (x *taste) message(g *generator, e *logpb.Enqueue) {
	if x.window && g.n("with id", 3) != 2 {
		e.MessageId = of(g, "message id", "a", "b", "c", "d", "e")
	}
	if x.unique && g.n("with key", 4) != 3 {
		e.UniqueKey = []byte("the sixteenth " + of(g, "key", "a ", "b ", "c ", "d ", "", "e"))
	}
	if x.tallies && !g.oneIn("no tally", 5) {
		e.Tally = of(g, "tally", "a", "b", "c", "d")
	}
	if x.groups && g.n("with group", 4) != 3 {
		e.GroupId = of(g, "group", groupIDs...)
	}
}

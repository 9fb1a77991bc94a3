package fsmtest

import (
	"fmt"
	"strings"

	"github.com/quorate/quorate/proto/logpb"
)

// labelled gives a message ids, some of which are too long to be kept.
func (g *generator) labelled(e *logpb.Enqueue) {
	if g.oneIn("with ids", 2) {
		e.MessageId = fmt.Sprint("m", g.meta.Index, g.meta.Offset)
		e.CorrelationId = strings.Repeat("c", g.n("correlation id", 3)*70)
	}
}

// fewEnds bounds the record of ends.
func (g *generator) fewEnds(c *logpb.QueueConfig) {
	if g.oneIn("few ends", 3) {
		c.AuditMaxPlusOne = uint64(of(g, "ends", 3, 1, 2, 9, 1<<40))
	}
}

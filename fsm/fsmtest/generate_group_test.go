package fsmtest

import (
	"bytes"

	"github.com/quorate/quorate/proto/logpb"
)

// groupIDs are the groups that there are.
var groupIDs = []string{"a", "b", "c"}

// groupSettings draws what a queue does with groups.
func (x *taste) groupSettings(g *generator, c *logpb.QueueConfig) {
	if !x.groups || g.oneIn("no groups", 8) {
		return
	}
	c.Groups = of(g, "groups by", logpb.QueueConfig_BY_HEADER, logpb.QueueConfig_BY_HEADER, logpb.QueueConfig_BY_APP_ID)
	c.GroupRequired = g.oneIn("required", 8)
	c.GroupExpiry = g.oneIn("together", 2)
	c.GroupLinger = uint64(of(g, "linger", 0, 0, 500, 5000, 1))
	c.GroupStateTtl = uint64(of(g, "state ttl", 0, 1000, 100, 1))
}

// groupTerms draws which groups a consumer takes.
func (x *taste) groupTerms(g *generator, c *logpb.Consume) {
	if x.least || !x.groups && !g.oneIn("of groups anyway", 40) {
		return
	}
	c.MaxGroups = uint32(of(g, "max groups", 0, 1, 2, 3))
	if g.oneIn("only one", 5) {
		c.GroupId = of(g, "its group", groupIDs...)
	}
	c.GroupHold = g.taste.credit && g.oneIn("holds", 2)
}

// group draws a request about a group, mostly by its holder.
func (g *generator) group() *logpb.Command {
	r := &logpb.Group{
		Action: of(g, "action", logpb.Group_SET_STATE, logpb.Group_RENEW, logpb.Group_RELEASE, logpb.Group_GET_STATE, logpb.Group_SET_STATE),
		Id:     of(g, "group", groupIDs...),
	}
	if r.Action == logpb.Group_SET_STATE {
		r.State = bytes.Repeat([]byte("s"), of(g, "state", 0, 5, 1, 60, 300))
	}
	c := &logpb.Command{Kind: logpb.Command_GROUP, Group: r}
	cl := g.client()
	if len(g.q.groups) > 0 && !g.oneIn("any group", 8) {
		x := g.q.groups[g.n("which group", len(g.q.groups))]
		if r.Id = x.id; x.holder != nil {
			r.Consumer = x.holder.id.Number
			if !g.q.isDown(x.holder.id.Session) {
				cl = g.owner(x.holder.id.Session)
			}
		}
	}
	switch {
	case g.oneIn("no id", 30):
		r.Id = ""
	case g.oneIn("another consumer", 10):
		r.Consumer = uint64(g.n("consumer", int(cl.consumers)+2))
	}
	if g.oneIn("outside of the stream", 16) {
		c.Session = cl.id.Proto()
		return c
	}
	return cl.send(c)
}

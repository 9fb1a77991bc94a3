package session

import (
	"context"
	"encoding/base64"

	"github.com/quorate/quorate/cluster/explain"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/peerpb"
)

// maxGroups bounds a page of groups.
const maxGroups = 1000

// GroupsAfter asks a queue's leader for up to limit groups of its messages with an id above after,
// by id.
func (x *Inspector) GroupsAfter(ctx context.Context, q *catalog.Queue, after string, limit int) (page api.GroupPage, err error) {
	r := &peerpb.GroupsRequest{Group: uint32(q.Group), Queue: uint64(q.ID), After: []byte(after), Limit: uint32(limit)}
	return page, x.askText(ctx, q, statsTimeout, kindGroups, r, func() *peerpb.TextReply { return x.messageGroups(r) }, &page)
}

// messageGroups reads the groups of a led queue, once nothing in it is due.
func (x *Inspector) messageGroups(r *peerpb.GroupsRequest) *peerpb.TextReply {
	g := x.ledGroup(fsm.GroupID(r.Group), fsm.QueueID(r.Queue))
	if g == nil || g.Barrier(statsTimeout) != nil || g.Expire(statsTimeout) != nil {
		return &peerpb.TextReply{}
	}
	var list []queue.Group
	limit := min(int(r.Limit), maxGroups)
	g.View(func(m *queue.Machine) { list = queue.GroupsOf(m).After(string(r.After), limit+1) })
	now, names, page := g.Now(), x.view(), api.GroupPage{Items: []api.Group{}}
	if len(list) > limit {
		list = list[:limit]
		page.Next = base64.RawURLEncoding.EncodeToString([]byte(list[limit-1].ID))
	}
	for i := range list {
		page.Items = append(page.Items, groupFrom(names, &list[i], now))
	}
	return replyOf(page)
}

// groupFrom describes a group in the terms of the API.
func groupFrom(names explain.Names, of *queue.Group, now fsm.Time) api.Group {
	g := api.Group{
		ID: of.ID, Messages: of.Messages + of.CheckedOut, Unacknowledged: of.CheckedOut, OldestAt: int64(of.OldestAt),
		HasState: of.StateBytes > 0, StateBytes: of.StateBytes, StateUntil: int64(of.StateUntil),
	}
	if of.Held {
		g.Held, g.ConsumerTag, g.Session = true, of.Tag, explain.SessionName(names, of.Holder.Session)
	}
	if of.LockedUntil != 0 {
		g.LockedUntil, g.Remaining = int64(of.LockedUntil), int64(max(of.LockedUntil-now, 0))
	}
	return g
}

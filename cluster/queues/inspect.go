package queues

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/deadletter"
	"github.com/quorate/quorate/cluster/expiry"
	"github.com/quorate/quorate/cluster/explain"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/peerpb"
)

// statsTimeout bounds how long the leader of a queue may take to answer.
const statsTimeout = 5 * time.Second

// Inspector reports on queues: how many messages they have, and which. It asks their leaders, and
// answers for the queues that this node leads. It changes nothing, except that a peek counts as use
// of a queue that expires when idle.
type Inspector struct {
	node       *self.Node
	routes     *stream.Table
	leaders    *Leaders
	uses       *expiry.Uses
	properties deadletter.Properties
	peeks      peeks
	explaining sync.Mutex // one at a time: it replays a log
}

// listen registers the handlers.
func (x *Inspector) listen() {
	peer.HandleAsk(x.node.Mesh, self.KindStats, x.stats)
	peer.HandleAsk(x.node.Mesh, self.KindLeads, x.led)
	peer.HandleAsk(x.node.Mesh, self.KindPeek, x.peek)
	peer.HandleAsk(x.node.Mesh, self.KindBrowse, x.browse)
	peer.HandleAsk(x.node.Mesh, self.KindSelect, x.selectReady)
	peer.HandleAsk(x.node.Mesh, self.KindScheduled, x.scheduled)
	peer.HandleAsk(x.node.Mesh, self.KindEnds, x.ends)
	peer.HandleAsk(x.node.Mesh, self.KindExplain, x.explain)
	peer.HandleAsk(x.node.Mesh, self.KindHash, x.hash)
	peer.HandleAsk(x.node.Mesh, self.KindGroups, x.messageGroups)
}

// Count asks the leader for the number of messages and consumers of a queue. gone: the queue has
// ended.
func (x *Inspector) Count(ctx context.Context, q *catalog.Queue) (info fsm.QueueInfo, gone bool, err error) {
	ended := false
	gone, err = x.leaders.Ask(ctx, q, func(leader string) bool {
		r := x.askStats(x.routes.Route(q), leader)
		if r.Leader {
			info, ended = fsm.QueueInfo{Name: q.Name, Ready: r.Ready, Consumers: r.Consumers}, r.State == stateGone
		}
		return r.Leader
	})
	return info, gone || ended, err
}

// ExpireDue has the leader of a queue propose ticks until nothing in it is due.
func (x *Inspector) ExpireDue(ctx context.Context, q *catalog.Queue) error {
	_, gone, err := x.Count(ctx, q)
	if gone && err == nil {
		return NoQueue(q)
	}
	return err
}

// askStats asks one node for a queue's stats. It fails if the node does not lead the queue.
func (x *Inspector) askStats(of *stream.Route, node string) *peerpb.StatsReply {
	req := &peerpb.StatsRequest{Group: uint32(of.Group()), Queue: uint64(of.Queue())}
	r, _ := self.Ask(context.Background(), x.node, node, statsTimeout, self.KindStats, req, func() *peerpb.StatsReply { return x.stats(req) })
	return r
}

// stateGone is the value of StatsReply.State for a queue that has ended.
const stateGone = "gone"

// stats reads the stats of a led queue once nothing in it is due.
func (x *Inspector) stats(m *peerpb.StatsRequest) *peerpb.StatsReply {
	g := x.node.LedGroup(fsm.GroupID(m.Group), fsm.QueueID(m.Queue))
	if g == nil || g.Expire(statsTimeout) != nil {
		return &peerpb.StatsReply{}
	}
	r := &peerpb.StatsReply{Leader: true, Index: g.Leading()}
	g.View(func(m *queue.Machine) {
		s := m.Stats()
		r.Ready, r.Unacknowledged = s.Ready.Messages, s.Unacknowledged.Messages
		r.Consumers, r.Outbox = uint64(s.Consumers), s.Outbox.Messages
		if s.Phase != queue.Active {
			r.State = stateGone
		}
	})
	if g.Leading() == 0 {
		return &peerpb.StatsReply{} // it could not be read
	}
	return r
}

// Leads asks a node which queues it leads, and returns the term of each; 0: it does not lead it.
func (x *Inspector) Leads(of []*stream.Route, node string) (terms []uint64) {
	req := &peerpb.LeadsRequest{}
	for _, r := range of {
		req.Queues = append(req.Queues, uint64(r.Queue()))
	}
	answer, err := self.Ask(context.Background(), x.node, node, statsTimeout, self.KindLeads, req, func() *peerpb.LeadsReply { return x.led(req) })
	if !errors.Is(err, peer.ErrNoHandler) {
		return answer.Terms[:min(len(of), len(answer.Terms))]
	}
	for _, r := range of { // a node of an earlier version
		terms = append(terms, x.askStats(r, node).Index)
	}
	return terms
}

// led says in which terms this node leads queues.
func (x *Inspector) led(m *peerpb.LeadsRequest) *peerpb.LeadsReply {
	answer := &peerpb.LeadsReply{Terms: make([]uint64, len(m.Queues))}
	for i, id := range m.Queues {
		q, ok := x.node.View().QueueByID(fsm.QueueID(id))
		if !ok {
			continue
		}
		if g := x.node.LedGroup(q.Group, q.ID); g != nil {
			answer.Terms[i] = g.Leading()
		}
	}
	return answer
}

const (
	// maxEnds bounds a page of records.
	maxEnds = 1000
	// explainTimeout bounds how long a leader may take to replay its log.
	explainTimeout = 30 * time.Second
	// replayAttempts is how often a replay is tried while snapshots are replaced.
	replayAttempts = 5
)

// Ends asks a queue's leader for a page of its records of messages that have ended.
func (x *Inspector) Ends(ctx context.Context, q *catalog.Queue, r *peerpb.EndsRequest) (page api.EndedPage, err error) {
	r.Group, r.Queue = uint32(q.Group), uint64(q.ID)
	return page, x.askText(ctx, q, statsTimeout, self.KindEnds, r, func() *peerpb.TextReply { return x.ends(r) }, &page)
}

// Explain asks a queue's leader for the lives of messages.
func (x *Inspector) Explain(ctx context.Context, q *catalog.Queue, r *peerpb.ExplainRequest) (lives api.Explanation, err error) {
	r.Group, r.Queue = uint32(q.Group), uint64(q.ID)
	return lives, x.askText(ctx, q, explainTimeout, self.KindExplain, r, func() *peerpb.TextReply { return x.explain(r) }, &lives)
}

// askText asks the leader of a queue, and decodes its answer.
func (x *Inspector) askText(ctx context.Context, q *catalog.Queue, wait time.Duration, kind peer.Kind, r proto.Message, here func() *peerpb.TextReply, out any) error {
	t, err := askLeader(ctx, x.leaders, q, wait, kind, r, here)
	switch {
	case err != nil:
		return err
	case t.Error != "":
		return fsm.Refuse(fsm.Unavailable, t.Error)
	}
	return json.Unmarshal(t.Json, out)
}

// ends reads records of a led queue, once nothing in it is due.
func (x *Inspector) ends(r *peerpb.EndsRequest) *peerpb.TextReply {
	g := x.node.LedGroup(fsm.GroupID(r.Group), fsm.QueueID(r.Queue))
	if g == nil || g.Barrier(statsTimeout) != nil || g.Expire(statsTimeout) != nil {
		return &peerpb.TextReply{}
	}
	limit, view := min(int(r.Limit), maxEnds), x.node.View()
	page, id := api.EndedPage{Items: []api.Ended{}}, fsm.Label([]byte(r.MessageId))
	g.View(func(m *queue.Machine) {
		queue.EndsOf(m).From(r.After+1, func(e queue.End) bool {
			if id != "" && e.MessageID != id || r.Reason != "" && queue.ReasonName(e.Reason) != r.Reason || int64(e.At) < r.Since {
				return true
			}
			if len(page.Items) == limit {
				page.Next = page.Items[limit-1].Number
				return false
			}
			page.Items = append(page.Items, explain.Ended(view, &e))
			return true
		})
	})
	return replyOf(page)
}

// replyOf is a leader's answer.
func replyOf(v any) *peerpb.TextReply {
	text, err := json.Marshal(v)
	if err != nil {
		return &peerpb.TextReply{Leader: true, Error: err.Error()}
	}
	return &peerpb.TextReply{Leader: true, Json: text}
}

// explain replays the log of a led queue. The entry committed first ensures that it
// holds everything that anybody has been told of.
func (x *Inspector) explain(r *peerpb.ExplainRequest) *peerpb.TextReply {
	q, ok := x.node.View().QueueByID(fsm.QueueID(r.Queue))
	g := x.node.LedGroup(fsm.GroupID(r.Group), fsm.QueueID(r.Queue))
	if !ok || g == nil || g.Barrier(statsTimeout) != nil {
		return &peerpb.TextReply{}
	}
	x.explaining.Lock()
	defer x.explaining.Unlock()
	wanted := explain.Wanted{MessageID: r.MessageId, Number: r.Message}
	for attempt := 1; ; attempt++ {
		t := explain.New(q, fsm.Supported.Newest, wanted, x.node.View())
		err := g.Replay(t)
		if err == nil {
			return replyOf(t.Explanation(q, x.node.Name()))
		}
		if errors.Is(err, group.ErrNoHistory) || attempt == replayAttempts {
			return &peerpb.TextReply{Leader: true, Error: err.Error()}
		}
	}
}

// maxGroups bounds a page of groups.
const maxGroups = 1000

// GroupsAfter asks a queue's leader for up to limit groups of its messages with an id above after,
// by id.
func (x *Inspector) GroupsAfter(ctx context.Context, q *catalog.Queue, after string, limit int) (page api.GroupPage, err error) {
	r := &peerpb.GroupsRequest{Group: uint32(q.Group), Queue: uint64(q.ID), After: []byte(after), Limit: uint32(limit)}
	return page, x.askText(ctx, q, statsTimeout, self.KindGroups, r, func() *peerpb.TextReply { return x.messageGroups(r) }, &page)
}

// messageGroups reads the groups of a led queue, once nothing in it is due.
func (x *Inspector) messageGroups(r *peerpb.GroupsRequest) *peerpb.TextReply {
	g := x.node.LedGroup(fsm.GroupID(r.Group), fsm.QueueID(r.Queue))
	if g == nil || g.Barrier(statsTimeout) != nil || g.Expire(statsTimeout) != nil {
		return &peerpb.TextReply{}
	}
	var list []queue.Group
	limit := min(int(r.Limit), maxGroups)
	g.View(func(m *queue.Machine) { list = queue.GroupsOf(m).After(string(r.After), limit+1) })
	now, names, page := g.Now(), x.node.View(), api.GroupPage{Items: []api.Group{}}
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
		HasState: of.StateBytes > 0, StateBytes: of.StateBytes, StateSetAt: int64(of.StateSet), StateUntil: int64(of.StateUntil),
	}
	if of.Held {
		g.Held, g.ConsumerTag, g.Session = true, of.Tag, explain.SessionName(names, of.Holder.Session)
	}
	if of.LockedUntil != 0 {
		g.LockedUntil, g.Remaining = int64(of.LockedUntil), int64(max(of.LockedUntil-now, 0))
	}
	return g
}

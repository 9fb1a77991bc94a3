package session

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/explain"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/peerpb"
)

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
	return page, x.askText(ctx, q, statsTimeout, kindEnds, r, func() *peerpb.TextReply { return x.ends(r) }, &page)
}

// Explain asks a queue's leader for the lives of messages.
func (x *Inspector) Explain(ctx context.Context, q *catalog.Queue, r *peerpb.ExplainRequest) (lives api.Explanation, err error) {
	r.Group, r.Queue = uint32(q.Group), uint64(q.ID)
	return lives, x.askText(ctx, q, explainTimeout, kindExplain, r, func() *peerpb.TextReply { return x.explain(r) }, &lives)
}

// askText asks the leader of a queue, which may be this node, and decodes its answer.
func (x *Inspector) askText(ctx context.Context, q *catalog.Queue, wait time.Duration, kind peer.Kind, r proto.Message, here func() *peerpb.TextReply, out any) error {
	var t *peerpb.TextReply
	gone, err := x.available.askLeader(ctx, q, func(leader string) bool {
		t, _ = ask(ctx, x.node, leader, wait, kind, r, here)
		return t.Leader
	})
	switch {
	case err != nil:
		return err
	case gone:
		return noQueue(q)
	case t.Error != "":
		return fsm.Refuse(fsm.Unavailable, t.Error)
	}
	return json.Unmarshal(t.Json, out)
}

// ends reads records of a led queue, once nothing in it is due.
func (x *Inspector) ends(r *peerpb.EndsRequest) *peerpb.TextReply {
	g := x.ledGroup(fsm.GroupID(r.Group), fsm.QueueID(r.Queue))
	if g == nil || g.Barrier(statsTimeout) != nil || g.Expire(statsTimeout) != nil {
		return &peerpb.TextReply{}
	}
	limit, view := min(int(r.Limit), maxEnds), x.view()
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
	q, ok := x.view().QueueByID(fsm.QueueID(r.Queue))
	g := x.ledGroup(fsm.GroupID(r.Group), fsm.QueueID(r.Queue))
	if !ok || g == nil || g.Barrier(statsTimeout) != nil {
		return &peerpb.TextReply{}
	}
	x.explaining.Lock()
	defer x.explaining.Unlock()
	wanted := explain.Wanted{MessageID: r.MessageId, Number: r.Message}
	for attempt := 1; ; attempt++ {
		t := explain.New(q, fsm.Supported.Newest, wanted, x.view())
		err := g.Replay(t)
		if err == nil {
			return replyOf(t.Explanation(q, x.name))
		}
		if errors.Is(err, group.ErrNoHistory) || attempt == replayAttempts {
			return &peerpb.TextReply{Leader: true, Error: err.Error()}
		}
	}
}

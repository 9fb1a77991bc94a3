package queues

import (
	"context"
	"errors"

	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/peerpb"
)

// maxBrowsed bounds the messages of one answer to a browser.
const maxBrowsed = 256

// Browsed is what a queue has for a browser.
type Browsed struct {
	// Messages are ready, ascend by number, and are all that are ready with numbers from where the browser
	// is up to Seen.
	Messages []Peeked
	Seen     uint64
	Newest   uint64 // the highest number that a message of the queue has had
	Ready    uint64 // messages
}

// ErrNoLeader is returned by Browse while nobody leads the queue, as far as this node knows.
var ErrNoLeader = errors.New("the queue has no leader")

// Browse asks the leader of a queue for ready messages with numbers above after, at most limit. 0 asks for
// the counts alone. It does not wait for a leader. Nothing about it is in the queue's log, and it is no use of the
// queue.
func (x *Inspector) Browse(ctx context.Context, q *catalog.Queue, after uint64, limit int) (b Browsed, err error) {
	to := x.routes.Route(q)
	leader, _, _ := to.Leader()
	if leader == "" {
		to.Want()
		if stream.IsOver(x.node.View(), q.ID) {
			return b, NoQueue(q)
		}
		return b, ErrNoLeader
	}
	req := &peerpb.BrowseRequest{Group: uint32(q.Group), Queue: uint64(q.ID), After: after, Limit: uint32(limit)}
	r, err := self.Ask(ctx, x.node, leader, statsTimeout, self.KindBrowse, req, func() *peerpb.BrowseReply { return x.browse(req) })
	switch {
	case err != nil:
		return b, err
	case !r.Leader:
		return b, ErrNoLeader
	case r.Gone:
		return b, NoQueue(q)
	}
	b = Browsed{Seen: r.Seen, Newest: r.Newest, Ready: r.Ready}
	b.Messages, err = peekedFrom(q, r.Messages)
	return b, err
}

// browse reads a led queue as it is here. It may be led by another node by now: what is applied here is
// committed, so each message has the number that the other one gives it, and none is missed.
func (x *Inspector) browse(req *peerpb.BrowseRequest) *peerpb.BrowseReply {
	r := &peerpb.BrowseReply{}
	q, ok := x.node.View().QueueByID(fsm.QueueID(req.Queue))
	if !ok {
		return r
	}
	g := x.node.LedGroup(q.Group, q.ID)
	if g == nil {
		return r
	}
	b := queue.Browse{After: req.After, Limit: min(int(req.Limit), maxBrowsed), Now: g.Now()}
	g.View(func(m *queue.Machine) {
		r.Gone = m.Stats().Phase != queue.Active
		b.Scan(m)
	})
	r.Leader, r.Seen, r.Newest, r.Ready = true, b.Seen, b.Newest, b.Ready
	bytes, list := 0, b.Found
	for i := range list {
		if bytes += int(list[i].Ref.Size); bytes > peekBytes && i > 0 {
			r.Seen = list[i].Seq - 1
			break
		}
		if payload, err := g.Payload(list[i].Ref); err == nil { // otherwise it has gone meanwhile
			r.Messages = append(r.Messages, peeked(&list[i], payload))
		}
	}
	return r
}

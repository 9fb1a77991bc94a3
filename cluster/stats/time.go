package stats

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/peerpb"
)

// countedFor is how long a count of what comes next is good for all who ask: a page that many look at
// costs the leaders no more than one that nobody reloads.
const countedFor = 3 * time.Second

// maxSteps bounds the steps of a count for a queue, see queue.AheadBy.
const maxSteps = 16384

// aheadWithin are the times from now on, in ms, for which is counted what comes next: those of
// expiringWithin up to a day.
var aheadWithin = expiringWithin[:slices.Index(expiringWithin, uint64((24*time.Hour).Milliseconds()))+1]

// Ahead is what comes next in the queues of a cluster.
type Ahead struct {
	At     fsm.Time      // when it was counted
	Within []uint64      // ms from then on, ascending; the last one is a day
	View   *catalog.View // of the queues that there were
	// Of is what the leaders of queues say. Queues without a leader that answers are missing.
	Of map[fsm.QueueID]*peerpb.QueueTime
}

// counted is the last count.
type counted struct {
	mu   sync.Mutex
	last *Ahead // nil: there was none
	good time.Time
}

// get returns the last count while it is good; otherwise it counts, once for all who ask meanwhile.
func (c *counted) get(count func() *Ahead) *Ahead {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil || !time.Now().Before(c.good) {
		c.last = count()
		c.good = time.Now().Add(countedFor)
	}
	return c.last
}

// Ahead counts what comes next in all queues, or returns a count that is at most countedFor old. The
// answer belongs to all who have asked.
func (q *Queues) Ahead(ctx context.Context) *Ahead {
	return q.ahead.get(func() *Ahead { return q.countAhead(context.WithoutCancel(ctx)) }) // it is for others, too
}

func (q *Queues) countAhead(ctx context.Context) *Ahead {
	req := &peerpb.TimeRequest{Within: aheadWithin}
	all := &Ahead{At: q.c.Clock(), Within: aheadWithin, View: q.c.Catalog.View(), Of: map[fsm.QueueID]*peerpb.QueueTime{}}
	for _, reply := range AskAll(ctx, q.nodes, Question[*peerpb.TimeReply]{
		Doing: "count what comes next", Wait: queuesWait,
		Here: func() *peerpb.TimeReply { return q.answerTime(req) },
		Ask: func(ctx context.Context, node string) (*peerpb.TimeReply, error) {
			return peer.Ask[peerpb.TimeReply](ctx, q.nodes.Mesh, node, q.c.TimeKind, req)
		},
	}).Of {
		for _, x := range reply.Queues {
			all.Of[fsm.QueueID(x.Queue)] = x
		}
	}
	return all
}

// answerTime counts for the queues that this node leads. Nothing that is due is done first: it is counted as
// due at once.
func (q *Queues) answerTime(req *peerpb.TimeRequest) *peerpb.TimeReply {
	r := &peerpb.TimeReply{}
	for _, g := range q.led(nil) {
		g.View(func(m *queue.Machine) {
			if m.Stats().Phase == queue.Active {
				r.Queues = append(r.Queues, timeOf(m, max(q.c.Clock(), m.Clock()), req.Within))
			}
		})
	}
	return r
}

// timeOf says what comes next in a queue within times from now on.
func timeOf(m *queue.Machine, now fsm.Time, within []uint64) *peerpb.QueueTime {
	a := queue.AheadBy(m, instantsOf(now, within), maxSteps)
	return &peerpb.QueueTime{
		Queue: uint64(m.ID()), Expire: some(a.Expire), Fire: some(a.Fire), TimeOut: some(a.TimeOut), Unlock: some(a.Unlock), Retry: some(a.Retry), Return: some(a.Return),
		DeletedAt: int64(m.Outlook().LeaseEnd), NextAt: int64(m.NextDeadline()), DeadLetters: m.Config().GetDeadLetter(), AtLeast: a.AtLeast,
	}
}

// some is a list of counts that only grow, if one of them is not 0.
func some(counts []uint64) []uint64 {
	if len(counts) == 0 || counts[len(counts)-1] == 0 {
		return nil
	}
	return counts
}

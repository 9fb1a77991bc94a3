package jepsen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/nemesis"
	"github.com/quorate/quorate/jepsen/workload"
)

// endReader brings the queues' records of ends into the history of a play.
type endReader struct {
	r     *run
	p     *play
	after map[string]uint64 // queue → the last record that was read
}

// end is a record of a message that has ended, as the API has it.
type end struct {
	Number        uint64 `json:"number"`
	Reason        string `json:"reason"`
	CorrelationID string `json:"correlation_id"` // the key of the attempt
	AcquiredCount int    `json:"acquired_count"`
	Disposition   string `json:"disposition"`
}

// endsPage is how many records one call returns at most, endsEvery how often they are read:
// a queue remembers many more than end meanwhile.
const (
	endsPage  = 1000
	endsEvery = 5 * time.Second
)

// follow reads until ctx ends.
func (e *endReader) follow(ctx context.Context) error {
	for ctx.Err() == nil {
		workload.Wait(ctx, endsEvery)
		_ = e.readAll(ctx) // a node may be down; the last one that reads has to succeed
	}
	return nil
}

// readAll reads what has ended in all queues since it was called last.
func (e *endReader) readAll(ctx context.Context) error {
	for _, q := range e.p.queues {
		for more := true; more; {
			items, err := e.page(ctx, q.Name)
			if err != nil {
				return err
			}
			for _, i := range items {
				e.after[q.Name] = i.Number
				if key, err := strconv.ParseUint(i.CorrelationID, 10, 64); err == nil {
					e.p.Did(history.Op{Kind: history.Ended, Client: "the end", Queue: q.Name, Key: key, Turn: i.AcquiredCount, Why: i.Reason + " " + i.Disposition, Return: e.p.Now()})
				}
			}
			more = len(items) == endsPage
		}
	}
	return nil
}

// page reads records of a queue through any node.
func (e *endReader) page(ctx context.Context, queue string) ([]end, error) {
	var page struct {
		Items []end `json:"items"`
	}
	path := fmt.Sprintf("/api/queues/%%2F/%s/deaths?limit=%d&after=%d", url.PathEscape(queue), endsPage, e.after[queue])
	var err error
	for _, n := range e.r.Nodes {
		if err = n.Call(ctx, http.MethodGet, path, nil, &page); err == nil {
			break
		}
	}
	return page.Items, err
}

// explainMissed prints what the queues remember of messages that are missing: their records
// of ends, and their lives as far as the logs have them.
func (e *endReader) explainMissed() {
	const most = 5
	missed, _ := rndLives.Missed(e.p.History)
	for _, a := range missed[:min(most, len(missed))] {
		for _, o := range e.p.Ops {
			if o.Key == a.Key {
				e.r.Logf("key %d: %+v", a.Key, o)
			}
		}
		id := a.Key
		if rndLives.Once[a.Queue] != 0 {
			id = a.Message
		}
		for _, q := range e.p.queues {
			for _, about := range []string{"deaths", "explain"} {
				var out json.RawMessage
				path := fmt.Sprintf("/api/queues/%%2F/%s/%s?message_id=%d", url.PathEscape(q.Name), about, id)
				err := e.r.Nodes[0].Call(e.r.ctx, http.MethodGet, path, nil, &out)
				e.r.Logf("key %d, %s of %s: %s %v", a.Key, about, q.Name, out, err)
			}
		}
	}
}

// leads declares a queue through a node, which then leads it, if nothing happens, and returns
// its leader.
func (r *run) leads(queue string, n *cluster.Node, arguments amqp.Table) *cluster.Node {
	r.Helper()
	r.must(workload.Declare(r.ctx, n.URI(), workload.Queue{Name: queue, Arguments: arguments}))
	leader, err := nemesis.AwaitLeader(r.ctx, r.Cluster, queue, nil)
	r.must(err)
	return leader
}

// A message that a length limit drops while the leader of the queue of dead letters hangs, and
// whose own leader is killed then, may be gone: its letter was sent once, from a process that has
// ended. Nobody received the message and no queue has it, but the record of ends tells, after the
// change of leader, what became of it.
func TestRecordOfLetterSentOnce(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 2*time.Minute)
	const short = "short"
	leader, hung := r.leads(short, r.Nodes[0], amqp.Table{"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}), r.leads("dead", r.Nodes[1], nil)
	if leader == hung {
		t.Skip("one node has come to lead both queues")
	}
	conn, err := client.Connect(r.ctx, leader.URI())
	r.must(err)
	defer conn.CloseDeadline(time.Now())
	ch, err := conn.Channel()
	r.must(errors.Join(err, ch.Confirm(false), hung.Signal(syscall.SIGSTOP)))
	for key := range uint64(2) {
		c, err := ch.PublishWithDeferredConfirmWithContext(r.ctx, "", short, false, false, amqp.Publishing{CorrelationId: strconv.FormatUint(key+1, 10)})
		r.must(err)
		if !c.Wait() {
			t.Fatalf("message %d is not confirmed", key+1)
		}
	}
	r.must(errors.Join(leader.Kill(r.ctx), hung.Signal(syscall.SIGCONT), leader.Restart(), leader.AwaitReady(r.ctx)))

	e := &endReader{r: r, after: map[string]uint64{}}
	var items []end
	r.must(await.Until(r.ctx, 50*time.Millisecond, "the record of ends", func() (bool, error) {
		items, err = e.page(r.ctx, short)
		return err == nil, err
	}))
	if len(items) != 1 || items[0].CorrelationID != "1" || items[0].Reason+" "+items[0].Disposition != checker.MaxLen {
		t.Errorf("the record of ends is %+v", items)
	}
	q, err := r.Nodes[0].Queue(r.ctx, "dead")
	t.Logf("letters that arrived: %d, %v", q.Messages, err)
}

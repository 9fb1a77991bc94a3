package jepsen

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/quorate/quorate/jepsen/history"
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

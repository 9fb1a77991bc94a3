package mgmt

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

func (w *world) CancelConsumer(_ context.Context, q *catalog.Queue, at api.ChannelDetails, tag string) (bool, error) {
	w.closed = append(w.closed, fmt.Sprint(q.Name, " ", at.Node, " ", at.ConnectionName, " ", at.Number, ": ", tag))
	return tag != "gone", nil
}

func (w *world) ExpireDue(_ context.Context, q *catalog.Queue) error {
	w.closed = append(w.closed, q.Name+" expires")
	if q.Name == "leaderless" {
		return errors.New("it has no leader")
	}
	return nil
}

func (o *operator) Snapshot(_ context.Context, q *catalog.Queue) error {
	if q.Local {
		return fsm.Refuse(fsm.Precondition, "the queue has no log on disk")
	}
	o.moved = q.Name + " on disk"
	return nil
}

// TestQueueActions: the actions of management.md §9, and what they answer.
func TestQueueActions(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "a", false)
	w.queue("/", "local", true)
	w.queue("/", "leaderless", false)
	for _, tag := range []string{"worker", "gone"} {
		w.serve("/", "a", stats.Consumer{Consumer: api.Consumer{Tag: tag, Node: "n2", Channel: api.ChannelDetails{Name: "c -> d (3)", ConnectionName: "c -> d", Number: 3, Node: "n2"}}})
	}
	w.serve("/", "a", stats.Consumer{Consumer: api.Consumer{Tag: "lost", Channel: []any{}}}) // nobody knows its channel
	const at = "/api/queues/%2F/a/actions"
	missing := failure("not_found", "consumer_not_found")
	w.check(
		want{"root", "POST", at, `{"action":"snapshot"}`, 204, ""},
		want{"root", "POST", "/api/queues/%2F/local/actions", `{"action":"snapshot"}`, 400, failure("bad_request", "the queue has no log on disk")},
		want{"root", "POST", "/api/queues/%2F/none/actions", `{"action":"snapshot"}`, 404, notThere},
		want{"root", "POST", at, `{"action":"expire_now"}`, 204, ""},
		want{"root", "POST", "/api/queues/%2F/leaderless/actions", `{"action":"expire_now"}`, 503, failure("unavailable", "it has no leader")},
		want{"root", "POST", at, `{"action":"cancel_consumer","tag":"worker","channel":"c -> d (3)"}`, 204, ""},
		want{"root", "POST", at, `{"action":"cancel_consumer","tag":"worker","channel":"c -> d (4)"}`, 404, missing},
		want{"root", "POST", at, `{"action":"cancel_consumer","tag":"nobody","channel":"c -> d (3)"}`, 404, missing},
		want{"root", "POST", at, `{"action":"cancel_consumer","tag":"lost","channel":""}`, 404, missing},
		want{"root", "POST", at, `{"action":"cancel_consumer","tag":"gone","channel":"c -> d (3)"}`, 404, missing},
		want{"root", "POST", "/api/queues/%2F/local/actions", `{"action":"cancel_consumer","tag":"worker","channel":"c -> d (3)"}`, 404, missing},
		want{"root", "POST", at, `{"action":"cancel_consumer"}`, 400, failure("bad_request", "[{key_missing,tag},{key_missing,channel}]")},
		want{"root", "POST", at, `{"action":"cancel_consumer","tag":"worker","channel":3}`, 400, failure("bad_request", "channel should be a string, actually was 3")},
		want{"root", "POST", at, `{"action":"transfer_leadership"}`, 400, failure("bad_request", "[{key_missing,node}]")},
		want{"root", "POST", at, `{"action":"transfer_leadership","node":"n1"}`, 400, failure("bad_request", "already_leader")},
	)
	for _, body := range []string{`{"action":"snapshot"}`, `{"action":"expire_now"}`, `{"action":"cancel_consumer","tag":"worker","channel":"c -> d (3)"}`} {
		w.check(want{"polly", "POST", at, body, 401, notAdmin}, want{"mona", "POST", at, body, 401, notAdmin})
	}
	done := "[a expires leaderless expires a n2 c -> d 3: worker a n2 c -> d 3: gone]"
	if got := fmt.Sprint(w.closed); got != done || w.operator.moved != "a on disk" {
		t.Errorf("%s, %s", got, w.operator.moved)
	}
}

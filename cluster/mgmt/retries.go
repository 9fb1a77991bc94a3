package mgmt

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// retries serves messages that were returned and wait: to be retried, or parked.
type retries struct {
	messages Messages
	queues   Queues
}

// retryNow makes delayed messages ready, those due next first.
func (t retries) retryNow(w *responder, r *request) {
	t.wake(w, r, func(s *api.QueueStats, asked uint64) uint64 { return cmp.Or(asked, s.DelayedRetry) }, func(n uint64) *logpb.Command {
		return &logpb.Command{Kind: logpb.Command_KICK, Kick: &logpb.Kick{Count: n}}
	})
}

// unpark makes parked messages ready, those that were parked first. Nothing is
// proposed for a queue without any: nodes of earlier versions do not know the command.
func (t retries) unpark(w *responder, r *request) {
	t.wake(w, r, func(s *api.QueueStats, asked uint64) uint64 { return min(cmp.Or(asked, s.Parked), s.Parked) }, func(n uint64) *logpb.Command {
		return &logpb.Command{Kind: logpb.Command_UNPARK, Unpark: &logpb.Unpark{Count: n}}
	})
}

// wake makes waiting messages ready: as many as the body says, or all. howMany is how
// many commands are to ask for, with what was asked for; 0: all.
//
// All means as many as wait when the request comes: a message that fails again
// meanwhile is not retried for ever. One command retries a bounded number.
func (t retries) wake(w *responder, r *request, howMany func(s *api.QueueStats, asked uint64) uint64, command func(n uint64) *logpb.Command) {
	b, ok := w.body(r)
	if !ok {
		return
	}
	var left uint64
	if _, given := b["count"]; given {
		n, err := strconv.ParseUint(b.word("count"), 10, 63)
		if err != nil {
			w.badRequest("count must be a whole number from 0")
			return
		}
		left = n
	}
	q := w.readable(r)
	if q == nil {
		return
	}
	stats := t.queues.Stats(r.Context(), q.ID)[q.ID].QueueStats
	left = howMany(&stats, left)
	answer := api.Rescheduled{}
	for left > 0 {
		done, err := t.messages.Command(r.Context(), q, command(left))
		if err != nil {
			w.failed(err)
			return
		}
		answer.Messages += done[0].Count
		if left -= min(left, done[0].Count); done[0].Count == 0 {
			break
		}
	}
	w.answer(http.StatusOK, answer)
}

// readable finds the queue of a request, for a user who may read it, or answers the request.
func (w *responder) readable(r *request) *catalog.Queue {
	vhost, name := r.PathValue("vhost"), r.PathValue("name")
	if !w.hasQueue(r, vhost, name) {
		return nil
	}
	q, err := r.view.UseQueue(catalog.Client{User: r.user.GetName()}, catalog.Read, vhost, name)
	if err != nil {
		w.failed(err)
		return nil
	}
	return q
}

// deferred lists deferred messages by their number, without their bodies.
func (ms messages) deferred(w *responder, r *request) {
	after, limit, problem := pageAfter(r)
	if problem != "" {
		w.badRequest(problem)
		return
	}
	q := w.readable(r)
	if q == nil {
		return
	}
	list, more, err := ms.messages.Peek(r.Context(), q, queue.Deferred, after, limit)
	if err != nil {
		w.failed(err)
		return
	}
	page := api.DeferredPage{Items: []api.Deferred{}}
	for i := range list {
		x := &list[i]
		page.Items = append(page.Items, api.Deferred{
			Number: x.Number, Token: x.Deferral, DueAt: int64(x.DueAt), ExpiresAt: int64(x.ExpireAt), AcquiredCount: x.Acquired, DeliveryCount: x.Failed,
			RoutingKey: string(x.Payload.RoutingKey()), Bytes: len(x.Payload.Body()), MessageID: ObjectOf(x.Properties)["message_id"],
		})
	}
	if n := len(list); more && n > 0 {
		page.Next = list[n-1].Number
	}
	w.answer(http.StatusOK, page)
}

// pageAfter reads which messages a request asks for; problem says what is wrong with it.
func pageAfter(r *request) (after uint64, limit int, problem string) {
	if q := r.URL.Query(); q.Has("after") {
		var err error
		if after, err = strconv.ParseUint(q.Get("after"), 10, 64); err != nil {
			return 0, 0, "after must be the number of a message"
		}
	}
	limit, problem = pageLimit(r)
	return after, limit, problem
}

// pageLimit reads how much a request asks for; problem says what is wrong with it.
func pageLimit(r *request) (limit int, problem string) {
	q := r.URL.Query()
	if !q.Has("limit") {
		return defaultPeek, ""
	}
	limit, err := strconv.Atoi(q.Get("limit"))
	if err != nil || limit < 1 || limit > maxPeek {
		return 0, fmt.Sprintf("limit must be a whole number from 1 to %d", maxPeek)
	}
	return limit, ""
}

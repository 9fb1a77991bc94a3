package mgmt

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/tables"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// largestScheduled is the maximum number of scheduled messages on a page.
const largestScheduled = 1000

// place finds the queue whose scheduled messages a path is about, for a user who may see or change
// them.
type place func(r *request, by catalog.Client, change bool) (*catalog.Queue, error)

// exchangeStore finds the store of an exchange. Users with the write permission may see what waits.
func exchangeStore(r *request, by catalog.Client, change bool) (*catalog.Queue, error) {
	vhost, name := r.PathValue("vhost"), r.PathValue("name")
	if change {
		return r.view.UseStore(by, vhost, name)
	}
	return r.view.SeeStore(by, vhost, name)
}

// namedQueue finds a queue. Users with the read permission may see and change what waits.
func namedQueue(r *request, by catalog.Client, _ bool) (*catalog.Queue, error) {
	return r.view.UseQueue(by, catalog.Read, r.PathValue("vhost"), r.PathValue("name"))
}

// scheduled serves the messages waiting for their time at one kind of place.
type scheduled struct {
	messages Messages
	node     Node
	at       place
}

// queue finds the queue of a request, or answers the request.
func (s scheduled) queue(w *responder, r *request, change bool) *catalog.Queue {
	if !r.sees(r.PathValue("vhost")) {
		w.notFound()
		return nil
	}
	q, err := s.at(r, catalog.Client{User: r.user.GetName()}, change)
	if err != nil {
		w.failed(err)
		return nil
	}
	return q
}

// pageOf reads which page a request asks for.
func pageOf(r *request) (*peerpb.ScheduledRequest, error) {
	q := r.URL.Query()
	limit, err := pageLimit(q, largestScheduled, largestScheduled)
	if err != nil {
		return nil, err
	}
	m := &peerpb.ScheduledRequest{Limit: uint32(limit), Headers: q.Get("headers") == "true"}
	if text := q.Get("after"); text != "" {
		if _, err := fmt.Sscanf(text, "%d-%d", &m.AfterAt, &m.AfterMessage); err != nil {
			return nil, fsm.Refuse(fsm.Precondition, "after must be the cursor of a message")
		}
	}
	return m, nil
}

func (s scheduled) list(w *responder, r *request) {
	q := s.queue(w, r, false)
	if q == nil {
		return
	}
	m, err := pageOf(r)
	if err != nil {
		w.failed(err)
		return
	}
	page, err := s.messages.Scheduled(r.Context(), q, m)
	if err != nil {
		w.failed(err)
		return
	}
	w.answer(http.StatusOK, described(page, s.describe))
}

func (s scheduled) describe(x *peerpb.ScheduledMessage) api.Scheduled {
	d := api.Scheduled{
		ID: x.Message, ScheduleID: x.Id, DueAt: x.DueAt, RemainingMS: max(x.DueAt-int64(s.node.Now()), 0),
		RoutingKey: x.RoutingKey, Bytes: x.Bytes, MessageID: x.MessageId, Cursor: fmt.Sprintf("%d-%d", x.DueAt, x.Message),
	}
	var t logpb.Table
	if len(x.Headers) > 0 && logpb.Unmarshal(x.Headers, &t) == nil {
		d.Headers = tables.JSON(&t)
	}
	return d
}

// reschedule changes one scheduled message: by its number or, with
// ?by=schedule_id or if it is no number, by its schedule id.
func (s scheduled) reschedule(action logpb.Schedule_Action) func(*responder, *request) {
	return func(w *responder, r *request) {
		q := s.queue(w, r, true)
		if q == nil {
			return
		}
		c := &logpb.Schedule{Action: action, Id: r.PathValue("id")}
		if n, err := strconv.ParseUint(c.Id, 10, 64); err == nil && n > 0 && r.URL.Query().Get("by") != "schedule_id" {
			c.Id, c.Message = "", n
		}
		if action == logpb.Schedule_MOVE && !newTime(w, r, c, int64(s.node.Now())) {
			return
		}
		done, err := s.messages.Command(r.Context(), q, &logpb.Command{Kind: logpb.Command_SCHEDULE, Schedule: c})
		switch {
		case err != nil:
			w.failed(err)
		case done[0].Code != fsm.OK:
			w.failed(fsm.Refuse(fsm.NotFoundKind, "no such message is waiting there"))
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}
}

// newTime reads due_at or delay, in milliseconds, from the body, or answers the request. Either is
// at most as far from now as a delay may be.
func newTime(w *responder, r *request, c *logpb.Schedule, now int64) bool {
	b, ok := w.body(r)
	if !ok {
		return false
	}
	longest := r.view.Setting(catalog.ScheduleMaxDelay)
	number := func(key string) (n int64, given bool) {
		v, given := b[key]
		n, err := strconv.ParseInt(fmt.Sprint(v), 10, 64)
		return n, given && err == nil && n >= 0
	}
	at, timed := number("due_at")
	delay, delayed := number("delay")
	if timed == delayed || len(b) != 1 || delay > longest || at > now && at-now > longest {
		w.badRequest(fmt.Sprintf("the body must have either due_at (ms since the epoch) or delay (ms), at most %d ms from now", longest))
		return false
	}
	if timed {
		c.DueAt = max(at, 1)
	} else {
		c.DelayPlusOne = uint64(delay) + 1
	}
	return true
}

// cancelAll cancels scheduled messages: all of them, or with ?match=header=value those with a
// header that prints so.
func (s scheduled) cancelAll(w *responder, r *request) {
	q := s.queue(w, r, true)
	if q == nil {
		return
	}
	header, value, match := strings.Cut(r.URL.Query().Get("match"), "=")
	if r.URL.Query().Has("match") && (!match || header == "") {
		w.badRequest("match must be HEADER=VALUE")
		return
	}
	answer := api.Rescheduled{}
	page := &peerpb.ScheduledRequest{Limit: largestScheduled, Headers: match}
	for {
		list, err := s.messages.Scheduled(r.Context(), q, page)
		var commands []*logpb.Command
		for _, x := range list {
			page.AfterAt, page.AfterMessage = x.DueAt, x.Message
			if v, ok := s.describe(x).Headers[header]; match && (!ok || fmt.Sprint(v) != value) {
				continue
			}
			commands = append(commands, &logpb.Command{Kind: logpb.Command_SCHEDULE, Schedule: &logpb.Schedule{
				Action: logpb.Schedule_CANCEL, Message: x.Message,
			}})
		}
		var done []fsm.Result
		if err == nil && len(commands) > 0 {
			done, err = s.messages.Command(r.Context(), q, commands...)
		}
		if err != nil {
			w.failed(err)
			return
		}
		for _, d := range done {
			answer.Messages += d.Count
		}
		if len(list) < largestScheduled {
			w.answer(http.StatusOK, answer)
			return
		}
	}
}

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
func (w *responder) readable(r *request) *catalog.Queue { return w.usable(r, catalog.Read) }

// usable finds the queue of a request, for a user who may do that with it, or answers the request.
func (w *responder) usable(r *request, verb catalog.Verb) *catalog.Queue {
	vhost, name := r.PathValue("vhost"), r.PathValue("name")
	if !w.hasQueue(r, vhost, name) {
		return nil
	}
	q, err := r.view.UseQueue(catalog.Client{User: r.user.GetName()}, verb, vhost, name)
	if err != nil {
		w.failed(err)
		return nil
	}
	return q
}

// deferred lists deferred messages by their number, without their bodies.
func (ms messages) deferred(w *responder, r *request) {
	after, limit, err := pageAfter(r)
	if err != nil {
		w.failed(err)
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
			RoutingKey: string(x.Payload.RoutingKey()), Bytes: len(x.Body), MessageID: tables.JSON(x.Properties)["message_id"],
		})
	}
	if n := len(list); more && n > 0 {
		page.Next = list[n-1].Number
	}
	w.answer(http.StatusOK, page)
}

// pageAfter reads which messages a request asks for.
func pageAfter(r *request) (after uint64, limit int, err error) {
	q := r.URL.Query()
	if q.Has("after") {
		if after, err = strconv.ParseUint(q.Get("after"), 10, 64); err != nil {
			return 0, 0, fsm.Refuse(fsm.Precondition, "after must be the number of a message")
		}
	}
	limit, err = pageLimit(q, defaultPeek, maxPeek)
	return after, limit, err
}

// pageLimit reads how much a request asks for.
func pageLimit(q url.Values, otherwise, most int) (int, error) {
	if q.Get("limit") == "" {
		return otherwise, nil
	}
	limit, err := strconv.Atoi(q.Get("limit"))
	if err != nil || limit < 1 || limit > most {
		return 0, fsm.Refuse(fsm.Precondition, fmt.Sprintf("limit must be a whole number from 1 to %d", most))
	}
	return limit, nil
}

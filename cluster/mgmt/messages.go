package mgmt

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// Bounds of one request for messages.
const (
	maxTake     = 10_000
	maxPeek     = 1000
	defaultPeek = 50
	// peekTruncate is how much of each payload a peek shows, unless the request says.
	peekTruncate = 64 << 10
)

// ackModes are the ways to settle messages that were taken.
var ackModes = map[string]fsm.Outcome{
	"ack_requeue_true": fsm.Requeue, "ack_requeue_false": fsm.Ack,
	"reject_requeue_true": fsm.RequeueFailed, "reject_requeue_false": fsm.Discard,
}

// places are the states of messages that can be peeked at.
var places = map[string]queue.Place{
	"ready": queue.Ready, "unacked": queue.CheckedOut, "scheduled": queue.Scheduled, "delayed": queue.Delayed,
	"deferred": queue.Deferred, "parked": queue.Parked,
}

// stateOf names the state of a message.
func stateOf(p queue.Place) string {
	for name, place := range places {
		if place == p {
			return name
		}
	}
	return "ready" // returned
}

// encoding says how payloads are shown.
type encoding struct {
	base64   bool
	truncate int // -1: unlimited
}

func encodingFrom(name, truncate string) (e encoding, err error) {
	e.truncate = -1
	switch name {
	case "auto", "base64":
		e.base64 = name == "base64"
	default:
		return e, fmt.Errorf("unsupported encoding: %s", name)
	}
	if truncate != "" {
		if e.truncate, err = strconv.Atoi(truncate); err != nil || e.truncate < 0 {
			return e, errors.New("truncate must be a whole number from 0")
		}
	}
	return e, nil
}

// show fills in the payload of m.
func (e encoding) show(m *api.Message, body []byte) {
	m.PayloadBytes = len(body)
	if e.truncate >= 0 && len(body) > e.truncate {
		body = body[:e.truncate]
	}
	if !e.base64 && utf8.Valid(body) && !mostlyEscaped(body) {
		m.Payload, m.PayloadEncoding = string(body), "string"
		return
	}
	m.Payload, m.PayloadEncoding = base64.StdEncoding.EncodeToString(body), "base64"
}

// mostlyEscaped reports whether more than a tenth of a text are control characters, which take six octets each as
// JSON.
func mostlyEscaped(text []byte) bool {
	n := 0
	for _, c := range text {
		if c < ' ' && c != '\n' && c != '\r' && c != '\t' {
			n++
		}
	}
	return n > len(text)/10
}

func (e encoding) message(x *Message) api.Message {
	m := api.Message{
		Redelivered: x.Acquired > 0, Exchange: string(x.Payload.Exchange()), RoutingKey: string(x.Payload.RoutingKey()),
		MessageCount: x.Ready, Properties: ObjectOf(x.Properties),
	}
	e.show(&m, x.Payload.Body())
	return m
}

// word is a value of a body that may be a number or its digits.
func (b body) word(key string) string {
	switch v := b[key].(type) {
	case json.Number:
		return v.String()
	case string:
		return v
	}
	return ""
}

// messages serves the messages in queues.
type messages struct {
	messages Messages
	showing  *showing
}

// take gets messages from a queue, and settles them or gives them back.
func (ms messages) take(w *responder, r *request) {
	b, ok := w.body(r)
	if !ok || w.missing(b, "count", "ackmode", "encoding") {
		return
	}
	count, err := strconv.Atoi(b.word("count"))
	if err != nil || count < 0 {
		w.badRequest("count must be a whole number from 0")
		return
	}
	outcome, ok := ackModes[b.word("ackmode")]
	if !ok {
		w.badRequest("ackmode must be one of ack_requeue_true, ack_requeue_false, reject_requeue_true, reject_requeue_false")
		return
	}
	e, err := encodingFrom(b.word("encoding"), b.word("truncate"))
	if err != nil {
		w.badRequest(err.Error())
		return
	}
	vhost, name := r.PathValue("vhost"), r.PathValue("name")
	if !w.hasQueue(r, vhost, name) {
		return
	}
	show := ms.showing.begin(w, r)
	if show == nil {
		return
	}
	defer show.end()
	// What is settled is shown: so the room for it is there before.
	taken, err := ms.messages.Take(r.Context(), r.user.GetName(), vhost, name, min(count, maxTake), outcome, show.counts)
	if err != nil {
		w.failed(err)
		return
	}
	show.messages("[", len(taken), "]\n", sizeOf(taken), func(i int) any { return e.message(&taken[i]) })
}

// hasQueue answers the request if the user sees no such queue.
func (w *responder) hasQueue(r *request, vhost, name string) bool {
	if !r.sees(vhost) {
		w.notFound()
		return false
	}
	if _, ok := r.view.Queue(vhost, name); !ok {
		w.answer(http.StatusNotFound, api.Failure{Error: "not_found", Reason: "queue_not_found"})
		return false
	}
	return true
}

// peek shows messages without changing anything.
func (ms messages) peek(w *responder, r *request) {
	vhost, name, q := r.PathValue("vhost"), r.PathValue("name"), r.URL.Query()
	if !w.hasQueue(r, vhost, name) {
		return
	}
	or := func(key, otherwise string) string {
		if q.Has(key) {
			return q.Get(key)
		}
		return otherwise
	}
	in, known := places[or("state", "ready")]
	after, limit, problem := pageAfter(r)
	e, err := encodingFrom(or("encoding", "auto"), or("truncate", strconv.Itoa(peekTruncate)))
	switch {
	case !known:
		w.badRequest("state must be one of ready, unacked, scheduled, delayed, deferred, parked")
	case problem != "":
		w.badRequest(problem)
	case err != nil:
		w.badRequest(err.Error())
	default:
		ms.page(w, r, in, after, limit, e)
	}
}

func (ms messages) page(w *responder, r *request, in queue.Place, after uint64, limit int, e encoding) {
	record := w.readable(r)
	if record == nil {
		return
	}
	show := ms.showing.begin(w, r)
	if show == nil {
		return
	}
	defer show.end()
	list, more, err := ms.messages.Peek(r.Context(), record, in, after, limit)
	if err != nil {
		w.failed(err)
		return
	}
	size, next := sizeOf(list), uint64(0)
	if n := len(list); more && n > 0 {
		next = list[n-1].Number
	}
	if err := show.counts(size); err != nil {
		w.unavailable(err)
		return
	}
	if e.truncate >= 0 {
		size = min(size, len(list)*e.truncate)
	}
	show.messages(`{"items":[`, len(list), fmt.Sprintf("],\"next\":%d}\n", next), size, func(i int) any {
		x := &list[i]
		return api.PeekedMessage{
			Number: x.Number, State: stateOf(x.Place), ExpiresAt: int64(x.ExpireAt), DueAt: int64(x.DueAt), Deadline: int64(x.Deadline),
			ScheduleID: x.ScheduleID, DeferralToken: x.Deferral, AcquiredCount: x.Acquired, DeliveryCount: x.Failed, Message: e.message(x),
		}
	})
}

// sizeOf is the memory of messages.
func sizeOf(list []Message) (size int) {
	for i := range list {
		size += len(list[i].Payload)
	}
	return size
}

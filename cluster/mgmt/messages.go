package mgmt

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/tables"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
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
		MessageCount: x.Ready, Properties: tables.JSON(x.Properties),
	}
	e.show(&m, x.Body)
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
	b, ok := w.body(r, "count", "ackmode", "encoding")
	if !ok {
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
	after, limit, wrong := pageAfter(r)
	e, err := encodingFrom(or("encoding", "auto"), or("truncate", strconv.Itoa(peekTruncate)))
	switch {
	case !known:
		w.badRequest("state must be one of ready, unacked, scheduled, delayed, deferred, parked")
	case wrong != nil:
		w.failed(wrong)
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

// Bounds of answers with messages.
const (
	maxShowing  = 2               // answers at a time, and one of each user
	showingWait = 5 * time.Second // for a place
	showingSize = 1 << 20         // more than that keeps its place until it is written
)

// showing bounds the answers with messages in them, whose size nobody knows before the messages are there. An answer
// has a place while its messages are in memory; a small one gives it back before it is written, so that clients
// that read slowly keep nobody waiting. What a large one takes counts as held for its user.
//
// Invariants: len(users) ≤ maxShowing; changed is closed and replaced when a place becomes free.
type showing struct {
	hold func(user string) func(bytes int64) error

	mu      sync.Mutex
	users   map[string]bool
	changed chan struct{}
}

// newShowing: hold nil: there are no bounds.
func newShowing(hold func(string) func(int64) error) *showing {
	if hold == nil {
		hold = func(string) func(int64) error { return func(int64) error { return nil } }
	}
	return &showing{hold: hold, users: map[string]bool{}, changed: make(chan struct{})}
}

// place takes a place for a user, or returns what must change before there is one.
func (s *showing) place(user string) (wait <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.users) == maxShowing || s.users[user] {
		return s.changed
	}
	s.users[user] = true
	return nil
}

func (s *showing) leave(user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.users, user)
	close(s.changed)
	s.changed = make(chan struct{})
}

// begin waits for a place. It answers the request, and returns nil, if there is none.
func (s *showing) begin(w *responder, r *request) *answering {
	user := r.user.GetName()
	late := time.After(showingWait)
	for {
		wait := s.place(user)
		if wait == nil {
			break
		}
		select {
		case <-wait:
		case <-r.Context().Done():
			return nil
		case <-late:
			w.answer(http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: "too many requests for messages at a time; try again later"})
			return nil
		}
	}
	x := &answering{of: s, user: user, w: w, hold: s.hold(user)}
	if err := x.counts(0); err != nil {
		w.unavailable(err)
		x.end()
		return nil
	}
	return x
}

// answering is one answer that has a place.
type answering struct {
	of   *showing
	user string
	w    *responder
	hold func(bytes int64) error
	left bool
}

// counts counts the memory that messages of this size take. An error names the bound that does not let it.
func (x *answering) counts(size int) error { return x.hold(int64(max(size, showingSize))) }

// end gives up the place.
func (x *answering) end() {
	if !x.left {
		x.left = true
		_ = x.hold(0) // which always succeeds
		x.of.leave(x.user)
	}
}

// messages writes an answer with n messages, of some size together, between two texts. Each is encoded when it is
// written.
func (x *answering) messages(open string, n int, end string, size int, message func(i int) any) {
	var b bytes.Buffer
	b.WriteString(open)
	x.w.Header().Set("Content-Type", "application/json")
	small := size <= showingSize
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false) // it would take six octets of one, and origin tells browsers that this is no page
		if err := e.Encode(message(i)); err != nil {
			x.w.log.Error("message not encoded", "error", err)
			return
		}
		b.Truncate(b.Len() - 1) // the end of the line
		if !small && !x.write(&b) {
			return
		}
	}
	b.WriteString(end)
	if small {
		x.end()
	}
	x.write(&b)
}

// write writes what is encoded.
func (x *answering) write(b *bytes.Buffer) bool {
	_, err := b.WriteTo(x.w)
	x.w.written(err)
	if b.Cap() > showingSize {
		*b = bytes.Buffer{}
	}
	return err == nil
}

// groups lists the groups of a queue's messages by their ids.
func (ms messages) groups(w *responder, r *request) {
	after, err := base64.RawURLEncoding.DecodeString(r.URL.Query().Get("after"))
	limit, wrong := pageLimit(r.URL.Query(), defaultPeek, maxPeek)
	switch {
	case err != nil:
		w.badRequest("after must be the value next of a page")
		return
	case wrong != nil:
		w.failed(wrong)
		return
	}
	q := w.readable(r)
	if q == nil {
		return
	}
	page, err := ms.messages.GroupsAfter(r.Context(), q, string(after), limit)
	w.result(page, err)
}

// locks serves deliveries that are named by their lock tokens. The user needs the read permission
// on the queue.
type locks struct {
	messages Messages
	node     Node
}

// renew makes a lock end later; the body may have a duration in milliseconds.
func (l locks) renew(w *responder, r *request) {
	b, ok := w.body(r)
	if !ok {
		return
	}
	c := &logpb.Renew{}
	if v, given := b["duration"]; given {
		n, err := strconv.ParseUint(fmt.Sprint(v), 10, 64)
		if err != nil || n < fsm.MinLock || n > fsm.MaxLock {
			w.badRequest(fmt.Sprintf("duration must be a whole number from %d to %d", fsm.MinLock, fsm.MaxLock))
			return
		}
		c.Duration = n
	}
	if done, ok := l.command(w, r, &logpb.Command{Kind: logpb.Command_RENEW, Renew: c}); ok {
		answer := api.Lock{OK: true}
		if done.Until != 0 {
			remaining := max(int64(done.Until-l.node.Now()), 0)
			answer.LockedUntil, answer.RemainingMS = int64(done.Until), &remaining
		}
		w.answer(http.StatusOK, answer)
	}
}

// settle ends a delivery; the body has the outcome, and may say why.
func (l locks) settle(w *responder, r *request) {
	b, ok := w.body(r, "outcome")
	if !ok {
		return
	}
	for _, key := range []string{"outcome", "reason", "description"} {
		if _, isText := b[key].(string); b[key] != nil && !isText {
			w.badRequest(key + " is text")
			return
		}
	}
	text := func(key string) string { s, _ := b[key].(string); return s }
	outcome, known := fsm.OutcomeNamed(text("outcome"))
	c := &logpb.Settle{Outcome: outcome, Reason: text("reason"), Description: text("description"), Strict: true}
	switch {
	case !known:
		w.badRequest("outcome must be one of ack, requeue, reject, dead-letter")
	case len(c.Reason) > fsm.MaxSettleReason || len(c.Description) > fsm.MaxSettleDescription:
		w.badRequest(fmt.Sprintf("reason may have at most %d bytes, description %d", fsm.MaxSettleReason, fsm.MaxSettleDescription))
	default:
		if _, ok := l.command(w, r, &logpb.Command{Kind: logpb.Command_SETTLE, Settle: c}); ok {
			w.answer(http.StatusOK, api.Lock{OK: true})
		}
	}
}

// command executes a command about the delivery that the path names, or answers the request.
func (l locks) command(w *responder, r *request, c *logpb.Command) (fsm.Result, bool) {
	if !r.sees(r.PathValue("vhost")) {
		w.notFound()
		return fsm.Result{}, false
	}
	q, err := namedQueue(r, catalog.Client{User: r.user.GetName()}, true)
	if err != nil {
		w.failed(err)
		return fsm.Result{}, false
	}
	lost := fsm.Refuse(fsm.NotFoundKind, "no lock with this token")
	if !l.messages.NameLocked(q, r.PathValue("token"), c) {
		w.failed(lost)
		return fsm.Result{}, false
	}
	done, err := l.messages.Command(r.Context(), q, c)
	switch {
	case err != nil:
		w.failed(err)
	case done[0].Code != fsm.OK:
		w.failed(lost)
	default:
		return done[0], true
	}
	return fsm.Result{}, false
}

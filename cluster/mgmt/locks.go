package mgmt

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

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
	b, ok := w.body(r)
	if !ok || w.missing(b, "outcome") {
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

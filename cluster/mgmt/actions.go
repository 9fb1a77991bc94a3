package mgmt

import (
	"github.com/quorate/quorate/fsm"
)

// queueActions serves what operators do with one queue.
type queueActions struct{ leaders Leaders }

// perform does the action that the body names.
func (a queueActions) perform(w *responder, r *request) {
	name := r.PathValue("name")
	if !w.finds(r, name) {
		return
	}
	b, ok := w.body(r)
	if !ok || w.missing(b, "action") {
		return
	}
	switch action := b.word("action"); {
	case action != "transfer_leadership":
		w.badRequest("unsupported action: " + action)
	case !r.has(administrator):
		w.unauthorized("not_authorised", levels[administrator].reason)
	default:
		q, _ := r.view.Queue(r.PathValue("vhost"), name)
		to, err := b.text("node")
		if err == nil && to == "" {
			err = fsm.Refuse(fsm.Precondition, "[{key_missing,node}]")
		}
		if err == nil {
			err = a.leaders.TransferLeadership(r.Context(), q, to)
		}
		w.changed(err, false)
	}
}

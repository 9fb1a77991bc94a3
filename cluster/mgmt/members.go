package mgmt

import (
	"context"
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// members serves the nodes that have replicas of queues.
type members struct{ members Placement }

// growTo adds members to many queues, up to a number of members.
func (ms members) growTo(ctx context.Context, _ string, which api.Selection) ([]api.MemberChange, error) {
	return ms.members.GrowTo(ctx, which.Count, which)
}

// changeOne changes one member of one queue.
func changeOne(do func(ctx context.Context, vhost, queue, node string) error) func(*responder, *request) {
	return func(w *responder, r *request) {
		var body api.ReplicaNode
		if w.read(r, &body) {
			w.changed(do(r.Context(), r.PathValue("vhost"), r.PathValue("name"), body.Node), false)
		}
	}
}

// changeMany changes members of many queues, and answers with the result for each.
func changeMany(do func(context.Context, string, api.Selection) ([]api.MemberChange, error)) func(*responder, *request) {
	return func(w *responder, r *request) {
		var which api.Selection
		if !w.read(r, &which) {
			return
		}
		changes, err := do(r.Context(), r.PathValue("node"), which)
		if err != nil {
			w.failed(err)
			return
		}
		w.answer(http.StatusOK, orEmpty(changes))
	}
}

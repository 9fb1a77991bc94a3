package mgmt

import (
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
)

// membership serves the nodes of the cluster and the tokens that admit new ones.
type membership struct{ membership Membership }

const tokensPath = "/api/quorate/tokens"

func (m membership) list(w *responder, _ *request) {
	w.answer(http.StatusOK, orEmpty(m.membership.Tokens()))
}

func (m membership) create(w *responder, r *request) {
	var ask api.NewJoinToken
	if !w.read(r, &ask) {
		return
	}
	r.detail = map[string]any{"ttl": ask.TTL, "node": fsm.Short(ask.Node)}
	made, err := m.membership.CreateToken(r.Context(), fsm.Millis(ask.TTL), ask.Node)
	if err != nil {
		w.failed(err)
		return
	}
	r.detail["token"] = made.ID
	w.answer(http.StatusCreated, made)
}

func (m membership) revoke(w *responder, r *request) {
	known, err := m.membership.RevokeToken(r.Context(), r.PathValue("id"))
	if err == nil && !known {
		w.notFound()
		return
	}
	w.changed(err, false)
}

func (m membership) forgetNode(w *responder, r *request) {
	w.changed(m.membership.ForgetNode(r.Context(), r.PathValue("node")), false)
}

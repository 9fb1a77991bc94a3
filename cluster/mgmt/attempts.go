package mgmt

import (
	"net/http"
	"slices"
	"sync"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// attempts serves the counts of logins. Each node counts its own.
type attempts struct {
	node Node

	mu    sync.Mutex
	since map[string]api.LoginAttempts // by protocol: what had been counted at the last reset
}

// here reports whether a request is about this node; otherwise it is answered.
func (a *attempts) here(w *responder, r *request) bool {
	name := r.PathValue("node")
	switch self := a.node.Status().Node; {
	case name == self:
		return true
	case r.hasNode(name):
		w.badRequest("node '" + self + "' counts its own logins: ask node '" + name + "'")
	default:
		w.notFound()
	}
	return false
}

func (a *attempts) get(w *responder, r *request) {
	if !a.here(w, r) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	rows := slices.Clone(a.node.Status().Logins)
	for i := range rows {
		c, before := &rows[i], a.since[rows[i].Protocol]
		c.Attempts, c.Failed, c.Succeeded = c.Attempts-before.Attempts, c.Failed-before.Failed, c.Succeeded-before.Succeeded
	}
	w.answer(http.StatusOK, rows)
}

// reset has the counts begin again here. Those of the metrics go on.
func (a *attempts) reset(w *responder, r *request) {
	if !a.here(w, r) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.since = map[string]api.LoginAttempts{}
	for _, c := range a.node.Status().Logins {
		a.since[c.Protocol] = c
	}
	w.WriteHeader(http.StatusNoContent)
}

// sources answers an empty list: where logins come from is in the audit log.
func (a *attempts) sources(w *responder, r *request) {
	if a.here(w, r) {
		list(w, r, []struct{}{})
	}
}

func (a *attempts) resetSources(w *responder, r *request) {
	if a.here(w, r) {
		w.WriteHeader(http.StatusNoContent)
	}
}

// resets serve requests to begin again with rates.
type resets struct{ traffic Traffic }

// all drops the samples of all nodes that are up.
func (x resets) all(w *responder, r *request) {
	x.traffic.ForgetSamples(r.Context(), "")
	w.WriteHeader(http.StatusNoContent)
}

// one drops the samples of one node.
func (x resets) one(w *responder, r *request) {
	name := r.PathValue("node")
	switch {
	case !r.hasNode(name):
		w.notFound()
	case !x.traffic.ForgetSamples(r.Context(), name):
		w.answer(http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: "node '" + name + "' does not answer"})
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

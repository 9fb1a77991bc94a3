package mgmt

import (
	"net/http"
	"net/http/pprof"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// inspection serves what the node reports about itself.
type inspection struct{ node Node }

func (i inspection) status(w *responder, _ *request) {
	w.answer(http.StatusOK, i.node.Status())
}

func (i inspection) clock(w *responder, _ *request) {
	w.answer(http.StatusOK, i.node.Clock())
}

func (i inspection) version(w *responder, _ *request) {
	w.answer(http.StatusOK, api.Version{ProductVersion: i.node.Version()})
}

func (i inspection) replicas(w *responder, r *request) {
	q := r.URL.Query()
	w.answer(http.StatusOK, orEmpty(i.node.ReplicasOf(q.Get("name"), q.Get("hash") != "false")))
}

// profile serves Go's profiles: cpu (for ?seconds=30), trace, and the named ones, such as heap and
// goroutine.
func (inspection) profile(w *responder, r *request) {
	switch name := r.PathValue("profile"); name {
	case "cpu":
		pprof.Profile(w, r.Request)
	case "trace":
		pprof.Trace(w, r.Request)
	default:
		pprof.Handler(name).ServeHTTP(w, r.Request)
	}
}

func (i inspection) barrier(w *responder, r *request) {
	if err := i.node.Barrier(r.Context()); err != nil {
		w.answer(http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: err.Error()})
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func whoami(w *responder, r *request) {
	w.answer(http.StatusOK, api.Whoami{Name: r.user.GetName(), Tags: orEmpty(r.user.GetTags()), IsInternalUser: true})
}

package mgmt

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// limitsOf returns the limits of vhosts, or of users, by their names.
func limitsOf(v *catalog.View, user bool) (names []string, values map[string]map[string]int64) {
	values = map[string]map[string]int64{}
	for _, m := range v.Limits(user) {
		if values[m.GetOf()] == nil {
			names, values[m.GetOf()] = append(names, m.GetOf()), map[string]int64{}
		}
		values[m.GetOf()][m.GetName()] = m.GetValue()
	}
	return names, values
}

// quotas serves the limits of vhosts and users.
type quotas struct{ catalog Catalog }

func (q quotas) ofVHosts(w *responder, r *request) {
	only := r.PathValue("vhost")
	if _, ok := r.view.VHost(only); only != "" && (!ok || !r.sees(only)) {
		w.notFound()
		return
	}
	var items []api.VHostLimits
	names, values := limitsOf(r.view, false)
	for _, name := range names {
		if r.sees(name) && (only == "" || name == only) {
			items = append(items, api.VHostLimits{VHost: name, Value: values[name]})
		}
	}
	list(w, r, items)
}

func (q quotas) ofUsers(w *responder, r *request) {
	only := r.PathValue("user")
	if _, ok := r.view.User(only); only != "" && !ok {
		w.notFound()
		return
	}
	var items []api.UserLimits
	names, values := limitsOf(r.view, true)
	for _, name := range names {
		if only == "" || name == only {
			items = append(items, api.UserLimits{User: name, Value: values[name]})
		}
	}
	list(w, r, items)
}

// limit is the limit named by the path.
func (r *request) limit() *logpb.PutLimit {
	user := r.PathValue("user")
	m := &logpb.PutLimit{User: user != "", Of: user, Name: r.PathValue("name")}
	if !m.User {
		m.Of = r.PathValue("vhost")
	}
	return m
}

// put accepts only a JSON number, not a string.
func (q quotas) put(w *responder, r *request) {
	b, ok := w.body(r)
	if !ok || w.missing(b, "value") {
		return
	}
	m := r.limit()
	n, isNumber := b["value"].(json.Number)
	var err error
	if m.Value, err = strconv.ParseInt(n.String(), 10, 64); !isNumber || err != nil {
		w.invalid(fsm.Refuse(fsm.Precondition, m.Name+" should be an integer"))
		return
	}
	q.change(w, r, m)
}

func (q quotas) remove(w *responder, r *request) {
	m := r.limit()
	m.Unset = true
	q.change(w, r, m)
}

func (q quotas) change(w *responder, r *request, m *logpb.PutLimit) {
	err := propose(r.Context(), q.catalog, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutLimit{PutLimit: m}})
	if err != nil {
		w.invalid(err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

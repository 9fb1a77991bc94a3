package mgmt

import (
	"encoding/json"
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// globalParameters serves the values that belong to no vhost. Nothing here depends on them, except
// the name of the cluster.
type globalParameters struct{ catalog Catalog }

func globalParametersOf(r *request) []api.GlobalParameter {
	list := []api.GlobalParameter{}
	for _, row := range r.view.GlobalParameters() {
		list = append(list, api.GlobalParameter{Name: row.GetName(), Value: row.GetValue()})
	}
	return list
}

func (globalParameters) list(w *responder, r *request) { list(w, r, globalParametersOf(r)) }

func (globalParameters) get(w *responder, r *request) {
	name := r.PathValue("name")
	value, ok := r.view.GlobalParameter(name)
	if !ok {
		w.notFound()
		return
	}
	w.answer(http.StatusOK, api.GlobalParameter{Name: name, Value: value})
}

// putGlobalParameter makes the command for a value of a JSON body.
func putGlobalParameter(name string, value any) (*logpb.CatalogCommand, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	if shown, ok := value.(string); name == catalog.ClusterName && (!ok || shown == "") {
		return nil, fsm.Refuse(fsm.Precondition, "the name of a cluster should be a non-empty string")
	}
	m := &logpb.PutGlobalParameter{Name: name, Value: text}
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutGlobalParameter{PutGlobalParameter: m}}, nil
}

func (g globalParameters) put(w *responder, r *request) {
	b, ok := w.body(r)
	if !ok || w.missing(b, "value") {
		return
	}
	name := r.PathValue("name")
	c, err := putGlobalParameter(name, b["value"])
	if err != nil {
		w.invalid(err)
		return
	}
	_, known := r.view.GlobalParameter(name)
	w.changed(propose(r.Context(), g.catalog, c), !known)
}

func (g globalParameters) remove(w *responder, r *request) {
	name := r.PathValue("name")
	if _, ok := r.view.GlobalParameter(name); !ok {
		w.notFound()
		return
	}
	m := &logpb.PutGlobalParameter{Name: name, Unset: true}
	w.changed(propose(r.Context(), g.catalog, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutGlobalParameter{PutGlobalParameter: m}}), false)
}

// clusterName serves the name under which the cluster is shown. The one by which nodes know each
// other is a setting of each.
type clusterName struct {
	node    Node
	catalog Catalog
}

func (n clusterName) get(w *responder, _ *request) {
	w.answer(http.StatusOK, api.ClusterName{Name: n.node.Status().Cluster})
}

func (n clusterName) put(w *responder, r *request) {
	b, ok := w.body(r)
	if !ok || w.missing(b, "name") {
		return
	}
	c, err := putGlobalParameter(catalog.ClusterName, b["name"])
	if err != nil {
		w.invalid(err)
		return
	}
	w.changed(propose(r.Context(), n.catalog, c), false)
}

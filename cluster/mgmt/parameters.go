package mgmt

import (
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
)

// Components of runtime parameters. Others belong to plug-ins, of which there are none.
const (
	limitsComponent   = "vhost-limits"
	operatorComponent = "operator_policy"
	policyComponent   = "policy"
)

// limitsName is the name of the one parameter that holds the limits of a vhost.
const limitsName = "limits"

// parametersOf shows the limits and the operator policies of a vhost as runtime parameters.
func parametersOf(r *request, vhost string) (list []api.Parameter) {
	if _, limits := limitsOf(r.view, false); len(limits[vhost]) > 0 {
		list = append(list, api.Parameter{Component: limitsComponent, VHost: vhost, Name: limitsName, Value: limits[vhost]})
	}
	for _, p := range r.view.Policies(vhost, true) {
		list = append(list, api.Parameter{Component: operatorComponent, VHost: vhost, Name: p.Name, Value: policyValue(p)})
	}
	return list
}

// parameters serves the runtime parameters. They are set by other requests.
type parameters struct{}

// matching lists the parameters of the path that the user may see; ok is false if the user sees no
// such vhost.
func (parameters) matching(r *request) (list []api.Parameter, ok bool) {
	vhosts, ok := r.vhosts()
	list = []api.Parameter{}
	for _, vhost := range vhosts {
		for _, p := range parametersOf(r, vhost) {
			if c, n := r.PathValue("component"), r.PathValue("name"); (c == "" || c == p.Component) && (n == "" || n == p.Name) {
				list = append(list, p)
			}
		}
	}
	return list, ok
}

func (ps parameters) list(w *responder, r *request) {
	items, ok := ps.matching(r)
	if !ok {
		w.notFound()
		return
	}
	list(w, r, items)
}

func (ps parameters) get(w *responder, r *request) {
	items, _ := ps.matching(r)
	if len(items) != 1 || !r.sees(r.PathValue("vhost")) {
		w.notFound()
		return
	}
	w.answer(http.StatusOK, items[0])
}

// put refuses every component, and says what to use.
func (parameters) put(w *responder, r *request) {
	if !w.opens(r) {
		return
	}
	switch component := r.PathValue("component"); component {
	case policyComponent:
		w.badRequest("policies may not be set using this method")
	case operatorComponent:
		w.badRequest("operator policies may not be set using this method, but by /api/operator-policies")
	case limitsComponent:
		w.badRequest("limits may not be set using this method, but by /api/vhost-limits")
	default:
		w.invalid(fsm.Refuse(fsm.Precondition, "component "+component+" not found"))
	}
}

// remove refuses as put does what exists.
func (ps parameters) remove(w *responder, r *request) {
	if items, _ := ps.matching(r); len(items) == 0 || !r.sees(r.PathValue("vhost")) {
		w.notFound()
		return
	}
	ps.put(w, r)
}

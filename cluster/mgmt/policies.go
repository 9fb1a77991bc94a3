package mgmt

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/tables"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// policies serves one of the two kinds of policies.
type policies struct {
	catalog  Catalog
	operator bool
}

func describePolicy(p *catalog.Policy) api.Policy {
	return api.Policy{
		VHost: p.VHost, Name: p.Name, Pattern: p.Pattern, ApplyTo: p.ApplyTo,
		Definition: tables.JSON(p.Definition), Priority: p.Priority, Notes: notesOn(p.ApplyTo, p.Definition),
	}
}

func (ps policies) list(w *responder, r *request) {
	vhosts, ok := w.vhosts(r)
	if !ok {
		return
	}
	var items []api.Policy
	for _, vhost := range vhosts {
		items = append(items, described(r.view.Policies(vhost, ps.operator), describePolicy)...)
	}
	list(w, r, items)
}

func (ps policies) get(w *responder, r *request) {
	p, ok := r.view.Policy(r.PathValue("vhost"), r.PathValue("name"), ps.operator)
	if !ok || !r.sees(p.VHost) {
		w.notFound()
		return
	}
	w.answer(http.StatusOK, describePolicy(p))
}

// valid reads the policy that a request puts, and adds what there is to say of it, or answers the request.
func (ps policies) valid(w *responder, r *request) (*logpb.PutPolicy, bool) {
	b, ok := w.bodyIn(r, "pattern", "definition")
	if !ok {
		return nil, false
	}
	m, err := policyFrom(b)
	if err == nil {
		m.Vhost, m.Name, m.Operator = r.PathValue("vhost"), r.PathValue("name"), ps.operator
		r.view.DecideKeys(m)
		err = r.view.ValidatePolicy(m)
	}
	if err == nil && !r.has(administrator) {
		err = r.view.MayPutPolicy(r.user.GetName(), m)
	}
	if err != nil {
		w.invalid(err)
		return nil, false
	}
	for _, text := range notesOn(m.GetApplyTo(), m.GetDefinition()) {
		w.Header().Add("Warning", "299 - "+strconv.Quote(text))
	}
	return m, true
}

// try lists the queues that a policy would match, and what it would change, without putting it.
func (ps policies) try(w *responder, r *request) {
	m, ok := ps.valid(w, r)
	if !ok {
		return
	}
	result := r.view.TryPolicy(m)
	var items []api.TriedPolicy
	for _, q := range r.view.QueuesOf(m.GetVhost()) {
		would, matches := result(q)
		if !matches {
			continue
		}
		is := r.view.EffectivePolicy(q)
		x := api.TriedPolicy{
			Name: q.Name, VHost: q.VHost, Policy: is.Policy, OperatorPolicy: is.Operator, Definition: tables.JSON(is.Definition),
			WouldPolicy: would.Policy, WouldOperatorPolicy: would.Operator, WouldDefinition: tables.JSON(would.Definition),
		}
		x.Wins = would.Policy == m.GetName() && !ps.operator || would.Operator == m.GetName() && ps.operator
		x.Changes = !reflect.DeepEqual(x.Definition, x.WouldDefinition)
		items = append(items, x)
	}
	list(w, r, items)
}

func (ps policies) put(w *responder, r *request) {
	m, ok := ps.valid(w, r)
	if !ok {
		return
	}
	_, known := r.view.Policy(m.Vhost, m.Name, ps.operator)
	err := propose(r.Context(), ps.catalog, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPolicy{PutPolicy: m}})
	w.changed(err, !known)
}

// notesOn says what a policy does otherwise than at RabbitMQ.
func notesOn(applyTo string, definition *fsm.Table) (notes []string) {
	if keys := catalog.KeysWithoutEffect(definition); len(keys) > 0 {
		notes = append(notes, "has no effect here: "+strings.Join(keys, ", "))
	}
	classic := slices.Contains([]string{"all", "queues", "classic_queues"}, applyTo)
	if classic && slices.ContainsFunc(definition.GetFields(), func(f *logpb.Field) bool { return f.GetName() == "delivery-limit" }) {
		notes = append(notes, "delivery-limit also applies to classic queues; RabbitMQ ignores it for them")
	}
	return notes
}

// policyFrom reads a policy from a request's body.
func policyFrom(b body) (*logpb.PutPolicy, error) {
	m := &logpb.PutPolicy{ApplyTo: "all"}
	var ok bool
	if m.Pattern, ok = b["pattern"].(string); !ok {
		return nil, invalidTerm("pattern should be a binary but was %s", b["pattern"])
	}
	if what, given := b["apply-to"]; given {
		if m.ApplyTo, ok = what.(string); !ok {
			return nil, invalidTerm("apply-to should be binary, actually was %s", what)
		}
	}
	switch v := b["priority"].(type) {
	case nil:
	case json.Number:
		m.Priority, ok = wholeNumber(string(v))
	case string:
		m.Priority, ok = wholeNumber(v)
	default:
		ok = false
	}
	if !ok {
		return nil, invalidTerm("priority should be a number, actually was %s", b["priority"])
	}
	definition, ok := b["definition"].(map[string]any)
	if !ok {
		return nil, invalidTerm("definition must be a dictionary: %s", b["definition"])
	}
	m.Definition = tables.Of(definition)
	return m, nil
}

func wholeNumber(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

func invalidTerm(format string, value any) error {
	return fsm.Refuse(fsm.Precondition, fmt.Sprintf(format, catalog.Term(tables.ValueOf(value))))
}

func (ps policies) remove(w *responder, r *request) {
	p, ok := r.view.Policy(r.PathValue("vhost"), r.PathValue("name"), ps.operator)
	if !ok || !r.sees(p.VHost) {
		w.notFound()
		return
	}
	m := &logpb.DeletePolicy{Vhost: p.VHost, Name: p.Name, Operator: ps.operator}
	w.changed(propose(r.Context(), ps.catalog, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeletePolicy{DeletePolicy: m}}), false)
}

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
	b, ok := w.body(r, "value")
	if !ok {
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
	b, ok := w.body(r, "name")
	if !ok {
		return
	}
	c, err := putGlobalParameter(catalog.ClusterName, b["name"])
	if err != nil {
		w.invalid(err)
		return
	}
	w.changed(propose(r.Context(), n.catalog, c), false)
}

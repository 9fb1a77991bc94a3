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
		Definition: ObjectOf(p.Definition), Priority: p.Priority, Notes: notesOn(p.ApplyTo, p.Definition),
	}
}

func (ps policies) list(w *responder, r *request) {
	vhosts, ok := r.vhosts()
	if !ok {
		w.notFound()
		return
	}
	var items []api.Policy
	for _, vhost := range vhosts {
		for _, p := range r.view.Policies(vhost, ps.operator) {
			items = append(items, describePolicy(p))
		}
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
	if !r.sees(r.PathValue("vhost")) {
		w.noVHost()
		return nil, false
	}
	b, ok := w.body(r)
	if !ok || w.missing(b, "pattern", "definition") {
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
			Name: q.Name, VHost: q.VHost, Policy: is.Policy, OperatorPolicy: is.Operator, Definition: ObjectOf(is.Definition),
			WouldPolicy: would.Policy, WouldOperatorPolicy: would.Operator, WouldDefinition: ObjectOf(would.Definition),
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
	m.Definition = tableOf(definition)
	return m, nil
}

func wholeNumber(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

func invalidTerm(format string, value any) error {
	return fsm.Refuse(fsm.Precondition, fmt.Sprintf(format, catalog.Term(valueOf(value))))
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

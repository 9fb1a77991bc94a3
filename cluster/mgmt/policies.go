package mgmt

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// policyKind is either of the two kinds of policies.
type policyKind struct {
	path        string
	operator    bool
	read, write level
}

func describePolicy(p *catalog.Policy) api.Policy {
	return api.Policy{
		VHost: p.VHost, Name: p.Name, Pattern: p.Pattern, ApplyTo: p.ApplyTo,
		Definition: ObjectOf(p.Definition), Priority: p.Priority,
	}
}

func (s *Server) listPolicies(k policyKind) func(http.ResponseWriter, *request) {
	return func(w http.ResponseWriter, r *request) {
		vhosts, ok := r.vhosts()
		if !ok {
			s.notFound(w)
			return
		}
		var items []api.Policy
		for _, vhost := range vhosts {
			for _, p := range r.view.Policies(vhost, k.operator) {
				items = append(items, describePolicy(p))
			}
		}
		list(s, w, r, items)
	}
}

func (s *Server) getPolicy(k policyKind) func(http.ResponseWriter, *request) {
	return func(w http.ResponseWriter, r *request) {
		p, ok := r.view.Policy(r.PathValue("vhost"), r.PathValue("name"), k.operator)
		if !ok || !r.sees(p.VHost) {
			s.notFound(w)
			return
		}
		s.answer(w, http.StatusOK, describePolicy(p))
	}
}

func (s *Server) putPolicy(k policyKind) func(http.ResponseWriter, *request) {
	return func(w http.ResponseWriter, r *request) {
		if !r.sees(r.PathValue("vhost")) {
			s.noVHost(w)
			return
		}
		b, ok := s.body(w, r)
		if !ok || s.missing(w, b, "pattern", "definition") {
			return
		}
		m, err := policyFrom(b)
		if err == nil {
			m.Vhost, m.Name, m.Operator = r.PathValue("vhost"), r.PathValue("name"), k.operator
			err = r.view.ValidatePolicy(m)
		}
		if err == nil && !r.has(administrator) {
			err = r.view.MayPutPolicy(r.user.GetName(), m)
		}
		if err != nil {
			s.invalid(w, err)
			return
		}
		_, known := r.view.Policy(m.Vhost, m.Name, k.operator)
		err = s.propose(r.Context(), &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPolicy{PutPolicy: m}})
		s.changed(w, err, !known)
	}
}

// policyFrom reads what a policy is from a request's body.
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

func (s *Server) deletePolicy(k policyKind) func(http.ResponseWriter, *request) {
	return func(w http.ResponseWriter, r *request) {
		p, ok := r.view.Policy(r.PathValue("vhost"), r.PathValue("name"), k.operator)
		if !ok || !r.sees(p.VHost) {
			s.notFound(w)
			return
		}
		m := &logpb.DeletePolicy{Vhost: p.VHost, Name: p.Name, Operator: k.operator}
		s.changed(w, s.propose(r.Context(), &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeletePolicy{DeletePolicy: m}}), false)
	}
}

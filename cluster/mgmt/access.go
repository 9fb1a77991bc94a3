package mgmt

import (
	"errors"
	"net/http"
	"net/netip"
	"slices"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// level is the access level required by a request.
type level int

const (
	anybody    level = iota // no login
	management              // any of the tags below
	policymaker
	monitoring
	administrator
)

// levels gives the tags that grant a level, and the answer for users who lack them.
var levels = map[level]struct {
	tags   []string
	reason string
}{
	management:    {[]string{"management", "policymaker", "monitoring", "administrator"}, "Not management user"},
	policymaker:   {[]string{"policymaker", "administrator"}, "Not policymaker user"},
	monitoring:    {[]string{"monitoring", "administrator"}, "Not monitor user"},
	administrator: {[]string{"administrator"}, "Not administrator user"},
}

// request is a request that has been authorized.
type request struct {
	*http.Request
	view *catalog.View // as of the start of the request
	user *logpb.PutUser
	// detail is what the request asks for, except secrets.
	detail map[string]any
}

func (r *request) has(l level) bool {
	return slices.ContainsFunc(levels[l].tags, func(tag string) bool { return slices.Contains(r.user.GetTags(), tag) })
}

// hasNode reports whether the cluster has a node of this name.
func (r *request) hasNode(name string) bool {
	return slices.ContainsFunc(r.view.Nodes(), func(n *logpb.NodeState) bool { return n.GetName() == name })
}

// sees reports whether a vhost exists and the user may see it.
func (r *request) sees(vhost string) bool {
	if _, ok := r.view.VHost(vhost); !ok {
		return false
	}
	_, allowed := r.view.Permission(r.user.GetName(), vhost)
	return allowed || r.has(monitoring)
}

// vhosts lists the vhosts that a request is about: the one in its path, or all that the user may
// see. ok is false if the user sees no such vhost.
func (r *request) vhosts() (names []string, ok bool) {
	if name := r.PathValue("vhost"); name != "" {
		return []string{name}, r.sees(name)
	}
	for _, vh := range r.view.VHosts() {
		if r.sees(vh.GetName()) {
			names = append(names, vh.GetName())
		}
	}
	return names, true
}

// login authorizes a request, or answers it.
func (s *Server) login(w *responder, r *http.Request, need level) *request {
	if need == anybody {
		return &request{Request: r, view: s.catalog.View()}
	}
	name, password, ok := r.BasicAuth()
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if ok && !s.catalog.View().Initialized() {
		// A node that has just started and reaches no majority knows no users.
		w.answer(http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: "the node cannot check logins yet: " + s.node.NotReady()})
		return nil
	}
	if ok && err == nil {
		err = s.logins.Login(audit.With(r.Context(), audit.Origin{Protocol: "http", Address: r.RemoteAddr}), name, password, remote.Addr())
	}
	switch busy := (*fsm.Refusal)(nil); {
	case errors.As(err, &busy):
		w.answer(http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: busy.Text})
		return nil
	case !ok || err != nil:
		w.unauthorized("not_authorized", "Not_Authorized")
		return nil
	}
	reportLogin(r.Context())
	in := &request{Request: r, view: s.catalog.View()}
	in.user, _ = in.view.User(name)
	for _, l := range []level{management, need} {
		if !in.has(l) {
			s.auditRequest(in, audit.Refused, levels[l].reason)
			w.unauthorized("not_authorised", levels[l].reason)
			return nil
		}
	}
	return in
}

// LetsMonitor reports whether a request that is not for the API may see monitoring data; otherwise
// it is answered.
func (s *Server) LetsMonitor(w http.ResponseWriter, r *http.Request) bool {
	return s.login(&responder{w, s.slog, false}, r, monitoring) != nil
}

// orEmpty returns a list that JSON shows as an array, even if it is nil.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// seesClient reports whether the caller sees the connections and channels of a user: its own, and with
// the monitoring tag everybody's.
func (r *request) seesClient(user string) bool {
	return r.has(monitoring) || user == r.user.GetName()
}

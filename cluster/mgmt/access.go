package mgmt

import (
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"

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

// vhosts is that of the request, or answers it.
func (w *responder) vhosts(r *request) (names []string, ok bool) {
	if names, ok = r.vhosts(); !ok {
		w.notFound()
	}
	return names, ok
}

// queue finds the queue that a path names, or answers the request if the user sees none; nil: it did.
func (w *responder) queue(r *request) *catalog.Queue {
	q, ok := r.view.Queue(r.PathValue("vhost"), r.PathValue("name"))
	if !ok || !r.sees(q.VHost) {
		w.notFound()
		return nil
	}
	return q
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

// SetAudit sets the log for requests that change something and for refused ones. It is called
// before Serve.
func (s *Server) SetAudit(l *audit.Log) { s.audit = l }

// shown are the keys of bodies whose values the audit log shows. Everything else in a body may be a
// secret.
var shown = []string{
	"tags", "configure", "write", "read", "exchange", "pattern", "definition", "apply-to", "priority", "value",
	"description", "default_queue_type", "redeclare", "count", "ackmode", "due_at", "delay", "type", "durable", "auto_delete", "internal",
	"arguments", "routing_key", "users", "action", "node", "tag", "channel",
}

// auditBody keeps the content of a request for the audit log.
func (r *request) auditBody(b body) {
	for _, key := range shown {
		if v, ok := b[key]; ok {
			if r.detail == nil {
				r.detail = map[string]any{}
			}
			r.detail[key] = v
		}
	}
}

// recorder records the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap supports http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// perform answers a request, and audits it if it may have changed something or was refused.
func (s *Server) perform(w *responder, r *request, e *endpoint) {
	if s.audit == nil {
		e.answer(w, r)
		return
	}
	out := &recorder{ResponseWriter: w.ResponseWriter}
	e.answer(&responder{out, w.log, w.script}, r)
	refused := out.status == http.StatusUnauthorized || out.status == http.StatusForbidden
	switch {
	case refused:
		s.auditRequest(r, audit.Refused, "no right")
	case e.method == http.MethodGet || e.asks:
	case out.status >= http.StatusBadRequest:
		s.auditRequest(r, audit.Failed, http.StatusText(out.status))
	default:
		s.auditRequest(r, audit.OK, "")
	}
}

// auditRequest writes a line about a request of a logged-in user.
func (s *Server) auditRequest(r *request, outcome audit.Outcome, reason string) {
	e := audit.Event{
		Kind: kindOf(r.Pattern), Action: r.Method + " " + r.Pattern, User: r.user.GetName(),
		Origin: audit.Origin{Protocol: "http", Address: r.RemoteAddr}, Target: pathNames(r.Request), Detail: r.detail, Outcome: outcome, Reason: reason,
	}
	if outcome == audit.Refused {
		e.Kind = audit.Access
	}
	s.audit.Write(e)
}

// operative lists prefixes of the paths that change no definitions.
var operative = []string{"/api/quorate/", "/api/rebalance/", "/api/connections/", "/api/queues/", "/api/reset", "/api/auth/attempts/"}

func kindOf(path string) audit.Kind {
	if strings.HasPrefix(path, "/api/nodes/") || strings.HasPrefix(path, tokensPath) {
		return audit.Cluster
	}
	if path == "/api/queues/{vhost}/{name}" {
		return audit.Definition
	}
	if strings.HasSuffix(path, "/publish") {
		return audit.Operation
	}
	for _, p := range operative {
		if strings.HasPrefix(path, p) {
			return audit.Operation
		}
	}
	return audit.Definition
}

// targets are the names in a request's path.
func pathNames(r *http.Request) map[string]string {
	names := map[string]string{}
	for segment := range strings.SplitSeq(r.Pattern, "/") {
		if name, ok := strings.CutPrefix(segment, "{"); ok {
			if name = strings.TrimSuffix(name, "}"); name != "password" {
				names[name] = r.PathValue(name)
			}
		}
	}
	return names
}

package mgmt

import (
	"net/http"
	"strings"

	"github.com/quorate/quorate/cluster/audit"
)

// SetAudit sets the log for requests that change something and for refused ones. It is called
// before Serve.
func (s *Server) SetAudit(l *audit.Log) { s.audit = l }

// shown are the keys of bodies whose values the audit log shows. Everything else in a body may be a
// secret.
var shown = []string{
	"tags", "configure", "write", "read", "exchange", "pattern", "definition", "apply-to", "priority", "value",
	"description", "default_queue_type", "count", "ackmode", "due_at", "delay", "type", "durable", "auto_delete", "internal",
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

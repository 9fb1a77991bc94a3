package mgmt

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/origin"
)

// endpoint is one method of a path.
type endpoint struct {
	method string
	need   level
	answer func(w http.ResponseWriter, r *request)
}

// resource is a path and what may be done there.
type resource struct {
	path      string
	endpoints []endpoint
}

// get and its like make rows of the table of resources.
func get(need level, h func(http.ResponseWriter, *request)) endpoint {
	return endpoint{http.MethodGet, need, h}
}

func put(need level, h func(http.ResponseWriter, *request)) endpoint {
	return endpoint{http.MethodPut, need, h}
}

func remove(need level, h func(http.ResponseWriter, *request)) endpoint {
	return endpoint{http.MethodDelete, need, h}
}

func post(need level, h func(http.ResponseWriter, *request)) endpoint {
	return endpoint{http.MethodPost, need, h}
}

// resources is the table of all there is.
func (s *Server) resources() []resource {
	return slices.Concat([]resource{
		{"/api/version", []endpoint{get(management, s.version)}},
		{"/api/overview", []endpoint{get(management, s.overview)}},
		{"/api/whoami", []endpoint{get(management, s.whoami)}},
		{"/api/quorate/replicas", []endpoint{get(administrator, s.replicas)}},
		{"/api/quorate/status", []endpoint{get(administrator, s.status)}},
		{"/api/quorate/clock", []endpoint{get(administrator, s.clock)}},
		{"/api/quorate/settings", []endpoint{get(administrator, s.settings)}},
		{"/api/quorate/settings/{name}", []endpoint{put(administrator, s.putSetting), remove(administrator, s.deleteSetting)}},
		{"/api/quorate/settle", []endpoint{post(administrator, s.settle)}},
		{"/api/quorate/pprof/{profile}", []endpoint{get(administrator, s.profile)}},
	}, s.checks(), s.operations(), s.definitions(), s.membership(), s.tokens(), s.accounts())
}

// checks are the health checks.
func (s *Server) checks() []resource {
	const path = "/api/health/checks/"
	const leaderless = path + "quorum-queues-without-elected-leaders"
	check := []endpoint{get(management, s.leaderlessCheck)}
	return []resource{
		{path + "ready-to-serve-clients", []endpoint{get(anybody, s.readyCheck)}},
		{path + "is-in-service", []endpoint{get(anybody, s.readyCheck)}},
		{path + "alarms", []endpoint{get(management, s.alarmCheck)}},
		{path + "local-alarms", []endpoint{get(management, s.localAlarmCheck)}},
		{path + "quarantined-queues", []endpoint{get(management, s.quarantineCheck)}},
		{path + "unproven-replicas", []endpoint{get(management, s.unprovenCheck)}},
		{path + "leaders-make-progress", []endpoint{get(management, s.progressCheck)}},
		{path + "certificate-expiration/{within}/{unit}", []endpoint{get(management, s.expiryCheck)}},
		{path + "node-is-quorum-critical", []endpoint{get(management, s.criticalCheck)}},
		{leaderless + "/all-vhosts", check},
		{leaderless + "/all-vhosts/pattern/{pattern}", check},
		{leaderless + "/vhost/{vhost}", check},
		{leaderless + "/vhost/{vhost}/pattern/{pattern}", check},
	}
}

// operations are what operators do with nodes and leaders.
func (s *Server) operations() []resource {
	return []resource{
		{"/api/nodes", []endpoint{get(monitoring, s.nodes)}},
		{"/api/queues/quorum/{vhost}/{name}/status", []endpoint{get(management, s.members)}},
		{"/api/rebalance/queues", []endpoint{post(administrator, s.rebalanceAll)}},
		{"/api/quorate/rebalance", []endpoint{post(administrator, s.rebalance)}},
		{"/api/quorate/queues/{vhost}/{name}/leader", []endpoint{put(administrator, s.transfer)}},
		{"/api/quorate/queues/{vhost}/{name}/quarantine", []endpoint{remove(administrator, s.liftQuarantine)}},
		{"/api/quorate/limits/{name}", []endpoint{put(administrator, s.setLimit)}},
		{"/api/quorate/drain", []endpoint{post(administrator, s.drain)}},
		{"/api/quorate/revive", []endpoint{post(administrator, s.revive)}},
	}
}

// definitions are the resources of vhosts.
func (s *Server) definitions() []resource {
	rows := []resource{
		{"/api/vhosts", []endpoint{get(management, s.listVHosts)}},
		{"/api/vhosts/{vhost}", []endpoint{get(management, s.getVHost), put(administrator, s.putVHost), remove(administrator, s.deleteVHost)}},
		{"/api/vhosts/{vhost}/permissions", []endpoint{get(administrator, s.listPermissions)}},
		{"/api/queues", []endpoint{get(management, s.listQueues)}},
		{"/api/queues/{vhost}", []endpoint{get(management, s.listQueues)}},
		{"/api/queues/{vhost}/{name}", []endpoint{get(management, s.getQueue)}},
		{"/api/queues/{vhost}/{name}/get", []endpoint{post(management, s.takeMessages)}},
		{"/api/queues/{vhost}/{name}/messages/peek", []endpoint{get(management, s.peekMessages)}},
		{"/api/consumers", []endpoint{get(management, s.listConsumers)}},
		{"/api/consumers/{vhost}", []endpoint{get(management, s.listConsumers)}},
		{"/api/queues/{vhost}/{name}/bindings", []endpoint{get(management, s.bindingsOfQueue)}},
		{"/api/exchanges", []endpoint{get(management, s.listExchanges)}},
		{"/api/exchanges/{vhost}", []endpoint{get(management, s.listExchanges)}},
		{"/api/exchanges/{vhost}/{name}", []endpoint{get(management, s.getExchange)}},
		{"/api/exchanges/{vhost}/{name}/bindings/source", []endpoint{get(management, s.bindingsFromExchange)}},
		{"/api/exchanges/{vhost}/{name}/bindings/destination", []endpoint{get(management, s.bindingsToExchange)}},
		{"/api/connections", []endpoint{get(management, s.listConnections)}},
		{"/api/connections/{name}", []endpoint{get(management, s.getConnection), remove(management, s.closeConnections)}},
		{"/api/connections/username/{user}", []endpoint{get(management, s.listConnections), remove(management, s.closeConnections)}},
		{"/api/vhosts/{vhost}/connections", []endpoint{get(management, s.listConnections)}},
		{"/api/bindings", []endpoint{get(management, s.listBindings)}},
		{"/api/bindings/{vhost}", []endpoint{get(management, s.listBindings)}},
	}
	rows = append(rows, s.scheduled("/api/exchanges/{vhost}/{name}/delayed", exchangeStore)...)
	rows = append(rows, s.scheduled("/api/queues/{vhost}/{name}/scheduled", namedQueue)...)
	for _, k := range []policyKind{{"/api/policies", false, management, policymaker}, {"/api/operator-policies", true, policymaker, administrator}} {
		rows = append(rows,
			resource{k.path, []endpoint{get(k.read, s.listPolicies(k))}},
			resource{k.path + "/{vhost}", []endpoint{get(k.read, s.listPolicies(k))}},
			resource{k.path + "/{vhost}/{name}", []endpoint{
				get(k.read, s.getPolicy(k)), put(k.write, s.putPolicy(k)), remove(k.write, s.deletePolicy(k)),
			}})
	}
	return rows
}

// accounts are the resources of users.
func (s *Server) accounts() []resource {
	return []resource{
		{"/api/users", []endpoint{get(administrator, s.listUsers)}},
		{"/api/users/{user}", []endpoint{get(administrator, s.getUser), put(administrator, s.putUser), remove(administrator, s.deleteUser)}},
		{"/api/users/{user}/permissions", []endpoint{get(administrator, s.listPermissions)}},
		{"/api/users/{user}/topic-permissions", []endpoint{get(administrator, s.listTopicPermissions)}},
		{"/api/vhosts/{vhost}/topic-permissions", []endpoint{get(administrator, s.listTopicPermissions)}},
		{"/api/topic-permissions", []endpoint{get(administrator, s.listTopicPermissions)}},
		{"/api/topic-permissions/{vhost}/{user}", []endpoint{
			get(administrator, s.getTopicPermissions), put(administrator, s.putTopicPermission), remove(administrator, s.removeTopicPermission),
		}},
		{"/api/topic-permissions/{vhost}/{user}/{exchange}", []endpoint{
			get(administrator, s.getTopicPermissions), remove(administrator, s.removeTopicPermission),
		}},
		{"/api/vhost-limits", []endpoint{get(management, s.listVHostLimits)}},
		{"/api/vhost-limits/{vhost}", []endpoint{get(management, s.listVHostLimits)}},
		{"/api/vhost-limits/{vhost}/{name}", []endpoint{put(administrator, s.putLimit), remove(administrator, s.removeLimit)}},
		{"/api/user-limits", []endpoint{get(administrator, s.listUserLimits)}},
		{"/api/user-limits/{user}", []endpoint{get(administrator, s.listUserLimits)}},
		{"/api/user-limits/{user}/{name}", []endpoint{put(administrator, s.putLimit), remove(administrator, s.removeLimit)}},
		{"/api/permissions", []endpoint{get(administrator, s.listPermissions)}},
		{"/api/permissions/{vhost}/{user}", []endpoint{
			get(administrator, s.getPermission), put(administrator, s.putPermission), remove(administrator, s.removePermission),
		}},
	}
}

// router finds the resource of a path. It works on the escaped path, since
// names may hold slashes, or be one: that is what http.ServeMux, which takes
// such a segment for the end of the path, cannot do.
func (s *Server) router() http.Handler {
	type row struct {
		path      string
		segments  []string
		endpoints []endpoint
	}
	var rows []row
	for _, x := range s.resources() {
		rows = append(rows, row{x.path, strings.Split(x.path, "/"), x.endpoints})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin.SetHeaders(w.Header())
		w.Header().Set("Vary", "accept, accept-encoding, origin")
		segments := strings.Split(strings.TrimSuffix(r.URL.EscapedPath(), "/"), "/")
		for _, x := range rows {
			if names, ok := match(x.segments, segments); ok {
				r.Pattern = x.path
				for name, value := range names {
					r.SetPathValue(name, value)
				}
				s.serve(w, r, x.endpoints)
				return
			}
		}
		s.notFound(w)
	})
}

// match reports whether a path is one of a resource's, and which names are in
// it. A name is never empty.
func match(pattern, segments []string) (names map[string]string, ok bool) {
	if len(pattern) != len(segments) {
		return nil, false
	}
	names = map[string]string{}
	for i, want := range pattern {
		got, err := url.PathUnescape(segments[i])
		name, isName := strings.CutPrefix(want, "{")
		if err != nil || isName && got == "" || !isName && got != want {
			return nil, false
		}
		if isName {
			names[strings.TrimSuffix(name, "}")] = got
		}
	}
	return names, true
}

// serve finds the method and lets those use it who may. What everybody may use
// is answered to every page, too: it tells no more than that the node runs.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, endpoints []endpoint) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	need := management // even to be told what there is
	var found *endpoint
	var allowed []string
	for i, e := range endpoints {
		if e.method == method {
			found = &endpoints[i]
		}
		if e.method == method || e.need == anybody {
			need = e.need
		}
		allowed = append(allowed, e.method)
		if e.method == http.MethodGet {
			allowed = append(allowed, http.MethodHead)
		}
	}
	if need != anybody && !s.lets(w, r) {
		return
	}
	in := s.login(w, r, need)
	switch {
	case in == nil:
	case found != nil:
		s.perform(w, in, found)
	default:
		s.noMethod(w, method, allowed)
	}
}

// lets reports whether a request may come from where it does, with the body it
// has; else it is answered.
func (s *Server) lets(w http.ResponseWriter, r *http.Request) bool {
	if err := s.guard.Check(r); err != nil {
		s.answer(w, http.StatusForbidden, api.Failure{Error: "forbidden", Reason: err.Error()})
		return false
	}
	if !origin.HasType(r) {
		s.answer(w, http.StatusUnsupportedMediaType, api.Failure{Error: "unsupported_media_type", Reason: "a body must have the header Content-Type: application/json"})
		return false
	}
	return true
}

// noMethod answers a method that a path does not have.
func (s *Server) noMethod(w http.ResponseWriter, method string, allowed []string) {
	w.Header().Set("Allow", strings.Join(append(allowed, http.MethodOptions), ", "))
	if method == http.MethodOptions {
		w.WriteHeader(http.StatusOK)
		return
	}
	s.answer(w, http.StatusMethodNotAllowed, api.Failure{Error: "method_not_allowed", Reason: "Method Not Allowed"})
}

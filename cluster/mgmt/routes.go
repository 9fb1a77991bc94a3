package mgmt

import (
	"html/template"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/proto/logpb"
)

// endpoint is one method of a path.
type endpoint struct {
	method string
	need   level
	answer func(w *responder, r *request)
	body   int64 // bytes of a body, at most; 0: maxBody
	asks   bool  // it changes nothing, whatever its method
}

// asking says that the endpoint changes nothing.
func (e endpoint) asking() endpoint {
	e.asks = true
	return e
}

// upTo sets how long a body may be.
func (e endpoint) upTo(bytes int64) endpoint {
	e.body = bytes
	return e
}

// resource is a path and its methods.
type resource struct {
	path      string
	endpoints []endpoint
}

// get and the like make rows of the table of resources.
func get(need level, h func(*responder, *request)) endpoint {
	return endpoint{method: http.MethodGet, need: need, answer: h}
}

func put(need level, h func(*responder, *request)) endpoint {
	return endpoint{method: http.MethodPut, need: need, answer: h}
}

func remove(need level, h func(*responder, *request)) endpoint {
	return endpoint{method: http.MethodDelete, need: need, answer: h}
}

func post(need level, h func(*responder, *request)) endpoint {
	return endpoint{method: http.MethodPost, need: need, answer: h}
}

// resources is the table of all resources.
func (b *Backend) resources() []resource {
	return slices.Concat(b.inspection(), b.checks(), b.operations(), b.membership(), b.vhosts(), b.queues(), b.exchanges(), b.policies(), b.users(), b.definitions())
}

// inspection is about the cluster and the node that answers.
func (b *Backend) inspection() []resource {
	logins := &attempts{node: b.Node}
	i, set, name := inspection{b.Node}, settings{b.Settings}, clusterName{b.Node, b.Catalog}
	return []resource{
		{"/api/version", []endpoint{get(management, i.version)}},
		{"/api/overview", []endpoint{get(management, overview{b.Node, b.Queues, b.Traffic, b.Connections, b.newQueueType()}.get)}},
		{openAPIPath, []endpoint{get(management, description{b.resources}.get)}},
		{"/api/index.html", []endpoint{get(management, description{b.resources}.page)}},
		{"/api/cluster-name", []endpoint{get(management, name.get), put(administrator, name.put)}},
		{"/api/extensions", []endpoint{get(management, nothing)}},
		{"/api/feature-flags", []endpoint{get(monitoring, featureFlags)}},
		{"/api/feature-flags/{name}/enable", []endpoint{put(administrator, enableFlag)}},
		{"/api/deprecated-features", []endpoint{get(monitoring, deprecated{b.Connections}.list)}},
		{"/api/deprecated-features/used", []endpoint{get(monitoring, deprecated{b.Connections}.used)}},
		{"/api/reset", []endpoint{remove(administrator, resets{b.Traffic}.all)}},
		{"/api/reset/{node}", []endpoint{remove(administrator, resets{b.Traffic}.one)}},
		{"/api/auth/attempts/{node}", []endpoint{get(monitoring, logins.get), remove(administrator, logins.reset)}},
		{"/api/auth/attempts/{node}/source", []endpoint{get(monitoring, logins.sources), remove(administrator, logins.resetSources)}},
		{"/api/whoami", []endpoint{get(management, whoami)}},
		{"/api/quorate/replicas", []endpoint{get(administrator, i.replicas)}},
		{"/api/quorate/status", []endpoint{get(administrator, i.status)}},
		{"/api/quorate/clock", []endpoint{get(administrator, i.clock)}},
		{"/api/config/effective", []endpoint{get(administrator, b.effective)}},
		{"/api/quorate/settings", []endpoint{get(administrator, set.list)}},
		{"/api/quorate/settings/{name}", []endpoint{put(administrator, set.put), remove(administrator, set.remove)}},
		{"/api/quorate/settle", []endpoint{post(administrator, i.barrier)}},
		{"/api/quorate/pprof/{profile}", []endpoint{get(administrator, i.profile)}},
	}
}

// checks are the health checks.
func (b *Backend) checks() []resource {
	const path = "/api/health/checks/"
	const leaderless = path + "quorum-queues-without-elected-leaders"
	h := healthChecks{b.Node, b.Cluster}
	check := []endpoint{get(management, h.leaderlessCheck)}
	return []resource{
		{path + "ready-to-serve-clients", []endpoint{get(anybody, h.readyCheck)}},
		{path + "is-in-service", []endpoint{get(anybody, h.readyCheck)}},
		{path + "is-alive", []endpoint{get(anybody, h.aliveCheck)}},
		{"/readyz", []endpoint{get(anybody, h.readyCheck)}},
		{"/healthz", []endpoint{get(anybody, h.aliveCheck)}},
		{"/api/healthchecks/node", []endpoint{get(management, h.localAlarmCheck)}},
		{"/api/healthchecks/node/{node}", []endpoint{get(management, h.nodeAlarmCheck)}},
		{path + "alarms", []endpoint{get(management, h.alarmCheck)}},
		{path + "local-alarms", []endpoint{get(management, h.localAlarmCheck)}},
		{path + "quarantined-queues", []endpoint{get(management, h.quarantineCheck)}},
		{path + "unproven-replicas", []endpoint{get(management, h.unprovenCheck)}},
		{path + "closed-replicas", []endpoint{get(management, h.closedCheck)}},
		{path + "parked-messages", []endpoint{get(management, h.parkedCheck)}},
		{path + "leaders-make-progress", []endpoint{get(management, h.progressCheck)}},
		{path + "certificate-expiration/{within}/{unit}", []endpoint{get(management, h.expiryCheck)}},
		{path + "port-listener/{port}", []endpoint{get(management, h.portCheck)}},
		{path + "protocol-listener/{protocols}", []endpoint{get(management, h.protocolCheck)}},
		{path + "virtual-hosts", []endpoint{get(management, h.vhostCheck)}},
		{path + "metadata-store/initialized", []endpoint{get(management, h.catalogCheck)}},
		{path + "metadata-store/initialized/with-data", []endpoint{get(management, h.catalogCheck)}},
		{path + "below-node-connection-limit", []endpoint{get(management, h.limitCheck)}},
		{path + "reached-target-cluster-size", []endpoint{get(management, h.sizeCheck)}},
		{"/api/aliveness-test/{vhost}", []endpoint{get(management, h.aliveness)}},
		{path + "node-is-quorum-critical", []endpoint{get(management, h.criticalCheck)}},
		{leaderless + "/all-vhosts", check},
		{leaderless + "/all-vhosts/pattern/{pattern}", check},
		{leaderless + "/vhost/{vhost}", check},
		{leaderless + "/vhost/{vhost}/pattern/{pattern}", check},
	}
}

// operations are what operators do with nodes and leaders.
func (b *Backend) operations() []resource {
	o := operations{b.Cluster, b.Node, b.Placement, b.Resources}
	return []resource{
		{"/api/nodes", []endpoint{get(monitoring, o.nodes)}},
		{"/api/nodes/{node}/memory", []endpoint{get(monitoring, memory{b.Node, b.Cluster}.get)}},
		{"/api/queues/quorum/{vhost}/{name}/status", []endpoint{get(management, o.members)}},
		{"/api/rebalance/queues", []endpoint{post(administrator, o.rebalanceAll)}},
		{"/api/quorate/rebalance", []endpoint{post(administrator, o.rebalance)}},
		{"/api/quorate/queues/{vhost}/{name}/leader", []endpoint{put(administrator, o.transfer)}},
		{"/api/quorate/queues/{vhost}/{name}/verify", []endpoint{get(administrator, history{b.History}.verify)}},
		{"/api/quorate/catalog/verify", []endpoint{get(administrator, history{b.History}.verifyCatalog)}},
		{"/api/quorate/queues/{vhost}/{name}/quarantine", []endpoint{remove(administrator, o.liftQuarantine)}},
		{"/api/quorate/limits/{name}", []endpoint{put(administrator, o.setLimit)}},
		{"/api/quorate/backup", []endpoint{post(administrator, backups{b.Backups}.create)}},
		{"/api/quorate/restore", []endpoint{post(administrator, backups{b.Backups}.restore).upTo(math.MaxInt64)}},
		{"/api/quorate/queues/{vhost}/{name}/export", []endpoint{post(administrator, backups{b.Backups}.export)}},
		{"/api/quorate/queues/{vhost}/{name}/import", []endpoint{post(administrator, backups{b.Backups}.bring).upTo(math.MaxInt64)}},
		{"/api/quorate/drain", []endpoint{post(administrator, o.drain)}},
		{"/api/quorate/revive", []endpoint{post(administrator, o.revive)}},
	}
}

// membership is about the nodes of the cluster, and those that have replicas of queues.
func (b *Backend) membership() []resource {
	m, t := members{b.Placement}, membership{b.Membership}
	return []resource{
		{"/api/queues/quorum/{vhost}/{name}/replicas/add", []endpoint{post(administrator, changeOne(b.Placement.AddMember))}},
		{"/api/queues/quorum/{vhost}/{name}/replicas/delete", []endpoint{remove(administrator, changeOne(b.Placement.DeleteMember))}},
		{"/api/queues/quorum/replicas/on/{node}/grow", []endpoint{post(administrator, changeMany(b.Placement.Grow))}},
		{"/api/queues/quorum/replicas/on/{node}/shrink", []endpoint{remove(administrator, changeMany(b.Placement.Shrink))}},
		{"/api/queues/quorum/replicas/grow-to-count", []endpoint{post(administrator, changeMany(m.growTo))}},
		{"/api/nodes/{node}", []endpoint{get(monitoring, operations{cluster: b.Cluster}.node), remove(administrator, t.forgetNode)}},
		{tokensPath, []endpoint{get(administrator, t.list), post(administrator, t.create)}},
		{tokensPath + "/{id}", []endpoint{remove(administrator, t.revoke)}},
	}
}

// vhosts are the resources of vhosts and of their connections.
func (b *Backend) vhosts() []resource {
	v, c := vhosts{b.Catalog, b.Queues, b.Cluster, b.Traffic, b.Seeds, b.newQueueType()}, connections{b.Connections}
	ch := channels{b.Connections, b.Traffic, consumers{b.Queues, b.Node}}
	return []resource{
		{"/api/vhosts", []endpoint{get(management, v.list)}},
		{"/api/vhosts/{vhost}", []endpoint{get(management, v.get), put(administrator, v.put), remove(administrator, v.remove)}},
		{"/api/vhosts/{vhost}/deletion/protection", []endpoint{post(administrator, v.protect(true)), remove(administrator, v.protect(false))}},
		{"/api/vhosts/{vhost}/start/{node}", []endpoint{post(administrator, v.start)}},
		{"/api/connections", []endpoint{get(management, c.list)}},
		{"/api/connections/{name}", []endpoint{get(management, c.get), remove(management, c.closeAll)}},
		{"/api/connections/username/{user}", []endpoint{get(management, c.list), remove(management, c.closeAll)}},
		{"/api/vhosts/{vhost}/connections", []endpoint{get(management, c.list)}},
		{"/api/connections/{connection}/sessions", []endpoint{get(management, c.sessions)}},
		{"/api/channels", []endpoint{get(management, ch.list)}},
		{"/api/channels/{name}", []endpoint{get(management, ch.get)}},
		{"/api/connections/{connection}/channels", []endpoint{get(management, ch.list)}},
		{"/api/vhosts/{vhost}/channels", []endpoint{get(management, ch.list)}},
	}
}

// queues are the resources of queues, their messages and consumers.
func (b *Backend) queues() []resource {
	q, m, c := queues{b.Queues, b.Node, b.Cluster, b.Traffic}, messages{b.Messages, newShowing(b.Hold)}, consumers{b.Queues, b.Node}
	l, o := locks{b.Messages, b.Node}, sessions{b.Objects}
	return slices.Concat([]resource{
		{"/api/queues", []endpoint{get(management, q.list)}},
		{"/api/queues/detailed", []endpoint{get(management, q.list)}},
		{"/api/queues/{vhost}", []endpoint{get(management, q.list)}},
		{"/api/queues/{vhost}/{name}", []endpoint{get(management, q.get), put(management, o.putQueue), remove(management, o.deleteQueue)}},
		{"/api/queues/{vhost}/{name}/contents", []endpoint{remove(management, o.purge)}},
		{"/api/queues/{vhost}/{name}/actions", []endpoint{post(management, queueActions{b.Placement, b.Messages, b.Queues, b.Connections}.perform)}},
		{"/api/queues/{vhost}/{name}/get", []endpoint{post(management, m.take)}},
		{"/api/queues/{vhost}/{name}/deaths", []endpoint{get(management, history{b.History}.deaths)}},
		{"/api/queues/{vhost}/{name}/explain", []endpoint{get(management, history{b.History}.explain)}},
		{"/api/queues/{vhost}/{name}/messages/peek", []endpoint{get(management, m.peek)}},
		{"/api/queues/{vhost}/{name}/letters", []endpoint{get(management, m.letters)}},
		{"/api/queues/{vhost}/{name}/messages/delete", []endpoint{post(management, taking{messages: b.Messages, action: logpb.Take_DELETE}.perform)}},
		{"/api/queues/{vhost}/{name}/messages/move", []endpoint{post(management, taking{messages: b.Messages, action: logpb.Take_MOVE}.perform)}},
		{"/api/queues/{vhost}/{name}/messages/copy", []endpoint{post(management, taking{messages: b.Messages, action: logpb.Take_COPY}.perform)}},
		{"/api/queues/{vhost}/{name}/redrive", []endpoint{post(management, taking{messages: b.Messages, action: logpb.Take_REDRIVE}.perform), remove(management, taking{messages: b.Messages}.cancel)}},
		{"/api/queues/{vhost}/{name}/locks/{token}/renew", []endpoint{post(management, l.renew)}},
		{"/api/queues/{vhost}/{name}/locks/{token}/settle", []endpoint{post(management, l.settle)}},
		{"/api/queues/{vhost}/{name}/deferred", []endpoint{get(management, m.deferred)}},
		{"/api/queues/{vhost}/{name}/groups", []endpoint{get(management, m.groups)}},
		{"/api/queues/{vhost}/{name}/kick", []endpoint{post(management, retries{b.Messages, b.Queues}.retryNow)}},
		{"/api/queues/{vhost}/{name}/unpark", []endpoint{post(management, retries{b.Messages, b.Queues}.unpark)}},
		{"/api/queues/{vhost}/{name}/pause", []endpoint{post(management, pauses{b.Messages, b.Node}.pause)}},
		{"/api/queues/{vhost}/{name}/resume", []endpoint{post(management, pauses{b.Messages, b.Node}.resume)}},
		{"/api/queues/{vhost}/{name}/scaling", []endpoint{get(management, q.scaling)}},
		{"/api/queues/{vhost}/{name}/consumers", []endpoint{get(management, c.ofQueue)}},
		{"/api/queues/{vhost}/{name}/timeouts", []endpoint{get(management, c.timeoutsOfQueue)}},
		{"/api/quorate/time", []endpoint{get(management, ahead{b.Queues}.sum)}},
		{"/api/quorate/time/queues", []endpoint{get(management, ahead{b.Queues}.list)}},
		{"/api/quorate/time/queues/{vhost}", []endpoint{get(management, ahead{b.Queues}.list)}},
		{"/api/quorate/timeouts", []endpoint{get(management, c.timeouts)}},
		{"/api/quorate/timeouts/{vhost}", []endpoint{get(management, c.timeouts)}},
		{"/api/drift", []endpoint{get(management, c.drifts)}},
		{"/api/drift/{vhost}", []endpoint{get(management, c.drifts)}},
		{"/api/consumers", []endpoint{get(management, c.list)}},
		{"/api/consumers/{vhost}", []endpoint{get(management, c.list)}},
		{"/api/queues/{vhost}/{name}/bindings", []endpoint{get(management, bindingsOfQueue)}},
	}, b.scheduled("/api/queues/{vhost}/{name}/scheduled", namedQueue))
}

// exchanges are the resources of exchanges and bindings.
func (b *Backend) exchanges() []resource {
	x, o := exchanges{b.Queues, b.Traffic}, sessions{b.Objects}
	const between = "/api/bindings/{vhost}/e/{source}/"
	return slices.Concat([]resource{
		{"/api/exchanges", []endpoint{get(management, x.list)}},
		{"/api/exchanges/{vhost}", []endpoint{get(management, x.list)}},
		{"/api/exchanges/{vhost}/{name}", []endpoint{get(management, x.get), put(management, o.putExchange), remove(management, o.deleteExchange)}},
		{"/api/exchanges/{vhost}/{name}/publish", []endpoint{post(management, o.publish).upTo(largeBody)}},
		{"/api/exchanges/{vhost}/{name}/bindings/source", []endpoint{get(management, bindingsFromExchange)}},
		{"/api/exchanges/{vhost}/{name}/bindings/destination", []endpoint{get(management, bindingsToExchange)}},
		{"/api/bindings", []endpoint{get(management, listBindings)}},
		{"/api/bindings/{vhost}", []endpoint{get(management, listBindings)}},
	}, bindings{o, false}.resources(between+"q/{destination}"), bindings{o, true}.resources(between+"e/{destination}"), b.scheduled("/api/exchanges/{vhost}/{name}/delayed", exchangeStore))
}

// resources are the resources of the bindings between two ends.
func (bs bindings) resources(path string) []resource {
	return []resource{
		{path, []endpoint{get(management, bs.list), post(management, bs.add)}},
		{path + "/{properties}", []endpoint{get(management, bs.get), remove(management, bs.remove)}},
	}
}

// scheduled are the resources of messages waiting at one kind of place.
func (b *Backend) scheduled(path string, at place) []resource {
	s := scheduled{b.Messages, b.Node, at}
	return []resource{
		{path, []endpoint{get(management, s.list), remove(management, s.cancelAll)}},
		{path + "/{id}", []endpoint{
			remove(management, s.reschedule(logpb.Schedule_CANCEL)),
			{method: http.MethodPatch, need: management, answer: s.reschedule(logpb.Schedule_MOVE)},
		}},
		{path + "/{id}/fire", []endpoint{post(management, s.reschedule(logpb.Schedule_FIRE))}},
	}
}

// policies are the resources of both kinds of policies.
func (b *Backend) policies() (rows []resource) {
	for _, k := range []struct {
		path        string
		operator    bool
		read, write level
	}{{"/api/policies", false, management, policymaker}, {"/api/operator-policies", true, policymaker, administrator}} {
		p := policies{b.Catalog, k.operator}
		rows = append(rows,
			resource{k.path, []endpoint{get(k.read, p.list)}},
			resource{k.path + "/{vhost}", []endpoint{get(k.read, p.list)}},
			resource{k.path + "/{vhost}/{name}", []endpoint{get(k.read, p.get), put(k.write, p.put), remove(k.write, p.remove)}},
			resource{k.path + "/{vhost}/{name}/try", []endpoint{post(k.write, p.try).asking()}})
	}
	return rows
}

// users are the resources of users, their permissions and limits.
func (b *Backend) users() []resource {
	u, p, t, q := users{b.Catalog, b.Logins}, permissions{b.Catalog}, topicPermissions{b.Catalog}, quotas{b.Catalog}
	return []resource{
		{"/api/users", []endpoint{get(administrator, u.list)}},
		{"/api/users/without-permissions", []endpoint{get(administrator, u.withoutPermissions)}},
		{"/api/auth/hash_password/{password}", []endpoint{get(administrator, hashPassword)}},
		{"/api/users/bulk-delete", []endpoint{post(administrator, u.removeMany)}},
		{"/api/users/{user}", []endpoint{get(administrator, u.get), put(administrator, u.put), remove(administrator, u.remove)}},
		{"/api/users/{user}/permissions", []endpoint{get(administrator, p.list)}},
		{"/api/vhosts/{vhost}/permissions", []endpoint{get(administrator, p.list)}},
		{"/api/users/{user}/topic-permissions", []endpoint{get(administrator, t.list)}},
		{"/api/vhosts/{vhost}/topic-permissions", []endpoint{get(administrator, t.list)}},
		{"/api/topic-permissions", []endpoint{get(administrator, t.list)}},
		{"/api/topic-permissions/{vhost}/{user}", []endpoint{get(administrator, t.get), put(administrator, t.put), remove(administrator, t.remove)}},
		{"/api/topic-permissions/{vhost}/{user}/{exchange}", []endpoint{get(administrator, t.get), remove(administrator, t.remove)}},
		{"/api/vhost-limits", []endpoint{get(management, q.ofVHosts)}},
		{"/api/vhost-limits/{vhost}", []endpoint{get(management, q.ofVHosts)}},
		{"/api/vhost-limits/{vhost}/{name}", []endpoint{put(administrator, q.put), remove(administrator, q.remove)}},
		{"/api/user-limits", []endpoint{get(administrator, q.ofUsers)}},
		{"/api/user-limits/{user}", []endpoint{get(administrator, q.ofUsers)}},
		{"/api/user-limits/{user}/{name}", []endpoint{put(administrator, q.put), remove(administrator, q.remove)}},
		{"/api/permissions", []endpoint{get(administrator, p.list)}},
		{"/api/permissions/{vhost}/{user}", []endpoint{get(administrator, p.get), put(administrator, p.put), remove(administrator, p.remove)}},
	}
}

// definitions are the resources of all definitions together, and of runtime parameters.
func (b *Backend) definitions() []resource {
	d, p := b.definitionsOf(), parameters{}
	g := globalParameters{b.Catalog}
	whole := []endpoint{get(administrator, d.export), post(administrator, d.load).upTo(definitionsBody)}
	return []resource{
		{"/api/definitions", whole},
		{"/api/all-configuration", whole},
		{"/api/definitions/{vhost}", whole},
		{"/api/parameters", []endpoint{get(policymaker, p.list)}},
		{"/api/parameters/{component}", []endpoint{get(policymaker, p.list)}},
		{"/api/parameters/{component}/{vhost}", []endpoint{get(policymaker, p.list)}},
		{"/api/parameters/{component}/{vhost}/{name}", []endpoint{get(policymaker, p.get), put(policymaker, p.put), remove(policymaker, p.remove)}},
		{"/api/global-parameters", []endpoint{get(policymaker, g.list)}},
		{"/api/global-parameters/{name}", []endpoint{get(policymaker, g.get), put(administrator, g.put), remove(administrator, g.remove)}},
	}
}

// openAPIPath is where the description of the API is.
const openAPIPath = "/api/openapi.json"

// tagNames are the levels by the tag that they are called after.
var tagNames = map[level]string{management: "management", policymaker: "policymaker", monitoring: "monitoring", administrator: "administrator"}

// description serves the table of routes as an OpenAPI document.
type description struct{ resources func() []resource }

func (d description) get(w *responder, _ *request) {
	w.answer(http.StatusOK, describeAPI(d.resources()))
}

// page shows the same to people: no script, no style, nothing from elsewhere.
func (d description) page(w *responder, _ *request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.written(routesPage.Execute(w, describeAPI(d.resources())))
}

var routesPage = template.Must(template.New("").Parse(`<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>HTTP API of quorate</title></head>
<body>
<h1>HTTP API of {{.Info.Title}} {{.Info.Version}}</h1>
<p>The tag is the least one that a user needs. Names in braces stand for one segment, in which / is written as %2F.
The same for tools: <a href="openapi.json">openapi.json</a>.</p>
<table>
<thead><tr><th scope="col">path</th><th scope="col">method</th><th scope="col">tag</th></tr></thead>
<tbody>{{range $path, $methods := .Paths}}{{range $method, $o := $methods}}
<tr><td><code>{{$path}}</code></td><td>{{$method}}</td><td>{{or $o.Tag "no login"}}</td></tr>{{end}}{{end}}
</tbody>
</table>
</body>
</html>
`))

// describeAPI describes the routes: their parameters, who may use them, and whether they take a body.
func describeAPI(resources []resource) api.OpenAPI {
	doc := api.OpenAPI{
		OpenAPI: "3.1.0", Info: api.OpenAPIInfo{Title: "quorate", Version: api.ProductVersion}, Paths: map[string]map[string]api.Operation{},
		Components: api.OpenAPIComponents{SecuritySchemes: map[string]api.SecurityScheme{"basic": {Type: "http", Scheme: "basic"}}},
	}
	for _, x := range resources {
		methods := map[string]api.Operation{}
		for _, e := range x.endpoints {
			o := api.Operation{Tag: tagNames[e.need], Responses: map[string]api.OpenAPIText{
				"2XX": {Description: "success"}, "4XX": {Description: "refused; the body is an error and its reason"},
			}}
			if e.need != anybody {
				o.Security = []map[string][]string{{"basic": {}}}
			}
			for segment := range strings.SplitSeq(x.path, "/") {
				if name, ok := strings.CutPrefix(segment, "{"); ok {
					o.Parameters = append(o.Parameters, api.OpenAPIParameter{Name: strings.TrimSuffix(name, "}"), In: "path", Required: true, Schema: api.OpenAPISchema{Type: "string"}})
				}
			}
			if e.method == http.MethodPut || e.method == http.MethodPost || e.method == http.MethodPatch {
				o.RequestBody = &api.OpenAPIBody{Content: map[string]api.OpenAPIMedia{"application/json": {Schema: api.OpenAPISchema{Type: "object"}}}}
			}
			methods[strings.ToLower(e.method)] = o
		}
		doc.Paths[x.path] = methods
	}
	return doc
}

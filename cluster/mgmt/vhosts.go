package mgmt

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// newQueueType is the type of a durable queue that names none in a vhost that names none.
func (b *Backend) newQueueType() string { return cmp.Or(b.DefaultQueueType, catalog.ClassicType) }

// vhosts serves vhosts, with the sum of their queues.
type vhosts struct {
	catalog Catalog
	queues  Queues
	cluster Cluster
	traffic Traffic
	seeds   *Seeds
	// newType is the queue type of new vhosts.
	newType string
}

func (vs vhosts) describe(r *request, row *logpb.PutVhost) api.VHost {
	v := api.VHost{
		Name: row.GetName(), Description: row.GetDescription(), Tags: orEmpty(row.GetTags()), DefaultQueueType: catalog.DefaultTypeOf(row),
		Redeclare: catalog.RedeclareOf(row), Metadata: metadataOf(row),
		ClusterState: map[string]string{}, ProtectedFromDeletion: row.GetProtected(),
	}
	for _, n := range r.view.Nodes() {
		v.ClusterState[n.GetName()] = "down"
		if vs.cluster.Online(n.GetName()) {
			v.ClusterState[n.GetName()] = "running"
		}
	}
	return v
}

func (vs vhosts) list(w *responder, r *request) {
	var numbers *stats.Numbers
	var report *traffic.Report
	wanted := r.URL.Query().Get("disable_stats") != "true"
	if wanted {
		numbers, report = vs.queues.Numbers(r.Context(), false, summedUp...), vs.traffic.Traffic(r.Context(), sums(r))
	}
	var items []api.VHost
	for _, row := range r.view.VHosts() {
		if !r.sees(row.GetName()) {
			continue
		}
		v := vs.describe(r, row)
		if wanted {
			v.Totals = totals(r.view, v.Name, numbers)
			addTraffic(&v, report)
		}
		items = append(items, v)
	}
	list(w, r, items)
}

func (vs vhosts) get(w *responder, r *request) {
	row, ok := r.view.VHost(r.PathValue("vhost"))
	if !ok || !r.sees(row.GetName()) {
		w.notFound()
		return
	}
	v := vs.describe(r, row)
	v.Totals = totals(r.view, v.Name, vs.queues.Numbers(r.Context(), false, summedUp...))
	addTraffic(&v, vs.traffic.Traffic(r.Context(), sums(r)))
	w.answer(http.StatusOK, v)
}

// addTraffic adds what the clients of a vhost do.
func addTraffic(v *api.VHost, report *traffic.Report) {
	a := report.VHosts[v.Name]
	v.MessageStats, v.LengthDetails = messageStats(a, report.Query, clusterCounters), lengthDetails(a, report.Query)
}

// put creates or changes a vhost. Its creator gets all permissions in it.
func (vs vhosts) put(w *responder, r *request) {
	b, ok := w.body(r)
	if !ok {
		return
	}
	m, err := vhostFrom(b)
	if err != nil {
		w.invalid(err)
		return
	}
	m.Name = r.PathValue("vhost")
	if was, known := r.view.VHost(m.Name); known { // what the request omits stays
		if _, said := b["description"]; !said {
			m.Description = was.GetDescription()
		}
		if _, said := b["tags"]; !said {
			m.Tags = was.GetTags()
		}
		if _, said := b["protected_from_deletion"]; !said {
			m.Protected = was.GetProtected()
		}
	}
	if err := b.redeclare(r.view, m); err != nil {
		w.invalid(err)
		return
	}
	r.view.PutVhostOfType(m, vs.newType)
	commands := []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_PutVhost{PutVhost: m}}}
	_, known := r.view.VHost(m.Name)
	if !known {
		seeds, err := vs.seeds.For(r.view, m.Name)
		if err != nil {
			w.failed(err)
			return
		}
		commands = append(commands, seeds...)
		commands = append(commands, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPermission{PutPermission: &logpb.PutPermission{
			User: r.user.GetName(), Vhost: m.Name, Configure: ".*", Write: ".*", Read: ".*",
		}}})
	}
	w.changed(propose(r.Context(), vs.catalog, commands...), !known)
}

func vhostFrom(b body) (m *logpb.PutVhost, err error) {
	m = &logpb.PutVhost{}
	if m.Description, err = b.text("description"); err != nil {
		return nil, err
	}
	if m.Tags, err = b.words("tags"); err != nil {
		return nil, err
	}
	if m.Protected, err = b.flag("protected_from_deletion", false); err != nil {
		return nil, err
	}
	m.DefaultQueueType, err = b.text("default_queue_type")
	switch kind := m.DefaultQueueType; {
	case err != nil, slices.Contains([]string{"", catalog.QuorumType, catalog.ClassicType, "undefined"}, kind):
		return m, err
	default:
		return m, fsm.Refuse(fsm.Precondition, kind+" is not a valid queue type")
	}
}

// redeclare reads what the vhost of m does with declares of what exists. Without a word of it a vhost that is there
// keeps its own.
func (b body) redeclare(v *catalog.View, m *logpb.PutVhost) error {
	word, err := b.text("redeclare")
	if err == nil {
		m.Redeclare, err = catalog.ParseRedeclare(word)
	}
	if row, known := v.VHost(m.Name); known && word == "" {
		m.Redeclare = row.GetRedeclare()
	}
	if err != nil {
		return err
	}
	return v.CheckRedeclare(m)
}

func (vs vhosts) remove(w *responder, r *request) {
	name := r.PathValue("vhost")
	if _, ok := r.view.VHost(name); !ok {
		w.notFound()
		return
	}
	m := &logpb.DeleteVhost{Name: name}
	err := propose(r.Context(), vs.catalog, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteVhost{DeleteVhost: m}})
	var refusal *fsm.Refusal
	if errors.As(err, &refusal) && refusal.Kind == fsm.Precondition {
		w.answer(http.StatusPreconditionFailed, api.Failure{Error: "precondition_failed", Reason: refusal.Text})
		return
	}
	w.changed(err, false)
}

// protect makes a vhost one that cannot be deleted, or can.
func (vs vhosts) protect(protected bool) func(*responder, *request) {
	return func(w *responder, r *request) {
		row, ok := r.view.VHost(r.PathValue("vhost"))
		if !ok {
			w.notFound()
			return
		}
		m := proto.CloneOf(row)
		m.Protected = protected
		w.changed(propose(r.Context(), vs.catalog, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: m}}), false)
	}
}

// start is for a vhost that has failed on a node. Here a vhost is served wherever a node is up.
func (vs vhosts) start(w *responder, r *request) {
	node := r.PathValue("node")
	_, known := r.view.VHost(r.PathValue("vhost"))
	switch {
	case !known || !r.hasNode(node):
		w.notFound()
	case !vs.cluster.Online(node):
		w.answer(http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: "node '" + node + "' is down"})
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// limitsOf returns the limits of vhosts, or of users, by their names.
func limitsOf(v *catalog.View, user bool) (names []string, values map[string]map[string]int64) {
	values = map[string]map[string]int64{}
	for _, m := range v.Limits(user) {
		if values[m.GetOf()] == nil {
			names, values[m.GetOf()] = append(names, m.GetOf()), map[string]int64{}
		}
		values[m.GetOf()][m.GetName()] = m.GetValue()
	}
	return names, values
}

// quotas serves the limits of vhosts and users.
type quotas struct{ catalog Catalog }

func (q quotas) ofVHosts(w *responder, r *request) {
	if _, ok := w.vhosts(r); !ok {
		return
	}
	var items []api.VHostLimits
	names, values := limitsOf(r.view, false)
	for _, name := range names {
		if r.sees(name) && r.concerns("", name) {
			items = append(items, api.VHostLimits{VHost: name, Value: values[name]})
		}
	}
	list(w, r, items)
}

func (q quotas) ofUsers(w *responder, r *request) {
	if !w.exist(r) {
		return
	}
	var items []api.UserLimits
	names, values := limitsOf(r.view, true)
	for _, name := range names {
		if r.concerns(name, "") {
			items = append(items, api.UserLimits{User: name, Value: values[name]})
		}
	}
	list(w, r, items)
}

// limit is the limit named by the path.
func (r *request) limit() *logpb.PutLimit {
	user := r.PathValue("user")
	m := &logpb.PutLimit{User: user != "", Of: user, Name: r.PathValue("name")}
	if !m.User {
		m.Of = r.PathValue("vhost")
	}
	return m
}

// put accepts only a JSON number, not a string.
func (q quotas) put(w *responder, r *request) {
	b, ok := w.body(r, "value")
	if !ok {
		return
	}
	m := r.limit()
	n, isNumber := b["value"].(json.Number)
	var err error
	if m.Value, err = strconv.ParseInt(n.String(), 10, 64); !isNumber || err != nil {
		w.invalid(fsm.Refuse(fsm.Precondition, m.Name+" should be an integer"))
		return
	}
	q.change(w, r, m)
}

func (q quotas) remove(w *responder, r *request) {
	m := r.limit()
	m.Unset = true
	q.change(w, r, m)
}

func (q quotas) change(w *responder, r *request, m *logpb.PutLimit) {
	err := propose(r.Context(), q.catalog, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutLimit{PutLimit: m}})
	if err != nil {
		w.invalid(err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

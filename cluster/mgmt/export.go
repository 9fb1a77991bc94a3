package mgmt

import (
	"slices"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// definitions serves all definitions of the cluster, or of one vhost, as one object.
type definitions struct {
	catalog Catalog
	users   users
	node    Node
	objects Objects
	seeds   *Seeds
	// newType is the queue type of new vhosts.
	newType string
}

// export answers with the definitions.
func (ds definitions) export(w *responder, r *request) {
	status := ds.node.Status()
	d := &api.Definitions{
		RabbitVersion: compatibility, RabbitMQVersion: compatibility, ProductName: "quorate", ProductVersion: ds.node.Version(),
		Format: "cluster", Cluster: status.Cluster, Explanation: "definitions of the cluster '" + status.Cluster + "'",
		Parameters: []api.Parameter{}, Policies: []api.DefinedPolicy{}, Queues: []api.DefinedQueue{}, Exchanges: []api.DefinedExchange{}, Bindings: []api.DefinedBinding{},
	}
	if vhost := r.PathValue("vhost"); vhost != "" {
		row, ok := r.view.VHost(vhost)
		if !ok {
			w.notFound()
			return
		}
		d.Format, d.Explanation = "single_virtual_host", "definitions of the vhost '"+vhost+"'"
		d.VHost, d.Description, d.DefaultQueueType = vhost, row.GetDescription(), catalog.DefaultTypeOf(row)
		_, limits := limitsOf(r.view, false)
		metadata := metadataOf(row)
		d.Metadata, d.Limits = &metadata, orNone(limits[vhost])
		exportVHost(r, d, vhost, "")
		w.export(d)
		return
	}
	exportUsers(r, d)
	for _, row := range r.view.VHosts() {
		name := row.GetName()
		d.VHosts = append(d.VHosts, api.DefinedVHost{Name: name, Description: row.GetDescription(), Tags: orEmpty(row.GetTags()), Metadata: metadataOf(row)})
		d.Parameters = append(d.Parameters, parametersOf(r, name)...)
		exportVHost(r, d, name, name)
	}
	w.export(d)
}

func metadataOf(row *logpb.PutVhost) api.VHostMetadata {
	return api.VHostMetadata{Description: row.GetDescription(), Tags: orEmpty(row.GetTags()), DefaultQueueType: catalog.DefaultTypeOf(row)}
}

// exportUsers adds the users and what they may do.
func exportUsers(r *request, d *api.Definitions) {
	d.Users, d.Permissions = []api.User{}, []api.Permission{}
	d.GlobalParameters = slices.DeleteFunc(globalParametersOf(r), func(p api.GlobalParameter) bool { return p.Name == importedHash })
	for _, u := range r.view.Users() {
		d.Users = append(d.Users, r.describeUser(u))
	}
	for _, p := range r.view.Permissions() {
		d.Permissions = append(d.Permissions, describePermission(p))
	}
	d.TopicPermissions = orEmpty(r.topicPermissions())
}

// exportVHost adds what is in a vhost. Left out are exclusive queues, stores of exchanges, and what
// every vhost has; called is how the objects name their vhost.
func exportVHost(r *request, d *api.Definitions, vhost, called string) {
	for _, p := range r.view.Policies(vhost, false) {
		d.Policies = append(d.Policies, api.DefinedPolicy{VHost: called, Name: p.Name, PolicyValue: policyValue(p)})
	}
	for _, q := range r.view.QueuesOf(vhost) {
		if !q.Exclusive && q.StoreOf == "" {
			d.Queues = append(d.Queues, api.DefinedQueue{Name: q.Name, VHost: called, Type: q.Type(), Durable: q.Durable, AutoDelete: q.AutoDelete, Arguments: ObjectOf(q.Arguments)})
		}
	}
	for _, x := range r.view.Exchanges(vhost) {
		if !strings.HasPrefix(x.Name, "amq.") {
			d.Exchanges = append(d.Exchanges, api.DefinedExchange{
				Name: x.Name, VHost: called, Type: x.DeclaredType(), Durable: x.Durable, AutoDelete: x.AutoDelete, Internal: x.Internal, Arguments: ObjectOf(x.Arguments),
			})
		}
	}
	for _, b := range r.view.Bindings(vhost) {
		if q, ok := r.view.Queue(vhost, b.Destination); ok && !b.ToExchange && q.Exclusive {
			continue
		}
		shown := describeBinding(b)
		d.Bindings = append(d.Bindings, api.DefinedBinding{
			Source: shown.Source, VHost: called, Destination: shown.Destination, DestinationType: shown.DestinationType, RoutingKey: shown.RoutingKey, Arguments: shown.Arguments,
		})
	}
}

func policyValue(p *catalog.Policy) api.PolicyValue {
	return api.PolicyValue{Pattern: p.Pattern, ApplyTo: p.ApplyTo, Definition: ObjectOf(p.Definition), Priority: p.Priority}
}

package stats

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/proto/peerpb"
)

// Alarms lists the alarms in effect at the nodes that are up, by node.
func (r *Replicas) Alarms(ctx context.Context) []api.Alarm {
	var list []api.Alarm
	// Only the alarms are needed; the catalog's replica is the cheapest to ask for.
	for node, reply := range r.askAll(ctx, CatalogGroup).Of {
		for _, a := range reply.Alarms {
			list = append(list, api.Alarm{Node: node, Resource: a})
		}
	}
	slices.SortFunc(list, func(a, b api.Alarm) int { return strings.Compare(a.Node, b.Node) })
	return list
}

// Nodes lists the nodes of the cluster by name. For those that do not answer little is known.
func (r *Replicas) Nodes(ctx context.Context) []api.Node {
	// Only memory and disk are needed; the catalog's replica is the cheapest to ask for.
	answers := r.askAll(ctx, CatalogGroup).Of
	var list []api.Node
	for _, state := range r.c.Catalog.View().Nodes() {
		x := nodeFrom(state.Name, answers[state.Name])
		x.Running, x.BeingDrained = r.nodes.Online(state.Name), r.c.Draining(state.Name)
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b api.Node) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// nodeFrom is what the answer of a node says; nil: it did not answer, and its numbers are zeros.
func nodeFrom(name string, reply *peerpb.ReplicasReply) api.Node {
	f := reply.GetResources()
	x := api.Node{
		Name: name, Type: "disc", Answers: reply != nil, MemoryUsed: f.GetMemoryUsed(), MemoryLimit: f.GetMemoryLimit(), MemoryAlarm: slices.Contains(reply.GetAlarms(), alarm.Memory),
		DiskFree: f.GetDiskFree(), DiskFreeLimit: f.GetDiskLimit(), DiskFreeAlarm: slices.Contains(reply.GetAlarms(), alarm.Disk),
		Held:        api.NewHeldMemory(f.GetHeldChannels(), f.GetHeldPublishes(), f.GetHeldAnswers(), f.GetHeldHttp()),
		NodeProcess: api.NodeProcess{RatesMode: "basic", Plugins: []string{}, Partitions: []string{}}, NodeRaft: raftFrom(f),
	}
	processFrom(&x.NodeProcess, f)
	return x
}

// describeRaft adds what this node does for the cluster.
func (r *Replicas) describeRaft(to *peerpb.NodeResources) {
	for _, g := range r.c.Host.Groups() {
		to.Replicas++
		if g.Leading() != 0 {
			to.Leaders++
		}
		if g.Doubt() != nil {
			to.Learners++
		}
	}
	to.SyncTime, to.ClockOffset = uint64(r.c.SyncLatency().Microseconds()), r.c.Local.Clock().OffsetMS
	for _, c := range r.c.Local.Certificates() {
		to.Certificates = append(to.Certificates, &peerpb.NodeCertificate{
			Protocol: c.Protocol, File: c.File, Ends: millis(c.Ends), AuthoritiesFile: c.AuthoritiesFile, AuthoritiesEnd: millis(c.AuthoritiesEnd),
		})
	}
}

// millis is an instant in ms since the epoch; 0: none.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// raftFrom is what the answer of a node says; nil: it did not answer.
func raftFrom(f *peerpb.NodeResources) api.NodeRaft {
	x := api.NodeRaft{
		Replicas: f.GetReplicas(), Leaders: f.GetLeaders(), Learners: f.GetLearners(),
		SyncMS: float64(f.GetSyncTime()) / 1000, ClockOffset: f.GetClockOffset(), Certificates: []api.NodeCertificate{},
	}
	for _, c := range f.GetCertificates() {
		x.Certificates = append(x.Certificates, api.NodeCertificate{
			Protocol: c.Protocol, File: c.File, ExpiresAt: c.Ends, AuthoritiesFile: c.AuthoritiesFile, AuthoritiesExpire: c.AuthoritiesEnd,
		})
	}
	return x
}

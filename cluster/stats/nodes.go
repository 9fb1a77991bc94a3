package stats

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/mgmt/api"
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
		x := api.Node{
			Name: state.Name, Type: "disc", Running: r.nodes.Online(state.Name), BeingDrained: r.c.Draining(state.Name),
			NodeProcess: api.NodeProcess{RatesMode: "basic", Plugins: []string{}, Partitions: []string{}},
		}
		if reply := answers[state.Name]; reply != nil {
			f := reply.Resources
			x.MemoryUsed, x.MemoryLimit, x.MemoryAlarm = f.GetMemoryUsed(), f.GetMemoryLimit(), slices.Contains(reply.Alarms, alarm.Memory)
			x.DiskFree, x.DiskFreeLimit, x.DiskFreeAlarm = f.GetDiskFree(), f.GetDiskLimit(), slices.Contains(reply.Alarms, alarm.Disk)
		}
		if reply := answers[state.Name]; reply != nil {
			f, p := reply.Resources, &x.NodeProcess
			p.UptimeMS, p.FilesUsed, p.FilesTotal, p.Processors = f.GetUptime(), f.GetFiles(), f.GetMaxFiles(), f.GetProcessors()
			p.Goroutines, p.Collections, p.RunQueue = f.GetGoroutines(), f.GetCollections(), f.GetRunnable()
			p.PID = strconv.FormatUint(uint64(f.GetPid()), 10)
		}
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b api.Node) int { return strings.Compare(a.Name, b.Name) })
	return list
}

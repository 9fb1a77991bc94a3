package stats

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/limit"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/procs"
	"github.com/quorate/quorate/cluster/traffic"
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
	for _, g := range r.c.Host.Those(nil) {
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

// describeProcess adds what this process uses of its host.
func (r *Replicas) describeProcess(to *peerpb.NodeResources) {
	l := r.Levels()
	files, _ := limit.Files() // 0 if it is not known
	to.Uptime, to.Pid, to.Files, to.MaxFiles = time.Since(r.began).Milliseconds(), uint32(os.Getpid()), uint32(l[traffic.FilesUsed]), uint32(files)
	to.Processors, to.Goroutines, to.Collections = uint32(procs.Processors()), uint32(l[traffic.Goroutines]), uint32(l[traffic.Collections])
	to.Runnable = uint32(runtimeNumber("/sched/goroutines/runnable:goroutines"))
	to.BytesReclaimed, to.ContextSwitches = l[traffic.BytesReclaimed], l[traffic.ContextSwitches]
	to.BytesRead, to.BytesWritten = l[traffic.BytesRead], l[traffic.BytesWritten]
	if r.c.Rates != nil {
		rates := r.c.Rates()
		to.Rates = rates[:]
	}
}

// Levels reads the numbers of this process whose rates are known. Those that the host does not tell
// are 0.
func (r *Replicas) Levels() traffic.Levels {
	var memory debug.GCStats
	debug.ReadGCStats(&memory)
	here := r.c.Resources()
	read, written := storageBytes()
	return traffic.Levels{
		traffic.MemoryUsed: uint64(here.MemoryUsed), traffic.DiskFree: uint64(here.DiskFree),
		traffic.FilesUsed: uint64(limit.OpenFiles()), traffic.Goroutines: uint64(runtime.NumGoroutine()),
		traffic.Collections: uint64(memory.NumGC), traffic.BytesReclaimed: runtimeNumber("/gc/heap/frees:bytes"),
		traffic.ContextSwitches: contextSwitches(), traffic.BytesRead: read, traffic.BytesWritten: written,
	}
}

// runtimeNumber is one that Go's runtime keeps; 0: this Go does not.
func runtimeNumber(name string) uint64 {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}

// contextSwitches counts those of the threads of this process; 0: not known.
func contextSwitches() uint64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return uint64(u.Nvcsw) + uint64(u.Nivcsw)
}

// storageBytes is how much this process has read from storage and written to it; 0: not known.
func storageBytes() (read, written uint64) {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0, 0
	}
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(": "))
		n, _ := strconv.ParseUint(string(value), 10, 64)
		switch string(name) {
		case "read_bytes":
			read = n
		case "write_bytes":
			written = n
		}
	}
	return read, written
}

// processFrom is what the answer of a node says of its process.
func processFrom(p *api.NodeProcess, f *peerpb.NodeResources) {
	p.UptimeMS, p.FilesUsed, p.FilesTotal, p.Processors = f.GetUptime(), f.GetFiles(), f.GetMaxFiles(), f.GetProcessors()
	p.Goroutines, p.Collections, p.RunQueue = f.GetGoroutines(), f.GetCollections(), f.GetRunnable()
	p.PID = strconv.FormatUint(uint64(f.GetPid()), 10)
	p.BytesReclaimed, p.ContextSwitches = f.GetBytesReclaimed(), f.GetContextSwitches()
	p.BytesRead, p.BytesWritten = f.GetBytesRead(), f.GetBytesWritten()
	for i, to := range [traffic.LevelCount]**api.Details{
		traffic.MemoryUsed: &p.MemoryRate, traffic.DiskFree: &p.DiskRate, traffic.FilesUsed: &p.FilesRate, traffic.Goroutines: &p.GoroutinesRate,
		traffic.Collections: &p.CollectionsRate, traffic.BytesReclaimed: &p.ReclaimedRate, traffic.ContextSwitches: &p.SwitchesRate,
		traffic.BytesRead: &p.ReadRate, traffic.BytesWritten: &p.WrittenRate,
	} {
		if i < len(f.GetRates()) {
			*to = &api.Details{Rate: f.Rates[i]}
		}
	}
}

package stats

import (
	"bytes"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"syscall"
	"time"

	"github.com/quorate/quorate/cluster/limit"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/proto/peerpb"
)

// describeProcess adds what this process uses of its host.
func (r *Replicas) describeProcess(to *peerpb.NodeResources) {
	l := r.Levels()
	files, _ := limit.Files() // 0 if it is not known
	to.Uptime, to.Pid, to.Files, to.MaxFiles = time.Since(r.began).Milliseconds(), uint32(os.Getpid()), uint32(l[traffic.FilesUsed]), uint32(files)
	to.Processors, to.Goroutines, to.Collections = uint32(runtime.GOMAXPROCS(0)), uint32(l[traffic.Goroutines]), uint32(l[traffic.Collections])
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

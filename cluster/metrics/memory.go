package metrics

import (
	"net/http"
	"runtime"

	dto "github.com/prometheus/client_model/go"
)

// memoryClass is one of the peer's classes of memory that has a counterpart here.
type memoryClass struct {
	name, help string
	bytes      func(s *runtime.MemStats) uint64
}

// memoryClasses divide what Go's runtime has from the system, as GET /api/nodes/{node}/memory does.
var memoryClasses = []memoryClass{
	{"binary_heap", "Objects on the heap, in bytes", func(s *runtime.MemStats) uint64 { return s.HeapAlloc }},
	{"other_erlang_process", "Stacks of goroutines, in bytes; the name is RabbitMQ's", func(s *runtime.MemStats) uint64 { return s.StackInuse }},
	{"other_system", "The runtime's own memory, in bytes", func(s *runtime.MemStats) uint64 {
		return s.GCSys + s.OtherSys + s.MSpanSys + s.MCacheSys + s.BuckHashSys
	}},
	{"runtime_allocated_unused", "Parts of the heap in use without an object, in bytes", func(s *runtime.MemStats) uint64 { return s.HeapInuse - s.HeapAlloc }},
	{"runtime_reserved_unallocated", "Idle parts of the heap that are not given back, in bytes", func(s *runtime.MemStats) uint64 { return s.HeapIdle - s.HeapReleased }},
}

// memoryBreakdown answers with what the memory of the node is used for.
func (m *Metrics) memoryBreakdown(w http.ResponseWriter, _ *http.Request) {
	families, err := m.registry.Gather()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	to := newScrape(w)
	for _, f := range families {
		switch f.GetName() {
		case "rabbitmq_identity_info":
			nameEndpoint(f, "memory-breakdown")
			to.write(f)
		case "rabbitmq_build_info":
			to.write(f)
		}
	}
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	for _, c := range memoryClasses {
		name, kind, value := aggregated+"memory_"+c.name+"_bytes", dto.MetricType_GAUGE, float64(c.bytes(&s))
		to.write(&dto.MetricFamily{Name: &name, Help: &c.help, Type: &kind, Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: &value}}}})
	}
}

// nameEndpoint says in rabbitmq_identity_info which page it is on.
func nameEndpoint(f *dto.MetricFamily, endpoint string) {
	for _, l := range f.Metric[0].Label {
		if l.GetName() == "rabbitmq_endpoint" {
			*l.Value = endpoint
		}
	}
}

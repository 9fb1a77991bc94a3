package metrics

import (
	"regexp"
	"testing"
)

// TestMemoryBreakdown: the page has the peer's names for what a Go program has, and says which node it is.
func TestMemoryBreakdown(t *testing.T) {
	text := scraped(t, handlerOf(t, func() Objects { return Objects{} }), "/metrics/memory-breakdown")
	for _, line := range []string{
		`rabbitmq_identity_info\{rabbitmq_cluster="c",rabbitmq_endpoint="memory-breakdown",rabbitmq_node="n1"\} 1`, `rabbitmq_build_info\{.*\} 1`,
		`rabbitmq_memory_binary_heap_bytes [1-9].*`, `rabbitmq_memory_other_erlang_process_bytes [1-9].*`, `rabbitmq_memory_other_system_bytes [1-9].*`,
		`rabbitmq_memory_runtime_allocated_unused_bytes [0-9].*`, `rabbitmq_memory_runtime_reserved_unallocated_bytes [0-9].*`,
	} {
		if !regexp.MustCompile("\n" + line + "\n").MatchString(text) {
			t.Errorf("there is no %s in %s", line, text)
		}
	}
}

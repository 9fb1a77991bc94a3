package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/report"
)

// Metrics of nodes.
const (
	diskSyncs  = "quorate_disk_syncs_total"
	framesSent = "quorate_peer_frames_sent_total"
	goroutines = "go_goroutines"
	termSum    = "rabbitmq_raft_term_total"
	logSum     = "rabbitmq_raft_last_written_index"
)

// running lists the nodes that are not killed.
func (c *crowd) running() (all []*cluster.Node) {
	for _, n := range c.own.Nodes {
		if n.Alive() {
			all = append(all, n)
		}
	}
	return all
}

// counts reads the metrics of all running nodes, and sums up those with the same name.
func (c *crowd) counts() map[string]float64 {
	sums := map[string]float64{}
	for _, n := range c.running() {
		for name, v := range c.countsOf(n) {
			sums[name] += v
		}
	}
	return sums
}

// countsOf reads the metrics of a node, and sums up those with the same name.
func (c *crowd) countsOf(n *cluster.Node) map[string]float64 {
	page := get(fetch(c.ctx, http.MethodGet, "http://"+get(n.Metrics())+"/metrics"))
	return get(seriesIn(string(page)))
}

// seriesIn sums up the series of a page of metrics that have the same name.
func seriesIn(page string) (map[string]float64, error) {
	sums := map[string]float64{}
	for line := range strings.Lines(page) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		at := strings.LastIndexByte(line, ' ') // the value of a label may have spaces
		name, _, _ := strings.Cut(line[:max(at, 0)], "{")
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metrics: %q: %w", line, err)
		}
		sums[name] += v
	}
	return sums, nil
}

// footprint is what nodes hold in memory, summed up: in bytes, live objects of the heap and goroutines.
type footprint struct{ resident, heap, objects, stacks, goroutines float64 }

// footprint reads what the nodes hold. The heap is that after a garbage collection, the second one, since pools
// are emptied by two.
func (c *crowd) footprint() (f footprint) {
	f.resident, f.goroutines = get(residentBytes(c.pids)), c.counts()[goroutines]
	for _, n := range c.running() {
		url := "http://" + n.HTTP + "/api/quorate/pprof/heap?gc=1&debug=1"
		get(fetch(c.ctx, http.MethodGet, url))
		page := string(get(fetch(c.ctx, http.MethodGet, url)))
		f.heap += get(memstat(page, "HeapAlloc"))
		f.objects += get(memstat(page, "HeapObjects"))
		f.stacks += get(memstat(page, "Stack"))
	}
	return f
}

// memstat returns a number of the runtime's memory statistics at the end of a heap profile.
func memstat(page, name string) (float64, error) {
	for line := range strings.Lines(page) {
		if v, ok := strings.CutPrefix(line, "# "+name+" = "); ok {
			v, _, _ = strings.Cut(strings.TrimSpace(v), " ") // of stacks: those in use, before all
			return strconv.ParseFloat(v, 64)
		}
	}
	return 0, fmt.Errorf("a heap profile without %s", name)
}

// note records what n queues hold at each of the nodes beyond what they held without queues.
func (f footprint) note(r *report.Result, empty footprint, n, nodes int) {
	r.PeakRSS = f.resident
	each := func(now, then float64) float64 { return (now - then) / float64(n) / float64(nodes) }
	r.Note("resident memory per queue and node", each(f.resident, empty.resident)/1024, "KiB")
	r.Note("live heap per queue and node", each(f.heap, empty.heap)/1024, "KiB")
	r.Note("live objects per queue and node", each(f.objects, empty.objects), "")
	r.Note("stacks per queue and node", each(f.stacks, empty.stacks)/1024, "KiB")
	r.Note("goroutines per queue and node", each(f.goroutines, empty.goroutines), "")
	r.Note("goroutines per node", f.goroutines/float64(nodes), "")
	r.Note("goroutines per node without queues", empty.goroutines/float64(nodes), "")
}

// replicas asks a node about its replicas, and not for the hashes of their states.
func (c *crowd) replicas(n *cluster.Node) (all []cluster.Replica) {
	must(json.Unmarshal(get(fetch(c.ctx, http.MethodGet, "http://"+n.HTTP+"/api/quorate/replicas?hash=false")), &all))
	return all
}

// terms asks the running nodes for the raft term of each queue: the highest one known by any of its
// replicas.
func (c *crowd) terms() map[string]uint64 {
	terms := map[string]uint64{}
	for _, n := range c.running() {
		for _, r := range c.replicas(n) {
			terms[r.Name] = max(terms[r.Name], r.Term)
		}
	}
	return terms
}

// led lists the queues that a node leads.
func (c *crowd) led(n *cluster.Node) map[string]bool {
	led := map[string]bool{}
	for _, r := range c.replicas(n) {
		if r.Leader {
			led[r.Name] = true
		}
	}
	return led
}

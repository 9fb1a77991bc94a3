package mgmt

import (
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/origin"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/peerpb"
)

// idle is a group that nothing runs for: it has numbers, and no machine.
type idle struct {
	spec  group.Spec
	stats group.Stats
}

func (g *idle) Spec() group.Spec   { return g.spec }
func (g *idle) IsLocal() bool      { return false }
func (g *idle) Stats() group.Stats { return g.stats }
func (g *idle) Progress() replica.Progress {
	return replica.Progress{Role: "leader", Term: 2, Last: 4, Commit: 4, Applied: 4, Voter: true, Voters: []string{"n1", "n2", "n3"}}
}
func (g *idle) SnapshotIndex() int64           { return -1 }
func (g *idle) LogBytes() uint64               { return 0 }
func (g *idle) Quarantined() *group.Quarantine { return nil }
func (g *idle) Expire(time.Duration) error     { panic("nothing is due") }
func (g *idle) View(func(m *queue.Machine))    { panic("there is no machine") }

// idleGroups are those that a node leads.
type idleGroups map[fsm.GroupID]*idle

func (all idleGroups) Led() iter.Seq[stats.Group] {
	return func(yield func(stats.Group) bool) {
		for _, g := range all {
			if !yield(g) {
				return
			}
		}
	}
}

func (all idleGroups) Leads(id fsm.GroupID) stats.Group {
	if g := all[id]; g != nil {
		return g
	}
	return nil
}

// manyQueues is a node whose catalog has many queues, led by three nodes that are linked over the loopback device.
func manyQueues(t testing.TB, count int) *world {
	w := newWorld(t)
	w.declareMany(count)
	led := [3]idleGroups{{}, {}, {}}
	for i, q := range w.View().Queues() {
		n := uint64(i * 7919 % 1000)
		led[i%3][q.Group] = &idle{group.Spec{VHost: q.VHost, Name: q.Name, Queue: q.ID, Group: q.Group}, group.Stats{
			Applied: 4, Clock: 1000, LastActive: 1000, Ready: queue.Count{Messages: n, Bytes: 100 * n}, Priority: 4,
		}}
	}
	var listeners [3]net.Listener
	peers := map[string]string{}
	for i := range listeners {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i], peers[fmt.Sprint("n", i+1)] = l, l.Addr().String()
	}
	var first *stats.Queues
	var nodes [3]*peer.Mesh
	for i := range led {
		name, others := fmt.Sprint("n", i+1), map[string]string{}
		for node, at := range peers {
			if node != name {
				others[node] = at
			}
		}
		mesh, err := peer.New(peer.Config{Node: name, Cluster: "test", Listener: listeners[i], Incarnation: [16]byte{1 + byte(i)}, Peers: others})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { mesh.Close() })
		nodes[i] = mesh
		q := stats.NewQueues(&stats.Nodes{
			Self: name, Mesh: mesh, Logger: slog.New(slog.DiscardHandler),
			Try: func(_ string, f func()) bool { f(); return true },
		}, stats.QueuesConfig{
			Kind: self.KindQueueStats, ConsumersKind: self.KindConsumers, TimeoutsKind: self.KindTimeouts, TimeKind: self.KindTime,
			Groups: led[i], Catalog: interface{ View() *catalog.View }(w), Clock: func() fsm.Time { return 2000 },
			Sessions: func() []*peerpb.ConsumingSession { return nil }, Timeouts: func() *peerpb.TimeoutsReply { return nil },
			DriftsKind: self.KindDrifts, Drifts: func() *peerpb.DriftsReply { return nil },
		})
		if i == 0 {
			first = q
		}
	}
	up := make(chan struct{}, 64)
	nodes[0].Watch(func(ev peer.Event) {
		if ev.Up {
			up <- struct{}{}
		}
	})
	for _, mesh := range nodes {
		mesh.Start()
	}
	for !nodes[0].Alive("n2") || !nodes[0].Alive("n3") {
		<-up
	}
	guard, err := origin.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := backendOf(w)
	b.Queues = first
	w.handler = New(b, slog.New(slog.DiscardHandler), guard).Handler()
	return w
}

// TestThreeNodes: lists and sums are the same whether all leaders are at one node or at three.
func TestThreeNodes(t *testing.T) {
	w := manyQueues(t, 2*largestPage)
	for path, parts := range map[string][]string{
		"/api/queues?page=2&page_size=2&sort=messages&sort_reverse=true&columns=name,messages,node": {`"messages":997`, `"total_count":1000`},
		"/api/queues?page=1&page_size=1&sort=leader&columns=name,leader":                            {`{"leader":"n1","name":"q000000"}`},
		"/api/queues?filter=leaderless&page=1":                                                      {`"filtered_count":0`},
		"/api/queues?sort=messages&columns=messages":                                                {`[{"messages":0},{"messages":1},{"messages":2},`, `{"messages":999}]`},
		"/api/overview": {`"queues_unknown":0`, `"messages":499500`, `"queues":1000`},
		"/api/vhosts":   {`"messages":499500`},
	} {
		answer := w.request("root", "GET", path, "").Body.String()
		for _, part := range parts {
			if !strings.Contains(answer, part) {
				t.Errorf("%s lacks %s: %.300s", path, part, answer)
			}
		}
	}
}

// discarded is an answer that nobody keeps.
type discarded struct {
	header http.Header
	status int
	bytes  int
}

func (d *discarded) Header() http.Header  { return d.header }
func (d *discarded) WriteHeader(code int) { d.status = code }
func (d *discarded) Write(b []byte) (int, error) {
	d.bytes += len(b)
	return len(b), nil
}

// processorTime is what this process has used: of all three nodes, and on a busy machine, too.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // which cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkHundredThousand is what lists and sums cost on three nodes, all in this process.
func BenchmarkHundredThousand(b *testing.B) {
	w := manyQueues(b, 100_000)
	const console = "columns=vhost,name,type,state,leader,online,members,messages_ready,messages_unacknowledged,messages_scheduled," +
		"consumers,message_stats.publish_details,policy"
	for _, path := range []string{
		"queues?page=1&page_size=100", "queues?page=500&page_size=100", "queues?page=1&page_size=500", "queues/%2F?page=1&page_size=100",
		"queues?page=7&page_size=100&sort=messages&sort_reverse=true", "queues?page=1&page_size=50&sort=name&" + console, "queues?page=1&page_size=50&sort=messages_ready&" + console,
		"queues?page=1&page_size=100&name=q0777", "queues?page=1&page_size=100&name=^q0[37].*7$&use_regex=true", "queues?page=1&page_size=50&sort=state", "queues?page=1&filter=leaderless",
		"queues?page=1&page_size=100&sort=message_stats.publish_details.rate", "queues?page=1&page_size=100&sort=raft.log_bytes",
		"overview", "vhosts", "queues?columns=name,messages", "queues?disable_stats=true&columns=name", "queues",
	} {
		b.Run(path, func(b *testing.B) {
			b.ReportAllocs()
			began := processorTime()
			for b.Loop() {
				r := httptest.NewRequest("GET", "/api/"+path, http.NoBody)
				r.SetBasicAuth("root", "root")
				d := &discarded{header: http.Header{}}
				if w.handler.ServeHTTP(d, r); d.status != http.StatusOK {
					b.Fatal(d.status)
				}
				b.ReportMetric(float64(d.bytes)/1e6, "MB")
			}
			b.ReportMetric(float64((processorTime()-began).Milliseconds())/float64(b.N), "cpu-ms/op")
		})
	}
}

package stats

import (
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/proto/peerpb"
)

// TestRunnable: goroutines that wait for a processor are counted.
func TestRunnable(t *testing.T) {
	stop := make(chan struct{})
	var busy sync.WaitGroup
	for range 2*runtime.GOMAXPROCS(0) + 1 {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	defer busy.Wait()
	defer close(stop)
	for runtimeNumber("/sched/goroutines/runnable:goroutines") == 0 {
		runtime.Gosched()
	}
}

// TestRaftFrom: everything that a node says is shown, and a node that does not answer has an empty list.
func TestRaftFrom(t *testing.T) {
	ends := time.UnixMilli(1_800_000_000_000)
	got := raftFrom(&peerpb.NodeResources{
		Replicas: 3, Leaders: 2, Learners: 1, SyncTime: 2500, ClockOffset: -7,
		Certificates: []*peerpb.NodeCertificate{{Protocol: "amqp/ssl", File: "cert.pem", Ends: millis(ends), AuthoritiesFile: "ca.pem", AuthoritiesEnd: millis(time.Time{})}},
	})
	want := api.NodeRaft{Replicas: 3, Leaders: 2, Learners: 1, SyncMS: 2.5, ClockOffset: -7, Certificates: []api.NodeCertificate{
		{Protocol: "amqp/ssl", File: "cert.pem", ExpiresAt: 1_800_000_000_000, AuthoritiesFile: "ca.pem"},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if got := raftFrom(nil); !reflect.DeepEqual(got, api.NodeRaft{Certificates: []api.NodeCertificate{}}) {
		t.Errorf("%+v", got)
	}
}

// TestNodeDown: of a node that does not answer, every number is a zero, the id of its process too.
func TestNodeDown(t *testing.T) {
	x := nodeFrom("n9", nil)
	if x.Name != "n9" || x.Type != "disc" || x.PID != "0" || x.RatesMode != "basic" || x.Answers || x.Plugins == nil || x.Certificates == nil || x.MemoryAlarm || x.DiskFreeAlarm {
		t.Errorf("%+v", x)
	}
	up := nodeFrom("n1", &peerpb.ReplicasReply{Alarms: []string{alarm.Disk}, Resources: &peerpb.NodeResources{MemoryUsed: 1, MemoryLimit: 2, DiskFree: 3, DiskLimit: 4, Pid: 5, HeldChannels: 6, HeldPublishes: 7, HeldAnswers: 8, HeldHttp: 9}})
	if up.MemoryUsed != 1 || up.MemoryLimit != 2 || up.DiskFree != 3 || up.DiskFreeLimit != 4 || up.PID != "5" || up.MemoryAlarm || !up.DiskFreeAlarm || up.Held != (api.HeldMemory{Channels: 6, Publishes: 7, Answers: 8, HTTP: 9, Total: 30}) {
		t.Errorf("%+v", up)
	}
}

// TestProcess: a process tells the numbers that its host keeps, and a rate is shown with its number.
func TestProcess(t *testing.T) {
	var rates [traffic.LevelCount]float64
	for i := range rates {
		rates[i] = float64(i) + 0.5
	}
	r := &Replicas{c: ReplicasConfig{
		Resources: func() alarm.Resources { return alarm.Resources{MemoryUsed: 7, DiskFree: 8} },
		Rates:     func() [traffic.LevelCount]float64 { return rates },
	}}
	runtime.GC()
	if l := r.Levels(); l[traffic.MemoryUsed] != 7 || l[traffic.DiskFree] != 8 || l[traffic.FilesUsed] == 0 || l[traffic.Goroutines] == 0 ||
		l[traffic.Collections] == 0 || l[traffic.BytesReclaimed] == 0 || l[traffic.ContextSwitches] == 0 {
		t.Errorf("levels %d", l)
	}
	var f peerpb.NodeResources
	r.describeProcess(&f)
	f.BytesRead, f.BytesWritten = 5, 6 // some hosts tell nobody
	var p api.NodeProcess
	processFrom(&p, &f)
	v := reflect.ValueOf(p.NodeRates)
	seen := map[float64]bool{}
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("%s is missing", v.Type().Field(i).Name)
		} else if d, ok := v.Field(i).Interface().(*api.Details); ok {
			seen[d.Rate] = true
		}
	}
	if len(seen) != len(rates) || p.WrittenRate.Rate != 8.5 || p.MemoryRate.Rate != 0.5 || p.ReclaimedRate.Rate != 5.5 {
		t.Errorf("rates %v", seen)
	}
	p = api.NodeProcess{}
	if processFrom(&p, &peerpb.NodeResources{Rates: []float64{1}}); p.MemoryRate == nil || p.DiskRate != nil {
		t.Errorf("of another program: %+v", p.NodeRates)
	}
}

package stats

import (
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
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
	for runnable() == 0 {
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

package cluster

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A process that is starved takes as long as its share says, and goes on at full speed afterwards.
func TestStarve(t *testing.T) {
	if err := NoStarving(); err != nil {
		t.Skip(err)
	}
	const share, works = 0.1, 100 * time.Millisecond
	loop := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = loop.Wait() }()
	defer func() { _ = loop.Process.Kill() }()
	n := &Node{PID: loop.Process.Pid}
	fed, err := Starve(share, n)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	first, err := n.Processor()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for used := first; err == nil && used < first+works; used, err = n.Processor() {
		<-tick.C
	}
	took := time.Since(began)
	if t.Logf("%v of a processor in %v", works, took.Round(time.Millisecond)); err != nil || took < time.Duration(float64(works)/share)/2 {
		t.Errorf("%v of a processor in %v, at a share of %v: %v", works, took, share, err)
	}
	if err := fed(); err != nil {
		t.Fatal(err)
	}
	groups, err := os.ReadFile("/proc/" + strconv.Itoa(n.PID) + "/cgroup")
	if err != nil || strings.Contains(string(groups), "quorate-") {
		t.Errorf("it is still starved: %s, %v", groups, err)
	}
}

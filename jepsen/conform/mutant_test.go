package conform

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

var (
	mutant = flag.Duration("mutant", 0, "TestLateMutant: how late its timers are; 0: it is not run")
	late   = flag.Duration("late", 0, "rows run against nodes whose timers are so late; nearly all timed ones must fail")
)

// lateTimers is the fault: every alarm of a queue's timers goes off later.
func lateTimers(by time.Duration) cluster.Change {
	const line = "at := max(t.clock()+wait, notBefore)"
	return cluster.Change{File: "cluster/host/ticker.go", Old: line, New: fmt.Sprintf("%s + %d", line, by)}
}

// build builds the server under test.
func build(dir string) (string, error) {
	if *late > 0 {
		return cluster.BuildChanged(context.Background(), dir, lateTimers(*late))
	}
	return cluster.Build(context.Background(), dir)
}

// timedSuites are the tests that the mutant has to fail.
const timedSuites = "^(TestTTL|TestLease|TestDeadLetters|TestExpiryAnywhere|TestHold|TestDelayed|TestKeep|TestIdle|TestDelivery|TestTimeout|TestLocal|TestLimits|TestAMQP|TestSchedule|TestClocks|TestRough|TestOutages)$"

// mustNotice are rows of every kind of timer. The others that fail, fail too.
var mustNotice = strings.Fields("L01 L09 L18 L19 L20 E03 E10 E16 D03 D04 D44 H01 H02 H03 H05 H09 T-1 T-10 T-11 T-12 T-13 T-25 T-31 T-35 T-40 T-41 T-48 T-61 T-63 T-70 T-71 T-79 T-81 T-90 T-93 T-101 T-102 T-163 T-164 T-172 Q-D28 Q-R4 CT1 CT5 CT6 CT7 CT12 CT18 CT22 CT24 M14 A095")

// TestLateMutant runs the timed rows against nodes whose timers are late: the
// rows must say so.
func TestLateMutant(t *testing.T) {
	if *mutant == 0 {
		t.Skip("takes minutes: -mutant 8s")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, os.Args[0], "-test.run", timedSuites, "-test.v", "-late", mutant.String())
	run.Stderr = os.Stderr
	out, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	results := regexp.MustCompile(`^\s+--- (PASS|FAIL): \w+/(\S+) `)
	rows := map[string][]string{}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if m := results.FindStringSubmatch(lines.Text()); m != nil {
			rows[m[1]] = append(rows[m[1]], m[2])
		}
	}
	if err := run.Wait(); err == nil {
		t.Error("all rows pass")
	}
	slices.Sort(rows["FAIL"])
	t.Logf("timers %v late: %d rows fail, %d pass\n%s", *mutant, len(rows["FAIL"]), len(rows["PASS"]), strings.Join(rows["FAIL"], " "))
	for _, row := range mustNotice {
		if !slices.Contains(rows["FAIL"], row) {
			t.Errorf("row %s does not notice", row)
		}
	}
}

// TestMutantFits finds what the mutant changes, so that a change of the timers
// does not leave it behind.
func TestMutantFits(t *testing.T) {
	if _, _, err := lateTimers(8 * time.Second).Apply(); err != nil {
		t.Fatal(err)
	}
}

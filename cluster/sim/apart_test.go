package sim

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

var here = flag.Bool("sim.here", false, "play in this process, whose virtual time stands still while somebody waits for a mutex")

// The Go runtime's list of what a goroutine waits for while virtual time passes has
// no mutexes: their holder may be outside of the simulation. None is here. A disk
// that hangs does so under mutexes of the stores, and what waits for these must not
// keep the disk from working again.
const waits = "\twaitReasonSleep:                 true,\n"

// passing is the change of the runtime that adds them.
func passing(ctx context.Context) (cluster.Change, error) {
	root, err := cluster.Root()
	if err != nil {
		return cluster.Change{}, err
	}
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return cluster.Change{}, fmt.Errorf("go env GOROOT: %w", err)
	}
	file, err := filepath.Rel(root, filepath.Join(strings.TrimSpace(string(out)), "src", "runtime", "runtime2.go"))
	return cluster.Change{
		File: filepath.ToSlash(file), Old: waits,
		New: waits + "\twaitReasonSyncMutexLock: true,\n\twaitReasonSyncRWMutexRLock: true,\n\twaitReasonSyncRWMutexLock: true,\n",
	}, err
}

// mustBuild builds this package's tests, with these changes and with virtual time that
// passes while somebody waits for a mutex.
func mustBuild(t *testing.T, name string, changes ...cluster.Change) (binary string) {
	t.Helper()
	dir := t.TempDir()
	binary = filepath.Join(dir, name+".test")
	runtime, err := passing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := cluster.Overlay(dir, name, append(changes, runtime)...)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-ldflags", "-s -w", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, out)
	}
	return binary
}

// mustPlayApart plays what the flags say in processes of their own, each script of
// -sim.hours in one.
func mustPlayApart(t *testing.T) {
	binary := mustBuild(t, "sim")
	if *oneSeed != 0 || *scriptFile != "" {
		run(t, binary, "-sim.seed", fmt.Sprint(*oneSeed), "-sim.script", *scriptFile, "-sim.hours", fmt.Sprint(*hours), "-sim.keep", *keepIn)
		return
	}
	var all sums
	for seed := cmp.Or(*firstSeed, uint64(time.Now().UnixNano())); all.virtual.Hours() < *hours && all.died < maxDeaths; seed++ {
		args := []string{"-sim.seed", fmt.Sprint(seed), "-sim.hours", "1"}
		if *keepIn != "" {
			args = append(args, "-sim.keep", filepath.Join(*keepIn, fmt.Sprint(seed)))
		}
		all.add(run(t, binary, args...))
	}
	t.Logf("%d scripts, %.2f virtual hours, %d messages confirmed, %v of processors; %d scripts ended without a result",
		all.scripts, all.virtual.Hours(), all.confirmed, all.used.Round(time.Second), all.died)
}

// run plays in another process, and returns what it says.
func run(t *testing.T, binary string, args ...string) string {
	t.Helper()
	args = append([]string{
		"-test.run", "^TestScripts$", "-test.v", "-test.timeout", "0", "-sim.here",
		"-sim.shrink=" + strconv.FormatBool(*shrinks), "-sim.five=" + strconv.FormatBool(*fiveNodes),
		"-sim.asleep=" + strconv.FormatBool(*asleep),
	}, args...)
	raw, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
	out := string(raw)
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	} else if line := played.FindString(out); line != "" {
		t.Log(line)
	}
	return out
}

// maxDeaths is how many scripts may end without a result before a run ends.
const maxDeaths = 10

// sums are those of several scripts.
type sums struct {
	scripts, died, confirmed int
	virtual, used            time.Duration
}

// played matches what mustPlay says.
var played = regexp.MustCompile(`seed \d+: \d+ steps, (\d+) confirmed, .*, (\S+) virtual in (\S+) of a processor.*`)

// add adds what a process says.
func (s *sums) add(out string) {
	m := played.FindStringSubmatch(out)
	if m == nil {
		s.died++
		return
	}
	s.scripts++
	s.confirmed += must(strconv.Atoi(m[1]))
	s.virtual += must(time.ParseDuration(m[2]))
	s.used += must(time.ParseDuration(m[3]))
}

// must is for what this package has printed.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

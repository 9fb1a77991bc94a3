package sim

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	oneSeed    = flag.Uint64("sim.seed", 0, "play only the script drawn from this `seed`")
	scriptFile = flag.String("sim.script", "", "play only the script in this `file`, of the form that a failing run prints")
	hours      = flag.Float64("sim.hours", 0, "play scripts drawn from new seeds for so many virtual `hours`")
	firstSeed  = flag.Uint64("sim.from", 0, "first `seed` of -sim.hours; 0: the time")
	shrinks    = flag.Bool("sim.shrink", false, "remove steps from a failing script as long as it fails without them")
	keepIn     = flag.String("sim.keep", "", "`folder` for the disks of a failing run, one data folder for each node")
	asleep     = flag.Bool("sim.asleep", false, "have queues of drawn scripts sleep when nothing happens in them for a moment")
	fiveNodes  = flag.Bool("sim.five", false, "play drawn scripts with five nodes instead of three")
)

// seeds are those of the scripts that every run of the tests plays. Their disks do
// not hang: see the limits of this package.
var seeds = []uint64{1, 58}

// How long drawn scripts break things: those of every run of the tests, and those
// of -sim.hours, of which less is beginning and end.
const (
	scriptLength = 40 * time.Second
	longScript   = 3 * time.Minute
)

// A leader loses power with what it had not synced, a link works in one
// direction only, a node is killed: nothing confirmed is lost. What the logs have
// recorded leads to the same states again.
func TestLeaderLosesPower(t *testing.T) {
	mustRecord(t, mustPlay(t, &script{Seed: 1, Nodes: 3, Steps: []step{
		{At: 0, Do: power, Node: "leader:orders"},
		{At: 8000, Do: cut, Node: "leader:orders", To: "*", Fault: fault{Drop: true}},
		{At: 16000, Do: heal, Node: "n1"},
		{At: 17000, Do: start, Node: "*"},
		{At: 24000, Do: kill, Node: "leader:waiting"},
		{At: 28000, Do: start, Node: "*"},
	}}))
}

// Processes start and lead while what their nodes say, or what they hear, takes long, and another
// is away: they read the clocks of others late, and with an error. Nothing is early by that.
func TestClocksAreReadLate(t *testing.T) {
	s := &script{Seed: 3, Nodes: 3, Flows: []string{"waiting", "delayed"}}
	for n, late := range [][2]string{{"n1", "*"}, {"*", "n1"}, {"n2", "*"}, {"*", "n2"}} {
		at := millis(16_000 * n)
		s.Steps = append(s.Steps,
			step{At: at, Do: kill, Node: "*"},
			step{At: at, Do: cut, Node: late[0], To: late[1], Fault: fault{Delay: 300 * time.Millisecond, Jitter: 400 * time.Millisecond}},
			step{At: at + 1500, Do: start, Node: "n1"},
			step{At: at + 1500, Do: start, Node: "n2"},
			step{At: at + 11_000, Do: start, Node: "n3"},
			step{At: at + 13_000, Do: heal, Node: "n1"},
		)
	}
	mustPlay(t, s)
}

// Whatever a script does, no promise is broken.
func TestScripts(t *testing.T) {
	nodes := 3
	if *fiveNodes {
		nodes = 5
	}
	switch {
	case !*here && (*scriptFile != "" || *oneSeed != 0 || *hours > 0):
		mustPlayApart(t)
	case *scriptFile != "":
		raw, err := os.ReadFile(*scriptFile)
		if err != nil {
			t.Fatal(err)
		}
		s := new(script)
		if err := json.Unmarshal(raw, s); err != nil {
			t.Fatal(err)
		}
		mustPlay(t, s)
	case *oneSeed != 0:
		length := scriptLength
		if *hours > 0 {
			length = longScript
		}
		if *asleep {
			mustPlay(t, drawAsleep(*oneSeed, nodes, length))
		} else {
			mustPlay(t, draw(*oneSeed, nodes, length))
		}
	default:
		for _, seed := range seeds {
			mustPlay(t, draw(seed, nodes, scriptLength))
			mustPlay(t, drawAsleep(seed, nodes, scriptLength))
		}
	}
}

// A script reads as what was printed.
func TestScriptsArePrinted(t *testing.T) {
	for seed := range uint64(50) {
		s := draw(seed, 3, scriptLength)
		var again script
		if err := json.Unmarshal([]byte(s.String()), &again); err != nil {
			t.Fatal(err)
		}
		if again.String() != s.String() || !strings.Contains(s.String(), `"do"`) {
			t.Fatalf("%s\nreads as %s", s, &again)
		}
	}
}

// A failing script is shrunk to the steps without which it does not fail, though it
// fails in one play of two only.
func TestScriptsShrink(t *testing.T) {
	kills := func(s *script) (queue, node int) {
		queue = slices.IndexFunc(s.Steps, func(s step) bool { return s.Do == kill && s.Node == "leader:orders" })
		return queue, slices.IndexFunc(s.Steps, func(s step) bool { return s.Do == clocks })
	}
	for seed := range uint64(200) {
		s := draw(seed, 3, longScript)
		if first, second := kills(s); first < 0 || second < first {
			continue
		}
		plays := 0
		shrunk := shrink(s, func(s *script) bool {
			first, second := kills(s)
			plays++
			return plays%2 == 0 && first >= 0 && second > first
		})
		if first, second := kills(shrunk); len(shrunk.Steps) != 2 || first != 0 || second != 1 {
			t.Fatalf("%s\nis shrunk to %s", s, shrunk)
		}
		return
	}
	t.Fatal("no script has these steps")
}

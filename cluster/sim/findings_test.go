package sim

import (
	"context"
	"flag"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

var (
	findingsToPlay = flag.String("sim.findings", "", "build with the mends of these `findings` taken back, in turn, and see that their scripts fail: D1,M2 or all")
	withoutMend    = flag.String("sim.finding", "", "play only the script of this `finding`, with the program as it is built")
)

// finding is something that was wrong once. Its script fails when the mend is taken
// back, and only then.
type finding struct {
	id    string
	about string
	mend  []cluster.Change // what takes it back
	shows string           // a pattern of what the simulation says then, or the program at its end
	s     script
}

func findFinding(id string) *finding {
	i := slices.IndexFunc(findings, func(f finding) bool { return f.id == id })
	if i < 0 {
		return nil
	}
	return &findings[i]
}

// Every mend can be taken back.
func TestFindingsFit(t *testing.T) {
	for _, f := range findings {
		if _, err := cluster.Overlay(t.TempDir(), f.id, f.mend...); err != nil {
			t.Errorf("%s: %v", f.id, err)
		}
	}
}

// The script of one finding breaks no promise.
func TestFinding(t *testing.T) {
	if *withoutMend == "" {
		t.Skip("needs -sim.finding")
	}
	f := findFinding(*withoutMend)
	if f == nil {
		t.Fatalf("no finding %s", *withoutMend)
	}
	mustPlay(t, &f.s)
}

// Without its mend, the simulation finds each finding.
func TestFindings(t *testing.T) {
	if *findingsToPlay == "" {
		t.Skip("needs -sim.findings")
	}
	with := mustBuild(t, "with")
	for _, f := range findings {
		if *findingsToPlay == "all" || slices.Contains(strings.Split(*findingsToPlay, ","), f.id) {
			t.Run(f.id, func(t *testing.T) { f.mustShow(t, with) })
		}
	}
}

// plays is how often a script is played without the mend: the order of goroutines
// is not part of it.
const plays = 5

// mustShow plays the script with a binary that has the mend, and with one that has
// not.
func (f finding) mustShow(t *testing.T, with string) {
	without := mustBuild(t, f.id, f.mend...)
	if out, err := f.play(t, with); err != nil {
		t.Fatalf("with the mend: %v\n%s", err, out)
	}
	shown := regexp.MustCompile(f.shows)
	for n := 1; ; n++ {
		out, err := f.play(t, without)
		switch {
		case err != nil && shown.MatchString(out):
			t.Logf("found in play %d of %s:\n%s", n, &f.s, shown.FindString(out))
			return
		case err != nil:
			t.Fatalf("fails for another reason than %s:\n%s", f.shows, out)
		case n == plays:
			t.Fatalf("%s: %d plays of its script do not find it", f.about, plays)
		}
	}
}

func (f finding) play(t *testing.T, binary string) (out string, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^TestFinding$", "-test.v", "-sim.finding", f.id)
	raw, err := cmd.CombinedOutput()
	return string(raw), err
}

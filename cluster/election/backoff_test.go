package election

import (
	"math/rand/v2"
	"testing"
	"time"
)

// slotStep asks whether a rank may campaign, perhaps just after somebody did.
type slotStep struct {
	at    time.Duration
	taken bool // somebody campaigns
	rank  int
	mine  bool
}

// A slot belongs to one rank, early in it, and is over for everybody once
// somebody campaigns; the next one comes a slot later, and each takes longer.
func TestElectionBackoff(t *testing.T) {
	const s = time.Second
	for name, steps := range map[string][]slotStep{
		"nobody campaigns": {
			{0, false, 0, true}, {0, false, 1, false}, {s / 2, false, 0, false}, {s, false, 1, true}, {s, false, 0, false},
			{2 * s, false, 2, true}, {3 * s, false, 0, true}, {5*s - 1, false, 1, false}, {5 * s, false, 1, true}, {7 * s, false, 2, true},
			{9 * s, false, 0, true}, {13 * s, false, 1, true},
		},
		"each campaigns and fails": {
			{0, false, 0, true}, {0, true, 0, false}, {s - 1, false, 1, false}, {s, false, 1, true}, {s, true, 1, false},
			{2 * s, false, 2, false}, {3*s - 1, false, 2, false}, {3 * s, false, 2, true}, {3 * s, true, 2, false},
			{6 * s, false, 0, false}, {7 * s, false, 0, true},
		},
		"a late campaign holds up the next candidate": {
			{0, false, 1, false}, {s * 9 / 10, true, 1, false}, {s, false, 1, false}, {s * 18 / 10, false, 1, false}, {s * 19 / 10, false, 1, true},
		},
		"a campaign at the end of a slot that was used": {
			{0, true, 0, false}, {s * 9 / 10, true, 1, false}, {s, false, 1, false}, {s * 28 / 10, false, 2, false}, {s * 29 / 10, false, 2, true},
		},
		"a campaign before enough is known": {
			{0, true, 0, false}, {s / 10, false, 0, false}, {s, false, 1, true},
		},
	} {
		var b electionBackoff
		p := slots{candidates: 3, spread: func(time.Duration) time.Duration { return 0 }}
		start := time.Unix(1000, 0)
		for i, step := range steps {
			now := start.Add(step.at)
			if step.taken {
				b.taken(now, p)
			}
			if got := b.mine(now, step.rank, p); got != step.mine {
				t.Errorf("%s: step %d, rank %d at %v: %v", name, i, step.rank, step.at, got)
			}
		}
	}
}

// However often it fails, the next slot comes in the end.
func TestSlotsAreBounded(t *testing.T) {
	var b electionBackoff
	p := slots{candidates: 3, spread: rand.N[time.Duration]}
	now := time.Unix(1000, 0)
	for range 100 {
		b.taken(now, p)
		came := false
		for limit := now.Add(2 * longestSlot); !came && now.Before(limit); now = now.Add(100 * time.Millisecond) {
			came = b.mine(now, 0, p) || b.mine(now, 1, p) || b.mine(now, 2, p)
		}
		if !came {
			t.Fatalf("slot %d does not come", b.slot)
		}
	}
}

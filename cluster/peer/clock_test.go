package peer

import (
	"errors"
	"testing"
	"time"
)

// Answers to pings tell the wall clock of who answers, if it has one to tell.
func TestClocksAreHeard(t *testing.T) {
	type heard struct {
		by, node  string
		wall      int64
		roundTrip time.Duration
	}
	got := make(chan heard, 100)
	walls := map[string]func() int64{
		"n1": func() int64 { return 111 }, "n2": func() int64 { return -222 }, "n3": nil,
	}
	c := newCluster(t, false, 3, func(cfg *Config) {
		by := cfg.Node
		cfg.PingInterval = 5 * time.Millisecond
		cfg.WallClock = walls[by]
		if by == "n3" {
			return // nor does it listen
		}
		cfg.HeardClock = func(node string, wall int64, asked time.Time) {
			select {
			case got <- heard{by, node, wall, time.Since(asked)}:
			default:
			}
		}
	})
	c.startAll(nil)
	want := map[string]int64{"n1 n2": -222, "n2 n1": 111}
	for seen := map[string]bool{}; len(seen) < len(want); {
		h := mustReceive(t, got, "a clock")
		pair := h.by + " " + h.node
		if wall, ok := want[pair]; !ok || wall != h.wall || h.roundTrip <= 0 || h.roundTrip > patience {
			t.Fatalf("heard %+v", h)
		}
		seen[pair] = true
	}
	mustWait(t, func() bool { return c.members["n1"].Peers()[1].RoundTrip > 0 }, "n3 answers no ping")
}

func TestClockBody(t *testing.T) {
	for _, wall := range []int64{0, 1, -1, 1 << 62, 1_700_000_000_000} {
		p := encode(t, clockBody(wall))
		for _, longer := range [][]byte{p, append(p, 1, 2, 3)} {
			if got, given, err := decodeClock(longer); got != wall || !given || err != nil {
				t.Errorf("%d: %d, %v, %v", wall, got, given, err)
			}
		}
	}
	if _, given, err := decodeClock(nil); given || err != nil {
		t.Errorf("nothing: %v, %v", given, err)
	}
	if _, _, err := decodeClock(make([]byte, 7)); !errors.Is(err, errProtocol) {
		t.Errorf("seven bytes: %v", err)
	}
}

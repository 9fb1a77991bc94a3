package stats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/cluster/worker"
)

func testNodes() *Nodes {
	log := slog.New(slog.DiscardHandler)
	return &Nodes{Self: "self", Try: worker.NewGuard(log).Try, Logger: log}
}

// TestAsk: each node that was asked has either an answer or a failure, and the
// slowest costs no more than the time it is given.
func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("refused")
		began := time.Now()
		got := Ask(t.Context(), testNodes(), []string{"good", "refuses", "panics", "hangs"}, Question[string]{
			Doing: "test", Wait: time.Second,
			Here: func() string { return "here" },
			Ask: func(ctx context.Context, node string) (string, error) {
				switch node {
				case "refuses":
					return "", refused
				case "panics":
					panic("test")
				case "hangs":
					<-ctx.Done()
					return "too late", ctx.Err()
				}
				return "from " + node, nil
			},
		})
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %v", took)
		}
		if len(got.Of) != 2 || got.Of["self"] != "here" || got.Of["good"] != "from good" {
			t.Errorf("answers %v", got.Of)
		}
		for node, want := range map[string]error{"refuses": refused, "panics": worker.ErrPanicked, "hangs": context.DeadlineExceeded} {
			if !errors.Is(got.Failed[node], want) {
				t.Errorf("%s: %v, want %v", node, got.Failed[node], want)
			}
		}
		if len(got.Failed) != 3 {
			t.Errorf("failures %v", got.Failed)
		}
	})
}

// TestAskIsBounded: of many nodes some are asked at a time, and this one only if
// it has an answer.
func TestAskIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var others []string
		for i := range 3 * maxParallel {
			others = append(others, fmt.Sprint("n", i))
		}
		var mu sync.Mutex
		running, peak := 0, 0
		count := func(d int) {
			mu.Lock()
			defer mu.Unlock()
			running += d
			peak = max(peak, running)
		}
		got := Ask(t.Context(), testNodes(), others, Question[int]{
			Doing: "test", Wait: time.Minute,
			Ask: func(context.Context, string) (int, error) {
				count(1)
				defer count(-1)
				<-time.After(time.Second) // in virtual time: all that may run do
				return 1, nil
			},
		})
		if len(got.Of) != len(others) || len(got.Failed) != 0 {
			t.Errorf("%d answers, %d failures", len(got.Of), len(got.Failed))
		}
		if peak != maxParallel {
			t.Errorf("%d nodes were asked at a time", peak)
		}
		if _, asked := got.Of["self"]; asked {
			t.Error("this node has answered")
		}
	})
}

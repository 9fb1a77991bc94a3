package stats

import (
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// TestCounted: however many ask, it is counted once in countedFor.
func TestCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c counted
		counts := 0
		ask := func(n int) {
			var all sync.WaitGroup
			for range n {
				all.Go(func() {
					c.get(func() *Ahead {
						counts++
						runtime.Gosched() // the others come meanwhile
						return &Ahead{}
					})
				})
			}
			all.Wait()
		}
		ask(100)
		time.Sleep(countedFor - time.Nanosecond)
		ask(100)
		if counts != 1 {
			t.Errorf("counted %d times while it is good", counts)
		}
		time.Sleep(time.Nanosecond)
		ask(100)
		if counts != 2 {
			t.Errorf("counted %d times, twice of need", counts)
		}
	})
}

// TestTimeOf: a queue says what comes within each of the times that are asked about, and nothing of kinds that
// do not come.
func TestTimeOf(t *testing.T) {
	const now = 1_000_000
	m := queue.New("q", 1)
	apply := func(c *logpb.Command) {
		m.Apply(fsm.Meta{Index: m.Index() + 1, Now: now}, c, &fsm.Effects{})
	}
	apply(&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: &logpb.QueueConfig{DeadLetter: true, Expires: 9000}}})
	for _, ttl := range []uint64{1000, 2000, 2000, 90_000_000} {
		apply(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 1, TtlPlusOne: ttl + 1}})
	}
	about := func(now fsm.Time, within []uint64) *peerpb.QueueTime {
		n := group.StatsOf(m)
		return timeOf(of(m), &n, now, within)
	}
	x := about(now, aheadWithin)
	if !slices.Equal(x.Expire[:3], []uint64{1, 3, 3}) || x.Expire[len(aheadWithin)-1] != 3 || x.Fire != nil || x.TimeOut != nil || x.Unlock != nil || x.Retry != nil || x.Return != nil {
		t.Errorf("%v", x)
	}
	if x.NextAt != now+1000 || !x.DeadLetters || x.AtLeast || x.DeletedAt != int64(m.Outlook().LeaseEnd) || x.DeletedAt == 0 {
		t.Errorf("%v", x)
	}
	if x := about(now+5000, []uint64{0}); !slices.Equal(x.Expire, []uint64{3}) {
		t.Errorf("what is overdue: %v", x)
	}
	if n := len(aheadWithin); n != 18 || aheadWithin[n-1] != 86_400_000 || !slices.Contains(aheadWithin, 60_000) || !slices.Contains(aheadWithin, 3_600_000) {
		t.Errorf("%d", aheadWithin)
	}
}

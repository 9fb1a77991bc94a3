package host

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
)

// Every deadline is met by a tick, with nobody else at work, and nothing is
// proposed when nothing is due.
func TestTicksMeetDeadlines(t *testing.T) { bothKinds(t, ticksMeetDeadlines) }

func ticksMeetDeadlines(t *testing.T, n *lone, g *group.Group) {
	seq := uint64(1)
	for round := range 30 {
		ttl := fsm.Millis(round % 7)
		mustSubmit(t, g, enqueues(seq, ttl, "a", "b", "c"))
		seq += 3
		n.outside.await(t, "answers", func() bool { return answered(n.outside.outcomes) == seq-1 })
		if round%3 == 0 {
			expire(t, g)
		}
	}
	expire(t, g)
	mustSubmit(t, g, enqueues(seq, 3_600_000, "for an hour"))
	n.outside.await(t, "the answer", func() bool { return answered(n.outside.outcomes) == seq })
	if at := g.AppliedIndex(); at > 250 {
		t.Errorf("%d entries for 31 batches of messages", at)
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for next := time.Duration(0); next < 50*time.Minute; _, next = n.ticker.pop() {
		select {
		case <-limit.C:
			t.Fatalf("the ticker wakes in %v, for something that is due in an hour", next)
		default:
			runtime.Gosched()
		}
	}
}

// A group that was closed and opened again has its messages, and the deadlines
// that have passed meanwhile are met at once.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	n := mustHost(t, dir)
	g := n.mustGroup(t, 1, &group.QueueConfig{DeliveryLimit: 20})
	mustSubmit(t, g, enqueues(1, -1, "kept", "kept"))
	mustSubmit(t, g, enqueues(3, 1, "gone"))
	n.outside.await(t, "answers", func() bool { return answered(n.outside.outcomes) == 3 })
	n.shut(t)
	if err := g.Submit(enqueues(4, -1, "late")); err != replica.ErrNotLeading {
		t.Errorf("a closed group takes commands: %v", err)
	}
	n = mustHost(t, dir)
	g = n.mustGroup(t, 1, &group.QueueConfig{DeliveryLimit: 20})
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for ready(g) != 2 {
		select {
		case <-limit.C:
			t.Fatalf("%d messages are ready, want 2", ready(g))
		default:
			runtime.Gosched()
		}
	}
	if err := n.Drop(1); err != nil {
		t.Fatal(err)
	}
	if ids, err := n.store.GroupIDs(); len(ids) != 0 || err != nil || n.Group(1) != nil {
		t.Errorf("after a drop: %v, %v", ids, err)
	}
}

// Many groups come and go at a time; everything they have started ends.
func TestCloseWhileBusy(t *testing.T) {
	n := mustHost(t, t.TempDir())
	var wait sync.WaitGroup
	for id := range fsm.GroupID(12) {
		wait.Go(func() {
			g, err := n.Open(group.Spec{
				Group: id + 1, Queue: 1, VHost: "/", Name: "q", Members: []string{"n1"}, Config: &group.QueueConfig{DeliveryLimit: 20},
			})
			if err != nil {
				t.Error(err)
				return
			}
			for seq := uint64(1); seq <= 50; {
				if g.Submit(enqueues(seq, 1, "m")) == nil {
					seq++
				}
				runtime.Gosched()
			}
			if id%2 == 0 {
				if err := n.Drop(id + 1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	n.shut(t)
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		stacks := make([]byte, 4<<20)
		text := string(stacks[:runtime.Stack(stacks, true)])
		left := 0
		for _, s := range strings.Split(text, "\n\n")[1:] {
			waits := strings.Contains(s, "testing.(*T).Parallel(") || strings.Contains(s, "testing.(*M).Run(") // for tests
			if !waits && (strings.Contains(s, "cluster/group.") || strings.Contains(s, "cluster/host.") || strings.Contains(s, "hashicorp/raft.")) {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("goroutines are left:\n%s", text)
		}
	}
}

// timed is something that a ticker wakes.
type timed string

// Fire implements group.Timed.
func (timed) Fire() {}

func TestTickerOrder(t *testing.T) {
	now := time.Duration(0)
	tk := newTicker(func() time.Duration { return now })
	tk.Arm(timed("a"), 50, 0)
	tk.Arm(timed("b"), 20, 0)
	tk.Arm(timed("c"), 10, 30) // not before 30
	tk.Arm(timed("d"), 40, 0)
	tk.Arm(timed("a"), 15, 0) // earlier
	tk.Arm(timed("b"), 90, 0) // later changes nothing
	tk.Remove(timed("d"))
	tk.Remove(timed("d"))
	pop := func() (all string) {
		for {
			g, _ := tk.pop()
			if g == nil {
				return all
			}
			all += string(g.(timed))
		}
	}
	for _, step := range []struct {
		at   time.Duration
		want string
		next time.Duration // until the next one
	}{{14, "", 1}, {15, "a", 5}, {29, "b", 1}, {100, "c", time.Hour}} {
		now = step.at
		got := pop()
		if _, next := tk.pop(); got != step.want || next != step.next {
			t.Errorf("at %d: %q and then %v, want %q and %v", step.at, got, next, step.want, step.next)
		}
	}
	tk.Arm(timed("a"), time.Hour, 0)
	tk.Arm(timed("b"), time.Minute, 0)
	tk.wakeAll()
	if got := pop(); len(got) != 2 {
		t.Errorf("hurried: %q", got)
	}
}

// More than one tick may do is done by several, one right after the other.
func TestTicksBacklog(t *testing.T) { bothKinds(t, ticksBacklog) }

func ticksBacklog(t *testing.T, n *lone, g *group.Group) {
	bodies := make([]string, 500)
	for i := range bodies {
		bodies[i] = "m"
	}
	seq := uint64(1)
	for range 30 {
		mustSubmit(t, g, enqueues(seq, 200, bodies...))
		seq += uint64(len(bodies))
	}
	n.outside.await(t, "answers", func() bool { return answered(n.outside.outcomes) == seq-1 })
	expire(t, g)
}

package group

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// held is a proposer that holds publishes back, as the test's demand asks for. Entries are committed
// at once.
type held struct {
	*free
	demand  demand
	crowded bool
}

func newHeld(t *testing.T) *held {
	x := &held{free: newFree(t)}
	x.demand.sated.Store(true)
	x.demand.held.Store(500)
	x.queued.back = backpressure{demand: &x.demand, floor: &floor{}, crowded: func() bool { return x.crowded }, check: x.checkHeld}
	enter := x.commit
	x.commit = func(l *raft.Log) raft.ApplyFuture {
		f := enter(l)
		f.(future).err <- nil
		return f
	}
	return x
}

// publish submits n patient batches of 100 commands.
func (x *held) publish(t *testing.T, n int) {
	t.Helper()
	var commands []byte
	for range 100 {
		commands = AppendCommand(commands, &logpb.Command{Kind: logpb.Command_ENQUEUE})
	}
	for range n {
		if err := x.submit(Batch{Commands: slices.Clone(commands), Count: 100, From: "n2", Patient: true}); err != nil {
			t.Fatal(err)
		}
	}
}

// letAllIn lets in what is held back.
func (x *free) letAllIn() {
	x.proposer.mu.Lock()
	defer x.proposer.mu.Unlock()
	x.queued.heavy = x.queued.back.releaseAll(x.queued.heavy)
	x.start()
}

// letIn counts the commands in entries.
func (x *held) letIn() (n int) {
	synctest.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.entries {
		n += len(e.Commands)
	}
	return n
}

// consume has consumers ack 500 messages in each 10 ms, for a time.
func (x *held) consume(over time.Duration) {
	for range over / (10 * time.Millisecond) {
		time.Sleep(10 * time.Millisecond)
		x.demand.acked.Add(500)
	}
}

// busy makes a queue whose consumers are fast and find enough, and uses up what the floor lets in at
// once.
func (x *held) busy(t *testing.T) (before int) {
	t.Helper()
	x.publish(t, 1)
	x.consume(500 * time.Millisecond)
	x.demand.ready.Store(600)
	x.publish(t, 3)
	if before = x.letIn(); before != 400 {
		t.Fatalf("%d are let in, not those of the floor", before)
	}
	return before
}

// What is held back, until when, and what is not.
func TestBackpressure(t *testing.T) {
	expect := func(t *testing.T, x *held, what string, want int) {
		t.Helper()
		if got := x.letIn(); got != want {
			t.Errorf("%s: %d are let in, want %d", what, got, want)
		}
	}
	for _, c := range []struct {
		name string
		run  func(t *testing.T, x *held)
	}{
		{"without consumers that are sated", func(t *testing.T, x *held) {
			x.busy(t)
			x.demand.sated.Store(false)
			x.publish(t, 50)
			expect(t, x, "at once", 5400)
		}},
		{"until as much is ready as consumers hold", func(t *testing.T, x *held) {
			before := x.busy(t)
			x.publish(t, 3)
			expect(t, x, "with 600 ready", before)
			x.demand.ready.Store(300)
			x.consume(10 * time.Millisecond)
			expect(t, x, "with 300 ready", before+300)
		}},
		{"as far as what enters leaves room", func(t *testing.T, x *held) {
			before := x.busy(t)
			x.demand.ready.Store(250)
			free := x.commit
			var wait []raft.ApplyFuture
			x.commit = func(l *raft.Log) raft.ApplyFuture {
				_ = free(l)
				f := future{err: make(chan error, 1)}
				wait = append(wait, f)
				return f
			}
			x.publish(t, 10)
			expect(t, x, "while nothing is applied", before+300)
			x.commit = free // nothing is proposed meanwhile
			for _, f := range wait {
				f.(future).err <- nil
			}
			expect(t, x, "when it is", before+1000)
		}},
		{"to the floor", func(t *testing.T, x *held) {
			before := x.busy(t)
			x.publish(t, 100)
			x.consume(500 * time.Millisecond)
			if got := x.letIn() - before; got < 2300 || got > 2700 {
				t.Errorf("%d of 5000 a second are let in within half a second", got)
			}
		}},
		{"for a second", func(t *testing.T, x *held) {
			before := x.busy(t)
			x.publish(t, 100)
			x.consume(900 * time.Millisecond)
			if got := x.letIn() - before; got > 5000 {
				t.Errorf("%d are let in before the second is over", got)
			}
			x.consume(200 * time.Millisecond)
			expect(t, x, "afterwards", before+10_000)
		}},
		{"unless consumers have stopped", func(t *testing.T, x *held) {
			before := x.busy(t)
			x.publish(t, 100)
			time.Sleep(700 * time.Millisecond)
			expect(t, x, "afterwards", before+10_000)
		}},
		{"unless they are far behind", func(t *testing.T, x *held) {
			before := x.busy(t)
			x.demand.ready.Store(100_000)
			x.publish(t, 100)
			expect(t, x, "at once", before+10_000)
		}},
		{"unless too much waits on the node", func(t *testing.T, x *held) {
			before := x.busy(t)
			x.crowded = true
			x.publish(t, 100)
			expect(t, x, "at once", before+10_000)
		}},
		{"and overtaken by what is not patient", func(t *testing.T, x *held) {
			before := x.busy(t)
			x.publish(t, 1)
			for _, light := range []bool{true, false} {
				if err := x.submit(Batch{Commands: AppendCommand(nil, &logpb.Command{Kind: logpb.Command_SETTLE}), Count: 1, Light: light}); err != nil {
					t.Fatal(err)
				}
			}
			expect(t, x, "at once", before+2)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newHeld(t)
				c.run(t, x)
				if x.letAllIn(); !x.drained(patience) {
					t.Error("it does not come to rest")
				}
				if x.wait(); x.admission.all != 0 || x.queued.back.entering != 0 || x.queued.back.floor.queues.Load() != 0 {
					t.Errorf("left over: %d bytes, %d commands, %d queues", x.admission.all, x.queued.back.entering, x.queued.back.floor.queues.Load())
				}
			})
		})
	}
}

// What is held back when a leadership ends is given up.
func TestHeldBackGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newHeld(t)
		before := x.busy(t)
		x.publish(t, 5)
		x.lead.term.Store(0)
		x.leadershipEnded()
		if x.wait(); x.letIn() != before || !slices.Equal(x.undecided, []string{"n2"}) || x.queued.back.entering != 0 {
			t.Errorf("%d are let in, undecided: %q", x.letIn(), x.undecided)
		}
	})
}

// circuit is a queue with a publisher and a consumer.
type circuit struct {
	*free
	demand  demand
	mu      sync.Mutex
	machine *queue.Machine
	index   uint64
	ids     []uint64 // delivered and not settled
	peak    uint64   // ready at a time
	seq     uint64   // of the consumer
}

var publishing, consuming = fsm.SessionID{Node: 1, Boot: 5, Num: 1}, fsm.SessionID{Node: 1, Boot: 5, Num: 2}

func newCircuit(t *testing.T) *circuit {
	x := &circuit{free: newFree(t), machine: queue.New("q", 1)}
	x.queued.back = backpressure{demand: &x.demand, floor: &floor{}, crowded: x.admission.crowded, check: x.checkHeld}
	x.commit = func(l *raft.Log) raft.ApplyFuture {
		x.apply(t, l)
		return nil
	}
	x.positions = func(runs []run) {
		x.mu.Lock()
		defer x.mu.Unlock()
		for i := range runs {
			runs[i].position = queue.PositionOf(x.machine, runs[i].session)
		}
	}
	x.settle(t, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Prefetch: 500}})
	return x
}

// apply applies an entry as an applier does.
func (x *circuit) apply(t *testing.T, l *raft.Log) {
	e := &logpb.Entry{}
	if err := e.UnmarshalVT(l.Data); err != nil {
		t.Error(err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.index++
	var effects fsm.Effects
	offset := uint32(0)
	for _, c := range e.Commands {
		m := fsm.Meta{Index: x.index, Term: 1, Now: fsm.Time(e.Now), Version: e.Version, Session: fsm.SessionFrom(c.Session)}
		m.Offset = offset
		if r := x.machine.Apply(m, c, &effects); r.Code != fsm.OK {
			t.Errorf("%v: %v", c.Kind, r.Code)
		}
		offset += c.Enqueue.GetSize()
	}
	for _, d := range effects.Deliveries {
		x.ids = append(x.ids, d.ID)
	}
	x.demand.note(x.machine)
	x.peak = max(x.peak, x.demand.ready.Load())
}

// settle submits a command of the consumer.
func (x *circuit) settle(t *testing.T, c *logpb.Command) {
	t.Helper()
	x.seq++
	c.Session, c.Seq, c.OpenedAt = consuming.Proto(), x.seq, time.Now().UnixMilli()
	b := BatchOf(c)
	b.Light = true
	if err := x.submit(b); err != nil {
		t.Fatal(err)
	}
}

// ack acks up to n of what the consumer has.
func (x *circuit) ack(t *testing.T, n int) {
	t.Helper()
	x.mu.Lock()
	taken := x.ids[:min(n, len(x.ids))]
	x.ids = x.ids[len(taken):]
	x.mu.Unlock()
	var ranges []uint64
	for _, id := range taken {
		ranges = append(ranges, id, 1)
	}
	if len(taken) > 0 {
		x.settle(t, &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Consumer: 1, Ranges: ranges}})
	}
}

// entered counts the messages that have entered the queue.
func (x *circuit) entered() uint64 {
	synctest.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.machine.Stats().Counters.Enqueued
}

// run publishes for two seconds 1000 messages each 10 ms, or as a window of 4000 allows, and acks up
// to so many each 10 ms. It returns how many have entered the queue a second after the last one was
// published.
func (x *circuit) run(t *testing.T, patient bool, ack int) (published, entered uint64) {
	t.Helper()
	for i := range 300 {
		if i < 200 && published-x.entered() <= 3000 {
			var commands []byte
			for range 1000 {
				published++
				commands = AppendCommand(commands, &logpb.Command{
					Kind: logpb.Command_ENQUEUE, Session: publishing.Proto(), Seq: published, OpenedAt: time.Now().UnixMilli(), Enqueue: &logpb.Enqueue{Size: 1},
				})
			}
			if err := x.submit(Batch{Commands: commands, Count: 1000, Patient: patient}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Millisecond)
		x.ack(t, ack)
	}
	return published, x.entered()
}

// With a fast consumer little is ready, unless publishers are impatient. A consumer that takes little
// or nothing stops nobody.
func TestConsumersFirst(t *testing.T) {
	for _, c := range []struct {
		name         string
		patient      bool
		ack          int
		least, limit uint64 // ready at a time
	}{
		{"fast", true, 500, 500, 6000},
		{"fast, impatient publishers", false, 500, 90_000, 200_000},
		{"slow", true, 1, 190_000, 200_000},
		{"stopped", true, 0, 190_000, 200_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newCircuit(t)
				published, entered := x.run(t, c.patient, c.ack)
				if x.peak < c.least || x.peak > c.limit || entered != published {
					t.Errorf("%d of %d messages have entered, up to %d were ready", entered, published, x.peak)
				}
				if x.letAllIn(); !x.drained(patience) {
					t.Error("it does not come to rest")
				}
				x.wait()
			})
		})
	}
}

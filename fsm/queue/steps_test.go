package queue

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// full is a queue with so much of each kind that a command could take long.
type full struct {
	*driver
	n       int
	longest time.Duration
	steps   int
}

// holder is one of the sessions that hold messages, all of one node.
func holder(n int) fsm.SessionID { return fsm.SessionID{Node: 3, Boot: 1, Num: uint64(n + 1)} }

func newFull(n int, config *logpb.QueueConfig) *full {
	return &full{driver: newDriver(config), n: n}
}

// run applies a command, and then ticks until nothing is due, and notes the
// longest of them.
func (f *full) run(t testing.TB, s fsm.SessionID, cmd *logpb.Command) {
	f.longest, f.steps = 0, 0
	for {
		begun := processorTime()
		f.one(t, s, cmd)
		f.longest, f.steps = max(f.longest, processorTime()-begun), max(f.steps, f.m.scratch.steps)
		if next := f.m.NextDeadline(); next == 0 || next > f.meta.Now {
			return
		}
		cmd, s = &logpb.Command{Kind: logpb.Command_TICK}, fsm.SessionID{}
	}
}

// one applies a command.
func (f *full) one(t testing.TB, s fsm.SessionID, cmd *logpb.Command) {
	f.meta.Index++
	f.meta.Session, cmd.Seq = s, 0
	if s != (fsm.SessionID{}) {
		f.seq[s]++
		cmd.Seq = f.seq[s]
	}
	f.eff.Reset()
	if r := f.m.Apply(f.meta, cmd, &f.eff); r.Code != fsm.OK && r.Code != fsm.NotFound {
		t.Fatalf("%v: code %d", cmd.Kind, r.Code)
	}
}

// hold has sessions hold all messages, so many consumers without prefetch.
func (f *full) hold(t testing.TB, consumers int) {
	for c := range consumers {
		f.run(t, holder(c), &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1}})
	}
}

func (f *full) publish(t testing.TB, ttlPlusOne uint64) {
	for range f.n {
		f.enqueue(t, ttlPlusOne)
	}
}

// parkAll publishes messages that all fail once too often.
func (f *full) parkAll(t testing.TB) {
	f.meta.Version = fsm.NewestVersion
	f.publish(t, 0)
	f.hold(t, 16)
	f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: 3, Boot: 1}})
	if n := f.m.Stats().Parked.Messages; n != uint64(f.n) {
		t.Fatalf("%d of %d are parked", n, f.n)
	}
}

// group has n consumers of one session hold all groups, which each message has of its
// own, or one group that all are of.
func (f *full) group(t testing.TB, n int, one bool) { f.groupIn(t, fsm.NewestVersion, n, one) }

// groupIn is group in a version.
func (f *full) groupIn(t testing.TB, version uint32, n int, one bool) {
	f.meta.Version = version
	for i := range n {
		f.one(t, holder(0), &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: uint64(i + 1), MaxGroups: 65535}})
	}
	for i := range f.n {
		e := &logpb.Enqueue{Size: 100, GroupId: "a"}
		if !one {
			e.GroupId = strconv.Itoa(i)
		}
		f.one(t, publisher, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e})
	}
}

// settleAll has n consumers of a session settle what they hold.
func (f *full) settleAll(t testing.TB, n int) {
	for i := range n {
		f.run(t, holder(0), &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Consumer: uint64(i + 1), Ranges: []uint64{1, maxCredit}}})
	}
	f.longest, f.steps = 0, 0
}

// mustHold checks how many groups are held.
func (f *full) mustHold(t testing.TB, groups int) {
	t.Helper()
	if n := f.m.groups.heldOnes; n != groups {
		t.Fatalf("%d groups are held, want %d", n, groups)
	}
}

// longRun is a command that could take long, behind what it needs.
type longRun struct {
	name   string
	config *logpb.QueueConfig
	run    func(t testing.TB, f *full)
}

// longRuns are the commands that could take long, each behind what it needs.
var longRuns = []longRun{
	{"consume without prefetch", &logpb.QueueConfig{DeliveryLimit: 20}, func(t testing.TB, f *full) {
		f.publish(t, 0)
		f.hold(t, 1)
	}},
	{"node down", &logpb.QueueConfig{DeliveryLimit: 20, ConsumerTimeoutPlusOne: 1_000_001}, func(t testing.TB, f *full) {
		f.publish(t, 3_600_001)
		f.hold(t, 16)
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: 3, Boot: 1}})
	}},
	{"node down, dead letters", &logpb.QueueConfig{DeadLetter: true}, func(t testing.TB, f *full) {
		f.publish(t, 0)
		f.hold(t, 16)
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: 3, Boot: 1}})
	}},
	{"node silent", &logpb.QueueConfig{DeliveryLimit: 20, DisconnectedTimeoutPlusOne: 11}, func(t testing.TB, f *full) {
		f.publish(t, 0)
		f.hold(t, 16)
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_NODE_SUSPECTED, NodeSuspected: &logpb.NodeSuspected{Node: 3, Boot: 1}})
		f.meta.Now += 10
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_TICK})
	}},
	{"many sessions of a node", &logpb.QueueConfig{DeliveryLimit: 20}, func(t testing.TB, f *full) {
		for s := range f.n / 10 {
			f.one(t, holder(s), &logpb.Command{Kind: logpb.Command_TOUCH})
		}
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: 3, Boot: 1}})
	}},
	{"unrelated node down", &logpb.QueueConfig{DeliveryLimit: 20}, func(t testing.TB, f *full) {
		for s := range f.n / 10 {
			f.run(t, holder(s), &logpb.Command{Kind: logpb.Command_TOUCH})
		}
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: 9, Boot: 1}})
	}},
	{"an old message behind many", &logpb.QueueConfig{DeliveryLimit: 20}, func(t testing.TB, f *full) {
		f.publish(t, 0)
		f.run(t, taker, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Prefetch: 1}})
		f.hold(t, 16)
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: 3, Boot: 1}})
		f.run(t, taker, &logpb.Command{Kind: logpb.Command_SESSION_DOWN})
	}},
	{"settle all: discard", &logpb.QueueConfig{DeadLetter: true}, func(t testing.TB, f *full) {
		f.publish(t, 0)
		f.hold(t, 1)
		f.run(t, holder(0), &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{
			Consumer: 1, Outcome: logpb.Settle_DISCARD, Ranges: []uint64{1, maxCredit},
		}})
	}},
	{"settle all: ack", &logpb.QueueConfig{}, func(t testing.TB, f *full) {
		f.publish(t, 0)
		f.hold(t, 1)
		f.run(t, holder(0), &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Consumer: 1, Ranges: []uint64{1, maxCredit}}})
	}},
	{"cancel of an unknown schedule", &logpb.QueueConfig{}, func(t testing.TB, f *full) {
		for i := range f.n {
			f.one(t, publisher, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 100, DelayPlusOne: uint64(1 + (i*7919)%1_000_000 + 1000)}})
		}
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_SCHEDULE, Schedule: &logpb.Schedule{Message: 5}})
	}},
	{"retry of all that is delayed", &logpb.QueueConfig{DeliveryLimit: -1, Retry: logpb.QueueConfig_ALL, RetryMin: 3_600_000}, func(t testing.TB, f *full) {
		f.publish(t, 0)
		f.hold(t, 1)
		f.run(t, holder(0), &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 1}})
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: 3, Boot: 1}})
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_KICK, Kick: &logpb.Kick{}})
	}},
	{"unpark all", &logpb.QueueConfig{}, func(t testing.TB, f *full) {
		f.parkAll(t)
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_UNPARK, Unpark: &logpb.Unpark{}})
	}},
	{"dead letters of all that is parked", &logpb.QueueConfig{}, func(t testing.TB, f *full) {
		f.parkAll(t)
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: &logpb.QueueConfig{DeadLetter: true}}})
	}},
	{"target gone", &logpb.QueueConfig{DeadLetter: true}, func(t testing.TB, f *full) {
		f.publish(t, 2)
		f.meta.Now += 10
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_TICK})
		for letters := f.m.UnroutedLetters(4096); len(letters) > 0; letters = f.m.UnroutedLetters(4096) {
			r := &logpb.RouteDead{First: letters[0].Number}
			for range letters {
				r.Routes = append(r.Routes, &logpb.DeadRoute{Targets: []uint64{77}})
			}
			f.one(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: r})
		}
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{Target: 77, Gone: true}})
	}},
	{"groups of a session", &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, GroupLinger: 3_600_000}, func(t testing.TB, f *full) {
		f.group(t, 4, false)
		f.settleAll(t, 4)
		f.mustHold(t, f.n)
		f.run(t, holder(0), &logpb.Command{Kind: logpb.Command_SESSION_DOWN})
		f.mustHold(t, 0)
	}},
	{"groups of a node, with messages", &logpb.QueueConfig{DeliveryLimit: 20, Groups: logpb.QueueConfig_BY_HEADER}, func(t testing.TB, f *full) {
		f.group(t, 4, false)
		f.mustHold(t, f.n)
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: 3, Boot: 1}})
		f.mustHold(t, 0)
	}},
	{"groups of a silent node", &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, GroupLinger: 3_600_000, DisconnectedTimeoutPlusOne: 11}, func(t testing.TB, f *full) {
		f.group(t, 4, false)
		f.settleAll(t, 4)
		f.hear(t, false)
		f.wait(t, 10)
		f.mustHold(t, 0)
	}},
	{"groups of a late consumer", &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, ConsumerTimeoutPlusOne: 11}, func(t testing.TB, f *full) {
		f.group(t, 4, false)
		f.wait(t, 20)
		f.mustHold(t, 0)
	}},
	{"groups of a session with a grace", &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, Lock: 3_600_000}, func(t testing.TB, f *full) {
		f.group(t, 1, true)
		f.one(t, holder(0), &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, LockDetachGrace: 60_000}})
		f.run(t, holder(0), &logpb.Command{Kind: logpb.Command_SESSION_DOWN})
		f.mustHold(t, 0)
	}},
	{"lost lock of a group", &logpb.QueueConfig{DeliveryLimit: -1, Groups: logpb.QueueConfig_BY_HEADER, Lock: 1000}, func(t testing.TB, f *full) {
		f.group(t, 1, true)
		f.wait(t, 2000)
	}},
	{"release of a group", &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER}, func(t testing.TB, f *full) {
		f.group(t, 1, true)
		f.one(t, holder(0), &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 1}})
		f.run(t, holder(0), &logpb.Command{Kind: logpb.Command_GROUP, Group: &logpb.Group{Action: logpb.Group_RELEASE, Id: "a", Consumer: 1}})
		f.mustHold(t, 0)
	}},
	{"cancel of a consumer of groups", &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, GroupLinger: 3_600_000}, func(t testing.TB, f *full) {
		f.group(t, 2, false)
		f.settleAll(t, 1)
		f.run(t, holder(0), &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Consumer: 2, Ranges: []uint64{2, maxCredit}}})
		f.mustHold(t, f.n)
		f.run(t, holder(0), &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 2}})
		f.mustHold(t, f.n/2+1)
	}},
	{"settle all of many groups", &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, Lock: 3_600_000}, func(t testing.TB, f *full) {
		f.group(t, 2, false)
		f.run(t, holder(0), &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Consumer: 1, Ranges: []uint64{1, maxCredit}}})
		f.mustHold(t, f.n/2)
	}},
	{"deferred messages of a group that begins to be held", &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER}, func(t testing.TB, f *full) {
		f.meta.Version = fsm.NewestVersion
		of := func(id string) {
			f.one(t, publisher, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 100, GroupId: id}})
		}
		f.one(t, holder(0), &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1}})
		of("a")
		f.one(t, holder(0), &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Consumer: 1, Outcome: logpb.Settle_DEFER, Ranges: []uint64{1, 1}, Deferral: "t"}})
		of("a")
		f.one(t, holder(0), &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 2}})
		f.one(t, holder(0), &logpb.Command{Kind: logpb.Command_RECEIVE_DEFERRED, ReceiveDeferred: &logpb.ReceiveDeferred{Consumer: 2, Tokens: []string{"t"}}})
		for range f.n {
			of("")
		}
		f.one(t, holder(0), &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 1}})
		f.run(t, holder(0), &logpb.Command{Kind: logpb.Command_GROUP, Group: &logpb.Group{Action: logpb.Group_RELEASE, Id: "a", Consumer: 1}})
		f.mustHold(t, 1)
	}},
	{"begin of version 3", &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, Retry: logpb.QueueConfig_ALL, RetryMin: 3_600_000}, func(t testing.TB, f *full) {
		f.groupIn(t, 2, 4, false)
		for i := range 4 {
			f.run(t, holder(0), &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{
				Consumer: uint64(i + 1), Outcome: logpb.Settle_REQUEUE, Ranges: []uint64{1, maxCredit},
			}})
		}
		f.mustHold(t, f.n)
		f.meta.Version = fsm.NewestVersion
		f.run(t, publisher, &logpb.Command{Kind: logpb.Command_TOUCH})
		f.mustHold(t, 0)
	}},
	{"purge of held groups", &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER, GroupLinger: 1000}, func(t testing.TB, f *full) {
		f.group(t, 4, false)
		for i := range 4 { // no credit
			f.one(t, holder(0), &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: uint64(i + 1), MaxGroups: 65535, Shared: true}})
		}
		for i := range f.n {
			f.one(t, publisher, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 100, GroupId: strconv.Itoa(i)}})
		}
		f.settleAll(t, 4)
		f.mustHold(t, f.n)
		f.run(t, publisher, &logpb.Command{Kind: logpb.Command_PURGE})
		f.mustHold(t, f.n)
	}},
	{"purge", &logpb.QueueConfig{}, func(t testing.TB, f *full) {
		f.publish(t, 3_600_001)
		f.run(t, publisher, &logpb.Command{Kind: logpb.Command_PURGE})
	}},
}

// crowd registers as many consumers as a queue may have: each of a session of
// its own, or all of one session.
func (f *full) crowd(t testing.TB, sessions bool, c *logpb.Consume) int {
	n := min(f.n, maxConsumers-1)
	for i := range n {
		c.Consumer = 1
		s := holder(i)
		if !sessions {
			c.Consumer, s = uint64(i+1), holder(0)
		}
		f.one(t, s, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: c})
	}
	return n
}

// hear has a queue learn that nothing is heard from the node of the holders any
// more, or that it is back, and notes the longest step with the steps before.
func (f *full) hear(t testing.TB, back bool) {
	longest, steps := f.longest, f.steps
	f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_NODE_SUSPECTED, NodeSuspected: &logpb.NodeSuspected{Node: 3, Boot: 1, Back: back}})
	f.longest, f.steps = max(f.longest, longest), max(f.steps, steps)
}

// wait lets time pass, and notes the longest step with the steps before.
func (f *full) wait(t testing.TB, d fsm.Millis) {
	longest, steps := f.longest, f.steps
	f.meta.Now = f.meta.Now.Add(d)
	f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_TICK})
	f.longest, f.steps = max(f.longest, longest), max(f.steps, steps)
}

// crowds are what could take long because of many consumers.
var crowds = []longRun{
	{"consumers of a session", &logpb.QueueConfig{DeliveryLimit: 20}, func(t testing.TB, f *full) {
		f.publish(t, 0)
		f.crowd(t, false, &logpb.Consume{Prefetch: 2})
		f.run(t, holder(0), &logpb.Command{Kind: logpb.Command_SESSION_DOWN})
	}},
	{"consumers of a silent node", &logpb.QueueConfig{DeliveryLimit: 20, DisconnectedTimeoutPlusOne: 11}, func(t testing.TB, f *full) {
		f.publish(t, 0)
		f.crowd(t, true, &logpb.Consume{Prefetch: 2})
		f.steps, f.longest = 0, 0
		f.hear(t, false)
		f.wait(t, 10)
		f.hear(t, true)
	}},
	{"an exclusive consumer in the place of many", &logpb.QueueConfig{DeliveryLimit: 20, DisconnectedTimeoutPlusOne: 11}, func(t testing.TB, f *full) {
		f.crowd(t, false, &logpb.Consume{Prefetch: 2})
		f.hear(t, false)
		f.wait(t, 10)
		f.run(t, taker, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Exclusive: true}})
	}},
	{"single active consumer", &logpb.QueueConfig{DeliveryLimit: 20, DisconnectedTimeoutPlusOne: 11}, func(t testing.TB, f *full) {
		f.crowd(t, true, &logpb.Consume{Prefetch: 2})
		f.publish(t, 0)
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{
			Config: &logpb.QueueConfig{SingleActive: true, DeliveryLimit: 20, DisconnectedTimeoutPlusOne: 11},
		}})
		longest, steps := f.longest, f.steps
		f.run(t, holder(0), &logpb.Command{Kind: logpb.Command_SESSION_DOWN})
		f.longest, f.steps = max(f.longest, longest), max(f.steps, steps)
		f.hear(t, false)
		f.wait(t, 10)
		f.hear(t, true)
	}},
	{"a priority for each consumer", &logpb.QueueConfig{DeliveryLimit: 20}, func(t testing.TB, f *full) {
		for i := range min(f.n, maxConsumers-1) {
			f.one(t, holder(i), &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Prefetch: 1, Priority: int32(i)}})
		}
		f.hear(t, false)
		f.publish(t, 0)
		f.steps, f.longest = 0, 0
		f.hear(t, true)
		longest, steps := f.longest, f.steps
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: 3, Boot: 1}})
		f.longest, f.steps = max(f.longest, longest), max(f.steps, steps)
	}},
	{"another order of dispatch", &logpb.QueueConfig{DeliveryLimit: 20}, func(t testing.TB, f *full) {
		f.crowd(t, true, &logpb.Consume{Prefetch: 200})
		f.publish(t, 0)
		for _, order := range []logpb.QueueConfig_Dispatch{logpb.QueueConfig_LEAST_LOADED, logpb.QueueConfig_ROUND_ROBIN, logpb.QueueConfig_LEAST_LOADED} {
			f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{
				Config: &logpb.QueueConfig{DeliveryLimit: 20, Dispatch: order},
			}})
			mustCheck(t, f.m)
		}
		f.publish(t, 0)
		steps := f.steps
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: 3, Boot: 1}})
		f.steps = max(f.steps, steps)
	}},
	{"cancelled consumers that are late", &logpb.QueueConfig{DeliveryLimit: 20, ConsumerTimeoutPlusOne: 11}, func(t testing.TB, f *full) {
		n := f.crowd(t, false, &logpb.Consume{Prefetch: 1})
		for range n {
			f.enqueue(t, 0)
		}
		for i := range n {
			f.one(t, holder(0), &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: uint64(i + 1)}})
		}
		f.steps, f.longest = 0, 0
		f.wait(t, 20)
	}},
	{"a group that many take", &logpb.QueueConfig{Groups: logpb.QueueConfig_BY_HEADER}, func(t testing.TB, f *full) {
		f.meta.Version = fsm.NewestVersion
		f.one(t, taker, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, GroupId: "a"}})
		for range f.n {
			f.one(t, publisher, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 100, GroupId: "a"}})
		}
		f.crowd(t, false, &logpb.Consume{GroupId: "a", Shared: true})
		f.run(t, taker, &logpb.Command{Kind: logpb.Command_SESSION_DOWN})
	}},
	{"delete", &logpb.QueueConfig{}, func(t testing.TB, f *full) {
		f.publish(t, 0)
		f.crowd(t, true, &logpb.Consume{Prefetch: 2})
		f.meta.Index++
		f.run(t, fsm.SessionID{}, &logpb.Command{Kind: logpb.Command_DELETE, Delete: &logpb.Delete{}})
	}},
}

// TestStepsAreBounded: whatever a queue holds, no command takes more steps than
// a few for each of those it may take, and what is left is done by ticks.
func TestStepsAreBounded(t *testing.T) {
	for _, c := range longRuns {
		t.Run(c.name, func(t *testing.T) {
			f := newFull(120_000, c.config)
			c.run(t, f)
			most := 6 * dueInTick
			if strings.HasPrefix(c.name, "purge") {
				most = 2 * sweepInTick
			}
			f.mustHaveDone(t, most)
		})
	}
	for _, c := range crowds {
		t.Run(c.name, func(t *testing.T) {
			f := newFull(20_000, c.config)
			c.run(t, f)
			f.mustHaveDone(t, 6*dueInTick+4*maxConsumers)
		})
	}
}

// mustHaveDone: no command took more than most steps, and nothing is left.
func (f *full) mustHaveDone(t *testing.T, most int) {
	t.Helper()
	if f.steps > most {
		t.Errorf("%d steps, the most is %d", f.steps, most)
	}
	mustCheck(t, f.m)
	if f.m.unfinished() {
		t.Error("something is left, and nothing due")
	}
}

// BenchmarkLongest is the longest single command of each kind at a million
// messages: what it does itself, and the ticks that go on with it.
func BenchmarkLongest(b *testing.B) {
	for _, c := range slices.Concat(longRuns, crowds) {
		b.Run(c.name, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			longest, steps := time.Duration(0), 0
			for range b.N {
				f := newFull(1_000_000, c.config)
				c.run(b, f)
				longest, steps = max(longest, f.longest), max(steps, f.steps)
			}
			b.ReportMetric(float64(longest.Microseconds()), "longest-µs")
			b.ReportMetric(float64(steps), "steps")
		})
	}
}

package fsmtest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// floodHistories is how many histories TestFlood tries; 0: as many as the
// other properties leave it.
var floodHistories = flag.Int("flood.histories", 0, "histories of TestFlood")

// flood is a history of bursts: a few acts of up to thousands of commands each, so
// that it passes what one command may do and what a queue remembers. The
// settings come from the generator of short histories. Two machines perform it, of
// which one is restored from snapshots on the way; an observer follows.
type flood struct {
	t         fataler
	random    *rand.Rand
	m, other  *queue.Machine
	o         *observer
	meta      fsm.Meta
	clients   []*floodClient
	spent     []*floodClient // their sessions have ended
	config    *logpb.QueueConfig
	kind      floodKind
	eff, eff2 fsm.Effects
	entry     int // commands in it
	sent      map[fsm.QueueID]uint64
	acts      []string
	boots     uint64
	bounds    queue.Bounds
	commands  uint64
}

// floodKind is what most messages of a history have.
type floodKind struct{ ttl, priority, later, groups, ids bool }

// floodClient is a session.
type floodClient struct {
	id        fsm.SessionID
	next      uint64
	opened    fsm.Time
	consumers uint64
	sent      []*logpb.Command // publishes
	held      map[uint64][]uint64
	order     []uint64 // consumers that have held something
}

// act is a burst: what is done, how often, and the seed of the rest.
type act struct{ what, n, seed int }

func newFlood(t fataler, seed uint64, config *logpb.QueueConfig, kind floodKind, b queue.Bounds) *flood {
	f := &flood{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), m: newMachine(), other: newMachine(), config: config, kind: kind, bounds: b,
		meta: fsm.Meta{Term: 1, Now: start, Version: fsm.NewestVersion}, sent: map[fsm.QueueID]uint64{}, boots: 1,
	}
	f.m.SetBounds(b)
	f.other.SetBounds(b)
	f.o = newObserver(f.m)
	f.configure()
	for range 4 {
		f.open()
	}
	return f
}

// open begins a session; a node has two, and a life of its own.
func (f *flood) open() *floodClient {
	n := len(f.clients) + len(f.spent)
	if n%2 == 0 {
		f.boots++
	}
	c := &floodClient{
		id: fsm.SessionID{Node: fsm.NodeID(1 + n/2%3), Boot: f.boots, Num: uint64(n + 1)}, next: 1, opened: f.meta.Now,
		held: map[uint64][]uint64{},
	}
	f.clients = append(f.clients, c)
	return c
}

func (f *flood) n(bound int) int     { return f.random.IntN(max(bound, 1)) }
func (f *flood) oneIn(n int) bool    { return f.random.IntN(n) == 0 }
func (f *flood) any() *floodClient   { return f.clients[f.n(len(f.clients))] }
func (f *flood) millis(n int) uint64 { return uint64(f.n(n)) }

// of makes a command the next one of a session.
func (f *flood) of(c *floodClient, cmd *logpb.Command) *logpb.Command {
	if c.next == 1 {
		c.opened = f.meta.Now + fsm.Time(f.n(beginWithin))
	}
	cmd.Session, cmd.Seq = c.id.Proto(), c.next
	if c.next == 1 {
		cmd.OpenedAt = int64(c.opened)
	}
	c.next++
	return cmd
}

// do applies one command to both machines, and shows it to the observer.
func (f *flood) do(cmd *logpb.Command) fsm.Result {
	if f.entry == 0 {
		f.meta.Index++
		f.meta.Offset = 0
		f.eff.Reset()
		f.eff2.Reset()
	}
	f.entry++
	f.commands++
	f.meta.Session = fsm.SessionFrom(cmd.Session)
	n := [...]int{len(f.eff.Deliveries), len(f.eff.Timeouts)}
	r := f.m.Apply(f.meta, cmd, &f.eff)
	if again := f.other.Apply(f.meta, cmd, &f.eff2); again != r {
		f.fail(fmt.Sprintf("%v: %+v, and a replica %+v", cmd, r, again))
	}
	own := fsm.Effects{Deliveries: f.eff.Deliveries[n[0]:], Timeouts: f.eff.Timeouts[n[1]:]}
	f.o.see(step{f.meta, cmd, false}, r, &own)
	if len(f.o.d) > 0 {
		f.fail(fmt.Sprintf("%v answers %+v:\n%s", cmd, r, strings.Join(f.o.d[:min(len(f.o.d), 5)], "\n")))
	}
	if cmd.Kind == logpb.Command_ENQUEUE {
		f.meta.Offset += cmd.GetEnqueue().GetSize()
	}
	for _, d := range own.Deliveries {
		f.took(&d)
	}
	if f.entry >= 500 {
		f.end()
	}
	return r
}

// took notes what a consumer holds.
func (f *flood) took(d *fsm.Delivery) {
	for _, c := range f.clients {
		if c.id == d.To.Session {
			if _, ok := c.held[d.To.Number]; !ok {
				c.order = append(c.order, d.To.Number)
			}
			c.held[d.To.Number] = append(c.held[d.To.Number], d.ID)
		}
	}
}

// end ends the entry.
func (f *flood) end() {
	if f.entry == 0 {
		return
	}
	f.entry = 0
	f.o.endEntry(&f.eff)
	var d diffs
	equal(&d, "delivery by a replica", f.eff.Deliveries, f.eff2.Deliveries, sameDelivery)
	equal(&d, "dead letter by a replica", f.eff.DeadLetters, f.eff2.DeadLetters, sameDeadLetter)
	equal(&d, "timeout by a replica", f.eff.Timeouts, f.eff2.Timeouts, sameTimeout)
	equal(&d, "cancelled by a replica", f.eff.Cancelled, f.eff2.Cancelled, identical[fsm.ConsumerID])
	equal(&d, "released by a replica", released(&f.eff), released(&f.eff2), identical[uint64])
	if d = append(d, f.o.d...); len(d) > 0 {
		f.fail(strings.Join(d[:min(len(d), 5)], "\n"))
	}
}

func (f *flood) fail(what string) {
	if name := os.Getenv("QUORATE_FLOOD_STATE"); name != "" {
		_ = os.WriteFile(name, []byte(f.m.String()), 0o600)
	}
	f.t.Fatalf("%s\nafter %d commands:\n%s\nsettings %v", what, f.commands, strings.Join(f.acts, "\n"), f.config)
}

// alone applies a command as an entry.
func (f *flood) alone(cmd *logpb.Command) fsm.Result {
	f.end()
	r := f.do(cmd)
	f.end()
	return r
}

func (f *flood) configure() {
	f.alone(&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: f.config}})
	if got := f.m.Config().Revision; got < f.config.Revision || f.o.config.Revision != got {
		f.fail(fmt.Sprintf("settings of revision %d became those of %d, want %d", f.config.Revision, got, f.o.config.Revision))
	}
}

// pass lets time pass, and then does what is due as a leader does, or leaves it to
// the commands that follow.
func (f *flood) pass(by fsm.Millis, tick bool) {
	f.end()
	f.meta.Now += fsm.Time(by)
	if tick {
		f.tick()
	}
}

// tick ticks until nothing is due.
func (f *flood) tick() {
	f.end()
	for range 10_000 {
		d := f.m.NextDeadline()
		if d == 0 || d > f.meta.Now && d > f.m.Clock() {
			return
		}
		f.alone(&logpb.Command{Kind: logpb.Command_TICK})
	}
	f.fail(fmt.Sprintf("ticks do not end: due at %d, it is %d", f.m.NextDeadline(), f.m.Clock()))
}

// restore replaces the other machine by what its snapshot gives.
func (f *flood) restore() {
	f.end()
	from := f.other
	f.other = newMachine()
	f.other.SetBounds(f.bounds)
	if err := restoreInto(f.other, from); err != nil {
		f.fail(err.Error())
	}
	if f.other.Hash() != f.m.Hash() {
		f.fail("a restored replica differs")
	}
}

// finish ends a history: what is held is settled, and everything is accounted for.
func (f *flood) finish() {
	f.tick()
	f.o.audit(f.meta.Now)
	f.o.finish()
	if err := f.m.Check(); err != nil {
		f.fail(err.Error())
	}
	if len(f.o.d) > 0 {
		f.fail(strings.Join(f.o.d[:min(len(f.o.d), 5)], "\n"))
	}
	f.restore()
}

// perform performs an act.
func (f *flood) perform(a act) {
	f.random = rand.New(rand.NewPCG(uint64(a.seed), uint64(a.n)))
	f.acts = append(f.acts, fmt.Sprintf("%s %d, seed %d (command %d, ready %d)", floodActs[a.what].name, a.n, a.seed, f.commands, f.m.Stats().Ready.Messages))
	floodActs[a.what].do(f, a.n)
	f.end()
	if f.m.Stats().Phase != queue.Active {
		f.fail("the queue has ended")
	}
}

// TestFlood holds long histories to the promises.
func TestFlood(t *testing.T) {
	total := sums{}
	histories := 0
	property := func(t *rapid.T) {
		g := &generator{t: t, q: newModel()}
		g.meta = fsm.Meta{Term: 1, Now: start}
		kind := floodKind{g.oneIn("ttl", 2), g.oneIn("priority", 2), g.oneIn("later", 3), g.oneIn("groups", 4), g.oneIn("ids", 3)}
		bounds := rules
		if g.oneIn("small bounds", 3) {
			bounds = queue.Bounds{Before: 8, Tick: 64, Drops: 32, Sweep: 64, HandOuts: 16, Consumers: 8192, IDs: 1 << 20, Skips: 32, States: 1 << 20, Tallies: 4}
		}
		f := newFlood(t, 1, floodConfig(g, kind), kind, bounds)
		acts := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) act {
			return act{rapid.SampledFrom(floodWeights).Draw(t, "what"), rapid.SampledFrom([]int{3, 40, 300, 1500, 5000}).Draw(t, "n"), rapid.IntRange(0, 1<<20).Draw(t, "seed")}
		}), 5, 45).Draw(t, "acts")
		for _, a := range acts {
			f.perform(a)
		}
		f.finish()
		histories++
		total.commands += f.o.sum.commands
		total.deliveries += f.o.sum.deliveries
		total.taken += f.o.sum.taken
	}
	if *floodHistories > 0 {
		all := flag.Lookup("rapid.checks").Value.String()
		defer flag.Set("rapid.checks", all)
		if err := flag.Set("rapid.checks", fmt.Sprint(*floodHistories)); err != nil {
			t.Fatal(err)
		}
		rapid.Check(t, property)
	} else {
		check(t, 10, property)
	}
	t.Logf("%d histories, %d commands, %d messages, %d deliveries", histories, total.commands, total.taken, total.deliveries)
}

// floodConfig draws the settings of a flood, of which the record of ends is complete.
func floodConfig(g *generator, kind floodKind) *logpb.QueueConfig {
	g.taste.groups = kind.groups
	g.taste.window = kind.ids
	c := g.config()
	c.AuditMaxPlusOne = 100_001
	c.Forward, c.DelayedStore, c.AutoDelete, c.Expires, c.AutoDeleteOnIdle = false, false, false, 0, 0
	c.DelayedStore = false
	if c.TtlPlusOne == 1 {
		c.TtlPlusOne = 2001
	}
	if c.MaxLengthPlusOne != 0 {
		c.MaxLengthPlusOne = 1 + uint64(of(g, "limit", 2000, 100, 1))
		c.MaxLengthBytesPlusOne = 0
	}
	if c.DeadLetterMaxPlusOne != 0 {
		c.DeadLetterMaxPlusOne = 1 + uint64(of(g, "letters", 1200, 50))
	}
	if c.ConsumerTimeoutPlusOne == 1 {
		c.ConsumerTimeoutPlusOne = 0
	}
	c.Revision = 1 + uint64(g.n("revision", 5))
	return c
}

// alive drops a client whose session has ended.
func (f *flood) forget(gone func(fsm.SessionID) bool) {
	f.clients = slices.DeleteFunc(f.clients, func(c *floodClient) bool {
		if gone(c.id) {
			f.spent = append(f.spent, c)
			return true
		}
		return false
	})
	for len(f.clients) < 4 {
		f.open()
	}
}

// TestFloodOfOne holds histories to the promises that are of one kind each, and
// pass one bound for certain.
func TestFloodOfOne(t *testing.T) {
	at := func(name string, n int) act {
		return act{what: slices.IndexFunc(floodActs, func(a floodAct) bool { return a.name == name }), n: n, seed: n}
	}
	for _, tc := range []struct {
		name   string
		config *logpb.QueueConfig
		kind   floodKind
		acts   []act
	}{
		{"every other publish is refused", &logpb.QueueConfig{DeliveryLimit: 20, MaxLengthPlusOne: 3, Overflow: logpb.QueueConfig_REJECT_PUBLISH}, floodKind{}, []act{at("alternate", 5000)}},
		{"many sessions end", &logpb.QueueConfig{DeliveryLimit: 20}, floodKind{}, []act{at("sessions", 3000), at("sessions", 40)}},
		{"a suspected node", &logpb.QueueConfig{DeliveryLimit: 20, DisconnectedTimeoutPlusOne: 501}, floodKind{}, slices.Repeat([]act{at("publish", 40), at("suspect", 40), at("suspect", 300)}, 4)},
		{"letters for queues that go", &logpb.QueueConfig{DeliveryLimit: 20, DeadLetter: true, TtlPlusOne: 100}, floodKind{}, slices.Repeat([]act{at("publish", 1500), at("pass", 300), at("letters", 5000), at("letters", 300), at("letters", 40)}, 6)},
		{"more ids than fit", &logpb.QueueConfig{DeliveryLimit: 20, DedupWindow: 2000}, floodKind{ids: true}, slices.Repeat([]act{at("publish", 5000), at("pass", 300), at("consume", 40), at("settle", 5000)}, 2)},
		{"many expire at once", &logpb.QueueConfig{DeliveryLimit: 2, DeadLetter: true, DeadLetterStrategy: logpb.QueueConfig_AT_LEAST_ONCE}, floodKind{ttl: true, priority: true}, slices.Repeat([]act{
			at("consume", 300), at("publish", 5000), at("settle", 1500), at("pass", 1500), at("pass without ticks", 1500), at("get", 300), at("letters", 5000), at("restore", 3), at("elect", 1500), at("configure", 40), at("configure", 41), at("configure", 43),
		}, 3)},
		{"groups", &logpb.QueueConfig{DeliveryLimit: 20, Groups: logpb.QueueConfig_BY_HEADER, Lock: 700}, floodKind{groups: true}, slices.Repeat([]act{
			at("consume", 300), at("publish", 1500), at("settle", 1500), at("pass", 300), at("consume", 41), at("end a session", 3), at("restore", 3), at("elect", 300),
		}, 4)},
		{"locks and timeouts", &logpb.QueueConfig{DeliveryLimit: -1, Lock: 400, ConsumerTimeoutPlusOne: 901, LockCredit: 200}, floodKind{}, slices.Repeat([]act{
			at("consume", 300), at("publish", 1500), at("settle", 1500), at("pass", 300), at("consume", 41), at("elect", 300), at("end a node", 3), at("restore", 3),
		}, 6)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.config.AuditMaxPlusOne, tc.config.Revision = 100_001, 1
			f := newFlood(t, 1, tc.config, tc.kind, rules)
			for i, a := range tc.acts {
				a.seed += i
				f.perform(a)
			}
			f.finish()
			t.Logf("%d commands, %d deliveries", f.o.sum.commands, f.o.sum.deliveries)
		})
	}
}

package deadletter

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// splitter are filters whose programs are lists of edits: a copy for each. It notes what its sets are told.
type splitter struct {
	programs map[uint64]string // queue=program
	facts    []fsm.FilterFacts
	calls    []string
	ttl      fsm.Optional[fsm.Millis]
}

func (f *splitter) NewFilterSet(vhost, exchange string) fsm.FilterSet {
	f.calls = append(f.calls, "new "+vhost+exchange)
	f.programs = map[uint64]string{}
	return f
}

func (f *splitter) Add(id uint64, queue string, program []byte) {
	f.calls = append(f.calls, "add "+string(program))
	f.programs[id] = queue + "=" + string(program)
}

func (f *splitter) Remove(id uint64) {
	f.calls = append(f.calls, "remove "+f.programs[id])
	delete(f.programs, id)
}

func (f *splitter) Match(_ fsm.Payload, facts fsm.FilterFacts) (copies []fsm.FilterCopy) {
	f.facts = append(f.facts, facts)
	for _, one := range slices.Sorted(maps.Values(f.programs)) {
		queue, program, _ := strings.Cut(one, "=")
		for edit := range strings.SplitSeq(program, ",") {
			copies = append(copies, fsm.FilterCopy{Queue: queue, Edit: []byte(edit), TTL: f.ttl})
		}
	}
	return append(copies, fsm.FilterCopy{Queue: "nowhere"})
}

func (f *splitter) Edited(p fsm.Payload, edit []byte, sequence uint64) fsm.Payload {
	return grouptest.Payload(fmt.Sprintf("%s %s of %d", p.Body(), edit, sequence))
}

// newTopic returns a queue that forwards copies to an exchange with filters, and two queues that take them.
func newTopic(t *testing.T, f fsm.Filters) *letterbox {
	w := newWorld(t)
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.FSMVersion, Value: 3}}})
	w.sender.filters.filters = f
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: &logpb.DeclareExchange{Vhost: "/", Name: "topic", Type: catalog.Filter, Internal: true}}})
	q := w.MustDeclare(&logpb.DeclareQueue{Vhost: "/", Name: "store", Durable: true, Members: []uint32{1}, Arguments: &fsm.Table{Fields: []*logpb.Field{
		{Name: "x-forward-to-exchange", Value: &logpb.Value{Tag: 'S', Str: []byte("topic")}},
		{Name: "x-forward-copies", Value: &logpb.Value{Tag: 't', Int: 1}},
	}}})
	b := &letterbox{w: w, source: grouptest.NewQueue(t, w.Catalog, q), targets: map[fsm.QueueID]*grouptest.Queue{}}
	for _, name := range []string{"one", "two"} {
		q := w.MustQueue(name)
		b.targets[q.ID] = grouptest.NewQueue(t, w.Catalog, q)
	}
	b.start()
	return b
}

func (b *letterbox) bind(queue, program string, un bool) {
	m := &logpb.Bind{Vhost: "/", Source: "topic", Destination: queue, RoutingKey: "rule", Arguments: &fsm.Table{Fields: []*logpb.Field{
		{Name: "x-filter-program", Value: &logpb.Value{Tag: 'S', Str: []byte(program)}},
	}}}
	c := &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: m}}
	if un {
		c.Body = &logpb.CatalogCommand_Unbind{Unbind: m}
	}
	b.w.Commit(c)
}

// copies are what the two queues have.
func (b *letterbox) copies() string {
	var all []string
	for _, name := range []string{"one", "two"} {
		q, _ := b.w.View().Queue("/", name)
		bodies := b.targets[q.ID].Bodies()
		slices.Sort(bodies)
		all = append(all, name+": "+strings.Join(bodies, ", "))
	}
	return strings.Join(all, "; ")
}

// publish sends a message to the topic.
func (b *letterbox) publish(t *testing.T, body string, e *logpb.Enqueue) {
	p := grouptest.Payload(body)
	batch := grouptest.Enqueue(p)
	if e != nil {
		e.Size = uint32(len(p))
		batch.Commands = group.AppendCommand(nil, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e})
	}
	b.source.Apply(t, batch)
}

// A message is copied for each binding as its program says, once, whatever gets lost; another sender does not decide anew.
func TestCopies(t *testing.T) {
	f := &splitter{}
	b := newTopic(t, f)
	b.bind("one", "x,,y", false)
	b.bind("two", "z", false)
	b.w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Describe{Describe: &logpb.Describe{Vhost: "/", Name: "one", Key: "key", Text: []byte("said")}}})
	b.publish(t, "m1", nil)
	b.run()
	for len(b.source.Waiting()) > 0 {
		b.source.Commit(t)
	}
	f.programs = map[uint64]string{} // the route is in the log
	b.start()
	lost := 0
	b.run()
	b.carry(t, func() bool { lost++; return lost%2 == 0 })
	b.drain(t)
	if got := b.copies(); got != "one: m1  of 1, m1 x of 1, m1 y of 1; two: m1 z of 1" {
		t.Error(got)
	}
	if len(f.facts) != 1 || f.facts[0].Sequence != 1 || f.facts[0].ExpireAt != 0 || f.facts[0].EnqueuedAt == 0 {
		t.Errorf("%+v", f.facts)
	}
	if one, two := f.facts[0].Described("one"), f.facts[0].Described("two"); string(one) != "said" || two != nil {
		t.Errorf("of one is said %q, of two %q", one, two)
	}
}

// Bindings come and go; a message without a copy is dropped.
func TestFiltersFollowBindings(t *testing.T) {
	f := &splitter{}
	b := newTopic(t, f)
	for step, change := range []func(){
		func() {}, func() { b.bind("one", "x", false) }, func() { b.bind("two", "y", false) }, func() { b.bind("one", "x", true) }, func() { b.bind("two", "z", false) },
	} {
		change()
		b.publish(t, fmt.Sprint("m", step), nil)
		b.drain(t)
	}
	if got := b.copies(); got != "one: m1 x of 2, m2 x of 3; two: m2 y of 3, m3 y of 4, m4 y of 5, m4 z of 5" {
		t.Error(got)
	}
	if got := strings.Join(f.calls, "; "); got != "new /topic; add x; add y; remove one=x; add z" {
		t.Error(got)
	}
	var s queue.Stats
	b.source.View(func(m *queue.Machine) { s = m.Stats() })
	if s.Counters.Unroutable != 1 {
		t.Errorf("%d are unroutable", s.Counters.Unroutable)
	}
}

// Copies live as long as the message has left, or less, or for ever if that is said.
func TestCopiesLiveAsLong(t *testing.T) {
	for ttl, want := range map[fsm.Optional[fsm.Millis]]fsm.Millis{{}: 5000, fsm.Some(fsm.Millis(10)): 10, fsm.Some(fsm.Millis(9000)): 5000, fsm.Some(fsm.Forever): 0} {
		b := newTopic(t, &splitter{ttl: ttl})
		b.bind("one", "x", false)
		b.publish(t, "m", &logpb.Enqueue{TtlPlusOne: 5001, HasExpiration: true, Hops: 4})
		at := b.w.Clock.Load()
		b.drainWithout(t)
		q, _ := b.w.View().Queue("/", "one")
		b.targets[q.ID].View(func(m *queue.Machine) {
			for x := range m.Messages() {
				left := fsm.Millis(0)
				if x.ExpireAt != 0 {
					left = fsm.Millis(x.ExpireAt) - fsm.Millis(at)
				}
				if left != want || x.HasExpiration != (want != 0) {
					t.Errorf("TTL %v: expires after %d ms, expiration %t", ttl, left, x.HasExpiration)
				}
			}
		})
		if got := len(b.targets[q.ID].Bodies()); got != 1 {
			t.Errorf("%d messages", got)
		}
	}
}

// drainWithout is drain while no time passes.
func (b *letterbox) drainWithout(t *testing.T) {
	for range 10 {
		b.run()
		for len(b.source.Waiting()) > 0 {
			b.source.Commit(t)
		}
		b.carry(t, func() bool { return false })
	}
}

// What has come by as many hops as there may be goes on from a topic all the same, and its copies have made no more.
func TestCopiesAreNoHop(t *testing.T) {
	l := &fsm.DeadLetter{Forwarded: true, Hops: 5}
	for copies, want := range map[bool]uint32{true: 4, false: 5} {
		if e := reenqueued(&logpb.QueueConfig{Forward: true, ForwardCopies: copies}, l, grouptest.Payload("m"), 0); e.Hops != want {
			t.Errorf("copies %t: %d hops", copies, e.Hops)
		}
	}
}

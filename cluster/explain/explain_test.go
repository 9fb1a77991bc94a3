package explain

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// names is a catalog of node n1 and queue 9.
type names struct{}

func (names) QueueByID(id fsm.QueueID) (*catalog.Queue, bool) {
	return &catalog.Queue{ID: id, Name: "dlq"}, id == 9
}

func (names) Node(id fsm.NodeID) (*logpb.NodeState, bool) {
	return &logpb.NodeState{Name: "n1"}, id == 1
}

// script is a log in the making.
type script struct {
	entries []*logpb.Entry
	seq     uint64
}

var client = fsm.SessionID{Node: 1, Boot: 7, Num: 3}

func (s *script) at(now int64, commands ...*logpb.Command) {
	for _, c := range commands {
		switch c.Kind {
		case logpb.Command_ENQUEUE, logpb.Command_CONSUME, logpb.Command_SETTLE:
			s.seq++
			c.Session, c.Seq = client.Proto(), s.seq
		}
	}
	s.entries = append(s.entries, &logpb.Entry{Now: now, Commands: commands})
}

func enqueue(id string, ttl uint64) *logpb.Command {
	return &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 10, MessageId: id, TtlPlusOne: ttl}}
}

func settle(outcome logpb.Settle_Outcome, delivery uint64) *logpb.Command {
	return &logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Outcome: outcome, Consumer: 1, Ranges: []uint64{delivery, 1}}}
}

func configure(c *logpb.QueueConfig) *logpb.Command {
	return &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: c}}
}

var tick = &logpb.Command{Kind: logpb.Command_TICK}

// TestParkedLife: a message that has failed once too often is parked, until it is asked back.
func TestParkedLife(t *testing.T) {
	s := &script{}
	s.at(1000, configure(&logpb.QueueConfig{DeliveryLimit: 0}), &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Tag: "worker", Prefetch: 1}})
	s.at(2000, enqueue("poison", 0), enqueue("other", 0))
	s.at(3000, settle(logpb.Settle_REQUEUE_FAILED, 1))
	s.at(4000, &logpb.Command{Kind: logpb.Command_UNPARK, Unpark: &logpb.Unpark{}})
	s.at(5000, settle(logpb.Settle_ACK, 2), settle(logpb.Settle_REQUEUE_FAILED, 3))
	for _, e := range s.entries {
		e.Version = fsm.NewestVersion
	}
	const want = "2 enqueued; 2 delivered by worker; 3 parked (reject, requeue) by worker; 4 ready (it was unparked); 5 delivered by worker; 5 parked (reject, requeue) by worker; parked"
	if l := explained(t, s, 0, "poison"); textOf(&l) != want {
		t.Errorf("%s\nnot\n%s", textOf(&l), want)
	}
}

// explained tells of a message from the whole log, and from a snapshot after each
// entry and the rest of the log.
func explained(t *testing.T, s *script, snapshotAfter int, id string) api.Life {
	t.Helper()
	q := &catalog.Queue{ID: 5, Name: "q"}
	tracer := New(q, fsm.NewestVersion, Wanted{MessageID: id}, names{})
	from := 0
	if snapshotAfter > 0 {
		before := New(q, fsm.NewestVersion, Wanted{MessageID: "none"}, names{})
		for i, e := range s.entries[:snapshotAfter] {
			if err := before.Apply(uint64(i+1), 1, e); err != nil {
				t.Fatal(err)
			}
		}
		var b bytes.Buffer
		if _, err := before.Machine().Snapshot().WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		if err := tracer.Restore(&b); err != nil {
			t.Fatal(err)
		}
		from = snapshotAfter
	}
	for i, e := range s.entries[from:] {
		if err := tracer.Apply(uint64(from+i+1), 1, e); err != nil {
			t.Fatal(err)
		}
	}
	x := tracer.Explanation(q, "n1")
	if len(x.Lives) != 1 {
		t.Fatalf("%d lives of %s: %+v", len(x.Lives), id, x)
	}
	return x.Lives[0]
}

// textOf is what a life says, an event a word.
func textOf(l *api.Life) string {
	var words []string
	for _, e := range l.Events {
		w := e.Event
		if e.Why != "" {
			w += " (" + e.Why + ")"
		}
		if e.ConsumerTag != "" {
			w += " by " + e.ConsumerTag
		}
		if len(e.Queues) > 0 {
			w += " " + strings.Join(e.Queues, " ")
		}
		words = append(words, fmt.Sprintf("%d %s", e.Index, w))
	}
	return strings.Join(words, "; ") + "; " + l.State
}

// story is a queue's history with every kind of life.
func story() *script {
	s := &script{}
	s.at(1000, configure(&logpb.QueueConfig{DeliveryLimit: 20, DeadLetter: true, ConsumerTimeoutPlusOne: 60_001}))
	s.at(2000, enqueue("old", 501), enqueue("bad", 0), enqueue("good", 0), enqueue("slow", 0))
	s.at(2600, tick)
	s.at(3000, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Tag: "worker", Prefetch: 3}})
	s.at(4000, settle(logpb.Settle_REQUEUE, 1))
	s.at(5000, settle(logpb.Settle_DISCARD, 4), settle(logpb.Settle_ACK, 2))
	s.at(6000, &logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: &logpb.RouteDead{First: 1, Routes: []*logpb.DeadRoute{{Targets: []uint64{9}}, {}}}})
	s.at(7000, &logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{Target: 9, Last: 1}})
	later := enqueue("later", 0)
	later.Enqueue.DueAt, later.Enqueue.ScheduleId = 1_000_000, "x"
	s.at(8000, later)
	s.at(9000, &logpb.Command{Kind: logpb.Command_SCHEDULE, Schedule: &logpb.Schedule{Id: "x"}})
	s.at(70_000, tick)
	return s
}

var lives = map[string]string{
	"old":   `2 enqueued; 3 died (expired, dead-lettered transactional); 7 dead letter routed dlq; 8 dead letter arrived dlq; ended`,
	"bad":   `2 enqueued; 4 delivered by worker; 5 returned (nack, requeue) by worker; 5 delivered by worker; 6 delivery ended (reject) by worker; 6 died (rejected, dead-lettered transactional) by worker; 7 dead letter routed (no queue matches); 7 dead letter dropped; ended`,
	"good":  `2 enqueued; 4 delivered by worker; 6 acknowledged by worker; ended`,
	"slow":  `2 enqueued; 4 delivered by worker; 11 returned (consumer timeout) by worker; returned`,
	"later": `9 scheduled; 10 cancelled; ended`,
}

// TestLives: a message's life is known from the whole log.
func TestLives(t *testing.T) {
	for id, want := range lives {
		l := explained(t, story(), 0, id)
		if got := textOf(&l); got != want {
			t.Errorf("%s:\n%s\nnot\n%s", id, got, want)
		}
	}
}

// TestLivesFromSnapshots: whatever the newest snapshot covers, the end of a life is the same, and
// what it does not cover is there in full.
func TestLivesFromSnapshots(t *testing.T) {
	s := story()
	for after := 1; after < len(s.entries); after++ {
		for _, id := range []string{"old", "bad", "slow"} {
			whole := explained(t, s, 0, id)
			l := explained(t, s, after, id)
			isBehind := func(e api.LifeEvent) bool { return e.Index > uint64(after) }
			want := slices.DeleteFunc(slices.Clone(whole.Events), func(e api.LifeEvent) bool { return !isBehind(e) })
			got := slices.DeleteFunc(slices.Clone(l.Events), func(e api.LifeEvent) bool { return !isBehind(e) })
			if fmt.Sprint(got) != fmt.Sprint(want) || l.State != whole.State {
				t.Errorf("%s, snapshot at %d:\n%s\nnot\n%s", id, after, textOf(&l), textOf(&whole))
			}
			if id == "old" && after >= 3 && l.Events[1].Why != whole.Events[1].Why {
				t.Errorf("snapshot at %d: %s", after, textOf(&l))
			}
		}
	}
}

// TestForwardedLives: what a queue forwards has no death, and where it went is known.
func TestForwardedLives(t *testing.T) {
	s := &script{}
	forwards := &logpb.QueueConfig{DeliveryLimit: 20, Forward: true}
	s.at(1000, configure(forwards))
	s.at(2000, enqueue("on", 0), enqueue("back", 0))
	s.at(3000, routes(1, []uint64{9}, nil))
	s.at(4000, &logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{Target: 9, Last: 1}})
	s.at(5000, configure(&logpb.QueueConfig{DeliveryLimit: 20}))
	s.at(6000, &logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: &logpb.RouteDead{Retry: true, Routes: []*logpb.DeadRoute{{Letter: 2}}}})
	for id, want := range map[string]string{
		"on":   `2 enqueued; 3 routed dlq; 4 forwarded dlq; ended`,
		"back": `2 enqueued; 3 waits for a route; 6 ready (the queue no longer forwards); ready`,
	} {
		if l := explained(t, s, 0, id); textOf(&l) != want {
			t.Errorf("%s:\n%s\nnot\n%s", id, textOf(&l), want)
		}
	}
	if l := explained(t, s, 5, "on"); textOf(&l) != `2 enqueued; 4 forwarded dlq; ended` {
		t.Errorf("from a snapshot: %s", textOf(&l))
	}
}

// routes says where letters go, from the first one on.
func routes(first uint64, to ...[]uint64) *logpb.Command {
	r := &logpb.RouteDead{First: first}
	for _, targets := range to {
		r.Routes = append(r.Routes, &logpb.DeadRoute{Targets: targets})
	}
	return &logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: r}
}

// TestByNumber: a message without an id is found by its number.
func TestByNumber(t *testing.T) {
	tracer := New(&catalog.Queue{ID: 5, Name: "q"}, fsm.NewestVersion, Wanted{Number: 2}, names{})
	for i, e := range story().entries {
		if err := tracer.Apply(uint64(i+1), 1, e); err != nil {
			t.Fatal(err)
		}
	}
	x := tracer.Explanation(&catalog.Queue{}, "n1")
	if len(x.Lives) != 1 || textOf(&x.Lives[0]) != lives["bad"] {
		t.Errorf("%+v", x)
	}
}

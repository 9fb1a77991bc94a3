package queues

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// Waiting for a queue without a leader ends with the context, or the queue.
func TestAwaitLeader(t *testing.T) {
	w := newWorld(t)
	q := w.MustQueue("q")
	ctx, cancel := context.WithCancel(context.Background())
	answers := make(chan error, 1)
	go func() { answers <- w.queues.Leaders.Await(ctx, q) }()
	cancel()
	if err := <-answers; !isKind(err, fsm.Unavailable) {
		t.Errorf("without a leader: %v", err)
	}
	go func() { answers <- w.queues.Leaders.Await(context.Background(), q) }()
	w.queues.Routes.Route(q).Lead("n1", 1)
	if err := <-answers; err != nil {
		t.Errorf("with a leader: %v", err)
	}
	w.queues.Routes.Route(q).Lose("n1")
	go func() { answers <- w.queues.Leaders.Await(context.Background(), q) }()
	w.deleteQueue(q)
	if err := <-answers; !isKind(err, fsm.NotFoundKind) {
		t.Errorf("of a deleted queue: %v", err)
	}
}

// A queue hears of a peek at most once in its time, also after a clock that went
// back, and is forgotten when it is gone.
func TestPeeks(t *testing.T) {
	p := peeks{at: map[fsm.QueueID]int64{}}
	for i, x := range []struct {
		now  int64
		want bool
	}{{100, true}, {109, false}, {110, true}, {110, false}, {50, true}, {59, false}} {
		if got := p.due(7, x.now, 10); got != x.want {
			t.Errorf("%d: at %d due: %v", i, x.now, got)
		}
	}
	if !p.due(8, 50, 10) {
		t.Error("another queue has to wait")
	}
	p.drop(7)
	if !p.due(7, 51, 10) || len(p.at) != 2 {
		t.Errorf("after the end of the queue: %v", p.at)
	}
}

// TestSourcePass: after a change of the catalog, and once this node leads another one, each led queue is looked at, some
// per round and again as long as there is something to end; without one, none is.
func TestSourcePass(t *testing.T) {
	w := newWorld(t)
	const led = sourcesAtOnce + 3
	var groups []*group.Group
	for id := range fsm.GroupID(led) {
		groups = append(groups, w.node.Groups.OpenLocal(group.Spec{Group: id + 1, Queue: fsm.QueueID(id+1) << 16, Config: &group.QueueConfig{}, Local: true}))
	}
	looks, total, wants := map[fsm.GroupID]int{}, 0, 2 // at the first queue
	var p sourcePass
	round := func() (looked int) {
		before := total
		p.round(sourcesKnown{w.View(), w.queues.terms.Load()}, func() []*group.Group { return groups }, func(id fsm.GroupID, _ *catalog.View) bool {
			total++
			looks[id]++
			return id == 1 && looks[id] < wants
		})
		return total - before
	}
	if a, b, c, d := round(), round(), round(), round(); a != sourcesAtOnce || b != 4 || c != 0 || d != 0 || looks[1] != 2 || len(looks) != led {
		t.Errorf("looked at %d, %d, %d, %d; at the first %d times", a, b, c, d, looks[1])
	}
	w.MustQueue("new")
	round()
	w.MustQueue("newer") // during a pass: another one follows
	if b, c, d, e := round(), round(), round(), round(); b != 3 || c != sourcesAtOnce || d != 3 || e != 0 {
		t.Errorf("after changes: %d, %d, %d, %d", b, c, d, e)
	}
	w.queues.Led(groups[0], 2)
	if b, c, d := round(), round(), round(); b != sourcesAtOnce || c != 3 || d != 0 {
		t.Errorf("after a change of leader: %d, %d, %d", b, c, d)
	}
}

// A question goes to the leader until one answers; it ends with the grace, and with
// the queue.
func TestAskLeader(t *testing.T) {
	w := newWorld(t)
	x := w.queues.Leaders
	q := w.MustQueue("q")
	w.node.Grace = time.Millisecond
	if gone, err := x.Ask(context.Background(), q, func(string) bool { return true }); gone || !isKind(err, fsm.Unavailable) {
		t.Errorf("without a leader: %v, %v", gone, err)
	}
	w.node.Grace = time.Minute
	w.queues.Routes.Lead(q.ID, "n1", 1)
	asked := 0
	gone, err := x.Ask(context.Background(), q, func(leader string) bool {
		asked++
		return leader == "n1" && asked == 3
	})
	if gone || err != nil || asked != 3 {
		t.Errorf("after %d questions: %v, %v", asked, gone, err)
	}
	w.deleteQueue(q)
	if gone, err := x.Ask(context.Background(), q, func(string) bool { return false }); !gone || err != nil {
		t.Errorf("of a queue that is gone: %v, %v", gone, err)
	}
}

// TestLastTimeouts: a node remembers as many timeouts as it may, and no notice twice.
func TestLastTimeouts(t *testing.T) {
	w := newWorld(t)
	q := w.MustQueue("q")
	g := w.mustOpen(t, q)
	of := fsm.ConsumerID{Session: fsm.SessionID{Node: 1, Boot: 7, Num: 9}, Number: 5}
	for i := range maxTimeouts + 2 {
		w.queues.Timeouts.note(g, &group.Work{Effects: fsm.Effects{Timeouts: []fsm.Timeout{
			{To: of, Tag: fmt.Sprint("tag ", i), Deliveries: []uint64{1, 2}, Limit: 10, Held: 12},
			{To: of, Tag: "again", Deliveries: []uint64{1, 2}, Again: true},
		}}})
	}
	w.queues.Timeouts.note(g, &group.Work{Effects: fsm.Effects{Timeouts: []fsm.Timeout{{To: fsm.ConsumerID{Session: of.Session}, Deliveries: []uint64{1}}}}})
	all := w.queues.Timeouts.List().Led
	if len(all) != maxTimeouts || all[0].Tag != "tag 3" || all[maxTimeouts-1].Tag != getTag {
		t.Fatalf("%d, from %v to %v", len(all), all[0], all[len(all)-1])
	}
	x := all[maxTimeouts-2]
	if got := fmt.Sprintln(x.At > 0, x.Queue == uint64(q.ID), x.Vhost, x.Name, x.Node, x.Boot, x.Session, x.Number, x.Tag, x.Messages, x.Held, x.Timeout); got != "true true / q 1 7 9 5 tag 257 2 12 10\n" {
		t.Error(got)
	}
}

// A queue that has ended by itself is noted with the reason; one that was deleted
// is noted by its deletion.
func TestEndsAreAudited(t *testing.T) {
	w := newWorld(t)
	var text bytes.Buffer
	w.queues.audit = audit.New("n1", &text, time.Now, func(err error) { t.Error(err) })
	q := w.MustQueue("q")
	w.queues.noteEnd(q, queue.NotEnded, 1)
	w.queues.noteEnd(q, queue.IdleOver, 1_700_000_000_000)
	var all []audit.Event
	for d := json.NewDecoder(&text); d.More(); {
		var e audit.Event
		must(t, d.Decode(&e))
		all = append(all, e)
	}
	if len(all) != 1 || w.queues.Counts().Ended != 1 {
		t.Fatalf("%d lines, counted %d", len(all), w.queues.Counts().Ended)
	}
	want := map[string]any{"reason": "x-auto-delete-on-idle", "last_active": "2023-11-14T22:13:20Z"}
	if e := all[0]; e.Action != "queue.expire" || e.Target["queue"] != "q" || !maps.Equal(e.Detail, want) {
		t.Errorf("%+v", e)
	}
}

// Queues are watched after a panic in the watch itself.
func TestWatchGoesOnAfterPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.queues.Serve()
		w.timeless.Store(true)
		time.Sleep(watchRest * watchEvery)
		synctest.Wait()
		before, panics := w.queues.rounds, w.node.Panics()
		w.timeless.Store(false)
		time.Sleep(worker.PanicPause + 3*watchRest*watchEvery)
		synctest.Wait()
		if after := w.queues.rounds; panics == 0 || after < before+3*watchRest {
			t.Errorf("%d rounds after %d panics", after-before, panics)
		}
		w.node.Stop()
	})
}

// A panic in one thing that the watch does leaves the others alone.
func TestWatchPanics(t *testing.T) {
	w := newWorld(t)
	q := w.MustQueue("q")
	w.queues.letters = nil
	w.queues.dispatcher.links.unsent[unsent{queue: q.ID}] = struct{}{}
	w.blind.Store(true)
	w.queues.rounds = sourceEvery - 1
	w.queues.round() // sources, notices and dead letters
	if n := w.node.Panics(); n != 3 {
		t.Errorf("%d panics", n)
	}
}

// What is sent at most once begins anew with the boot.
func TestRestartLosesLetters(t *testing.T) {
	w := newWorld(t)
	w.MustQueue("to")
	from := grouptest.NewQueue(t, w.Catalog, w.MustQueue("from"))
	from.Apply(t, group.BatchOf(&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: &logpb.QueueConfig{
		DeadLetter: true, DeadLetterRoutingKey: "to", HasDeadLetterRoutingKey: true, DeadLetterStrategy: logpb.QueueConfig_AT_MOST_ONCE,
	}}}))
	p := grouptest.Payload("m")
	from.Apply(t, grouptest.Enqueue(p))
	w.queues.letters.SendOnce(from, []fsm.DeadLetter{{Reason: logpb.Death_EXPIRED, Ref: fsm.Ref{Index: from.Index(), Size: uint32(len(p))}}})
	if n := w.queues.Counts().LostOnce; n != 0 {
		t.Fatalf("%d letters are lost before", n)
	}
	w.queues.Restart()
	if n := w.queues.Counts().LostOnce; n != 1 {
		t.Errorf("%d letters are lost with the boot", n)
	}
}

package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// directQueue is a queue of a world that answers at once what sessions ask.
type directQueue struct {
	t *testing.T
	w *world
	q *catalog.Queue

	mu     sync.Mutex
	m      *queue.Machine
	index  uint64
	bodies map[fsm.Ref]string
	lose   int // so many answers get lost: what they answer is performed, and then asked for again
	drop   int // so many deliveries get lost

	arrived chan group.Batch // in their order
	serving sync.Mutex       // held from when a batch is taken until it is answered
}

func mustDirect(t *testing.T, config *logpb.QueueConfig) (*directQueue, *recorder, *Session) {
	t.Helper()
	w, c := newWorld(t), &recorder{}
	t.Cleanup(w.close)
	for _, c := range []*logpb.CatalogCommand{
		{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{Name: "n1", PeerAddress: "n1", Incarnation: []byte("0123456789abcdeF"), OldestVersion: 1, NewestVersion: fsm.NewestVersion}}},
		{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.FSMVersion, Value: fsm.NewestVersion}}},
	} {
		w.Commit(c)
	}
	declare := &logpb.DeclareQueue{Vhost: "/", Name: "q", Durable: true, Members: []uint32{1}, Arguments: &fsm.Table{Fields: []*logpb.Field{
		{Name: "x-sent-refused-queue", Value: &logpb.Value{Tag: 'S', Str: []byte("refused")}},
	}}}
	if config.Groups != logpb.QueueConfig_NO_GROUPS {
		declare.Arguments.Fields = append(declare.Arguments.Fields, &logpb.Field{Name: "x-message-groups", Value: &logpb.Value{Tag: 't', Int: 1}})
	}
	q := w.MustDeclare(declare)
	d := &directQueue{t: t, w: w, q: q, m: queue.New("q", q.ID), bodies: map[fsm.Ref]string{}}
	d.apply(&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: config}}, nil)
	d.arrived = make(chan group.Batch, 1000)
	w.submits(q.ID, func(_ string, b group.Batch) error {
		d.arrived <- b
		w.node.Spawn("serve", d.serveNext)
		return nil
	})
	w.queues.Routes.Route(q).Lead("n1", 1)
	return d, c, w.mustSession(c)
}

// apply performs a command, and returns its answer and what it hands out to whom.
func (d *directQueue) apply(c *logpb.Command, payload []byte) (fsm.Result, map[fsm.SessionID][]fsm.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.index++
	at := uint32(0)
	for _, x := range append([]*logpb.Command{c}, c.GetUnit().GetCommands()...) {
		if n := x.GetEnqueue().GetSize(); n > 0 && payload != nil {
			d.bodies[fsm.Ref{Index: d.index, Offset: at, Size: n}] = string(fsm.Payload(payload[at : at+n]).Body())
			at += n
		}
	}
	var eff fsm.Effects
	r := d.m.Apply(fsm.Meta{Index: d.index, Term: 1, Now: d.w.Stamp(), Session: fsm.SessionFrom(c.Session), Version: fsm.NewestVersion}, c, &eff)
	all := map[fsm.SessionID][]fsm.Message{}
	for _, x := range eff.Deliveries {
		all[x.To.Session] = append(all[x.To.Session], fsm.Message{
			Consumer: x.To.Number, ID: x.ID, Sequence: x.Sequence, Acquired: x.Acquired, LockedUntil: x.LockedUntil, Edit: x.Edit,
			Payload: grouptest.Payload(d.bodies[x.Ref]),
		})
	}
	return r, all
}

// loseNext has so many answers get lost.
func (d *directQueue) loseNext(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lose = n
}

func (d *directQueue) losesNext() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lose--
	return d.lose >= 0
}

// serveNext serves the batch that has arrived first, as a log has them in their order.
func (d *directQueue) serveNext() {
	d.serving.Lock()
	defer d.serving.Unlock()
	d.serve(<-d.arrived)
}

// serve performs a batch, and answers it.
func (d *directQueue) serve(b group.Batch) {
	payload := slices.Concat(b.Payloads...)
	for _, c := range grouptest.Commands(d.t, b) {
		r, handed := d.apply(c, payload)
		payload = payload[c.GetEnqueue().GetSize()+c.GetUnit().GetSize():]
		if d.losesNext() {
			var again map[fsm.SessionID][]fsm.Message
			if r, again = d.apply(c, nil); len(again) > 0 {
				handed = again // what the first one has handed out is lost as well
			}
		}
		for to, messages := range handed {
			if d.drop > 0 {
				d.drop, messages = d.drop-1, messages[1:]
			}
			d.w.queues.Routes.Stream(d.q.ID, to).Receive(stream.DeliveryBatch{Messages: messages})
		}
		d.w.queues.Routes.Stream(d.q.ID, fsm.SessionFrom(c.Session)).Answer("n1", []group.Outcome{{First: c.Seq, Run: 1, Result: r}})
	}
}

func sends(bodies ...string) (all []fsm.Publish) {
	for _, body := range bodies {
		all = append(all, fsm.Publish{Payload: grouptest.Payload(body), TTL: -1, Priority: -1, Delay: nil})
	}
	return all
}

func later(at fsm.Time, p []fsm.Publish) []fsm.Publish {
	for i := range p {
		p[i].Schedule = &fsm.Schedule{At: at, Delay: -1}
	}
	return p
}

// consume has a consumer of s hold all that there is, and returns it.
func (d *directQueue) consume(c *recorder, s *Session, want int) []fsm.Message {
	d.t.Helper()
	must(d.t, s.Consume(context.Background(), fsm.ConsumeSpec{Queue: "q", Number: 1, Credit: true, Numbered: true}))
	s.Credit(1, fsm.Flow{Credit: 100})
	return d.await(c, want)
}

func (d *directQueue) await(c *recorder, want int) (all []fsm.Message) {
	d.t.Helper()
	grouptest.Eventually(d.t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		all = slices.Clone(c.messages)
		return len(all) >= want
	})
	return all
}

func handleOf(m *fsm.Message) fsm.Handle { return fsm.Handle{Number: m.Sequence, Acquired: m.Acquired} }

// What a unit says is done together: messages get numbers one after the other, deliveries end wherever they are held.
func TestPerform(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("answer lost ", lost), func(t *testing.T) {
			ctx := context.Background()
			d, c, s := mustDirect(t, &logpb.QueueConfig{DeliveryLimit: -1, Lock: 60_000})
			if lost {
				d.loseNext(1)
			}
			first, err := s.Perform(ctx, "q", &fsm.Unit{Sends: sends("a", "b", "c")})
			if err != nil || first != 1 {
				t.Fatalf("the first one is %d, %v", first, err)
			}
			held := d.consume(c, s, 3)
			if m := held[1]; m.Sequence != 2 || m.LockToken != "" || m.LockedUntil == 0 || string(m.Payload.Body()) != "b" {
				t.Errorf("handed out is %+v", m)
			}
			other := d.w.mustSession(&recorder{})
			until, err := other.RenewLocks(ctx, "q", []fsm.Handle{handleOf(&held[1]), handleOf(&held[0])})
			if err != nil || until != d.w.Stamp()+60_000 {
				t.Errorf("renewed until %d, %v", until, err)
			}
			edit := fsm.Settlement{Outcome: fsm.RequeueFailed, Edit: []byte("edit")}
			if lost {
				d.loseNext(1)
			}
			first, err = other.Perform(ctx, "q", &fsm.Unit{Sends: sends("d"), Endings: []fsm.Ending{
				{Handles: []fsm.Handle{handleOf(&held[1])}, Settlement: edit}, {Handles: []fsm.Handle{handleOf(&held[2]), handleOf(&held[0])}, Settlement: fsm.Settlement{Outcome: fsm.Ack}},
			}})
			if err != nil || first != 4 {
				t.Errorf("the next one is %d, %v", first, err)
			}
			held = d.await(c, 5)
			if x := held[3:]; string(x[0].Payload.Body())+string(x[1].Payload.Body()) != "bd" || string(x[0].Edit) != "edit" || x[0].Acquired != 1 {
				t.Errorf("handed out then is %+v", x)
			}
			gone := []fsm.Handle{handleOf(&held[0])}
			if _, err := other.Perform(ctx, "q", &fsm.Unit{Sends: sends("e"), Endings: []fsm.Ending{{Handles: gone, Settlement: edit}}}); err != fsm.ErrNotHeld {
				t.Errorf("settled again: %v", err)
			}
			if _, err := other.RenewLocks(ctx, "q", gone); err != fsm.ErrNotHeld {
				t.Errorf("renewed again: %v", err)
			}
			if st := d.m.Stats(); st.Unacknowledged.Messages != 2 || st.Ready.Messages != 0 {
				t.Errorf("%+v are held, %+v are ready", st.Unacknowledged, st.Ready)
			}
		})
	}
}

// A unit that a queue has no space for is refused as a whole, and what cannot be performed is not sent.
func TestPerformRefused(t *testing.T) {
	ctx := context.Background()
	d, _, s := mustDirect(t, &logpb.QueueConfig{MaxLengthPlusOne: 3, Overflow: logpb.QueueConfig_REJECT_PUBLISH})
	_, err := s.Perform(ctx, "q", &fsm.Unit{Sends: sends("a", "b", "c")})
	var full *fsm.NotTaken
	if !errors.As(err, &full) || full.Reason != fsm.TooLong || full.Queue != "q" {
		t.Errorf("a queue that is full says %v", err)
	}
	one := []fsm.Handle{{Number: 1}}
	for name, u := range map[string]*fsm.Unit{
		"nothing":       {},
		"no delivery":   {Endings: []fsm.Ending{{}}},
		"no token":      {Endings: []fsm.Ending{{Handles: one, Settlement: fsm.Settlement{Outcome: fsm.Defer}}}},
		"one twice":     {Endings: []fsm.Ending{{Handles: one, Settlement: fsm.Settlement{}}, {Handles: one, Settlement: fsm.Settlement{}}}},
		"a large edit":  {Endings: []fsm.Ending{{Handles: one, Settlement: fsm.Settlement{Outcome: fsm.Requeue, Edit: make([]byte, fsm.MaxEdit+1)}}}},
		"a schedule id": {Sends: []fsm.Publish{{Payload: grouptest.Payload("m"), TTL: -1, Priority: -1, Schedule: &fsm.Schedule{Delay: 1, ID: "x"}}}},
		"too much":      {Sends: slices.Repeat(sends("m"), fsm.MaxUnit+1)},
		"itself":        {Onward: []fsm.Publish{{RoutingKey: "q", Payload: grouptest.Payload("m"), TTL: -1, Priority: -1}}},
	} {
		if _, err := s.Perform(ctx, "q", u); !isKind(err, fsm.Precondition) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if d.index != 2 {
		t.Errorf("%d commands were sent", d.index)
	}
}

// A unit that is posted keeps its place among publishes, and its outcome is told by its number: of all of it.
func TestPost(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("answer lost ", lost), func(t *testing.T) {
			ctx := context.Background()
			d, c, s := mustDirect(t, &logpb.QueueConfig{MaxLengthPlusOne: 6, Overflow: logpb.QueueConfig_REJECT_PUBLISH, DeliveryLimit: -1, Lock: 60_000})
			to := streamTo(s, d.q)
			publish(s, to, 1, "a")
			grouptest.Eventually(t, func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return len(c.settled) == 1
			})
			if lost {
				d.loseNext(4)
			}
			must(t, s.Post(ctx, "q", &fsm.Unit{Sends: sends("b", "c")}, 2))
			publish(s, to, 3, "d")
			must(t, s.Post(ctx, "q", &fsm.Unit{Sends: sends("e", "f")}, 4)) // there is space for one
			must(t, s.Post(ctx, "q", &fsm.Unit{Endings: []fsm.Ending{{Handles: []fsm.Handle{{Number: 99}}}}}, 5))
			publish(s, to, 6, "g")
			var why []error
			grouptest.Eventually(t, func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				why = slices.Clone(c.why)
				return len(c.settled) == 6
			})
			var full *fsm.NotTaken
			why = slices.DeleteFunc(why, func(err error) bool { return err == nil })
			if len(why) != 2 || !errors.As(why[0], &full) || full.Reason != fsm.TooLong || why[1] != fsm.ErrNotHeld {
				t.Errorf("the outcomes are %v", why)
			}
			text := ""
			for i, m := range d.consume(c, s, 5) {
				if text += string(m.Payload.Body()); m.Sequence != uint64(i+1) {
					t.Errorf("%s has the number %d", m.Payload.Body(), m.Sequence)
				}
			}
			if text != "abcdg" {
				t.Errorf("the queue has %s", text)
			}
		})
	}
}

// A unit whose queue is gone is nowhere, and one that cannot be performed has no outcome.
func TestPostNowhere(t *testing.T) {
	ctx := context.Background()
	d, c, s := mustDirect(t, &logpb.QueueConfig{})
	if err := s.Post(ctx, "q", &fsm.Unit{}, 1); !isKind(err, fsm.Precondition) {
		t.Errorf("nothing to do: %v", err)
	}
	d.w.submits(d.q.ID, func(string, group.Batch) error { return nil }) // which is lost
	must(t, s.Post(ctx, "q", &fsm.Unit{Sends: sends("a", "b")}, 2))
	d.w.deleteQueue(d.q)
	grouptest.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.why) == 1 && c.why[0] == fsm.ErrUnroutable && c.settled[2] == 1
	})
	if err := s.Post(ctx, "q", &fsm.Unit{Sends: sends("a", "b")}, 3); !isKind(err, fsm.NotFoundKind) {
		t.Errorf("to a queue that is gone: %v", err)
	}
}

// What goes on to another queue is a letter at once; if that is gone, to the one for what is not taken.
func TestPerformOnward(t *testing.T) {
	d, _, s := mustDirect(t, &logpb.QueueConfig{})
	to := d.w.MustQueue("other")
	p := sends("x")
	p[0].RoutingKey = "other"
	if _, err := s.Perform(context.Background(), "q", &fsm.Unit{Onward: p}); err != nil {
		t.Fatal(err)
	}
	if l := d.m.UnroutedLetters(9); len(l) != 1 || l[0].TakenTo != to.ID {
		t.Errorf("its letters are %+v", l)
	}
	p[0].RoutingKey = "nowhere"
	if _, err := s.Perform(context.Background(), "q", &fsm.Unit{Onward: p}); !isKind(err, fsm.NotFoundKind) {
		t.Errorf("to a queue that is not there: %v", err)
	}
	refused := d.w.MustQueue("refused")
	if _, err := s.Perform(context.Background(), "q", &fsm.Unit{Onward: p}); err != nil {
		t.Fatal(err)
	}
	if l := d.m.UnroutedLetters(9); len(l) != 2 || l[1].TakenTo != refused.ID {
		t.Errorf("its letters are %+v", l)
	}
}

// Deferred messages are taken by their tokens: all or none, also if one gets lost on its way or the answer does.
func TestTakeDeferred(t *testing.T) {
	for _, fault := range []string{"", "delivery", "answer"} {
		t.Run(fault, func(t *testing.T) {
			ctx := context.Background()
			d, c, s := mustDirect(t, &logpb.QueueConfig{DeliveryLimit: -1})
			_, err := s.Perform(ctx, "q", &fsm.Unit{Sends: sends("a", "b", "c")})
			must(t, err)
			for i, m := range d.consume(c, s, 3) {
				_, err := s.Perform(ctx, "q", &fsm.Unit{Endings: []fsm.Ending{{Handles: []fsm.Handle{handleOf(&m)}, Settlement: fsm.Settlement{Outcome: fsm.Defer, Deferral: fmt.Sprint(i)}}}})
				must(t, err)
			}
			other := d.w.mustSession(&recorder{})
			if _, err := other.TakeDeferred(ctx, "q", fsm.Deferred{Tokens: []string{"1", "9"}, Lock: 5000}); err != fsm.ErrNoMessage {
				t.Errorf("one that is not there: %v", err)
			}
			switch fault {
			case "delivery":
				d.drop = 1
			case "answer":
				d.loseNext(1)
			}
			got, err := other.TakeDeferred(ctx, "q", fsm.Deferred{Tokens: []string{"1", "0"}, Lock: 5000})
			must(t, err)
			var bodies []string
			for i := range got {
				bodies = append(bodies, string(got[i].Payload.Body()))
			}
			if strings.Join(bodies, "") != "ba" || got[0].Acquired != 1 || got[0].LockedUntil == 0 {
				t.Fatalf("taken are %v, the first one is %+v", bodies, got[0])
			}
			_, err = s.Perform(ctx, "q", &fsm.Unit{Endings: []fsm.Ending{{Handles: []fsm.Handle{handleOf(&got[0])}, Settlement: fsm.Settlement{Outcome: fsm.RequeueFailed}}}})
			must(t, err)
			got, err = other.TakeDeferred(ctx, "q", fsm.Deferred{Tokens: []string{"1", "2"}, Delete: true})
			if err != nil || len(got) != 2 {
				t.Errorf("deleted are %d, %v", len(got), err)
			}
			if st := d.m.Stats(); st.Deferred.Messages != 0 || st.Unacknowledged.Messages != 1 {
				t.Errorf("%+v", st)
			}
			if len(c.messages) != 3 {
				t.Errorf("the consumer has %d messages", len(c.messages))
			}
		})
	}
}

// Scheduled messages are cancelled by the numbers that they were given: all or none.
func TestCancelScheduled(t *testing.T) {
	ctx := context.Background()
	d, _, s := mustDirect(t, &logpb.QueueConfig{})
	first, err := s.Perform(ctx, "q", &fsm.Unit{Sends: later(d.w.Stamp()+5000, sends("a", "b", "c"))})
	must(t, err)
	if err := s.CancelScheduled(ctx, "q", []uint64{first + 1, first + 3}); err != fsm.ErrNoMessage {
		t.Errorf("one that is not there: %v", err)
	}
	must(t, s.CancelScheduled(ctx, "q", []uint64{first + 2, first}))
	if st := d.m.Stats(); st.Scheduled.Messages != 1 {
		t.Errorf("%d are scheduled", st.Scheduled.Messages)
	}
	if err := s.CancelScheduled(ctx, "q", nil); !isKind(err, fsm.Precondition) {
		t.Errorf("no number: %v", err)
	}
}

// A consumer that holds groups has one that is empty from the beginning, and does with it what it likes, until it gives it up.
func TestHeldGroup(t *testing.T) {
	ctx := context.Background()
	d, c, s := mustDirect(t, &logpb.QueueConfig{DeliveryLimit: -1, Lock: 60_000, Groups: logpb.QueueConfig_BY_HEADER})
	hold := fsm.ConsumeSpec{Queue: "q", Number: 1, Credit: true, Numbered: true, Hold: true, Arguments: &fsm.Table{Fields: []*logpb.Field{
		{Name: "x-group-id", Value: &logpb.Value{Tag: 'S', Str: []byte("g")}},
	}}}
	must(t, s.Consume(ctx, hold))
	other := d.w.mustSession(&recorder{})
	if err := other.Consume(ctx, hold); err != fsm.ErrGroupHeld {
		t.Errorf("held by another one: %v", err)
	}
	until, _, err := s.Group(ctx, 1, "g", fsm.RenewGroup, nil)
	if err != nil || until != d.w.Stamp()+60_000 {
		t.Errorf("until %d, %v", until, err)
	}
	_, _, err = s.Group(ctx, 1, "g", fsm.SetGroupState, []byte("state"))
	must(t, err)
	if _, state, err := s.Group(ctx, 1, "g", fsm.GetGroupState, nil); string(state) != "state" || err != nil {
		t.Errorf("the state is %s, %v", state, err)
	}
	if _, _, err := s.Group(ctx, 1, "g", fsm.SetGroupState, make([]byte, fsm.MaxGroupState+1)); !isKind(err, fsm.Precondition) {
		t.Errorf("a state that is too large: %v", err)
	}
	for consumer, id := range map[uint64]string{1: "another", 9: "g"} {
		if _, _, err := s.Group(ctx, consumer, id, fsm.GetGroupState, nil); err != fsm.ErrNotHeld {
			t.Errorf("consumer %d and group %s: %v", consumer, id, err)
		}
	}
	_, _, err = s.Group(ctx, 1, "g", fsm.ReleaseGroup, nil)
	must(t, err)
	hold.Number = 2 // numbers are not used again
	must(t, other.Consume(ctx, hold))
	if len(c.messages) > 0 {
		t.Errorf("%d messages", len(c.messages))
	}
}

package v10_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// info reads the texts of an error's info.
func info(t testing.TB, e *wire.Error) map[string]string {
	t.Helper()
	if e == nil {
		t.Fatal("there is no error")
	}
	all := map[string]string{}
	for w := e.Info.Walk(); w.NextPair(); {
		all[string(w.Key.Bytes())] = fmt.Sprint(w.Value.Type, string(w.Value.Bytes()))
	}
	return all
}

// A rejection names the queue and why it has refused.
func TestRejectionNamesItsQueue(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("full")
	s.broker.RefusePublishes("full", true)
	r := s.mustOpen()
	r.mustAttach(aSender("/queues/full"))
	e := r.publish(1, message("x")).State.Rejected.Error
	mustCondition(t, e, wire.ConditionResourceLimit, "queue 'full' exceeded maximum length")
	if got := info(t, e); got["queue"] != fmt.Sprint(wire.String, "full") || got["reason"] != fmt.Sprint(wire.Symbol, "maxlen") {
		t.Errorf("info %v", got)
	}
}

// Each reason that the broker has for an outcome is told as its own.
func TestReasonsOfOutcomes(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustOpen()
	var why error
	s.broker.OnCommand(func(*fsm.Publish) ([]fsm.Held, error) { return nil, why })
	r.mustAttach(aSender("/exchanges/amq.quorate.command/verb"))
	for i, c := range []struct {
		why                     error
		kind                    wire.Outcome
		condition, text, reason string
	}{
		{nil, wire.StateAccepted, "", "", ""},
		{fsm.ErrUnroutable, wire.StateReleased, "", "", ""},
		{&fsm.NotTaken{Queue: "q", Reason: fsm.NoGroup}, wire.StateRejected, wire.ConditionPreconditionFailed, "queue 'q' requires", "group-required"},
		{&fsm.NotTaken{Queue: "q", Reason: fsm.Scheduled}, wire.StateRejected, wire.ConditionPreconditionFailed, "queue 'q' has a waiting message", "scheduled"},
		{&fsm.NotTaken{Queue: "q", Reason: fsm.OutOfOrder}, wire.StateRejected, wire.ConditionPreconditionFailed, "queue 'q' is unavailable", "unavailable"},
		{fsm.ErrNoCommand, wire.StateRejected, wire.ConditionNotImplemented, "no such command", ""},
		{fsm.Refuse(fsm.NotFoundKind, "none"), wire.StateRejected, wire.ConditionNotFound, "none", ""},
		{fsm.Refuse(fsm.Locked, "other"), wire.StateRejected, wire.ConditionResourceLocked, "other", ""},
		{fsm.Refuse(fsm.Precondition, "bad"), wire.StateRejected, wire.ConditionPreconditionFailed, "bad", ""},
		{fsm.Refuse(fsm.AccessRefused, "no"), wire.StateRejected, wire.ConditionUnauthorized, "no", ""},
		{fsm.Refuse(fsm.Unavailable, "late"), wire.StateRejected, wire.ConditionPreconditionFailed, "late", ""},
	} {
		why = c.why
		d := r.publish(uint32(i), message("x"))
		mustKind(t, d, c.kind, "")
		if c.kind != wire.StateRejected {
			continue
		}
		mustCondition(t, d.State.Rejected.Error, c.condition, c.text)
		if got := info(t, d.State.Rejected.Error)["reason"]; c.reason != "" && got != fmt.Sprint(wire.Symbol, c.reason) {
			t.Errorf("reason %q, want %q", got, c.reason)
		}
	}
}

// command is a message with application properties and a reply-to.
func command(replyTo string, body []byte, properties ...any) []byte {
	b := wire.Append(nil, &wire.Properties{ReplyTo: []byte(replyTo)})
	if replyTo == "" {
		b = nil
	}
	b = wire.StartApplicationProperties(b)
	at := len(b)
	b = wire.StartMap(b)
	for i := 0; i < len(properties); i += 2 {
		b = wire.AppendString(b, properties[i].(string))
		switch v := properties[i+1].(type) {
		case string:
			b = wire.AppendString(b, v)
		case int:
			b = wire.AppendUint(b, uint32(v))
		}
	}
	return append(wire.EndMap(b, at, len(properties)/2), body...)
}

// A command sees what its session holds: deliveries by their ids, links by their names.
func TestCommandsSeeDeliveries(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q", "p")
	s.mustFill("q", "1", "2", "3")
	s.mustFill("p", "4")
	r := s.mustOpen()
	for i, q := range []string{"q", "p"} {
		a := aReceiver("/queues/" + q)
		a.Handle, a.Name = uint32(i+1), "link-"+q
		r.mustAttach(a)
		r.send(channel, &wire.Flow{Handle: wire.Some(a.Handle), IncomingWindow: 100, LinkCredit: wire.Some[uint32](3), NextIncomingID: wire.Some(uint32(3 * i))})
		for range 3 - 2*i {
			r.receive()
		}
	}
	r.mustAttach(aSender("/exchanges/amq.quorate.command/verb"))
	run := func(id uint32, kind wire.Outcome, payload []byte, f func(*fsm.Publish) ([]fsm.Held, error)) {
		t.Helper()
		s.broker.OnCommand(f)
		mustKind(t, r.publish(id, payload), kind, "")
	}
	tags := func(list []fsm.Held) (tags []uint64) {
		for _, h := range list {
			tags = append(tags, h.Tag)
		}
		return tags
	}
	var taken fsm.Held
	run(0, wire.StateAccepted, command("/queues/a%2Fb", message("hello"), "x-delivery-tag", 0), func(p *fsm.Publish) ([]fsm.Held, error) {
		h := p.Holdings
		q := h.Consumer("link-q")
		if q == 0 || h.Consumer("link-p") == q || h.Consumer("l") != 0 || h.First() != 0 {
			t.Error("links are not found by their names")
		}
		if got := tags(h.UpTo(0)); !slices.Equal(got, []uint64{0}) {
			t.Errorf("up to 0: %v", got)
		}
		if got := tags(h.UpTo(2)); !slices.Equal(got, []uint64{0, 1, 2}) {
			t.Errorf("up to 2: %v", got)
		}
		if got := tags(h.Of(q)); !slices.Equal(got, []uint64{0, 1, 2}) {
			t.Errorf("of a link: %v", got)
		}
		if got, ok := h.Find(3); !ok || got.Consumer != h.Consumer("link-p") {
			t.Errorf("found %v", got)
		}
		for _, id := range []uint64{4, 1 << 32} {
			if got, ok := h.Find(id); ok {
				t.Errorf("found %v", got)
			}
		}
		if string(p.Payload.Body()) != "hello" || p.RoutingKey != "verb" || string(p.Property("reply_to")) != "a/b" {
			t.Errorf("%q %q %q", p.Payload.Body(), p.RoutingKey, p.Property("reply_to"))
		}
		if f := p.Headers().GetFields(); len(f) != 1 || f[0].Name != "x-delivery-tag" {
			t.Errorf("arguments %v", f)
		}
		taken, _ = h.Take(1)
		return nil, nil
	})
	if taken.Tag != 1 || taken.ID == 0 {
		t.Fatalf("taken %v", taken)
	}
	run(1, wire.StateRejected, command("", message(""), "x", "y"), func(p *fsm.Publish) ([]fsm.Held, error) {
		if _, again := p.Holdings.Find(1); again {
			t.Error("what a command settles is held on")
		}
		return []fsm.Held{taken}, fsm.Refuse(fsm.NotFoundKind, "no lock on delivery 1")
	})
	run(2, wire.StateAccepted, message(""), func(p *fsm.Publish) ([]fsm.Held, error) {
		if got := tags(p.Holdings.UpTo(3)); !slices.Equal(got, []uint64{0, 1, 2, 3}) {
			t.Errorf("kept: %v", got)
		}
		taken, _ = p.Holdings.Take(3)
		return nil, nil
	})
	// Its link has gone when it comes back: so it goes to its queue.
	r.send(channel, &wire.Detach{Handle: 2, Closed: true})
	expect[*wire.Detach](r)
	s.broker.Journal()
	run(3, wire.StateRejected, message(""), func(p *fsm.Publish) ([]fsm.Held, error) {
		return []fsm.Held{taken}, fsm.Refuse(fsm.NotFoundKind, "no lock")
	})
	want := fmt.Sprintf("settle %d [%d] REQUEUE", taken.Consumer, taken.ID)
	within(t, func() {
		for !slices.Contains(s.broker.Journal(), want) {
			s.broker.Quiesce()
		}
	})
}

// A command that waits for the broker to be certain of what there is keeps all that it says, whatever comes behind it.
func TestCommandThatWaits(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustOpen()
	r.mustAttach(aSender("/exchanges/amq.quorate.command/verb"))
	s.broker.OnCommand(func(p *fsm.Publish) ([]fsm.Held, error) {
		if f := p.Headers().GetFields(); len(f) != 1 || f[0].Name != string(p.Property("reply_to")) || string(p.Payload.Body()) != f[0].Name || p.Holdings == nil {
			t.Errorf("%v %q %q", f, p.Property("reply_to"), p.Payload.Body())
		}
		return nil, nil
	})
	s.broker.Block("Refresh")
	for id, name := range []string{"a", "b"} {
		r.transfer(&wire.Transfer{DeliveryID: wire.Some(uint32(id)), DeliveryTag: []byte("t")}, command("/queues/"+name, message(name), name, "x"))
	}
	s.broker.AwaitBlocked("Refresh")
	s.broker.Unblock("Refresh")
	for told := uint32(0); told < 2; {
		d := expect[*wire.Disposition](r, &wire.Flow{})
		mustKind(t, d, wire.StateAccepted, "")
		told += d.Last.Or(d.First) - d.First + 1
	}
}

// A command whose answer nobody could get is not executed.
func TestCommandWithABadReplyTo(t *testing.T) {
	s := mustServe(t, nil)
	s.broker.OnCommand(func(*fsm.Publish) ([]fsm.Held, error) {
		t.Error("it is executed")
		return nil, nil
	})
	r := s.mustOpen()
	r.mustAttach(aSender("/exchanges/amq.quorate.command/verb"))
	d := r.publish(0, command("q", message("")))
	mustKind(t, d, wire.StateRejected, wire.ConditionPreconditionFailed)
	mustCondition(t, d.State.Rejected.Error, wire.ConditionPreconditionFailed, "bad 'reply-to' address string: 'q'")
	mustKind(t, r.publish(1, command("/exchanges/x/k", message(""))), wire.StateRejected, wire.ConditionPreconditionFailed)
}

// What is taken back while a command has it is released once the command has not settled it, and lapses if its lock has
// ended; what the client knows already is not said again. A command that does is the end of it.
func TestLossDuringACommand(t *testing.T) {
	holdInTime(t, 4, func(t *testing.T, b *amqptest.Broker, r *raw) {
		out := aSender("/exchanges/amq.quorate.command/verb")
		out.Name, out.Handle = "commands", 1
		r.mustAttach(out)
		takes := func(tag uint64, why error) {
			b.OnCommand(func(p *fsm.Publish) (kept []fsm.Held, _ error) {
				h, ok := p.Holdings.Take(tag)
				if !ok {
					t.Errorf("%d is not there", tag)
				}
				if why != nil {
					kept = append(kept, h)
				}
				return kept, why
			})
			r.transfer(&wire.Transfer{Handle: 1, DeliveryID: wire.Some(uint32(tag)), DeliveryTag: []byte("t")}, command("/queues/a", message("x")))
			synctest.Wait()
		}
		b.HoldSettled()
		none := fsm.Refuse(fsm.NotFoundKind, "none")
		takes(0, none)
		takes(1, nil)
		b.Unlock("q", 1, 2, 3)
		r.mustTell("2-2:4", false)
		takes(2, none)
		b.ReleaseSettled()
		r.mustTell("0-0:4", false)
		var told []string
		for n := uint32(0); n < 3; { // the outcomes of the commands
			d := expect[*wire.Disposition](r, &wire.Flow{})
			if !d.Role {
				t.Fatalf("%+v", d)
			}
			n += d.Last.Or(d.First) - d.First + 1
		}
		for len(told) < 2 {
			f, err := r.in.ReadFrame()
			must(t, err)
			var d wire.Disposition
			if len(f.Body) > 0 {
				_, err = wire.Decode(f.Body, &d)
				must(t, err)
				if d.Role || !d.Settled {
					t.Fatalf("%+v", d)
				}
				for id := d.First; id <= d.Last.Or(d.First); id++ {
					told = append(told, fmt.Sprint(id))
				}
			}
		}
		slices.Sort(told)
		if !slices.Equal(told, []string{"0", "2"}) {
			t.Errorf("settled by the server: %v", told)
		}
	})
}

// Commands about all deliveries up to one are not about what was only shown: nobody holds that.
func TestCommandsLeaveOutWhatIsShown(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q", "shown")
	s.mustFill("q", "1")
	s.mustFill("shown", "1")
	r := s.mustOpen()
	shown := aReceiver("/queues/shown")
	shown.Source.DistributionMode = "copy"
	r.mustAttach(shown)
	r.credit(wire.Flow{LinkCredit: wire.Some[uint32](1)})
	r.receive()
	held := aReceiver("/queues/q")
	held.Name, held.Handle = "held", 1
	r.mustAttach(held)
	r.send(channel, &wire.Flow{NextIncomingID: wire.Some[uint32](1), IncomingWindow: 100, Handle: wire.Some[uint32](1), LinkCredit: wire.Some[uint32](1)})
	r.receive()
	out := aSender("/exchanges/amq.quorate.command/verb")
	out.Name, out.Handle = "commands", 2
	r.mustAttach(out)
	var found []fsm.Held
	s.broker.OnCommand(func(p *fsm.Publish) ([]fsm.Held, error) {
		found = p.Holdings.UpTo(1)
		return nil, nil
	})
	r.transfer(&wire.Transfer{Handle: 2, DeliveryID: wire.Some[uint32](0), DeliveryTag: []byte("t")}, command("/queues/a", message("x")))
	mustKind(t, expect[*wire.Disposition](r, &wire.Flow{}), wire.StateAccepted, "")
	if len(found) != 1 || found[0].Tag != 1 {
		t.Errorf("found %+v", found)
	}
}

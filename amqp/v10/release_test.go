package v10_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// property makes a link have one property.
func property(name, value string) func(*wire.Attach) {
	return func(a *wire.Attach) {
		a.Properties = wire.EndMap(wire.AppendString(wire.AppendSymbol(wire.StartMap(nil), name), value), 0, 1)
	}
}

// A delivery whose lock has ended is released; its link goes on.
func TestLockLoss(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustHold("q", 4, nil)
	r.credit(wire.Flow{NextIncomingID: wire.Some[uint32](4), DeliveryCount: wire.Some[uint32](4), LinkCredit: wire.Some[uint32](2), Echo: true})
	expect[*wire.Flow](r) // it has come before anything is there to be handed out
	s.broker.Unlock("q", 1, 2, 4)
	r.mustTell("0-1:4", false)
	r.mustTell("3-3:4", false)
	s.broker.Unlock("q", 1, 2, 3, 4) // it says again what the client knows
	r.mustTell("2-2:4", false)
	s.mustFill("q", "new") // the link is served on, with what was taken back, too
	for range 2 {
		r.receive()
	}
	r.outcome(0, 3, true, accepted) // which has no effect, and is no error
	r.credit(wire.Flow{NextIncomingID: wire.Some[uint32](6), DeliveryCount: wire.Some[uint32](6), Echo: true})
	if f := expect[*wire.Flow](r); f.Available != wire.Some[uint32](3) {
		t.Errorf("%+v", f)
	}
}

// A link that does not understand it ends.
func TestLockLossWithoutReleased(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustHold("q", 1, func(a *wire.Attach) { a.Source.Outcomes = []string{"amqp:accepted:list"} })
	s.broker.Unlock("q", 1)
	r.mustDetach(wire.ConditionPreconditionFailed, "lock")
}

// An outcome that is on its way when the lock ends is answered with what has happened, and nothing else is said.
func TestLockLossBeforeAnAnswer(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustHold("q", 1, second)
	s.broker.TakeBack("q", 1)
	s.broker.HoldSettled()
	r.outcome(0, 0, false, accepted)
	r.quiet(1)
	s.broker.Tell("q", &fsm.News{Kind: fsm.LocksLost, Deliveries: []uint64{1}})
	r.quiet(1)
	s.broker.ReleaseSettled()
	r.mustTell("0-0:4", true)
}

// After a minute the server settles what the client has not.
func TestLostLocksAreSettled(t *testing.T) {
	holdInTime(t, 4, func(t *testing.T, b *amqptest.Broker, r *raw) {
		start := time.Now()
		b.Unlock("q", 1, 2)
		r.mustTell("0-1:4", false)
		time.Sleep(10 * time.Second)
		b.Unlock("q", 4)
		r.mustTell("3-3:4", false)
		r.outcome(0, 0, true, wire.State{Kind: wire.StateReleased})
		for _, c := range []struct {
			ids   string
			after time.Duration
		}{{"1-1:4", time.Minute}, {"3-3:4", 70 * time.Second}} {
			for {
				f, err := r.in.ReadFrame() // heartbeats come between
				must(t, err)
				if len(f.Body) == 0 {
					continue
				}
				var d wire.Disposition
				_, err = wire.Decode(f.Body, &d)
				must(t, err)
				if took := time.Since(start); ids(&d) != c.ids || !d.Settled || d.Role || took < c.after || took > c.after+time.Second {
					t.Errorf("after %v: %+v", took, d)
				}
				break
			}
		}
		synctest.Wait()
		if j := strings.Join(b.Journal(), "\n"); !strings.Contains(j, "settle 1 [2] REQUEUE") || !strings.Contains(j, "settle 1 [4] REQUEUE") {
			t.Error("the broker does not know: ", j)
		}
	})
}

// A link may want a consumer timeout to end it.
func TestConsumerTimeoutDetaches(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustHold("q", 1, property("x-consumer-timeout-action", "detach"))
	s.broker.TimeOut("q", 1500)
	r.mustDetach(wire.ConditionPreconditionFailed, "link 'l' timed out. Timeout value used: 1500 ms")
	r.mustAttach(aReceiver("/queues/q"))
	r.credit(wire.Flow{NextIncomingID: wire.Some[uint32](1), LinkCredit: wire.Some[uint32](1)})
	r.receive()
}

// After a consumer timeout a link is served again at the moment at which all is settled, by the credit that it has.
func TestServedAfterATimeout(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustHold("q", 2, nil)
	r.credit(wire.Flow{NextIncomingID: wire.Some[uint32](2), DeliveryCount: wire.Some[uint32](2), LinkCredit: wire.Some[uint32](4)})
	s.broker.TimeOut("q", 1500)
	r.mustTell("0-1:4", false)
	r.outcome(0, 1, true, wire.State{Kind: wire.StateReleased})
	for id := range uint32(2) {
		if f, body := r.receive(); f.DeliveryID != wire.Some(2+id) || !strings.HasSuffix(body, " 0/false") {
			t.Errorf("%+v %s", f, body)
		}
	}
}

// What is taken back before the client's window lets it through is released once the client has it.
func TestLockLossBehindAShutWindow(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	s.mustFill("q", "0", "1", "2")
	r := s.mustOpen()
	r.mustAttach(aReceiver("/queues/q"))
	r.credit(wire.Flow{LinkCredit: wire.Some[uint32](3), IncomingWindow: 1})
	r.receive()
	s.broker.Unlock("q", 1, 2)
	r.mustTell("0-0:4", false)
	r.send(channel, &wire.Flow{NextIncomingID: wire.Some[uint32](1), IncomingWindow: 1})
	r.receive()
	r.mustTell("1-1:4", false)
	r.send(channel, &wire.Flow{NextIncomingID: wire.Some[uint32](2), IncomingWindow: 1})
	r.receive()
}

// A delivery says what its receiver has to know of its lock, whatever its publisher has said.
func TestLockAnnotations(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := s.mustOpen()
	r.mustAttach(aReceiver("/queues/q"))
	r.credit(wire.Flow{LinkCredit: wire.Some[uint32](10)})
	forged := wire.StartMap(nil)
	for _, name := range []string{"x-opt-lock-token", "x-opt-sequence-number", "x-mine"} {
		forged = wire.AppendString(wire.AppendSymbol(forged, name), "forged")
	}
	forged = wire.EndMap(forged, 0, 3)
	bare, err := fsm.AppendBareHead(nil, "", "q", fsm.BareHeader{Priority: -1, TTL: -1}, forged, nil)
	must(t, err)
	bare = append(bare, message("x")...)
	for _, c := range []struct {
		name string
		m    fsm.Message
		want map[string]any
	}{
		{"locked", fsm.Message{Sequence: 7, LockToken: "T", LockedUntil: 9000, EnqueuedAt: 8000, ExpireAt: 10_000}, map[string]any{
			"x-opt-sequence-number": int64(7), "x-opt-lock-token": "T", "x-opt-locked-until": int64(9000), "x-opt-enqueued-time": int64(8000), "x-opt-expires-at": int64(10_000), "x-mine": "forged",
		}},
		{"informed", fsm.Message{Sequence: 7, EnqueuedAt: 8000}, map[string]any{
			"x-opt-sequence-number": int64(7), "x-opt-enqueued-time": int64(8000), "x-mine": "forged",
		}},
		{"neither", fsm.Message{EnqueuedAt: 8000}, map[string]any{"x-opt-lock-token": "forged", "x-opt-sequence-number": "forged", "x-mine": "forged"}},
	} {
		c.m.Payload = bare
		s.broker.Inject("q", c.m)
		_, payload := expectPayload[*wire.Transfer](r)
		var m wire.Message
		must(t, m.Parse(payload))
		found := map[string]any{}
		for w := m.Annotations.Walk(); w.NextPair(); {
			switch name := string(w.Key.Bytes()); {
			case name == "x-exchange", name == "x-routing-key":
			case w.Value.Type == wire.String:
				found[name] = string(w.Value.Bytes())
			case w.Value.Type == wire.Timestamp, w.Value.Type == wire.Long:
				found[name] = w.Value.Signed()
			}
		}
		if len(found) != len(c.want) {
			t.Errorf("%s: %v", c.name, found)
		}
		for name, v := range c.want {
			if found[name] != v {
				t.Errorf("%s: %s is %v, want %v", c.name, name, found[name], v)
			}
		}
	}
}

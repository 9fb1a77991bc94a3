package v10_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// inTime runs f with a client on a pipe, in virtual time.
func inTime(t *testing.T, f func(t *testing.T, s *amqp.Server, r *raw)) {
	inTimeWith(t, amqptest.NewBroker(), f)
}

// inTimeWith is inTime with a broker.
func inTimeWith(t *testing.T, b *amqptest.Broker, f func(t *testing.T, s *amqp.Server, r *raw)) {
	synctest.Test(t, func(t *testing.T) {
		s, err := amqp.New(amqp.Config{Protocols: []amqp.Protocol{v10.Protocol{}}, Broker: b})
		must(t, err)
		near, far := net.Pipe()
		served := make(chan bool)
		go func() {
			s.ServeConn(far)
			close(served)
		}()
		f(t, s, newRaw(t, near))
		near.Close()
		<-served
		must(t, s.Shutdown(context.Background()))
	})
}

// opened logs in on a pipe, which has no buffer.
func (r *raw) opened(o *wire.Open) {
	r.t.Helper()
	r.login(o)
	expect[*wire.Open](r)
}

// elapsed checks how long something takes.
func elapsed(t *testing.T, low, high time.Duration, f func()) {
	t.Helper()
	start := time.Now()
	if f(); time.Since(start) < low || time.Since(start) > high {
		t.Errorf("it takes %v, want %v to %v", time.Since(start), low, high)
	}
}

func TestHandshakeHasATime(t *testing.T) {
	inTime(t, func(t *testing.T, _ *amqp.Server, r *raw) {
		elapsed(t, 10*time.Second, 10*time.Second, r.mustEnd)
	})
	inTime(t, func(t *testing.T, _ *amqp.Server, r *raw) {
		r.header(3, 3)
		expect[*wire.SASLMechanisms](r)
		r.send(0, &wire.SASLInit{Mechanism: "PLAIN", InitialResponse: []byte("\x00guest\x00guest")})
		expect[*wire.SASLOutcome](r)
		elapsed(t, 10*time.Second, 10*time.Second, r.mustEnd)
	})
}

func TestRefusedLoginIsDroppedLater(t *testing.T) {
	inTime(t, func(t *testing.T, _ *amqp.Server, r *raw) {
		r.header(3, 3)
		expect[*wire.SASLMechanisms](r)
		r.send(0, &wire.SASLInit{Mechanism: "PLAIN", InitialResponse: []byte("\x00guest\x00wrong")})
		expect[*wire.SASLOutcome](r)
		elapsed(t, 3*time.Second, 3*time.Second, r.mustEnd)
	})
}

func TestServerBeats(t *testing.T) {
	inTime(t, func(t *testing.T, _ *amqp.Server, r *raw) {
		o := anOpen()
		o.IdleTimeOut = 2000
		r.opened(o)
		for range 10 {
			elapsed(t, 0, time.Second, func() {
				if f, err := r.in.ReadFrame(); err != nil || len(f.Body) > 0 {
					t.Fatalf("%+v, %v", f, err)
				}
			})
		}
	})
}

// A client that says nothing is told why it is given up.
func TestIdleClient(t *testing.T) {
	inTime(t, func(t *testing.T, _ *amqp.Server, r *raw) {
		r.opened(anOpen())
		elapsed(t, 120*time.Second, 180*time.Second, func() {
			c := expect[*wire.Close](r)
			mustCondition(t, c.Error, wire.ConditionResourceLimit, "no frame received from client within idle timeout threshold")
		})
	})
	inTime(t, func(t *testing.T, _ *amqp.Server, r *raw) {
		r.opened(anOpen())
		for range 10 {
			time.Sleep(100 * time.Second)
			r.write(wire.AppendHeartbeat(nil))
		}
		r.send(0, &wire.Close{})
		expect[*wire.Close](r)
	})
}

// The server's close is answered by the client's, and then it is over.
func TestAnsweredClose(t *testing.T) {
	inTime(t, func(t *testing.T, s *amqp.Server, r *raw) {
		r.opened(anOpen())
		s.CloseConnections("maintenance")
		mustCondition(t, expect[*wire.Close](r).Error, wire.ConditionConnectionForced, "maintenance")
		r.send(0, &wire.Close{})
		elapsed(t, 0, 2*time.Second, r.mustEnd)
	})
	inTime(t, func(t *testing.T, s *amqp.Server, r *raw) { // which the client does not do
		r.opened(anOpen())
		s.CloseConnections("maintenance")
		expect[*wire.Close](r)
		elapsed(t, 30*time.Second, 32*time.Second, r.mustEnd)
	})
}

// A frame that does not come to its end ends the connection without a word.
func TestSlowFrame(t *testing.T) {
	inTime(t, func(t *testing.T, _ *amqp.Server, r *raw) {
		r.opened(anOpen())
		r.write([]byte{0, 0, 0, 20, 2})
		elapsed(t, 30*time.Second, 31*time.Second, r.mustEnd)
	})
}

// During an alarm the client's window is shut, and it is read on.
func TestAlarm(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	s.mustFill("q", "x")
	r := s.mustOpen()
	r.mustAttach(aReceiver("/queues/q"))
	s.SetAlarm("memory")
	if f := expect[*wire.Flow](r); f.IncomingWindow != 0 || f.Handle.Present {
		t.Errorf("%+v", f)
	}
	if n := s.Blocked(); n != 1 {
		t.Errorf("%d are blocked", n)
	}
	r.credit(wire.Flow{LinkCredit: wire.Some[uint32](1)})
	r.receive()
	r.send(3, &wire.Begin{})
	if b := expect[*wire.Begin](r); b.IncomingWindow != 0 {
		t.Errorf("%+v", b)
	}
	r.send(3, &wire.End{})
	expect[*wire.End](r)
	s.SetAlarm("")
	if f := expect[*wire.Flow](r); f.IncomingWindow != 400 {
		t.Errorf("%+v", f)
	}
	if n := s.Blocked(); n != 0 {
		t.Errorf("%d are blocked", n)
	}
}

// What is on its way when the window is shut is taken, and no more.
func TestTransfersDuringAnAlarm(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := s.mustOpen()
	r.mustAttach(aSender("/queues/q"))
	s.SetAlarm("memory")
	defer s.SetAlarm("")
	expect[*wire.Flow](r)
	for i := range 401 {
		f := &wire.Transfer{More: true}
		if i == 0 {
			f.DeliveryID = wire.Some[uint32](1)
		}
		r.transfer(f, nil)
	}
	mustCondition(t, expect[*wire.End](r).Error, wire.ConditionWindowViolation, "incoming-window")
}

// Frames wait in order behind an attach that waits for the broker; other sessions go on.
func TestFramesBehindAnAttach(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := s.mustOpen()
	s.broker.Block("Target")
	r.send(channel, aSender("/queues/q"))
	s.broker.AwaitBlocked("Target")
	for i := range uint32(3) {
		r.transfer(&wire.Transfer{DeliveryID: wire.Some(i)}, message("x"))
	}
	r.send(channel, &wire.Detach{})
	r.send(8, &wire.Begin{HandleMax: 3})
	expect[*wire.Begin](r)
	r.send(8, &wire.Flow{Echo: true})
	expect[*wire.Flow](r)
	s.broker.Unblock("Target")
	expect[*wire.Attach](r)
	expect[*wire.Flow](r)
	expect[*wire.Detach](r, &wire.Disposition{})
	s.broker.AwaitPublished(3)
}

// A client that ends its session meanwhile gets the answer afterwards.
func TestEndBehindAnAttach(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	for _, end := range []func(*raw){
		func(r *raw) {
			r.send(channel, &wire.End{})
			s.broker.Unblock("Consume")
			expect[*wire.Attach](r)
			expect[*wire.End](r)
			r.begin()
		},
		func(r *raw) {
			r.send(0, &wire.Close{})
			s.broker.Unblock("Consume")
			expect[*wire.Close](r, &wire.Attach{})
		},
		func(r *raw) { r.conn.Close(); s.broker.AwaitSessions(0); s.broker.Unblock("Consume") },
	} {
		r := s.mustOpen()
		s.broker.Block("Consume")
		r.send(channel, aReceiver("/queues/q"))
		s.broker.AwaitBlocked("Consume")
		end(r)
		r.conn.Close()
		s.broker.AwaitSessions(0)
	}
}

// What a broker is not certain of waits.
func TestRoutesThatMayBeOutOfDate(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := s.mustOpen()
	r.mustAttach(aSender("/queues/q"))
	s.broker.Block("Refresh")
	for i := range uint32(3) {
		r.transfer(&wire.Transfer{DeliveryID: wire.Some(i)}, message("x"))
	}
	s.broker.AwaitBlocked("Refresh")
	s.broker.Unblock("Refresh")
	for told := uint32(0); told < 3; {
		d := expect[*wire.Disposition](r)
		if d.First != told || d.State.Kind != wire.StateAccepted {
			t.Fatalf("%+v", d)
		}
		told = d.Last.Or(d.First) + 1
	}
}

func TestQueueIsDeletedUnderItsReceiver(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := s.mustOpen()
	r.mustAttach(aReceiver("/queues/q"))
	s.mustDelete("q")
	r.mustDetach(wire.ConditionResourceDeleted, "")
	r.send(channel, aReceiver("/queues/q"))
	expect[*wire.Attach](r)
	r.mustDetach(wire.ConditionNotFound, "no queue 'q'")
}

// mustDelete deletes a queue, with whatever protocol.
func (s *server) mustDelete(name string) {
	s.t.Helper()
	c, err := s.broker.Connect(s.t.Context(), "guest", "/")
	must(s.t, err)
	x, err := c.OpenSession(nothing{})
	must(s.t, err)
	_, err = x.DeleteQueue(s.t.Context(), name, false, false)
	must(s.t, err)
	x.Close(s.t.Context())
	c.Close(s.t.Context())
}

func TestLostSession(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := s.mustOpen()
	r.mustAttach(aSender("/queues/q"))
	s.broker.Lose(fsm.Refuse(fsm.Unavailable, "it is lost"))
	mustCondition(t, expect[*wire.End](r).Error, wire.ConditionPreconditionFailed, "it is lost")
	r.send(channel, &wire.End{})
	r.begin()
}

func TestSessionThatCannotBeOpened(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustOpen()
	s.broker.Fail("OpenSession", errors.New("broken"))
	r.send(9, &wire.Begin{})
	expect[*wire.Begin](r)
	mustCondition(t, expect[*wire.End](r).Error, wire.ConditionInternal, "internal error")
	r.send(9, &wire.End{})
	r.send(9, &wire.Begin{})
	expect[*wire.Begin](r)
}

func TestNoRight(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := s.mustOpen()
	s.broker.Fail("Consume", fsm.Refuse(fsm.AccessRefused, "read access refused"))
	r.send(channel, aReceiver("/queues/q"))
	expect[*wire.Attach](r)
	r.mustDetach(wire.ConditionUnauthorized, "read access refused")
	r.mustAttach(aReceiver("/queues/q")) // the session lives
}

// Whatever comes, the server lives, and holds nothing afterwards.
func TestRandomFrames(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := rand.New(rand.NewPCG(5, 6))
	frames := []wire.Composite{
		aSender("/queues/q"), aReceiver("/queues/q"), aSender(""), &wire.Detach{}, &wire.End{}, &wire.Begin{HandleMax: 5}, &wire.Flow{IncomingWindow: 5, Echo: true},
		&wire.Flow{Handle: wire.Some[uint32](0), LinkCredit: wire.Some[uint32](7), IncomingWindow: 9}, &wire.Transfer{DeliveryID: wire.Some[uint32](1), More: true},
		&wire.Disposition{Role: true, Last: wire.Some[uint32](1 << 31), Settled: true, State: wire.State{Kind: wire.StateReleased}}, &wire.Transfer{DeliveryID: wire.Some[uint32](1)},
	}
	for i := range 40 {
		c := s.mustOpen()
		var b []byte
		for range 50 {
			at := len(b)
			b = wire.AppendFrame(b, uint16(channel+r.IntN(2)), frames[r.IntN(len(frames))])
			if i%2 == 1 && r.IntN(20) == 0 { // one octet of it is another one
				b[at+8+r.IntN(len(b)-at-8)] = byte(r.Uint32())
			}
		}
		c.write(b)
		c.conn.(*net.TCPConn).CloseWrite()
		within(t, func() {
			for {
				if _, err := c.in.ReadFrame(); err != nil {
					return
				}
			}
		})
	}
	s.mustFill("q", "it lives")
}

func TestSettingsOutOfRange(t *testing.T) {
	for _, p := range []v10.Protocol{{SessionMax: 1<<16 + 1}, {SessionMax: -1}, {LinkMax: -1}} {
		if err := p.Validate(); err == nil {
			t.Errorf("%+v is valid", p)
		}
	}
	never := v10.Protocol{Ready: func() bool { return false }}
	if h := never.Header(); never.Speaks(h) || !(v10.Protocol{}).Speaks(h) {
		t.Error("a protocol speaks before it is ready, or not at all")
	}
}

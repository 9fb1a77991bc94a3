package v10_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// With too much on its way to the broker a client is given no new windows, on any of its sessions, but it is read on. It
// has them once the broker has answered.
func TestWindowsWaitForTheBroker(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q", "p")
	s.mustFill("p", "x")
	r := s.mustOpen()
	const other = 9
	r.send(other, &wire.Begin{IncomingWindow: 100, OutgoingWindow: 100, HandleMax: 10})
	expect[*wire.Begin](r)
	r.send(other, aSender("/queues/q"))
	expect[*wire.Attach](r)
	expect[*wire.Flow](r)
	in := aReceiver("/queues/p")
	in.Handle = 1
	r.mustAttach(in)
	r.send(channel, &wire.Flow{Handle: wire.Some[uint32](1), IncomingWindow: 100, LinkCredit: wire.Some[uint32](1)})
	r.receive()
	r.mustAttach(aSender("/queues/q"))
	s.broker.HoldConfirms()
	const large = 90
	for id := range uint32(large) { // 9 MiB
		r.transfer(&wire.Transfer{DeliveryID: wire.Some(id)}, message(strings.Repeat("x", 100<<10)))
	}
	s.broker.AwaitPublished(large + 1)
	r.transfer(&wire.Transfer{DeliveryID: wire.Some[uint32](large), More: true}, message("x"))
	for range 300 {
		r.transfer(&wire.Transfer{More: true}, nil)
		r.write(wire.AppendTransfer(nil, other, &wire.Transfer{DeliveryID: wire.Some[uint32](7), More: true}, 0))
	}
	window := func(ch uint16) uint32 {
		t.Helper()
		r.send(ch, &wire.Flow{IncomingWindow: 100, NextIncomingID: wire.Some[uint32](0), Echo: true})
		for {
			if f := expect[*wire.Flow](r); !f.Handle.Present {
				return f.IncomingWindow
			}
		}
	}
	if a, b := window(other), window(channel); a != 100 || b != 400-large-301 {
		t.Errorf("windows %d and %d", a, b)
	}
	// What it has received it may settle.
	r.send(channel, &wire.Disposition{Role: true, State: wire.State{Kind: wire.StateAccepted}})
	if d := expect[*wire.Disposition](r); d.Role || !d.Settled {
		t.Errorf("%+v", d)
	}
	s.broker.ReleaseConfirms(false)
	told := map[uint16]uint32{}
	for told[channel] != 400 || told[other] != 400 {
		ch, body := r.next()
		var f wire.Flow
		if code, _ := wire.Peek(body); code == wire.CodeFlow {
			_, err := wire.Decode(body, &f)
			must(t, err)
			told[ch] = f.IncomingWindow
		}
	}
}

// halfPipe is a pipe that may be shut at one side.
type halfPipe struct{ net.Conn }

func (halfPipe) CloseWrite() error { return nil }

// A client that has closed is given 10 s to leave.
func TestClientLeavesAfterItsClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := amqp.New(amqp.Config{Protocols: []amqp.Protocol{v10.Protocol{}}, Broker: amqptest.NewBroker()})
		must(t, err)
		near, far := net.Pipe()
		served := make(chan bool)
		go func() {
			s.ServeConn(halfPipe{far})
			close(served)
		}()
		r := newRaw(t, near)
		r.opened(anOpen())
		r.send(0, &wire.Close{})
		expect[*wire.Close](r)
		elapsed(t, 10*time.Second, 10*time.Second, r.mustEnd)
		<-served
		must(t, s.Shutdown(context.Background()))
	})
}

// A session that goes on without a window ends. After an alarm has shut it as many frames are taken as there may have
// been on their way.
func TestTransfersWithoutAWindow(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	s.broker.HoldConfirms()
	flood := func(r *raw, n int) {
		for range n {
			r.transfer(&wire.Transfer{More: true, DeliveryID: wire.Some[uint32](1000)}, nil)
		}
	}
	violation := func(r *raw) {
		t.Helper()
		mustCondition(t, expect[*wire.End](r, &wire.Flow{}).Error, wire.ConditionWindowViolation, "incoming-window")
	}
	r := s.mustOpen()
	r.mustAttach(aSender("/queues/q"))
	for id := range uint32(90) { // 9 MiB
		r.transfer(&wire.Transfer{DeliveryID: wire.Some(id)}, message(strings.Repeat("x", 100<<10)))
	}
	flood(r, 310)
	r.send(channel, &wire.Flow{IncomingWindow: 100, Echo: true})
	for f := expect[*wire.Flow](r); f.IncomingWindow != 0; {
		f = expect[*wire.Flow](r)
	}
	flood(r, 1)
	violation(r)
	s.broker.ReleaseConfirms(false)

	r = s.mustOpen()
	r.mustAttach(aSender("/queues/q"))
	s.SetAlarm("memory")
	defer s.SetAlarm("")
	if f := expect[*wire.Flow](r); f.IncomingWindow != 0 {
		t.Fatalf("%+v", f)
	}
	flood(r, 400)
	r.send(channel, &wire.Flow{IncomingWindow: 100, Echo: true})
	if f := expect[*wire.Flow](r); f.NextIncomingID != wire.Some[uint32](400) {
		t.Errorf("%+v", f)
	}
	flood(r, 1)
	violation(r)
}

// A client that does not read is not read either once many outcomes wait for it. They count as memory that is held for it.
func TestOutcomesThatNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := amqptest.NewBroker()
		x, err := amqp.New(amqp.Config{Protocols: []amqp.Protocol{v10.Protocol{}}, Broker: b})
		must(t, err)
		near, far := net.Pipe()
		served := make(chan bool)
		go func() {
			x.ServeConn(far)
			close(served)
		}()
		r := newRaw(t, near)
		r.opened(anOpen())
		r.begin()
		r.mustAttach(aSender(""))
		bad := to(strings.Repeat("x", 1000), "")
		const many = 20_000
		sent := 0
		must(t, near.SetWriteDeadline(time.Now().Add(5*time.Second)))
		for ; sent < many; sent++ {
			tr := &wire.Transfer{DeliveryID: wire.Some(uint32(sent)), DeliveryTag: []byte("t")}
			if _, err := near.Write(append(wire.AppendTransfer(nil, channel, tr, len(bad)), bad...)); err != nil {
				break
			}
		}
		if held := x.Held(); sent == many || held < 7<<20 {
			t.Errorf("%d messages are read, and %d octets held", sent, held)
		}
		near.Close()
		<-served
		if held := x.Held(); held != 0 {
			t.Errorf("%d octets are held for nobody", held)
		}
		must(t, x.Shutdown(context.Background()))
	})
}

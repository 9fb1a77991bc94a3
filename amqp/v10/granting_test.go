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

package v10_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// holdInTime runs f in virtual time, with a client on a pipe that holds messages of queue q.
func holdInTime(t *testing.T, n int, f func(t *testing.T, b *amqptest.Broker, r *raw)) {
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
		for range n {
			b.Inject("q", fsm.Message{Payload: fsm.AppendPayloadHead(nil, "", "q", []byte{0, 0})})
		}
		r := newRaw(t, near)
		r.opened(anOpen())
		r.begin()
		r.mustAttach(aReceiver("/queues/q"))
		r.credit(wire.Flow{LinkCredit: wire.Some(uint32(n))})
		for range n {
			r.receive()
		}
		b.Journal()
		f(t, b, r)
		near.Close()
		<-served
		must(t, x.Shutdown(context.Background()))
	})
}

// noted checks what the broker has noted since the last time, once all is quiet.
func noted(t *testing.T, b *amqptest.Broker, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := b.Journal(); !slices.Equal(got, want) {
		t.Errorf("noted %q, want %q", got, want)
	}
}

// The state received renews what the client holds, at once and then every 100 ms, whatever else it says.
func TestReceivedRenews(t *testing.T) {
	holdInTime(t, 5, func(t *testing.T, b *amqptest.Broker, r *raw) {
		received := wire.State{Kind: wire.StateReceived, Received: wire.Received{SectionNumber: 7, SectionOffset: 1 << 40}}
		r.outcome(0, 1, false, received)
		noted(t, b, "renew 1 [1 2]")
		r.outcome(1, 1000, false, received)
		r.outcome(0, 0, true, accepted)
		r.outcome(3, 3, false, received)
		noted(t, b, "settle 1 [1] ACK")
		time.Sleep(99 * time.Millisecond)
		noted(t, b)
		time.Sleep(time.Millisecond)
		noted(t, b, "renew 1 [2 3 4 5]")
		r.outcome(0, 0, false, received) // of what is settled
		time.Sleep(time.Second)
		noted(t, b)
		b.Unlock("q", 2)
		r.mustTell("1-1:4", false)
		r.outcome(1, 2, false, received) // what is lost is not the client's any more
		noted(t, b, "renew 1 [3]")
		r.outcome(2, 2, false, received)
		r.outcome(2, 2, true, received) // ends it
		noted(t, b, "settle 1 [3] REQUEUE")
		time.Sleep(time.Second)
		if j := strings.Join(b.Journal(), "\n"); strings.Contains(j, "renew") {
			t.Error(j)
		}
	})
}

package v10

import (
	"math"
	"testing"

	"github.com/quorate/quorate/amqp/v10/wire"
)

func TestCreditOfIncomingLink(t *testing.T) {
	var r receiving
	r.begin(math.MaxUint32)
	for i := range maxLinkCredit {
		if r.left > maxLinkCredit/2 && r.refill() {
			t.Fatalf("refilled after %d", i)
		}
		if !r.message() {
			t.Fatalf("message %d is refused", i)
		}
		r.publish()
	}
	if r.message() {
		t.Fatal("a message without credit")
	}
	if r.refill() {
		t.Fatal("refilled while 170 publishes wait")
	}
	if r.done(1); !r.refill() || r.left != maxLinkCredit || r.refill() {
		t.Fatalf("%+v", r)
	}
	var f wire.Flow
	if r.stamp(&f); f.DeliveryCount != wire.Some[uint32](maxLinkCredit-1) || f.LinkCredit != wire.Some[uint32](maxLinkCredit) {
		t.Errorf("%+v", f)
	}
}

func clientFlow(count, credit uint32) *wire.Flow {
	return &wire.Flow{DeliveryCount: wire.Some(count), LinkCredit: wire.Some(credit)}
}

// ask expects what the queue is asked for; nil: nothing.
func ask(t *testing.T, s *sending, want *creditRequest) {
	t.Helper()
	got, ok := s.next()
	if ok != (want != nil) || ok && got != *want {
		t.Fatalf("asked for %+v, %v, want %+v", got, ok, want)
	}
}

func TestCreditOfOutgoingLink(t *testing.T) {
	var s sending
	ask(t, &s, nil)
	s.flow(&wire.Flow{LinkCredit: wire.Some[uint32](3)}) // the count is not known to the client
	ask(t, &s, &creditRequest{0, 3, false})
	s.flow(clientFlow(0, 5))
	ask(t, &s, nil) // one request is on its way
	for range 3 {
		s.delivered()
	}
	if tell, _ := s.answered(3); tell {
		t.Fatal("the client is told")
	}
	ask(t, &s, &creditRequest{3, 2, false})
	s.answered(3)
	if s.left() != 2 {
		t.Errorf("%d left", s.left())
	}
	ask(t, &s, nil)
}

// A large credit goes to the queue in parts.
func TestQueueCreditIsToppedUp(t *testing.T) {
	var s sending
	s.flow(clientFlow(0, 1000))
	requests, sent := 0, 0
	for sent < 1000 {
		if r, ok := s.next(); ok {
			requests++
			if r.credit > maxQueueCredit {
				t.Fatalf("%+v", r)
			}
			s.answered(s.count)
		}
		if s.count == s.atQueue {
			t.Fatalf("the queue has no credit after %d", sent)
		}
		s.delivered()
		sent++
	}
	if requests != 7 {
		t.Errorf("%d requests", requests)
	}
	if s.left() != 0 {
		t.Errorf("%d left", s.left())
	}
}

func TestCreditIsTakenBack(t *testing.T) {
	var s sending
	s.flow(clientFlow(0, 10))
	ask(t, &s, &creditRequest{0, 10, false})
	s.answered(0)
	s.flow(clientFlow(0, 0))
	ask(t, &s, &creditRequest{0, 0, false})
	s.delivered() // it was on its way
	s.answered(1)
	ask(t, &s, nil)
	if s.count != 1 || s.left() != 0 {
		t.Errorf("%+v", s)
	}
	s.flow(clientFlow(0, 1)) // the client does not know of it
	if s.left() != 0 {
		t.Errorf("%+v", s)
	}
}

func TestDrain(t *testing.T) {
	var s sending
	s.flow(&wire.Flow{DeliveryCount: wire.Some[uint32](0), LinkCredit: wire.Some[uint32](1000), Drain: true})
	ask(t, &s, &creditRequest{0, 1000, true})
	s.delivered()
	if tell, drained := s.answered(1000); !tell || !drained {
		t.Fatal("the client is not told")
	}
	var f wire.Flow
	s.stamp(&f, 0, true)
	if f.DeliveryCount != wire.Some[uint32](1000) || f.LinkCredit != wire.Some[uint32](0) || !f.Drain {
		t.Errorf("%+v", f)
	}
	ask(t, &s, nil)
	s.flow(clientFlow(1000, 2))
	ask(t, &s, &creditRequest{1000, 2, false})
	s.answered(1000)
}

// A drain that comes while a request is on its way is asked for afterwards.
func TestDrainWaitsForRequest(t *testing.T) {
	var s sending
	s.flow(clientFlow(0, 10))
	ask(t, &s, &creditRequest{0, 10, false})
	s.flow(&wire.Flow{DeliveryCount: wire.Some[uint32](0), LinkCredit: wire.Some[uint32](10), Drain: true})
	if tell, drained := s.answered(0); tell || drained {
		t.Fatal("it is drained already")
	}
	ask(t, &s, &creditRequest{0, 10, true})
	if _, drained := s.answered(10); !drained {
		t.Fatal("it is not drained")
	}
}

func TestEcho(t *testing.T) {
	var s sending
	f := clientFlow(0, 0)
	f.Echo = true
	s.flow(f)
	ask(t, &s, &creditRequest{0, 0, false})
	if tell, drained := s.answered(0); !tell || drained {
		t.Fatal("the client is not told")
	}
	ask(t, &s, nil)
}

func TestCreditBeyondTwoToThe32(t *testing.T) {
	s := sending{count: math.MaxUint32, limit: math.MaxUint32, atQueue: math.MaxUint32}
	s.flow(clientFlow(math.MaxUint32, 3))
	ask(t, &s, &creditRequest{math.MaxUint32, 3, false})
	for range 3 {
		s.delivered()
	}
	s.answered(2)
	if s.count != 2 || s.left() != 0 {
		t.Errorf("%+v", s)
	}
}

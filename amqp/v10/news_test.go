package v10_test

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// mustProperty expects a flow of handle 0 with one property.
func (r *raw) mustProperty(name, want string, count, credit uint32) {
	r.t.Helper()
	f := expect[*wire.Flow](r)
	v, ok := f.Properties.Get(name)
	got := fmt.Sprint(v.Type, " ", v.Bool(), " ", string(v.Bytes()))
	if !ok || got != want || f.Handle != wire.Some[uint32](0) || f.DeliveryCount != wire.Some(count) || f.LinkCredit != wire.Some(credit) {
		r.t.Fatalf("%s is %q, want %q: %+v", name, got, want, f)
	}
}

// A link is told with its first credit whether it is the active consumer of its queue, and then when that changes.
func TestActiveLink(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := s.mustOpen()
	r.mustAttach(aReceiver("/queues/q"))
	s.broker.Tell("q", &fsm.News{Kind: fsm.Waiting})
	s.broker.Quiesce()
	r.quiet(0)
	r.credit(wire.Flow{LinkCredit: wire.Some[uint32](5)})
	r.mustProperty("rabbitmq:active", fmt.Sprint(wire.Boolean, " false "), 0, 5)
	s.mustFill("q", "x")
	r.receive()
	s.broker.Tell("q", &fsm.News{Kind: fsm.Waiting}) // it knows
	s.broker.Tell("q", &fsm.News{Kind: fsm.Serving})
	r.mustProperty("rabbitmq:active", fmt.Sprint(wire.Boolean, " true "), 1, 4)
	r.credit(wire.Flow{NextIncomingID: wire.Some[uint32](1), DeliveryCount: wire.Some[uint32](1), LinkCredit: wire.Some[uint32](9)})
	r.quiet(1)
}

// A link is told which groups it takes and gives up, also of those of which it has missed to be told.
func TestGroupsOfLink(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := s.mustOpen()
	r.mustAttach(aReceiver("/queues/q"))
	taken := func(group string) {
		r.t.Helper()
		r.mustProperty("x-group-id", fmt.Sprint(wire.String, " false ", group), 0, 0)
	}
	left := func() { r.t.Helper(); r.mustProperty("x-group-id", fmt.Sprint(wire.Null, " false "), 0, 0) }
	s.broker.Tell("q", &fsm.News{Kind: fsm.GroupsTaken, Groups: []string{"a", "b"}})
	taken("a")
	taken("b")
	s.broker.Tell("q", &fsm.News{Kind: fsm.GroupsTaken, Groups: []string{"a"}})
	s.broker.Tell("q", &fsm.News{Kind: fsm.GroupsLeft, Groups: []string{"a", "a"}})
	left()
	s.broker.Tell("q", &fsm.News{Kind: fsm.GroupsHeld, Groups: []string{"c"}})
	left()
	taken("c")
	s.broker.Tell("q", &fsm.News{Kind: fsm.GroupsHeld})
	left()
	s.broker.Quiesce()
	r.quiet(0)
}

package v10_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// A right that is taken away ends the links that need it, at once, and no others.
func TestRightsAreTakenAway(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := s.mustOpen()
	for i, address := range []string{"/exchanges/amq.direct/k", "/queues/q", ""} {
		a := aSender(address)
		a.Handle = uint32(i)
		r.mustAttach(a)
	}
	s.Renew() // nothing has changed
	s.broker.Forbid("amq.direct")
	s.Renew()
	d := expect[*wire.Detach](r)
	if d.Handle != 0 || !d.Closed {
		t.Errorf("%+v", d)
	}
	mustCondition(t, d.Error, wire.ConditionUnauthorized, "write access to exchange 'amq.direct' in vhost '/' refused for user 'guest'")
	r.send(channel, &wire.Detach{Closed: true})
	for handle := range uint32(2) {
		r.transfer(&wire.Transfer{Handle: handle + 1, DeliveryID: wire.Some(handle), DeliveryTag: []byte("t")}, to("/queues/q", "x"))
		mustKind(t, expect[*wire.Disposition](r, &wire.Flow{}), wire.StateAccepted, "")
	}
	mustKind(t, r.attachAndPublish(aSender("/queues/q"), 2), wire.StateAccepted, "")
	// Who attaches without the right is refused, and so is a message.
	r.send(channel, &wire.Detach{Closed: true})
	expect[*wire.Detach](r)
	r.send(channel, aSender("/exchanges/amq.direct/k"))
	expect[*wire.Attach](r)
	r.mustDetach(wire.ConditionUnauthorized, "write access")
}

// attachAndPublish attaches with handle 0 and publishes a message.
func (r *raw) attachAndPublish(a *wire.Attach, id uint32) *wire.Disposition {
	r.t.Helper()
	r.mustAttach(a)
	return r.publish(id, message("x"))
}

// A queue that is deleted ends the links from it and to it.
func TestLinksOfADeletedQueue(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q", "p")
	r := s.mustOpen()
	for i, a := range []*wire.Attach{aSender("/queues/q"), aReceiver("/queues/q"), aSender("/queues/p"), aSender("")} {
		a.Handle = uint32(i)
		r.mustAttach(a)
	}
	r.transfer(&wire.Transfer{DeliveryID: wire.Some[uint32](1), DeliveryTag: []byte("t")}, message("x"))
	mustKind(t, expect[*wire.Disposition](r), wire.StateAccepted, "")
	s.mustDelete("q")
	ended := map[uint32]bool{}
	for range 2 {
		d := expect[*wire.Detach](r)
		mustCondition(t, d.Error, wire.ConditionResourceDeleted, "")
		ended[d.Handle] = d.Closed
	}
	if !ended[0] || !ended[1] {
		t.Errorf("ended %v", ended)
	}
	// The others live: what finds no queue has an outcome.
	r.transfer(&wire.Transfer{Handle: 2, DeliveryID: wire.Some[uint32](2), DeliveryTag: []byte("t")}, message("x"))
	mustKind(t, expect[*wire.Disposition](r), wire.StateAccepted, "")
	r.transfer(&wire.Transfer{Handle: 3, DeliveryID: wire.Some[uint32](3), DeliveryTag: []byte("t")}, to("/queues/q", "x"))
	mustKind(t, expect[*wire.Disposition](r), wire.StateReleased, "")
}

// An exchange that is deleted under a sender: the message is released, and then the link ends.
func TestSenderOfADeletedExchange(t *testing.T) {
	s := mustServe(t, nil)
	c, err := s.broker.Connect(t.Context(), "guest", "/")
	must(t, err)
	x, err := c.OpenSession(nothing{})
	must(t, err)
	must(t, x.DeclareExchange(t.Context(), fsm.ExchangeSpec{Name: "x", Type: "direct"}))
	r := s.mustOpen()
	r.mustAttach(aSender("/exchanges/x/k"))
	must(t, x.DeleteExchange(t.Context(), "x", false))
	x.Close(t.Context())
	c.Close(t.Context())
	mustKind(t, r.publish(1, message("x")), wire.StateReleased, "")
	r.mustDetach(wire.ConditionNotFound, "no exchange 'x' in vhost '/'")
}

// What refuses an open has a condition and a text for each cause, and a missing permission comes before limits.
func TestCausesOfRefusedOpens(t *testing.T) {
	s := mustServe(t, nil)
	access := fsm.Refuse(fsm.NoAccess, "access to vhost '/' refused for user 'guest'")
	full := fsm.Refuse(fsm.LimitReached, "access to vhost '/' refused for user 'guest': connection limit (0) is reached")
	for _, c := range []struct {
		err             error
		condition, text string
	}{
		{fsm.Refuse(fsm.LimitReached, "connection refused: node connection limit (7) is reached"), wire.ConditionResourceLimit, "connection refused: node connection limit (7) is reached"},
		{fsm.Refuse(fsm.NoVHost, "vhost / not found"), wire.ConditionUnauthorized, "AMQP 1.0 connection failed: virtual host '/' does not exist"},
		{access, wire.ConditionUnauthorized, "Access for user 'guest' was refused: insufficient permissions"},
		{full, wire.ConditionResourceLimit, "access to vhost '/' refused for user 'guest': vhost connection limit (0) is reached"},
		{errors.Join(full, access), wire.ConditionUnauthorized, "Access for user 'guest' was refused: insufficient permissions"},
		{fsm.Refuse(fsm.LimitReached, "connection refused for user 'guest': user connection limit (1) is reached"), wire.ConditionResourceLimit, "connection refused for user 'guest': user connection limit (1) is reached"},
		{errors.New("stack trace"), wire.ConditionInternal, "internal error"},
	} {
		s.broker.Fail("Connect", c.err)
		r := s.mustRaw()
		r.login(anOpen())
		expect[*wire.Open](r)
		e := expect[*wire.Close](r).Error
		mustCondition(t, e, c.condition, c.text)
		if e.Description != c.text {
			t.Errorf("text %q, want %q", e.Description, c.text)
		}
		r.mustEnd()
	}
}

// A session that the user may not have is ended at once.
func TestRefusedSession(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustRaw()
	r.login(anOpen())
	expect[*wire.Open](r)
	s.broker.Fail("OpenSession", fsm.Refuse(fsm.LimitReached, "number of channels opened for user 'guest' has reached the maximum allowed user limit of 1"))
	r.send(channel, &wire.Begin{HandleMax: 10})
	expect[*wire.Begin](r)
	mustCondition(t, expect[*wire.End](r).Error, wire.ConditionResourceLimit, "number of channels")
}

// A settled message that cannot go where it says ends its link with an error that names the delivery.
func TestErrorNamesTheDelivery(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	s.broker.Forbid("amq.fanout")
	for _, c := range []struct{ to, condition string }{
		{"/queue/q", wire.ConditionPreconditionFailed}, {"", wire.ConditionPreconditionFailed},
		{"/exchanges/nope/k", wire.ConditionNotFound}, {"/exchanges/amq.fanout/k", wire.ConditionUnauthorized},
	} {
		r := s.mustOpen()
		r.mustAttach(aSender(""))
		payload := to(c.to, "x")
		r.transfer(&wire.Transfer{DeliveryID: wire.Some[uint32](1), DeliveryTag: []byte("tag"), Settled: wire.Some(true), More: true}, payload[:5])
		r.transfer(&wire.Transfer{}, payload[5:])
		d := expect[*wire.Detach](r)
		mustCondition(t, d.Error, c.condition, "")
		if got := info(t, d.Error)["delivery-tag"]; got != fmt.Sprint(wire.Binary, "tag") {
			t.Errorf("%s: info %q", c.to, got)
		}
	}
}

// An internal exchange is refused in this protocol's words, and for each message.
func TestInternalExchange(t *testing.T) {
	s := mustServe(t, nil)
	c, err := s.broker.Connect(t.Context(), "guest", "/")
	must(t, err)
	x, err := c.OpenSession(nothing{})
	must(t, err)
	must(t, x.DeclareExchange(t.Context(), fsm.ExchangeSpec{Name: "x", Type: "direct", Internal: true}))
	x.Close(t.Context())
	c.Close(t.Context())
	const text = "forbidden to publish to internal exchange 'x' in vhost '/'"
	r := s.mustOpen()
	r.send(channel, aSender("/exchanges/x"))
	expect[*wire.Attach](r)
	r.mustDetach(wire.ConditionUnauthorized, text)
	r.mustAttach(aSender(""))
	d := r.publish(1, to("/exchanges/x", "x"))
	mustKind(t, d, wire.StateRejected, wire.ConditionUnauthorized)
	mustCondition(t, d.State.Rejected.Error, wire.ConditionUnauthorized, text)
}

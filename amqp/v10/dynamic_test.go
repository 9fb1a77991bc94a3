package v10_test

import (
	"strings"
	"testing"

	client "github.com/Azure/go-amqp"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// aDynamic is an attach whose node at the server's end is to be made.
func aDynamic(receives bool, capabilities ...string) *wire.Attach {
	if !receives {
		a := aSender("")
		a.Target = &wire.Target{Dynamic: true, Durable: 2, ExpiryPolicy: "never", Timeout: 9, Capabilities: capabilities}
		return a
	}
	a := aReceiver("")
	a.Source = &wire.Source{Dynamic: true, ExpiryPolicy: "session-end", Capabilities: capabilities}
	return a
}

// mustQueues waits until the broker has these queues.
func (s *server) mustQueues(n int) {
	s.t.Helper()
	within(s.t, func() { s.broker.AwaitQueues(n) })
}

// A node that a client wants for a link is a queue of its own, and goes with the link however that goes.
func TestTemporaryQueues(t *testing.T) {
	s := mustServe(t, nil)
	for _, receives := range []bool{false, true} {
		for _, capabilities := range [][]string{nil, {"temporary-queue"}} {
			for name, end := range map[string]func(*raw){
				"detach": func(r *raw) {
					r.send(channel, &wire.Detach{Closed: true})
					expect[*wire.Detach](r, &wire.Flow{})
				},
				"end": func(r *raw) {
					r.send(channel, &wire.End{})
					expect[*wire.End](r, &wire.Flow{})
				},
				"close": func(r *raw) {
					r.send(0, &wire.Close{})
					expect[*wire.Close](r, &wire.Flow{})
				},
				"error of the link": func(r *raw) {
					r.send(channel, &wire.Detach{Closed: true, Error: wire.Errorf("x:y", "z")})
					expect[*wire.Detach](r, &wire.Flow{})
				},
				"error of the session": func(r *raw) {
					r.send(channel, &wire.Transfer{Handle: 5})
					expect[*wire.End](r, &wire.Flow{})
				},
				"lost connection": func(r *raw) { r.conn.Close() },
			} {
				t.Run(name, func(t *testing.T) {
					r := s.mustOpen()
					a := r.mustAttach(aDynamic(receives, capabilities...))
					var address string
					var got wire.MapBytes
					if receives {
						x := a.Source
						address, got = x.Address.Value, x.DynamicNodeProperties
						if !x.Dynamic || x.Durable != 0 || x.ExpiryPolicy != "link-detach" || x.Timeout != 0 || len(x.Capabilities) != 1 || x.Capabilities[0] != "temporary-queue" || x.DistributionMode != "move" {
							t.Errorf("%+v", x)
						}
					} else {
						x := a.Target.(*wire.Target)
						address, got = x.Address.Value, x.DynamicNodeProperties
						if !x.Dynamic || x.Durable != 0 || x.ExpiryPolicy != "link-detach" || x.Timeout != 0 || len(x.Capabilities) != 1 || x.Capabilities[0] != "temporary-queue" {
							t.Errorf("%+v", x)
						}
					}
					if !strings.HasPrefix(address, "/queues/amq.dyn-c-l-") {
						t.Errorf("address %q", address)
					}
					policy, _ := got.Get("lifetime-policy")
					modes, _ := got.Get("supported-dist-modes")
					w, m := policy.Walk(), modes.Walk()
					if policy.Type != wire.Described || !w.Next() || w.Value.Unsigned() != 0x2b || modes.Type != wire.Array || !m.Next() || string(m.Value.Bytes()) != "move" {
						t.Errorf("properties % x", got)
					}
					s.mustQueues(1)
					other := s.mustOpen()
					other.send(channel, aReceiver(address))
					expect[*wire.Attach](other)
					mustCondition(t, expect[*wire.Detach](other).Error, wire.ConditionResourceLocked, "cannot obtain exclusive access")
					end(r)
					s.mustQueues(0)
				})
			}
		}
	}
}

// The name of a temporary queue has no room for long names, and nothing that ends lines.
func TestNamesOfTemporaryQueues(t *testing.T) {
	s := mustServe(t, nil)
	for _, c := range []struct{ container, link, prefix string }{
		{"c", "my/link", "/queues/amq.dyn-c-my%2Flink-"},
		{strings.Repeat("c", 100), strings.Repeat("l", 49), "/queues/amq.dyn-ccc"},
		{strings.Repeat("c", 100), strings.Repeat("l", 50), "/queues/amq.dyn.gen-"},
		{"c\r\n", "l\n", "/queues/amq.dyn-c-l-"},
	} {
		r := s.mustRaw()
		o := anOpen()
		o.ContainerID = c.container
		r.login(o)
		expect[*wire.Open](r)
		r.begin()
		a := aDynamic(true)
		a.Name = c.link
		r.send(channel, a)
		if got := expect[*wire.Attach](r).Source.Address.Value; !strings.HasPrefix(got, c.prefix) {
			t.Errorf("%q, want %q", got, c.prefix)
		}
	}
}

// A right that is missing refuses the link, and leaves no queue behind.
func TestTemporaryQueueIsRefused(t *testing.T) {
	s := mustServe(t, nil)
	for method, text := range map[string]string{
		"DeclareQueue": "configure access to queue 'amq.dyn-c-l' refused", "Consume": "read access to queue 'amq.dyn-c-l' refused",
	} {
		r := s.mustOpen()
		s.broker.Fail(method, fsm.Refuse(fsm.AccessRefused, text))
		r.send(channel, aDynamic(true))
		if a := expect[*wire.Attach](r); a.Source != nil {
			t.Errorf("%+v", a)
		}
		mustCondition(t, expect[*wire.Detach](r).Error, wire.ConditionUnauthorized, text)
		s.mustQueues(0)
	}
	// What the client sends ends the link: so does the queue.
	r := s.mustOpen()
	r.mustAttach(aDynamic(false))
	s.mustQueues(1)
	r.transfer(&wire.Transfer{DeliveryID: wire.Some[uint32](0)}, []byte("garbage"))
	mustCondition(t, expect[*wire.Detach](r, &wire.Flow{}).Error, wire.ConditionDecode, "")
	s.mustQueues(0)
}

func TestClientUsesTemporaryQueue(t *testing.T) {
	s := mustServe(t, nil)
	x := mustSession(t, s.mustDial(t, nil))
	r := mustReceiver(t, x, "", &client.ReceiverOptions{DynamicAddress: true})
	l := mustSender(t, x, r.Address())
	must(t, l.Send(t.Context(), client.NewMessage([]byte("hello")), nil))
	m := mustReceive(t, r)
	if string(m.GetData()) != "hello" {
		t.Errorf("%q", m.GetData())
	}
	must(t, r.AcceptMessage(t.Context(), m))
	dynamic, err := x.NewSender(t.Context(), "", &client.SenderOptions{DynamicAddress: true, TargetCapabilities: []string{"temporary-queue"}})
	must(t, err)
	must(t, dynamic.Send(t.Context(), client.NewMessage([]byte("there")), nil))
	if m := mustReceive(t, mustReceiver(t, x, dynamic.Address(), nil)); string(m.GetData()) != "there" {
		t.Errorf("%q", m.GetData())
	}
}

// aVolatile is an attach of a link for replies.
func aVolatile() *wire.Attach {
	a := aReceiver("")
	a.SndSettleMode = 1
	a.Source = &wire.Source{Dynamic: true, ExpiryPolicy: "link-detach", Capabilities: []string{"rabbitmq:volatile-queue"}}
	return a
}

// Replies come while their link is there and has credit. A responder that wants to know learns that it is gone.
func TestReplies(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustOpen()
	a := r.mustAttach(aVolatile())
	address := a.Source.Address.Value
	if !strings.HasPrefix(address, "/queues/amq.rabbitmq.reply-to.") || !a.Source.Dynamic || a.Source.Durable != 0 || a.Source.ExpiryPolicy != "link-detach" || a.SndSettleMode != 1 ||
		len(a.Source.Capabilities) != 1 || a.Source.Capabilities[0] != "rabbitmq:volatile-queue" {
		t.Fatalf("%+v %+v", a, a.Source)
	}
	second := aVolatile()
	second.Name, second.Handle = "l2", 1
	r.send(channel, second)
	if b := expect[*wire.Attach](r); b.Source.Address.Value == address {
		t.Fatalf("two links have the address %q", address)
	}
	responder := s.mustOpen()
	responder.mustAttach(func() *wire.Attach { a := aSender(""); a.Target = &wire.Target{}; return a }())
	id := uint32(0)
	reply := func(body string, kind wire.Outcome) {
		t.Helper()
		mustKind(t, responder.publish(id, to(address, body)), kind, "")
		id++
		s.broker.Quiesce()
	}
	reply("without credit", wire.StateAccepted)
	r.credit(wire.Flow{DeliveryCount: wire.Some[uint32](0), LinkCredit: wire.Some[uint32](2), Echo: true})
	if f := expect[*wire.Flow](r); f.LinkCredit.Value != 2 || f.Handle.Value != 0 {
		t.Fatalf("%+v", f)
	}
	for _, body := range []string{"first", "second", "beyond the credit"} {
		reply(body, wire.StateAccepted)
	}
	for _, want := range []string{"first", "second"} {
		if tr, body := r.receive(); !strings.HasPrefix(body, want+" ") || !tr.Settled.Value || tr.Handle != 0 {
			t.Fatalf("%+v %q, want %q", tr, body, want)
		}
	}
	r.credit(wire.Flow{DeliveryCount: wire.Some[uint32](2), LinkCredit: wire.Some[uint32](5), Drain: true})
	if f := expect[*wire.Flow](r); f.LinkCredit.Value != 0 || f.DeliveryCount.Value != 7 || !f.Drain {
		t.Fatalf("%+v", f)
	}
	r.send(channel, &wire.Detach{Closed: true})
	expect[*wire.Detach](r)
	reply("too late", wire.StateReleased)
	r.send(channel, aVolatile())
	if a := expect[*wire.Attach](r); a.Source.Address.Value == address {
		t.Error("the address leads to another link")
	}
	reply("still too late", wire.StateReleased)
}

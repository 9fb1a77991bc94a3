package v10_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	client "github.com/Azure/go-amqp"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// A link with distribution-mode copy is shown each message once, presettled or not, as credit and drains say; settling
// does nothing, and all is there for who takes it.
func TestBrowse(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	s.mustFill("q", "1", "2", "3")
	for _, settled := range []byte{0, 1} {
		r := s.mustOpen()
		in := aReceiver("/queues/q")
		in.SndSettleMode, in.Source.DistributionMode = settled, "copy"
		if a := r.mustAttach(in); a.Source.DistributionMode != "copy" || a.SndSettleMode != settled {
			t.Errorf("%+v", a.Source)
		}
		r.credit(wire.Flow{LinkCredit: wire.Some[uint32](2)})
		for i := range uint32(2) {
			f, body := r.receive()
			if f.DeliveryID != wire.Some(i) || f.Settled.Value != (settled == 1) || body != fmt.Sprintf("%d 0/true", i+1) {
				t.Fatalf("%+v %s", f, body)
			}
		}
		for i, k := range []wire.Outcome{wire.StateAccepted, wire.StateRejected} {
			r.send(channel, &wire.Disposition{Role: true, First: uint32(i), Settled: true, State: wire.State{Kind: k}})
		}
		r.credit(wire.Flow{NextIncomingID: wire.Some[uint32](2), DeliveryCount: wire.Some[uint32](2), LinkCredit: wire.Some[uint32](10), Drain: true})
		if _, body := r.receive(); body != "3 0/true" {
			t.Errorf("then comes %s", body)
		}
		if f := expect[*wire.Flow](r); f.DeliveryCount != wire.Some[uint32](12) || f.LinkCredit != wire.Some[uint32](0) || f.Available != wire.Some[uint32](3) {
			t.Errorf("%+v", f)
		}
		r.send(channel, &wire.Detach{Closed: true})
		expect[*wire.Detach](r)
		r.send(0, &wire.Close{})
		expect[*wire.Close](r)
	}
	r := s.mustOpen()
	in := aReceiver("/queues/q")
	in.Source.DistributionMode = "move"
	if a := r.mustAttach(in); a.Source.DistributionMode != "move" {
		t.Errorf("%+v", a.Source)
	}
	r.credit(wire.Flow{LinkCredit: wire.Some[uint32](10)})
	for i := range 3 {
		if _, body := r.receive(); body != fmt.Sprintf("%d 0/true", i+1) {
			t.Errorf("the %d. is %s", i+1, body)
		}
	}
}

// A browser that may not read its queue, or whose queue goes, is told.
func TestBrowserEnds(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := s.mustOpen()
	in := aReceiver("/queues/none")
	in.Source.DistributionMode = "copy"
	r.send(channel, in)
	expect[*wire.Attach](r)
	r.mustDetach(wire.ConditionNotFound, "")
	r.send(channel, &wire.Detach{Closed: true})
	in.Source.Address = wire.Some("/queues/q")
	r.mustAttach(in)
	c, err := s.broker.Connect(t.Context(), "guest", "/")
	must(t, err)
	x, err := c.OpenSession(nothing{})
	must(t, err)
	_, err = x.DeleteQueue(t.Context(), "q", false, false)
	must(t, err)
	r.mustDetach(wire.ConditionResourceDeleted, "")
	x.Close(t.Context())
	c.Close(t.Context())
}

// With a client library: messages that come later are shown, too.
func TestClientBrowses(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	c := s.mustDial(t, nil)
	x := mustSession(t, c)
	out := mustSender(t, x, "/queues/q")
	b := mustReceiver(t, x, "/queues/q", &client.ReceiverOptions{Credit: 5, SourceDistributionMode: client.SourceDistributionModeCopy})
	for i := range 20 {
		must(t, out.Send(t.Context(), client.NewMessage([]byte{byte(i)}), nil))
		m := mustReceive(t, b)
		if m.GetData()[0] != byte(i) {
			t.Fatalf("message %d comes as number %d", m.GetData()[0], i)
		}
		must(t, b.AcceptMessage(t.Context(), m))
	}
	must(t, b.Close(t.Context()))
	info, err := func() (fsm.QueueInfo, error) {
		c, err := s.broker.Connect(t.Context(), "guest", "/")
		must(t, err)
		x, err := c.OpenSession(nothing{})
		must(t, err)
		defer c.Close(t.Context())
		defer x.Close(t.Context())
		return x.DeclareQueue(t.Context(), fsm.QueueSpec{Name: "q", Passive: true})
	}()
	if err != nil || info.Ready != 20 || info.Consumers != 0 {
		t.Errorf("%+v %v", info, err)
	}
}

// A client that waits for the answer to an outcome has it at once: there is nobody whom the broker could ask.
func TestOutcomesOfBrowser(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	s.mustFill("q", "1", "2", "3", "4")
	for mode := range byte(2) {
		r := s.mustOpen()
		in := aReceiver("/queues/q")
		in.RcvSettleMode, in.Source.DistributionMode = mode, "copy"
		in.Properties = wire.EndMap(wire.AppendString(wire.AppendSymbol(wire.StartMap(nil), "x-late-settle"), "error"), 0, 1)
		r.mustAttach(in)
		r.credit(wire.Flow{LinkCredit: wire.Some[uint32](4)})
		for range 4 {
			r.receive()
		}
		r.outcome(0, 1, false, accepted)
		r.mustTell("0-1:2", true)
		r.outcome(2, 2, false, modified("x-opt-deferral-token", wire.AppendString(nil, "t")))
		r.mustTell("2-2:5", true)
		r.outcome(3, 3, true, wire.State{Kind: wire.StateRejected, Rejected: wire.Rejected{Error: wire.Errorf("mine", "bad")}})
		r.quiet(4)
	}
	if j := s.broker.Journal(); strings.Contains(strings.Join(j, "\n"), "settle") {
		t.Errorf("the broker is told: %q", j)
	}
}

// What a large head took while it was rendered is not kept for each session and connection.
func TestLargeHeadsAreNotKept(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	const large = 2 << 20
	annotations := wire.AppendString(wire.AppendSymbol(wire.StartMap(nil), "x-large"), strings.Repeat("x", large))
	bare, err := fsm.AppendBareHead(nil, "", "q", fsm.BareHeader{Priority: -1, TTL: -1}, wire.EndMap(annotations, 0, 1), nil)
	must(t, err)
	s.broker.Inject("q", fsm.Message{Payload: append(bare, message("x")...)})
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const n = 24
	before := heap()
	var all []*raw
	for range n {
		r := s.mustOpen()
		in := aReceiver("/queues/q")
		in.Source.DistributionMode = "copy"
		r.mustAttach(in)
		r.credit(wire.Flow{LinkCredit: wire.Some[uint32](1)})
		r.receive()
		all = append(all, r)
	}
	if grown := heap() - before; grown > n/2*large {
		t.Errorf("%d octets are kept by %d clients", grown, len(all))
	}
	runtime.KeepAlive(all)
}

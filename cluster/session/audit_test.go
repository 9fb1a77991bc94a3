package session

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
)

// audited has the world write an audit log, and returns its lines.
func (w *world) audited() (lines func() []audit.Event) {
	var text bytes.Buffer
	log := audit.New("n1", &text, time.Now, func(err error) { w.t.Errorf("%v", err) })
	w.sessions.Authenticator.audit, w.sessions.config.Audit = log, log
	return func() (all []audit.Event) {
		for d := json.NewDecoder(&text); d.More(); {
			var e audit.Event
			if err := d.Decode(&e); err != nil {
				w.t.Fatalf("%v", err)
			}
			all = append(all, e)
		}
		return all
	}
}

// place is a recorder that says where its client is.
type place struct{ recorder }

func (*place) Where() (connection, given string, channel uint16, client netip.AddrPort) {
	return "a -> b", "", 1, netip.MustParseAddrPort("10.0.0.1:5")
}

// What a client has changed is noted; what was there already, or is refused, is
// not.
func TestDefinitionsAreAudited(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	lines := w.audited()
	s, err := w.mustConnect("guest").OpenSession(&place{})
	if err != nil {
		t.Fatal(err)
	}
	w.MustQueue("q")
	bind := fsm.BindSpec{Source: "x", Destination: "q", RoutingKey: "k"}
	exchange := fsm.ExchangeSpec{Name: "x", Type: "direct"}
	for _, err := range []error{
		s.DeclareExchange(ctx, exchange), s.DeclareExchange(ctx, exchange), s.Bind(ctx, bind), s.Bind(ctx, bind),
		s.Unbind(ctx, bind), s.Unbind(ctx, bind), s.DeleteExchange(ctx, "x", false), s.DeleteExchange(ctx, "x", false),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.DeclareExchange(ctx, fsm.ExchangeSpec{Name: "amq.x", Type: "direct"}); err == nil {
		t.Fatal("a reserved name")
	}
	var got []string
	for _, e := range lines() {
		got = append(got, fmt.Sprint(e.Kind, " ", e.Action, " ", e.Target, " ", e.Outcome))
		if e.User != "guest" || e.Origin != (audit.Origin{Protocol: "amqp", Address: "10.0.0.1:5", Connection: "a -> b"}) {
			t.Errorf("%+v", e)
		}
	}
	binding := "map[destination:q routing_key:k source:x vhost:/] ok"
	want := []string{
		"definition exchange.declare map[exchange:x vhost:/] ok", "definition queue.bind " + binding,
		"definition queue.unbind " + binding, "definition exchange.delete map[exchange:x vhost:/] ok",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// What a client does is noted and counted with the protocol by which it is connected.
func TestProtocolIsNoted(t *testing.T) {
	w := newWorld(t)
	lines := w.audited()
	c, err := w.sessions.Enter(audit.With(t.Context(), audit.Origin{Protocol: "amqp10"}), "guest", "/")
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.OpenSession(&place{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.DeclareExchange(t.Context(), fsm.ExchangeSpec{Name: "x", Type: "direct"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Publish(&fsm.Publish{Number: 1, Exchange: "x", Payload: fsm.Payload("m"), TTL: -1, Priority: -1}); err != nil {
		t.Fatal(err)
	}
	s.Close(t.Context())
	c.Close(t.Context())
	if all := lines(); len(all) != 1 || all[0].Protocol != "amqp10" {
		t.Errorf("%+v", all)
	}
	sums := w.sessions.Traffic.Totals()
	if of := sums.By[traffic.AMQP10].All; of[traffic.Publish] != 1 || sums.By[traffic.AMQP091].All != (traffic.Counts{}) {
		t.Errorf("%+v", sums)
	}
	if sums.All[traffic.ConnectionCreated] != 1 || sums.All[traffic.ChannelCreated] != 0 || sums.All[traffic.ChannelClosed] != 0 {
		t.Errorf("a session counts as a channel: %v", sums.All)
	}
}

// A login that is refused is noted with the reason and where it came from.
func TestRefusedLoginsAreAudited(t *testing.T) {
	w := newWorld(t)
	lines := w.audited()
	remote := netip.MustParseAddr("10.0.0.9")
	for _, ctx := range []context.Context{context.Background(), audit.With(context.Background(), audit.Origin{Protocol: "http", Address: "10.0.0.9:7"})} {
		if err := w.sessions.LoginKnown(ctx, "nobody", remote); err != errLogin {
			t.Fatal(err)
		}
	}
	all := lines()
	if len(all) != 2 || all[0].Address != "10.0.0.9" || all[1].Address != "10.0.0.9:7" || all[1].Protocol != "http" {
		t.Fatalf("%+v", all)
	}
	for _, e := range all {
		if e.User != "nobody" || e.Outcome != audit.Refused || e.Reason != "no such user" || e.Kind != audit.Login {
			t.Errorf("%+v", e)
		}
	}
}

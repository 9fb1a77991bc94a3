package cluster

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/selector"
	"github.com/quorate/quorate/proto/logpb"
)

// firstWord is the only field of a message in these tests: its body up to a space.
type firstWord fsm.Payload

func (w firstWord) Field(selector.Section, string) selector.Value {
	word, _, _ := strings.Cut(string(fsm.Payload(w).Body()), " ")
	return selector.TextOf(word)
}

func fieldsOfBody(p fsm.Payload) selector.Message { return firstWord(p) }

// mustSelect opens a channel at a node that consumes what matches.
func (c *nodes) mustSelect(node, queue, selector string) *taker {
	c.t.Helper()
	x := &taker{client: c.mustClient(node)}
	x.client.close()
	var err error
	if x.session, err = x.conn.OpenSession(x); err == nil {
		err = retried(c.t, func(ctx context.Context) error {
			return x.session.Consume(ctx, fsm.ConsumeSpec{Queue: queue, Number: 1, Tag: "c", Credit: true, Selector: selector})
		})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return x
}

// Queues with groups or a single active consumer, and consumers with a priority, have no selectors; and one that is
// given credit late, or by and by, gets all the same what was passed over for want of it, and what comes back.
func TestSelects(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	out := c.mustClient("n1")
	out.mustDeclare("q")
	out.mustDeclare("single", truth("x-single-active-consumer"))
	out.mustDeclare("groups", truth("x-message-groups"))
	priority := &fsm.Table{Fields: []*logpb.Field{{Name: "x-priority", Value: &logpb.Value{Tag: 'I', Int: 1}}}}
	for _, spec := range []fsm.ConsumeSpec{{Queue: "single"}, {Queue: "groups"}, {Queue: "q", Arguments: priority}, {Queue: "none"}} {
		spec.Number, spec.Credit, spec.Selector = 9, true, "a = 'b'"
		if out.session.Selects(t.Context(), spec) {
			t.Errorf("%+v may have a selector", spec)
		}
		if err := out.session.Consume(t.Context(), spec); err == nil {
			t.Errorf("%+v has a selector", spec)
		}
	}
	if !out.session.Selects(t.Context(), fsm.ConsumeSpec{Queue: "q"}) {
		t.Error("nobody may have one")
	}
	var reds []string
	for i, n := range numbered(0, 700) {
		if body := "red " + n; i%2 == 0 {
			reds = append(reds, body)
			out.publish("q", body)
		} else {
			out.publish("q", "green "+n)
		}
	}
	out.confirmed()
	holder := c.mustSelect("n2", "q", "colour LIKE 'r_d'")
	holder.holds = true
	holder.session.Credit(1, fsm.Flow{Credit: 3})
	holder.await("three", func() bool { return len(holder.inbox) >= 3 })
	in := c.mustSelect("n3", "q", "colour = 'red' AND NOT colour IS NULL")
	in.give(5, false)
	in.await("all but three", func() bool { return len(in.inbox) >= len(reds)-3 })
	mustBodies(t, in.bodies(), reds[3:])
	holder.session.Settle(1, []uint64{1, 2, 3}, fsm.Requeue)
	in.await("what comes back", func() bool { return len(in.inbox) >= len(reds) })
	in.give(10, true)
	in.await("the end of a drain", func() bool { return len(in.credited) > 0 })
	if got := in.credited[0]; !got.Drained || got.Available != 350 {
		t.Errorf("drained: %+v", got)
	}
}

func truth(name string) *logpb.Field {
	return &logpb.Field{Name: name, Value: &logpb.Value{Tag: 't', Int: 1}}
}

// Consumers with selectors are given what matches, each message once and in order, although the queue's leader dies; a
// drain ends when all was searched; what nobody wants waits for whoever takes all.
func TestSelectAcrossLeaders(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustClient("n1").mustDeclare("q")
	leader := c.mustLeader("q")
	node := c.other(leader)
	out := c.mustClient(node)
	red, blue := c.mustSelect(c.other(leader, node), "q", "colour = 'red'"), c.mustSelect(node, "q", "colour = 'blue'")
	red.give(20, false)
	blue.give(20, false)
	var reds, blues, greens []string
	for i, n := range numbered(0, 900) {
		switch i % 3 {
		case 0:
			reds = append(reds, "red "+n)
			out.publish("q", "red "+n)
		case 1:
			blues = append(blues, "blue "+n)
			out.publish("q", "blue "+n)
		default:
			greens = append(greens, "green "+n)
			out.publish("q", "green "+n)
		}
		if i == 450 {
			red.await("the first messages are delivered", func() bool { return len(red.inbox) > 10 })
			go c.net.crash(leader)
		}
	}
	c.crash(leader)
	out.confirmed()
	red.await("all reds", func() bool { return len(red.inbox) >= len(reds) })
	blue.await("all blues", func() bool { return len(blue.inbox) >= len(blues) })
	for name, got := range map[string][2][]string{"red": {red.bodies(), reds}, "blue": {blue.bodies(), blues}} {
		if slices.Sort(got[0]); !slices.Equal(slices.Compact(got[0]), got[1]) {
			t.Errorf("%s: %d messages are delivered, want %d", name, len(got[0]), len(got[1]))
		}
	}
	red.give(30, true)
	red.await("the end of a drain", func() bool { return len(red.credited) > 0 })
	if now := red.credited[0]; !now.Drained || now.Credit != 0 || now.Available != uint64(len(greens)) {
		t.Errorf("drained: %+v, %d are left", now, len(greens))
	}
	all := c.mustTaker(node, "q")
	all.give(20, false)
	all.await("all greens", func() bool { return len(all.inbox) >= len(greens) })
	mustBodies(t, all.bodies(), greens)
	c.mustOpen(leader)
	c.mustAgree()
}

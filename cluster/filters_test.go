package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// splitFilters are filters whose programs are lists of edits: a copy for each, which says what it is.
type splitFilters struct{}

func (splitFilters) NewFilterSet(string, string) fsm.FilterSet { return &splitSet{} }

func (splitFilters) Edited(p fsm.Payload, edit []byte, _ uint64) fsm.Payload {
	return append(append(slices.Clip(p), ' '), edit...)
}

type splitSet struct{ queues, programs []string }

func (s *splitSet) Add(_ uint64, queue string, program []byte) {
	s.queues, s.programs = append(s.queues, queue), append(s.programs, string(program))
}

func (s *splitSet) Remove(uint64) {}

func (s *splitSet) Match(fsm.Payload, fsm.FilterFacts) (copies []fsm.FilterCopy) {
	for i, program := range s.programs {
		for edit := range strings.SplitSeq(program, ",") {
			copies = append(copies, fsm.FilterCopy{Queue: s.queues[i], Edit: []byte(edit)})
		}
	}
	return copies
}

// Each message that a topic's queue has confirmed is copied for each queue once, whatever leader dies.
func TestCopiesAcrossLeaders(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, func(c *nodes) { c.change = func(config *Config) { config.Filters = splitFilters{} } })
	until(t, "all nodes have filters", func() bool {
		for _, n := range c.all {
			if n.View().FSMVersion() < fsm.NewestVersion {
				return false
			}
		}
		return true
	})
	cl := c.mustClient("n1")
	cl.mustDeclareExchange(fsm.ExchangeSpec{Name: "topic", Type: "x-filter", Durable: true, Internal: true})
	cl.mustDeclare("store", text("x-forward-to-exchange", "topic"), &logpb.Field{Name: "x-forward-copies", Value: &logpb.Value{Tag: 't', Int: 1}})
	for queue, program := range map[string]string{"one": "a,b", "two": "c"} {
		cl.mustDeclare(queue)
		b := fsm.BindSpec{Source: "topic", Destination: queue, RoutingKey: "rule", Arguments: &fsm.Table{Fields: []*logpb.Field{text("x-filter-program", program)}}}
		if err := cl.session.Bind(deadline(t), b); err != nil {
			t.Fatal(err)
		}
	}
	leader := c.mustLeader("store")
	at := c.mustClient(c.other(leader))
	const count = 60
	for i := range count {
		if i == count/2 {
			c.crash(leader)
		}
		at.publish("store", fmt.Sprintf("m%02d", i))
	}
	at.confirmed()
	at.ack = true
	at.mustConsume("one", 1, 1000)
	at.mustConsume("two", 2, 1000)
	at.await("all copies", func() bool { return len(at.inbox) >= 3*count })
	until(t, "nothing is left", func() bool {
		info, err := at.count("one")
		return err == nil && info.Ready == 0
	})
	var want []string
	for i := range count {
		for _, edit := range []string{"a", "b", "c"} {
			want = append(want, fmt.Sprintf("m%02d %s", i, edit))
		}
	}
	got := at.bodies()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%d copies, want %d: %q", len(got), len(want), got)
	}
}

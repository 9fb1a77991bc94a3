package catalog

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// parsePlacement reads the commands about members: "admit NAME IDENTITY [token=NAME]",
// "forget NAME", "recover NAME [QUEUE-ID ...]", "members QUEUE-ID NODES [was=NODES] [size=N]", "left QUEUE-ID NODES".
func parsePlacement(t testing.TB, w []string, c *logpb.CatalogCommand) {
	t.Helper()
	numbers := func(list string) (all []uint32) {
		for word := range strings.SplitSeq(list, ",") {
			if n, err := strconv.Atoi(word); err == nil {
				all = append(all, uint32(n))
			}
		}
		return all
	}
	id := func() uint64 {
		var index, position uint64
		if _, err := fmt.Sscanf(w[1], "%d.%d", &index, &position); err != nil {
			t.Fatalf("id %q: %v", w[1], err)
		}
		return index<<16 | position
	}
	switch w[0] {
	case "admit":
		m := &logpb.AdmitNode{Name: w[1], Identity: []byte(w[2]), PeerAddress: w[1] + ":1"}
		if token := parseOptions(t, w[3:]).values["token"]; token != "" {
			m.Token = tokenHash(token)
		}
		c.Body = &logpb.CatalogCommand_AdmitNode{AdmitNode: m}
	case "forget":
		c.Body = &logpb.CatalogCommand_ForgetNode{ForgetNode: &logpb.ForgetNode{Name: w[1]}}
	case "recover":
		m := &logpb.RecoverCluster{Name: w[1]}
		for _, word := range w[2:] {
			w[1] = word
			m.Empty = append(m.Empty, id())
		}
		c.Body = &logpb.CatalogCommand_RecoverCluster{RecoverCluster: m}
	case "members":
		o := parseOptions(t, w[3:])
		m := &logpb.SetMembers{Queue: id(), Members: numbers(w[2]), Was: numbers(o.values["was"])}
		if size, err := strconv.Atoi(o.values["size"]); err == nil {
			m.Size = uint32(size)
		}
		c.Body = &logpb.CatalogCommand_SetMembers{SetMembers: m}
	case "left":
		c.Body = &logpb.CatalogCommand_MembersLeft{MembersLeft: &logpb.MembersLeft{Queue: id(), Nodes: numbers(w[2])}}
	}
}

func sizeOf(t testing.TB, v *View, w []string) string {
	t.Helper()
	q, ok := v.Queue(w[0], w[1])
	if !ok {
		t.Fatalf("no queue %s", w[1])
	}
	return fmt.Sprintf("%d of %d", len(v.Members(q)), v.GroupSize(q, 3))
}

// placed is the naive model of one queue's members.
type placed struct {
	members, leaving []fsm.NodeID
}

// TestMembersModel gives random changes of members and of nodes to a catalog
// and to a naive model: no member is ever unknown, none is added while one is
// leaving, and who leaves stays known until it is said to have left.
func TestMembersModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &Catalog{}
		index := uint64(1)
		apply := func(body *logpb.CatalogCommand) *logpb.CatalogResult {
			index++
			r := c.Apply(index, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{body}})[0]
			if err := c.Check(); err != nil {
				t.Fatalf("%v: %v\n%s", body, err, c)
			}
			if again := mustReload(t, c); again.String() != c.String() {
				t.Fatalf("the snapshot gives\n%s\nnot\n%s", again, c)
			}
			return r
		}
		names := []string{"a", "b", "c", "d"}
		nodes := map[string]fsm.NodeID{}
		for _, n := range names {
			nodes[n] = fsm.NodeID(apply(admit(n, "0")).Node)
		}
		apply(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "/"}}})
		var ids []uint64
		var models []*placed
		for i := range 2 {
			r := apply(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{
				Vhost: "/", Name: fmt.Sprint(i), Members: []uint32{1, 2, 3}[:1+2*i]}}})
			ids = append(ids, r.Queue)
			models = append(models, &placed{members: []fsm.NodeID{1, 2, 3}[:1+2*i]})
		}
		last := fsm.NodeID(len(names))
		for step := range rapid.IntRange(1, 30).Draw(t, "steps") {
			at := rapid.IntRange(0, 1).Draw(t, "queue")
			m := models[at]
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0, 1:
				var want []uint32
				for n := fsm.NodeID(1); n <= last; n++ {
					if rapid.Bool().Draw(t, "member") {
						want = append(want, uint32(n))
					}
				}
				r := apply(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_SetMembers{SetMembers: &logpb.SetMembers{Queue: ids[at], Members: want}}})
				if ok := m.set(nodeIDs(want), nodes); ok != (r.Refusal == 0) {
					t.Fatalf("members %v: %v, want accepted %v", want, r, ok)
				}
			case 2:
				var left []uint32
				for _, n := range m.leaving {
					left = append(left, uint32(n))
				}
				apply(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_MembersLeft{MembersLeft: &logpb.MembersLeft{Queue: ids[at], Nodes: left}}})
				m.leaving = nil
			default:
				name := rapid.SampledFrom(names).Draw(t, "node")
				r := apply(admit(name, fmt.Sprint(step+1)))
				alone := slices.ContainsFunc(models, func(m *placed) bool { return slices.Equal(m.members, []fsm.NodeID{nodes[name]}) })
				if alone != (r.Refusal != 0) {
					t.Fatalf("%s comes back: %v, alone: %v", name, r, alone)
				}
				if !alone {
					for _, m := range models {
						m.drop(nodes[name])
					}
					last++
					nodes[name] = last
				}
			}
			for i, m := range models {
				q, _ := c.View().QueueByID(fsm.QueueID(ids[i]))
				if !slices.Equal(c.View().Members(q), m.members) || !slices.Equal(c.View().Leaving(q), m.leaving) {
					t.Fatalf("%v, want %v\n%s", q, m, c)
				}
			}
		}
	})
}

func admit(name, identity string) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_AdmitNode{AdmitNode: &logpb.AdmitNode{Name: name, Identity: []byte(identity)}}}
}

// set changes the members, and reports whether that is allowed.
func (m *placed) set(want []fsm.NodeID, nodes map[string]fsm.NodeID) bool {
	known := map[fsm.NodeID]bool{}
	for _, n := range nodes {
		known[n] = true
	}
	for _, n := range want {
		if !known[n] || !slices.Contains(m.members, n) && len(m.leaving) > 0 {
			return false
		}
	}
	if len(want) == 0 {
		return false
	}
	for _, n := range slices.Clone(m.members) {
		if !slices.Contains(want, n) {
			m.drop(n)
		}
	}
	m.members = want
	return true
}

func (m *placed) drop(n fsm.NodeID) {
	if i := slices.Index(m.members, n); i >= 0 {
		m.members = slices.Delete(slices.Clone(m.members), i, i+1)
		m.leaving = append(m.leaving, n)
		slices.Sort(m.leaving)
	}
}

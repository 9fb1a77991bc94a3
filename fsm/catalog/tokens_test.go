package catalog

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// tokenCluster applies commands one by one.
type tokenCluster struct {
	c     Catalog
	clock int64
}

func (x *tokenCluster) apply(c *logpb.CatalogCommand) error {
	return Refused(x.c.Apply(x.c.View().Index()+1, &logpb.CatalogEntry{Version: 1, Now: x.clock, Commands: []*logpb.CatalogCommand{c}})[0])
}

func (x *tokenCluster) put(name string, ttl fsm.Millis, node string) error {
	return x.apply(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutJoinToken{PutJoinToken: &logpb.PutJoinToken{
		Hash: tokenHash(name), Ttl: uint64(ttl), Node: node}}})
}

func (x *tokenCluster) admit(node, identity, token string) error {
	m := &logpb.AdmitNode{Name: node, Identity: []byte(identity)}
	if token != "" {
		m.Token = tokenHash(token)
	}
	return x.apply(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_AdmitNode{AdmitNode: m}})
}

// There are so many tokens at a time and no more: those that were used make
// room, those that wait do not.
func TestJoinTokensAreBounded(t *testing.T) {
	x := &tokenCluster{clock: 1000}
	for i := range MaxJoinTokens {
		if err := x.put(fmt.Sprint(i), MinJoinTokenTTL+fsm.Millis(i), ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.put("more", MinJoinTokenTTL, ""); err == nil {
		t.Error("there is no bound")
	}
	for _, used := range []string{"9", "5"} {
		if err := x.admit("n"+used, "i", used); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.put("more", MaxJoinTokenTTL, ""); err != nil {
		t.Fatal(err)
	}
	for used, kept := range map[string]bool{"5": false, "9": true} {
		if got := slices.ContainsFunc(x.c.View().JoinTokens(), func(r *logpb.JoinToken) bool { return r.UsedBy == "n"+used }); got != kept {
			t.Errorf("token %s is kept: %v", used, got)
		}
	}
	x.clock += int64(MaxJoinTokenTTL) - 1
	if err := x.put("last", MinJoinTokenTTL, ""); err != nil || len(x.c.View().JoinTokens()) != 2 {
		t.Errorf("%v, %d tokens", err, len(x.c.View().JoinTokens()))
	}
	if err := x.c.Check(); err != nil {
		t.Error(err)
	}
}

// Whatever comes in whatever order: a token lets one data folder in, by one
// name, before its time is over.
func TestJoinTokensLetInOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := &tokenCluster{clock: 1}
		type user struct{ node, identity string }
		ends, bound, used := map[string]int64{}, map[string]string{}, map[string]user{}
		tokens := rapid.SampledFrom([]string{"a", "b", "c"})
		nodes := rapid.SampledFrom([]string{"n1", "n2", "n3"})
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			x.clock += rapid.Int64Range(0, 700).Draw(t, "passes")
			token, node := tokens.Draw(t, "token"), nodes.Draw(t, "node")
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				name := rapid.SampledFrom([]string{"", "n1"}).Draw(t, "for")
				if err := x.put(token, 1000, name); (err == nil) != (ends[token] <= x.clock) {
					t.Fatalf("put %s: %v", token, err)
				} else if err == nil {
					ends[token], bound[token] = x.clock+1000, name
					delete(used, token)
				}
			case 1:
				if err := x.apply(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteJoinToken{DeleteJoinToken: &logpb.DeleteJoinToken{Hash: tokenHash(token)}}}); err != nil {
					t.Fatal(err)
				}
				ends[token] = 0
			case 2:
				if err := x.apply(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_ForgetNode{ForgetNode: &logpb.ForgetNode{Name: node}}}); err != nil {
					t.Fatal(err)
				}
			default:
				who := user{node, rapid.SampledFrom([]string{"x", "y"}).Draw(t, "identity")}
				was, known := x.c.View().NodeByName(node)
				before, wasUsed := used[token]
				good := !wasUsed && (bound[token] == node || bound[token] == "" && !known)
				again := wasUsed && before == who && known && string(was.Identity) == who.identity
				if err := x.admit(who.node, who.identity, token); (err == nil) != (x.clock < ends[token] && (good || again)) {
					t.Fatalf("admit %v by %s: %v", who, token, err)
				} else if err == nil {
					used[token] = who
				} else if !TokenRefused(err) {
					t.Fatalf("another refusal: %v", err)
				}
			}
			if err := x.c.Check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

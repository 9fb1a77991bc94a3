package queues

import (
	"testing"

	"github.com/quorate/quorate/proto/peerpb"
)

// TestVerdict: replicas are equal only if all of them have said the same of the same entry.
func TestVerdict(t *testing.T) {
	at := func(index uint64, hash string) *peerpb.HashReply {
		return &peerpb.HashReply{Here: true, Index: index, Hash: hash}
	}
	late := &peerpb.HashReply{Here: true, Error: "late"}
	for _, c := range []struct {
		answers []*peerpb.HashReply
		want    string
	}{
		{[]*peerpb.HashReply{at(5, "a"), at(5, "a"), at(5, "a")}, "equal"},
		{[]*peerpb.HashReply{at(5, "a"), at(5, "b"), at(5, "a")}, "different"},
		{[]*peerpb.HashReply{at(5, "a"), late, at(5, "b")}, "different"},
		{[]*peerpb.HashReply{at(5, "a"), late, at(5, "a")}, "unknown"},
		{[]*peerpb.HashReply{at(5, "a"), at(6, "b"), at(5, "a")}, "unknown"},
		{[]*peerpb.HashReply{late, late, late}, "unknown"},
		{nil, "unknown"},
	} {
		complete := true
		for _, a := range c.answers {
			complete = complete && a.Hash != ""
		}
		if got := verdict(c.answers, complete); got != c.want {
			t.Errorf("%v: %s, not %s", c.answers, got, c.want)
		}
	}
}

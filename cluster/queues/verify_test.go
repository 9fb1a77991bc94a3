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

// Replicas meet ahead of a log while it grows, and no farther than it gets: what waits for entries that never come is
// not compared.
func TestNextAhead(t *testing.T) {
	passed := &peerpb.HashReply{Here: true, Passed: true, Last: 107}
	late := func(last uint64) *peerpb.HashReply { return &peerpb.HashReply{Here: true, Error: "late", Last: last} }
	for _, c := range []struct {
		ahead   uint64
		answers []*peerpb.HashReply
		want    uint64
	}{
		{0, []*peerpb.HashReply{late(103), passed}, 4},
		{4, []*peerpb.HashReply{passed, late(103)}, 16},
		{16, []*peerpb.HashReply{late(100), late(112)}, 6},
		{16, []*peerpb.HashReply{late(100), late(100)}, 0},
		{0, []*peerpb.HashReply{late(99)}, 0},
		{64, nil, 0},
	} {
		if got := nextAhead(c.ahead, 4, 100, c.answers); got != c.want {
			t.Errorf("after %d with %v: %d, want %d", c.ahead, c.answers, got, c.want)
		}
	}
}

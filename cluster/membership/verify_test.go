package membership

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/proto/peerpb"
)

// Who says that a node is no member any more must know what holds now, and
// nobody who does may say otherwise.
func TestRemovedBy(t *testing.T) {
	gone := func(index uint64) *peerpb.IntroduceReply {
		return &peerpb.IntroduceReply{Current: true, Removed: true, Index: index}
	}
	member := func(index uint64) *peerpb.IntroduceReply {
		return &peerpb.IntroduceReply{Current: true, Index: index, Known: []byte("it")}
	}
	for _, x := range []struct {
		name    string
		answers map[string]*peerpb.IntroduceReply
		want    []string
	}{
		{"nobody", nil, nil},
		{"two", map[string]*peerpb.IntroduceReply{"a": gone(12), "b": gone(11)}, []string{"a", "b"}},
		{"one that is stale", map[string]*peerpb.IntroduceReply{"a": {Removed: true, Index: 12}}, nil},
		{"one from before", map[string]*peerpb.IntroduceReply{"a": gone(10)}, nil},
		{"a liar", map[string]*peerpb.IntroduceReply{"a": gone(99), "b": member(11)}, nil},
		{"one that does not know", map[string]*peerpb.IntroduceReply{"a": gone(12), "b": {Index: 11, Known: []byte("it")}}, []string{"a"}},
	} {
		if got := removedBy(x.answers, 10); !slices.Equal(got, x.want) {
			t.Errorf("%s: %v, not %v", x.name, got, x.want)
		}
	}
}

// A member believes only those whose identity it knows.
func TestIsKnownAs(t *testing.T) {
	known := []byte("identity of n2's")
	l := newLinks(&Config{Node: "n1", Logger: slog.New(slog.DiscardHandler)}, &directory{kept: record{Nodes: map[string]member{
		"n1": {Identity: known}, "n2": {Identity: known}, "n3": {},
	}}})
	if !l.isKnownAs("n2", known) {
		t.Error("n2 is not believed")
	}
	for node, identity := range map[string][]byte{"n1": known, "n2": []byte("another identity"), "n3": nil, "n9": nil} {
		if l.isKnownAs(node, identity) {
			t.Errorf("%s is believed", node)
		}
	}
}

// An isolated node waits for a far one for as long as a connection to it and its answer take.
func TestAnswerWait(t *testing.T) {
	for slack, want := range map[time.Duration]time.Duration{0: 3 * time.Second, time.Second: 8 * time.Second} {
		if got := answerWait(slack); got != want {
			t.Errorf("with a slack of %v: %v, not %v", slack, got, want)
		}
	}
}

package queues

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// labelled has the properties of the one message there is.
type labelled struct{}

func (labelled) Property(fsm.Payload, string) []byte { return []byte("id") }
func (labelled) Headers(fsm.Payload, []*logpb.Death) *fsm.Table {
	return &fsm.Table{Fields: []*logpb.Field{
		{Name: "n", Value: &logpb.Value{Tag: 'l', Int: 7}}, {Name: "s", Value: &logpb.Value{Tag: 'S', Str: []byte("7")}}, {Name: "t", Value: &logpb.Value{Tag: 't', Int: 1}},
	}}
}

// Of a message, all conditions count that are given; its own queue is none that it came from. What has gone meets none
// that its payload has a part in.
func TestSelection(t *testing.T) {
	x := &queue.Message{Seq: 5, EnqueuedAt: 900, Ref: fsm.Ref{Size: 10}, Deaths: []*logpb.Death{
		{Queue: "here", Reason: logpb.Death_MAXLEN}, {Queue: "there", Reason: logpb.Death_DELIVERY_LIMIT}, {Queue: "first", Reason: logpb.Death_EXPIRED},
	}}
	for name, c := range map[string]struct {
		r    *peerpb.SelectRequest
		want bool
	}{
		"any":            {&peerpb.SelectRequest{}, true},
		"all":            {&peerpb.SelectRequest{Messages: []uint64{4, 5}, MessageId: "id", Headers: map[string]string{"n": "7", "s": "7", "t": "true"}, OlderThan: 100, YoungerThan: 101, Reason: "delivery_limit", Source: "there"}, true},
		"another number": {&peerpb.SelectRequest{Messages: []uint64{4, 6}}, false},
		"another id":     {&peerpb.SelectRequest{MessageId: "i"}, false},
		"another header": {&peerpb.SelectRequest{Headers: map[string]string{"n": "7", "s": "8"}}, false},
		"no header":      {&peerpb.SelectRequest{Headers: map[string]string{"x": "<nil>"}}, false},
		"too young":      {&peerpb.SelectRequest{OlderThan: 101}, false},
		"before it":      {&peerpb.SelectRequest{Before: 901, OlderThan: 101}, true},
		"not before it":  {&peerpb.SelectRequest{Before: 900, OlderThan: 100}, false},
		"too old":        {&peerpb.SelectRequest{YoungerThan: 100}, false},
		"died here":      {&peerpb.SelectRequest{Reason: "maxlen"}, false},
		"died before":    {&peerpb.SelectRequest{Source: "first"}, false},
	} {
		s := selection{SelectRequest: c.r, name: "here", now: 1000, properties: labelled{}, payload: func(fsm.Ref) (fsm.Payload, error) { return nil, nil }}
		bytes := 100
		if got := s.meets(x, s.death(x)) && s.reads(x, &bytes); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		s.payload = func(fsm.Ref) (fsm.Payload, error) { return nil, errors.New("gone") }
		if reads := len(c.r.Headers) > 0 || c.r.MessageId != ""; reads && s.reads(x, &bytes) {
			t.Errorf("%s: met by what is gone", name)
		}
	}
	s := selection{SelectRequest: &peerpb.SelectRequest{Reason: "expired", Messages: []uint64{3, 9}}, name: "here"}
	if s.meets(&queue.Message{Seq: 3}, nil) {
		t.Error("what has not died has died of something")
	}
	for after, want := range map[uint64]uint64{0: 2, 2: 2, 3: 8, 8: 8, 9: 9} {
		if got := s.skip(after); got != want {
			t.Errorf("after %d it goes on after %d, not %d", after, got, want)
		}
	}
}

// TestLetterKinds: letters are counted by reason and queue; those of more kinds than an answer tells apart are together.
func TestLetterKinds(t *testing.T) {
	r := &peerpb.SelectReply{}
	k := letterKinds{at: map[kindOfLetter]*peerpb.LetterCount{}, reply: r}
	k.count(nil)
	for range 2 {
		for i := range maxLetterKinds + 1 {
			k.count(&logpb.Death{Queue: fmt.Sprint(i / 2), Reason: logpb.Death_Reason(i%2 + 1)})
		}
	}
	if n := len(r.Counts); n != maxLetterKinds+1 || len(k.at) != n {
		t.Fatalf("%d kinds: %v", n, r.Counts)
	}
	for i, want := range map[int]*peerpb.LetterCount{
		0: {Messages: 1}, 1: {Reason: "expired", Source: "0", Messages: 2}, 2: {Reason: "rejected", Source: "0", Messages: 2}, maxLetterKinds: {Other: true, Messages: 4},
	} {
		if !proto.Equal(r.Counts[i], want) {
			t.Errorf("%d: %v, not %v", i, r.Counts[i], want)
		}
	}
}

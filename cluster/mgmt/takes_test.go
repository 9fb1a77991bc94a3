package mgmt

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Select answers with selections, one after the other, and then that there is nothing.
func (w *world) Select(_ context.Context, _ *catalog.Queue, r *peerpb.SelectRequest) (*peerpb.SelectReply, error) {
	w.selected = append(w.selected, proto.Clone(r).(*peerpb.SelectRequest))
	if len(w.selections) == 0 {
		return &peerpb.SelectReply{Leader: true, Seen: 9, UpTo: 9}, nil
	}
	next := w.selections[0]
	w.selections = w.selections[1:]
	return next, nil
}

// TestTakes: what a request takes is searched for in steps and taken by number, with a command for each queue that it
// goes to; a request that is wrong takes nothing.
func TestTakes(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	w.queue("/", "to", false)
	q, _ := w.catalog.View().Queue("/", "q")
	to, _ := w.catalog.View().Queue("/", "to")
	const at = "/api/queues/%2F/q/"
	did := func(commands ...*logpb.Take) {
		t.Helper()
		var have []*logpb.Take
		for _, c := range w.commands {
			have = append(have, c.Take)
		}
		if !slices.EqualFunc(have, commands, func(a, b *logpb.Take) bool { return proto.Equal(a, b) }) {
			t.Errorf("%v, not %v", have, commands)
		}
		w.commands = nil
	}
	none := func(next string) string {
		return fmt.Sprintf(`{"messages":0,"source_gone":0,"no_source":0,"next":%q}`, next)
	}
	w.selections = []*peerpb.SelectReply{{Messages: []uint64{1, 3}, Seen: 4, UpTo: 9}, {Seen: 8, UpTo: 9}, {Messages: []uint64{9}, Seen: 9, UpTo: 9}}
	w.check(want{"root", "POST", at + "messages/delete", `{"limit":5,"headers":{"a":1,"b":true},"message_id":"m","reason":"expired","source":"s","older_than":7,"younger_than":70,"messages":[9,1,3]}`,
		200, `{"messages":3,"source_gone":0,"no_source":0,"next":""}`})
	did(&logpb.Take{Messages: []uint64{1, 3}}, &logpb.Take{Messages: []uint64{9}})
	asked := peerpb.SelectRequest{
		Limit: 5, Messages: []uint64{1, 3, 9}, MessageId: "m", Headers: map[string]string{"a": "1", "b": "true"}, OlderThan: 7, YoungerThan: 70, Reason: "expired", Source: "s",
	}
	for i, r := range w.selected {
		asked.After, asked.UpTo = []uint64{0, 4, 8}[i], []uint64{0, 9, 9}[i]
		if asked.Limit = []uint32{5, 3, 3}[i]; !proto.Equal(r, &asked) {
			t.Errorf("searched for %v, not %v", r, &asked)
		}
	}
	w.selected, w.selections = nil, []*peerpb.SelectReply{{Messages: []uint64{1, 2}, Seen: 2, UpTo: 9}}
	w.check(want{"root", "POST", at + "messages/move", `{"limit":2,"to":"to"}`, 200, `{"messages":2,"source_gone":0,"no_source":0,"next":"2-9"}`},
		want{"root", "POST", at + "messages/move", `{"limit":2,"to":"to","after":"2-9"}`, 200, none("")})
	did(&logpb.Take{Action: logpb.Take_MOVE, Messages: []uint64{1, 2}, Target: uint64(to.ID)})
	if last := w.selected[len(w.selected)-1]; last.After != 2 || last.UpTo != 9 {
		t.Errorf("went on after %v", last)
	}
	w.selections = []*peerpb.SelectReply{{Messages: []uint64{1, 2, 3, 4, 5}, Sources: []string{"to", "gone", "", "to", "gone"}, Seen: 9, UpTo: 9}}
	w.check(want{"root", "POST", at + "redrive", "", 200, `{"messages":2,"source_gone":2,"no_source":1,"next":""}`})
	did(&logpb.Take{Action: logpb.Take_REDRIVE, Messages: []uint64{1, 4}, Target: uint64(to.ID)})

	bad := func(action, body, reason string) want {
		return want{"root", "POST", at + action, body, 400, fmt.Sprintf(`{"error":"bad_request","reason":%q}`, reason)}
	}
	const times = "older_than and younger_than must be ms from 1, and limit a whole number from 1 to 1000"
	const target = "what is moved or copied needs a queue to go to, and what is deleted has none"
	w.check(
		bad("messages/move", `{"limit":1}`, target), bad("messages/copy", `{}`, target), bad("messages/delete", `{"limit":1,"to":"to"}`, target),
		bad("messages/move", `{"to":"q"}`, "the messages are in "+q.String()+" already"),
		bad("redrive", `{"limit":0}`, times), bad("redrive", `{"limit":1001}`, times), bad("redrive", `{"older_than":-1}`, times),
		bad("redrive", `{"after":"x"}`, "after must be the value next of an answer"),
		bad("redrive", `{"messages":[]}`, "messages must be 1 to 1000 numbers of messages"), bad("redrive", `{"messages":["1"]}`, "1 is no number of a message"),
		want{"root", "POST", at + "redrive", `{"header":{}}`, 400, "…header is no condition"},
		want{"root", "POST", at + "messages/delete", "", 400, "…limit or a condition is required"},
		want{"root", "POST", at + "messages/move", `{"to":"none"}`, 404, "…"},
		want{"root", "POST", "/api/queues/%2F/none/redrive", "", 404, `{"error":"not_found","reason":"queue_not_found"}`},
		want{"mona", "POST", at + "redrive", "", 401, "…Access refused."},
	)
	did()
}

// TestLetters: letters are counted by kind, the largest first; what has no death, or one of too many kinds, is apart.
func TestLetters(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	const at = "/api/queues/%2F/q/letters"
	w.selections = []*peerpb.SelectReply{{Seen: 8, UpTo: 9, Counts: []*peerpb.LetterCount{
		{Messages: 1}, {Reason: "expired", Source: "a", Messages: 2}, {Reason: "rejected", Source: "b", Messages: 3}, {Other: true, Messages: 4},
	}}}
	w.check(
		want{"root", "GET", at + "?after=4-9", "", 200, `{"messages":10,"kinds":[{"reason":"rejected","source":"b","messages":3},{"reason":"expired","source":"a","messages":2}],"no_source":1,"other":4,"next":"8-9"}`},
		want{"root", "GET", at, "", 200, `{"messages":0,"kinds":[],"no_source":0,"other":0,"next":""}`},
		want{"root", "GET", at + "?after=4", "", 400, "…after must be the value next of an answer"},
		want{"mona", "GET", at, "", 401, "…Access refused."},
	)
	for i, s := range []*peerpb.SelectRequest{{Count: true, After: 4, UpTo: 9}, {Count: true}} {
		if !proto.Equal(w.selected[i], s) {
			t.Errorf("searched for %v, not %v", w.selected[i], s)
		}
	}
}

// TestRedrives: with a rate, or for all, a queue begins a redrive and goes on with it by itself; it is cancelled.
func TestRedrives(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	w.queue("/", "to", false)
	to, _ := w.catalog.View().Queue("/", "to")
	const at = "/api/queues/%2F/q/redrive"
	w.results = []uint64{7, 8, 1, 0}
	w.check(
		want{"root", "POST", at, `{"rate":100,"limit":5000,"reason":"expired","headers":{"a":1},"older_than":9,"to":"to"}`, 200, `{"number":7}`},
		want{"root", "POST", at, `{"all":true}`, 200, `{"number":8}`},
		want{"root", "DELETE", at, "", 200, `{"changed":true}`},
		want{"root", "DELETE", at, "", 200, `{"changed":false}`},
	)
	for i, c := range []*logpb.Redrive{
		{By: "root", Rate: 100, Limit: 5000, Target: uint64(to.ID), To: "to"}, {By: "root"}, {Cancels: true, Why: "cancelled by root"}, {Cancels: true, Why: "cancelled by root"},
	} {
		var s peerpb.SelectRequest
		if err := proto.Unmarshal(w.commands[i].Redrive.Conditions, &s); err != nil {
			t.Fatal(err)
		}
		asked := &peerpb.SelectRequest{}
		if i == 0 {
			asked = &peerpb.SelectRequest{Reason: "expired", Headers: map[string]string{"a": "1"}, OlderThan: 9}
		}
		if w.commands[i].Redrive.Conditions = nil; !proto.Equal(w.commands[i].Redrive, c) || !proto.Equal(&s, asked) {
			t.Errorf("%d: %v of %v, not %v of %v", i, w.commands[i].Redrive, &s, c, asked)
		}
	}
	w.commands = nil
	const paced = "rate must be a whole number from 1 to 10000, and limit one from 1"
	for body, reason := range map[string]string{
		`{"rate":0}`: paced, `{"rate":10001}`: paced, `{"rate":1.5}`: paced, `{"rate":1,"limit":0}`: paced, `{"all":false}`: "all must be true",
		`{"all":true,"messages":[1]}`: "messages cannot be given with rate or all", `{"all":true,"after":"2-9"}`: "after cannot be given with rate or all",
		`{"all":true,"message_id":"` + strings.Repeat("x", 5000) + `"}`: "the conditions take more than 4096 bytes",
	} {
		w.check(want{"root", "POST", at, body, 400, fmt.Sprintf(`{"error":"bad_request","reason":%q}`, reason)})
	}
	w.check(
		want{"root", "POST", at, `{"all":true,"header":1}`, 400, "…header is no condition"},
		want{"root", "POST", "/api/queues/%2F/q/messages/move", `{"rate":1,"to":"to"}`, 400, "…rate is no condition"},
		want{"mona", "POST", at, `{"all":true}`, 401, "…Access refused."},
		want{"mona", "DELETE", at, "", 401, "…Access refused."},
		want{"root", "DELETE", "/api/queues/%2F/none/redrive", "", 404, `{"error":"not_found","reason":"queue_not_found"}`},
	)
	if len(w.commands) > 0 {
		t.Errorf("%v were sent", w.commands)
	}
}

package session

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/stream/streamtest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// holdings are those of a channel with consumer 1, called c.
type holdings struct {
	first uint64
	list  []fsm.Held
}

func (h *holdings) Consumer(tag string) uint64 {
	if tag == "c" {
		return 1
	}
	return 0
}

func (h *holdings) index(tag uint64) int {
	return slices.IndexFunc(h.list, func(d fsm.Held) bool { return d.Tag == tag })
}

func (h *holdings) Find(tag uint64) (fsm.Held, bool) {
	if i := h.index(tag); i >= 0 {
		return h.list[i], true
	}
	return fsm.Held{}, false
}

func (h *holdings) First() uint64 { return h.first }

func (h *holdings) UpTo(last uint64) []fsm.Held { return h.list[:h.index(last)+1] }

func (h *holdings) Of(consumer uint64) (list []fsm.Held) {
	for _, d := range h.list {
		if d.Consumer == consumer {
			list = append(list, d)
		}
	}
	return list
}

func (h *holdings) Take(tag uint64) (fsm.Held, bool) {
	d, ok := h.Find(tag)
	if ok {
		h.list = slices.Delete(h.list, h.index(tag), h.index(tag)+1)
	}
	return d, ok
}

// header makes a header of a command from a Go value.
func header(name string, v any) *logpb.Field {
	value := &logpb.Value{Tag: 'S'}
	switch v := v.(type) {
	case string:
		value.Str = []byte(v)
	case int:
		value = &logpb.Value{Tag: 'l', Int: int64(v)}
	case bool:
		value.Tag = 't'
		if v {
			value.Int = 1
		}
	case []any:
		value.Tag = 'A'
		for _, e := range v {
			value.Array = append(value.Array, header("", e).Value)
		}
	}
	return &logpb.Field{Name: name, Value: value}
}

// commander publishes commands on a channel that holds deliveries 11, 12 and 13
// of consumer 1 with tags 1 to 3, and one of a get with tag 4.
type commander struct {
	*world
	recorder *recorder
	session  *Session
	stream   *stream.Stream
	holdings *holdings
	number   uint64
	answered uint64 // the last command of the stream that was answered
}

func newCommander(t grouptest.Fatal) *commander {
	x := &commander{}
	x.world, x.recorder, x.session, x.stream = mustStream(t)
	addConsumer(x.session, x.stream, 1, false)
	x.session.known[1].Unsettled = 3
	x.holdings = &holdings{first: 1, list: []fsm.Held{{Tag: 1, Consumer: 1, ID: 11}, {Tag: 2, Consumer: 1, ID: 12}, {Tag: 3, Consumer: 1, ID: 13}, {Tag: 4, Consumer: getToken | 1, ID: 7, Get: true}}}
	return x
}

// publish publishes a command and returns what its queue is sent.
func (x *commander) publish(verb string, properties map[string]string, headers ...any) (sent []string) {
	table := &fsm.Table{}
	for i := 0; i < len(headers); i += 2 {
		table.Fields = append(table.Fields, header(headers[i].(string), headers[i+1]))
	}
	x.number++
	routed, err := x.session.Publish(&fsm.Publish{
		Number: x.number, Exchange: catalog.CommandExchange, RoutingKey: verb, Payload: grouptest.Payload(""), Mandatory: true,
		Headers: func() *fsm.Table { return table }, Holdings: x.holdings,
		Property: func(name string) []byte { return []byte(properties[name]) },
	})
	if !routed || err != nil {
		x.t.Fatalf("%s: %v, %v", verb, routed, err)
	}
	for _, b := range streamtest.Take(x.stream) {
		for _, c := range grouptest.Commands(x.t, b) {
			c.Session, c.Seq, c.OpenedAt = nil, 0, 0
			sent = append(sent, describe(c))
		}
	}
	return sent
}

func describe(c *logpb.Command) string {
	switch {
	case c.Renew != nil:
		return fmt.Sprint("renew ", c.Renew.Consumer, c.Renew.Ranges, c.Renew.Duration)
	case c.Settle != nil:
		s := c.Settle
		return strings.TrimRight(fmt.Sprint(s.Outcome, " ", s.Consumer, s.Ranges, s.DelayPlusOne, s.Strict, " ", s.Deferral, s.Reason, s.Description), " ")
	case c.ReceiveDeferred != nil:
		return fmt.Sprint("receive ", c.ReceiveDeferred.Consumer, c.ReceiveDeferred.Tokens)
	}
	return c.Kind.String()
}

// answer answers the oldest commands that wait.
func (x *commander) answer(results ...fsm.Result) {
	for _, r := range results {
		x.answered++
		o := grouptest.Code(x.answered, r.Code)
		o.Result = r
		streamtest.Tell(x.stream, o)
	}
}

// expect checks what the client has been told since the last call.
func (x *commander) expect(want ...string) {
	x.t.Helper()
	x.recorder.mu.Lock()
	defer x.recorder.mu.Unlock()
	if !slices.Equal(x.recorder.log, want) {
		x.t.Errorf("the client was told %q, want %q", x.recorder.log, want)
	}
	x.recorder.log = nil
}

// What the verbs about deliveries send to the queue, and what makes them fail
// before.
func TestCommandVerbs(t *testing.T) {
	for _, c := range []struct {
		verb    string
		headers []any
		sent    string // or what the command is refused with
	}{
		{"lock.renew", []any{"x-delivery-tag", 2}, "renew 1 [12 1] 0"},
		{"lock.renew", []any{"x-delivery-tag", 4, "x-lock-duration", 5000}, "renew 0 [7 1] 5000"},
		{"lock.renew", []any{"x-delivery-tags", []any{1, 3}}, "renew 1 [11 1] 0; renew 1 [13 1] 0"},
		{"lock.renew", []any{"x-delivery-tag", 2, "x-multiple", true}, "renew 1 [11 2] 0"},
		{"lock.renew", []any{"x-delivery-tag", 4, "x-multiple", true}, "renew 1 [11 3] 0; renew 0 [7 1] 0"},
		{"lock.renew", []any{"x-consumer-tag", "c"}, "renew 1 [11 3] 0"},
		{"lock.renew", []any{"x-consumer-tag", "d"}, "no consumer 'd' on this channel"},
		{"lock.renew", []any{"x-delivery-tag", 9}, "unknown delivery tag 9"},
		{"lock.renew", []any{"x-delivery-tag", 0}, "invalid delivery tag 0"},
		{"lock.renew", []any{"x-delivery-tag", "1"}, "invalid header 'x-delivery-tag': a value of type 'longstr'"},
		{"lock.renew", []any{"x-delivery-tag", 1, "x-lock-duration", 10}, "invalid header 'x-lock-duration': 10 is not between 1000 and 43200000"},
		{"lock.renew", []any{"x-delivery-tag", 1, "x-delivery-tags", []any{2}}, "a command must have either x-delivery-tag or x-delivery-tags"},
		{"lock.renew", []any{"x-delivery-tags", []any{}}, "invalid header 'x-delivery-tags': 0 values are not between 1 and 256"},
		{"lock.renew", nil, "lock.renew requires one of x-delivery-tag, x-delivery-tags, x-consumer-tag, x-lock-token and x-lock-tokens"},
		{"lock.renew", []any{"x-multiple", true, "x-consumer-tag", "c"}, "x-multiple requires x-delivery-tag"},
		{"message.settle", []any{"x-delivery-tag", 2, "x-outcome", "ack"}, "ACK 1 [12 1] 0 true"},
		{"message.settle", []any{"x-delivery-tag", 4, "x-outcome", "requeue"}, "REQUEUE 0 [7 1] 0 true"},
		{"message.settle", []any{"x-delivery-tag", 1, "x-outcome", "dead-letter", "x-reason", "r", "x-description", "d"}, "DISCARD 1 [11 1] 0 true rd"},
		{"message.settle", []any{"x-delivery-tag", 1, "x-outcome", "reject"}, "DISCARD 1 [11 1] 0 true"},
		{"message.settle", []any{"x-delivery-tag", 1, "x-outcome", "nack"}, "invalid x-outcome 'nack': it must be ack, requeue, reject or dead-letter"},
		{"message.settle", []any{"x-outcome", "ack"}, "a command about messages requires one of x-delivery-tag, x-delivery-tags, x-lock-token and x-lock-tokens"},
		{"message.settle", []any{"x-delivery-tag", 1, "x-outcome", "ack", "x-reason", strings.Repeat("r", 256)}, "invalid header 'x-reason': 256 bytes exceed the limit of 255"},
		{"message.retry", []any{"x-delivery-tag", 1, "x-delay", 500}, "REQUEUE_FAILED 1 [11 1] 501 true"},
		{"message.retry", []any{"x-delivery-tag", 1, "x-delay", 500, "x-delivery-failed", false}, "REQUEUE 1 [11 1] 501 true"},
		{"message.retry", []any{"x-delivery-tag", 1, "x-opt-delivery-time", 1000}, "REQUEUE_FAILED 1 [11 1] 0 true"},
		{"message.retry", []any{"x-delivery-tag", 1, "x-opt-delivery-time", 1 << 50}, "invalid x-opt-delivery-time '1125899906842624': it must be at most 315360000000 ms from now"},
		{"message.retry", []any{"x-delivery-tag", 1}, "message.retry requires either x-delay or x-opt-delivery-time"},
		{"message.defer", []any{"x-delivery-tag", 1, "x-deferral-token", "t"}, "DEFER 1 [11 1] 0 true t"},
		{"message.defer", []any{"x-delivery-tag", 1}, "message.defer requires x-deferral-token"},
		{"message.defer", []any{"x-delivery-tags", []any{1, 2}, "x-deferral-token", "t"}, "message.defer takes a single message, as each has its own token"},
		{"message.receive-deferred", []any{"x-queue", "q", "x-consumer-tag", "c", "x-deferral-tokens", []any{"a", "b"}}, "receive 1 [a]; receive 1 [b]"},
		{"message.receive-deferred", []any{"x-queue", "q", "x-consumer-tag", "d", "x-deferral-token", "a"}, "no consumer 'd' of queue 'q' in vhost '/' on this channel"},
		{"message.receive-deferred", []any{"x-queue", "p", "x-consumer-tag", "c", "x-deferral-token", "a"}, "no queue 'p' in vhost '/'"},
		{"message.delete", []any{"x-queue", "q"}, "a command that takes messages requires x-queue and x-message, x-messages, x-limit or a condition"},
		{"message.delete", []any{"x-queue", "q", "x-limit", 1001}, "invalid header 'x-limit': 1001 is not between 1 and 1000"},
		{"message.delete", []any{"x-queue", "q", "x-reason", 7}, "invalid header 'x-reason' of type 'long'"},
		{"message.delete", []any{"x-queue", "q", "x-match", "a=b"}, "invalid header 'x-match' of type 'longstr'"},
		{"message.move", []any{"x-queue", "q", "x-source", "s"}, "what is moved or copied requires x-target-queue, and what is deleted has none"},
		{"no.verb", nil, "<nil>"},
	} {
		x := newCommander(t)
		x.t = t
		sent := strings.Join(x.publish(c.verb, nil, c.headers...), "; ")
		if sent == "" {
			x.expect("refused "+c.sent, "settled")
			if len(x.holdings.list) != 4 || x.recorder.refused != 1 || x.sessions.RefusedCommands() != 1 {
				t.Errorf("%s %v: %v, refused %d", c.verb, c.headers, x.holdings.list, x.recorder.refused)
			}
		} else if sent != c.sent {
			t.Errorf("%s %v: %s", c.verb, c.headers, sent)
		}
	}
}

// Where delivery tags begin with 0 that one is like any other, in answers, too.
func TestCommandOnTagZero(t *testing.T) {
	x := newCommander(t)
	x.holdings.first, x.holdings.list[0].Tag = 0, 0
	replies := streamTo(x.session, x.MustQueue("replies"))
	if sent := x.publish("lock.renew", map[string]string{"reply_to": "replies"}, "x-delivery-tag", 0); !slices.Equal(sent, []string{"renew 1 [11 1] 0"}) {
		t.Fatalf("sent %q", sent)
	}
	x.answer(fsm.Result{Count: 1})
	x.expect("settled")
	got := streamtest.Take(replies)
	const want = `{"ok":true,"results":[{"delivery_tag":0,"ok":true,"count":1}]}`
	if len(got) != 1 || len(got[0].Payloads) != 1 {
		t.Fatalf("replied %v", got)
	}
	if body := string(fsm.Payload(got[0].Payloads[0]).Body()); body != want {
		t.Errorf("replied %s", body)
	}
}

// A command that settles takes its tags at once. Those that it has not settled are
// back before its answer.
func TestCommandSettles(t *testing.T) {
	x := newCommander(t)
	x.publish("message.settle", nil, "x-delivery-tags", []any{1, 2, 9}, "x-outcome", "ack")
	if len(x.holdings.list) != 2 {
		t.Fatalf("the channel holds %v", x.holdings.list)
	}
	x.answer(fsm.Result{})
	x.expect()
	x.answer(fsm.Result{Code: fsm.NotFound})
	x.expect("kept [{2 1 12 false}]", "refused no lock on delivery 2", "settled")
	if n := x.session.known[1].Unsettled; n != 2 {
		t.Errorf("%d deliveries are unsettled", n)
	}
	x.publish("message.settle", nil, "x-delivery-tag", 3, "x-outcome", "ack")
	x.answer(fsm.Result{})
	x.expect("settled")
	if n := x.session.known[1].Unsettled; n != 1 || x.recorder.refused != 1 || x.session.exchange.underWay != 0 {
		t.Errorf("%d deliveries are unsettled, %d commands refused, %d under way", n, x.recorder.refused, x.session.exchange.underWay)
	}
}

// An answer has the outcome of each part, and goes to the queue that is to have it.
func TestCommandReply(t *testing.T) {
	x := newCommander(t)
	replies := streamTo(x.session, x.MustQueue("replies"))
	x.publish("lock.renew", map[string]string{"reply_to": "replies"}, "x-delivery-tags", []any{1, 2, 9})
	x.answer(fsm.Result{Count: 1, Until: 5}, fsm.Result{Code: fsm.NotFound})
	x.expect("refused no lock on delivery 2", "settled")
	got := streamtest.Take(replies)
	if len(got) != 1 || len(got[0].Payloads) != 1 {
		t.Fatalf("replied %v", got)
	}
	const want = `{"ok":false,"results":[{"delivery_tag":1,"ok":true,"count":1,"locked_until":5,"remaining_ms":0},` +
		`{"delivery_tag":2,"ok":false},{"delivery_tag":9,"ok":false}]}`
	if body := string(fsm.Payload(got[0].Payloads[0]).Body()); body != want {
		t.Errorf("replied %s", body)
	}
}

// Of a consumer with x-late-settle: error each delivery is settled strictly, and one
// that it does not hold any more ends the channel.
func TestLateSettle(t *testing.T) {
	x := newCommander(t)
	x.session.known[1].strict = true
	x.session.Settle(1, []uint64{11, 12}, fsm.Ack)
	var sent []string
	for _, b := range streamtest.Take(x.stream) {
		for _, c := range grouptest.Commands(t, b) {
			sent = append(sent, describe(c))
		}
	}
	if want := []string{"ACK 1 [11 1] 0 true", "ACK 1 [12 1] 0 true"}; !slices.Equal(sent, want) {
		t.Errorf("sent %q", sent)
	}
	x.answer(fsm.Result{Count: 1})
	x.expect()
	x.answer(fsm.Result{Code: fsm.NotFound})
	x.expect("lost")
	if !isKind(x.recorder.lost[0], fsm.Precondition) {
		t.Errorf("the channel ends with %v", x.recorder.lost[0])
	}
}

// A lock token names the delivery of any session at a queue that the user may read.
func TestCommandTokens(t *testing.T) {
	x := newCommander(t)
	x.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutLockKey{PutLockKey: &logpb.PutLockKey{Secret: make([]byte, catalog.LockSecretSize)}}})
	q, _ := x.View().Queue("/", "q")
	holder := fsm.ConsumerID{Session: fsm.SessionID{Node: 9, Boot: 8, Num: 7}, Number: 6}
	token := lockToken{queue: q.ID, of: holder, delivery: 5}.text(x.View().LockSecret())
	for _, c := range []struct {
		headers []any
		want    string
	}{
		{[]any{"x-lock-token", token, "x-queue", "q"}, "renew 6 [5 1] 0"},
		{[]any{"x-lock-token", token}, "renew 6 [5 1] 0"},
		{[]any{"x-lock-token", token + "A"}, "refused no lock with this token"},
		{[]any{"x-lock-token", token, "x-queue", "p"}, "refused no queue 'p' in vhost '/'"},
		{[]any{"x-lock-token", token, "x-delivery-tag", 1}, "refused a command may name deliveries by tags or by lock tokens, not both"},
	} {
		x.recorder.log = nil
		got := strings.Join(x.publish("lock.renew", nil, c.headers...), "; ")
		if got == "" {
			got = x.recorder.log[0]
		}
		if got != c.want {
			t.Errorf("%v: %s", c.headers, got)
		}
	}
	x.permit("guest", nil, "", "", "")
	x.recorder.log = nil
	x.publish("message.settle", nil, "x-lock-token", token, "x-outcome", "ack")
	x.expect("refused read access to queue 'q' in vhost '/' refused for user 'guest'", "settled")
}

// TestRenewWithoutRight: who may not read a queue any more may give up what it has from
// there, and not keep it longer, by whatever name.
func TestRenewWithoutRight(t *testing.T) {
	for _, headers := range [][]any{
		{"x-delivery-tag", 2}, {"x-delivery-tags", []any{1, 3}}, {"x-delivery-tag", 2, "x-multiple", true}, {"x-consumer-tag", "c"}, {"x-delivery-tag", 4},
	} {
		x := newCommander(t)
		x.permit("guest", nil, "", "", "^other$")
		if sent := x.publish("lock.renew", nil, headers...); len(sent) != 0 {
			t.Errorf("%v: the queue is sent %q", headers, sent)
		}
		x.expect("refused read access to queue 'q' in vhost '/' refused for user 'guest'", "settled")
		if sent := x.publish("message.settle", nil, "x-delivery-tag", 2, "x-outcome", "ack"); len(sent) != 1 {
			t.Errorf("settled: %q", sent)
		}
	}
}

// TestCommandsOfNoChannel: a command that did not come by a channel finds nothing that one
// holds.
func TestCommandsOfNoChannel(t *testing.T) {
	x := newCommander(t)
	all := &fsm.Table{Fields: []*logpb.Field{
		header("x-delivery-tag", 1), header("x-outcome", "ack"), header("x-deferral-token", "t"), header("x-delay", 1),
		header("x-queue", "q"), header("x-group", "g"), header("x-consumer-tag", "c"),
	}}
	for verb := range commandVerbs {
		for _, without := range []string{"", "x-delivery-tag", "x-consumer-tag"} {
			headers := &fsm.Table{Fields: slices.DeleteFunc(slices.Clone(all.Fields), func(f *logpb.Field) bool { return f.Name == without })}
			_, err := x.sessions.PublishOne(t.Context(), "guest", "/", &fsm.Publish{
				Exchange: catalog.CommandExchange, RoutingKey: verb, Payload: grouptest.Payload(""), TTL: -1, Priority: -1,
				Headers: func() *fsm.Table { return headers }, Property: func(string) []byte { return nil },
			})
			if err == nil {
				t.Errorf("%s without %q has taken effect", verb, without)
			}
		}
	}
}

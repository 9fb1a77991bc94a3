package mgmt

import (
	"context"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

func (w *world) message(body string) Message {
	return Message{
		Message:    fsm.Message{Payload: append(fsm.AppendPayloadHead(nil, "x", "k", nil), body...), Ready: 2},
		Properties: &fsm.Table{Fields: []*logpb.Field{{Name: "priority", Value: &logpb.Value{Tag: 'l', Int: 3}}}},
		Number:     7, Place: queue.Returned,
	}
}

func (w *world) Take(_ context.Context, _, _, _ string, count int, outcome fsm.Outcome) ([]Message, error) {
	if outcome == fsm.Discard {
		return nil, fsm.Refuse(fsm.AccessRefused, "no")
	}
	return []Message{w.message("héllo"), w.message("\xff\x00")}[:count], nil
}

func (w *world) Peek(context.Context, *catalog.Queue, queue.Place, uint64, int) ([]Message, bool, error) {
	return []Message{w.message("m")}, true, nil
}

func TestMessages(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	get, peek := "/api/queues/%2F/q/get", "/api/queues/%2F/q/messages/peek"
	noQueue := `{"error":"not_found","reason":"queue_not_found"}`
	bad := func(reason string) string { return `{"error":"bad_request","reason":"` + reason + `"}` }
	first := `{"payload_bytes":6,"redelivered":false,"exchange":"x","routing_key":"k","message_count":2,"properties":{"priority":3},`
	w.check(
		want{"root", "POST", get, `{"count":"1","ackmode":"ack_requeue_true","encoding":"auto"}`, 200, `[` + first + `"payload":"héllo","payload_encoding":"string"}]`},
		want{"root", "POST", get, `{"count":1,"ackmode":"ack_requeue_false","encoding":"base64"}`, 200, `[` + first + `"payload":"aMOpbGxv","payload_encoding":"base64"}]`},
		want{"root", "POST", get, `{"count":1,"ackmode":"ack_requeue_true","encoding":"auto","truncate":1}`, 200, `[` + first + `"payload":"h","payload_encoding":"string"}]`},
		want{"root", "POST", get, `{"count":2,"ackmode":"reject_requeue_true","encoding":"auto"}`, 200, `…"payload":"/wA=","payload_encoding":"base64"`},
		want{"root", "POST", get, `{"count":0,"ackmode":"ack_requeue_true","encoding":"auto"}`, 200, `[]`},
		want{"root", "POST", get, `{}`, 400, bad("[{key_missing,count},{key_missing,ackmode},{key_missing,encoding}]")},
		want{"root", "POST", get, `{"count":-1,"ackmode":"ack_requeue_true","encoding":"auto"}`, 400, bad("count is a whole number from 0")},
		want{"root", "POST", get, `{"count":1,"ackmode":"ack","encoding":"auto"}`, 400, "…ackmode is one of"},
		want{"root", "POST", get, `{"count":1,"ackmode":"ack_requeue_true","encoding":"hex"}`, 400, bad("unsupported encoding: hex")},
		want{"root", "POST", get, `{"count":1,"ackmode":"reject_requeue_false","encoding":"auto"}`, 401, "…Access refused."},
		want{"root", "POST", "/api/queues/%2F/none/get", `{"count":1,"ackmode":"ack_requeue_true","encoding":"auto"}`, 404, noQueue},
		want{"root", "GET", peek, "", 200, `{"items":[{"number":7,"state":"ready","acquired_count":0,"delivery_count":0,"payload_bytes":1,"redelivered":false,"exchange":"x","routing_key":"k",` +
			`"message_count":2,"properties":{"priority":3},"payload":"m","payload_encoding":"string"}],"next":7}`},
		want{"mona", "GET", peek, "", 401, "…Access refused."}, // sees the queue, and may not read it
		want{"root", "GET", peek + "?state=dead", "", 400, bad("state is one of ready, unacked, scheduled, delayed")},
		want{"root", "GET", peek + "?after=x", "", 400, bad("after is the number of a message")},
		want{"root", "GET", peek + "?limit=1001", "", 400, bad("limit is a whole number from 1 to 1000")},
		want{"root", "GET", peek + "?truncate=-1", "", 400, bad("truncate is a whole number from 0")},
		want{"root", "GET", "/api/queues/%2F/none/messages/peek", "", 404, noQueue},
		want{"maggie", "GET", "/api/queues/hidden/q/messages/peek", "", 404, notThere},
	)
}

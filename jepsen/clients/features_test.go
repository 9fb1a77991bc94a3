package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
)

var (
	rabbitHTTP     = flag.String("clients.rabbitmq-http", "", "`URL` with user and password of the HTTP API of the RabbitMQ of -clients.rabbitmq-uri")
	rewriteFeature = flag.Bool("clients.rewrite", false, "TestFeaturesPage writes the table of docs/migration.md")
)

// nodeTimeout is the consumer timeout of nodes: of RabbitMQ, too, `consumer_timeout = 1000`.
const nodeTimeout = time.Second

// feature is a row of RabbitMQ's table of what classic and quorum queues do, played by one script.
type feature struct {
	name string // the part of TestFeatures, too
	what string
	// play returns what is seen of a queue of the type of f.
	play func(f *features) string
	// classic and quorum are what is seen here. An untyped queue does as a classic one.
	classic, quorum string
	// peerClassic and peerQuorum are what is seen of RabbitMQ 4.3.6; empty: the same.
	peerClassic, peerQuorum string
}

// features plays one row with one type at one broker.
type features struct {
	t    *testing.T
	conn *amqp.Connection
	http string // base URL
	name string // prefix of what the row declares
	kind string // classic, quorum, or empty: none is named
}

func (f *features) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *features) open() *amqp.Channel {
	f.t.Helper()
	ch, err := f.conn.Channel()
	f.must(err)
	return ch
}

// arguments are those of a queue of the row's type.
func (f *features) arguments(pairs ...any) amqp.Table {
	table := amqp.Table{}
	if f.kind != "" {
		table["x-queue-type"] = f.kind
	}
	for i := 0; i < len(pairs); i += 2 {
		table[pairs[i].(string)] = pairs[i+1]
	}
	return table
}

// try declares a queue, and returns "taken", or the code of the refusal.
func (f *features) try(durable, autoDelete, exclusive bool, pairs ...any) string {
	f.t.Helper()
	ch := f.open()
	_, err := ch.QueueDeclare(f.name, durable, autoDelete, exclusive, false, f.arguments(pairs...))
	if code := codeOf(err); code != "" {
		return code
	}
	f.must(err)
	_, err = ch.QueueDelete(f.name, false, false, false)
	f.must(err)
	f.must(ch.Close())
	return "taken"
}

// codeOf is the reply code of an error, in words; empty: it has none.
func codeOf(err error) string {
	var refused *amqp.Error
	if errors.As(err, &refused) {
		return fmt.Sprintf("refused (%d)", refused.Code)
	}
	return ""
}

// declare makes the queue, which ends with the row, on a channel that confirms. A queue that is
// refused is reported.
func (f *features) declare(pairs ...any) (ch *amqp.Channel, refused string) {
	f.t.Helper()
	ch = f.open()
	f.must(ch.Confirm(false))
	_, err := ch.QueueDeclare(f.name, true, false, false, false, f.arguments(pairs...))
	if refused = codeOf(err); refused == "" {
		f.must(err)
		f.remove(f.name)
	}
	return ch, refused
}

// remove deletes a queue when the row ends, by HTTP: a refusal may have closed the connection.
func (f *features) remove(queue string) { f.atEnd("/api/queues/%2F/" + queue) }

func (f *features) atEnd(path string) {
	f.t.Cleanup(func() {
		r, err := http.NewRequest("DELETE", f.http+path, nil)
		if err == nil {
			var answer *http.Response
			if answer, err = http.DefaultClient.Do(r); err == nil {
				err = answer.Body.Close()
			}
		}
		if err != nil {
			f.t.Error(err)
		}
	})
}

// dead declares a queue that dead letters of the row's queue may go to, and returns the arguments
// that lead there.
func (f *features) dead() []any {
	f.t.Helper()
	ch := f.open()
	_, err := ch.QueueDeclare(f.name+".dead", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	f.must(err)
	f.remove(f.name + ".dead")
	return []any{"x-dead-letter-exchange", "", "x-dead-letter-routing-key", f.name + ".dead"}
}

// send publishes a message, and returns whether it was confirmed.
func (f *features) send(ch *amqp.Channel, body string, of ...func(*amqp.Publishing)) bool {
	f.t.Helper()
	p := amqp.Publishing{Body: []byte(body), DeliveryMode: amqp.Persistent}
	for _, set := range of {
		set(&p)
	}
	d, err := ch.PublishWithDeferredConfirmWithContext(f.t.Context(), "", f.name, false, false, p)
	f.must(err)
	acked, err := d.WaitContext(f.t.Context())
	f.must(err)
	return acked
}

func priority(n uint8) func(*amqp.Publishing) { return func(p *amqp.Publishing) { p.Priority = n } }

// sendAll publishes a message for each body.
func (f *features) sendAll(ch *amqp.Channel, bodies ...string) {
	f.t.Helper()
	for _, b := range bodies {
		f.send(ch, b)
	}
}

// get takes a message, and waits a while for one that is on its way back; nil: there is none.
func (f *features) get(ch *amqp.Channel) *amqp.Delivery {
	f.t.Helper()
	for until := time.Now().Add(2 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		d, ok, err := ch.Get(f.name, false)
		f.must(err)
		if ok {
			return &d
		}
		if time.Now().After(until) {
			return nil
		}
	}
}

// take gets and acknowledges n messages, and returns their bodies.
func (f *features) take(ch *amqp.Channel, n int) string {
	f.t.Helper()
	var list []string
	for range n {
		d := f.get(ch)
		if d == nil {
			break
		}
		f.must(d.Ack(false))
		list = append(list, string(d.Body))
	}
	return strings.Join(list, " ")
}

// ready waits until so many messages are ready in a queue, or something else for a while, and says how many.
func (f *features) ready(queue string, n int) int {
	f.t.Helper()
	ch := f.open()
	defer ch.Close()
	for until := time.Now().Add(2 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		f.must(err)
		if q.Messages == n || time.Now().After(until) {
			return q.Messages
		}
	}
}

// rejected gets a message and gives it back n times, with reject or by the end of the channel, and
// says what has become of it.
func (f *features) rejected(n int, byChannel bool, pairs ...any) string {
	f.t.Helper()
	ch, refused := f.declare(pairs...)
	if refused != "" {
		return refused
	}
	f.send(ch, "m")
	for i := range n {
		d := f.get(ch)
		if d == nil {
			return fmt.Sprintf("gone after %d deliveries", i)
		}
		if byChannel {
			f.must(ch.Close())
			ch = f.open()
		} else {
			f.must(d.Reject(true))
		}
	}
	if f.get(ch) == nil {
		return fmt.Sprintf("gone after %d deliveries", n)
	}
	return "stays"
}

// call makes a request of the HTTP API, and returns the status.
func (f *features) call(method, path string, body, into any) int {
	f.t.Helper()
	raw, err := json.Marshal(body)
	f.must(err)
	r, err := http.NewRequestWithContext(f.t.Context(), method, f.http+path, bytes.NewReader(raw))
	f.must(err)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	f.must(err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	f.must(err)
	if into != nil && answer.StatusCode < 300 {
		f.must(json.Unmarshal(text, into))
	}
	return answer.StatusCode
}

// policy puts a policy for the row's queue, which ends with the row, and returns the status.
func (f *features) policy(applyTo string, definition map[string]any) (status int) {
	f.t.Helper()
	path := "/api/policies/%2F/" + url.PathEscape(f.name)
	status = f.call("PUT", path, map[string]any{"pattern": "^" + strings.ReplaceAll(f.name, ".", "\\.") + "$", "apply-to": applyTo, "definition": definition}, nil)
	f.atEnd(path)
	return status
}

// limited says what a policy with max-length 3 leaves of ten messages.
func (f *features) limited(applyTo string, more map[string]any) string {
	f.t.Helper()
	definition := map[string]any{"max-length": 3}
	for key, value := range more {
		definition[key] = value
	}
	if status := f.policy(applyTo, definition); status >= 300 {
		return fmt.Sprintf("policy refused (%d)", status)
	}
	ch, refused := f.declare()
	if refused != "" {
		return refused
	}
	f.sendAll(ch, strings.Split("0123456789", "")...)
	if n := f.ready(f.name, 3); n != 3 {
		return "does not apply"
	}
	return "applies"
}

// order publishes messages with priorities, 0 for none, and returns the order in which they come.
func (f *features) order(priorities []uint8, pairs ...any) string {
	f.t.Helper()
	ch, refused := f.declare(pairs...)
	if refused != "" {
		return refused
	}
	for _, p := range priorities {
		f.send(ch, fmt.Sprint(p), priority(p))
	}
	return f.take(ch, len(priorities))
}

var featureTable = []feature{
	{name: "type", what: "`type` in the HTTP API", classic: "classic", quorum: "quorum", play: func(f *features) string {
		f.declare()
		var q struct{ Type string }
		f.call("GET", "/api/queues/%2F/"+f.name, nil, &q)
		return q.Type
	}},
	{name: "not durable", what: "a queue that is neither durable nor exclusive", classic: "taken", quorum: "taken", peerClassic: "taken", peerQuorum: "refused (406)", play: func(f *features) string {
		return f.try(false, false, false)
	}},
	{name: "exclusive", what: "an exclusive queue", classic: "taken", quorum: "taken", peerQuorum: "refused (406)", play: func(f *features) string {
		return f.try(false, false, true)
	}},
	{name: "auto-delete", what: "a durable queue that is deleted with its last consumer", classic: "taken", quorum: "taken", peerQuorum: "refused (406)", play: func(f *features) string {
		return f.try(true, true, false)
	}},
	{name: "expires", what: "`x-expires`: an unused queue", classic: "deleted", quorum: "deleted", play: func(f *features) string {
		ch := f.open()
		_, err := ch.QueueDeclare(f.name, true, false, false, false, f.arguments("x-expires", int32(300)))
		f.must(err)
		for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) { // the peer's quorum queues look every 5 s
			if f.call("GET", "/api/queues/%2F/"+f.name, nil, nil) == 404 {
				return "deleted"
			}
		}
		return "stays"
	}},
	{name: "message TTL", what: "`x-message-ttl`: a message past it", classic: "dead letter", quorum: "dead letter", play: func(f *features) string {
		ch, _ := f.declare(append(f.dead(), "x-message-ttl", int32(200))...)
		f.send(ch, "m")
		if f.ready(f.name+".dead", 1) == 1 {
			return "dead letter"
		}
		return "stays"
	}},
	{name: "TTL behind others", what: "`expiration`: behind a message without one", classic: "dead letter", quorum: "dead letter", peerClassic: "waits until it is first", peerQuorum: "waits until it is first", play: func(f *features) string {
		ch, _ := f.declare(f.dead()...)
		f.send(ch, "first")
		f.send(ch, "second", func(p *amqp.Publishing) { p.Expiration = "200" })
		if f.ready(f.name+".dead", 1) == 1 {
			return "dead letter"
		}
		return "waits until it is first"
	}},
	{name: "max-length", what: "`x-max-length` 3, ten messages", classic: "7 8 9", quorum: "7 8 9", play: func(f *features) string {
		ch, _ := f.declare("x-max-length", int32(3))
		f.sendAll(ch, strings.Split("0123456789", "")...)
		f.ready(f.name, 3)
		return f.take(ch, 10)
	}},
	{name: "reject-publish", what: "`x-overflow: reject-publish`: what is too much", classic: "nacked", quorum: "nacked", play: func(f *features) string {
		ch, _ := f.declare("x-max-length", int32(1), "x-overflow", "reject-publish")
		for range 20 { // the peer's quorum queues stop it some messages late
			if !f.send(ch, "m") {
				return "nacked"
			}
		}
		return "taken"
	}},
	{name: "reject-publish-dlx", what: "`x-overflow: reject-publish-dlx`: what is too much", classic: "nacked, and a dead letter", quorum: "nacked, and a dead letter", peerQuorum: "drops the oldest", play: func(f *features) string {
		ch, _ := f.declare(append(f.dead(), "x-max-length", int32(1), "x-overflow", "reject-publish-dlx")...)
		acked := f.send(ch, "0") && f.send(ch, "1")
		if !acked && f.ready(f.name+".dead", 1) == 1 {
			return "nacked, and a dead letter"
		}
		return "drops the oldest"
	}},
	{name: "lazy", what: "`x-queue-mode: lazy`", classic: "taken", quorum: "refused (406)", play: func(f *features) string {
		return f.try(true, false, false, "x-queue-mode", "lazy")
	}},
	{name: "no priorities", what: "published with the priorities 1 5 2 9, without `x-max-priority`", classic: "1 5 2 9", quorum: "9 5 2 1", play: func(f *features) string {
		return f.order([]uint8{1, 5, 2, 9})
	}},
	{name: "priorities", what: "`x-max-priority` 10: none, 3, 9, 12, 1", classic: "12 9 3 1 0", quorum: "refused (406)", play: func(f *features) string {
		return f.order([]uint8{0, 3, 9, 12, 1}, "x-max-priority", int32(10))
	}},
	{name: "no delivery limit", what: "rejected 30 times, no limit set", classic: "stays", quorum: "gone after 21 deliveries", play: func(f *features) string {
		return f.rejected(30, false)
	}},
	{name: "lost channels", what: "held by 30 channels that end, no limit set", classic: "stays", quorum: "gone after 21 deliveries", play: func(f *features) string {
		return f.rejected(30, true)
	}},
	{name: "delivery limit by argument", what: "`x-delivery-limit` 2: rejected 5 times", classic: "gone after 3 deliveries", quorum: "gone after 3 deliveries", peerClassic: "refused (406)", play: func(f *features) string {
		return f.rejected(5, false, "x-delivery-limit", int32(2))
	}},
	{name: "delivery limit by policy", what: "a policy for `queues` with `delivery-limit` 2: rejected 5 times", classic: "gone after 3 deliveries", quorum: "gone after 3 deliveries", peerClassic: "stays", play: func(f *features) string {
		f.policy("queues", map[string]any{"delivery-limit": 2})
		return f.rejected(5, false)
	}},
	{name: "global prefetch", what: "`basic.qos` with `global`, and a consumer", classic: "taken", quorum: "taken", peerQuorum: "refused (540)", play: func(f *features) string {
		ch, _ := f.declare()
		f.must(ch.Qos(1, 0, true))
		_, err := ch.Consume(f.name, "", false, false, false, false, nil)
		if code := codeOf(err); code != "" {
			return code
		}
		return "taken"
	}},
	{name: "get beside a single active consumer", what: "`x-single-active-consumer` and `basic.get`", classic: "the message", quorum: "refused (405)", play: func(f *features) string {
		ch, _ := f.declare("x-single-active-consumer", true)
		f.send(ch, "m")
		_, ok, err := ch.Get(f.name, true)
		if code := codeOf(err); code != "" {
			return code
		}
		if !ok {
			return "nothing"
		}
		return "the message"
	}},
	{name: "dead-letter strategy", what: "`x-dead-letter-strategy: at-least-once`", classic: "taken", quorum: "taken", peerClassic: "refused (406)", play: func(f *features) string {
		return f.try(true, false, false, append(f.dead(), "x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish")...)
	}},
	{name: "consumer timeout", what: "`x-consumer-timeout`", classic: "taken", quorum: "taken", peerClassic: "refused (406)", play: func(f *features) string {
		return f.try(true, false, false, "x-consumer-timeout", int32(60_000))
	}},
	{name: "no consumer timeout", what: "held for longer than the node's `consumer_timeout`", classic: "held", quorum: "goes back", play: func(f *features) string {
		ch, _ := f.declare()
		f.send(ch, "m")
		_, err := ch.Consume(f.name, "", false, false, false, false, nil)
		f.must(err)
		for until := time.Now().Add(6 * nodeTimeout); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
			if f.ready(f.name, 1) == 1 {
				return "goes back"
			}
		}
		return "held"
	}},
	{name: "delayed retry", what: "`x-delayed-retry-type: all`", classic: "taken", quorum: "taken", peerClassic: "refused (406)", play: func(f *features) string {
		return f.try(true, false, false, "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(10))
	}},
	{name: "group size", what: "`x-quorum-initial-group-size`", classic: "taken", quorum: "taken", peerClassic: "refused (406)", play: func(f *features) string {
		return f.try(true, false, false, "x-quorum-initial-group-size", int32(1))
	}},
	{name: "requeue order", what: "1, 2, 3 delivered; 3, then 1 requeued with nack", classic: "1 3", quorum: "3 1", play: func(f *features) string {
		ch, _ := f.declare()
		f.sendAll(ch, "1", "2", "3")
		one, two, three := f.get(ch), f.get(ch), f.get(ch)
		f.must(three.Nack(false, true))
		f.must(one.Nack(false, true))
		f.must(two.Ack(false))
		f.ready(f.name, 2)
		return f.take(ch, 2)
	}},
	{name: "requeue by a channel", what: "1, 2, 3 delivered, 4 ready; the channel ends", classic: "1 2 3 4", quorum: "1 2 3 4", play: func(f *features) string {
		ch, _ := f.declare()
		f.sendAll(ch, "1", "2", "3", "4")
		for range 3 {
			f.get(ch)
		}
		f.must(ch.Close())
		f.ready(f.name, 4)
		return f.take(f.open(), 4)
	}},
	{name: "requeue and priorities", what: "`x-max-priority` 9: priority 1 requeued, 5 ready", classic: "1 5", quorum: "refused (406)", peerClassic: "5 1", play: func(f *features) string {
		ch, refused := f.declare("x-max-priority", int32(9))
		if refused != "" {
			return refused
		}
		f.send(ch, "1", priority(1))
		d := f.get(ch)
		f.send(ch, "5", priority(5))
		f.must(d.Nack(false, true))
		f.ready(f.name, 2)
		return f.take(ch, 2)
	}},
	{name: "priority of dead letters", what: "published with the priorities 0 and 9, dead-lettered to a quorum queue", classic: "9 0", quorum: "9 0", play: func(f *features) string {
		ch, _ := f.declare(append(f.dead(), "x-message-ttl", int32(200))...)
		for _, p := range []uint8{0, 9} {
			f.send(ch, fmt.Sprint(p), priority(p))
		}
		f.ready(f.name+".dead", 2)
		f.name += ".dead"
		return f.take(ch, 2)
	}},
	{name: "count of deliveries", what: "header `x-delivery-count` after a reject", classic: "1", quorum: "1", peerClassic: "none", play: func(f *features) string {
		ch, _ := f.declare()
		f.send(ch, "m")
		f.must(f.get(ch).Reject(true))
		if n, ok := f.get(ch).Headers["x-delivery-count"]; ok {
			return fmt.Sprint(n)
		}
		return "none"
	}},
	{name: "apply-to classic_queues", what: "a policy for `classic_queues`", classic: "applies", quorum: "does not apply", play: func(f *features) string {
		return f.limited("classic_queues", nil)
	}},
	{name: "apply-to quorum_queues", what: "a policy for `quorum_queues`", classic: "does not apply", quorum: "applies", play: func(f *features) string {
		return f.limited("quorum_queues", nil)
	}},
	{name: "apply-to queues", what: "a policy for `queues`", classic: "applies", quorum: "applies", play: func(f *features) string {
		return f.limited("queues", nil)
	}},
	{name: "apply-to all", what: "a policy for `all`", classic: "applies", quorum: "applies", play: func(f *features) string {
		return f.limited("all", nil)
	}},
	{name: "policy with queue-mode", what: "a policy with `queue-mode` beside others", classic: "applies", quorum: "applies", peerQuorum: "does not apply", play: func(f *features) string {
		return f.limited("queues", map[string]any{"queue-mode": "lazy"})
	}},
	{name: "policy with queue-master-locator", what: "a policy with `queue-master-locator` beside others", classic: "applies", quorum: "applies", peerQuorum: "does not apply", play: func(f *features) string {
		return f.limited("queues", map[string]any{"queue-master-locator": "min-masters"})
	}},
	{name: "policy with ha-mode", what: "a policy with `ha-mode` beside others", classic: "applies", quorum: "applies", peerClassic: "policy refused (400)", peerQuorum: "policy refused (400)", play: func(f *features) string {
		return f.limited("queues", map[string]any{"ha-mode": "all"})
	}},
	{name: "policy with max-age", what: "a policy with `max-age` beside others", classic: "applies", quorum: "applies", peerClassic: "does not apply", peerQuorum: "does not apply", play: func(f *features) string {
		return f.limited("queues", map[string]any{"max-age": "1D"})
	}},
	{name: "declared again as classic", what: "declared again as `classic`", classic: "taken", quorum: "taken", peerQuorum: "refused (406)", play: func(f *features) string {
		f.declare()
		_, err := f.open().QueueDeclare(f.name, true, false, false, false, amqp.Table{"x-queue-type": "classic"})
		if code := codeOf(err); code != "" {
			return code
		}
		f.must(err)
		return "taken"
	}},
	{name: "declared again as quorum", what: "declared again as `quorum`", classic: "refused (406)", quorum: "taken", play: func(f *features) string {
		f.declare()
		_, err := f.open().QueueDeclare(f.name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		if code := codeOf(err); code != "" {
			return code
		}
		f.must(err)
		return "taken"
	}},
	{name: "declared again without a type", what: "declared again without a type", classic: "taken", quorum: "taken", peerQuorum: "refused (406)", play: func(f *features) string {
		f.declare()
		_, err := f.open().QueueDeclare(f.name, true, false, false, false, nil)
		if code := codeOf(err); code != "" {
			return code
		}
		f.must(err)
		return "taken"
	}},
}

// expected is what a row must show.
func (r feature) expected(kind string, peer bool) string {
	here, there := r.classic, r.peerClassic
	if kind == "quorum" {
		here, there = r.quorum, r.peerQuorum
	}
	if peer && there != "" {
		return there
	}
	return here
}

// Each declared type has the features of RabbitMQ's type, or another one that the table of
// docs/migration.md names. With -clients.rabbitmq-uri and -clients.rabbitmq-http the same scripts
// run against RabbitMQ and are held to the table's other columns.
func TestFeatures(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	uri, api, peer := *rabbitURI, *rabbitHTTP, true
	if uri == "" || api == "" {
		n := mustStartNodes(t, ctx, 1, fmt.Sprint("--set=consumer_timeout=", nodeTimeout.Milliseconds())).Nodes[0]
		uri, api, peer = n.URI(), "http://guest:guest@"+n.HTTP, false
		awaitVersion(t, ctx, n)
	}
	for i, r := range featureTable {
		for _, kind := range []string{"classic", "", "quorum"} {
			t.Run(r.name+"/"+map[string]string{"": "untyped"}[kind]+kind, func(t *testing.T) {
				conn, err := amqp.Dial(uri)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() }) // a refusal may have closed it
				f := &features{t: t, conn: conn, http: api, name: fmt.Sprintf("features.%d%s", i, kind), kind: kind}
				if have := r.play(f); have != r.expected(kind, peer) {
					t.Errorf("%s: %s, not %s", r.what, have, r.expected(kind, peer))
				}
			})
		}
	}
}

// awaitVersion waits until a node's cluster has the version in which types differ.
func awaitVersion(t *testing.T, ctx context.Context, n *cluster.Node) {
	t.Helper()
	if err := await.Until(ctx, 20*time.Millisecond, "fsm_version 3", func() (bool, error) {
		var v struct {
			Version int `json:"fsm_version"`
		}
		status, body, err := n.Do(ctx, "GET", "/api/quorate/status", nil)
		if err == nil && status == 200 {
			err = json.Unmarshal(body, &v)
		}
		return v.Version >= 3, err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestFeaturesPage holds the table of docs/migration.md to the rows.
func TestFeaturesPage(t *testing.T) {
	const path, begin, end = "../../docs/migration.md", "<!-- features -->\n", "<!-- end of features -->\n"
	var b strings.Builder
	b.WriteString("| | declared `classic`, or without a type | declared `quorum` | RabbitMQ's classic | RabbitMQ's quorum | test |\n|---|---|---|---|---|---|\n")
	for _, r := range featureTable {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", r.what, r.classic, r.quorum, differing(r.classic, r.peerClassic), differing(r.quorum, r.peerQuorum), r.name)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(content), begin)
	have, tail, ended := strings.Cut(rest, end)
	switch {
	case !ok || !ended:
		t.Fatal("no place for the table")
	case have == b.String():
	case *rewriteFeature:
		if err := os.WriteFile(path, []byte(head+begin+b.String()+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Error("the table is not the test's; run it with -clients.rewrite")
	}
}

// differing is the peer's cell.
func differing(here, there string) string {
	if there == "" || there == here {
		return "="
	}
	return there
}

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

// within waits until something holds, for this time at most, and reports whether it does.
func (f *features) within(d time.Duration, holds func() bool) bool {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), d)
	defer cancel()
	return await.Until(ctx, 20*time.Millisecond, f.name, func() (bool, error) { return holds(), nil }) == nil
}

// onItsWay is how long something may take that follows by itself.
const onItsWay = 2 * time.Second

// get takes a message, and waits a while for one that is on its way back; nil: there is none.
func (f *features) get(ch *amqp.Channel) *amqp.Delivery {
	f.t.Helper()
	var d amqp.Delivery
	if !f.within(onItsWay, func() (ok bool) {
		var err error
		d, ok, err = ch.Get(f.name, false)
		f.must(err)
		return ok
	}) {
		return nil
	}
	return &d
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
func (f *features) ready(queue string, n int) (have int) {
	f.t.Helper()
	f.within(onItsWay, func() bool { have = f.messages(queue); return have == n })
	return have
}

// messages is how many messages are ready.
func (f *features) messages(queue string) int {
	f.t.Helper()
	ch := f.open()
	defer ch.Close()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	f.must(err)
	return q.Messages
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

// counts rejects a message once, and says how often it was handed out by what it has when it comes again.
func (f *features) counts(ch *amqp.Channel) string {
	f.t.Helper()
	f.send(ch, "m")
	f.must(f.get(ch).Reject(true))
	d := f.get(ch)
	if !d.Redelivered {
		return "not redelivered"
	}
	return countsOf(d)
}

// countsOf are the headers that count deliveries: failures, and all.
func countsOf(d *amqp.Delivery) string {
	failed, ok := d.Headers["x-delivery-count"]
	all, too := d.Headers["x-acquired-count"]
	if !ok && !too {
		return "none"
	}
	return fmt.Sprint(failed, " ", all)
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

package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/long"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

var migrated = flag.Int("clients.migrated", 1000, "`number` of messages that TestMigrate moves")

// migratedQueues are what the source has; the messages are split evenly.
var migratedQueues = map[string]amqp.Table{
	"orders": nil,
	"audit":  {"x-queue-type": "quorum"},
	"hold":   {"x-message-ttl": int64(3_600_000), "x-dead-letter-exchange": "amq.fanout"},
	"prices": {"x-max-priority": int32(9)},
}

// everyType is a table with a value of each type that a client can send.
func everyType() amqp.Table {
	return amqp.Table{
		"t": true, "b": int8(-7), "B": byte(200), "s": int16(-300), "I": int32(-70_000), "l": int64(1) << 40, "f": float32(1.5), "d": 2.25,
		"D": amqp.Decimal{Scale: 2, Value: 314}, "S": "text ☃", "x": []byte{0, 255, 7}, "T": time.Unix(1_700_000_000, 0), "V": nil,
		"F": amqp.Table{"inner": amqp.Table{"deep": int64(1)}}, "A": []any{"a", int32(1), amqp.Table{"k": false}},
		"CC": []any{"audit", "orders"}, "x-death": []any{amqp.Table{"queue": "earlier", "reason": "expired", "count": int64(3)}},
	}
}

// sample is the message with a number. Its lifetime, if it has one, counts from now.
func sample(n int, now time.Time) amqp.Publishing {
	p := amqp.Publishing{MessageId: strconv.Itoa(n), Body: fmt.Appendf(nil, "message %d \x00\xff", n), DeliveryMode: amqp.Persistent}
	if n%2 == 0 {
		p.ContentType, p.ContentEncoding, p.CorrelationId, p.ReplyTo = "application/json", "gzip", "c"+p.MessageId, "answers"
		p.Type, p.AppId, p.UserId, p.Priority, p.Headers = "order", "shop", "guest", uint8(n%9), everyType()
	}
	if n%3 != 0 {
		p.Timestamp = now.Truncate(time.Second)
	}
	if n%5 != 0 {
		p.Expiration = strconv.Itoa(600_000 + n)
	}
	return p
}

// ctl runs quoratectl against a node, and returns what it prints, and its exit code.
func ctl(ctx context.Context, tool string, n *cluster.Node, args ...string) (out, errs string, code int, err error) {
	cmd := exec.CommandContext(ctx, tool, append([]string{"--node", n.HTTP}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() >= 0 {
		err = nil
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode(), err
}

// Everything that RabbitMQ holds comes over: messages with their properties, headers and routing
// keys, in order, with what is left of their lifetimes. An interrupted move continues: nothing is
// lost, and what comes twice is marked.
func TestMigrate(t *testing.T) {
	long.Test(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	moveAll(t, ctx, mustRabbit(t, ctx))
}

// The same from one cluster of quorate to another, which needs nothing else to be installed.
func TestMigrateBetweenClusters(t *testing.T) {
	long.Test(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := mustStart(t, ctx)
	moveAll(t, ctx, &rabbit{uri: c.Nodes[0].URI(), instead: c.Nodes[0]})
}

func moveAll(t *testing.T, ctx context.Context, source *rabbit) {
	t.Helper()
	c := mustStart(t, ctx)
	meter := stall.Start()
	defer meter.Stop()
	node := c.Nodes[0]
	tool, err := cluster.BuildTool(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	sent := mustFill(t, ctx, source)
	definitions := source.definitions(t, ctx)
	arguments := []string{"migrate", "--from", source.uri, "--to", node.URI(), "--definitions", definitions, "--formatter", "json"}

	interrupted, stop := context.WithCancel(ctx)
	first := make(chan error, 1)
	go func() {
		_, _, _, err := ctl(interrupted, tool, node, arguments...)
		first <- err
	}()
	if err := await.Until(ctx, 5*time.Millisecond, "the first messages", func() (bool, error) {
		var q struct{ Messages int }
		status, body, err := node.Do(ctx, "GET", "/api/queues/%2F/hold", nil)
		if err == nil && status == 200 {
			err = json.Unmarshal(body, &q)
		}
		return q.Messages > 0 || len(first) > 0, err
	}); err != nil {
		t.Fatal(err)
	}
	stop()
	t.Logf("the first attempt ended: %v", <-first)

	source.awaitReturned(t, ctx)
	moving := time.Now()
	out, errs, code, err := ctl(ctx, tool, node, arguments...)
	took := time.Since(moving)
	if err != nil {
		t.Fatal(err, errs)
	}
	var report struct {
		Queues []struct {
			Name, Result                     string
			Moved, Left, Redelivered, Marked int
			Kept                             int `json:"ttl_kept"`
			Restarted                        int `json:"ttl_restarted"`
		}
		Skipped []struct{ Section, Name, Reason string }
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v: %s%s", err, out, errs)
	}
	t.Logf("exit code %d after %v: %+v %s", code, took.Round(time.Millisecond), report, errs)
	want := 70
	for _, s := range report.Skipped {
		if s.Section != "messages" { // a definition
			want = 65
		}
	}
	if code != want {
		t.Errorf("exit code %d, not %d, although queues were left out", code, want)
	}
	for _, name := range []string{"log", "passing"} {
		if !(name == "log" && source.instead != nil) && !strings.Contains(fmt.Sprint(report.Skipped), "messages "+name) {
			t.Errorf("the report does not say that the messages of %s stay", name)
		}
	}
	marked := 0
	for _, q := range report.Queues {
		if marked += q.Marked; q.Result != "moved" || q.Left != 0 {
			t.Errorf("%s: %s, %d left", q.Name, q.Result, q.Left)
		}
	}
	checkDeadlines(t, ctx, node, sent, meter.Longest(began))
	checkMoved(t, ctx, node, sent, marked)
}

// sentMessage is a message at the source, and when it dies; zero: never, or nobody can know.
type sentMessage struct {
	amqp.Publishing
	queue    string
	key      string
	deadline time.Time
}

// mustChannel opens a channel on a connection of its own, which ends with the test.
func mustChannel(t *testing.T, uri string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(uri)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the server may be gone by then
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// mustFill declares queues at the source and publishes to them, a quarter of the messages each.
func mustFill(t *testing.T, ctx context.Context, source *rabbit) map[string]sentMessage {
	t.Helper()
	ch := mustChannel(t, source.uri)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(ch.ExchangeDeclare("keys", "topic", true, false, false, false, nil))
	sent := map[string]sentMessage{}
	for name, arguments := range migratedQueues {
		_, err := ch.QueueDeclare(name, true, false, false, false, arguments)
		must(err)
		must(ch.QueueBind(name, name+".#", "keys", false, nil))
	}
	if source.instead == nil {
		_, err := ch.QueueDeclare("log", true, false, false, false, amqp.Table{"x-queue-type": "stream"})
		must(err)
	}
	_, err := ch.QueueDeclare("passing", true, true, false, false, nil)
	must(err)
	must(ch.Confirm(false))
	var last *amqp.DeferredConfirmation
	n := 0
	for name := range migratedQueues {
		for range *migrated / len(migratedQueues) {
			now := time.Now()
			m := sentMessage{Publishing: sample(n, now), queue: name, key: fmt.Sprintf("%s.key.%d", name, n)}
			published := m.Publishing
			if own, err := strconv.Atoi(m.Expiration); err == nil && !m.Timestamp.IsZero() {
				m.deadline = now.Add(time.Duration(own) * time.Millisecond)
			} else if name == "hold" && !m.Timestamp.IsZero() {
				m.deadline = now.Add(time.Hour)
			}
			if published.Headers != nil { // the source is to send them nowhere else
				published.Headers = everyType()
				published.Headers["CC"] = []any{"nowhere"}
				m.Headers["CC"] = published.Headers["CC"]
			}
			last, err = ch.PublishWithDeferredConfirmWithContext(ctx, "keys", m.key, true, false, published)
			must(err)
			sent[m.MessageId] = m
			n++
		}
	}
	_, err = last.WaitContext(ctx)
	must(err)
	for _, name := range []string{"log", "passing"} {
		must(ch.PublishWithContext(ctx, "", name, false, false, amqp.Publishing{Body: []byte("stays")}))
	}
	return sent
}

// checkDeadlines holds when messages die here against when they would have died there.
func checkDeadlines(t *testing.T, ctx context.Context, n *cluster.Node, sent map[string]sentMessage, stalled time.Duration) {
	t.Helper()
	var early, late time.Duration
	known := 0
	for name := range migratedQueues {
		for after := uint64(0); ; {
			var page struct {
				Items []struct {
					ExpiresAt  int64 `json:"expires_at"`
					Properties struct {
						ID string `json:"message_id"`
					}
				}
				Next uint64
			}
			if err := n.Call(ctx, "GET", fmt.Sprintf("/api/queues/%%2F/%s/messages/peek?limit=1000&truncate=0&after=%d", name, after), nil, &page); err != nil {
				t.Fatal(err)
			}
			for _, m := range page.Items {
				if want := sent[m.Properties.ID].deadline; !want.IsZero() {
					by := time.UnixMilli(m.ExpiresAt).Sub(want)
					early, late, known = min(early, by), max(late, by), known+1
				}
			}
			if after = page.Next; after == 0 {
				break
			}
		}
	}
	t.Logf("%d deadlines are known: at most %v early, %v late", known, -early, late)
	if tolerance := time.Second + stall.Tolerance(stalled); -early > tolerance || late > tolerance || known == 0 {
		t.Errorf("%d deadlines are known: %v early, %v late", known, -early, late)
	}
}

// checkMoved consumes everything and compares it with what was sent.
func checkMoved(t *testing.T, ctx context.Context, n *cluster.Node, sent map[string]sentMessage, marked int) {
	t.Helper()
	ch := mustChannel(t, n.URI())
	seen := map[string]int{}
	doubled := 0
	for name := range migratedQueues {
		last := map[uint8]int{} // by priority
		q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		deliveries, err := ch.ConsumeWithContext(ctx, name, name, true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range q.Messages {
			d, ok := <-deliveries
			if !ok {
				t.Fatalf("%s: %v", name, ctx.Err())
			}
			if seen[d.MessageId]++; seen[d.MessageId] > 1 || d.Headers["x-migrated-again"] == true {
				doubled++
			} else if number, _ := strconv.Atoi(d.MessageId); number < last[d.Priority] {
				t.Errorf("%s: message %d comes after %d", name, number, last[d.Priority])
			} else {
				last[d.Priority] = number
			}
			compare(t, name, &d, sent[d.MessageId])
		}
	}
	if len(seen) != len(sent) {
		t.Errorf("%d of %d messages are here", len(seen), len(sent))
	}
	twice := 0
	for _, times := range seen {
		twice += times - 1
	}
	t.Logf("%d messages, %d of them twice; %d were marked", len(seen), twice, marked)
	if twice > marked {
		t.Errorf("%d messages came twice, %d were marked", twice, marked)
	}
}

// compare checks that a message is as it was published, but for its exchange, its expiration and the
// mark of the move.
func compare(t *testing.T, queue string, d *amqp.Delivery, m sentMessage) {
	t.Helper()
	delete(d.Headers, "x-migrated-again")
	if len(d.Headers) == 0 {
		d.Headers = nil
	}
	got := amqp.Publishing{
		Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode, Priority: d.Priority,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: m.Expiration, MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type,
		UserId: d.UserId, AppId: d.AppId, Body: d.Body,
	}
	if queue != m.queue || d.RoutingKey != m.key || !d.Timestamp.Equal(m.Timestamp) {
		t.Errorf("message %s: in %s with key %s of %v, not %s, %s, %v", d.MessageId, queue, d.RoutingKey, d.Timestamp, m.queue, m.key, m.Timestamp)
	}
	got.Timestamp = m.Timestamp
	if !reflect.DeepEqual(got, m.Publishing) {
		t.Fatalf("message %s is\n%+v, not\n%+v", d.MessageId, got, m.Publishing)
	}
}

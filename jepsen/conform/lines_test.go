package conform

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestQueueFiles(t *testing.T) { fileRows.run(t) }

var fileRows = suite{test: "TestQueueFiles", title: "Messages in files", rows: []row{
	{id: "F1", lives: true, what: "export_queue and import_queue: properties, headers of all types, bytes, priorities, deadlines, schedules and histories come back as they were; the source is unchanged", run: func(t *T) {
		x := t.exchange("x", "fanout")
		arguments := []any{"x-dead-letter-exchange", x}
		from, dead := t.queue("from", arguments...), t.queue("dead")
		t.bind(dead, "", x)
		all := amqp.Table{
			"int8": int8(-1), "uint8": uint8(255), "int16": int16(-2), "uint16": uint16(65535), "int32": int32(-3), "uint32": uint32(1 << 31), "int64": int64(1) << 60,
			"float32": float32(0.1), "float64": 1e300, "decimal": amqp.Decimal{Scale: 2, Value: -5}, "time": time.Unix(1_700_000_000, 0),
			"bytes": []byte{0, 255}, "text": "\u00e9<&>", "no text": "\xfe", "none": nil, "true": true, "table": amqp.Table{"a": amqp.Table{}}, "array": []any{int32(1), "x", amqp.Table{"b": false}},
		}
		rich := func(p *amqp.Publishing) {
			*p = amqp.Publishing{
				Headers: all, ContentType: "a/b", ContentEncoding: "c", DeliveryMode: amqp.Persistent, Priority: 7, CorrelationId: "d", ReplyTo: "e",
				MessageId: "f", Timestamp: time.Unix(1_600_000_000, 0), Type: "g", AppId: "h", Body: []byte{0, 0xFF, '\n'},
			}
		}
		t.publish(from, body("low"), priority(1))
		t.publish(from, rich)
		t.publish(from, body("timed"), expiration("3600000"))
		t.publish(from, body("later"), headers("x-opt-delivery-delay", int64(3_600_000)))
		t.publish(from, body("dies"), expiration("0"))
		t.mustHave(dead, 1)
		for _, q := range []string{from, dead} {
			copied := t.queue("copy of "+q, arguments...)
			first := t.exported(0, q)
			t.equal("messages", t.imported(1, copied, first).Messages, len(t.lines(first)))
			t.equal("lines of the copy", strings.Join(t.lines(t.exported(2, copied)), "\n"), strings.Join(t.lines(first), "\n"))
			t.equal("messages again", t.imported(0, copied, first), files{Had: len(t.lines(first))})
			for {
				a, b := t.get(q), t.get(copied)
				if a == nil || b == nil {
					t.equal("both are empty", a == nil && b == nil, true)
					break
				}
				a.Acknowledger, b.Acknowledger, a.DeliveryTag, b.DeliveryTag, a.MessageCount, b.MessageCount = nil, nil, 0, 0, 0, 0
				if !reflect.DeepEqual(a, b) {
					t.Errorf("the copy has\n%+v, not\n%+v", b, a)
				}
			}
		}
	}},
	{id: "F2", what: "an import that breaks off, and is done again at another node: nothing is lost, nothing comes twice; a file with a wrong line is imported not at all", run: func(t *T) {
		from, to := t.queue("from"), t.queue("to")
		const n = 500
		t.publishMany(from, n)
		file := t.exported(0, from)
		whole, err := os.ReadFile(file)
		t.must(err)
		sum := sha256.Sum256(whole)
		half := strings.Join(strings.SplitAfter(string(whole), "\n")[:n/2], "")
		at := "/api/quorate/queues/%2F/" + to + "/import?id=" + hex.EncodeToString(sum[:])
		status, answer, err := t.Nodes[1].Do(t.ctx, "POST", at, []byte(half))
		if t.must(err); status != 400 || !strings.Contains(string(answer), "its last line is missing") {
			t.Errorf("half a file: %d %s", status, answer)
		}
		all := t.imported(2, to, file)
		t.equal("messages", all.Messages+all.Had, n)
		t.equal("again", t.imported(0, to, file), files{Had: n})
		seen := map[string]int{}
		for _, d := range t.take(to, n) {
			seen[string(d.Body)]++
		}
		t.equal("different messages", len(seen), n)
		t.mustNotGet(to)

		wrong := filepath.Join(t.TempDir(), "wrong")
		t.must(os.WriteFile(wrong, []byte("{\"body\":\"a\"}\n{\"body\":1}\n"), 0o600))
		if out, code := t.ctl(0, "import_queue", to, wrong); code != 65 || !strings.Contains(out, "nothing was imported: line 2: ") {
			t.Errorf("exit code %d: %s", code, out)
		}
		t.mustNotGet(to)
		t.must(os.WriteFile(wrong, []byte("{\"body\":\"by hand\",\"properties\":{\"priority\":3,\"headers\":{\"a\":{\"int32\":5}}}}\n"), 0o600))
		t.equal("by hand", t.imported(0, to, wrong), files{Messages: 1})
		d := t.mustGet(to)
		if string(d.Body) != "by hand" || d.Priority != 3 || d.Headers["a"] != int32(5) {
			t.Errorf("%+v", d)
		}
		if out, code := t.ctl(0, "export_queue", t.name("none"), wrong+"2"); code != 65 {
			t.Errorf("exit code %d: %s", code, out)
		}
	}},
}}

// files is what quoratectl says of an import.
type files struct {
	Messages int `json:"messages"`
	Had      int `json:"already_there"`
	Refused  int `json:"refused"`
}

// exported exports a queue at a node to a file.
func (t *T) exported(node int, queue string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "queue.ndjson")
	t.mustCtl(node, "export_queue", queue, file)
	return file
}

// imported imports a file at a node.
func (t *T) imported(node int, queue, file string) (f files) {
	t.Helper()
	t.must(json.Unmarshal([]byte(t.mustCtl(node, "--formatter", "json", "import-queue", queue, file)), &f))
	return f
}

// lines are those of the messages in a file.
func (t *T) lines(file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	t.must(err)
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(all) < 2 {
		t.Fatalf("no export: %s", text)
	}
	return all[1 : len(all)-1]
}

// mustHave waits until a queue has so many messages.
func (t *T) mustHave(queue string, n int) {
	t.Helper()
	t.eventually(fmt.Sprintf("%d messages in %s", n, queue), func() error {
		if have := t.ready(queue); have != n {
			return fmt.Errorf("it has %d", have)
		}
		return nil
	})
}

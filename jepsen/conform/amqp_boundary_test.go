package conform

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
)

var boundaryRows = []row{
	{id: "A104", what: "random bytes on 300 connections: the server keeps working", run: randomBytes},
	{id: "A105", what: "one octet every 2 s inside a frame: dropped within 30 s", test: "amqp/v091: TestSlowFrame"},
	{id: "A106", what: "a client that does not read is dropped", test: "amqp/v091: TestClientThatDoesNotRead; jepsen: TestFairness"},
	{id: "A107", what: "other clients, see docs/evidence/clients.md", test: "jepsen/clients: TestLibraries, TestSuite"},
	{id: "A108", what: "a celery worker", test: "jepsen/clients: TestPrograms/celery"},
	{id: "A109", what: "the tools of librabbitmq", test: "jepsen/clients: TestPrograms/amqp-tools"},
	{id: "A110", what: "a reply text is truncated to 255 octets of UTF-8", run: func(t *T) {
		r := t.raw()
		name := strings.Repeat("é", 127)
		t.must(r.Method(1, methodGet, client.Join([]byte{0, 0}, client.ShortString(name), []byte{1})))
		_, err := r.Expect(0)
		var c *client.Closed
		if !errors.As(err, &c) || c.Code != amqp.NotFound {
			t.Fatal(err)
		}
		if len(c.Text) > 255 || len(c.Text) < 250 || !utf8.ValidString(c.Text) || !strings.HasSuffix(c.Text, "é...") {
			t.Errorf("%d octets: %q", len(c.Text), c.Text)
		}
	}},
}

// stopRows stop a node.
var stopRows = []row{
	{id: "A046", what: "a stopping node closes its clients' connections; afterwards keys are routed to the same queues", run: func(t *T) {
		x := t.exchange("x", "x-consistent-hash")
		queues := []string{t.queue("a"), t.queue("b"), t.queue("c")}
		for _, q := range queues {
			t.bind(q, "1", x)
		}
		shares := func(ch *amqp.Channel) (got string) {
			t.level(ch)
			t.must(ch.Confirm(false))
			for i := range 20 {
				key := fmt.Sprint("key-", i)
				c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, x, key, true, false, amqp.Publishing{Body: []byte(key)})
				t.must(err)
				_, err = c.WaitContext(t.ctx)
				t.must(err)
			}
			for _, q := range queues {
				got += fmt.Sprint(t.emptied(q))
			}
			return got
		}
		before := shares(t.openAt(1))
		closed := t.conn(1).NotifyClose(make(chan *amqp.Error, 1))
		_, err := t.openAt(1).QueueDeclare(t.name("transient"), false, false, false, false, nil)
		t.must(err)
		t.must(t.Nodes[1].Shutdown(t.ctx))
		select {
		case err := <-closed:
			t.mustBe(err, 320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'")
		case <-time.After(patience):
			t.Fatal("the client is not told")
		}
		t.must(t.Nodes[1].Restart())
		t.lostConnections()
		t.must(t.Nodes[1].AwaitReady(t.ctx))
		t.equal("shares", shares(t.openAt(1)), before)
		t.eventually("the transient queue is gone", func() error {
			if t.exists(t.name("transient")) {
				return errors.New("it is there")
			}
			return nil
		})
	}},
	{id: "A065", what: "a queue that is neither durable nor exclusive is deleted with its node", in: "A046"},
}

// randomBytes sends what is drawn from a fixed seed at each stage of a
// connection.
func randomBytes(t *T) {
	state := uint64(1)
	draw := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			state = state*6364136223846793005 + 1442695040888963407
			b[i] = byte(state >> 56)
		}
		return b
	}
	for i := range 300 {
		r, err := client.Dial(t.ctx, t.Nodes[0].AMQP)
		t.must(err)
		stages := []func() error{
			func() error { return nil },
			func() error { return r.Write([]byte(client.ProtocolHeader)) },
			func() error { return r.Login("/", client.DefaultTune) },
			func() error { t.must(r.Login("/", client.DefaultTune)); return r.OpenChannel(1) },
		}
		t.must(stages[i%len(stages)]())
		if size := 1 + i%40; i%2 == 0 {
			_ = r.Write(draw(size)) // the server may have hung up
		} else {
			_ = r.Frame(draw(1)[0]%9, uint16(i%3), draw(size))
		}
		t.must(r.Close())
	}
	t.must(t.open().Close())
}

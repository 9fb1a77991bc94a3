package conform

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestLocal(t *testing.T) { localRows.run(t) }

// replyTo is the name under which a channel consumes replies.
const replyTo = "amq.rabbitmq.reply-to"

var localRows = suite{test: "TestLocal", title: "Local queues, direct reply-to, transactions", rows: []row{
	{id: "W66", what: "features of local queues, used from another node", run: func(t *T) {
		x, q, d := t.exchange("X", "fanout"), t.name("q"), t.name("D")
		t.declareAt(1, d, nil)
		t.bind(d, "", x)
		t.declareAt(2, q, args("x-dead-letter-exchange", x, "x-message-ttl", int32(300), "x-max-length", int32(2)))
		at := t.publishN(q, 3)
		t.take(d, 1) // too many
		t.readyUntil(d, 0, at.Add(ms(300)))
		m := t.by(at.Add(ms(300))).take(d, 2)
		t.equal("expired", bodies(m), "2 3")
		t.equal("reason", t.death(m[0], 0)["reason"], "expired")
	}},
	{id: "W66b", what: "dead letters between local and replicated queues arrive once and in order", run: func(t *T) {
		q, middle, d := t.name("q"), t.name("middle"), t.name("d")
		t.declareAt(1, q, args("x-dead-letter-exchange", "", "x-dead-letter-routing-key", middle))
		t.queue("middle", "x-message-ttl", int32(0), "x-dead-letter-exchange", "", "x-dead-letter-routing-key", d)
		t.declareAt(2, d, nil)
		t.publishMany(q, 300)
		ch := t.openAt(0)
		from, err := ch.Consume(q, "", false, false, false, false, nil)
		t.must(err)
		for range 300 {
			t.must(t.next(from).Reject(false))
		}
		t.equal("letters", bodies(t.take(d, 300)), numbers(300))
		t.equal("left", []int{t.ready(q), t.ready(middle), t.ready(d)}, []int{0, 0, 0})
	}},
	{id: "W66c", what: "a local queue has no delivery limit unless one is set", run: func(t *T) {
		q := t.name("q")
		t.declare(t.ch(), q, flags{}, nil)
		t.publish(q)
		_, from := t.consume(q, 1)
		for range 30 {
			t.must(t.next(from).Reject(true))
		}
		t.must(t.next(from).Ack(false))
	}},
	{id: "A088", what: "tx: nothing arrives before the commit, and nothing that was rolled back", run: func(t *T) {
		q, tx := t.queue("q"), t.open()
		t.must(tx.Tx())
		t.publishOn(tx, q, "dropped")
		t.equal("ready", t.ready(q), 0)
		t.must(tx.TxRollback())
		t.publishOn(tx, q, "kept")
		t.must(tx.TxCommit())
		t.equal("ready", t.ready(q), 1)
		t.equal("kept", string(t.mustGet(q).Body), "kept")
	}},
	{id: "A089", what: "tx: an ack that was rolled back can be repeated", run: func(t *T) {
		q, tx := t.queue("q"), t.open()
		t.publishN(q, 2)
		t.must(tx.Tx())
		d, ok, err := tx.Get(q, false)
		t.must(err)
		t.equal("got", ok, true)
		t.must(d.Ack(false))
		t.must(tx.TxRollback())
		t.must(d.Ack(false))
		t.must(tx.TxCommit())
		t.must(tx.Close())
		t.equal("left", bodies(t.take(q, 1)), "2")
	}},
	{id: "A090", what: "confirm after tx, tx after confirm, commit without select: 406", run: func(t *T) {
		t.refused(amqp.PreconditionFailed, "cannot switch from tx to confirm mode", func(ch *amqp.Channel) error {
			t.must(ch.Tx())
			return ch.Confirm(false)
		})
		t.refused(amqp.PreconditionFailed, "cannot switch from confirm to tx mode", func(ch *amqp.Channel) error {
			t.must(ch.Confirm(false))
			return ch.Tx()
		})
		t.refused(amqp.PreconditionFailed, "channel is not transactional", (*amqp.Channel).TxCommit)
	}},
	{id: "W66d", what: "a message redelivered by a local queue is marked as redelivered, and has no counts", run: func(t *T) {
		q := t.name("q")
		t.declareAt(1, q, nil)
		t.publish(q)
		t.must(t.mustGet(q).Nack(false, true))
		t.must(t.comesBack(q).Reject(true))
		_, from := t.consume(q, 1)
		m := t.next(from)
		t.equal("redelivered", m.Redelivered, true)
		t.absent(m.Headers, "x-acquired-count")
		t.absent(m.Headers, "x-delivery-count")
	}},
	{id: "W66e", what: "a passive declare keeps a local queue", long: true, run: func(t *T) {
		q := t.name("q")
		t.declareAt(1, q, args("x-expires", int32(1500)))
		last := t.every(ms(700), ms(4000), func() { t.equal("exists", t.existsAt(2, q), true) })
		t.waitUntil(last.Add(ms(3500)))
		t.equal("exists", t.existsAt(2, q), false)
	}},
	{id: "W66f", what: "an auto-delete queue is deleted when its last consumer's cancellation is answered", run: func(t *T) {
		for i := range 20 {
			q := t.name(fmt.Sprint("q", i))
			ch := t.openAt(i % 3)
			t.declare(ch, q, flags{autoDelete: true}, nil)
			_, err := ch.Consume(q, "c", true, false, false, false, nil)
			t.must(err)
			t.must(ch.Cancel("c", false))
			t.declare(ch, q, flags{exclusive: true}, nil)
		}
	}},
	{id: "W90b", what: "tx: a TTL counts from the commit", long: true, run: func(t *T) {
		q, tx := t.queue("q", "x-message-ttl", int32(1000)), t.open()
		t.must(tx.Tx())
		t.publishOn(tx, q, "m")
		t.waitUntil(time.Now().Add(ms(1200)))
		at := time.Now()
		answered := t.begins()
		t.must(tx.TxCommit())
		answered()
		t.readyUntil(q, 1, at.Add(ms(1000)))
		t.soonReady(q, 0, at.Add(ms(1000)))
	}},
	{id: "QL4", what: "tx: six publishes to a queue with space for five: 406, and nothing is acked", run: func(t *T) {
		q, other := t.queue("q", "x-max-length", int32(5), "x-overflow", "reject-publish"), t.queue("other")
		t.publish(other)
		t.refused(amqp.PreconditionFailed, "partial tx completion", func(ch *amqp.Channel) error {
			t.must(ch.Tx())
			d, _, err := ch.Get(other, false)
			t.must(err)
			t.must(d.Ack(false))
			for range 6 {
				t.publishOn(ch, q, "m")
			}
			return ch.TxCommit()
		})
		t.equal("ready", t.ready(q), 5)
		t.take(other, 1)
	}},
	{id: "A094", what: "direct reply-to over two nodes", run: func(t *T) {
		r := t.requester(0)
		for n := range t.Nodes {
			service := t.name(fmt.Sprint("service", n))
			t.serve(n, service)
			r.request(service, fmt.Sprint("from ", n))
			t.equal("reply", string(t.next(r.replies).Body), fmt.Sprintf("from %d answered", n))
		}
	}},
	{id: "W94b", what: "a requester's name: a declare succeeds while it exists, 404 afterwards, and a mandatory reply is returned", run: func(t *T) {
		service, r := t.name("service"), t.requester(0)
		t.declare(t.ch(), service, flags{}, nil)
		r.request(service, "x")
		name := t.take(service, 1)[0].ReplyTo
		t.matches("name", name, `^amq\.rabbitmq\.reply-to\.[\w-]+$`)
		for n := range t.Nodes {
			t.equal("alive", t.aliveAt(n, name), true)
			t.equal("returned", t.returnedAt(n, name), false)
			t.next(r.replies)
		}
		t.must(r.ch.Close())
		for n := range t.Nodes {
			t.equal("alive", t.aliveAt(n, name), false)
			t.equal("returned", t.returnedAt(n, name), true)
			t.equal("bogus alive", t.aliveAt(n, replyTo+".bogus"), false)
			t.equal("bare name", t.aliveAt(n, replyTo), true)
		}
	}},
	{id: "W94c", what: "direct reply-to used wrongly: 406", run: func(t *T) {
		t.refused(amqp.PreconditionFailed, "reply consumer cannot acknowledge", func(ch *amqp.Channel) error {
			_, err := ch.Consume(replyTo, "", false, false, false, false, nil)
			return err
		})
		t.refused(amqp.PreconditionFailed, "reply consumer already set", func(ch *amqp.Channel) error {
			_, err := ch.Consume(replyTo, "", true, false, false, false, nil)
			t.must(err)
			_, err = ch.Consume(replyTo, "", true, false, false, false, nil)
			return err
		})
		t.refusePublish(amqp.PreconditionFailed, "fast reply consumer does not exist", "", "nowhere",
			func(p *amqp.Publishing) { p.ReplyTo = replyTo })
	}},
	{id: "C36", what: "request and reply over an exclusive queue, the responder at another node", run: func(t *T) {
		service := t.name("service")
		t.serve(2, service)
		ch := t.openAt(0)
		inbox := t.declare(ch, "", flags{exclusive: true}, nil)
		replies, err := ch.Consume(inbox, "", true, true, false, false, nil)
		t.must(err)
		var times []time.Duration
		for i := range 200 {
			begin := time.Now()
			t.must(ch.PublishWithContext(t.ctx, "", service, false, false, amqp.Publishing{ReplyTo: inbox, Body: fmt.Append(nil, i)}))
			t.equal("reply", string(t.next(replies).Body), fmt.Sprintf("%d answered", i))
			times = append(times, time.Since(begin))
		}
		slices.Sort(times)
		t.Logf("round trip: median %v, p99 %v", times[100], times[198])
	}},
	{id: "C36c", what: "replies through an exchange, each to a new queue with a new binding, the responder at another node", run: func(t *T) {
		x, service := t.exchange("replies", "direct"), t.name("service")
		t.serveAt(2, x, service)
		ch := t.openAt(0)
		for i := range 50 {
			inbox := t.declare(ch, "", flags{exclusive: true}, nil)
			t.must(ch.QueueBind(inbox, inbox, x, false, nil))
			replies, err := ch.Consume(inbox, inbox, true, true, false, false, nil)
			t.must(err)
			t.must(ch.PublishWithContext(t.ctx, "", service, false, false, amqp.Publishing{ReplyTo: inbox, Body: fmt.Append(nil, i)}))
			t.equal("reply", string(t.next(replies).Body), fmt.Sprintf("%d answered", i))
			t.must(ch.Cancel(inbox, false))
		}
	}},
}}

func TestLocalRough(t *testing.T) { localRoughRows.run(t) }

var localRoughRows = suite{test: "TestLocalRough", title: "Local queues whose node ends", rough: true, rows: []row{
	{id: "W65", what: "queues that are not durable are deleted by a restart of their node", run: func(t *T) {
		q := t.name("q")
		t.declare(t.openAt(1), q, flags{}, nil)
		t.publish(q)
		t.must(t.Nodes[1].Shutdown(t.ctx))
		t.must(t.Nodes[1].Restart())
		t.must(t.Nodes[1].AwaitReady(t.ctx))
		t.lostConnections()
		for n := range t.Nodes {
			t.equal("exists", t.existsAt(n, q), false)
		}
	}},
	{id: "C36b", what: "the node of a local queue is killed: consumers elsewhere are cancelled, publishes are returned, 404", run: func(t *T) {
		q := t.name("q")
		t.declareAt(0, q, nil)
		ch := t.openAt(2)
		cancelled := ch.NotifyCancel(make(chan string, 1))
		from, err := ch.Consume(q, "", true, false, false, false, nil)
		t.must(err)
		t.must(t.Nodes[0].Kill(t.ctx))
		t.awaitCancel(cancelled, from)
		t.equal("exists", t.existsAt(2, q), false)
		t.equal("returned", t.returnedAt(2, q), true)
		t.must(t.Nodes[0].Restart())
		t.must(t.Nodes[0].AwaitReady(t.ctx))
		t.lostConnections()
	}},
	{id: "A17", what: "2,000 queues declared and deleted: the node uses no more than before", run: func(t *T) {
		cycle := func(from, n int) {
			for i := range n {
				q := t.name(fmt.Sprint(from + i))
				t.declare(t.ch(), q, flags{}, nil)
				_, err := t.ch().QueueDelete(q, false, false, false)
				t.must(err)
			}
		}
		cycle(0, 200)
		before, replicas := t.goroutines(0), t.replicas(0)
		begin := time.Now()
		cycle(200, 1800)
		t.Logf("%.0f declares and deletes a second, one after the other", 1800/time.Since(begin).Seconds())
		t.eventually("as many goroutines as before", func() error {
			if now := t.goroutines(0); now > before+10 {
				return fmt.Errorf("%d, not %d", now, before)
			}
			return nil
		})
		t.equal("replicas", t.replicas(0), replicas)
	}, but: "2,000 instead of 10,000, to save time"},
}}

// publishOn publishes a message to a queue on any channel.
func (t *T) publishOn(ch *amqp.Channel, queue, body string) {
	t.Helper()
	t.must(ch.PublishWithContext(t.ctx, "", queue, false, false, amqp.Publishing{Body: []byte(body)}))
}

func (t *T) matches(what, have, pattern string) {
	t.Helper()
	if !regexp.MustCompile(pattern).MatchString(have) {
		t.Errorf("%s is %q, not %s", what, have, pattern)
	}
}

// declareAt declares a local queue on node n, and waits until all nodes know it.
func (t *T) declareAt(n int, queue string, table amqp.Table) {
	t.Helper()
	t.declare(t.openAt(n), queue, flags{}, table)
	for i := range t.Nodes {
		t.eventually(queue+" is known", func() error {
			if !t.existsAt(i, queue) {
				return fmt.Errorf("not at node %d", i+1)
			}
			return nil
		})
	}
}

// serve answers requests at node n until the row ends.
func (t *T) serve(n int, queue string) { t.Helper(); t.serveAt(n, "", queue) }

// serveAt is serve with an exchange that takes the answers.
func (t *T) serveAt(n int, exchange, queue string) {
	t.Helper()
	t.declareAt(n, queue, nil)
	ch := t.openAt(n)
	from, err := ch.Consume(queue, "", true, false, false, false, nil)
	t.must(err)
	go func() {
		for d := range from {
			answer := amqp.Publishing{CorrelationId: d.CorrelationId, Body: append(d.Body, " answered"...)}
			if ch.PublishWithContext(t.ctx, exchange, d.ReplyTo, false, false, answer) != nil {
				return // the row has ended
			}
		}
	}()
}

// requester is a channel that asks and gets its replies directly.
type requester struct {
	t       *T
	ch      *amqp.Channel
	replies <-chan amqp.Delivery
}

func (t *T) requester(n int) *requester {
	t.Helper()
	ch := t.openAt(n)
	replies, err := ch.Consume(replyTo, "", true, false, false, false, nil)
	t.must(err)
	return &requester{t, ch, replies}
}

func (r *requester) request(service, body string) {
	r.t.Helper()
	r.t.must(r.ch.PublishWithContext(r.t.ctx, "", service, false, false, amqp.Publishing{ReplyTo: replyTo, Body: []byte(body)}))
}

// existsAt asks node n whether there is such a queue.
func (t *T) existsAt(n int, queue string) bool {
	t.Helper()
	ch := t.openAt(n)
	_, err := ch.QueueDeclarePassive(queue, false, false, false, false, nil)
	if err == nil {
		t.must(ch.Close())
	} else if !isCode(err, amqp.NotFound) {
		t.Fatal(err)
	}
	return err == nil
}

// aliveAt asks node n whether a channel waits for replies.
func (t *T) aliveAt(n int, name string) bool { t.Helper(); return t.existsAt(n, name) }

// returnedAt publishes a mandatory message at node n and reports whether it is
// returned.
func (t *T) returnedAt(n int, key string) bool {
	t.Helper()
	ch := t.openAt(n)
	t.must(ch.Confirm(false))
	returns := ch.NotifyReturn(make(chan amqp.Return, 1))
	c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, "", key, true, false, amqp.Publishing{Body: []byte("m")})
	t.must(err)
	if acked, err := c.WaitContext(t.ctx); err != nil || !acked {
		t.Fatal(errors.Join(err, fmt.Errorf("acked: %v", acked)))
	}
	defer ch.Close()
	select {
	case r := <-returns:
		t.equal("return", fmt.Sprint(r.ReplyCode, " ", r.ReplyText), "312 NO_ROUTE")
		return true
	default:
		return false
	}
}

// goroutines is how many of them node n runs.
func (t *T) goroutines(n int) int {
	t.Helper()
	host, port, err := net.SplitHostPort(t.Nodes[n].HTTP)
	t.must(err)
	number, err := strconv.Atoi(port)
	t.must(err)
	res, err := http.Get(fmt.Sprintf("http://%s/metrics", net.JoinHostPort(host, strconv.Itoa(number+20))))
	t.must(err)
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	t.must(err)
	m := regexp.MustCompile(`(?m)^go_goroutines (\d+)`).FindSubmatch(page)
	if m == nil {
		t.Fatalf("no number of goroutines: %s", res.Status)
	}
	count, err := strconv.Atoi(string(m[1]))
	t.must(err)
	return count
}

// replicas is how many queues node n runs.
func (t *T) replicas(n int) int {
	t.Helper()
	all, err := t.Nodes[n].Replicas(t.ctx)
	t.must(err)
	return len(all)
}

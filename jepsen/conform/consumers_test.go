package conform

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// What rows about consumers need.

// single declares a queue with a single active consumer.
func (t *T) single(name string, pairs ...any) string {
	t.Helper()
	return t.queue(name, append(pairs, "x-single-active-consumer", true)...)
}

// retried declares a queue whose returned messages wait for so many
// milliseconds, and where its dead letters go.
func (t *T) retried(wait int32, pairs ...any) (q, dead string) {
	t.Helper()
	x, dead := t.dead()
	return t.queue("q", append(pairs, "x-dead-letter-exchange", x, "x-delayed-retry-type", "all", "x-delayed-retry-min", wait)...), dead
}

// counted checks a header that counts; 0: it is not there.
func (t *T) counted(d *amqp.Delivery, header string, n int) {
	t.Helper()
	var want any
	if n > 0 {
		want = int64(n)
	}
	t.equal(header, d.Headers[header], want)
}

// nextN takes n deliveries.
func (t *T) nextN(from <-chan amqp.Delivery, n int) (all []amqp.Delivery) {
	t.Helper()
	for range n {
		all = append(all, t.next(from))
	}
	return all
}

// nextP is next for a delivery that is settled in the same breath.
func (t *T) nextP(from <-chan amqp.Delivery) *amqp.Delivery {
	t.Helper()
	d := t.next(from)
	return &d
}

func deliveredBodies(all []amqp.Delivery) string {
	var b []string
	for _, d := range all {
		b = append(b, string(d.Body))
	}
	return strings.Join(b, " ")
}

// comeBack checks that the messages 1 … n are in the queue, in this order, and
// have failed once.
func (t *T) comeBack(queue string, n int) {
	t.Helper()
	t.soonReady(queue, n, time.Now())
	for i, d := range t.take(queue, n) {
		t.equal("body", string(d.Body), fmt.Sprint(i+1))
		t.counted(d, "x-delivery-count", 1)
	}
}

// counts are how many messages a queue has, by place.
type counts struct{ Messages, Ready, Unacknowledged, Delayed int }

func (t *T) hasCounts(queue string, want func(counts) bool) error {
	q, err := t.Nodes[0].Queue(t.ctx, queue)
	if c := (counts{q.Messages, q.Ready, q.Unacknowledged, q.Delayed}); err == nil && !want(c) {
		err = fmt.Errorf("it has %+v", c)
	}
	return err
}

// awaitQueue waits until the counts of a queue are as wanted.
func (t *T) awaitQueue(queue string, want func(counts) bool) {
	t.Helper()
	t.eventually("the counts of "+queue, func() error { return t.hasCounts(queue, want) })
}

// refuseConsume checks that a consumer is refused.
func (t *T) refuseConsume(queue string, code int, words string, exclusive bool, pairs ...any) {
	t.Helper()
	t.refused(code, words, func(ch *amqp.Channel) error {
		_, err := ch.Consume(queue, "", false, exclusive, false, false, args(pairs...))
		return err
	})
}

// refusedLater is refused for what the broker does not answer.
func (t *T) refusedLater(code int, words string, call func(ch *amqp.Channel)) {
	t.Helper()
	t.refused(code, words, func(ch *amqp.Channel) error {
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		call(ch)
		select {
		case err := <-closed:
			return err
		case <-time.After(patience):
			return errors.New("the channel stays open")
		}
	})
}

// cuttable is a connection of its own that can be cut.
type cuttable struct {
	t    *T
	conn *amqp.Connection
	tcp  net.Conn
}

func (t *T) cuttable() *cuttable {
	t.Helper()
	c := &cuttable{t: t}
	var err error
	c.conn, err = amqp.DialConfig(t.Nodes[0].URI(), amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		var d net.Dialer
		c.tcp, err = d.DialContext(t.ctx, network, addr)
		return c.tcp, err
	}})
	t.must(err)
	t.Cleanup(func() { _ = c.tcp.Close() })
	return c
}

// cut ends the connection without a word, as the end of a process does.
func (c *cuttable) cut() { c.t.must(c.tcp.Close()) }

// ended returns the error that the connection ends with after a call.
func (c *cuttable) ended(call func(ch *amqp.Channel)) error {
	ch, err := c.conn.Channel()
	c.t.must(err)
	closed := c.conn.NotifyClose(make(chan *amqp.Error, 1))
	call(ch)
	select {
	case err := <-closed:
		return err
	case <-time.After(patience):
		return errors.New("the connection stays open")
	}
}

// consumeOn starts a consumer on a connection.
func (t *T) consumeOn(c *cuttable, queue string, prefetch int) <-chan amqp.Delivery {
	t.Helper()
	ch, err := c.conn.Channel()
	t.must(err)
	t.must(ch.Qos(prefetch, 0, false))
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	t.must(err)
	return in
}

package jepsen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// poisonsAtOnce is how many cases of TestPoison run side by side: most of
	// their time they wait for a message to die.
	poisonsAtOnce = 12
	// dieAfter is the TTL of messages that are to die, in milliseconds.
	dieAfter = 50
	// arriveWithin bounds the way of one message.
	arriveWithin = time.Minute
)

// poison is a place into which a client or an operator can put a string.
type poison struct {
	name string
	// short: the place is a short string of the protocol. It cannot be longer
	// than 255 bytes.
	short bool
	// path: the text is in the path of a request, whose head may be larger than
	// is read: status 431.
	path bool
	// try puts a text there and uses what it has made to the end.
	try func(p *poisoned, text string) error
	// refusal is the answer that a text gets in full; empty: it is taken. nil:
	// every text is.
	refusal func(p *poisoned, text string) string
}

// Every string at the edge of what a short string can hold, just beyond it and
// far beyond it is taken and works to the end, or is refused with its own
// error. No node dies of it, and all queues that were made serve at all nodes.
func TestPoison(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 3*time.Minute)
	began := time.Now()
	var work []*poisoned
	for _, list := range [][]poison{
		poisonedLetters, poisonedArguments(), poisonedPolicies(), poisonedExchanges, poisonedBindings, poisonedMessages, poisonedNames, poisonedDefinitions,
	} {
		for i := range list {
			for _, text := range poisonTexts(list[i].short) {
				work = append(work, &poisoned{run: r, poison: &list[i], text: text, id: fmt.Sprintf("poison-%d", len(work))})
			}
		}
	}
	conns := make([]*amqp.Connection, len(r.Nodes))
	for i, n := range r.Nodes {
		conn, err := client.Connect(r.ctx, n.URI())
		r.must(err)
		defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }() // it may be cut
		conns[i] = conn
	}
	var wg sync.WaitGroup
	next := make(chan *poisoned)
	for range poisonsAtOnce {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for p := range next {
				p.check(t)
			}
		}()
	}
	for i, p := range work {
		p.node, p.conn = r.Nodes[i%len(r.Nodes)], conns[i%len(conns)]
		next <- p
	}
	close(next)
	wg.Wait()
	t.Logf("%d cases in %v", len(work), time.Since(began).Round(time.Millisecond))
	r.mustServeEverywhere()
}

// poisonTexts are what is put into each place: of 255, 256 and 70,000 bytes, in
// characters of one byte and of two.
func poisonTexts(short bool) []string {
	var list []string
	for _, n := range []int{255, 256, 70_000} {
		if n > 255 && short {
			break
		}
		list = append(list, strings.Repeat("k", n), strings.Repeat("é", n/2)+strings.Repeat("k", n%2))
	}
	return list
}

// poisoned is one try of a poison.
type poisoned struct {
	*run
	*poison
	text, id string
	node     *cluster.Node
	conn     *amqp.Connection
}

// check tries the poison and compares the answer with the one it should get.
func (p *poisoned) check(t *testing.T) {
	want := ""
	if p.refusal != nil {
		want = p.refusal(p, p.text)
	}
	got := refusalOf(p.try(p, p.text))
	if got != want && !(p.path && len(p.text) > 60_000 && got == "431") {
		kind := "ASCII"
		if !strings.HasPrefix(p.text, "k") {
			kind = "UTF-8"
		}
		t.Errorf("%s, %d bytes of %s at node %d:\n got %.400q\nwant %.400q", p.name, len(p.text), kind, p.node.Number, got, want)
	}
}

// precondition is a 406 on the channel.
func precondition(format string, args ...any) string {
	return reply(406, "PRECONDITION_FAILED", format, args...)
}

// reply is an error with the reply text cut as all are.
func reply(code int, name, format string, args ...any) string {
	const most, dots = 255, "..."
	s := name + " - " + fmt.Sprintf(format, args...)
	if len(s) > most {
		n := most - len(dots)
		for !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n] + dots
	}
	return fmt.Sprintf("%d %s", code, s)
}

// refusalOf is what err says of a refusal: the code or the status, and the text.
func refusalOf(err error) string {
	var closed *amqp.Error
	if errors.As(err, &closed) {
		return fmt.Sprintf("%d %s", closed.Code, closed.Reason)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// put makes something by the HTTP API of the node.
func (p *poisoned) put(path string, in any) error {
	status, body, err := p.node.Do(p.ctx, http.MethodPut, path, in)
	if err != nil || status/100 == 2 {
		return err
	}
	var failure struct{ Reason string }
	if err := json.Unmarshal(body, &failure); err != nil {
		return fmt.Errorf("%d", status)
	}
	return fmt.Errorf("%d %s", status, failure.Reason)
}

// channel opens a channel. The test's end closes it with its connection.
func (p *poisoned) channel() (*amqp.Channel, error) {
	ch, err := p.conn.Channel()
	if err != nil {
		return nil, err
	}
	return ch, ch.Confirm(false)
}

// declare declares the case's durable queue.
func (p *poisoned) declare(args amqp.Table) error {
	ch, err := p.channel()
	if err != nil {
		return err
	}
	_, err = ch.QueueDeclare(p.id, true, false, false, false, args)
	return err
}

// sink declares a queue that gets all that comes to an exchange.
func (p *poisoned) sink(ch *amqp.Channel, exchange string) error {
	if _, err := ch.QueueDeclare(p.id+"-sink", true, false, false, false, nil); err != nil {
		return err
	}
	return ch.QueueBind(p.id+"-sink", "", exchange, false, nil)
}

// publish publishes a message and waits for its confirm.
func (p *poisoned) publish(ch *amqp.Channel, exchange, key string, m amqp.Publishing) error {
	ctx, cancel := context.WithTimeout(p.ctx, arriveWithin)
	defer cancel()
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, false, false, m)
	if err != nil {
		return err
	}
	select {
	case err := <-closed:
		if err != nil {
			return err
		}
		return errors.New("the channel was closed")
	case <-confirm.Done():
	case <-ctx.Done():
		return errors.New("no confirm")
	}
	if !confirm.Acked() {
		return errors.New("the message was refused")
	}
	return nil
}

// take waits for a message in a queue.
func (p *poisoned) take(ch *amqp.Channel, queue string) (m amqp.Delivery, err error) {
	ctx, cancel := context.WithTimeout(p.ctx, arriveWithin)
	defer cancel()
	err = await.Until(ctx, 20*time.Millisecond, "a message in "+queue, func() (got bool, err error) {
		m, got, err = ch.Get(queue, true)
		return got, err
	})
	return m, err
}

// die declares the case's queue with these arguments, publishes a message to it
// and returns the dead letter as a fanout exchange of the case gets it.
func (p *poisoned) die(args amqp.Table, m amqp.Publishing) (amqp.Delivery, error) {
	ch, err := p.channel()
	if err != nil {
		return amqp.Delivery{}, err
	}
	dead := p.id + "-dead"
	if err := ch.ExchangeDeclare(dead, amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
		return amqp.Delivery{}, err
	}
	if err := p.sink(ch, dead); err != nil {
		return amqp.Delivery{}, err
	}
	all := amqp.Table{"x-message-ttl": dieAfter, "x-dead-letter-exchange": dead}
	for name, value := range args {
		all[name] = value
	}
	if _, err := ch.QueueDeclare(p.id, true, false, false, false, all); err != nil {
		return amqp.Delivery{}, err
	}
	m.Body = []byte(p.id)
	if err := p.publish(ch, "", p.id, m); err != nil {
		return amqp.Delivery{}, err
	}
	return p.take(ch, p.id+"-sink")
}

// dieWithKey checks that the dead letter has the routing key.
func (p *poisoned) dieWithKey(args amqp.Table, key string) error {
	d, err := p.die(args, amqp.Publishing{})
	if err == nil && (d.RoutingKey != key || string(d.Body) != p.id) {
		err = fmt.Errorf("the dead letter is %q with key %.300q", d.Body, d.RoutingKey)
	}
	return err
}

// mustServeEverywhere checks that no node has died, and that each takes a message for
// every queue there is.
func (r *run) mustServeEverywhere() {
	r.Helper()
	for _, n := range r.Nodes {
		if !n.Alive() {
			r.Fatalf("node %d is dead", n.Number)
		}
	}
	var queues []struct{ Vhost, Name string }
	r.must(r.Nodes[0].Call(r.ctx, http.MethodGet, "/api/queues?disable_stats=true", nil, &queues))
	for _, n := range r.Nodes {
		conn, err := client.Connect(r.ctx, n.URI())
		r.must(err)
		ch, err := conn.Channel()
		r.must(err)
		r.must(ch.Confirm(false))
		var confirms []*amqp.DeferredConfirmation
		for _, q := range queues {
			if q.Vhost != "/" || strings.HasPrefix(q.Name, "amq.delayed-") {
				continue // only the broker uses these
			}
			c, err := ch.PublishWithDeferredConfirmWithContext(r.ctx, "", q.Name, true, false, amqp.Publishing{})
			r.must(err)
			confirms = append(confirms, c)
		}
		ctx, cancel := context.WithTimeout(r.ctx, arriveWithin)
		for i, c := range confirms {
			if ok, err := c.WaitContext(ctx); err != nil || !ok {
				r.Errorf("node %d, queue %.60s: confirmed %v, %v", n.Number, queues[i].Name, ok, err)
			}
		}
		cancel()
		r.must(conn.CloseDeadline(time.Now().Add(time.Minute)))
	}
	r.Logf("%d queues at %d nodes", len(queues), len(r.Nodes))
}

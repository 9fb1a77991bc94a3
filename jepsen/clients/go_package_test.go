package clients

import (
	"bufio"
	"context"
	"errors"
	"os"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/amqp/client"
)

// runGoPackage is the environment variable that makes the test binary the program over amqp/client.
const runGoPackage = "QUORATE_GO_PACKAGE"

// goPackaged is the program over amqp/client.
type goPackaged struct {
	goSteps
	ctx    context.Context
	client *client.Client
}

func goPackage(addresses []string, prefix string) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	g := &goPackaged{goSteps: goSteps{addresses: addresses, prefix: prefix, in: bufio.NewReader(os.Stdin)}, ctx: ctx}
	g.connect(addresses[0])
	g.settled()
	g.refused()
	g.retried()
	g.deferred()
	g.scheduled()
	g.paused()
	g.sessions()
	g.lost()
	g.closed()
	g.connect(os.Getenv(slowBroker))
	g.stalled()
	g.connect(addresses[0])
	g.held()
}

func (g *goPackaged) connect(address string) {
	g.open(g.dial(address, time.Minute))
	need(0, g.ch.Qos(10, 0, false))
	g.client = need(client.New(g.ch))
}

// queue declares a queue, publishes to it and consumes from it, with the queue's name as consumer tag.
func (g *goPackaged) queue(name string, arguments amqp.Table, bodies ...string) (string, <-chan amqp.Delivery) {
	q := g.name(name)
	need(g.ch.QueueDeclare(q, true, false, false, false, nil))
	for _, body := range bodies {
		g.publish("", q, body)
	}
	return q, need(g.ch.Consume(q, q, false, false, false, false, arguments))
}

// next takes a message with a body.
func (g *goPackaged) next(from <-chan amqp.Delivery, body string) *client.Message {
	d, ok := <-from
	check(ok && string(d.Body) == body, string(d.Body), "not", body)
	return g.client.Message(d)
}

// refuses checks what the broker says.
func refuses(err error, verb string, code int, text string) {
	var refused *client.Error
	check(errors.As(err, &refused) && refused.Verb == verb && refused.Code == code && strings.Contains(refused.Text, text), err)
}

func lost(err error) { check(errors.Is(err, client.ErrLockLost), err) }

func (g *goPackaged) settled() {
	_, from := g.queue("settled", nil, "a", "b", "c")
	a, b := g.next(from, "a"), g.next(from, "b")
	need(0, a.Ack(g.ctx))
	lost(a.Ack(g.ctx))
	_, err := a.Hold(g.ctx, 0)
	lost(err)
	_, err = b.Hold(g.ctx, 0)
	check(errors.Is(err, client.ErrNoLock), err)
	need(0, b.Requeue(g.ctx))
	c := g.next(from, "c")
	need(0, g.next(from, "b").Reject(g.ctx))
	need(0, c.DeadLetter(g.ctx, "wrong", "without an amount"))
	done("settled")
}

func (g *goPackaged) refused() {
	q, from := g.queue("refused", amqp.Table{"x-lock-duration": 30000}, "a")
	a := g.next(from, "a")
	_, err := a.Renew(g.ctx, time.Millisecond)
	refuses(err, "lock.renew", 406, "x-lock-duration")
	refuses(a.Defer(g.ctx, "", client.When{}), "message.defer", 406, "requires x-deferral-token")
	refuses(a.Retry(g.ctx, client.When{}, true), "message.retry", 406, "requires either x-delay")
	refuses(g.client.Cancel(g.ctx, client.InQueue(q), "nothing"), "schedule.cancel", 404, "nothing")
	refuses(g.client.Pause(g.ctx, "nowhere", "", 0), "queue.pause", 404, "nowhere")
	refuses(g.client.Pause(g.ctx, q, strings.Repeat("x", 256), 0), "queue.pause", 406, "x-reason")
	refuses(g.client.ReceiveDeferred(g.ctx, q, q), "message.receive-deferred", 406, "x-deferral-tokens")
	lost(g.client.MessageWithToken("no token").Ack(g.ctx))
	_, err = g.client.Group(q, q, "g").State(g.ctx)
	check(err != nil, "a group of a queue without groups")
	need(0, a.Ack(g.ctx))
	done("refused")
}

func (g *goPackaged) retried() {
	_, from := g.queue("retried", nil, "a")
	need(0, g.next(from, "a").Retry(g.ctx, client.After(50*time.Millisecond), true))
	need(0, g.next(from, "a").Retry(g.ctx, client.At(time.Now()), false))
	need(0, g.next(from, "a").Ack(g.ctx))
	done("retried")
}

func (g *goPackaged) deferred() {
	q, from := g.queue("deferred", nil, "a", "b")
	a, b := g.next(from, "a"), g.next(from, "b")
	need(0, a.Defer(g.ctx, "token", client.When{}))
	refuses(b.Defer(g.ctx, "token", client.When{}), "message.defer", 405, "RESOURCE_LOCKED")
	refuses(g.client.ReceiveDeferred(g.ctx, q, q, "another"), "message.receive-deferred", 404, "another")
	need(0, g.client.ReceiveDeferred(g.ctx, q, q, "token"))
	need(0, g.next(from, "a").Ack(g.ctx))
	need(0, b.Defer(g.ctx, "token", client.After(50*time.Millisecond)))
	need(0, g.next(from, "b").Ack(g.ctx))
	done("deferred")
}

func (g *goPackaged) scheduled() {
	q, from := g.queue("scheduled", nil)
	schedule := func(body string, s client.Scheduled) error {
		return g.client.Schedule(g.ctx, "", q, amqp.Publishing{Body: []byte(body)}, s)
	}
	for _, id := range []string{"a", "b", "c"} {
		need(0, schedule(id, client.Scheduled{When: client.After(time.Hour), ID: id}))
	}
	check(errors.Is(schedule("a", client.Scheduled{When: client.After(time.Hour), ID: "a", Conflict: client.Refuse}), client.ErrNacked), "a second a")
	in := client.InQueue(q)
	need(0, g.client.Cancel(g.ctx, in, "a"))
	refuses(g.client.Cancel(g.ctx, in, "a"), "schedule.cancel", 404, "'a'")
	need(0, g.client.Reschedule(g.ctx, in, "b", client.After(50*time.Millisecond)))
	need(0, g.next(from, "b").Ack(g.ctx))
	need(0, g.client.Fire(g.ctx, in, "c"))
	need(0, g.next(from, "c").Ack(g.ctx))
	need(0, schedule("d", client.Scheduled{When: client.At(time.Now().Add(50 * time.Millisecond))}))
	need(0, g.next(from, "d").Ack(g.ctx))
	exchange := g.name("delayed")
	need(0, g.ch.ExchangeDeclare(exchange, "fanout", true, false, false, false, amqp.Table{"x-delayed-exchange": true}))
	need(0, g.ch.QueueBind(q, "", exchange, false, nil))
	need(0, g.ch.PublishWithContext(g.ctx, exchange, "", false, false, amqp.Publishing{Headers: amqp.Table{"x-delay": 3600000, "x-schedule-id": "e"}}))
	need(0, g.client.Cancel(g.ctx, client.InExchange(exchange), "e"))
	refuses(g.client.Cancel(g.ctx, client.InExchange(exchange), "e"), "schedule.cancel", 404, "'e'")
	err := g.client.Schedule(g.ctx, "", "nowhere", amqp.Publishing{}, client.Scheduled{When: client.After(time.Hour)})
	refuses(err, "schedule", 312, "NO_ROUTE")
	done("scheduled")
}

func (g *goPackaged) paused() {
	q, from := g.queue("paused", nil)
	need(0, g.client.Pause(g.ctx, q, "the bank is down", 0))
	g.publish("", q, "a")
	refuses(g.client.ReceiveDeferred(g.ctx, q, q, "token"), "message.receive-deferred", 405, "paused")
	need(0, g.client.Resume(g.ctx, q))
	need(0, g.next(from, "a").Ack(g.ctx))
	began := time.Now()
	need(0, g.client.Pause(g.ctx, q, "", 300*time.Millisecond))
	g.publish("", q, "b")
	need(0, g.next(from, "b").Ack(g.ctx))
	check(time.Since(began) >= 300*time.Millisecond, "early", time.Since(began))
	done("paused")
}

func (g *goPackaged) sessions() {
	q := g.name("sessions")
	need(g.ch.QueueDeclare(q, true, false, false, false, amqp.Table{"x-message-groups": true}))
	for _, m := range [][2]string{{"x", "1"}, {"y", "1"}, {"x", "2"}} {
		need(0, g.ch.PublishWithContext(g.ctx, "", q, false, false, amqp.Publishing{Headers: amqp.Table{"x-group-id": m[0]}, Body: []byte(m[1])}))
	}
	s := need(g.client.Accept(g.ctx, q, "", amqp.Table{"x-lock-duration": 30000}))
	check(s.ID == "x", s.ID)
	held := need(s.Hold(g.ctx))
	need(0, s.SetState(g.ctx, []byte("half done")))
	receive := func(body string) *client.Message {
		m := need(s.Receive(g.ctx))
		check(string(m.Delivery.Body) == body, string(m.Delivery.Body))
		return m
	}
	need(0, receive("1").Ack(g.ctx))
	receive("2") // it returns
	check(held.Err() == nil, context.Cause(held))
	need(0, s.Close(g.ctx))
	check(held.Err() != nil, "the session is over")
	s = need(g.client.Accept(g.ctx, q, "x", amqp.Table{"x-lock-duration": 30000}))
	check(string(need(s.State(g.ctx))) == "half done", "the state")
	check(need(s.Renew(g.ctx)) > 20*time.Second, "the lock of the group")
	need(0, receive("2").Ack(g.ctx))
	need(0, s.Close(g.ctx))

	need(0, g.ch.PublishWithContext(g.ctx, "", q, false, false, amqp.Publishing{Headers: amqp.Table{"x-group-id": "z"}, Body: []byte("1")}))
	s = need(g.client.Accept(g.ctx, q, "", nil))
	check(s.ID == "y", s.ID)
	need(0, receive("1").Ack(g.ctx))
	_, err := s.Receive(g.ctx) // of z
	check(errors.Is(err, client.ErrSessionEnded), err)
	need(0, s.Close(g.ctx))
	s = need(g.client.Accept(g.ctx, q, "z", nil))
	need(0, receive("1").Ack(g.ctx))
	need(0, s.Close(g.ctx))

	from := need(g.ch.Consume(q, q, false, false, false, false, amqp.Table{"x-lock-duration": 30000}))
	need(0, g.ch.PublishWithContext(g.ctx, "", q, false, false, amqp.Publishing{Headers: amqp.Table{"x-group-id": 7}, Body: []byte("1")}))
	g.next(from, "1")
	group := g.client.Group(q, q, "7")
	held = need(group.Hold(g.ctx))
	need(0, group.Release(g.ctx))
	<-held.Done()
	check(context.Cause(held) == context.Canceled, context.Cause(held))
	need(0, g.next(from, "1").Ack(g.ctx))
	_, err = group.Renew(g.ctx)
	lost(err)
	need(0, g.ch.Cancel(q, false))

	short, cancel := context.WithTimeout(g.ctx, 100*time.Millisecond)
	defer cancel()
	_, err = g.client.Accept(short, q, "z", nil)
	check(errors.Is(err, context.DeadlineExceeded), err)
	done("sessions")
}

// lost loses a lock: another channel settles the message.
func (g *goPackaged) lost() {
	_, from := g.queue("lost", amqp.Table{"x-lock-duration": 3000, "x-delivery-info": true}, "a", "b", "c")
	a, b, c := g.next(from, "a"), g.next(from, "b"), g.next(from, "c")
	ha, hb, hc := need(a.Hold(g.ctx, 0)), need(b.Hold(g.ctx, 30*time.Second)), need(c.Hold(g.ctx, 12*time.Hour))
	other := need(client.New(need(g.conn.Channel())))
	for _, m := range []*client.Message{a, c} {
		need(0, other.MessageWithToken(m.Delivery.Headers["x-lock-token"].(string)).Ack(g.ctx))
	}
	lost(c.Ack(g.ctx))
	<-hc.Done() // long before a renewal
	lost(context.Cause(hc))
	<-ha.Done()
	lost(context.Cause(ha))
	lost(a.Ack(g.ctx))
	check(hb.Err() == nil, context.Cause(hb))
	need(0, b.Ack(g.ctx))
	<-hb.Done()
	check(context.Cause(hb) == context.Canceled, context.Cause(hb))
	done("lost")
}

// closed loses the channel.
func (g *goPackaged) closed() {
	_, from := g.queue("closed", amqp.Table{"x-lock-duration": 43200000}, "a")
	a := g.next(from, "a")
	held := need(a.Hold(g.ctx, 0))
	need(0, g.ch.Close())
	<-held.Done()
	check(errors.Is(context.Cause(held), client.ErrClosed), context.Cause(held))
	err := a.Ack(g.ctx)
	check(errors.Is(err, client.ErrClosed) && !errors.Is(err, client.ErrUnknown), err)
	done("closed")
}

// stalled gets no answers any more.
func (g *goPackaged) stalled() {
	q, from := g.queue("stalled", amqp.Table{"x-lock-duration": 3000}, "a")
	held := need(g.next(from, "a").Hold(g.ctx, 0))
	g.ask("stall")
	for _, call := range []func(context.Context) error{
		func(ctx context.Context) error { return g.client.Resume(ctx, q) },
		func(ctx context.Context) error {
			return g.client.Schedule(ctx, "", q, amqp.Publishing{}, client.Scheduled{When: client.After(time.Hour)})
		},
	} {
		short, cancel := context.WithTimeout(g.ctx, 100*time.Millisecond)
		err := call(short)
		check(errors.Is(err, client.ErrUnknown) && errors.Is(err, context.DeadlineExceeded), err)
		err = call(short) // it is not sent
		check(!errors.Is(err, client.ErrUnknown) && errors.Is(err, context.DeadlineExceeded), err)
		cancel()
	}
	<-held.Done()
	lost(context.Cause(held))
	done("stalled")
}

// held holds a lock for longer than it lasts, while the queue's leader is killed.
func (g *goPackaged) held() {
	q, from := g.queue("held", amqp.Table{"x-lock-duration": lockSeconds * 1000}, "a")
	g.ask("lead " + q)
	m := g.next(from, "a")
	began := time.Now()
	held := need(m.Hold(g.ctx, 0))
	g.ask("kill")
	<-time.After(time.Until(began.Add((lockSeconds + 1) * time.Second)))
	check(held.Err() == nil, context.Cause(held))
	need(0, m.Ack(g.ctx))
	done("held")
}

// lockSeconds is how long the lock lasts that is held while the leader is killed.
const lockSeconds = 12

package clients

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// runGoClient is the environment variable that makes the test binary the
// program of amqp091-go.
const runGoClient = "QUORATE_GO_CLIENT"

// goSteps is the program of amqp091-go.
type goSteps struct {
	addresses []string
	prefix    string
	in        *bufio.Reader
	conn      *amqp.Connection
	ch        *amqp.Channel
}

func goClient(addresses []string, prefix string) {
	g := &goSteps{addresses: addresses, prefix: prefix, in: bufio.NewReader(os.Stdin)}
	g.open(g.dial(addresses[2], time.Minute))
	g.declare()
	g.consume()
	g.expiry()
	g.cancel()
	g.lostHeartbeat()
	g.reconnect()
}

// need ends the program on an error.
func need[T any](v T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return v
}

func check(holds bool, what ...any) {
	if !holds {
		need(0, fmt.Errorf("check failed: %v", what))
	}
}

func done(step string) { fmt.Println("ok", step) }

func (g *goSteps) ask(what string) {
	fmt.Println(what)
	need(g.in.ReadString('\n'))
}

func (g *goSteps) name(suffix string) string { return g.prefix + "." + suffix }

func (g *goSteps) dial(address string, heartbeat time.Duration) *amqp.Connection {
	return need(amqp.DialConfig("amqp://guest:guest@"+address, amqp.Config{Heartbeat: heartbeat}))
}

func (g *goSteps) open(conn *amqp.Connection) {
	g.conn, g.ch = conn, need(conn.Channel())
	need(0, g.ch.Confirm(false))
}

func (g *goSteps) publish(exchange, key, body string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := need(g.ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false,
		amqp.Publishing{Body: []byte(body), DeliveryMode: amqp.Persistent}))
	check(need(c.WaitContext(ctx)), "not confirmed", body)
}

// inbox consumes from a queue.
func (g *goSteps) inbox(ch *amqp.Channel, queue string) <-chan amqp.Delivery {
	return need(ch.Consume(g.name(queue), queue, false, false, false, false, nil))
}

func receive(in <-chan amqp.Delivery, body string) amqp.Delivery {
	select {
	case d := <-in:
		check(string(d.Body) == body, string(d.Body), "instead of", body)
		return d
	case <-time.After(time.Minute):
		check(false, "nothing came instead of", body)
		panic("unreachable")
	}
}

func (g *goSteps) declare() {
	need(0, g.ch.ExchangeDeclare(g.name("x"), "direct", true, false, false, false, nil))
	need(g.ch.QueueDeclare(g.name("q"), true, false, false, false, amqp.Table{"x-queue-type": "quorum"}))
	need(0, g.ch.QueueBind(g.name("q"), "k", g.name("x"), false, nil))
	done("declare")
	for i := range 100 {
		g.publish(g.name("x"), "k", strconv.Itoa(i))
	}
	done("confirms")
}

func (g *goSteps) consume() {
	need(0, g.ch.Qos(10, 0, false))
	in := g.inbox(g.ch, "q")
	for i := 0; i < 100; i += 10 {
		var last amqp.Delivery
		for n := i; n < i+10; n++ {
			last = receive(in, strconv.Itoa(n))
		}
		select {
		case d := <-in:
			check(false, "more than the prefetch", string(d.Body))
		case <-time.After(50 * time.Millisecond):
		}
		need(0, last.Ack(true))
	}
	done("prefetch")
	g.publish(g.name("x"), "k", "again")
	d := receive(in, "again")
	check(!d.Redelivered, "redelivered")
	need(0, d.Nack(false, true))
	d = receive(in, "again")
	check(d.Redelivered, "not redelivered")
	need(0, d.Ack(false))
	need(0, g.ch.Cancel("q", false))
	done("requeue")
}

func (g *goSteps) expiry() {
	need(g.ch.QueueDeclare(g.name("dead"), true, false, false, false, nil))
	need(g.ch.QueueDeclare(g.name("ttl"), true, false, false, false, amqp.Table{
		"x-message-ttl": 200, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": g.name("dead"),
	}))
	g.publish("", g.name("ttl"), "mortal")
	d := receive(g.inbox(g.ch, "dead"), "mortal")
	deaths, _ := d.Headers["x-death"].([]any)
	check(len(deaths) == 1, d.Headers)
	death, _ := deaths[0].(amqp.Table)
	check(death["reason"] == "expired" && death["queue"] == g.name("ttl"), death)
	need(0, d.Ack(false))
	need(0, g.ch.Cancel("dead", false))
	done("expiry")
}

func (g *goSteps) cancel() {
	need(g.ch.QueueDeclare(g.name("gone"), true, false, false, false, nil))
	cancelled := g.ch.NotifyCancel(make(chan string, 1))
	in := g.inbox(g.ch, "gone")
	need(need(g.conn.Channel()).QueueDelete(g.name("gone"), false, false, false))
	select {
	case tag := <-cancelled:
		check(tag == "gone", tag)
	case <-time.After(time.Minute):
		check(false, "not cancelled")
	}
	_, more := <-in
	check(!more, "the cancelled consumer goes on")
	done("cancel")
}

func (g *goSteps) lostHeartbeat() {
	silent := g.dial(g.addresses[1], 2*time.Second)
	lost := silent.NotifyClose(make(chan *amqp.Error, 1))
	g.publish(g.name("x"), "k", "held")
	receive(g.inbox(need(silent.Channel()), "q"), "held")
	g.ask("freeze")
	<-lost
	d := receive(g.inbox(g.ch, "q"), "held")
	check(d.Redelivered, "not redelivered")
	need(0, d.Ack(false))
	need(0, g.ch.Cancel("q", false))
	done("silence")
}

func (g *goSteps) reconnect() {
	lost := g.conn.NotifyClose(make(chan *amqp.Error, 1))
	g.publish(g.name("x"), "k", "before")
	g.ask("kill")
	<-lost
	for attempt := 0; ; attempt++ {
		conn, err := amqp.Dial("amqp://guest:guest@" + g.addresses[attempt%len(g.addresses)])
		if err == nil {
			g.open(conn)
			break
		}
		check(attempt < 300, "no node lets us in", err)
	}
	g.publish(g.name("x"), "k", "after")
	in := g.inbox(g.ch, "q")
	for _, want := range []string{"before", "after"} {
		need(0, receive(in, want).Ack(false))
	}
	need(0, g.conn.Close())
	done("reconnect")
}

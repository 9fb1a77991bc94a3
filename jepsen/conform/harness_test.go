package conform

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

// Bounds of waiting. They are not promises about speed: a machine that does
// other things must not fail a row.
const (
	patience = time.Minute
	poll     = 20 * time.Millisecond
	// rowLimit ends a row that waits for what has no bound of its own.
	rowLimit = 6 * time.Minute
	// rowsAtOnce is how many rows run side by side. They mostly wait for an
	// instant, so it does not depend on the number of processors.
	rowsAtOnce = "12"
	// slack is how much earlier than its instant something may be seen: clocks
	// of milliseconds are rounded down.
	slack = 5 * time.Millisecond
)

// server is the binary under test.
var server string

// options are those of a cluster's nodes.
func options(dir string, nodes int, args ...string) cluster.Options {
	return cluster.Options{Binary: server, Dir: dir, Nodes: nodes, Args: args}
}

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "conform")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := flag.Set("test.parallel", rowsAtOnce); err != nil { // -parallel is parsed after it, and wins
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	flag.Parse()
	if server, err = build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared.dir, single.dir = dir, filepath.Join(dir, single.name)
	machine = stall.Start()
	defer machine.Stop()
	code := m.Run()
	for _, s := range []*sharedCluster{&shared, &single} {
		if err := s.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

// shared is the cluster of all rows that leave the nodes alone.
var shared sharedCluster

type sharedCluster struct {
	name  string
	nodes int                          // 0: three
	ready func(*cluster.Cluster) error // waits for what its rows need
	dir   string
	once  sync.Once
	c     *cluster.Cluster
	err   error
}

func (s *sharedCluster) mustGet(t *testing.T) *cluster.Cluster {
	t.Helper()
	s.once.Do(func() {
		if s.err = os.MkdirAll(s.dir, 0o700); s.err != nil {
			return
		}
		if s.c, s.err = cluster.Start(context.Background(), options(s.dir, s.nodes)); s.err == nil && s.ready != nil {
			s.err = s.ready(s.c)
		}
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.c
}

func (s *sharedCluster) stop() error {
	if s.c == nil {
		return nil
	}
	err := s.c.Stop()
	for _, line := range s.c.Complaints() {
		err = errors.Join(err, errors.New("log: "+line))
	}
	return err
}

// mustCluster starts a cluster for one test.
func mustCluster(t *testing.T, args ...string) *cluster.Cluster {
	t.Helper()
	return mustNodes(t, 3, args...)
}

func mustNodes(t *testing.T, nodes int, args ...string) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Start(t.Context(), options(t.TempDir(), nodes, args...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		for _, line := range c.Complaints() {
			t.Errorf("log: %s", line)
		}
	})
	return c
}

// T is one row's test.
type T struct {
	*testing.T
	*cluster.Cluster
	*links
	*timing
	ctx     context.Context
	row     string
	due     time.Time // of what it waits for; zero: that has no instant of its own
	*report           // of a play; nil: what is wrong fails the test at once
}

// links are a row's connections.
type links struct {
	connecting sync.Mutex
	conns      []*amqp.Connection // of the nodes, opened when needed
	main       *amqp.Channel
}

func newT(t *testing.T, c *cluster.Cluster, row string) *T {
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), rowLimit)
	r := &T{
		T: t, Cluster: c, ctx: ctx, row: row,
		links: &links{conns: make([]*amqp.Connection, len(c.Nodes))}, timing: &timing{began: began},
	}
	t.Cleanup(func() {
		for _, conn := range r.conns {
			if conn != nil {
				_ = conn.CloseDeadline(time.Now().Add(time.Second)) // perhaps it was cut on purpose
			}
		}
		cancel()
	})
	return r
}

// A row takes for granted that what it does takes less time than what it waits for. On a machine that stalls for longer than
// tooSlow, that may be wrong: a row that fails there is played again, up to this many times.
const (
	tooSlow = 100 * time.Millisecond
	plays   = 3
)

// report is what a play of a row found wrong.
type report struct {
	before int // plays
	mu     sync.Mutex
	said   strings.Builder
}

// slower is how many times longer than usual what a row waits for may take: rows for which the machine is often too slow ask.
func (t *T) slower() int {
	k := 1
	for n := 0; t.report != nil && n < t.before; n++ {
		k *= 3
	}
	return k
}

// play runs a row that has been played before some times, and returns what it found wrong.
func (t *T) play(run func(*T), before int) string {
	t.report = &report{before: before}
	played := make(chan struct{})
	go func() {
		defer close(played)
		run(t)
	}()
	<-played
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.said.String()
}

// wrong reports whether what is wrong is kept for the end of the play.
func (t *T) wrong(what string) bool {
	if t.report == nil {
		return false
	}
	var callers [8]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers[:])])
	t.mu.Lock()
	defer t.mu.Unlock()
	for f, more := frames.Next(); more && strings.HasSuffix(f.File, "_test.go"); f, more = frames.Next() {
		fmt.Fprintf(&t.said, "%s:%d: ", filepath.Base(f.File), f.Line)
	}
	fmt.Fprintln(&t.said, strings.TrimSuffix(what, "\n"))
	return true
}

// What follows is that of testing.T, of a play.

func (t *T) Error(what ...any) {
	t.Helper()
	if !t.wrong(fmt.Sprintln(what...)) {
		t.T.Error(what...)
	}
}

func (t *T) Errorf(format string, of ...any) {
	t.Helper()
	if !t.wrong(fmt.Sprintf(format, of...)) {
		t.T.Errorf(format, of...)
	}
}

func (t *T) Fatal(what ...any) {
	t.Helper()
	if !t.wrong(fmt.Sprintln(what...)) {
		t.T.Fatal(what...)
	}
	runtime.Goexit()
}

func (t *T) Fatalf(format string, of ...any) {
	t.Helper()
	if !t.wrong(fmt.Sprintf(format, of...)) {
		t.T.Fatalf(format, of...)
	}
	runtime.Goexit()
}

// name is the row's own name for a thing.
func (t *T) name(of string) string { return t.row + "." + of }

func (t *T) must(err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// conn returns the row's connection to node n, counted from 0.
func (t *T) conn(n int) *amqp.Connection {
	t.Helper()
	t.connecting.Lock()
	defer t.connecting.Unlock()
	if t.conns[n] == nil || t.conns[n].IsClosed() {
		conn, err := client.Connect(t.ctx, t.Nodes[n].URI())
		t.must(err)
		t.conns[n] = conn
	}
	return t.conns[n]
}

// open opens a channel to the first node.
func (t *T) open() *amqp.Channel { t.Helper(); return t.openAt(0) }

// openAt opens a channel to node n, counted from 0.
func (t *T) openAt(n int) *amqp.Channel {
	t.Helper()
	ch, err := t.conn(n).Channel()
	t.must(err)
	return ch
}

// ch is the row's main channel, in confirm mode; a new one if it was closed.
func (t *T) ch() *amqp.Channel {
	t.Helper()
	if t.main == nil || t.main.IsClosed() {
		t.main = t.open()
		t.must(t.main.Confirm(false))
	}
	return t.main
}

// args makes a table of names and values in turn.
func args(pairs ...any) amqp.Table {
	table := amqp.Table{}
	for i := 0; i < len(pairs); i += 2 {
		table[pairs[i].(string)] = pairs[i+1]
	}
	return table
}

// with returns the arguments of a quorum queue and more.
func with(pairs ...any) amqp.Table {
	table := args(pairs...)
	if table["x-queue-type"] == nil {
		table["x-queue-type"] = "quorum"
	}
	return table
}

// queue declares a durable quorum queue with more arguments.
func (t *T) queue(name string, pairs ...any) string {
	t.Helper()
	q, table := t.name(name), with(pairs...)
	ch := t.ch()
	t.asks(table)
	defer t.begins()()
	_, err := ch.QueueDeclare(q, true, false, false, false, table)
	t.must(err)
	return q
}

// exchange declares a durable exchange.
func (t *T) exchange(name, kind string, pairs ...any) string {
	t.Helper()
	x := t.name(name)
	table, ch := args(pairs...), t.ch()
	t.asks(table)
	defer t.begins()()
	t.must(ch.ExchangeDeclare(x, kind, true, false, false, false, table))
	return x
}

func (t *T) bind(queue, key, exchange string, pairs ...any) {
	t.Helper()
	t.must(t.ch().QueueBind(queue, key, exchange, false, args(pairs...)))
}

// dead declares a fanout exchange X with a queue D behind it.
func (t *T) dead() (x, d string) {
	t.Helper()
	x, d = t.exchange("X", "fanout"), t.queue("D")
	t.bind(d, "", x)
	return x, d
}

// policy sets a policy for the row's queue and waits until it is in force.
func (t *T) policy(name, queue string, priority int, definition map[string]any) {
	t.Helper()
	for key, value := range definition {
		t.asks(args("x-"+key, value))
	}
	defer t.begins()()
	t.must(t.Nodes[0].SetPolicy(t.ctx, cluster.Policy{
		Name: t.name(name), Pattern: "^" + queue + "$", ApplyTo: "queues", Priority: priority, Definition: definition,
	}))
	t.awaitPolicy(queue, t.name(name))
}

// clearPolicy removes a policy and waits until the queue has none.
func (t *T) clearPolicy(name, queue string) {
	t.Helper()
	t.must(t.Nodes[0].ClearPolicy(t.ctx, cluster.Policy{Name: t.name(name)}))
	t.awaitPolicy(queue, "")
}

// awaitPolicy waits until a queue names its policy.
func (t *T) awaitPolicy(queue, policy string) {
	t.Helper()
	t.eventually(queue+" has policy "+policy, func() error {
		q, err := t.Nodes[0].Queue(t.ctx, queue)
		if err == nil && q.Policy != policy {
			err = fmt.Errorf("it has %q", q.Policy)
		}
		return err
	})
}

// Options of a message.
type option func(*amqp.Publishing)

func expiration(s string) option  { return func(p *amqp.Publishing) { p.Expiration = s } }
func body(s string) option        { return func(p *amqp.Publishing) { p.Body = []byte(s) } }
func priority(n uint8) option     { return func(p *amqp.Publishing) { p.Priority = n } }
func headers(pairs ...any) option { return func(p *amqp.Publishing) { p.Headers = args(pairs...) } }

// send publishes and returns whether the broker confirmed it or refused it.
func (t *T) send(exchange, key string, options ...option) (acked bool) {
	t.Helper()
	defer t.begins()()
	return t.sendLater(exchange, key, options...)()
}

// sendLater publishes; what it returns waits for the broker's answer.
func (t *T) sendLater(exchange, key string, options ...option) (acked func() bool) {
	t.Helper()
	p := amqp.Publishing{DeliveryMode: amqp.Persistent}
	for _, o := range options {
		o(&p)
	}
	t.asks(p.Headers)
	if life, err := strconv.Atoi(p.Expiration); err == nil {
		t.asks(args("x-message-ttl", int64(life)))
	}
	c, err := t.ch().PublishWithDeferredConfirmWithContext(t.ctx, exchange, key, false, false, p)
	t.must(err)
	return func() bool {
		t.Helper()
		acked, err := c.WaitContext(t.ctx)
		t.must(err)
		return acked
	}
}

// publish sends a message to a queue, which must confirm it.
func (t *T) publish(queue string, options ...option) (at time.Time) {
	t.Helper()
	at = time.Now()
	if !t.send("", queue, options...) {
		t.Fatalf("a publish to %s is refused", queue)
	}
	return at
}

// publishN sends messages with the bodies 1 … n.
func (t *T) publishN(queue string, n int, options ...option) (at time.Time) {
	t.Helper()
	defer t.begins()()
	at = time.Now()
	for i := range n {
		t.publish(queue, append(options, body(fmt.Sprint(i+1)))...)
	}
	return at
}

// ready is the count of ready messages that a passive declare tells.
func (t *T) ready(queue string) int {
	t.Helper()
	q, err := t.ch().QueueDeclarePassive(queue, true, false, false, false, nil)
	t.must(err)
	return q.Messages
}

// exists asks by a passive declare whether there is such a queue.
func (t *T) exists(queue string) bool {
	t.Helper()
	ch := t.open()
	defer ch.Close()
	_, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil && !isCode(err, amqp.NotFound) {
		t.Fatal(err)
	}
	return err == nil
}

// readyUntil checks that a queue has n ready messages all the time until an
// instant.
func (t *T) readyUntil(queue string, n int, until time.Time) {
	t.Helper()
	t.holdsUntil(until.Add(-quiet), func() error {
		if have := t.ready(queue); have != n {
			return fmt.Errorf("%s has %d ready messages, not %d", queue, have, n)
		}
		return nil
	})
	t.holdsUntil(until, func() error {
		if have, led := t.glance(queue); led && have != n {
			return fmt.Errorf("%s has %d ready messages, not %d", queue, have, n)
		}
		return nil
	})
}

// existsUntil checks that there is a queue all the time until an instant.
func (t *T) existsUntil(queue string, until time.Time) {
	t.Helper()
	t.holdsUntil(until.Add(-quiet), func() error {
		if !t.exists(queue) {
			return fmt.Errorf("%s is gone", queue)
		}
		return nil
	})
	t.holdsUntil(until, func() error {
		if have, _ := t.glance(queue); have == gone {
			return fmt.Errorf("%s is gone", queue)
		}
		return nil
	})
}

// holdsUntil repeats a check until an instant, the more often the nearer that is:
// what has happened early can be seen from then on. What it finds counts only if it
// has ended before: it is not known when within its time it looked.
func (t *T) holdsUntil(until time.Time, check func() error) {
	t.Helper()
	for {
		err := check()
		left := time.Until(until)
		if left < slack {
			return
		} else if err != nil {
			t.Fatalf("%v early: %v", left, err)
		}
		<-time.After(max(poll, min(left/8, quiet)))
	}
}

// waitUntil waits for an instant; nothing is asked of the broker meanwhile.
func (t *T) waitUntil(at time.Time) {
	t.Helper()
	select {
	case <-t.ctx.Done():
		t.Fatal(t.ctx.Err())
	case <-time.After(time.Until(at)):
	}
}

// get takes a message, unsettled; nil: the queue is empty.
func (t *T) get(queue string) *amqp.Delivery {
	t.Helper()
	d, ok, err := t.ch().Get(queue, false)
	t.must(err)
	if !ok {
		return nil
	}
	return &d
}

// mustGet takes a message that must be there.
func (t *T) mustGet(queue string) *amqp.Delivery {
	t.Helper()
	d := t.get(queue)
	if d == nil {
		t.Fatalf("%s is empty", queue)
	}
	return d
}

// mustNotGet checks that a queue is empty.
func (t *T) mustNotGet(queue string) {
	t.Helper()
	if d := t.get(queue); d != nil {
		t.Fatalf("%s has a message: %q", queue, d.Body)
	}
}

// bodies of messages, joined.
func bodies(all []*amqp.Delivery) string {
	var b []string
	for _, d := range all {
		b = append(b, string(d.Body))
	}
	return strings.Join(b, " ")
}

// consume starts a consumer on a channel of its own.
func (t *T) consume(queue string, prefetch int, pairs ...any) (*amqp.Channel, <-chan amqp.Delivery) {
	t.Helper()
	ch := t.open()
	t.must(ch.Qos(prefetch, 0, false))
	table := args(pairs...)
	t.asks(table)
	d, err := ch.Consume(queue, "", false, false, false, false, table)
	t.must(err)
	return ch, d
}

// nothingNext checks that a consumer gets nothing until an instant.
func (t *T) nothingNext(from <-chan amqp.Delivery, until time.Time) {
	t.Helper()
	select {
	case d, ok := <-from:
		t.Fatalf("unexpected delivery (open: %v): %q", ok, d.Body)
	case <-time.After(time.Until(until)):
	}
}

func isCode(err error, code int) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == code
}

// refused checks that a call ends with a channel error of the code, whose text
// contains the words, and that the connection goes on.
func (t *T) refused(code int, words string, call func(ch *amqp.Channel) error) {
	t.Helper()
	ch := t.open()
	err := call(ch)
	t.mustBe(err, code, words)
	if !ch.IsClosed() {
		t.Errorf("the channel is open after %v", err)
	}
	t.must(t.open().Close())
}

// mustBe checks an error's code and that its text contains words.
func (t *T) mustBe(err error, code int, words string) {
	t.Helper()
	var e *amqp.Error
	if !errors.As(err, &e) {
		t.Fatalf("want error %d %s, got %v", code, words, err)
	}
	if e.Code != code || !strings.Contains(e.Reason, words) {
		t.Fatalf("want error %d %q, got %d %q", code, words, e.Code, e.Reason)
	}
}

// refuseDeclare checks that a queue with these arguments is refused.
func (t *T) refuseDeclare(name, words string, pairs ...any) {
	t.Helper()
	t.refused(amqp.PreconditionFailed, words, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(t.name(name), true, false, false, false, with(pairs...))
		return err
	})
}

// refusePublish checks that a publish ends its channel.
func (t *T) refusePublish(code int, words, exchange, key string, options ...option) {
	t.Helper()
	t.refused(code, words, func(ch *amqp.Channel) error {
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		p := amqp.Publishing{}
		for _, o := range options {
			o(&p)
		}
		t.must(ch.PublishWithContext(t.ctx, exchange, key, false, false, p))
		select {
		case err := <-closed:
			return err
		case <-time.After(patience):
			return errors.New("the channel stays open")
		}
	})
}

// death is an entry of x-death.
func (t *T) death(d *amqp.Delivery, n int) amqp.Table {
	t.Helper()
	all, _ := d.Headers["x-death"].([]any)
	if n >= len(all) {
		t.Fatalf("x-death has %d entries: %v", len(all), d.Headers)
	}
	return all[n].(amqp.Table)
}

// deaths checks the number of entries in x-death.
func (t *T) deaths(d *amqp.Delivery, n int) {
	t.Helper()
	if all, _ := d.Headers["x-death"].([]any); len(all) != n {
		t.Fatalf("x-death has %d entries, not %d: %v", len(all), n, d.Headers)
	}
}

// equal compares what is printed of two values.
func (t *T) equal(what string, have, want any) {
	t.Helper()
	if h, w := fmt.Sprintf("%T %v", have, have), fmt.Sprintf("%T %v", want, want); h != w {
		t.Errorf("%s is %s, not %s", what, h, w)
	}
}

// ms is a number of milliseconds.
func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

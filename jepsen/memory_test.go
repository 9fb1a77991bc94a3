package jepsen

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/internal/await"
	amqp "github.com/rabbitmq/amqp091-go"
)

// What the nodes of TestBoundedMemory aim at (by the Go runtime's own limit,
// which makes their resident memory tell what they hold and not what they have
// let go of), and what they may have: without bounds on what waits for clients
// and queues each part of the test holds more than that.
const (
	memoryAim   = 192 << 20
	memoryBound = 448 << 20
)

// However much a client asks for and does not take, or gives and the queue
// does not take, a node holds no more of it than its bounds say; and everybody
// else goes on.
func TestBoundedMemory(t *testing.T) {
	t.Setenv("GOMEMLIMIT", fmt.Sprint(memoryAim))
	r := mustStart(t, 2*time.Minute)
	t.Run("SlowConsumers", func(t *testing.T) { r.sub(t).slowConsumers() })
	t.Run("HeldPublisher", func(t *testing.T) { r.sub(t).heldPublisher() })
	if !t.Failed() {
		r.mustConverge()
	}
}

// slowBacklog messages of slowSize bytes wait in each queue of slowConsumers.
const (
	slowBacklog = 1500
	slowSize    = 128 << 10
)

// slow is a consumer that asks for everything and reads nothing.
type slow struct {
	queue string
	node  int
	noAck bool

	conn *amqp.Connection
	tap  *tap
	from <-chan amqp.Delivery
}

// Consumers without a limit are handed large backlogs and stop reading their
// sockets: one at another node than the leader, and one at the leader, without
// acknowledgements. Their nodes hold little of it, and others go on, at the
// same nodes and at the same queue. Who reads again gets everything; what was
// held by one who leaves comes back.
func (r *run) slowConsumers() {
	r.mustDeclare(0, "deep-1", "deep-2", "near")
	r.mustDeclare(1, "far")
	queues := []string{"deep-1", "deep-2"}
	began := time.Now()
	r.must(all(queues, func(q string) error { r.mustFill(q, slowBacklog, slowSize); return nil }))
	r.Logf("filled in %v", time.Since(began).Round(time.Millisecond))
	m := r.watchMemory()
	slows := []*slow{{queue: "deep-1", node: 1}, {queue: "deep-2", node: 0, noAck: true}}
	for _, s := range slows {
		r.mustStall(s)
	}
	for _, s := range slows {
		r.mustHandOut(s.queue, slowBacklog/2)
	}
	began = time.Now()
	ctx, cancel := context.WithTimeout(r.ctx, errandBound)
	defer cancel()
	r.must(all([]*errand{
		r.mustErrand("near", 0, 1, 100), r.mustErrand("far", 1, 0, 100),
	}, func(e *errand) error { return e.run(ctx) }))
	r.mustGoOnBeside(ctx, "deep-1")
	r.Logf("others done in %v", time.Since(began).Round(time.Millisecond))

	again, leaves := slows[1], slows[0]
	again.tap.turnOn()
	r.must(r.takeUntil(again.from, false, map[uint64]bool{}, slowBacklog))
	r.must(leaves.tap.Close())
	back, err := r.mustChannel(r.mustConnect(1)).Consume("deep-1", "", false, false, false, false, nil)
	r.must(err)
	r.must(r.takeUntil(back, true, map[uint64]bool{}, slowBacklog))
	m.judge(memoryBound)
	r.mustDelete("deep-1", "deep-2")
}

// mustStall subscribes a consumer that stops reading with its first delivery.
func (r *run) mustStall(s *slow) {
	r.Helper()
	s.conn, s.tap = r.mustTap(s.node)
	var err error
	s.from, err = r.mustChannel(s.conn).Consume(s.queue, "slow", s.noAck, false, false, false, nil)
	r.must(err)
	s.tap.turnOff()
}

// mustHandOut waits until consumers of a queue hold at least so many messages.
func (r *run) mustHandOut(queue string, count uint64) {
	r.Helper()
	r.must(await.Until(r.ctx, 20*time.Millisecond, queue+" to be handed out", func() (bool, error) {
		for _, n := range r.Nodes {
			replicas, err := n.Replicas(r.ctx)
			if err != nil {
				return false, err
			}
			for _, q := range replicas {
				if q.Name == queue && q.Leader && q.Unacknowledged >= count {
					return true, nil
				}
			}
		}
		return false, nil
	}))
}

// mustGoOnBeside has another consumer of a queue get some of what is published
// to it now; the slow one gets its share. Nobody else acks.
func (r *run) mustGoOnBeside(ctx context.Context, queue string) {
	r.Helper()
	in, out := r.mustChannel(r.mustConnect(1)), r.mustChannel(r.mustConnect(0))
	r.must(out.Qos(10, 0, false))
	from, err := out.Consume(queue, "quick", false, false, false, false, nil)
	r.must(err)
	r.must(in.Confirm(false))
	for got := 0; got < 10; {
		c, err := in.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false,
			amqp.Publishing{Body: client.Body(1, 256)})
		r.must(err)
		_, err = c.WaitContext(ctx)
		r.must(err)
		select {
		case d := <-from:
			r.must(d.Ack(false))
			got++
		default:
		}
	}
	r.must(out.Cancel("quick", false))
	r.must(out.Close())
}

// Messages of the largest size go through a queue without let-up: several at a
// time, from a node that does not lead it, to a consumer at the third. Small
// ones pass on the same links.
func TestHugeMessages(t *testing.T) {
	r := mustStart(t, 2*time.Minute, "--set", "max_message_size=33554432")
	const size = 32 << 20
	r.mustDeclare(0, "huge", "near-1", "near-2")
	r.mustDeclare(1, "far-1")
	r.mustDeclare(2, "far-2")
	m := r.watchMemory()
	f := newFlood(r.ctx)
	for range 3 {
		r.mustPour(f, r.mustConnect(1), "huge", size, 1)
	}
	out := r.mustChannel(r.mustConnect(2))
	r.must(out.Qos(2, 0, false))
	from, err := out.Consume("huge", "", false, false, false, false, nil)
	r.must(err)
	var received int64
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for d := range from {
			if len(d.Body) == size && d.Ack(false) == nil {
				received++
			}
		}
	})
	r.mustRunBeside(f, 2,
		r.mustErrand("near-1", 1, 2, 30), r.mustErrand("near-2", 0, 1, 30),
		r.mustErrand("far-1", 0, 2, 30), r.mustErrand("far-2", 1, 1, 30))
	r.must(f.stop())
	r.mustEmpty("huge")
	r.must(out.Close())
	tasks.Wait()
	if received != f.confirmed.Load() {
		r.Errorf("%d huge messages confirmed, %d received", f.confirmed.Load(), received)
	}
	r.Logf("%d huge messages", received)
	m.judge(hugeBound)
}

// hugeBound is what a node may have resident in TestHugeMessages: several
// messages, each some times over.
const hugeBound = 2 << 30

// mustEmpty waits until a queue holds nothing.
func (r *run) mustEmpty(queue string) {
	r.Helper()
	r.must(await.Until(r.ctx, 20*time.Millisecond, queue+" to be empty", func() (bool, error) {
		leader, err := r.Leader(r.ctx, queue)
		if err != nil {
			return false, err
		}
		replicas, err := leader.Replicas(r.ctx)
		for _, q := range replicas {
			if q.Name == queue && q.Leader && q.Ready+q.Unacknowledged == 0 {
				return true, nil
			}
		}
		return false, err
	}))
}

// heldBytes is what a publisher may have outstanding: what its node takes, and
// what the system's buffers for the socket hold at both ends.
const heldBytes = 32 << 20

// Publishers outrun a queue that commits nothing, because two of its three
// nodes stand still: they are held at their sockets. When the queue goes on,
// everything is confirmed and there.
func (r *run) heldPublisher() {
	const size, publishers = 64 << 10, 4
	r.mustDeclare(0, "outrun")
	m := r.watchMemory()
	f := newFlood(r.ctx)
	for range publishers {
		r.mustPour(f, r.mustConnect(0), "outrun", size, 1<<12)
	}
	r.must(f.more(100))
	for _, n := range r.Nodes[1:] {
		r.must(n.Signal(syscall.SIGSTOP))
	}
	r.mustStandStill(f)
	if held := f.bytes.Load(); held > publishers*heldBytes {
		r.Errorf("publishers have %d MiB outstanding", held>>20)
	}
	for _, n := range r.Nodes[1:] {
		r.must(n.Signal(syscall.SIGCONT))
	}
	r.must(f.more(1000))
	r.must(f.stop())
	r.Logf("%d messages confirmed", f.confirmed.Load())
	m.judge(memoryBound)
	q, err := r.mustChannel(r.mustConnect(0)).QueueDeclarePassive("outrun", true, false, false, false, nil)
	r.must(err)
	if int64(q.Messages) != f.confirmed.Load() {
		r.Errorf("%d messages in the queue, %d confirmed", q.Messages, f.confirmed.Load())
	}
	r.mustDelete("outrun")
}

// mustStandStill waits until a flood has not moved for a second, as it does
// when its publishers are held.
func (r *run) mustStandStill(f *flood) {
	r.Helper()
	last, since := int64(-1), time.Now()
	r.must(await.Until(r.ctx, 10*time.Millisecond, "publishers to be held", func() (bool, error) {
		if n := f.published.Load(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > time.Second, nil
	}))
}

// tap is a client's end of a TCP connection that can be shut: what the server
// writes then stays in the buffers of the system, and in the server.
type tap struct {
	net.Conn
	mu   sync.Mutex
	open chan struct{} // closed while the tap is open
	over chan struct{}
	once sync.Once
}

func (t *tap) Read(p []byte) (int, error) {
	t.mu.Lock()
	open := t.open
	t.mu.Unlock()
	select {
	case <-open:
	case <-t.over:
		return 0, net.ErrClosed
	}
	return t.Conn.Read(p)
}

func (t *tap) Close() error {
	t.once.Do(func() { close(t.over) })
	return t.Conn.Close()
}

// turnOff stops reading. What is being read already still arrives.
func (t *tap) turnOff() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open = make(chan struct{})
}

func (t *tap) turnOn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.open)
}

// mustTap connects through a tap, which is open.
func (r *run) mustTap(node int) (*amqp.Connection, *tap) {
	r.Helper()
	t := &tap{open: make(chan struct{}), over: make(chan struct{})}
	close(t.open)
	conn, err := amqp.DialConfig(r.Nodes[node].URI(), amqp.Config{
		Heartbeat: 60 * time.Second, // the client, which reads nothing, must not give up the server
		Dial: func(network, addr string) (net.Conn, error) {
			var d net.Dialer
			var err error
			t.Conn, err = d.DialContext(r.ctx, network, addr)
			return t, err
		},
	})
	r.must(err)
	r.Cleanup(func() { _ = t.Close() })
	return conn, t
}

// memory watches what the nodes have resident.
type memory struct {
	r    *run
	peak []int64
	stop chan struct{}
	done sync.WaitGroup
}

// watchMemory begins to note each node's peak.
func (r *run) watchMemory() *memory {
	m := &memory{r: r, peak: make([]int64, len(r.Nodes)), stop: make(chan struct{})}
	m.look()
	m.done.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.look()
			case <-m.stop:
				return
			}
		}
	})
	return m
}

func (m *memory) look() {
	for i, n := range m.r.Nodes {
		if rss, err := n.RSSBytes(); err == nil {
			m.peak[i] = max(m.peak[i], rss)
		}
	}
}

// judge fails the test if a node had more than bound bytes resident.
func (m *memory) judge(bound int64) {
	m.r.Helper()
	close(m.stop)
	m.done.Wait()
	for i, peak := range m.peak {
		m.r.Logf("node %d: at most %d MiB resident", i+1, peak>>20)
		if peak == 0 || peak > bound {
			m.r.Errorf("node %d: %d MiB resident, bound %d", i+1, peak>>20, bound>>20)
		}
	}
}

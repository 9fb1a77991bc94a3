package jepsen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
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

// slowBacklog messages of slowSize bytes wait in the queue of slowConsumers.
const (
	slowBacklog = 1500
	slowSize    = 128 << 10
)

// Consumers without a limit are handed a large backlog and stop reading their
// sockets: first one at another node than the leader, then one at the leader,
// without acknowledgements. Their nodes hold little of it, and others go on, at
// the same nodes and at the same queue. The first one leaves, and what it held
// comes back; the second reads again and gets everything.
func (r *run) slowConsumers() {
	r.mustDeclare(0, "deep", "near")
	r.mustDeclare(1, "far")
	began := time.Now()
	r.mustFill("deep", slowBacklog, slowSize)
	r.Logf("filled in %v", time.Since(began).Round(time.Millisecond))
	leader, err := r.Leader(r.ctx, "deep")
	r.must(err)
	m := r.watchMemory()

	_, tap := r.mustStall("deep", leader.Number%len(r.Nodes), false)
	r.mustSeeHeld("deep", slowBacklog/2, slowBacklog)
	r.mustDoErrands("near", "far")
	r.mustGoOnBeside("deep")
	r.must(tap.Close())
	r.mustSeeHeld("deep", 0, 0)

	from, tap := r.mustStall("deep", leader.Number-1, true)
	r.mustSeeHeld("deep", slowBacklog/2, 2*slowBacklog)
	r.mustDoErrands("near", "far")
	tap.turnOn()
	r.must(r.takeUntil(from, false, map[uint64]bool{}, slowBacklog))
	m.check(memoryBound)
	r.mustDelete("deep")
}

// mustStall subscribes a consumer that stops reading with its first delivery.
func (r *run) mustStall(queue string, node int, noAck bool) (<-chan amqp.Delivery, *tap) {
	r.Helper()
	conn, tap := r.mustTap(node)
	from, err := r.mustChannel(conn).Consume(queue, "slow", noAck, false, false, false, nil)
	r.must(err)
	tap.turnOff()
	return from, tap
}

// mustSeeHeld waits until consumers of a queue hold so many messages.
func (r *run) mustSeeHeld(queue string, least, most uint64) {
	r.Helper()
	r.must(await.Until(r.ctx, 20*time.Millisecond, queue+" to be handed out or taken back", func() (bool, error) {
		q, err := r.leading(queue)
		return err == nil && q.Unacknowledged >= least && q.Unacknowledged <= most, err
	}))
}

// leading is what the leader of a queue says about it.
func (r *run) leading(queue string) (cluster.Replica, error) {
	leader, err := r.Leader(r.ctx, queue)
	if err != nil {
		return cluster.Replica{}, err
	}
	replicas, err := leader.Replicas(r.ctx)
	for _, q := range replicas {
		if q.Name == queue && q.Leader {
			return q, nil
		}
	}
	return cluster.Replica{}, errors.Join(err, cluster.ErrNoLeader)
}

// mustDoErrands runs an errand through each queue, in both directions between
// the first two nodes.
func (r *run) mustDoErrands(queues ...string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, errandBound)
	defer cancel()
	var errands []*errand
	for i, q := range queues {
		errands = append(errands, r.mustErrand(q, i%2, 1-i%2, 50))
	}
	r.must(all(errands, func(e *errand) error { return e.run(ctx) }))
	for _, e := range errands {
		r.must(e.consume.Close())
	}
}

// mustGoOnBeside has another consumer of a queue get some of what is published
// to it now; the slow one gets its share. Nobody else acks.
func (r *run) mustGoOnBeside(queue string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, errandBound)
	defer cancel()
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
	r := mustStart(t, 2*time.Minute)
	const size = 16 << 20
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
		r.mustErrand("near-1", 1, 2, 10), r.mustErrand("near-2", 0, 1, 10),
		r.mustErrand("far-1", 0, 2, 10), r.mustErrand("far-2", 1, 1, 10))
	r.must(f.stop())
	r.mustEmpty("huge")
	r.must(out.Close())
	tasks.Wait()
	if received != f.confirmed.Load() {
		r.Errorf("%d huge messages confirmed, %d received", f.confirmed.Load(), received)
	}
	r.Logf("%d huge messages", received)
	m.check(hugeBound)
}

// hugeBound is what a node may have resident in TestHugeMessages: several
// messages, each some times over.
const hugeBound = 1536 << 20

// mustEmpty waits until a queue holds nothing.
func (r *run) mustEmpty(queue string) {
	r.Helper()
	r.must(await.Until(r.ctx, 20*time.Millisecond, queue+" to be empty", func() (bool, error) {
		q, err := r.leading(queue)
		return err == nil && q.Ready+q.Unacknowledged == 0, err
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
	m.check(memoryBound)
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
	m.sample()
	m.done.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.sample()
			case <-m.stop:
				return
			}
		}
	})
	return m
}

func (m *memory) sample() {
	for i, n := range m.r.Nodes {
		if rss, err := n.RSSBytes(); err == nil {
			m.peak[i] = max(m.peak[i], rss)
		}
	}
}

// check fails the test if a node had more than bound bytes resident.
func (m *memory) check(bound int64) {
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

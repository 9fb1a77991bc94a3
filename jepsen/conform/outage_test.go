package conform

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

const needsMinutes = "it takes minutes or millions of messages, and is left to "

// outageRows: nodes die, freeze, or are cut off.
var outageRows = []row{
	{id: "C3", what: "the leader is killed while a client at another node publishes with confirms: nothing confirmed is lost, confirms continue", test: "jepsen: TestKilledLeader"},
	{id: "C4", what: "the node that the publisher is connected to, and that leads, is killed: confirmed messages arrive once, in order", run: func(t *T) {
		q := t.queue("q")
		leader := t.leaderOf(q)
		l := t.load(leader.Number-1, q)
		l.await(t, 1000)
		t.must(leader.Kill(t.ctx))
		l.end()
		t.must(leader.Restart())
		t.lostConnections()
		t.must(leader.AwaitReady(t.ctx))
		l.mustBeIn(t, q)
	}},
	{id: "C5", what: "without a majority a publish on an old channel stays unconfirmed, without a nack; with it the confirm arrives", run: withoutMajority},
	{id: "C6", what: "the first publish on a new channel: the same", in: "C5",
		but: "there is no nack: it is not known whether a later leader will find the message, so the publish stays unconfirmed"},
	{id: "C7", what: "consume and get without a majority: an error within 10 s", in: "C5"},
	{id: "C9", what: "the leader is cut off with its client: that client's publishes are confirmed when the link is back, those of others before; each arrives once", test: "cluster: TestUnreachableLeader"},
	{id: "C13", what: "a follower is down while a million messages pass", but: needsMinutes + "`make bench-queues` (a node that was lost comes back) and `make chaos`"},
	{id: "C22", what: "all three nodes are killed at once under load: confirmed messages arrive once, in order", run: func(t *T) {
		q := t.queue("q")
		l := t.load(0, q)
		l.await(t, 1000)
		for _, n := range t.Nodes {
			t.must(n.Kill(t.ctx))
		}
		for _, n := range t.Nodes {
			t.must(n.Restart())
		}
		l.end()
		t.lostConnections()
		for _, n := range t.Nodes {
			t.must(n.AwaitReady(t.ctx))
		}
		l.mustBeIn(t, q)
	}},
	{id: "C23", what: "power fails on one node, on a majority: only unsynced data is lost", test: "cluster/raftlog: TestCrashes",
		but: "the test covers one node's store; all that it has acknowledged is there after a power failure"},
	{id: "C24", what: "a flipped bit in a log or a snapshot is detected, the node does not vote with it and recovers from the others", test: "cluster/raftlog: TestFlips; cluster/group: TestLearnerElectsNobody; jepsen: TestBitFlips, TestLostQueueStore",
		but: "a node that finds the bit while it runs exits, and recovers when it is started again"},
	{id: "C25", what: "a node with an older version of the machines: the cluster keeps it until all support the next one; no node skips a command", test: "cluster: TestMixedVersions; jepsen: TestUpgrade"},
	{id: "C26", what: "kills, stops, pauses, partitions and clock jumps at random: nothing lost, nothing unexpected, duplicates only if marked (`make chaos` for as long as wanted)", test: "jepsen: TestChaos",
		but: "without partitions and clock jumps, which have separate tests: cluster: TestUnreachableLeader, jepsen: TestExpiryWithWrongClock"},
	{id: "C27", what: "the leader is frozen and resumes: another one leads; what its clients published in the meantime arrives once", run: frozenLeader},
	{id: "C32", what: "after faults all replicas have the same digest", test: "jepsen: TestChaos, TestKilledLeader, TestExpiryWithWrongClock, TestRollingRestart"},
	{id: "C33", what: "5000 idle queues: CPU, network, memory", but: "measured by `make bench-queues`, see docs/evidence/benchmarks.md; that idle queues write nothing holds: jepsen: TestIdleQueuesWriteNothing"},
	{id: "C34", what: "one unacknowledged message while others pass: disk use is bounded", test: "jepsen: TestPinnedMessage"},
	{id: "C35", what: "a node that holds 10 million messages restarts", but: needsMinutes + "`make bench-growth`; with fewer it holds: jepsen: TestBacklogSurvivesRestarts"},
}

// withoutMajority kills two of three nodes for a while.
func withoutMajority(t *T) {
	q := t.queue("q")
	t.publish(q, body("before"))
	rest := t.Nodes[1:]
	for _, n := range rest {
		t.must(n.Kill(t.ctx))
	}
	began := time.Now()
	fresh := t.open()
	t.must(fresh.Confirm(false))
	var waits []*amqp.DeferredConfirmation
	for i, ch := range []*amqp.Channel{t.ch(), fresh} {
		for k := range 10 {
			c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, "", q, false, false, amqp.Publishing{Body: fmt.Append(nil, i, ".", k)})
			t.must(err)
			waits = append(waits, c)
		}
	}
	var both sync.WaitGroup
	var errs [2]error
	get, consume := t.open(), t.open()
	both.Go(func() { _, _, errs[0] = get.Get(q, false) })
	both.Go(func() { _, errs[1] = consume.Consume(q, "", false, false, false, false, nil) })
	both.Wait()
	if took, most := time.Since(began), 13*time.Second+stall.Tolerance(machine.Longest(began)); took > most { // 7 s where there is room
		t.Errorf("get and consume are refused after %v, allowed are %v", took, most)
	}
	for _, err := range errs {
		t.mustBe(err, amqp.PreconditionFailed, "has no leader")
	}
	for _, c := range waits {
		select {
		case <-c.Done():
			t.Fatalf("publish %d is answered without a majority: ack %v", c.DeliveryTag, c.Acked())
		default:
		}
	}
	t.Logf("without a majority for %v", time.Since(began).Round(time.Millisecond))
	t.must(rest[0].Restart())
	for _, c := range waits {
		if ok, err := c.WaitContext(t.ctx); err != nil || !ok {
			t.Fatalf("publish %d: ack %v, %v", c.DeliveryTag, ok, err)
		}
	}
	t.must(rest[1].Restart())
	for _, n := range rest {
		t.must(n.AwaitReady(t.ctx))
	}
	t.equal("messages", t.ready(q), 1+len(waits))
}

// frozenLeader stops the process of a leader until another one leads, and for
// at least 3 s.
func frozenLeader(t *T) {
	const each = 100
	q := t.queue("q")
	leader := t.leaderOf(q)
	inside, outside := t.openAt(leader.Number-1), t.openAt(leader.Number%len(t.Nodes))
	var waits [2][]*amqp.DeferredConfirmation
	publish := func(to int, ch *amqp.Channel) {
		for i := range each {
			c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, "", q, false, false, amqp.Publishing{Body: fmt.Append(nil, to*each+i+1)})
			t.must(err)
			waits[to] = append(waits[to], c)
		}
	}
	confirmed := func(of int) {
		for _, c := range waits[of] {
			if ok, err := c.WaitContext(t.ctx); err != nil || !ok {
				t.Fatalf("publish %d: ack %v, %v", c.DeliveryTag, ok, err)
			}
		}
	}
	t.must(inside.Confirm(false))
	t.must(outside.Confirm(false))
	began := time.Now()
	t.must(leader.Signal(syscall.SIGSTOP))
	t.eventually("the process is stopped", func() error { return stopped(leader.PID) }) // its threads stop one after the other
	publish(0, inside)
	publish(1, outside)
	confirmed(1) // by another leader
	t.waitUntil(began.Add(3 * time.Second))
	for _, c := range waits[0] {
		select {
		case <-c.Done():
			t.Errorf("a frozen node answers publish %d", c.DeliveryTag)
		default:
		}
	}
	t.must(leader.Signal(syscall.SIGCONT))
	confirmed(0)
	t.mustComeOnce(q, 2*each)
}

// stopped returns an error while a thread of a process is not stopped.
func stopped(pid int) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return err
	}
	for _, name := range threads {
		stat, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if _, state, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(state, "T") {
			return fmt.Errorf("%s: %s", name, state)
		}
	}
	return nil
}

// leaderOf returns the node that leads a queue.
func (t *T) leaderOf(queue string) (leader *cluster.Node) {
	t.Helper()
	t.eventually(queue+" has a leader", func() (err error) {
		leader, err = t.Leader(t.ctx, queue)
		return err
	})
	return leader
}

// load publishes the bodies 1, 2, … until its connection ends.
type load struct {
	mu    sync.Mutex
	all   []*amqp.DeferredConfirmation // of body i+1
	ended chan struct{}
}

// load publishes to a queue through a node, counted from 0.
func (t *T) load(node int, queue string) *load {
	t.Helper()
	const most = 300 // without an answer
	ch := t.openAt(node)
	t.must(ch.Confirm(false))
	l := &load{ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		for i := 0; ; i++ {
			c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, "", queue, false, false, amqp.Publishing{Body: fmt.Append(nil, i+1)})
			if err != nil {
				return
			}
			l.mu.Lock()
			l.all = append(l.all, c)
			oldest := l.all[max(0, len(l.all)-most)]
			l.mu.Unlock()
			if i >= most {
				if _, err := oldest.WaitContext(t.ctx); err != nil {
					return
				}
			}
		}
	}()
	return l
}

// end waits until the connection has ended.
func (l *load) end() { <-l.ended }

// await waits for the confirm of a body.
func (l *load) await(t *T, body int) {
	t.Helper()
	t.eventually(fmt.Sprintf("message %d is confirmed", body), func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.all) < body || !l.all[body-1].Acked() {
			return fmt.Errorf("%d are published", len(l.all))
		}
		return nil
	})
}

// mustBeIn checks that a queue holds all that was confirmed, each once, in
// order.
func (l *load) mustBeIn(t *T, queue string) {
	t.Helper()
	n := t.ready(queue)
	_, from := t.consume(queue, 500)
	found := map[int]bool{}
	last := 0
	for range n {
		d := t.next(from)
		number, err := strconv.Atoi(string(d.Body))
		t.must(err)
		if number <= last {
			t.Fatalf("message %d comes after %d", number, last)
		}
		last, found[number] = number, true
		t.must(d.Ack(false))
	}
	t.nothingNext(from, time.Now().Add(ms(300)))
	confirmed := 0
	for i, c := range l.all {
		if !c.Acked() {
			continue
		}
		if confirmed++; !found[i+1] {
			t.Errorf("message %d was confirmed and is lost", i+1)
		}
	}
	t.Logf("%d published, %d confirmed, %d there", len(l.all), confirmed, n)
}

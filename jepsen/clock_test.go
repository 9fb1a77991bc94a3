package jepsen

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/nemesis"
	"github.com/quorate/quorate/jepsen/workload"
	amqp "github.com/rabbitmq/amqp091-go"
)

// clockError is how wrong a corrected clock may be: reading another node's
// clock on a busy machine is not exact.
const clockError = 50 * time.Millisecond

// wrongBy are the ways in which one of three clocks is wrong.
var wrongBy = []time.Duration{time.Hour, -time.Hour}

// The clock of the node that leads steps an hour ahead, later one an hour back.
// Leaders are killed until the wrong node has lost its office, has come back,
// has led again if the votes went so, and has handed over. All the time
// messages die at their time, each arrives once, and replicas stay equal.
func TestExpiryWithWrongClock(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 4*time.Minute, cluster.WrongClocks...)
	r.mustExpireWhile(func(ctx context.Context) error {
		for _, ahead := range wrongBy {
			if err := r.passAround(ctx, ahead); err != nil {
				return fmt.Errorf("clock %v ahead: %w", ahead, err)
			}
		}
		return nil
	})
	h := r.History
	late := checker.Lateness(h)
	t.Logf("%d kills, %d messages, lateness: %s", len(h.Faults), h.Confirmed(), checker.Percentiles(late))
	if len(late) == 0 || len(h.Faults) < 2*len(wrongBy) {
		t.Fatal("nothing was tried")
	}
	if late[0] < -clockError {
		t.Errorf("a message died %v early", -late[0])
	}
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Doubled(h),
		r.late(h, electing), checker.Deaths(h, checker.Expired("waiting")))
	r.mustConverge()
}

// passAround sets the leader's clock wrong and kills leaders.
func (r *run) passAround(ctx context.Context, ahead time.Duration) error {
	wrong, err := nemesis.AwaitLeader(ctx, r.Cluster, "waiting", nil)
	if err != nil {
		return err
	}
	r.Logf("%v node %d is %v ahead", r.Now().Round(time.Millisecond), wrong.Number, ahead)
	defer r.reportFault("clock offset", wrong.Number)()
	if err := wrong.SetClock(ctx, ahead); err != nil {
		return err
	}
	if err := r.awaitDead(ctx, 300); err != nil {
		return err
	}
	for kills := 0; kills < 4; kills++ {
		leader, err := nemesis.AwaitLeader(ctx, r.Cluster, "waiting", nil)
		if err != nil {
			return err
		}
		r.Logf("%v node %d leads and is killed", r.Now().Round(time.Millisecond), leader.Number)
		if err := nemesis.KillLeader("waiting").Run(ctx, r.Cluster, r.History); err != nil {
			return err
		}
		if err := r.awaitDead(ctx, 300); err != nil {
			return err
		}
		if kills > 0 && leader == wrong {
			break // it has led twice
		}
	}
	return wrong.SetClock(ctx, 0)
}

// awaitDead waits for so many more dead letters.
func (r *run) awaitDead(ctx context.Context, n int) error {
	target := r.Received("dead") + n
	return await.Until(ctx, 10*time.Millisecond, "dead letters", func() (bool, error) { return r.Received("dead") >= target, nil })
}

// A consumer holds a message while the node that leads has a wrong clock and is
// killed: the message goes back not before its timeout, and later by no more
// than what the election took from the consumer.
func TestConsumerTimeoutWithWrongClock(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 3*time.Minute, cluster.WrongClocks...)
	for i, ahead := range wrongBy {
		queue := fmt.Sprintf("held-%d", i)
		r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), workload.Queue{Name: queue}))
		leader, err := nemesis.AwaitLeader(r.ctx, r.Cluster, queue, nil)
		r.must(err)
		r.must(leader.SetClock(r.ctx, ahead))
		r.mustComeBack(queue, slices.Index(r.Nodes, leader))
		r.must(leader.SetClock(r.ctx, 0))
	}
	r.mustConverge()
}

// mustComeBack lets a consumer hold a message for too long.
func (r *run) mustComeBack(queue string, leader int) {
	r.Helper()
	const timeout, before = 4 * time.Second, time.Second
	var channels [2]*amqp.Channel
	for i := range channels {
		conn, err := client.Connect(r.ctx, r.Nodes[(leader+1+i)%3].URI())
		r.must(err)
		defer conn.Close()
		channels[i], err = conn.Channel()
		r.must(err)
	}
	cancelled := channels[0].NotifyCancel(make(chan string, 1))
	slow, err := channels[0].Consume(queue, "slow", false, false, false, false, amqp.Table{"x-consumer-timeout": timeout.Milliseconds()})
	r.must(err)
	began := time.Now()
	r.must(channels[0].PublishWithContext(r.ctx, "", queue, false, false, amqp.Publishing{Body: []byte("work")}))
	select {
	case <-slow:
	case <-r.ctx.Done():
		r.Fatal("no delivery")
	}
	other, err := channels[1].Consume(queue, "other", false, false, false, false, nil)
	r.must(err)
	killed := make(chan error, 1)
	time.AfterFunc(before, func() { killed <- nemesis.KillLeader(queue).Run(r.ctx, r.Cluster, r.History) })
	select {
	case d := <-other:
		held := time.Since(began)
		r.Logf("%s: held for %v", queue, held.Round(time.Millisecond))
		if early := timeout - held; early > clockError {
			r.Errorf("%s: taken away %v early", queue, early)
		}
		r.notLate(queue, began.Add(timeout), before+electing)
		if !d.Redelivered {
			r.Errorf("%s: not marked", queue)
		}
		r.must(d.Ack(false))
	case <-r.ctx.Done():
		r.Fatalf("%s: the message does not come back", queue)
	}
	r.must(<-killed)
	select {
	case tag := <-cancelled:
		if tag != "slow" {
			r.Errorf("%s: %q was cancelled", queue, tag)
		}
	case <-r.ctx.Done():
		r.Fatalf("%s: no cancel", queue)
	}
	for _, ch := range channels {
		r.must(ch.Close())
	}
	select {
	case d, more := <-other:
		if more {
			r.Errorf("%s: %q came twice", queue, d.Body)
		}
	case <-r.ctx.Done():
		r.Fatalf("%s: the subscription does not end", queue)
	}
}

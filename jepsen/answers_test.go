package jepsen

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/internal/await"
)

const (
	answersTime = 20 * time.Second
	// enoughLives is how often a queue is made and ends at least, however slow the
	// machine is.
	enoughLives     = 12
	answersInterval = 40 * time.Millisecond // between the publishes of one publisher
)

// How a life of a queue ends.
const (
	deleted = iota // by queue.delete if-empty: nothing goes with it
	autoDeleted
	expired
	endings
)

// life is the time from one declare of a queue to its end. Who publishes after
// there and is confirmed before until has published to this life. Of messages
// between until and gone some may go with it, unless it was deleted.
type life struct {
	ending             int
	node               int // that was asked to declare it
	there, until, gone time.Time
}

// expires reports whether an error says that the lease is over: on a slow machine it is before the queue is used.
func (x *life) expires(err error) bool {
	e, ok := err.(*amqp.Error)
	return ok && e.Code == amqp.NotFound && x.ending == expired
}

// attempt is one mandatory publish.
type attempt struct {
	id         string
	node       int
	sent, done time.Time
	acked      bool
	returned   bool
}

// reborn is a queue that ends and is declared anew all the time.
type reborn struct {
	*run
	name  string
	conns []*amqp.Connection // by node
	// refusals counts how often in a row the queue was not empty when it was to be
	// deleted. Publishers leave out as many of their turns: on a machine on which a
	// delete takes longer than the time between two messages it would never end.
	refusals atomic.Int64

	mu       sync.Mutex
	lives    []life
	arrived  map[string]int // messages that a consumer got, and in which life
	attempts []attempt
}

var sentinels atomic.Uint64

func newReborn(r *run, conns []*amqp.Connection, name string) *reborn {
	return &reborn{run: r, name: name, conns: conns, arrived: map[string]int{}}
}

// live declares the queue, lets it be for a while, and ends it if it is not the
// last time.
func (q *reborn) live(ctx context.Context, ending int) error {
	n := len(q.lives)
	x := life{ending: ending, node: n % len(q.conns), until: time.Now()}
	ch, err := q.conns[x.node].Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	args := amqp.Table{}
	if ending == expired {
		args["x-expires"] = int64(200)
	}
	if _, err := ch.QueueDeclare(q.name, true, ending == autoDeleted, false, false, args); err != nil {
		return fmt.Errorf("declare %s: %w", q.name, err)
	}
	if err := ch.QueueBind(q.name, q.name, "amq.topic", false, nil); err != nil && !x.expires(err) {
		return fmt.Errorf("bind %s: %w", q.name, err)
	}
	x.there = time.Now()
	for empty := false; !empty; {
		if err := q.drain(ctx, n, &x); err != nil {
			return err
		}
		if empty, err = q.end(ctx, n, &x); err != nil {
			return err
		}
	}
	x.gone = time.Now()
	q.mu.Lock()
	q.lives = append(q.lives, x)
	q.mu.Unlock()
	return nil
}

// drain consumes for a while, and until everything has come that was confirmed
// before the time that it notes. The consumer is gone then. Of a queue that has expired nothing has come.
func (q *reborn) drain(ctx context.Context, n int, x *life) error {
	ch, err := q.conns[(n+2)%len(q.conns)].Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	deliveries, err := ch.Consume(q.name, "c", true, false, false, false, nil)
	if x.expires(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("consume from %s: %w", q.name, err)
	}
	last, seen, over := fmt.Sprint("sentinel ", sentinels.Add(1)), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for d := range deliveries {
			if string(d.Body) == last {
				close(seen)
			}
			q.mu.Lock()
			q.arrived[string(d.Body)] = n
			q.mu.Unlock()
		}
	}()
	if err := pause(ctx, time.Duration(20+rand.IntN(60))*time.Millisecond); err != nil {
		return err
	}
	x.until = time.Now()
	if err := ch.PublishWithContext(ctx, "", q.name, true, false, amqp.Publishing{Body: []byte(last)}); err != nil {
		return err
	}
	select {
	case <-seen:
	case <-ctx.Done():
		return fmt.Errorf("life %d of %s does not deliver %q: %w", n, q.name, last, ctx.Err())
	}
	if err := ch.Cancel("c", false); err != nil {
		return err
	}
	<-over
	return nil
}

// end ends a queue without a consumer, and reports whether that was possible.
func (q *reborn) end(ctx context.Context, n int, x *life) (bool, error) {
	node := (n + 1) % len(q.conns)
	if x.ending != deleted {
		err := await.Until(ctx, 10*time.Millisecond, "the end of "+q.name, func() (bool, error) {
			status, _, err := q.Nodes[node].Do(ctx, http.MethodGet, "/api/queues/%2F/"+q.name, nil)
			return status == http.StatusNotFound, err
		})
		return true, err
	}
	ch, err := q.conns[node].Channel()
	if err != nil {
		return false, err
	}
	defer ch.Close()
	_, err = ch.QueueDelete(q.name, false, true, false)
	if e, ok := err.(*amqp.Error); ok && e.Code == amqp.PreconditionFailed {
		q.refusals.Add(1)
		return false, nil // it is not empty any more
	}
	q.refusals.Store(0)
	return err == nil, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// publish publishes messages through one node, one at a time, until stop.
func (q *reborn) publish(ctx context.Context, node int, exchange, key string, stop <-chan struct{}) error {
	ch, err := q.conns[node].Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	if err := ch.Confirm(false); err != nil {
		return err
	}
	returns := ch.NotifyReturn(make(chan amqp.Return, 16))
	tick := time.NewTicker(answersInterval)
	defer tick.Stop()
	for i, left := 0, int64(0); ; i++ {
		for ; left >= 0; left-- {
			select {
			case <-stop:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
			}
		}
		left = q.refusals.Load()
		a := attempt{id: fmt.Sprint(exchange, " ", key, " ", node, " ", i), node: node, sent: time.Now()}
		c, err := ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, amqp.Publishing{Body: []byte(a.id)})
		if err != nil {
			return err
		}
		if a.acked, err = c.WaitContext(ctx); err != nil {
			return fmt.Errorf("%s is not confirmed: %w", a.id, err)
		}
		a.done = time.Now()
		select {
		case back := <-returns: // ahead of its confirm
			a.returned = true
			if string(back.Body) != a.id || back.ReplyCode != amqp.NoRoute {
				return fmt.Errorf("%s comes back as %q with %d", a.id, back.Body, back.ReplyCode)
			}
		default:
		}
		q.mu.Lock()
		q.attempts = append(q.attempts, a)
		q.mu.Unlock()
	}
}

// checkAnswers holds each publish against the lives of the queue.
func (q *reborn) checkAnswers() {
	q.Helper()
	returned, arrived, between := 0, 0, 0
	for _, a := range q.attempts {
		_, came := q.arrived[a.id]
		switch {
		case !a.acked:
			q.Errorf("%s is nacked", a.id)
		case a.returned && came:
			q.Errorf("%s is returned, and delivered", a.id)
		case a.returned:
			returned++
			if x := q.lifeOf(&a); x != nil {
				q.Errorf("%s is returned by node %d although the queue is there", a.id, a.node+1)
			}
		case came:
			arrived++
		case q.mayHaveGone(&a):
			between++
		default:
			q.Errorf("%s is confirmed, and neither delivered nor returned", a.id)
		}
	}
	q.Logf("%s: %d lives, %d publishes: %d arrived, %d returned, %d may have gone with the queue",
		q.name, len(q.lives), len(q.attempts), arrived, returned, between)
	if len(q.lives) < enoughLives || arrived == 0 || returned == 0 {
		q.Error("too little was tried")
	}
}

// lifeOf returns the life that a publish must have reached; nil: it may have
// come before or after one.
func (q *reborn) lifeOf(a *attempt) *life {
	for i := range q.lives {
		if x := &q.lives[i]; a.sent.After(x.there) && a.done.Before(x.until) {
			return x
		}
	}
	return nil
}

// mayHaveGone reports whether a publish may have come to a queue that ended with
// messages in it.
func (q *reborn) mayHaveGone(a *attempt) bool {
	for _, x := range q.lives {
		if x.ending != deleted && a.sent.Before(x.gone) && a.done.After(x.until) {
			return true
		}
	}
	return false
}

// Queues are deleted and declared again, end with their last consumer or with
// their lease, while mandatory messages are published to them at every node: each
// message that is confirmed was in a queue, or was returned. Dead letters that
// must arrive do.
func TestAnswersAroundDeletion(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 3*time.Minute)
	var conns []*amqp.Connection
	for _, n := range r.Nodes {
		conn, err := client.Connect(r.ctx, n.URI())
		r.must(err)
		t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
		conns = append(conns, conn)
	}
	q, dead := newReborn(r, conns, "q"), newReborn(r, conns, "dead")
	ch, err := conns[0].Channel()
	r.must(err)
	_, err = ch.QueueDeclare("dying", true, false, false, false, amqp.Table{
		"x-message-ttl": int64(20), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	})
	r.must(err)

	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	stop := make(chan struct{})
	var wait sync.WaitGroup
	spawn := func(what func() error) {
		wait.Go(func() {
			if err := what(); err != nil {
				t.Error(err)
				cancel()
			}
		})
	}
	for node := range conns {
		spawn(func() error { return q.publish(ctx, node, "", "q", stop) })
		spawn(func() error { return q.publish(ctx, node, "amq.topic", "q", stop) })
		spawn(func() error { return dead.publish(ctx, node, "", "dying", stop) })
	}
	end := time.Now().Add(answersTime)
	for _, x := range []*reborn{q, dead} {
		spawn(func() error {
			for n := 0; (n < enoughLives || time.Now().Before(end)) && ctx.Err() == nil; n++ {
				ending := deleted
				if x == q {
					ending = n % endings
				}
				if err := x.live(ctx, ending); err != nil {
					return err
				}
				if err := pause(ctx, time.Duration(20+rand.IntN(40))*time.Millisecond); err != nil {
					return err
				}
			}
			if x == q {
				close(stop)
			}
			return nil
		})
	}
	wait.Wait()
	if t.Failed() {
		return
	}
	q.checkAnswers()
	dead.mustArrive()
}

// mustArrive waits until every confirmed message has come, in whatever life.
func (q *reborn) mustArrive() {
	q.Helper()
	ctx, cancel := context.WithTimeout(q.ctx, time.Minute)
	defer cancel()
	missing := ""
	for missing = q.missing(); missing != ""; missing = q.missing() {
		if err := q.live(ctx, deleted); err != nil {
			q.Fatalf("%s has died and never arrives: %v", missing, err)
		}
	}
	q.Logf("%s: %d lives, %d letters", q.name, len(q.lives), len(q.attempts))
	if len(q.lives) < enoughLives || len(q.attempts) < 100 {
		q.Error("too little was tried")
	}
}

// missing returns a confirmed message that has not come; empty: all have.
func (q *reborn) missing() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, a := range q.attempts {
		if _, came := q.arrived[a.id]; a.acked && !a.returned && !came {
			return a.id
		}
	}
	return ""
}

package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	rabbit "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
)

const (
	// holdTime is the consumer timeout of the queue held.
	holdTime = 4 * time.Second
	// holders are how many consumers hold what they get.
	holders = 3
	// provenWithin is how long a hold may last of which something is concluded: longer
	// ones may have ended with the disconnected timeout of a node, without a word.
	provenWithin = 45 * time.Second
)

// hold is one delivery that a consumer of its own held for a while, and acked.
type hold struct {
	key      uint64
	position int           // of its delivery
	since    time.Duration // it was not handed out before
	closed   time.Duration // when its subscription was over in order; 0: it was not, or it is not known of what it was told
	cancels  []time.Duration
}

// held has consumers that hold what they get, for less than the consumer timeout,
// for about as long, or for longer, and then ack it. Another one takes what comes
// back.
func held(w *world) *flow {
	f := &flow{
		publishTo: "held", consume: "held", perSecond: 5,
		queues: []declared{{"held", rabbit.Table{"x-consumer-timeout": holdTime.Milliseconds()}}},
		make: func(*rand.Rand) client.Message {
			return client.Message{RoutingKey: "held", Queue: "held", Size: 100}
		},
	}
	all := make([][]hold, holders)
	f.receive = func(ctx context.Context) error {
		var tasks sync.WaitGroup
		for k := range holders {
			tasks.Go(func() {
				name := fmt.Sprintf("holder-%d", k)
				rng := rand.New(rand.NewPCG(uint64(k), 20))
				dial := w.dialer(name)
				for ctx.Err() == nil {
					conn, ch, err := w.connect(ctx, dial, w.names...)
					for n := 0; err == nil && ctx.Err() == nil; n++ {
						var h hold
						if h, err = f.hold(ctx, ch, fmt.Sprintf("%s-%d", name, n), rng); h.key != 0 {
							all[k] = append(all[k], h)
						}
						if err == nil {
							ch, err = conn.Channel()
						}
					}
					if conn != nil {
						_ = conn.CloseDeadline(time.Now().Add(time.Second))
					}
				}
			})
		}
		c := client.Consumer{Name: "worker", URIs: w.uris(false), First: 1, Queue: "held", Prefetch: 4, Dial: w.dialer("c-held")}
		err := c.Run(ctx, f.history)
		tasks.Wait()
		return err
	}
	f.check = func(h *history.History) []checker.Verdict {
		found := checker.Verdict{Checker: "timeout"}
		for _, of := range all {
			for _, x := range of {
				if p := x.check(h, w.wrongBy); p != "" {
					found.Count++
					found.Problems = append(found.Problems, "timeout: "+p)
				}
			}
		}
		return []checker.Verdict{found}
	}
	return f
}

// hold subscribes, holds one delivery, acks it, and closes the channel in order.
func (f *flow) hold(ctx context.Context, ch *rabbit.Channel, tag string, rng *rand.Rand) (x hold, err error) {
	cancelled, over := ch.NotifyCancel(make(chan string, 16)), ch.NotifyClose(make(chan *rabbit.Error, 1))
	if err := ch.Qos(1, 0, false); err != nil {
		return x, err
	}
	x.since = f.history.Now()
	from, err := ch.Consume("held", tag, false, false, false, false, nil)
	if err != nil {
		return x, err
	}
	var d rabbit.Delivery
	select {
	case <-ctx.Done():
		return x, ctx.Err()
	case <-over:
		return x, rabbit.ErrClosed
	case got, ok := <-from:
		if !ok {
			return x, rabbit.ErrClosed
		}
		d = got
	}
	r := client.Record(d, "held", tag, 1)
	x.key, x.position = r.Key, f.history.Deliver(r)
	left := time.NewTimer(holdFor(rng))
	defer left.Stop()
	for waits := true; waits; {
		select {
		case <-ctx.Done():
			return x, ctx.Err()
		case <-over:
			return x, rabbit.ErrClosed
		case _, ok := <-cancelled:
			if ok {
				x.cancels = append(x.cancels, f.history.Now())
			}
		case <-left.C:
			waits = false
		}
	}
	if err := d.Ack(false); err != nil {
		return x, err
	}
	if err := ch.Cancel(tag, false); err != nil { // whose answer follows what came of the ack
		return x, err
	}
	x.closed = f.history.Now()
	if err := ch.Close(); err != nil {
		return x, err
	}
	for range cancelled { // the ack has made room for the next one, and this may be about that
		x.closed = 0
	}
	if len(x.cancels) == 0 && x.closed > 0 && x.closed < x.since+holdTime-f.w.wrongBy-checker.Grain {
		f.history.Acked([]int{x.position})
		f.history.Settled([]int{x.position})
	}
	return x, nil
}

// holdFor draws how long a delivery is held.
func holdFor(rng *rand.Rand) time.Duration {
	switch rng.IntN(3) {
	case 0:
		return time.Duration(rng.Int64N(int64(holdTime)))
	case 1:
		return holdTime - 200*time.Millisecond + time.Duration(rng.Int64N(int64(400*time.Millisecond)))
	}
	return holdTime + time.Duration(rng.Int64N(int64(holdTime)))
}

// check says what is wrong with the end of a hold: that its time was not over, that
// its consumer was told more than once, or that an ack that came too late had an
// effect. An ack that is answered before the time is over holds, see checker.Doubled.
func (x *hold) check(h *history.History, wrongBy time.Duration) string {
	if x.key == 0 || x.key > uint64(len(h.Attempts)) || x.closed == 0 || x.closed > x.since+provenWithin {
		return ""
	}
	due := max(x.since, h.Attempts[x.key-1].Call) + holdTime - wrongBy - checker.Grain
	if len(x.cancels) == 0 {
		return ""
	}
	if len(x.cancels) > 1 {
		return fmt.Sprintf("the holder of key %d was cancelled %d times, at %v", x.key, len(x.cancels), x.cancels)
	}
	if at := x.cancels[0]; at < due {
		return fmt.Sprintf("the holder of key %d was cancelled at %v, %v too early", x.key, at, due-at)
	}
	for _, d := range h.Deliveries[x.position+1:] {
		if d.Key == x.key {
			if d.At < due {
				return fmt.Sprintf("key %d came again at %v, %v too early", x.key, d.At, due-d.At)
			}
			return ""
		}
	}
	return fmt.Sprintf("key %d was taken from its holder at %v, acked too late, and never came again", x.key, x.cancels[0])
}

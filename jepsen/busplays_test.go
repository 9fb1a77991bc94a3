package jepsen

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/nemesis"
	"github.com/quorate/quorate/jepsen/workload"
)

var busKills = flag.Int("jepsen.bus-kills", 3, "leaders that TestServiceBusUnderKills kills")

// deadOf are the dead letters of an entity.
func deadOf(name string) string { return name + "/$deadletterqueue" }

// Leaders are killed again and again, every third time the node whose clock is an hour wrong, ahead and then behind. Meanwhile
// programs of Azure Service Bus hold messages by locks that they renew, or not; accept sessions, each of which has one holder;
// schedule messages; and fail others until they are dead letters.
func TestServiceBusUnderKills(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 4*time.Minute+time.Duration(*busKills)*15*time.Second, append([]string{"--service-bus"}, cluster.WrongClocks...)...)
	draw := rand.New(rand.NewPCG(r.draws("jepsen.seed", *chaosSeed), 8))
	began, plays := time.Now(), []*play{r.busLocks(draw), r.busSessions(draw), r.busSchedules(draw), r.busDead(draw)}
	r.mustPlayWhile(plays, func(context.Context) error { return r.killBus(plays) })
	t.Logf("%d leaders killed in %v", len(r.Faults), time.Since(began).Round(time.Second))
}

// killBus kills the leaders of all queues in turn.
func (r *run) killBus(plays []*play) error {
	wrong := r.Nodes[1]
	queues := []string{deadOf(plays[3].name)}
	for _, p := range plays {
		queues = append(queues, p.name)
	}
	led := 0
	for k := range *busKills {
		if half := max(*busKills/2, 1); k%half == 0 && k/half < 2 {
			ahead := time.Hour
			if k > 0 {
				ahead = -ahead
			}
			r.reportFault("clock offset", wrong.Number)
			if err := wrong.SetClock(r.ctx, ahead); err != nil {
				return err
			}
		}
		queue := queues[(k+1)%len(queues)]
		if k%3 == 0 {
			for _, q := range queues {
				if err := r.lead(wrong, q); err != nil {
					return err
				}
			}
		}
		workload.Wait(r.ctx, betweenKills)
		if leader, err := r.Leader(r.ctx, queue); err == nil && leader == wrong {
			led++
		}
		if err := nemesis.KillLeader(queue).Run(r.ctx, r.Cluster, r.History); err != nil {
			return err
		}
	}
	if r.Logf("the node with the wrong clock led %d times", led); led == 0 {
		r.Error("the node with the wrong clock never led")
	}
	return wrong.SetClock(r.ctx, 0)
}

// lead makes a node the leader of a queue.
func (r *run) lead(n *cluster.Node, queue string) error {
	return await.Until(r.ctx, 50*time.Millisecond, n.Name()+" to lead "+queue, func() (bool, error) {
		leader, err := r.Leader(r.ctx, queue)
		if err == nil && leader != n {
			_, _, err = n.Do(r.ctx, http.MethodPost, "/api/queues/%2F/"+url.PathEscape(queue)+"/actions", map[string]string{"action": "transfer_leadership", "node": n.Name()})
		}
		return err == nil && leader == n, err
	})
}

// busPlay is a workload whose queue is one of Azure Service Bus.
func (r *run) busPlay(name, elements string, checks ...check) *play {
	p := &play{History: r.beside(name), name: name, checks: checks}
	p.setup = func(ctx context.Context) error { return r.createEntity(ctx, name, elements) }
	p.over = func() bool {
		for _, queue := range []string{name, deadOf(name)} {
			if q, err := r.Nodes[0].Queue(r.ctx, queue); err != nil || q.Messages != 0 {
				return false
			}
		}
		return p.allSettled()
	}
	return p
}

const busEndless = "<MaxDeliveryCount>1000</MaxDeliveryCount>"

// busLocks has receivers renew the locks of their messages in time, hardly in time, or not at all, and settle them. When their
// connection is lost they settle by the token at another node.
func (r *run) busLocks(draw *rand.Rand) *play {
	d := &dice{draw: rand.New(rand.NewPCG(draw.Uint64(), 1))}
	p := r.busPlay("held", busEndless, checker.Promised, checker.Finished)
	p.sends(r, "held sender", 300*time.Millisecond, func() string { return "" })
	for i := range 12 {
		p.consume = append(p.consume, func(ctx context.Context) error {
			return r.atBus(ctx, p.History, i, func(b *bus) error {
				from, err := b.receiver(ctx, p.name, 0)
				for err == nil && ctx.Err() == nil {
					var m *amqp.Message
					if err = from.IssueCredit(1); err == nil {
						m, err = from.Receive(ctx, nil)
					}
					if err == nil {
						err = r.hold(ctx, d, b, from, m, fmt.Sprint("holder ", i))
					}
				}
				return err
			})
		})
	}
	return p
}

// holding is a message that a receiver has.
type holding struct {
	busTaken
	b      *bus
	from   *amqp.Receiver
	client string
	err    error // why nothing more can be asked for here
}

// hold does something with a message.
func (r *run) hold(ctx context.Context, d *dice, b *bus, from *amqp.Receiver, m *amqp.Message, client string) error {
	t, err := b.took(m, client, "held", "")
	if err != nil {
		return err
	}
	h := &holding{busTaken: t, b: b, from: from, client: client}
	wait := func(early, late time.Duration) { workload.Wait(ctx, h.until-b.h.Now()+d.within(-early, late)) }
	switch n := d.below(10); {
	case n == 0: // too late, or nearly
		wait(100*time.Millisecond, 300*time.Millisecond)
	case n == 1: // the renewal meets the end of the lock
		wait(50*time.Millisecond, 50*time.Millisecond)
		h.renew(ctx)
	case n == 2: // renewed, and then as late
		h.renew(ctx)
		wait(0, 200*time.Millisecond)
	case n < 5: // long work
		for range 1 + d.below(3) {
			workload.Wait(ctx, busLock/2)
			h.renew(ctx)
		}
	default:
		workload.Wait(ctx, d.within(0, time.Second))
	}
	if h.err == nil && d.below(10) == 0 {
		h.settle(ctx, history.Requeue, func(ctx context.Context) error {
			return from.ModifyMessage(ctx, m, &amqp.ModifyMessageOptions{DeliveryFailed: true})
		})
		return h.err
	}
	if h.err == nil {
		h.settle(ctx, history.Settle, func(ctx context.Context) error { return from.AcceptMessage(ctx, m) })
	}
	if h.err == nil || errors.Is(h.err, errBusAnswer) {
		return h.err
	}
	for k := b.node.Number; d.below(5) > 0 && ctx.Err() == nil; k++ { // Nodes[k] is the next one
		other, err := dialBus(ctx, b.h, r.Nodes[k%len(r.Nodes)])
		if err != nil {
			continue
		}
		call := b.h.Now()
		result, _, err := other.ask(ctx, "held", "update-disposition", map[string]any{"disposition-status": "completed", "lock-tokens": []amqp.UUID{h.token}})
		other.close()
		b.did(h.About(history.Settle, 0), client, call, result)
		if err != nil || result != history.Unknown {
			return errors.Join(h.err, err)
		}
	}
	return h.err
}

func (h *holding) renew(ctx context.Context) {
	if h.err != nil {
		return
	}
	call := h.b.h.Now()
	result, answer, err := h.b.ask(ctx, h.Queue, "renew-lock", map[string]any{"lock-tokens": []amqp.UUID{h.token}})
	if result == history.OK {
		times, _ := answer["expirations"].([]time.Time)
		if len(times) != 1 {
			h.err = fmt.Errorf("%w: renewed until %v", errBusAnswer, answer)
			return
		}
		h.until = h.b.at(times[0])
	}
	h.b.did(h.About(history.Renew, h.until-call), h.client, call, result)
	if h.err = err; err == nil && result == history.Unknown {
		h.err = errBusLost
	}
}

// errBusLost means that a request has had no answer: the connection is not used any more.
var errBusLost = errors.New("no answer")

func (h *holding) settle(ctx context.Context, kind string, how func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), busPatience)
	defer cancel()
	call := h.b.h.Now()
	result, err := busResult(how(ctx))
	h.b.did(h.About(kind, 0), h.client, call, result)
	if h.err = err; err == nil && result == history.Unknown {
		h.err = errBusLost
	}
}

// busSessions has receivers accept one session after the other.
func (r *run) busSessions(draw *rand.Rand) *play {
	const groups = 12
	d := &dice{draw: rand.New(rand.NewPCG(draw.Uint64(), 2))}
	p := r.busPlay("sessions", busEndless+"<RequiresSession>true</RequiresSession>", checker.Sessions, checker.GroupOrder, checker.Finished)
	group := func() string { return fmt.Sprint("g", d.below(groups)) }
	p.sends(r, "sessions sender", 60*time.Millisecond, group)
	for i := range perPlay {
		p.consume = append(p.consume, func(ctx context.Context) error {
			n := 0
			return r.atBus(ctx, p.History, i, func(b *bus) error {
				for ctx.Err() == nil {
					var wanted any
					if d.below(10) == 0 {
						wanted = group()
					}
					n++
					if err := r.serve(ctx, d, b, wanted, fmt.Sprint("acceptor ", i, " ", n)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	return p
}

// serve accepts a session and settles messages of it. client is of this session.
func (r *run) serve(ctx context.Context, d *dice, b *bus, wanted any, client string) error {
	call := b.h.Now()
	waiting, cancel := context.WithTimeout(ctx, busPatience)
	from, group, until, err := b.accept(waiting, "sessions", wanted)
	cancel()
	if isBus(err, "com.microsoft:timeout") || isBus(err, "com.microsoft:session-cannot-be-locked") {
		return nil
	} else if err != nil {
		return err
	}
	b.did(history.Op{Kind: history.Accept, Group: group, Lock: until - call}, client, call, history.OK)
	err = r.serveMessages(ctx, d, b, from, group, client)
	o := history.Op{Kind: history.Lost, Group: group}
	result, bad := busResult(err)
	if result == history.Unknown {
		b.did(o, client, r.connected(b), history.Unknown)
		return err
	} else if result == history.OK {
		b.did(o, client, b.h.Now(), history.OK)
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), busPatience)
	defer cancel()
	if err := from.Close(closing); result == history.OK {
		_, bad = busResult(err)
	}
	return bad
}

func (r *run) serveMessages(ctx context.Context, d *dice, b *bus, from *amqp.Receiver, group, client string) error {
	for k := range 1 + d.below(8) {
		if err := from.IssueCredit(map[bool]uint32{true: 3, false: 1}[k == 0]); err != nil {
			return err
		}
		waiting, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		m, err := from.Receive(waiting, nil)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		t, err := b.took(m, client, "sessions", group)
		if err != nil {
			return err
		}
		h := &holding{busTaken: t, b: b, from: from, client: client}
		switch d.below(20) {
		case 0: // too late, or nearly
			workload.Wait(ctx, d.within(busLock-100*time.Millisecond, busLock+300*time.Millisecond))
		case 1, 2: // long work
			workload.Wait(ctx, busLock/2)
			if err := h.renewSession(ctx); err != nil {
				return err
			}
		default:
			workload.Wait(ctx, d.within(0, 100*time.Millisecond))
		}
		if h.settle(ctx, history.Settle, func(ctx context.Context) error { return from.AcceptMessage(ctx, m) }); h.err != nil {
			return h.err
		}
	}
	return nil
}

func (h *holding) renewSession(ctx context.Context) error {
	call := h.b.h.Now()
	result, answer, err := h.b.ask(ctx, h.Queue, "renew-session-lock", map[string]any{"session-id": h.Group})
	o := history.Op{Kind: history.Renew, Group: h.Group}
	if result == history.OK {
		until, ok := answer["expiration"].(time.Time)
		if !ok {
			return fmt.Errorf("%w: renewed until %v", errBusAnswer, answer)
		}
		o.Lock = h.b.at(until) - call
	}
	h.b.did(o, h.client, call, result)
	if err == nil && result == history.Unknown {
		err = errBusLost
	}
	return err
}

// busDue is a message that will be due.
type busDue struct {
	key    uint64
	number int64
	at     time.Duration
}

// busSchedules has messages scheduled, and some cancelled about when they are due. A cancelled one counts as settled: each is
// either that or received, once.
func (r *run) busSchedules(draw *rand.Rand) *play {
	d := &dice{draw: rand.New(rand.NewPCG(draw.Uint64(), 3))}
	p := r.busPlay("due", busEndless, checker.Due, checker.Schedules, checker.Finished)
	soon := make(chan busDue, 10_000)
	p.publish = append(p.publish, func(ctx context.Context, enough <-chan struct{}) error {
		publishing, stop := context.WithCancel(ctx)
		defer stop()
		go func() {
			<-enough
			stop()
		}()
		return r.atBus(publishing, p.History, 1, func(b *bus) error {
			for publishing.Err() == nil {
				if err := p.schedule(publishing, b, d, soon); err != nil {
					return err
				}
				workload.Wait(publishing, 60*time.Millisecond)
			}
			return nil
		})
	})
	p.consume = append(p.consume, func(ctx context.Context) error {
		return r.atBus(ctx, p.History, 2, func(b *bus) error { return p.cancel(ctx, b, d, soon) })
	})
	for i := range 3 {
		p.takes(r, p.name, i, func(ctx context.Context, h *holding) {
			h.settle(ctx, history.Settle, func(ctx context.Context) error { return h.from.AcceptMessage(ctx, h.message) })
		})
	}
	settled := p.over
	empty := r.nothingScheduled(p)
	p.over = func() bool { return settled() && empty() }
	return p
}

// schedule schedules a message.
func (p *play) schedule(ctx context.Context, b *bus, d *dice, soon chan<- busDue) error {
	due := time.Now().Add(d.within(300*time.Millisecond, 4*time.Second)).Truncate(time.Millisecond)
	key := p.Begin(history.Attempt{Message: p.NextMessage(), Publisher: "scheduler", Queue: p.name})
	m := busMessage(key)
	m.Annotations = amqp.Annotations{"x-opt-scheduled-enqueue-time": due}
	encoded, err := m.MarshalBinary()
	if err != nil {
		return err
	}
	o, call := history.Op{Kind: history.Schedule, Key: key, Due: b.at(due)}, p.Now()
	result, answer, err := b.ask(ctx, p.name, "schedule-message", map[string]any{"messages": []any{map[string]any{"message-id": m.Properties.MessageID, "message": encoded}}})
	b.did(o, fmt.Sprint("scheduler ", key), call, result)
	if result != history.OK {
		return errors.Join(errBusLost, err)
	}
	p.End(key, history.OK)
	numbers, _ := answer["sequence-numbers"].([]int64)
	if len(numbers) != 1 {
		return fmt.Errorf("%w: scheduled as %v", errBusAnswer, answer)
	}
	if d.below(3) == 0 {
		soon <- busDue{key, numbers[0], o.Due}
	}
	return nil
}

// cancel cancels messages about when they are due.
func (p *play) cancel(ctx context.Context, b *bus, d *dice, soon <-chan busDue) error {
	for {
		var m busDue
		select {
		case <-ctx.Done():
			return nil
		case m = <-soon:
		}
		workload.Wait(ctx, m.at-p.Now()+d.within(-150*time.Millisecond, 100*time.Millisecond))
		call := p.Now()
		result, _, err := b.ask(ctx, p.name, "cancel-scheduled-message", map[string]any{"sequence-numbers": []int64{m.number}})
		b.did(history.Op{Kind: history.Cancel, Key: m.key}, "canceller", call, result)
		if result != history.No {
			b.did(history.Op{Kind: history.Settle, Key: m.key}, "canceller", call, result)
		}
		if result == history.Unknown {
			return errors.Join(errBusLost, err)
		}
	}
}

// takes makes a play receive messages from a queue, and do something with each.
func (p *play) takes(r *run, queue string, first int, do func(context.Context, *holding)) {
	p.consume = append(p.consume, func(ctx context.Context) error {
		return r.atBus(ctx, p.History, first, func(b *bus) error {
			from, err := b.receiver(ctx, queue, 10)
			for err == nil && ctx.Err() == nil {
				var m *amqp.Message
				if m, err = from.Receive(ctx, nil); err != nil {
					break
				}
				h := &holding{b: b, from: from, client: fmt.Sprint("taker ", first)}
				if h.busTaken, err = b.took(m, h.client, queue, ""); err == nil {
					do(ctx, h)
					err = h.err
				}
			}
			return err
		})
	})
}

// busDead has messages fail until they are dead letters, each of which is received once. Every fourth is taken before that.
func (r *run) busDead(draw *rand.Rand) *play {
	p := r.busPlay("failing", "<MaxDeliveryCount>3</MaxDeliveryCount>", checker.Promised, checker.Finished)
	p.sends(r, "failing sender", 100*time.Millisecond, func() string { return "" })
	for i := range 4 {
		p.takes(r, p.name, i, func(ctx context.Context, h *holding) {
			if h.Turn > 2 {
				h.err = fmt.Errorf("%w: key %d is delivered after %d failures", errBusAnswer, h.Key, h.Turn)
			} else if h.Key%4 == 0 {
				h.settle(ctx, history.Settle, func(ctx context.Context) error { return h.from.AcceptMessage(ctx, h.message) })
			} else {
				h.settle(ctx, history.Requeue, func(ctx context.Context) error {
					return h.from.ModifyMessage(ctx, h.message, &amqp.ModifyMessageOptions{DeliveryFailed: true})
				})
			}
		})
	}
	for i := range 2 {
		p.takes(r, deadOf(p.name), i, func(ctx context.Context, h *holding) {
			if why := h.message.ApplicationProperties["DeadLetterReason"]; why != "MaxDeliveryCountExceeded" {
				h.err = fmt.Errorf("%w: key %d is dead because of %v", errBusAnswer, h.Key, why)
				return
			}
			h.settle(ctx, history.Settle, func(ctx context.Context) error { return h.from.AcceptMessage(ctx, h.message) })
		})
	}
	return p
}

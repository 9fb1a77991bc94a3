package jepsen

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/workload"
)

// perPlay is how many consumers a workload has, two at each node.
const perPlay = 6

// dice draws for several goroutines.
type dice struct {
	mu   sync.Mutex
	draw *rand.Rand
}

func (d *dice) below(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.draw.IntN(n)
}

func (d *dice) within(from, to time.Duration) time.Duration {
	return from + time.Duration(d.below(int(to-from)))
}

func plainJob(uint64) (amqp.Table, history.Op) { return nil, history.Op{} }

// newPlay returns a workload without anything that its workers do. Its queue has no delivery limit: workers
// that are cut off again and again fail a message more often than the default allows, and it would die.
func (r *run) newPlay(name string, arguments amqp.Table, every time.Duration, headers func(uint64) (amqp.Table, history.Op)) *play {
	arguments = maps.Clone(arguments)
	if arguments == nil {
		arguments = amqp.Table{}
	}
	arguments["x-delivery-limit"] = -1
	p := &play{History: r.beside(name), name: name, queues: []workload.Queue{{Name: name, Arguments: arguments}}, serves: []string{name}}
	p.jobs(r, &workload.Jobs{Name: name + " jobs", Queue: name, Every: every, Headers: headers})
	p.over = p.allSettled
	return p
}

// jobs makes the play publish messages one after the other.
func (p *play) jobs(r *run, j *workload.Jobs) {
	j.URIs = r.URIs()
	p.publish = append(p.publish, func(ctx context.Context, enough <-chan struct{}) error {
		publishing, stop := context.WithCancel(ctx)
		defer stop()
		go func() {
			select {
			case <-enough:
				stop()
			case <-publishing.Done():
			}
		}()
		return j.Run(publishing, p.History)
	})
}

// work gives the play n workers.
func (p *play) work(r *run, n int, w workload.Worker) {
	for i := range n {
		one := w
		one.Name, one.URIs, one.First, one.Queue = fmt.Sprint(p.name, "-", i+1), r.URIs(), i, p.name
		p.workers = append(p.workers, &one)
	}
}

// allSettled reports whether each confirmed message was settled, perhaps without an
// answer.
func (p *play) allSettled() bool { return checker.Finished(p.Copy()).Held() }

// lockPlay has workers renew the locks of their messages in time, hardly in time, or
// not at all, and settle them, or give them back.
func (r *run) lockPlay(draw *rand.Rand) *play {
	p := r.newPlay("locked", nil, 130*time.Millisecond, plainJob)
	d := &dice{draw: rand.New(rand.NewPCG(draw.Uint64(), 1))}
	p.checks = []check{checker.Locks, checker.Finished, checker.Renewals}
	p.work(r, 2*perPlay, workload.Worker{
		Prefetch: 1, Lock: lockTime, Arguments: amqp.Table{"x-lock-duration": lockTime.Milliseconds()},
		Do: func(ctx context.Context, s *workload.Session, t workload.Taken) {
			renew := func() history.Result {
				return s.Ask(ctx, "lock.renew", amqp.Table{"x-delivery-tag": int64(t.Tag)}, t.About(history.Renew, lockTime))
			}
			switch n := d.below(10); {
			case n == 0: // too late, or nearly
				workload.Wait(ctx, d.within(lockTime-100*time.Millisecond, lockTime+300*time.Millisecond))
			case n == 1: // the renewal meets the end of the lock
				workload.Wait(ctx, d.within(lockTime-50*time.Millisecond, lockTime+50*time.Millisecond))
				renew()
			case n == 2: // renewed, and then as late
				renew()
				workload.Wait(ctx, lockTime+d.within(0, 200*time.Millisecond))
			case n < 6: // long work
				if renew() != history.OK {
					return
				}
				for range 1 + d.below(4) {
					workload.Wait(ctx, lockTime/2)
					if renew() != history.OK {
						return
					}
				}
			default:
				workload.Wait(ctx, d.within(0, lockTime/4))
			}
			outcome, kind := "ack", history.Settle
			if d.below(10) == 0 {
				outcome, kind = "requeue", history.Requeue
			}
			s.Ask(ctx, "message.settle", amqp.Table{"x-delivery-tag": int64(t.Tag), "x-outcome": outcome}, t.About(kind, 0))
		},
	})
	return p
}

// groupPlay has workers that hold a group at a time and settle its messages in
// order, with a renewal first, so that they know how long they hold it.
func (r *run) groupPlay(draw *rand.Rand) *play {
	const groups = 12
	d := &dice{draw: rand.New(rand.NewPCG(draw.Uint64(), 2))}
	p := r.newPlay("grouped", amqp.Table{"x-message-groups": true}, 40*time.Millisecond, func(uint64) (amqp.Table, history.Op) {
		return amqp.Table{"x-group-id": fmt.Sprint("g", d.below(groups))}, history.Op{}
	})
	p.checks = []check{checker.Holders, checker.GroupOrder, checker.Finished}
	p.work(r, perPlay, workload.Worker{
		Prefetch: 3, Lock: lockTime, Arguments: amqp.Table{"x-lock-duration": lockTime.Milliseconds()},
		Do: func(ctx context.Context, s *workload.Session, t workload.Taken) {
			headers := amqp.Table{"x-queue": p.name, "x-group-id": t.Group, "x-consumer-tag": s.Consumer}
			renewed := s.Ask(ctx, "group.renew", headers, t.About(history.Renew, lockTime))
			switch {
			case renewed == history.Unknown && !s.Lost():
				s.Die() // the group may be held still, and later messages must not overtake this one
				return
			case renewed != history.OK:
				return // the group is somebody else's
			}
			wait := d.within(0, 100*time.Millisecond)
			if d.below(20) == 0 {
				wait = d.within(lockTime-100*time.Millisecond, lockTime+300*time.Millisecond)
			}
			workload.Wait(ctx, wait)
			s.Ask(ctx, "message.settle", amqp.Table{"x-delivery-tag": int64(t.Tag), "x-outcome": "ack"}, t.About(history.Settle, 0))
		},
	})
	return p
}

// parking is what a worker has deferred, in all its sessions.
type parking struct {
	parked    map[uint64]string // key → token
	requested map[uint64]bool
}

// deferPlay has workers defer each message, ask for it later, and settle it.
func (r *run) deferPlay(draw *rand.Rand) *play {
	p := r.newPlay("parked", nil, 60*time.Millisecond, plainJob)
	d := &dice{draw: rand.New(rand.NewPCG(draw.Uint64(), 3))}
	p.checks = []check{checker.Deferred, checker.Finished}
	p.work(r, perPlay, workload.Worker{Prefetch: 2})
	for _, w := range p.workers {
		m := &parking{parked: map[uint64]string{}, requested: map[uint64]bool{}}
		w.Do = func(ctx context.Context, s *workload.Session, t workload.Taken) {
			tag := amqp.Table{"x-delivery-tag": int64(t.Tag)}
			if m.requested[t.Key] {
				delete(m.requested, t.Key)
				tag["x-outcome"] = "ack"
				s.Ask(ctx, "message.settle", tag, t.About(history.Settle, 0))
				return
			}
			tag["x-deferral-token"] = fmt.Sprint("k", t.Key, "-", t.On)
			if s.Ask(ctx, "message.defer", tag, t.About(history.Defer, 0)) != history.No {
				m.parked[t.Key] = tag["x-deferral-token"].(string)
			}
		}
		w.Idle = func(ctx context.Context, s *workload.Session) {
			for key, token := range m.parked {
				if d.below(10) > 0 {
					continue
				}
				m.requested[key] = true // it may come before the answer
				switch s.Ask(ctx, "message.receive-deferred", amqp.Table{"x-queue": p.name, "x-consumer-tag": s.Consumer, "x-deferral-token": token},
					history.Op{Kind: history.Receive, Key: key}) {
				case history.OK:
					delete(m.parked, key)
				case history.No: // it was received, or came back with its session
					delete(m.parked, key)
					delete(m.requested, key)
				}
				return
			}
		}
	}
	return p
}

// schedulePlay cancels and fires messages about when they are due, by two clients.
func (r *run) schedulePlay(draw *rand.Rand) *play {
	d := &dice{draw: rand.New(rand.NewPCG(draw.Uint64(), 4))}
	due := make(chan soon, 10_000)
	p := r.newPlay("scheduled", nil, 40*time.Millisecond, func(key uint64) (amqp.Table, history.Op) {
		delay := d.within(300*time.Millisecond, 2*time.Second).Truncate(time.Millisecond)
		id := fmt.Sprint("k", key)
		due <- soon{key, id, r.Now() + delay}
		return amqp.Table{"x-opt-delivery-delay": delay.Milliseconds(), "x-schedule-id": id}, history.Op{Kind: history.Schedule, Due: delay}
	})
	p.checks = []check{checker.Schedules}
	// Its acks are not answered, and not looked at.
	p.work(r, 1, workload.Worker{Prefetch: 10, Do: func(_ context.Context, s *workload.Session, t workload.Taken) {
		s.Ack(t)
	}})
	for i := range 2 {
		p.consume = append(p.consume, func(ctx context.Context) error {
			return r.meddle(ctx, p, fmt.Sprint("meddler ", i), i+1, due, d)
		})
	}
	p.over = r.nothingScheduled(p)
	return p
}

// soon is a message that will be due.
type soon struct {
	key uint64
	id  string
	at  time.Duration
}

// meddle cancels or fires messages about when they are due.
func (r *run) meddle(ctx context.Context, p *play, name string, first int, due <-chan soon, d *dice) error {
	var s *workload.Session
	for epoch := 0; ; {
		var m soon
		select {
		case <-ctx.Done():
			return nil
		case m = <-due:
		}
		workload.Wait(ctx, m.at-p.Now()+d.within(-150*time.Millisecond, 100*time.Millisecond))
		for s == nil || s.Lost() {
			epoch++
			var err error
			if s, err = workload.Open(ctx, p.History, fmt.Sprint(name, " ", epoch), r.URIs()[(first+epoch)%len(r.URIs())]); err != nil {
				s = nil
				if workload.Wait(ctx, 100*time.Millisecond); ctx.Err() != nil {
					return nil
				}
			}
		}
		verb, kind := "schedule.cancel", history.Cancel
		if d.below(2) == 0 {
			verb, kind = "schedule.fire", history.Fire
		}
		s.Ask(ctx, verb, amqp.Table{"x-queue": p.name, "x-schedule-id": m.id}, history.Op{Kind: kind, Key: m.key})
		if s.Err != nil {
			return s.Err
		}
	}
}

// nothingScheduled reports whether the queue is empty, and notes it for all
// messages.
func (r *run) nothingScheduled(p *play) func() bool {
	return func() bool {
		at := p.Now()
		q, err := r.Nodes[0].Queue(r.ctx, p.name)
		if err != nil || q.Messages != 0 {
			return false
		}
		for i := range p.Attempts {
			p.Did(history.Op{Kind: history.Empty, Client: "the end", Key: uint64(i + 1), Call: at, Return: p.Now()})
		}
		return true
	}
}

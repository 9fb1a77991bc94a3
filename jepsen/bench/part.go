package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/report"
)

var errSoak = errors.New("the soak found")

// part is one of the loads of a soak: the recorder of its clients. Each attempt to publish a message has a number of
// its own. A confirmed one arrives; one whose connection was lost before may. What arrives again is marked as
// redelivered.
type part struct {
	name               string
	id                 int
	confirms, arrivals *samples // nil: they are not measured
	// failing says that the consumer fails at messages.
	failing bool
	// evaluate, if set, says whether a delivery is the last one of its message, or what is wrong with it.
	evaluate func(d history.Delivery) (last bool, wrong string)

	mu        sync.Mutex
	next      uint64
	open      map[uint64]attempt // those that are not both confirmed and arrived
	seen      []uint64           // bit n is attempt n
	confirmed uint64
	arrived   uint64
	again     uint64 // redelivered after that
	letters   uint64
	tries     uint64 // deliveries before the last one
	wrong     map[string]int
}

// attempt is a publish that has not come to its end.
type attempt struct {
	at, due   time.Duration // its call, and when its message expires
	confirmed bool
}

// NextMessage is of no use here: attempts are what counts.
func (p *part) NextMessage() uint64 { return 0 }

// Begin numbers an attempt.
func (p *part) Begin(a history.Attempt) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := clock()
	p.open[p.next] = attempt{at: now, due: now + a.TTL}
	p.next++
	return keyOf(p.id, p.next-1)
}

// End records a confirm. What is refused is published again.
func (p *part) End(key uint64, r history.Result) {
	if r != history.OK {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := key & (1<<keyBits - 1)
	p.confirmed++
	if a, ok := p.open[n]; ok {
		if p.confirms != nil {
			p.confirms.add(clock() - a.at)
		}
		a.confirmed = true
		p.open[n] = a
		p.close(n)
	}
}

// close forgets an attempt that is both confirmed and arrived.
func (p *part) close(n uint64) {
	if p.open[n].confirmed && p.saw(n) {
		delete(p.open, n)
	}
}

func (p *part) saw(n uint64) bool { return n/64 < uint64(len(p.seen)) && p.seen[n/64]&(1<<(n%64)) != 0 }

// has reports whether a message has arrived.
func (p *part) has(key uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.saw(key & (1<<keyBits - 1))
}

// Deliver records a delivery.
func (p *part) Deliver(d history.Delivery) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := d.Key & (1<<keyBits - 1)
	if int(d.Key>>keyBits)-1 != p.id || n >= p.next {
		p.wrong["a message that is none of these"]++
		return 0
	}
	if p.evaluate != nil {
		last, wrong := p.evaluate(d)
		if wrong != "" {
			p.wrong[wrong]++
		}
		if !last {
			p.tries++
			return 0
		}
	}
	if p.saw(n) {
		if p.again++; !d.Redelivered {
			p.wrong["a message twice, not marked as redelivered"]++
		}
		return 0
	}
	for uint64(len(p.seen)) <= n/64 {
		p.seen = append(p.seen, 0)
	}
	p.seen[n/64] |= 1 << (n % 64)
	p.arrived++
	if d.Death != nil {
		p.letters++
		if d.Death.Reason == "expired" && clock() < p.open[n].due {
			p.wrong["a message that has expired early"]++
		}
	}
	if p.arrivals != nil {
		p.arrivals.add(clock() - p.open[n].at)
	}
	p.close(n)
	return 0
}

// Acked and Settled record nothing: a message that is acked in vain comes again.
func (p *part) Acked([]int) {}

// Settled is like Acked.
func (p *part) Settled([]int) {}

// left counts the messages that are confirmed and have not arrived.
func (p *part) left() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.open {
		if a.confirmed {
			n++
		}
	}
	return n
}

// check returns what was wrong. What has not come to its end is lost if the soak was whole, and else was under way.
func (p *part) check(whole bool) (err error) {
	if n := p.left(); n > 0 && whole {
		err = fmt.Errorf("%w: %s: %d of %d messages lost", errSoak, p.name, n, p.confirmed)
	}
	for what, n := range p.wrong {
		err = errors.Join(err, fmt.Errorf("%w: %s: %s, %d times", errSoak, p.name, what, n))
	}
	if p.confirmed == 0 {
		err = errors.Join(err, fmt.Errorf("%w: %s: no message", errSoak, p.name))
	}
	// A failure is a lost connection, too, and then the consumer has not seen each of them.
	always, once := p.next/retryEvery+1, p.next/retryEvery+1
	if p.failing && p.tries > always*(retryLimit+1)+once+p.again {
		err = errors.Join(err, fmt.Errorf("%w: %s: %d failures, more than the delivery limit allows", errSoak, p.name, p.tries))
	}
	return err
}

// numbers are those for people.
func (p *part) numbers() []report.Note {
	all := []report.Note{
		{Name: "confirmed", Value: float64(p.confirmed)},
		{Name: "arrived", Value: float64(p.arrived)},
		{Name: "redelivered", Value: float64(p.again)},
		{Name: "published again", Value: float64(p.next - p.confirmed)},
	}
	if p.letters > 0 {
		all = append(all, report.Note{Name: "dead letters", Value: float64(p.letters)})
	}
	if p.tries > 0 {
		all = append(all, report.Note{Name: "failures", Value: float64(p.tries)})
	}
	return all
}

// holder holds messages by locks, most of which it renews for a while before it acks; the others end. A message that is
// locked comes to nobody else.
type holder struct {
	*part
	lasts   time.Duration
	rolling *atomic.Bool

	mu       sync.Mutex
	held     map[uint64]*lock
	suspects []suspect
	late     samples // how long after its lock's end a message came again
	renewed  int
	refused  int
	ended    int
}

// lock is what is known of a lock: by is the connection that holds it, until when it lasts at least.
type lock struct {
	by     *holding
	tag    uint64
	until  time.Time
	settle time.Duration // when its message is acked; 0: never
	d      history.Delivery
}

// holding is a connection of a holder.
type holding struct {
	ch   *amqp.Channel
	lost atomic.Int64 // by clock; 0: not
}

// suspect is a message that came while it was locked, which is in order only if the connection of the lock was lost.
type suspect struct {
	by *holding
	at time.Duration
}

// hold loads a queue with messages that two consumers hold.
func (s *soak) hold(ctx, consuming context.Context) *holder {
	q := queue{name: "bench-soak-locks"}
	s.declare(q)
	h := &holder{part: s.part("messages held by locks"), lasts: max(time.Second, min(15*time.Second, s.duration/40)), rolling: &s.rolling, held: map[uint64]*lock{}}
	for k := range 2 {
		s.consumers.Go(func() {
			for node := k; consuming.Err() == nil; node++ {
				h.holdBy(consuming, s.uri(node), q.name) // lost: that of another node
				_ = pause(consuming, 10*settlePoll)
			}
		})
	}
	s.publish(ctx, h, soakHeld, nil, q.name)
	return h
}

// holdBy holds messages over a connection until that is lost.
func (h *holder) holdBy(ctx context.Context, uri, queue string) {
	conn, ch, err := open(ctx, nil, uri)
	if err != nil {
		return
	}
	by := &holding{ch: ch}
	defer conn.Close()
	defer func() { by.lost.Store(int64(clock())) }()
	from, err := ch.Consume(queue, "", false, false, false, false, amqp.Table{"x-lock-duration": h.lasts.Milliseconds(), "x-delivery-info": true})
	if err != nil || ch.Confirm(false) != nil {
		return
	}
	renew := time.NewTicker(h.lasts / 4)
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case d, ok := <-from:
			if !ok {
				return
			}
			h.took(by, d)
		case <-renew.C:
			h.renew(ctx, by)
		}
	}
}

// took records a delivery, and what is to become of it: one of four locks ends.
func (h *holder) took(by *holding, d amqp.Delivery) {
	until, _ := d.Headers["x-locked-until"].(int64)
	l := &lock{by: by, tag: d.DeliveryTag, until: time.UnixMilli(until), d: client.Record(d, "", "", 0)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.d.Key%4 != 0 || d.Redelivered {
		l.settle = clock() + 2*h.lasts
	}
	if before := h.held[l.d.Key]; before != nil {
		if late := time.Since(before.until); late < 0 {
			h.suspects = append(h.suspects, suspect{before.by, clock()})
		} else if before.settle == 0 {
			h.late.add(late)
			h.ended++
		}
	}
	h.held[l.d.Key] = l
}

// renew renews the locks of a connection, and acks the messages that were held for long enough.
func (h *holder) renew(ctx context.Context, by *holding) {
	var renew, settle []*lock
	h.mu.Lock()
	for key, l := range h.held {
		switch {
		case l.by != by || l.settle == 0:
		case l.settle > clock():
			renew = append(renew, l)
		default:
			settle = append(settle, l)
			delete(h.held, key)
		}
	}
	h.mu.Unlock()
	for list := range slices.Chunk(renew, lockList) {
		until := time.Now().Add(h.lasts).Truncate(time.Millisecond)
		if h.command(ctx, by, "lock.renew", list, nil) {
			h.mu.Lock()
			for _, l := range list {
				l.until = until
			}
			h.renewed += len(list)
			h.mu.Unlock()
		}
	}
	for _, l := range settle {
		h.Deliver(l.d)
	}
	for list := range slices.Chunk(settle, lockList) {
		h.command(ctx, by, "message.settle", list, amqp.Table{"x-outcome": "ack"})
	}
}

// command sends a command for locks. A refusal is counted unless a lock has ended, the connection is lost, or nodes are
// restarted.
func (h *holder) command(ctx context.Context, by *holding, verb string, locks []*lock, more amqp.Table) bool {
	tags := make([]any, len(locks))
	for k, l := range locks {
		tags[k] = int64(l.tag)
	}
	headers := amqp.Table{"x-delivery-tags": tags}
	for name, v := range more {
		headers[name] = v
	}
	var taken samples
	err := sendCommand(ctx, by.ch, verb, headers, &taken)
	h.mu.Lock()
	defer h.mu.Unlock()
	ended := slices.ContainsFunc(locks, func(l *lock) bool { return time.Now().After(l.until) })
	if errors.Is(err, errNacked) && !ended && !h.rolling.Load() && !by.ch.IsClosed() {
		h.refused++
	}
	return err == nil
}

// check returns an error if a lock was lost early.
func (h *holder) check(r *report.Result) (err error) {
	early := 0
	for _, s := range h.suspects {
		if lost := time.Duration(s.by.lost.Load()); lost == 0 || lost > s.at+soakSample {
			early++
		}
	}
	if early > 0 {
		err = fmt.Errorf("%w: %d locks that ended early", errSoak, early)
	}
	if h.refused > 0 {
		err = errors.Join(err, fmt.Errorf("%w: %d commands for locks refused", errSoak, h.refused))
	}
	if h.renewed == 0 || h.ended == 0 {
		err = errors.Join(err, fmt.Errorf("%w: %d renewals, %d locks that ended", errSoak, h.renewed, h.ended))
	}
	r.Note("renewals of locks", float64(h.renewed), "")
	r.Note("locks that ended", float64(h.ended), "")
	if late := h.late.quantiles(); late != nil {
		r.Note("a message came after its lock's end, p99", late.P99, "ms")
	}
	return err
}

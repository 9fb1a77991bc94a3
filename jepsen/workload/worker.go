package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
	amqp "github.com/rabbitmq/amqp091-go"
)

// commandExchange is where commands are published.
const commandExchange = "amq.quorate.command"

// answerTimeout bounds the wait for the answer to a command. The broker gives up
// earlier if a queue has no leader.
const answerTimeout = 20 * time.Second

// ErrRefused means that a command was returned with a code that no correct
// command gets.
var ErrRefused = errors.New("a command was refused")

// Worker consumes from a queue, one delivery at a time, and asks for what it does
// with each by commands that are answered. When its connection is lost it
// subscribes again at the next broker, as another client of the history.
type Worker struct {
	Name      string
	URIs      []string
	First     int // position of the first broker
	Queue     string
	More      []string // further queues of the same channel
	Prefetch  int      // of each queue, or, if Global, of all together
	Global    bool
	Arguments amqp.Table
	// Lock is how long the locks of its deliveries last.
	Lock time.Duration
	// Alone: a queue has one active consumer, so that its messages are those of a group.
	Alone bool
	// Do is called with each delivery. Idle, if set, is called again and again
	// while there is none.
	Do   func(ctx context.Context, s *Session, t Taken)
	Idle func(ctx context.Context, s *Session)
}

// Taken is a delivery.
type Taken struct {
	Key   uint64
	On    int // its number in the history
	Turn  int // how many deliveries of the message there were before it
	Tag   uint64
	Queue string
	Group string
	// Consumer is the tag of the consumer that has it; empty: it was got.
	Consumer string
	At       time.Duration
}

// Session is a worker's connection, and one of the history's clients.
type Session struct {
	Consumer string // its tag
	Name     string
	// Err is set if a command was refused.
	Err error

	h       *history.History
	conn    *amqp.Connection
	ch      *amqp.Channel
	from    <-chan amqp.Delivery
	returns chan amqp.Return
	over    chan struct{} // closed when nobody reads from any more
	began   time.Duration
	heard   time.Duration // the call of the last command that was answered
	// single: a delivery is not handed out before the one before it was settled, at free.
	single bool
	free   time.Duration
}

// idleEvery is how often Idle is called.
const idleEvery = 20 * time.Millisecond

// Run works until ctx ends. An error means that a command was refused.
func (w *Worker) Run(ctx context.Context, h *history.History) error {
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for epoch := 1; ; epoch++ {
		s, err := w.subscribe(ctx, h, epoch)
		if err == nil {
			w.work(ctx, s)
			s.lose()
			if s.Err != nil {
				return fmt.Errorf("%s: %w", s.Name, s.Err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
	}
}

// Open connects to a broker for commands alone.
func Open(ctx context.Context, h *history.History, name, uri string) (*Session, error) {
	conn, ch, err := open(ctx, uri)
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &Session{
		Name: name, h: h, conn: conn, ch: ch, began: h.Now(), heard: h.Now(), returns: ch.NotifyReturn(make(chan amqp.Return, 10)),
		over: make(chan struct{}),
	}, nil
}

// Lost reports whether the connection is gone.
func (s *Session) Lost() bool { return s.ch.IsClosed() }

// Close ends the connection.
func (s *Session) Close() { _ = s.conn.CloseDeadline(time.Now().Add(time.Second)) }

func (w *Worker) subscribe(ctx context.Context, h *history.History, epoch int) (*Session, error) {
	s, err := Open(ctx, h, fmt.Sprintf("%s %d", w.Name, epoch), w.URIs[(w.First+epoch-1)%len(w.URIs)])
	if err != nil {
		return nil, err
	}
	s.Consumer, s.single = w.Name, w.Prefetch == 1
	cancelled := s.ch.NotifyCancel(make(chan string, 1))
	go func() {
		for range cancelled { // closed with the channel
			h.Did(history.Op{Kind: history.Cancelled, Client: s.Name, Return: h.Now()})
		}
	}()
	arguments := amqp.Table{"x-delivery-info": true} // else a classic queue does not tell the turn of a delivery
	maps.Copy(arguments, w.Arguments)
	if err = s.ch.Qos(w.Prefetch, 0, w.Global); err == nil {
		tag := func(queue string) string {
			if len(w.More) == 0 {
				return s.Consumer
			}
			return s.Consumer + tagQueue + queue
		}
		s.from, err = client.Subscribe(s.ch, append([]string{w.Queue}, w.More...), tag, arguments, s.over)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// tagQueue is between the name of a worker and that of one of its queues.
const tagQueue = "/"

// queueOf returns the queue of a delivery.
func (w *Worker) queueOf(d amqp.Delivery) string {
	if _, queue, ok := strings.Cut(d.ConsumerTag, tagQueue); ok && len(w.More) > 0 {
		return queue
	}
	return w.Queue
}

func (w *Worker) work(ctx context.Context, s *Session) {
	idle := time.NewTicker(idleEvery)
	defer idle.Stop()
	for !s.Lost() && s.Err == nil {
		select {
		case <-ctx.Done():
			return
		case d, ok := <-s.from:
			if !ok {
				return
			}
			w.Do(ctx, s, w.took(s, d))
		case <-idle.C:
			if w.Idle != nil {
				w.Idle(ctx, s)
			}
		}
	}
}

func (w *Worker) took(s *Session, d amqp.Delivery) Taken {
	queue := w.queueOf(d)
	group, _ := d.Headers["x-group-id"].(string)
	if w.Alone {
		group = queue
	}
	return s.took(d, queue, group, w.Lock)
}

func (s *Session) took(d amqp.Delivery, queue, group string, lock time.Duration) Taken {
	key, _ := client.Key(d.Body)
	turn, _ := d.Headers["x-acquired-count"].(int64)
	at := s.h.Now()
	on := s.h.Took(history.Op{Client: s.Name, Key: key, Queue: queue, Group: group, Again: d.Redelivered, Turn: int(turn), Call: max(s.began, s.free), Lock: lock})
	return Taken{Key: key, On: on, Turn: int(turn), Tag: d.DeliveryTag, Queue: queue, Group: group, Consumer: d.ConsumerTag, At: at}
}

// lose ends the session in the history, and its connection if it is there.
func (s *Session) lose() {
	close(s.over)
	o := history.Op{Kind: history.Lost, Client: s.Name, Call: s.heard, Result: history.Unknown}
	if !s.Lost() {
		o.Call, o.Result = s.h.Now(), history.OK
	}
	s.Close()
	o.Return = s.h.Now()
	s.h.Did(o)
}

// Ack acks a delivery without an answer.
func (s *Session) Ack(t Taken) {
	_ = s.ch.Ack(t.Tag, false) // a lost connection is noticed by the next one
}

// Settle acks a delivery without an answer, and records that.
func (s *Session) Settle(t Taken) {
	o := t.About(history.Settle, 0)
	o.Client, o.Call, o.Result = s.Name, s.h.Now(), history.Unknown
	if s.single {
		s.free = o.Call
	}
	s.h.Did(o)
	s.Ack(t)
}

// Return gives a delivery back without an answer, as failed or not, and records that.
func (s *Session) Return(t Taken, failed bool) {
	o := t.About(history.Requeue, 0)
	o.Client, o.Call, o.Result = s.Name, s.h.Now(), history.Unknown
	s.h.Did(o)
	if failed {
		_ = s.ch.Reject(t.Tag, true)
	} else {
		_ = s.ch.Nack(t.Tag, false, true)
	}
}

// Die ends the connection without a word.
func (s *Session) Die() {
	s.heard = s.h.Now()
	_ = s.conn.CloseDeadline(time.Now().Add(-time.Second)) // too late to write anything
}

// Ask publishes a command about a message, and records it and its answer.
func (s *Session) Ask(ctx context.Context, verb string, headers amqp.Table, o history.Op) history.Result {
	o.Client, o.Call = s.Name, s.h.Now()
	o.Result = s.ask(ctx, verb, headers)
	if o.Result != history.Unknown {
		o.Return, s.heard = s.h.Now(), o.Call
	}
	s.h.Did(o)
	return o.Result
}

// About is an op about a delivery.
func (t Taken) About(kind string, lock time.Duration) history.Op {
	return history.Op{Kind: kind, Key: t.Key, Queue: t.Queue, Group: t.Group, On: t.On, Lock: lock}
}

func (s *Session) ask(ctx context.Context, verb string, headers amqp.Table) history.Result {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	c, err := s.ch.PublishWithDeferredConfirmWithContext(ctx, commandExchange, verb, true, false, amqp.Publishing{Headers: headers})
	if err != nil {
		return history.Unknown
	}
	acked, err := c.WaitContext(ctx)
	switch {
	case err != nil || s.Lost(): // the library takes unanswered ones for nacked
		return history.Unknown
	case acked:
		return history.OK
	}
	select {
	case r := <-s.returns:
		switch {
		case r.ReplyCode == amqp.NotFound:
			return history.No
		case strings.HasSuffix(r.ReplyText, "has no leader"): // the broker gives up, and does not know
		case slices.Contains([]uint16{amqp.NoRoute, amqp.PreconditionFailed, amqp.AccessRefused}, r.ReplyCode):
			s.Err = fmt.Errorf("%w: %s %v: %d %s", ErrRefused, verb, headers, r.ReplyCode, r.ReplyText)
		}
	default:
	}
	return history.Unknown
}

// Wait waits, but only until ctx ends.
func Wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Jobs publishes messages one after the other, each again, as another attempt,
// until it is confirmed.
type Jobs struct {
	Name  string
	URIs  []string
	First int
	Queue string
	Every time.Duration
	// Headers of the next message; what Op says is recorded of it, if it has a
	// kind: an Op's Due counts from the publish.
	Headers func(key uint64) (amqp.Table, history.Op)
}

// Run publishes until ctx ends; the last message is confirmed.
func (j *Jobs) Run(ctx context.Context, h *history.History) error {
	var conn *amqp.Connection
	var ch *amqp.Channel
	defer func() {
		if conn != nil {
			_ = conn.CloseDeadline(time.Now().Add(time.Second))
		}
	}()
	last := context.WithoutCancel(ctx)
	epoch := 0
	for ctx.Err() == nil {
		number := h.NextMessage()
		for tries := 0; ; tries++ {
			if ch == nil || ch.IsClosed() {
				if tries > 600 {
					return fmt.Errorf("%s: no broker takes a message", j.Name)
				}
				var err error
				conn, ch, err = open(last, j.URIs[(j.First+epoch)%len(j.URIs)])
				if epoch++; err != nil || ch.Confirm(false) != nil {
					Wait(last, 100*time.Millisecond)
					continue
				}
			}
			if j.publish(last, h, ch, number, epoch) {
				break
			}
			if !ch.IsClosed() {
				Wait(last, 100*time.Millisecond) // refused
			}
		}
		Wait(ctx, j.Every)
	}
	return nil
}

func (j *Jobs) publish(ctx context.Context, h *history.History, ch *amqp.Channel, number uint64, epoch int) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	key := h.Begin(history.Attempt{Message: number, Publisher: j.Name, Epoch: epoch, Queue: j.Queue})
	headers, o := j.Headers(key)
	o.Client, o.Key, o.Call, o.Result = fmt.Sprint(j.Name, " ", key), key, h.Now(), history.Unknown
	o.Due += o.Call
	c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", j.Queue, false, false, amqp.Publishing{
		DeliveryMode: amqp.Persistent, Body: client.Body(key, 64), Headers: headers,
	})
	if err == nil {
		var acked bool
		if acked, err = c.WaitContext(ctx); err == nil && (acked || !ch.IsClosed()) {
			o.Result, o.Return = history.No, h.Now()
			if acked {
				o.Result = history.OK
			}
			h.End(key, o.Result)
		}
	}
	if o.Kind != "" {
		if o.Result == history.No { // it was refused, and so is not there
			return false
		}
		h.Did(o)
	}
	return o.Result == history.OK
}

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
)

// On NATS a queue is a stream of its own with work-queue retention, stored in files, with
// streamReplicas replicas and one durable pull consumer.
const (
	streamReplicas = 3
	streamConsumer = "bench"
	// streamAckWait is the time after which a message is delivered again: longer than any run
	// takes, so that a slow machine causes no duplicates.
	streamAckWait = 10 * time.Minute
	// streamPrefetch bounds the deliveries not acked.
	streamPrefetch = 500
	// streamTimeout bounds the requests of one step, such as creating all streams.
	streamTimeout = 30 * time.Second
)

var errNoStreamTTL = errors.New("streams have no dead letters")

// connectStreams opens a connection; gone, if not nil, is called when it closes.
func connectStreams(uri string, gone func(error), opts ...jetstream.JetStreamOpt) (*nats.Conn, jetstream.JetStream, error) {
	conn, err := nats.Connect(uri, nats.Timeout(dialTimeout), nats.NoReconnect(), nats.ClosedHandler(func(c *nats.Conn) {
		if gone != nil {
			gone(c.LastError())
		}
	}))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", uri, err)
	}
	js, err := jetstream.New(conn, append(opts, jetstream.WithDefaultTimeout(streamTimeout))...)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, js, nil
}

// eachStream does something for each of the queues, on one connection.
func eachStream(uri string, queues []queue, do func(ctx context.Context, js jetstream.JetStream, q queue) error) error {
	conn, js, err := connectStreams(uri, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), streamTimeout)
	defer cancel()
	for _, q := range queues {
		if err := do(ctx, js, q); err != nil {
			return err
		}
	}
	return nil
}

// declareStreams deletes the queues' streams and creates them again.
func declareStreams(uri string, queues []queue) error {
	return eachStream(uri, queues, func(ctx context.Context, js jetstream.JetStream, q queue) error {
		if len(q.args) > 0 {
			return fmt.Errorf("%s: %w", q.name, errNoStreamTTL)
		}
		if err := removeStream(ctx, js, q.name); err != nil {
			return err
		}
		if err := makeStream(ctx, js, q.name); err != nil {
			return fmt.Errorf("stream %s: %w", q.name, err)
		}
		return nil
	})
}

func makeStream(ctx context.Context, js jetstream.JetStream, name string) error {
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{name}, Retention: jetstream.WorkQueuePolicy,
		Storage: jetstream.FileStorage, Replicas: streamReplicas,
	})
	if err != nil {
		return err
	}
	_, err = js.CreateConsumer(ctx, name, jetstream.ConsumerConfig{
		Durable: streamConsumer, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: streamAckWait, MaxAckPending: streamPrefetch,
	})
	return err
}

// removeStreams deletes the queues' streams and their contents.
func removeStreams(uri string, queues []queue) error {
	return eachStream(uri, queues, func(ctx context.Context, js jetstream.JetStream, q queue) error {
		return removeStream(ctx, js, q.name)
	})
}

func removeStream(ctx context.Context, js jetstream.JetStream, name string) error {
	if err := js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

// firstError keeps the first error of several goroutines.
type firstError struct {
	lock sync.Mutex
	err  error
}

func (f *firstError) set(err error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.err == nil {
		f.err = err
	}
}

func (f *firstError) reason() error {
	f.lock.Lock()
	defer f.lock.Unlock()
	return f.err
}

// streamSender publishes without waiting for the answers, which the library passes on one by one.
type streamSender struct {
	firstError
	conn    *nats.Conn
	js      jetstream.JetStream
	results chan amqp.Confirmation
	// bodies are those of the unanswered messages, each in its slot of the window: the library may
	// send one again.
	bodies [][]byte
	sent   uint64
}

func openStreamSender(uri string, window int) (*streamSender, error) {
	// One slot more than messages can be unanswered is for the end of the connection.
	o := &streamSender{results: make(chan amqp.Confirmation, window+1), bodies: make([][]byte, window)}
	var err error
	o.conn, o.js, err = connectStreams(uri, func(err error) { o.refuse(errors.Join(errClosed, err)) },
		jetstream.WithPublishAsyncMaxPending(2*window),
		jetstream.WithPublishAsyncAckHandler(func(jetstream.JetStream, *nats.Msg, *jetstream.PubAck) {
			o.answer(amqp.Confirmation{Ack: true})
		}),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) { o.refuse(err) }))
	if err != nil {
		return nil, err
	}
	return o, nil
}

func (o *streamSender) refuse(err error) {
	o.set(err)
	o.answer(amqp.Confirmation{})
}

// answer never waits: if there is no slot, a refusal has ended the run.
func (o *streamSender) answer(c amqp.Confirmation) {
	select {
	case o.results <- c:
	default:
	}
}

func (o *streamSender) answers() <-chan amqp.Confirmation { return o.results }

func (o *streamSender) publish(queue string, body []byte, ttl time.Duration) error {
	if ttl > 0 {
		return errNoStreamTTL
	}
	place := &o.bodies[o.sent%uint64(len(o.bodies))]
	*place = append((*place)[:0], body...)
	o.sent++
	_, err := o.js.PublishAsync(queue, *place)
	return err
}

func (o *streamSender) finish() error {
	err := o.conn.FlushTimeout(streamTimeout)
	o.conn.Close()
	return err
}

func (o *streamSender) drop() { o.conn.Close() }

// streamReceiver pulls, always requesting as many messages as may be unacknowledged.
type streamReceiver struct {
	firstError
	conn    *nats.Conn
	pulling jetstream.ConsumeContext
	from    chan amqp.Delivery

	mu    sync.Mutex
	open  []jetstream.Msg // deliveries not acked, in the order of their tags
	acked uint64          // tag of the last one acked
	tag   uint64          // of the newest delivery
}

func openStreamReceiver(uri, queue string, prefetch int) (*streamReceiver, error) {
	if prefetch != streamPrefetch {
		return nil, fmt.Errorf("%s: streams have a prefetch of %d, not %d", queue, streamPrefetch, prefetch)
	}
	// There is space for all that may be unacknowledged: take never waits.
	i := &streamReceiver{from: make(chan amqp.Delivery, streamPrefetch)}
	conn, js, err := connectStreams(uri, i.set)
	if err != nil {
		return nil, err
	}
	i.conn = conn
	ctx, cancel := context.WithTimeout(context.Background(), streamTimeout)
	defer cancel()
	c, err := js.Consumer(ctx, queue, streamConsumer)
	if err == nil {
		i.pulling, err = c.Consume(i.take, jetstream.PullMaxMessages(prefetch),
			jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
				if !errors.Is(err, jetstream.ErrNoHeartbeat) { // the library asks again
					i.set(err)
				}
			}))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	go func() {
		<-i.pulling.Closed() // take is not called any more
		close(i.from)
	}()
	return i, nil
}

func (i *streamReceiver) take(m jetstream.Msg) {
	i.mu.Lock()
	i.open = append(i.open, m)
	i.tag++
	d := amqp.Delivery{DeliveryTag: i.tag, Body: m.Data()}
	i.mu.Unlock()
	i.from <- d
}

func (i *streamReceiver) deliveries() <-chan amqp.Delivery { return i.from }

// ack acks each message: streams with work-queue retention do not support acks of several at once.
// The connection sends them together.
func (i *streamReceiver) ack(tag uint64) error {
	i.mu.Lock()
	n := tag - i.acked
	part := i.open[:n:n]
	i.open, i.acked = i.open[n:], tag
	i.mu.Unlock()
	for _, m := range part {
		if err := m.Ack(); err != nil {
			return err
		}
	}
	return nil
}

func (i *streamReceiver) finish() error {
	i.pulling.Stop()
	return i.conn.FlushTimeout(streamTimeout)
}

func (i *streamReceiver) drop() {
	i.pulling.Stop()
	i.conn.Close()
}

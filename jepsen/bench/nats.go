package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/await"
)

const (
	natsVersion = "v2.15.2"
	natsModule  = "github.com/nats-io/nats-server/v2@" + natsVersion
	natsNodes   = 3
	natsStart   = time.Minute
	natsStop    = 20 * time.Second
	natsPoll    = 200 * time.Millisecond
	natsProbe   = 2 * time.Second
)

// natsBinary is where the server is built.
func natsBinary() (dir, binary string, err error) {
	cache, err := os.UserCacheDir()
	dir = filepath.Join(cache, "quorate-bench", "nats-server-"+natsVersion)
	return dir, filepath.Join(dir, "nats-server"), err
}

// installNATS builds the server from its module, unless it was built before.
func installNATS(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	dir, binary, err := natsBinary()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(binary); err == nil {
		return natsVersion, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "install", natsModule)
	cmd.Dir = dir // outside of any module
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go install %s: %w\n%s", natsModule, err, out)
	}
	return natsVersion, nil
}

// onNATS starts a cluster of servers with JetStream on loopback, lets the bench measure it, and stops it. sync: every
// write is synced before it counts, as the other brokers do; otherwise files are synced every two minutes, which is the
// server's default.
func (b *bench) onNATS(sync bool, measure func()) error {
	return inFolder(b.lab.dir, func(dir string) error {
		var nodes []*exec.Cmd
		defer func() {
			for _, cmd := range nodes {
				_ = cmd.Process.Signal(syscall.SIGTERM) // a process that ignores it is killed below
			}
			for _, cmd := range nodes {
				cluster.End(cmd, natsStop)
			}
		}()
		return try(func() {
			_, binary, err := natsBinary()
			must(err)
			ports := get(cluster.Ports(2 * natsNodes)) // for clients and for the other servers, of each node
			b.target = &target{}
			for i := range natsNodes {
				at := filepath.Join(dir, fmt.Sprint("node", i))
				must(os.WriteFile(at+".conf", []byte(natsConfiguration(dir, ports, i, sync)), 0o644))
				cmd := exec.Command(binary, "--config", at+".conf")
				must(cluster.Launch(cmd, at+".log"))
				nodes = append(nodes, cmd)
				b.uris, b.pids = append(b.uris, fmt.Sprintf("nats://127.0.0.1:%d", ports[2*i])), append(b.pids, cmd.Process.Pid)
			}
			ctx, cancel := context.WithTimeout(b.ctx, natsStart)
			defer cancel()
			for i, uri := range b.uris {
				must(await.Until(ctx, natsPoll, fmt.Sprintf("NATS node %d, whose log is in %s", i+1, dir), func() (bool, error) {
					err := probe(uri, queue{name: fmt.Sprint("bench-probe-", i)})
					return err == nil, err
				}))
			}
			measure()
		})
	})
}

// probe creates a stream with replicas on all nodes at one of them. A request to a cluster that has no leader yet is
// never answered.
func probe(uri string, q queue) error {
	conn, js, err := connectStreams(uri, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), natsProbe)
	defer cancel()
	if _, err := js.AccountInfo(ctx); err != nil {
		return err
	}
	return errors.Join(renewStream(ctx, js, q), removeStream(ctx, js, q))
}

// natsConfiguration sets no limits on storage except those of the machine.
func natsConfiguration(dir string, ports []int, i int, sync bool) string {
	var routes []string
	for k := range natsNodes {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", ports[2*k+1]))
	}
	interval := ""
	if sync {
		interval = "  sync_interval: always\n"
	}
	return fmt.Sprintf(`server_name: bench%d
listen: 127.0.0.1:%d
jetstream {
  store_dir: %q
  max_file_store: 1TB
%s}
cluster {
  name: bench
  listen: 127.0.0.1:%d
  routes: [%s]
}
`, i+1, ports[2*i], filepath.Join(dir, fmt.Sprint("data", i)), interval, ports[2*i+1], strings.Join(routes, ", "))
}

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

// renewStream deletes the queue's stream and creates it again.
func renewStream(ctx context.Context, js jetstream.JetStream, q queue) error {
	if len(q.args) > 0 {
		return fmt.Errorf("%s: %w", q.name, errNoStreamTTL)
	}
	if err := removeStream(ctx, js, q); err != nil {
		return err
	}
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: q.name, Subjects: []string{q.name}, Retention: jetstream.WorkQueuePolicy,
		Storage: jetstream.FileStorage, Replicas: streamReplicas,
	})
	if err == nil {
		_, err = js.CreateConsumer(ctx, q.name, jetstream.ConsumerConfig{
			Durable: streamConsumer, AckPolicy: jetstream.AckExplicitPolicy,
			AckWait: streamAckWait, MaxAckPending: streamPrefetch,
		})
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", q.name, err)
	}
	return nil
}

// removeStream deletes the queue's stream and its contents.
func removeStream(ctx context.Context, js jetstream.JetStream, q queue) error {
	if err := js.DeleteStream(ctx, q.name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("delete %s: %w", q.name, err)
	}
	return nil
}

// stream is what client.Publisher's Run is, to a broker of NATS: it publishes the messages that next returns until
// there are no more and all are answered, in a window and at the publisher's rate.
func (p *publisher) stream(ctx context.Context, h client.Recorder, next func() (client.Message, bool)) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	open := make(chan struct{}, p.window) // messages that are not answered
	conn, js, err := connectStreams(p.uri, func(err error) { fail(errors.Join(errClosed, err)) },
		jetstream.WithPublishAsyncMaxPending(2*p.window),
		jetstream.WithPublishAsyncAckHandler(func(_ jetstream.JetStream, m *nats.Msg, _ *jetstream.PubAck) {
			key, _ := client.Key(m.Data)
			h.End(key, history.OK)
			<-open
		}),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) { fail(err) }))
	if err != nil {
		return err
	}
	defer conn.Close()
	began := clock()
	for n := 0; ; n++ {
		if p.rate > 0 {
			_ = pause(ctx, began+time.Duration(n)*time.Second/time.Duration(p.rate)-clock()) // its end is seen below
		}
		select {
		case open <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		m, ok := next()
		if !ok {
			break
		}
		if m.TTL > 0 || m.Wait > 0 || m.Group != "" {
			return errNoStreamTTL
		}
		// The library may send a body again: each has its own.
		if _, err := js.PublishAsync(m.RoutingKey, client.Brief(nil, h.Begin(history.Attempt{}), m.Size)); err != nil {
			return err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

// stream is what run is on a broker of NATS: it pulls, always requesting as many messages as may be unacknowledged.
// Streams with work-queue retention do not support acks of several messages at once; the connection sends them
// together.
func (c *consumer) stream(ctx context.Context, l *ledger, subscribed func()) error {
	gone := make(chan error, 1)
	conn, js, err := connectStreams(c.uri, func(err error) { gone <- errors.Join(errClosed, err) })
	if err != nil {
		return err
	}
	defer conn.Close()
	from, err := js.Consumer(ctx, c.queue, streamConsumer)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default: // the first one is enough
		}
	}
	pulling, err := from.Consume(func(m jetstream.Msg) {
		key, _ := client.Key(m.Data())
		l.take(key)
		if err := m.Ack(); err != nil {
			fail(err)
		}
	}, jetstream.PullMaxMessages(streamPrefetch), jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
		if !errors.Is(err, jetstream.ErrNoHeartbeat) { // the library asks again
			fail(err)
		}
	}))
	if err != nil {
		return err
	}
	defer pulling.Stop()
	subscribed()
	select {
	case err := <-gone:
		return err
	case err := <-failed:
		return err
	case <-ctx.Done():
		pulling.Stop()
		return conn.FlushTimeout(streamTimeout)
	}
}

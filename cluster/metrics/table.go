package metrics

import (
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/cluster/durations"
	"github.com/quorate/quorate/cluster/limit"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// kind is a type of metric.
type kind uint8

const (
	gauge kind = iota
	counter
	histogram
)

var kinds = [...]string{gauge: "gauge", counter: "counter", histogram: "histogram"}

func (k kind) prometheus() prometheus.ValueType {
	if k == counter {
		return prometheus.CounterValue
	}
	return prometheus.GaugeValue
}

// emit adds a value with the values of its row's labels.
type emit func(value float64, labels ...string)

// metric is a row of the table. The help text gives the unit where the name does not, and the
// meaning of zero where it is not obvious.
type metric struct {
	name   string
	kind   kind
	labels []string
	help   string
	read   func(s *Stats, add emit)
}

// one is a metric without labels.
func one[T int | int64 | uint64 | float64](value func(s *Stats) T) func(*Stats, emit) {
	return func(s *Stats, add emit) { add(float64(value(s))) }
}

// Lengths are how much a queue has, or several together.
type Lengths struct {
	Ready, Unacknowledged queue.Count
	Consumers             int
}

// number is a number of a queue, or of several summed up.
type number func(q *Lengths) uint64

func ready(q *Lengths) uint64        { return q.Ready.Messages }
func unacked(q *Lengths) uint64      { return q.Unacknowledged.Messages }
func messages(q *Lengths) uint64     { return ready(q) + unacked(q) }
func readyBytes(q *Lengths) uint64   { return q.Ready.Bytes }
func unackedBytes(q *Lengths) uint64 { return q.Unacknowledged.Bytes }
func messageBytes(q *Lengths) uint64 { return readyBytes(q) + unackedBytes(q) }
func consumers(q *Lengths) uint64    { return uint64(q.Consumers) }

// sumOf is a number of the queues that the node leads, summed up, which each of them has in the table of objects.
func sumOf(n number) func(*Stats, emit) {
	return one(func(s *Stats) uint64 {
		l := &s.Queues.Led
		return n(&Lengths{Ready: l.Ready, Unacknowledged: l.Unacknowledged, Consumers: l.Consumers})
	})
}

// ofLed is a number of the queues that the node leads, summed up.
func ofLed(n func(q *queue.Stats) uint64) func(*Stats, emit) {
	return one(func(s *Stats) uint64 { return n(&s.Queues.Led.Stats) })
}

// eachPeer is a metric with one value per other node.
func eachPeer(value func(s *Stats, i int) (float64, bool)) func(*Stats, emit) {
	return func(s *Stats, add emit) {
		for i := range s.Links.Peers {
			if v, ok := value(s, i); ok {
				add(v, s.Links.Peers[i].Node)
			}
		}
	}
}

// eachListener is a metric with values per listener.
func eachListener(values func(l *limit.Status, add emit)) func(*Stats, emit) {
	return func(s *Stats, add emit) {
		for i := range s.Traffic.Listeners {
			values(&s.Traffic.Listeners[i], add)
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// compatibility is the version of RabbitMQ whose metric names and types are kept.
const compatibility = "4.3.0"

// clientVersion is the version of Prometheus's library in this program; empty: the program does not say.
var clientVersion = sync.OnceValue(func() string {
	build, _ := debug.ReadBuildInfo()
	return clientOf(build)
})

func clientOf(build *debug.BuildInfo) string {
	if build == nil {
		return ""
	}
	for _, m := range build.Deps {
		if m.Path == "github.com/prometheus/client_golang" {
			return strings.TrimPrefix(m.Version, "v")
		}
	}
	return ""
}

var peerLabel = []string{"peer"}

// sizes is the row of a histogram whose values are counted elsewhere.
var sizes = metric{name: "rabbitmq_message_size_bytes", kind: histogram, labels: protocol, help: "Bodies of the messages that clients of this node have published, in bytes"}

// lateness is the row that is collected as it happens.
var lateness = metric{
	name: "quorate_timer_lateness_seconds", kind: histogram, labels: []string{"kind"},
	help: "From the earliest deadline of a queue to the tick that acts on it. kind: message (expiry), consumer (timeout), queue (lease)",
}

var latenessBuckets = []float64{0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}

const deadLettered = "rabbitmq_global_messages_dead_lettered_"

var queueType = []string{"queue_type"}

// What clients do is labelled with their protocol, and with the type of the queue.
var (
	protocol     = []string{"protocol"}
	protocolType = []string{"protocol", "queue_type"}
)

// ofProtocol is a number of the clients with each protocol.
func ofProtocol(value func(s *traffic.Sums) float64) func(*Stats, emit) {
	return func(s *Stats, add emit) {
		for p := range s.Counts.By {
			add(value(&s.Counts.By[p]), traffic.Protocol(p).String())
		}
	}
}

// counted is a count of what clients publish.
func counted(name, help string, of traffic.Counter) metric {
	return metric{"rabbitmq_global_messages_" + name + "_total", counter, protocol, help, ofProtocol(func(s *traffic.Sums) float64 { return float64(s.All[of]) })}
}

// consumed is a count of what clients take from queues: the sum of some counters.
func consumed(name, help string, of ...traffic.Counter) metric {
	return metric{"rabbitmq_global_messages_" + name + "_total", counter, protocolType, help, func(s *Stats, add emit) {
		sum := func(c *traffic.Counts) (n float64) {
			for _, i := range of {
				n += float64(c[i])
			}
			return n
		}
		for p := range s.Counts.By {
			add(sum(&s.Counts.By[p].Replicated), traffic.Protocol(p).String(), "rabbit_quorum_queue")
			add(sum(&s.Counts.By[p].Local), traffic.Protocol(p).String(), "rabbit_classic_queue")
		}
	}}
}

// summed is what /metrics/per-object counts for each channel, exchange or queue, over all of them.
func summed(name, help string, of traffic.Counter) metric {
	return metric{aggregated + name + "_total", counter, nil, help, one(func(s *Stats) uint64 { return s.Counts.All[of] })}
}

// eachType adds one value per type of queue.
func eachType(s *Stats, add func(kind string, d *queue.Dead)) {
	add("rabbit_quorum_queue", &s.DeadLetters.Deaths.Replicated)
	add("rabbit_classic_queue", &s.DeadLetters.Deaths.Local)
}

func byType(value func(d *queue.Dead) uint64) func(*Stats, emit) {
	return func(s *Stats, add emit) {
		eachType(s, func(kind string, d *queue.Dead) { add(float64(value(d)), kind) })
	}
}

// died counts the deaths for a reason, by disposition.
func died(reason logpb.Death_Reason, name, help string) metric {
	help += ", in queues that this node led. disabled: they were dropped"
	return metric{deadLettered + name + "_total", counter, []string{"queue_type", "dead_letter_strategy"}, help, func(s *Stats, add emit) {
		eachType(s, func(kind string, d *queue.Dead) {
			for fate, n := range d.By[reason-1] {
				add(float64(n), kind, queue.Disposition(fate).String())
			}
		})
	}}
}

var delayedLabels = []string{"vhost", "exchange"}

// eachLogin is a count of logins by protocol.
func eachLogin(value func(login.Counts) uint64) func(*Stats, emit) {
	return func(s *Stats, add emit) {
		for p, c := range s.Logins {
			add(float64(value(c)), login.Protocol(p).String())
		}
	}
}

// table lists every other metric.
var table = []metric{
	{"rabbitmq_identity_info", gauge, []string{"rabbitmq_node", "rabbitmq_cluster", "rabbitmq_endpoint"}, "Always 1: names of the node and its cluster", func(s *Stats, add emit) {
		add(1, s.Node, s.Cluster, "aggregated")
	}},
	{"rabbitmq_build_info", gauge, []string{"rabbitmq_version", "product", "product_version", "erlang_version", "prometheus_client_version", "prometheus_plugin_version"}, "Always 1: the version, and the one of RabbitMQ that it is compatible with. erlang_version: that of Go. prometheus_client_version: that of Prometheus's library. prometheus_plugin_version: the product's, as there is no plug-in", func(s *Stats, add emit) {
		add(1, compatibility, "quorate", s.Version, runtime.Version(), clientVersion(), s.Version)
	}},

	{"rabbitmq_connections", gauge, nil, "Client connections open on this node", one(func(s *Stats) uint64 { return sum(s.Traffic.Connections).open() })},
	{"rabbitmq_channels", gauge, nil, "Channels open on this node", one(func(s *Stats) uint64 { return s.Traffic.Channels[traffic.AMQP091].open() })},
	{"rabbitmq_connections_opened_total", counter, nil, "Client connections opened on this node", one(func(s *Stats) uint64 { return sum(s.Traffic.Connections).Opened })},
	{"rabbitmq_connections_closed_total", counter, nil, "Client connections closed on this node", one(func(s *Stats) uint64 { return sum(s.Traffic.Connections).Closed })},
	{"rabbitmq_channels_opened_total", counter, nil, "Channels opened on this node", one(func(s *Stats) uint64 { return s.Traffic.Channels[traffic.AMQP091].Opened })},
	{"rabbitmq_channels_closed_total", counter, nil, "Channels closed on this node", one(func(s *Stats) uint64 { return s.Traffic.Channels[traffic.AMQP091].Closed })},
	{"quorate_protocol_connections", gauge, protocol, "Client connections open on this node", func(s *Stats, add emit) {
		for p, c := range s.Traffic.Connections {
			add(float64(c.open()), traffic.Protocol(p).String())
		}
	}},
	{"quorate_sessions", gauge, nil, "Sessions of AMQP 1.0 open on this node", one(func(s *Stats) uint64 { return s.Traffic.Channels[traffic.AMQP10].open() })},
	{"quorate_sessions_opened_total", counter, nil, "Sessions of AMQP 1.0 opened on this node", one(func(s *Stats) uint64 { return s.Traffic.Channels[traffic.AMQP10].Opened })},
	{"quorate_sessions_closed_total", counter, nil, "Sessions of AMQP 1.0 closed on this node", one(func(s *Stats) uint64 { return s.Traffic.Channels[traffic.AMQP10].Closed })},
	{"quorate_links", gauge, []string{"direction"}, "Links of AMQP 1.0 open on this node. direction: incoming (clients publish), outgoing (clients receive)", func(s *Stats, add emit) {
		add(float64(s.Traffic.IncomingLinks), "incoming")
		add(float64(s.Traffic.OutgoingLinks), "outgoing")
	}},

	{"quorate_entity_requests_total", counter, []string{"protocol", "operation", "status"}, "Requests about entities that clients of this node have made. protocol: amqp10 (by messages to a node of requests), http. operation: what was asked for; unknown: nothing that is known. status: of the answer, as HTTP has it", func(s *Stats, add emit) {
		for r, n := range s.Traffic.Requests {
			add(float64(n), r.Protocol, r.Operation, strconv.Itoa(r.Status))
		}
	}},

	{"quorate_settled_refused_total", counter, protocol, "Messages that clients of this node have sent settled, and that were refused: nobody was told. protocol: amqp10", func(s *Stats, add emit) {
		add(float64(s.Traffic.Refused), traffic.AMQP10.String())
	}},

	{"rabbitmq_erlang_uptime_seconds", gauge, nil, "Seconds since the node's process started; the name is RabbitMQ's", one(func(s *Stats) float64 { return s.Process.Uptime.Seconds() })},
	{"rabbitmq_process_open_fds", gauge, nil, "Open file descriptors", one(func(s *Stats) int { return s.Process.Files })},
	{"rabbitmq_process_max_fds", gauge, nil, "Limit of open file descriptors", one(func(s *Stats) int { return s.Process.MaxFiles })},

	{"rabbitmq_global_publishers", gauge, protocol, "Open channels and sessions of this node's clients that have published", ofProtocol(func(s *traffic.Sums) float64 { return float64(s.Publishers) })},
	{"rabbitmq_global_consumers", gauge, protocol, "Consumers of the queues that this node leads", func(s *Stats, add emit) {
		add(float64(s.Queues.Led.Consumers-s.Queues.Led.ByCredit), traffic.AMQP091.String())
		add(float64(s.Queues.Led.ByCredit), traffic.AMQP10.String())
	}},
	counted("received", "Messages that clients of this node have published", traffic.Publish),
	counted("received_confirm", "Messages that clients of this node have published in confirm mode, or unsettled", traffic.Confirmable),
	counted("confirmed", "Published messages that were confirmed to clients of this node with basic.ack, or accepted or released", traffic.Confirm),
	counted("routed", "Copies of published messages that were routed to queues", traffic.PublishOut),
	counted("unroutable_returned", "Messages that were returned or released to their publisher, as no queue matched", traffic.ReturnUnroutable),
	counted("unroutable_dropped", "Messages that were dropped, as no queue matched and their publisher was not to be told", traffic.DropUnroutable),
	summed("channel_messages_published", "Messages that clients of this node have published", traffic.Publish),
	summed("channel_messages_confirmed", "Published messages that were confirmed to clients of this node with basic.ack, or accepted or released", traffic.Confirm),
	summed("channel_messages_unroutable_returned", "Messages that were returned or released to their publisher, as no queue matched", traffic.ReturnUnroutable),
	summed("channel_messages_unroutable_dropped", "Messages that were dropped, as no queue matched and their publisher was not to be told", traffic.DropUnroutable),
	summed("channel_messages_delivered_ack", "Deliveries to consumers of this node that acknowledge", traffic.Deliver),
	summed("channel_messages_delivered", "Deliveries to consumers of this node that do not acknowledge", traffic.DeliverNoAck),
	summed("channel_messages_redelivered", "Deliveries and gets at this node of messages that were delivered before", traffic.Redeliver),
	summed("channel_messages_acked", "Deliveries and gets that clients of this node have acknowledged", traffic.Ack),
	summed("channel_get_ack", "Messages fetched with basic.get at this node, to be acknowledged", traffic.Get),
	summed("channel_get", "Messages fetched with basic.get at this node without acknowledgement", traffic.GetNoAck),
	summed("channel_get_empty", "Calls of basic.get at this node that found no message", traffic.GetEmpty),
	summed("exchange_messages_published", "Messages that clients of this node have published", traffic.Publish),
	summed("queue_messages_published", "Copies of published messages that were routed to queues", traffic.PublishOut),
	summed("queue_messages_delivered_ack", "Deliveries to consumers of this node that acknowledge", traffic.Deliver),
	summed("queue_messages_delivered", "Deliveries to consumers of this node that do not acknowledge", traffic.DeliverNoAck),
	summed("queue_messages_redelivered", "Deliveries and gets at this node of messages that were delivered before", traffic.Redeliver),
	summed("queue_messages_acked", "Deliveries and gets that clients of this node have acknowledged", traffic.Ack),
	summed("queue_get_ack", "Messages fetched with basic.get at this node, to be acknowledged", traffic.Get),
	summed("queue_get", "Messages fetched with basic.get at this node without acknowledgement", traffic.GetNoAck),
	summed("queue_get_empty", "Calls of basic.get at this node that found no message", traffic.GetEmpty),
	consumed("delivered", "Deliveries and gets of clients of this node", traffic.Deliver, traffic.DeliverNoAck, traffic.Get, traffic.GetNoAck),
	consumed("delivered_consume_manual_ack", "Deliveries to consumers that acknowledge", traffic.Deliver),
	consumed("delivered_consume_auto_ack", "Deliveries to consumers that do not acknowledge", traffic.DeliverNoAck),
	consumed("delivered_get_manual_ack", "Messages fetched with basic.get, to be acknowledged", traffic.Get),
	consumed("delivered_get_auto_ack", "Messages fetched with basic.get without acknowledgement", traffic.GetNoAck),
	consumed("get_empty", "Calls of basic.get that found no message", traffic.GetEmpty),
	consumed("redelivered", "Deliveries and gets of messages that were delivered before", traffic.Redeliver),
	consumed("acknowledged", "Deliveries and gets that were acknowledged", traffic.Ack),
	{"rabbitmq_queues_declared_total", counter, nil, "Queue declarations by clients of this node, excluding passive ones", one(func(s *Stats) uint64 { return s.Counts.All[traffic.QueueDeclared] })},
	{"rabbitmq_queues_created_total", counter, nil, "Queues that clients of this node have created", one(func(s *Stats) uint64 { return s.Counts.All[traffic.QueueCreated] })},
	{"rabbitmq_queues_deleted_total", counter, nil, "Queues that clients of this node have deleted", one(func(s *Stats) uint64 { return s.Counts.All[traffic.QueueDeleted] })},

	{"quorate_drifted_declares_total", counter, []string{"outcome"}, "Declares of clients of this node that were answered although their arguments are not those of the queue or exchange. outcome: tolerated (nothing has changed), adopted (the queue has the arguments now)", func(s *Stats, add emit) {
		add(float64(s.Queues.DeclaresTolerated), "tolerated")
		add(float64(s.Queues.DeclaresAdopted), "adopted")
	}},
	{"rabbitmq_queues", gauge, nil, "Queues that this node leads", one(func(s *Stats) int { return s.Queues.Led.Queues })},
	{"quorate_queues_paused", gauge, nil, "Queues that this node leads whose consumers are paused", one(func(s *Stats) int { return s.Queues.Led.Paused })},
	{"quorate_queues_redriving", gauge, nil, "Queues that this node leads of which a redrive goes on", one(func(s *Stats) int { return s.Queues.Led.Redriving })},
	{"rabbitmq_consumers", gauge, nil, "Consumers of the queues that this node leads", sumOf(consumers)},
	{"rabbitmq_queue_consumers", gauge, nil, "Consumers of the queues that this node leads", sumOf(consumers)},
	{"rabbitmq_queue_messages_ready", gauge, nil, "Messages that are ready in the queues that this node leads", sumOf(ready)},
	{"rabbitmq_queue_messages_unacked", gauge, nil, "Messages that are delivered and unacknowledged in the queues that this node leads", sumOf(unacked)},
	{"quorate_queue_messages_scheduled", gauge, nil, "Scheduled messages in the queues that this node leads, excluding those of delayed exchanges", ofLed(func(q *queue.Stats) uint64 { return q.Scheduled.Messages })},
	{"quorate_queue_messages_delayed_retry", gauge, nil, "Returned messages that wait to be retried, in the queues that this node leads", ofLed(func(q *queue.Stats) uint64 { return q.Delayed.Messages })},
	{"quorate_queue_messages_locked", gauge, nil, "Unacknowledged messages with a lock, in the queues that this node leads", ofLed(func(q *queue.Stats) uint64 { return uint64(q.Locked) })},
	{"quorate_queue_messages_deferred", gauge, nil, "Messages that consumers have deferred, in the queues that this node leads", ofLed(func(q *queue.Stats) uint64 { return q.Deferred.Messages })},
	{"quorate_queue_messages_parked", gauge, nil, "Messages that have exceeded the default delivery limit and wait for an operator, in the queues that this node leads", ofLed(func(q *queue.Stats) uint64 { return q.Parked.Messages })},
	{"quorate_delayed_messages", gauge, delayedLabels, "Messages that wait at a delayed exchange whose store this node leads", func(s *Stats, add emit) {
		for _, d := range s.Queues.Led.Delayed {
			add(float64(d.Messages), d.VHost, d.Exchange)
		}
	}},
	{"quorate_delayed_next_due_seconds", gauge, delayedLabels, "When the next message that waits at the delayed exchange is due, in seconds since the epoch; absent if none waits", func(s *Stats, add emit) {
		for _, d := range s.Queues.Led.Delayed {
			if d.NextDue != 0 {
				add(float64(d.NextDue)/1000, d.VHost, d.Exchange)
			}
		}
	}},
	{"quorate_queue_next_expiry_seconds", gauge, nil, "When the next message expires in the queues that this node leads, in seconds since the epoch; absent if none does", func(s *Stats, add emit) {
		if at := s.Queues.Led.Times.NextExpiry; at != 0 {
			add(float64(at) / 1000)
		}
	}},
	{"quorate_queue_tick_lag_seconds", gauge, nil, "Seconds by which the earliest deadline of the queues that this node leads is overdue; 0: none is", one(func(s *Stats) float64 { return float64(s.Queues.Led.Times.TickLag) / 1000 })},
	{"quorate_queue_clock_skew_seconds", gauge, nil, "Seconds by which the log of a queue that this node leads is ahead of the node's clock, at most; 0: none is", one(func(s *Stats) float64 { return float64(s.Queues.Led.Times.Ahead) / 1000 })},
	{"rabbitmq_queue_messages", gauge, nil, "Messages that are ready or unacknowledged in the queues that this node leads", sumOf(messages)},
	{"rabbitmq_queue_messages_ready_bytes", gauge, nil, "Payload bytes of the messages that are ready in the queues that this node leads", sumOf(readyBytes)},
	{"rabbitmq_queue_messages_unacked_bytes", gauge, nil, "Payload bytes of the unacknowledged messages in the queues that this node leads", sumOf(unackedBytes)},
	{"rabbitmq_queue_messages_bytes", gauge, nil, "Payload bytes of the messages that are ready or unacknowledged in the queues that this node leads", sumOf(messageBytes)},
	{"quorate_consumer_timeouts_total", counter, nil, "Messages that were returned to their queue because a consumer held them for too long, while this node led the queue", one(func(s *Stats) uint64 { return s.Queues.TimedOut })},
	{"quorate_consumer_timeout_actions_total", counter, []string{"action"}, "Actions on clients of this node after consumer timeouts. action: cancel (a consumer was cancelled), suspend (one was suspended, each time), channel_close (the channel was closed, as the client does not support cancellation), get (the channel was closed, for a delivery of basic.get)", func(s *Stats, add emit) {
		t := &s.Traffic.Timeouts
		add(float64(t.Cancelled), "cancel")
		add(float64(t.Suspended), "suspend")
		add(float64(t.Closed), "channel_close")
		add(float64(t.Gets), "get")
	}},
	{"quorate_consumer_timeout_late_acks_total", counter, nil, "Messages that were settled after they had been returned, while this node led the queue: if it grows, a timeout is too short", one(func(s *Stats) uint64 { return s.Queues.LateAcks })},
	{"quorate_consumers_timed_out", gauge, nil, "Consumers of the queues that this node leads that have not yet settled a delivery that timed out", one(func(s *Stats) int { return s.Queues.Led.ConsumersTimedOut })},
	{"quorate_consumer_oldest_unacked_seconds", gauge, nil, "Age in seconds of the oldest unsettled delivery, in the queues that this node leads; 0: there is none", one(func(s *Stats) float64 { return float64(s.Queues.Led.OldestUnacked) / 1000 })},
	{"quorate_queue_oldest_ready_seconds", gauge, nil, "Age in seconds of the oldest ready message, in the queues that this node leads: since it came, or became ready if it was scheduled; 0: there is none", one(func(s *Stats) float64 { return float64(s.Queues.Led.OldestReady) / 1000 })},
	{"quorate_queue_oldest_scheduled_seconds", gauge, nil, "Age in seconds of the oldest scheduled message since it was published, in the queues that this node leads, without those of delayed exchanges; 0: there is none", one(func(s *Stats) float64 { return float64(s.Queues.Led.OldestScheduled) / 1000 })},
	{"quorate_dead_letter_outbox_depth", gauge, nil, "Dead letters and forwarded messages in the outboxes of the queues that this node leads", ofLed(func(q *queue.Stats) uint64 { return q.Outbox.Messages })},
	{"quorate_dead_letter_outbox_bytes", gauge, nil, "Payload bytes of the dead letters and forwarded messages in the outboxes of the queues that this node leads", ofLed(func(q *queue.Stats) uint64 { return q.Outbox.Bytes })},
	{"quorate_dead_letter_outbox_waiting", gauge, nil, "Dead letters and forwarded messages that are unroutable at present, or were refused, in the outboxes of the queues that this node leads", ofLed(func(q *queue.Stats) uint64 { return q.Waiting.Messages })},
	died(logpb.Death_EXPIRED, "expired", "Messages that expired"),
	died(logpb.Death_REJECTED, "rejected", "Messages that consumers rejected without requeue"),
	died(logpb.Death_MAXLEN, "maxlen", "Messages dropped, or refused as dead letters, because of a length limit"),
	died(logpb.Death_DELIVERY_LIMIT, "delivery_limit", "Messages that were returned more often than the delivery limit allows"),
	died(logpb.Death_GROUP_EXPIRED, "group_expired", "Messages that expired with another message of their group"),
	died(logpb.Death_MAXHOPS, "maxhops", "Messages that were forwarded too many times"),
	died(logpb.Death_QUEUE_DELETED, "queue_deleted", "Messages that were left in queues with a last will when these ended"),
	{"quorate_messages_removed_total", counter, []string{"queue_type", "reason"}, "Messages removed in another way than by an acknowledgement or a death, in queues that this node led: purged, or scheduled and then cancelled or replaced", func(s *Stats, add emit) {
		eachType(s, func(kind string, d *queue.Dead) {
			add(float64(d.Cancelled), kind, "cancelled")
			add(float64(d.Replaced), kind, "replaced")
			add(float64(d.Purged), kind, "purged")
		})
	}},
	{deadLettered + "confirmed_total", counter, queueType, "Dead letters of outboxes that arrived in their target queues", byType(func(d *queue.Dead) uint64 { return d.Confirmed })},
	{"quorate_messages_forwarded_total", counter, queueType, "Messages that arrived at the destinations to which their queues forward, in queues that this node led", byType(func(d *queue.Dead) uint64 { return d.Forwarded })},
	{"quorate_messages_redriven_total", counter, queueType, "Dead letters that were redriven and have arrived, in queues that this node led", byType(func(d *queue.Dead) uint64 { return d.Redriven })},
	{"quorate_messages_deleted_total", counter, queueType, "Ready messages that were deleted by request, in queues that this node led", byType(func(d *queue.Dead) uint64 { return d.Deleted })},
	{"quorate_dead_letters_refused_total", counter, queueType, "Copies of dead letters and of forwarded messages that target queues refused", byType(func(d *queue.Dead) uint64 { return d.Refused })},
	{"quorate_dead_letters_lost_total", counter, []string{"way"}, "Dead letters that did not arrive: no exchange, no route, refused, or the target queue or the source queue was deleted. way: outbox, or once (at_most_once, maxlen, beyond dead-letter-max-pending), which counts each target queue", func(s *Stats, add emit) {
		add(float64(s.DeadLetters.Deaths.Replicated.Dropped+s.DeadLetters.Deaths.Local.Dropped), "outbox")
		add(float64(s.DeadLetters.LostOnce), "once")
	}},
	{"quorate_queues_declared", gauge, nil, "Queues in the catalog of the cluster", one(func(s *Stats) int { return s.Queues.Declared })},
	{"quorate_queues_ended_total", counter, nil, "Queues deleted because they were unused, idle, or left by their last consumer, while this node led them", one(func(s *Stats) uint64 { return s.Queues.QueuesEnded })},
	{"quorate_exchanges_expired_total", counter, nil, "Exchanges that this node, as the leader of the catalog, deleted because they were idle", one(func(s *Stats) uint64 { return s.Queues.ExchangesExpired })},
	{"quorate_queue_replicas", gauge, nil, "Queue replicas on this node", one(func(s *Stats) int { return s.Replicas.Count })},
	{"quorate_raft_members", gauge, []string{"state"}, "Replicas on this node of queues that keep a log. state: leader, follower, candidate, learner (does not vote), stopped", func(s *Stats, add emit) {
		m := &s.Raft.Members
		add(float64(m.Leaders), "leader")
		add(float64(m.Followers), "follower")
		add(float64(m.Candidates), "candidate")
		add(float64(m.Learners), "learner")
		add(float64(m.Stopped), "stopped")
	}},
	{"quorate_raft_leader_changes_total", counter, nil, "How often this node has begun to lead a queue that keeps a log; the sum over all nodes counts each change of a leader once", one(func(s *Stats) uint64 { return s.Meters.Led })},
	{"quorate_raft_append_rejected_total", counter, nil, "Requests to append to the log of a queue that another member refused: it lacks earlier entries, or knows a later term", one(func(s *Stats) uint64 { return s.Meters.Refused })},
	{"quorate_commands_resent_total", counter, nil, "Commands of this node's clients and queues that were sent to the leader of a queue again: the leader had changed, or had missed them", one(func(s *Stats) uint64 { return s.Resent })},
	{"quorate_commands_repeated_total", counter, nil, "Commands that leaders on this node had already taken, and did not write to their logs again", one(func(s *Stats) uint64 { return s.Meters.Copies })},
	{"quorate_commands_early_total", counter, nil, "Commands that leaders on this node refused because an earlier one was missing", one(func(s *Stats) uint64 { return s.Meters.Early })},
	{"quorate_leader_resignations_total", counter, []string{"reason"}, "Leaderships that this node has resigned because work for the queue made no progress. reason: entries (not committed or not applied), tick (something is due), settings (a new revision is not applied), disk (the node's disk hangs), catalog (its entries are not committed or not applied)", func(s *Stats, add emit) {
		for _, reason := range replica.Reasons {
			add(float64(s.Replicas.Resignations[reason]), reason)
		}
	}},
	{"quorate_leaders_standing_still", gauge, nil, "Queues led by this node, and the catalog, whose work makes no progress, see operations.md", one(func(s *Stats) int { return s.Replicas.Stalled })},
	{"quorate_disk_hung", gauge, nil, "1 while a read or write of the node's stores does not return: the node leads nothing and has withdrawn from the cluster, see operations.md", one(func(s *Stats) float64 { return truth(s.Watchdog.Hung) })},
	{"quorate_disk_hangs_total", counter, nil, "How often the disk has hung since the node started", one(func(s *Stats) uint64 { return s.Watchdog.Hangs })},
	{"quorate_disk_write_wait_seconds", gauge, nil, "Age in seconds of the oldest outstanding read or write of the node's stores; 0: there is none", one(func(s *Stats) float64 { return s.Watchdog.Waiting.Seconds() })},
	{"quorate_disk_syncs_total", counter, nil, "Calls of fsync and fdatasync for files and folders of the node's stores", one(func(s *Stats) uint64 { return s.Watchdog.Syncs })},
	{"quorate_stall_seconds_total", counter, nil, "Seconds during which the process was kept from running, counting only stalls of more than 50 ms", one(func(s *Stats) float64 { return s.Watchdog.Stalled.Seconds() })},
	{"quorate_stall_seconds_max", gauge, nil, "The longest time in seconds for which the process was kept from running, since the node started", one(func(s *Stats) float64 { return s.Watchdog.LongestStall.Seconds() })},
	{"quorate_quarantined_groups", gauge, nil, "Queues that this node does not lead because work for them has panicked here, see operations.md", one(func(s *Stats) int { return s.Replicas.Quarantined })},
	{"quorate_replicas_unproven", gauge, nil, "Replicas on this node, including the catalog's, that cannot prove what they acknowledged and do not vote until a leader has brought them up to date, see operations.md", one(func(s *Stats) int { return s.Replicas.Unproven })},
	{"quorate_replicas_closed", gauge, nil, "Replicas on this node that could not be opened; the node keeps trying, see operations.md", one(func(s *Stats) int { return s.Replicas.Closed })},
	{"quorate_replica_failures_total", counter, nil, "How often a replica on this node could not be opened or dropped", one(func(s *Stats) uint64 { return s.Replicas.Failures })},
	{"quorate_group_panics_total", counter, nil, "Panics in work for queues on this node, each of which quarantines its queue here", one(func(s *Stats) uint64 { return s.Panics.Groups })},
	{"quorate_panics_total", counter, []string{"where"}, "Panics that were contained. where: connection (a client's connection was closed), peer (a message or call of another node failed), loop (background work of the node, which continues after a second), broker (work for channels and dead letters: the affected channels were closed)", func(s *Stats, add emit) {
		add(float64(s.Traffic.Panics), "connection")
		add(float64(s.Panics.Peers), "peer")
		add(float64(s.Panics.Loops), "loop")
		add(float64(s.Panics.Broker), "broker")
	}},
	{"quorate_commands_refused_total", counter, nil, "Commands published to `amq.quorate.command` at this node that had no effect", one(func(s *Stats) uint64 { return s.Queues.RefusedCommands })},
	{"quorate_unexpected_answers_total", counter, nil, "Answers from queues that did not fit their command: each is a bug, and counts as a failure", one(func(s *Stats) uint64 { return s.Queues.UnexpectedAnswers })},

	{"quorate_clock_offset_seconds", gauge, nil, "Seconds by which this node's wall clock is ahead of the median of all nodes' clocks", func(s *Stats, add emit) {
		if s.Clock.Sampled {
			add(s.Clock.Offset.Seconds())
		}
	}},
	{"quorate_clock_skew_alarm", gauge, nil, "1 while this node's wall clock is off by more than max_clock_skew", one(func(s *Stats) float64 { return truth(s.Clock.Skewed) })},
	{"quorate_clock_agreed", gauge, nil, "1 once a majority of wall clocks has agreed; before that, time without a leader does not count", one(func(s *Stats) float64 { return truth(s.Clock.Agreed) })},
	{"quorate_clock_jump_refused_total", counter, nil, "Forward jumps of the clock that queues led by this node did not follow", one(func(s *Stats) uint64 { return s.Clock.JumpsRefused })},
	{"quorate_leader_clock_skew_seconds", gauge, nil, "Seconds by which a queue's log was ahead of the clock when this node last became the leader of one", one(func(s *Stats) float64 { return float64(s.Clock.LogAhead) / 1000 })},
	{"quorate_clock_peer_offset_seconds", gauge, peerLabel, "Seconds by which the peer's wall clock is ahead of this node's", func(s *Stats, add emit) {
		for _, p := range s.Clock.Peers {
			if p.Known {
				add(p.Offset.Seconds(), p.Node)
			}
		}
	}},

	{"rabbitmq_process_resident_memory_bytes", gauge, nil, "Resident memory of the node's process, in bytes", one(func(s *Stats) int64 { return s.Resources.MemoryUsed })},
	{"rabbitmq_resident_memory_limit_bytes", gauge, nil, "Limit in bytes above which there is a memory alarm, see vm_memory_high_watermark", one(func(s *Stats) int64 { return s.Resources.MemoryLimit })},
	{"rabbitmq_disk_space_available_bytes", gauge, nil, "Free space on the disk of data_dir, in bytes", one(func(s *Stats) int64 { return s.Resources.DiskFree })},
	{"rabbitmq_disk_space_available_limit_bytes", gauge, nil, "Limit in bytes below which there is a disk alarm, see disk_free_limit", one(func(s *Stats) int64 { return s.Resources.DiskLimit })},
	{"rabbitmq_alarms_memory_used_watermark", gauge, nil, "1 while there is a memory alarm at this node", one(func(s *Stats) float64 { return truth(s.Resources.MemoryAlarm) })},
	{"rabbitmq_alarms_free_disk_space_watermark", gauge, nil, "1 while there is a disk alarm at this node", one(func(s *Stats) float64 { return truth(s.Resources.DiskAlarm) })},
	{"quorate_disk_unknown", gauge, nil, "1 once the free space on the disk of data_dir could not be measured for 10 s: there will be no disk alarm", one(func(s *Stats) float64 { return truth(s.Resources.DiskUnknown) })},
	{"rabbitmq_alarms_file_descriptor_limit", gauge, nil, "1 while the process has no file descriptor left", one(func(s *Stats) float64 {
		return truth(s.Process.MaxFiles > 0 && s.Process.Files >= s.Process.MaxFiles)
	})},
	{"erlang_vm_dist_node_state", gauge, peerLabel, "Link to the other node: 3 is up, 1 is down; the name is RabbitMQ's", eachPeer(func(s *Stats, i int) (float64, bool) { return 1 + 2*truth(s.Links.Peers[i].Linked), true })},
	{"quorate_listener_connections", gauge, []string{"listener", "state"}, "Connections of clients and nodes to a listener. state: settled (logged in), pending (not logged in yet, or the listener has no logins)", eachListener(func(l *limit.Status, add emit) {
		add(float64(l.Open-l.Pending), l.Name, "settled")
		add(float64(l.Pending), l.Name, "pending")
	})},
	{"quorate_listener_connections_max", gauge, []string{"listener"}, "The largest number of connections of a listener, see max_connections and the like", eachListener(func(l *limit.Status, add emit) { add(float64(l.Max), l.Name) })},
	{"quorate_listener_connections_refused_total", counter, []string{"listener"}, "Connections closed because there were too many", eachListener(func(l *limit.Status, add emit) { add(float64(l.Refused), l.Name) })},
	{"quorate_logins_total", counter, []string{"outcome"}, "Logins with a password. outcome: accepted, refused, held_back (not checked, after too many failures), busy (not checked, too many wait)", func(s *Stats, add emit) {
		sum := s.Logins.Sum()
		add(float64(sum.Accepted), "accepted")
		add(float64(sum.Refused), "refused")
		add(float64(sum.HeldBack), "held_back")
		add(float64(sum.Busy), "busy")
	}},
	{"rabbitmq_auth_attempts_total", counter, protocol, "Logins with a password. protocol: amqp091, amqp10, http", eachLogin(login.Counts.All)},
	{"rabbitmq_auth_attempts_succeeded_total", counter, protocol, "Logins with a password that were accepted. protocol: amqp091, amqp10, http", eachLogin(func(c login.Counts) uint64 { return c.Accepted })},
	{"rabbitmq_auth_attempts_failed_total", counter, protocol, "Logins with a password that were refused, or not checked. protocol: amqp091, amqp10, http", eachLogin(login.Counts.Failed)},
	{"quorate_certificate_expires_timestamp_seconds", gauge, []string{"protocol", "of"}, "When a certificate expires, since the epoch. protocol: clustering (links to other nodes), amqp/ssl, https, https/prometheus. of: node (the earliest of those that this node presents), authorities (the earliest of those by which it verifies others)", func(s *Stats, add emit) {
		for _, c := range s.Certificates {
			of := "node"
			if c.Authority {
				of = "authorities"
			}
			add(float64(c.Ends.Unix()), c.Protocol, of)
		}
	}},
	{"quorate_held_memory_bytes", gauge, []string{"by"}, "Memory that this node holds for its clients. by: channels (incomplete messages, methods that wait, transactions), publishes (without a final result), answers (and deliveries, that are not written yet), http (messages in answers of the HTTP API)", func(s *Stats, add emit) {
		h := &s.Traffic.Held
		add(float64(h.Channels), "channels")
		add(float64(h.Publishes), "publishes")
		add(float64(h.Answers), "answers")
		add(float64(h.HTTP), "http")
	}},
	{"quorate_blocked_connections", gauge, nil, "Connections of this node that are not read because of an alarm at any node", one(func(s *Stats) int64 { return s.Traffic.Blocked })},

	{"quorate_route_lease_seconds", gauge, nil, "Seconds for which this node may still route by its view of the catalog without renewing its lease; 0: publishes wait", one(func(s *Stats) float64 { return max(s.Lease.Left, 0).Seconds() })},
	{"quorate_route_leases_lost_total", counter, nil, "How often this node lost its lease, so that publishes had to wait", one(func(s *Stats) uint64 { return s.Lease.Lost })},

	{"rabbitmq_unreachable_cluster_peers_count", gauge, nil, "Other nodes that are down", one(func(s *Stats) int {
		n := 0
		for _, p := range s.Links.Peers {
			if !p.Alive {
				n++
			}
		}
		return n
	})},
	{"quorate_peer_alive", gauge, peerLabel, "1 while the other node is up", eachPeer(func(s *Stats, i int) (float64, bool) { return truth(s.Links.Peers[i].Alive), true })},
	{"quorate_peer_linked", gauge, peerLabel, "1 while there is a link to the other node", eachPeer(func(s *Stats, i int) (float64, bool) { return truth(s.Links.Peers[i].Linked), true })},
	{"quorate_peer_frames_sent_total", counter, peerLabel, "Messages, requests, answers and pings sent to the other node, each piece of a long one; many share a write to the network", eachPeer(func(s *Stats, i int) (float64, bool) { return float64(s.Links.Peers[i].Sent), true })},
	{"quorate_peer_backlog_bytes", gauge, peerLabel, "Bytes that wait to be sent to the other node", eachPeer(func(s *Stats, i int) (float64, bool) { return float64(s.Links.Peers[i].Backlog), true })},
	{"quorate_peer_round_trip_seconds", gauge, peerLabel, "Round trip of the last ping to the other node, in seconds", eachPeer(func(s *Stats, i int) (float64, bool) {
		return s.Links.Peers[i].RoundTrip.Seconds(), s.Links.Peers[i].RoundTrip > 0
	})},

	{"rabbitmq_raft_term_total", counter, nil, "Raft terms of the queue replicas on this node, summed up", one(func(s *Stats) uint64 { return s.Raft.Term })},
	{"rabbitmq_raft_term", gauge, nil, "Raft terms of the queue replicas on this node, summed up", one(func(s *Stats) uint64 { return s.Raft.Term })},
	{"rabbitmq_raft_log_commit_index", gauge, nil, "Indexes up to which the queue replicas on this node know their logs to be committed, summed up", one(func(s *Stats) uint64 { return s.Raft.Commit })},
	{"rabbitmq_raft_commit_index", gauge, nil, "Indexes up to which the queue replicas on this node know their logs to be committed, summed up", one(func(s *Stats) uint64 { return s.Raft.Commit })},
	{"rabbitmq_raft_log_last_written_index", gauge, nil, "Indexes of the last entries in the logs of the queue replicas on this node, summed up", one(func(s *Stats) uint64 { return s.Raft.Last })},
	{"rabbitmq_raft_last_written_index", gauge, nil, "Indexes of the last entries in the logs of the queue replicas on this node, summed up", one(func(s *Stats) uint64 { return s.Raft.Last })},
	{"rabbitmq_raft_log_last_applied_index", gauge, nil, "Indexes of the last entries that the queue replicas on this node have applied, summed up", one(func(s *Stats) uint64 { return s.Raft.Applied })},
	{"rabbitmq_raft_last_applied", gauge, nil, "Indexes of the last entries that the queue replicas on this node have applied, summed up", one(func(s *Stats) uint64 { return s.Raft.Applied })},
	{"rabbitmq_raft_log_snapshot_index", gauge, nil, "Indexes of the newest snapshots of the queue replicas on this node, summed up", one(func(s *Stats) int64 { return s.Raft.Snapshot })},
	{"rabbitmq_raft_snapshot_index", gauge, nil, "Indexes of the newest snapshots of the queue replicas on this node, summed up", one(func(s *Stats) int64 { return s.Raft.Snapshot })},
	{"rabbitmq_raft_commit_latency_seconds", gauge, nil, "Recent time in seconds from the proposal of an entry until it is applied, in queues that this node leads; 0: there was none", one(func(s *Stats) float64 { return s.Raft.CommitLatency.Seconds() })},
	{"rabbitmq_raft_entry_commit_latency_seconds", gauge, nil, "Recent time in seconds from the proposal of an entry until it is applied, in queues that this node leads; 0: there was none", one(func(s *Stats) float64 { return s.Raft.CommitLatency.Seconds() })},
	{"quorate_raft_snapshots_sent_total", counter, nil, "Snapshots sent to members that lacked entries the log no longer has", one(func(s *Stats) uint64 { return s.Links.Snapshots.Sent })},
	{"quorate_raft_snapshots_sent_bytes_total", counter, nil, "Bytes of snapshots sent to members that lacked entries the log no longer has", one(func(s *Stats) uint64 { return s.Links.Snapshots.SentBytes })},
	{"quorate_raft_snapshots_left_out_bytes_total", counter, nil, "Bytes of snapshots that were not sent because the members already had them", one(func(s *Stats) uint64 { return s.Links.Snapshots.LeftOut })},
	{"quorate_raft_snapshots_received_total", counter, nil, "Snapshots received from leaders", one(func(s *Stats) uint64 { return s.Links.Snapshots.Received })},
	{"quorate_raft_log_disk_bytes", gauge, nil, "Disk space of the queues' logs, in bytes", one(func(s *Stats) uint64 { return s.Log.DiskBytes })},
	{"quorate_raft_log_written_bytes_total", counter, nil, "Bytes written to disk for the queues' logs", one(func(s *Stats) uint64 { return s.Log.WrittenBytes })},
	{"quorate_raft_log_reclaimable_bytes", gauge, nil, "Bytes that the next snapshots can free", one(func(s *Stats) int64 { return s.Log.Reclaimable })},
	{"quorate_raft_log_cache_bytes", gauge, nil, "Bytes of recent entries in memory", one(func(s *Stats) int64 { return s.Log.CacheBytes })},
	{"quorate_raft_log_cache_hits_total", counter, nil, "Payloads read from memory", one(func(s *Stats) uint64 { return s.Log.CacheHits })},
	{"quorate_raft_log_cache_misses_total", counter, nil, "Payloads read from disk", one(func(s *Stats) uint64 { return s.Log.CacheMisses })},
}

// Document is the table as a page of the documentation.
func Document() string {
	var seconds []float64
	for _, b := range durations.Bounds {
		seconds = append(seconds, b.Seconds())
	}
	text := "| metric | type | labels | what |\n|---|---|---|---|\n"
	for _, row := range append(histograms(), table...) {
		text += "| `" + row.name + "` | " + kinds[row.kind] + " | " + strings.Join(row.labels, ", ") + " | " + row.help + " |\n"
	}
	return text + "\nBuckets of the lateness, in seconds: " + bounds(latenessBuckets) + ". Of `quorate_raft_…_duration_seconds`: " + bounds(seconds) + ".\n"
}

func bounds(of []float64) string {
	var texts []string
	for _, b := range of {
		texts = append(texts, strconv.FormatFloat(b, 'g', -1, 64))
	}
	return strings.Join(texts, ", ")
}

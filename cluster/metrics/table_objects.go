package metrics

import (
	"strings"

	"github.com/quorate/quorate/cluster/traffic"
)

// objectMetric is a row of the table of metrics with a value per object. Names have a prefix in
// addition; a family is what /metrics/detailed is asked for.
type objectMetric struct {
	family string
	name   string
	kind   kind
	labels []string
	help   string
	read   func(o *Objects, to *lines)
}

var (
	queueLabels      = []string{"vhost", "queue"}
	exchangeLabels   = []string{"vhost", "exchange"}
	channelLabels    = []string{"channel"}
	connectionLabels = []string{"connection"}
)

// led is a metric of the queues that the node leads.
func led[N uint64 | float64](family, name, help string, value func(q *Queue) N) objectMetric {
	return objectMetric{family, name, gauge, queueLabels, help, func(o *Objects, to *lines) {
		for i := range o.Queues {
			if q := &o.Queues[i]; q.Led != nil {
				to.add(float64(value(q)), q.VHost, q.Name)
			}
		}
	}}
}

// of is a number of a queue that the node leads.
func of(n number) func(q *Queue) uint64 { return func(q *Queue) uint64 { return n(q.Led) } }

// kept is a number of a queue that has replicas, or that has none; 0 for another.
func kept(replicated bool, n number) func(q *Queue) uint64 {
	return func(q *Queue) uint64 {
		if (q.Raft != nil) != replicated {
			return 0
		}
		return n(q.Led)
	}
}

// byValue is a metric of the values of the header by which a queue that the node leads counts its messages.
func byValue(name, help string, value func(v *HeaderValue) float64) objectMetric {
	return objectMetric{"queue_header_metrics", name, gauge, []string{"vhost", "queue", "value"}, help, func(o *Objects, to *lines) {
		for i := range o.Queues {
			q := &o.Queues[i]
			for k := range q.Values {
				to.add(value(&q.Values[k]), q.VHost, q.Name, q.Values[k].Value)
			}
		}
	}}
}

// ofQueue is a count of what the node's clients do with a queue.
func ofQueue(name, help string, of traffic.Counter) objectMetric {
	return objectMetric{"queue_delivery_metrics", name, counter, queueLabels, help, func(o *Objects, to *lines) {
		for i := range o.Queues {
			if q := &o.Queues[i]; q.Counts != nil {
				to.add(float64(q.Counts[of]), q.VHost, q.Name)
			}
		}
	}}
}

// ofReplica is a metric of the replicas on the node.
func ofReplica(name string, k kind, help string, value func(q *Queue) float64) objectMetric {
	return objectMetric{"ra_metrics", name, k, queueLabels, help, func(o *Objects, to *lines) {
		for i := range o.Queues {
			if q := &o.Queues[i]; q.Raft != nil {
				to.add(value(q), q.VHost, q.Name)
			}
		}
	}}
}

// ofExchange is a count of what the node's clients publish.
func ofExchange(name, help string, of traffic.Counter) objectMetric {
	return objectMetric{"exchange_metrics", name, counter, exchangeLabels, help, func(o *Objects, to *lines) {
		for i := range o.Exchanges {
			to.add(float64(o.Exchanges[i].Counts[of]), o.Exchanges[i].VHost, o.Exchanges[i].Name)
		}
	}}
}

// ofChannel is a metric of the channels of the node's clients.
func ofChannel(name, help string, value func(c *Channel) int) objectMetric {
	return objectMetric{"channel_metrics", name, gauge, channelLabels, help, func(o *Objects, to *lines) {
		for i := range o.Channels {
			to.add(float64(value(&o.Channels[i])), o.Channels[i].Name)
		}
	}}
}

// byChannel is a count of what a channel has done.
func byChannel(family, name, help string, of traffic.Counter) objectMetric {
	return objectMetric{family, name, counter, channelLabels, help, func(o *Objects, to *lines) {
		for i := range o.Channels {
			if c := &o.Channels[i]; c.Counts != nil {
				to.add(float64(c.Counts[of]), c.Name)
			}
		}
	}}
}

// ofConnection is a metric of the connections of the node's clients.
func ofConnection(family, name string, k kind, help string, value func(c *Connection) float64) objectMetric {
	return objectMetric{family, name, k, connectionLabels, help, func(o *Objects, to *lines) {
		for i := range o.Connections {
			to.add(value(&o.Connections[i]), o.Connections[i].Name)
		}
	}}
}

// objectTable lists the metrics with a value per object.
var objectTable = []objectMetric{
	led("queue_coarse_metrics", "queue_messages_ready", "Messages that are ready in a queue that this node leads", of(ready)),
	led("queue_coarse_metrics", "queue_messages_unacked", "Messages that are delivered and unacknowledged in a queue that this node leads", of(unacked)),
	led("queue_coarse_metrics", "queue_messages", "Messages that are ready or unacknowledged in a queue that this node leads", of(messages)),
	led("queue_consumer_count", "queue_consumers", "Consumers of a queue that this node leads", of(consumers)),
	led("queue_metrics", "queue_consumer_capacity", "Share of the last 5 to 10 seconds, 0 to 1, in which the queue could hand messages to its consumers at once; 0 without consumers", func(q *Queue) float64 { return q.Capacity }),
	led("queue_metrics", "queue_consumer_utilisation", "Older name of queue_consumer_capacity: share of the last 5 to 10 seconds, 0 to 1, in which the queue could hand messages to its consumers at once; 0 without consumers", func(q *Queue) float64 { return q.Capacity }),
	led("queue_metrics", "queue_messages_ready_bytes", "Payload bytes of the messages that are ready in a queue that this node leads", of(readyBytes)),
	led("queue_metrics", "queue_messages_unacked_bytes", "Payload bytes of the unacknowledged messages in a queue that this node leads", of(unackedBytes)),
	led("queue_metrics", "queue_messages_bytes", "Payload bytes of the messages that are ready or unacknowledged in a queue that this node leads", of(messageBytes)),
	led("queue_metrics", "queue_messages_persistent", "Messages of a queue that has replicas; 0 if it has none", kept(true, messages)),
	led("queue_metrics", "queue_messages_persistent_bytes", "Payload bytes of the messages of a queue that has replicas; 0 if it has none", kept(true, messageBytes)),
	led("queue_metrics", "queue_messages_ram", "Messages of a queue that has no replicas; 0 if it has some", kept(false, messages)),
	led("queue_metrics", "queue_messages_ram_bytes", "Payload bytes of the messages of a queue that has no replicas; 0 if it has some", kept(false, messageBytes)),
	led("queue_metrics", "queue_oldest_ready_seconds", "Age in seconds of the oldest ready message of a queue that this node leads; 0: there is none", func(q *Queue) float64 { return float64(q.OldestReady) / 1000 }),
	led("queue_metrics", "queue_oldest_unacked_seconds", "Age in seconds of the oldest unsettled delivery of a queue that this node leads; 0: there is none", func(q *Queue) float64 { return float64(q.OldestUnacked) / 1000 }),
	led("queue_metrics", "queue_oldest_scheduled_seconds", "Age in seconds of the oldest scheduled message of a queue that this node leads since it was published; 0: there is none", func(q *Queue) float64 { return float64(q.OldestScheduled) / 1000 }),
	byValue("queue_header_messages_ready", "Ready messages that have a value in the header that age-header names, of a queue that this node leads; empty: of other values, as there are too many", func(v *HeaderValue) float64 { return float64(v.Ready) }),
	byValue("queue_header_oldest_ready_seconds", "Age in seconds of the oldest of them; 0: there is none", func(v *HeaderValue) float64 { return float64(v.OldestReady) / 1000 }),
	{"queue_metrics", "queue_info", gauge, []string{"vhost", "queue", "queue_type", "membership"}, "Always 1: the queue's type, and whether this node is its leader or a follower", func(o *Objects, to *lines) {
		for i := range o.Queues {
			if kind, role := o.Queues[i].kind(); role != "" {
				to.add(1, o.Queues[i].VHost, o.Queues[i].Name, kind, role)
			}
		}
	}},
	ofQueue("queue_messages_published_total", "Messages of this node's clients that were routed to the queue", traffic.Publish),
	ofQueue("queue_messages_delivered_ack_total", "Deliveries to consumers of this node that acknowledge", traffic.Deliver),
	ofQueue("queue_messages_delivered_total", "Deliveries to consumers of this node that do not acknowledge", traffic.DeliverNoAck),
	ofQueue("queue_messages_redelivered_total", "Deliveries and gets at this node of messages that were delivered before", traffic.Redeliver),
	ofQueue("queue_messages_acked_total", "Deliveries and gets that clients of this node have acknowledged", traffic.Ack),
	ofQueue("queue_get_ack_total", "Messages fetched with basic.get at this node, to be acknowledged", traffic.Get),
	ofQueue("queue_get_total", "Messages fetched with basic.get at this node without acknowledgement", traffic.GetNoAck),
	ofQueue("queue_get_empty_total", "Calls of basic.get at this node that found no message", traffic.GetEmpty),
	ofExchange("exchange_messages_published_total", "Messages that clients of this node have published to the exchange", traffic.Publish),
	ofExchange("exchange_messages_routed_total", "Copies of messages published to the exchange that were routed to queues", traffic.PublishOut),
	ofReplica("raft_term_total", counter, "Raft term of the replica on this node", func(q *Queue) float64 { return float64(q.Raft.Term) }),
	ofReplica("raft_log_commit_index", gauge, "Index up to which the replica on this node knows its log to be committed", func(q *Queue) float64 { return float64(q.Raft.Commit) }),
	ofReplica("raft_log_last_written_index", gauge, "Index of the last entry in the log of the replica on this node", func(q *Queue) float64 { return float64(q.Raft.Last) }),
	ofReplica("raft_log_last_applied_index", gauge, "Index of the last entry that the replica on this node has applied", func(q *Queue) float64 { return float64(q.Raft.Applied) }),
	ofReplica("raft_log_snapshot_index", gauge, "Index of the newest snapshot of the replica on this node; -1: there is none", func(q *Queue) float64 { return float64(q.Snapshot) }),
	ofChannel("channel_consumers", "Consumers of the channel", func(c *Channel) int { return c.Consumers }),
	ofChannel("channel_messages_unacked", "Deliveries and gets that the channel has not settled", func(c *Channel) int { return c.Unacked }),
	ofChannel("channel_messages_unconfirmed", "Messages published on the channel whose confirm has not been written yet", func(c *Channel) int { return c.Unconfirmed }),
	ofChannel("channel_messages_uncommitted", "Messages published in the channel's transaction", func(c *Channel) int { return c.Uncommitted }),
	ofChannel("channel_acks_uncommitted", "Settlements in the channel's transaction", func(c *Channel) int { return c.Unsettled }),
	ofChannel("channel_prefetch", "Prefetch count of each consumer of the channel; 0: no limit", func(c *Channel) int { return c.Prefetch }),
	byChannel("channel_exchange_metrics", "channel_messages_published_total", "Messages published on the channel", traffic.Publish),
	byChannel("channel_exchange_metrics", "channel_messages_confirmed_total", "Messages published on the channel and confirmed with basic.ack", traffic.Confirm),
	byChannel("channel_exchange_metrics", "channel_messages_unroutable_returned_total", "Messages that were returned or released to their publisher, as no queue matched", traffic.ReturnUnroutable),
	byChannel("channel_exchange_metrics", "channel_messages_unroutable_dropped_total", "Messages that were dropped, as no queue matched and their publisher was not to be told", traffic.DropUnroutable),
	byChannel("channel_queue_metrics", "channel_messages_delivered_ack_total", "Deliveries to consumers of the channel that acknowledge", traffic.Deliver),
	byChannel("channel_queue_metrics", "channel_messages_delivered_total", "Deliveries to consumers of the channel that do not acknowledge", traffic.DeliverNoAck),
	byChannel("channel_queue_metrics", "channel_messages_redelivered_total", "Deliveries and gets on the channel of messages that were delivered before", traffic.Redeliver),
	byChannel("channel_queue_metrics", "channel_messages_acked_total", "Deliveries and gets that the channel has acknowledged", traffic.Ack),
	byChannel("channel_queue_metrics", "channel_get_ack_total", "Messages fetched with basic.get on the channel, to be acknowledged", traffic.Get),
	byChannel("channel_queue_metrics", "channel_get_total", "Messages fetched with basic.get on the channel without acknowledgement", traffic.GetNoAck),
	byChannel("channel_queue_metrics", "channel_get_empty_total", "Calls of basic.get on the channel that found no message", traffic.GetEmpty),
	ofConnection("connection_coarse_metrics", "connection_incoming_bytes_total", counter, "Bytes received on the connection", func(c *Connection) float64 { return float64(c.Received) }),
	ofConnection("connection_coarse_metrics", "connection_outgoing_bytes_total", counter, "Bytes sent on the connection", func(c *Connection) float64 { return float64(c.Sent) }),
	ofConnection("connection_metrics", "connection_channels", gauge, "Open channels of the connection", func(c *Connection) float64 { return float64(c.Channels) }),
}

// DocumentObjects is the table as a page of the documentation.
func DocumentObjects() string {
	text := "| family | metric | type | labels | what |\n|---|---|---|---|---|\n"
	for _, row := range objectTable {
		text += "| " + row.family + " | `" + row.name + "` | " + kinds[row.kind] + " | " + strings.Join(row.labels, ", ") + " | " + row.help + " |\n"
	}
	return text
}

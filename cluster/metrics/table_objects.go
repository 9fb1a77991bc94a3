package metrics

import "github.com/quorate/quorate/cluster/traffic"

// objectMetric is a row of the table of metrics with a value per object. Names have a prefix in
// addition; a family is what /metrics/detailed is asked for.
type objectMetric struct {
	family string
	name   string
	kind   kind
	labels []string
	help   string
	read   func(o *Objects, add emit)
}

var (
	queueLabels      = []string{"vhost", "queue"}
	exchangeLabels   = []string{"vhost", "exchange"}
	channelLabels    = []string{"channel"}
	connectionLabels = []string{"connection"}
)

// led is a metric of the queues that the node leads.
func led[N uint64 | float64](family, name, help string, value func(q *Queue) N) objectMetric {
	return objectMetric{family, name, gauge, queueLabels, help, func(o *Objects, add emit) {
		for i := range o.Queues {
			if q := &o.Queues[i]; q.Led != nil {
				add(float64(value(q)), q.VHost, q.Name)
			}
		}
	}}
}

// ofQueue is a count of what the node's clients do with a queue.
func ofQueue(name, help string, of traffic.Counter) objectMetric {
	return objectMetric{"queue_delivery_metrics", name, counter, queueLabels, help, func(o *Objects, add emit) {
		for i := range o.Queues {
			if q := &o.Queues[i]; q.Counts != nil {
				add(float64(q.Counts[of]), q.VHost, q.Name)
			}
		}
	}}
}

// ofReplica is a metric of the replicas on the node.
func ofReplica(name string, k kind, help string, value func(q *Queue) float64) objectMetric {
	return objectMetric{"ra_metrics", name, k, queueLabels, help, func(o *Objects, add emit) {
		for i := range o.Queues {
			if q := &o.Queues[i]; q.Raft != nil {
				add(value(q), q.VHost, q.Name)
			}
		}
	}}
}

// ofExchange is a count of what the node's clients publish.
func ofExchange(name, help string, of traffic.Counter) objectMetric {
	return objectMetric{"exchange_metrics", name, counter, exchangeLabels, help, func(o *Objects, add emit) {
		for i := range o.Exchanges {
			add(float64(o.Exchanges[i].Counts[of]), o.Exchanges[i].VHost, o.Exchanges[i].Name)
		}
	}}
}

// ofChannel is a metric of the channels of the node's clients.
func ofChannel(name, help string, value func(c *Channel) int) objectMetric {
	return objectMetric{"channel_metrics", name, gauge, channelLabels, help, func(o *Objects, add emit) {
		for i := range o.Channels {
			add(float64(value(&o.Channels[i])), o.Channels[i].Name)
		}
	}}
}

// byChannel is a count of what a channel has done.
func byChannel(family, name, help string, of traffic.Counter) objectMetric {
	return objectMetric{family, name, counter, channelLabels, help, func(o *Objects, add emit) {
		for i := range o.Channels {
			if c := &o.Channels[i]; c.Counts != nil {
				add(float64(c.Counts[of]), c.Name)
			}
		}
	}}
}

// ofConnection is a metric of the connections of the node's clients.
func ofConnection(family, name string, k kind, help string, value func(c *Connection) float64) objectMetric {
	return objectMetric{family, name, k, connectionLabels, help, func(o *Objects, add emit) {
		for i := range o.Connections {
			add(value(&o.Connections[i]), o.Connections[i].Name)
		}
	}}
}

// objectTable lists the metrics with a value per object.
var objectTable = []objectMetric{
	led("queue_coarse_metrics", "queue_messages_ready", "Messages ready in a queue that this node leads", func(q *Queue) uint64 { return q.Led.Ready.Messages }),
	led("queue_coarse_metrics", "queue_messages_unacked", "Messages delivered and unacknowledged", func(q *Queue) uint64 { return q.Led.Unacknowledged.Messages }),
	led("queue_coarse_metrics", "queue_messages", "Messages ready or unacknowledged", func(q *Queue) uint64 { return q.Led.Ready.Messages + q.Led.Unacknowledged.Messages }),
	led("queue_consumer_count", "queue_consumers", "Consumers of a queue that this node leads", func(q *Queue) uint64 { return uint64(q.Led.Consumers) }),
	led("queue_metrics", "queue_consumer_capacity", "Share of time, 0 to 1, of the last 5 to 10 s in which the queue could hand messages to its consumers at once; 0 without consumers", func(q *Queue) float64 { return q.Capacity }),
	led("queue_metrics", "queue_consumer_utilisation", "The same, under its older name", func(q *Queue) float64 { return q.Capacity }),
	led("queue_metrics", "queue_messages_ready_bytes", "Payload bytes of the messages ready", func(q *Queue) uint64 { return q.Led.Ready.Bytes }),
	led("queue_metrics", "queue_messages_unacked_bytes", "Payload bytes of the messages unacknowledged", func(q *Queue) uint64 { return q.Led.Unacknowledged.Bytes }),
	led("queue_metrics", "queue_messages_bytes", "Payload bytes of the messages ready or unacknowledged", func(q *Queue) uint64 { return q.Led.Ready.Bytes + q.Led.Unacknowledged.Bytes }),
	led("queue_metrics", "queue_messages_persistent", "Messages of a queue with replicas; 0 of one without", func(q *Queue) uint64 { return q.kept(q.Raft != nil, false) }),
	led("queue_metrics", "queue_messages_persistent_bytes", "Their payload bytes", func(q *Queue) uint64 { return q.kept(q.Raft != nil, true) }),
	led("queue_metrics", "queue_messages_ram", "Messages of a queue without replicas; 0 of one with", func(q *Queue) uint64 { return q.kept(q.Raft == nil, false) }),
	led("queue_metrics", "queue_messages_ram_bytes", "Their payload bytes", func(q *Queue) uint64 { return q.kept(q.Raft == nil, true) }),
	{"queue_metrics", "queue_info", gauge, []string{"vhost", "queue", "queue_type", "membership"}, "Always 1: what the queue is, and what the node's replica is to it, leader or follower", func(o *Objects, add emit) {
		for i := range o.Queues {
			if kind, role := o.Queues[i].kind(); role != "" {
				add(1, o.Queues[i].VHost, o.Queues[i].Name, kind, role)
			}
		}
	}},
	ofQueue("queue_messages_published_total", "Messages of this node's clients that were routed to the queue", traffic.Publish),
	ofQueue("queue_messages_delivered_ack_total", "Deliveries to consumers of this node that acknowledge", traffic.Deliver),
	ofQueue("queue_messages_delivered_total", "Deliveries to consumers of this node that do not", traffic.DeliverNoAck),
	ofQueue("queue_messages_redelivered_total", "Those of them, and of gets, that were redelivered", traffic.Redeliver),
	ofQueue("queue_messages_acked_total", "Deliveries and gets that clients of this node have acknowledged", traffic.Ack),
	ofQueue("queue_get_ack_total", "Messages taken by gets at this node that acknowledge", traffic.Get),
	ofQueue("queue_get_total", "Messages taken by gets at this node that do not", traffic.GetNoAck),
	ofQueue("queue_get_empty_total", "Gets at this node that found nothing", traffic.GetEmpty),
	ofExchange("exchange_messages_published_total", "Messages that clients of this node have published to the exchange", traffic.Publish),
	ofExchange("exchange_messages_routed_total", "Their copies that went to queues", traffic.PublishOut),
	ofReplica("raft_term_total", counter, "Raft term of the replica on this node", func(q *Queue) float64 { return float64(q.Raft.Term) }),
	ofReplica("raft_log_commit_index", gauge, "Index up to which it knows its log committed", func(q *Queue) float64 { return float64(q.Raft.Commit) }),
	ofReplica("raft_log_last_written_index", gauge, "Index of the last entry in its log", func(q *Queue) float64 { return float64(q.Raft.Last) }),
	ofReplica("raft_log_last_applied_index", gauge, "Index of the last entry that it has applied", func(q *Queue) float64 { return float64(q.Raft.Applied) }),
	ofReplica("raft_log_snapshot_index", gauge, "Index of its newest snapshot; -1: there is none", func(q *Queue) float64 { return float64(q.Snapshot) }),
	ofChannel("channel_consumers", "Consumers of the channel", func(c *Channel) int { return c.Consumers }),
	ofChannel("channel_messages_unacked", "Deliveries and gets that the channel holds", func(c *Channel) int { return c.Unacked }),
	ofChannel("channel_messages_unconfirmed", "Publishes whose confirm is not written yet", func(c *Channel) int { return c.Unconfirmed }),
	ofChannel("channel_messages_uncommitted", "Publishes in a transaction", func(c *Channel) int { return c.Uncommitted }),
	ofChannel("channel_acks_uncommitted", "Settlements in a transaction", func(c *Channel) int { return c.Unsettled }),
	ofChannel("channel_prefetch", "Prefetch of each consumer; 0: no limit", func(c *Channel) int { return c.Prefetch }),
	byChannel("channel_exchange_metrics", "channel_messages_published_total", "Messages published", traffic.Publish),
	byChannel("channel_exchange_metrics", "channel_messages_confirmed_total", "Messages confirmed positively", traffic.Confirm),
	byChannel("channel_exchange_metrics", "channel_messages_unroutable_returned_total", "Mandatory messages without a route", traffic.ReturnUnroutable),
	byChannel("channel_exchange_metrics", "channel_messages_unroutable_dropped_total", "Other messages without a route", traffic.DropUnroutable),
	byChannel("channel_queue_metrics", "channel_messages_delivered_ack_total", "Deliveries to consumers that acknowledge", traffic.Deliver),
	byChannel("channel_queue_metrics", "channel_messages_delivered_total", "Deliveries to consumers that do not", traffic.DeliverNoAck),
	byChannel("channel_queue_metrics", "channel_messages_redelivered_total", "Those of them, and of gets, that were redelivered", traffic.Redeliver),
	byChannel("channel_queue_metrics", "channel_messages_acked_total", "Deliveries and gets acknowledged", traffic.Ack),
	byChannel("channel_queue_metrics", "channel_get_ack_total", "Messages taken by gets that acknowledge", traffic.Get),
	byChannel("channel_queue_metrics", "channel_get_total", "Messages taken by gets that do not", traffic.GetNoAck),
	byChannel("channel_queue_metrics", "channel_get_empty_total", "Gets that found nothing", traffic.GetEmpty),
	ofConnection("connection_coarse_metrics", "connection_incoming_bytes_total", counter, "Octets received on the connection", func(c *Connection) float64 { return float64(c.Received) }),
	ofConnection("connection_coarse_metrics", "connection_outgoing_bytes_total", counter, "Octets sent on it", func(c *Connection) float64 { return float64(c.Sent) }),
	ofConnection("connection_metrics", "connection_channels", gauge, "Its open channels", func(c *Connection) float64 { return float64(c.Channels) }),
}

// DocumentObjects is the table as a page of the documentation.
func DocumentObjects() string {
	text := "| family | metric | type | labels | what |\n|---|---|---|---|---|\n"
	for _, row := range objectTable {
		labels := ""
		for i, l := range row.labels {
			if i > 0 {
				labels += ", "
			}
			labels += l
		}
		text += "| " + row.family + " | `" + row.name + "` | " + kinds[row.kind] + " | " + labels + " | " + row.help + " |\n"
	}
	return text
}

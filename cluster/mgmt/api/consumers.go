package api

// Consumer is a consumer, as its queue's leader says.
type Consumer struct {
	Tag            string         `json:"consumer_tag"`
	Queue          QueueName      `json:"queue"`
	Active         bool           `json:"active"`          // not waiting for a single active consumer
	ActivityStatus string         `json:"activity_status"` // up, single_active, waiting, suspected_down, timeout
	AckRequired    bool           `json:"ack_required"`
	Exclusive      bool           `json:"exclusive"`
	PrefetchCount  uint32         `json:"prefetch_count"`
	Priority       int32          `json:"priority"`
	Arguments      map[string]any `json:"arguments"`       // those that are known: x-priority, x-consumer-timeout
	Channel        any            `json:"channel_details"` // ChannelDetails; an empty list: its node does not answer
	Node           string         `json:"node"`            // that serves the client
	// ConsumerTimeout is Timeout, and 0 for none.
	ConsumerTimeout int64 `json:"consumer_timeout"`

	Status             string `json:"status"` // up, timed-out, quiescing, silent
	Unacknowledged     uint64 `json:"messages_unacknowledged"`
	TimedOut           uint64 `json:"timed_out"` // deliveries that have gone back and are not settled
	LateAcksTotal      uint64 `json:"consumer_timeout_late_acks_total"`
	OldestUnackedAgeMS uint64 `json:"oldest_unacked_age_ms"` // 0: it holds nothing
	Timeout            int64  `json:"effective_timeout_ms"`  // of the next delivery; -1: none
	TimeoutSource      string `json:"timeout_source"`        // consumer, queue, policy, node, none
	NextDeadline       int64  `json:"next_deadline"`         // of what it holds, ms since 1970; 0: none

	// Of locks, in milliseconds; 0: there is none, or no bound.
	Lock                 uint64 `json:"lock_duration_ms"` // of the next delivery
	MaxLock              uint64 `json:"max_lock_duration_ms"`
	LockAutoRenew        uint64 `json:"lock_auto_renew_ms"`
	LockMode             string `json:"lock_mode"` // all, head; empty: there are no locks
	LockGrace            uint64 `json:"lock_detach_grace_ms"`
	LostLocks            uint64 `json:"lost_locks"` // deliveries whose lock has ended and that are not settled, at most 256
	LateSettlementsTotal uint64 `json:"late_settlements_total"`
}

// ConsumerTimeout is that deliveries of a consumer went back to their queue because they were held
// for too long.
type ConsumerTimeout struct {
	At       int64     `json:"at"` // ms since 1970
	Queue    QueueName `json:"queue"`
	Tag      string    `json:"consumer_tag"`    // (basic.get): none
	Channel  any       `json:"channel_details"` // ChannelDetails; an empty list: not known any more
	Node     string    `json:"node"`            // that served the client
	Leader   string    `json:"leader"`          // that led the queue
	Messages uint64    `json:"messages"`
	HeldMS   uint64    `json:"held_ms"`    // the longest of them
	Timeout  uint64    `json:"timeout_ms"` // the smallest of them
	// Action is what became of the consumer: cancel, suspend, channel_close or get, as in
	// quorate_consumer_timeout_actions_total; empty: not known any more.
	Action string `json:"action"`
}

// QueueName names a queue.
type QueueName struct {
	Name  string `json:"name"`
	VHost string `json:"vhost"`
}

// ChannelDetails say where a consumer's client is.
type ChannelDetails struct {
	Name           string `json:"name"`
	Number         uint32 `json:"number"`
	ConnectionName string `json:"connection_name"`
	Node           string `json:"node"`
	PeerHost       string `json:"peer_host"`
	PeerPort       uint32 `json:"peer_port"`
	User           string `json:"user"`
}

package api

// Message is a message as POST /api/queues/{vhost}/{queue}/get shows it.
type Message struct {
	PayloadBytes    int            `json:"payload_bytes"` // of all of it, even if less is shown
	Redelivered     bool           `json:"redelivered"`
	Exchange        string         `json:"exchange"`
	RoutingKey      string         `json:"routing_key"`
	MessageCount    uint64         `json:"message_count"` // ready ones left when it was taken
	Properties      map[string]any `json:"properties"`
	Payload         string         `json:"payload"`
	PayloadEncoding string         `json:"payload_encoding"` // string or base64
}

// PeekPage is answered by GET /api/queues/{vhost}/{queue}/messages/peek.
type PeekPage struct {
	Items []PeekedMessage `json:"items"`
	Next  uint64          `json:"next"` // the after of the next page; 0: this is the last one
}

// PeekedMessage is a message that was looked at. Times are milliseconds since
// the epoch.
type PeekedMessage struct {
	Number        uint64 `json:"number"` // in its queue
	State         string `json:"state"`  // ready, unacked, scheduled, delayed, deferred or parked
	ExpiresAt     int64  `json:"expires_at,omitempty"`
	DueAt         int64  `json:"due_at,omitempty"`
	Deadline      int64  `json:"deadline,omitempty"` // of whoever holds it
	ScheduleID    string `json:"schedule_id,omitempty"`
	DeferralToken string `json:"deferral_token,omitempty"`
	AcquiredCount uint32 `json:"acquired_count"`
	DeliveryCount uint32 `json:"delivery_count"` // failed ones
	Message
}

// DeferredPage is answered by GET /api/queues/{vhost}/{queue}/deferred.
type DeferredPage struct {
	Items []Deferred `json:"items"`
	Next  uint64     `json:"next"` // the after of the next page; 0: this is the last one
}

// Deferred is a message that a consumer has put aside under a token. Times are
// milliseconds since the epoch.
type Deferred struct {
	Number        uint64 `json:"number"` // in its queue
	Token         string `json:"deferral_token"`
	DueAt         int64  `json:"due_at,omitempty"`     // when it returns by itself
	ExpiresAt     int64  `json:"expires_at,omitempty"` // when it dies
	AcquiredCount uint32 `json:"acquired_count"`
	DeliveryCount uint32 `json:"delivery_count"` // failed ones
	RoutingKey    string `json:"routing_key"`
	Bytes         int    `json:"bytes"` // of its body
	MessageID     any    `json:"message_id,omitempty"`
}

// GroupPage is answered by GET /api/queues/{vhost}/{queue}/groups.
type GroupPage struct {
	Items []Group `json:"items"`
	Next  string  `json:"next"` // the after of the next page; empty: this is the last one
}

// Group is a group of messages. Times are milliseconds since the epoch.
type Group struct {
	ID          string `json:"id"`
	Held        bool   `json:"held"`
	ConsumerTag string `json:"consumer_tag,omitempty"` // of who holds it
	Session     string `json:"session,omitempty"`      // of who holds it: node, boot and number
	LockedUntil int64  `json:"locked_until,omitempty"` // 0: until it is given up
	Remaining   int64  `json:"remaining_ms,omitempty"` // until then
	// Messages is how many there are, Unacknowledged how many of them its holder has.
	Messages       uint64 `json:"messages"`
	Unacknowledged uint64 `json:"messages_unacknowledged"`
	OldestAt       int64  `json:"oldest,omitempty"` // when its first message that is not unacknowledged was enqueued
	HasState       bool   `json:"has_state"`
	StateBytes     int    `json:"state_bytes"`
	StateUntil     int64  `json:"state_until,omitempty"` // 0: until it is cleared
}

// Retry asks for delayed messages to be retried at once.
type Retry struct {
	Count uint64 `json:"count,omitempty"` // 0: all
}

// Published is answered by POST /api/exchanges/{vhost}/{exchange}/publish.
type Published struct {
	Routed bool `json:"routed"` // some queue has the message
}

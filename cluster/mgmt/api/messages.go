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
	State         string `json:"state"`  // ready, unacked, scheduled or delayed
	ExpiresAt     int64  `json:"expires_at,omitempty"`
	DueAt         int64  `json:"due_at,omitempty"`
	Deadline      int64  `json:"deadline,omitempty"` // of whoever holds it
	ScheduleID    string `json:"schedule_id,omitempty"`
	AcquiredCount uint32 `json:"acquired_count"`
	DeliveryCount uint32 `json:"delivery_count"` // failed ones
	Message
}

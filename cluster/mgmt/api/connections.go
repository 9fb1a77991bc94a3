package api

import "encoding/json"

// Connection is a client's connection, as in GET /api/connections.
type Connection struct {
	Name             string         `json:"name"` // PEER-IP:PORT -> IP:PORT
	UserProvidedName string         `json:"user_provided_name"`
	Node             string         `json:"node"`
	User             string         `json:"user"`
	UserWhoPerformed string         `json:"user_who_performed_action"`
	VHost            string         `json:"vhost"`
	Protocol         string         `json:"protocol"`
	ContainerID      string         `json:"container_id,omitempty"` // of AMQP 1.0
	Type             string         `json:"type"`
	State            string         `json:"state"`        // running, blocked or closing
	ConnectedAt      int64          `json:"connected_at"` // ms since 1970
	Host             string         `json:"host"`
	Port             uint16         `json:"port"`
	PeerHost         string         `json:"peer_host"`
	PeerPort         uint16         `json:"peer_port"`
	Channels         int            `json:"channels"` // of AMQP 1.0 its sessions
	ChannelMax       uint16         `json:"channel_max"`
	FrameMax         uint32         `json:"frame_max"`
	Heartbeat        int            `json:"timeout"` // s
	AuthMechanism    string         `json:"auth_mechanism"`
	ReceivedBytes    uint64         `json:"recv_oct"`
	SentBytes        uint64         `json:"send_oct"`
	Reads            uint64         `json:"recv_cnt"` // of the socket, each of many frames
	Writes           uint64         `json:"send_cnt"`
	ReceivedDetails  *Details       `json:"recv_oct_details,omitempty"` // rates only
	SentDetails      *Details       `json:"send_oct_details,omitempty"`
	TLS              bool           `json:"ssl"`
	TLSProtocol      *string        `json:"ssl_protocol"`
	TLSCipher        *string        `json:"ssl_cipher"`
	CertificateOwner *string        `json:"peer_cert_subject"`
	Issuer           *string        `json:"peer_cert_issuer"`
	Validity         *string        `json:"peer_cert_validity"` // "FROM - TO", RFC 3339
	KeyExchange      *string        `json:"ssl_key_exchange"`   // null: TLS 1.3 suites name none
	Hash             *string        `json:"ssl_hash"`           // null: ssl_cipher names it
	PendingBytes     int64          `json:"send_pend"`          // to be sent, with what it costs besides
	Held             HeldMemory     `json:"held_memory"`
	ClientProperties map[string]any `json:"client_properties"`
}

// HeldMemory is what a node holds in memory for its clients, in bytes. See docs/fairness.md.
type HeldMemory struct {
	Channels  uint64 `json:"channels"`       // incomplete messages, methods that wait, transactions
	Publishes uint64 `json:"publishes"`      // without a final result
	Answers   uint64 `json:"answers"`        // and deliveries, that are not written yet
	HTTP      uint64 `json:"http,omitempty"` // messages in answers of the HTTP API; of a node only
	Total     uint64 `json:"total"`
}

// NewHeldMemory adds up what is held.
func NewHeldMemory(channels, publishes, answers, http uint64) HeldMemory {
	return HeldMemory{channels, publishes, answers, http, channels + publishes + answers + http}
}

// Channel is a channel of a client's connection, as in GET /api/channels.
type Channel struct {
	Name             string            `json:"name"` // CONNECTION (NUMBER)
	Number           uint16            `json:"number"`
	Node             string            `json:"node"`
	User             string            `json:"user"`
	UserWhoPerformed string            `json:"user_who_performed_action"`
	VHost            string            `json:"vhost"`
	State            string            `json:"state"` // running or closing
	Connection       ConnectionDetails `json:"connection_details"`
	Consumers        int               `json:"consumer_count"`
	Prefetch         uint16            `json:"prefetch_count"`          // of each consumer; 0: no limit
	SharedPrefetch   uint16            `json:"global_prefetch_count"`   // of all together; 0: no limit
	Unacknowledged   int               `json:"messages_unacknowledged"` // deliveries
	Unconfirmed      int               `json:"messages_unconfirmed"`    // publishes, in confirm mode
	Unanswered       int               `json:"pending_raft_commands"`   // publishes that wait for their queues
	Uncommitted      int               `json:"messages_uncommitted"`    // publishes, in a transaction
	Unsettled        int               `json:"acks_uncommitted"`        // settlements, in a transaction
	Confirm          bool              `json:"confirm"`
	Transactional    bool              `json:"transactional"`
	MessageStats     MessageStats      `json:"message_stats,omitempty"`
	ConsumerDetails  []Consumer        `json:"consumer_details,omitzero"` // if one channel is asked for
	Publishes        []WithExchange    `json:"publishes,omitzero"`        // likewise
	Deliveries       []WithQueue       `json:"deliveries,omitzero"`       // likewise
}

// AMQP10 is the protocol of connections that have sessions and links.
const AMQP10 = "AMQP 1-0"

// Session is a session of a connection of AMQP 1.0, as in GET /api/connections/NAME/sessions.
type Session struct {
	Channel              uint16         `json:"channel_number"`
	HandleMax            uint32         `json:"handle_max"`
	NextIncomingID       uint32         `json:"next_incoming_id"`
	IncomingWindow       uint32         `json:"incoming_window"` // transfers that the client may send
	NextOutgoingID       uint32         `json:"next_outgoing_id"`
	RemoteIncomingWindow uint32         `json:"remote_incoming_window"` // transfers that the client takes
	RemoteOutgoingWindow uint32         `json:"remote_outgoing_window"` // transfers that it announced and has not sent
	Unsettled            int            `json:"outgoing_unsettled_deliveries"`
	IncomingLinks        []IncomingLink `json:"incoming_links"`
	OutgoingLinks        []OutgoingLink `json:"outgoing_links"`
}

// Link is what links of both directions have.
type Link struct {
	Handle        uint32 `json:"handle"`
	Name          string `json:"link_name"`
	DeliveryCount uint32 `json:"delivery_count"`
	Credit        uint32 `json:"credit"` // messages that may still be sent
}

// IncomingLink is a link on which the client publishes.
type IncomingLink struct {
	Link
	Address        *string `json:"target_address"`  // null: messages say where they go
	SettleMode     string  `json:"snd_settle_mode"` // unsettled, settled, mixed
	MaxMessageSize int     `json:"max_message_size"`
	Unconfirmed    int     `json:"unconfirmed_messages"` // without an outcome
}

// OutgoingLink is a link on which the client receives: a consumer.
type OutgoingLink struct {
	Link
	Address        *string  `json:"source_address"`
	Queue          string   `json:"queue_name"`
	Settled        bool     `json:"send_settled"`     // deliveries are settled when they are sent
	MaxMessageSize any      `json:"max_message_size"` // a number, or unlimited
	Filters        []Filter `json:"filter"`           // that the queue applies
	TimedOut       bool     `json:"consumer_timeout"` // it gets nothing until what a timeout took back is settled
}

// Filter is a filter of a link.
type Filter struct {
	Name       string `json:"name"`
	Descriptor any    `json:"descriptor"` // a number, or a text
	Value      any    `json:"value"`      // of a map a list of FilterField
}

// FilterField is an entry of a map.
type FilterField struct {
	Key   string `json:"key"`
	Value any    `json:"value"`
}

// ConnectionDetails name the connection of a channel.
type ConnectionDetails struct {
	Name     string `json:"name"`
	PeerHost string `json:"peer_host"`
	PeerPort uint16 `json:"peer_port"`
}

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

	// LinkCredit is how many messages a consumer that takes by credit may still be handed; absent: it
	// has a prefetch.
	LinkCredit *uint32 `json:"link_credit,omitempty"`
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

// Drift is an argument with which somebody has declared otherwise what exists, and was answered as if
// it were the same.
type Drift struct {
	VHost      string          `json:"vhost"`
	Name       string          `json:"name"` // of the queue, or the exchange
	Kind       string          `json:"kind"` // queue, exchange
	Argument   string          `json:"argument"`
	Declared   json.RawMessage `json:"declared"`   // the value that it has; null: none
	Received   json.RawMessage `json:"received"`   // null: it was not given
	Adopted    bool            `json:"adopted"`    // the queue has it now
	Adoptions  uint64          `json:"adoptions"`  // how often the queue's arguments have changed
	User       string          `json:"user"`       // whose declares they were
	Client     string          `json:"client"`     // what the last one calls its connection; empty: nothing
	Connection string          `json:"connection"` // name of the last one's; empty: it was a request by HTTP
	Node       string          `json:"node"`       // that served it
	Times      uint64          `json:"times"`      // declares, since the nodes have started
	FirstAt    int64           `json:"first_at"`   // ms since 1970
	LastAt     int64           `json:"last_at"`
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

// MessageStats are counts by name, such as publish, since the nodes began that
// count them, and under NAME_details a Details.
type MessageStats map[string]any

// Details is how a number changes. Samples, their mean and the mean of their
// rates are there if the request asks for samples.
type Details struct {
	Rate    float64  `json:"rate"` // in a second, between the newest samples
	Samples []Sample `json:"samples,omitempty"`
	Mean    *float64 `json:"avg,omitempty"`
	AvgRate *float64 `json:"avg_rate,omitempty"`
}

// Sample is a number at a time.
type Sample struct {
	Value uint64 `json:"sample"`
	At    int64  `json:"timestamp"` // ms since 1970
}

// LengthDetails are how the lengths of queues change.
type LengthDetails struct {
	MessagesDetails       *Details `json:"messages_details,omitempty"`
	ReadyDetails          *Details `json:"messages_ready_details,omitempty"`
	UnacknowledgedDetails *Details `json:"messages_unacknowledged_details,omitempty"`
}

// WithChannel is what a channel does with an exchange or a queue.
type WithChannel struct {
	Channel ChannelDetails `json:"channel_details"`
	Stats   MessageStats   `json:"stats"`
}

// WithExchange is what a channel publishes to an exchange, or what comes from one to a queue.
type WithExchange struct {
	Exchange QueueName    `json:"exchange"`
	Stats    MessageStats `json:"stats"`
}

// WithQueue is what a channel takes from a queue, or what comes to one from an exchange.
type WithQueue struct {
	Queue QueueName    `json:"queue"`
	Stats MessageStats `json:"stats"`
}

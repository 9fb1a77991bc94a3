package api

// Connection is a client's connection, as in GET /api/connections.
type Connection struct {
	Name             string         `json:"name"` // PEER-IP:PORT -> IP:PORT
	UserProvidedName string         `json:"user_provided_name"`
	Node             string         `json:"node"`
	User             string         `json:"user"`
	UserWhoPerformed string         `json:"user_who_performed_action"`
	VHost            string         `json:"vhost"`
	Protocol         string         `json:"protocol"`
	Type             string         `json:"type"`
	State            string         `json:"state"`        // running, blocked or closing
	ConnectedAt      int64          `json:"connected_at"` // ms since 1970
	Host             string         `json:"host"`
	Port             uint16         `json:"port"`
	PeerHost         string         `json:"peer_host"`
	PeerPort         uint16         `json:"peer_port"`
	Channels         int            `json:"channels"`
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

// ConnectionDetails name the connection of a channel.
type ConnectionDetails struct {
	Name     string `json:"name"`
	PeerHost string `json:"peer_host"`
	PeerPort uint16 `json:"peer_port"`
}

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
	TLS              bool           `json:"ssl"`
	TLSProtocol      *string        `json:"ssl_protocol"`
	TLSCipher        *string        `json:"ssl_cipher"`
	CertificateOwner *string        `json:"peer_cert_subject"`
	ClientProperties map[string]any `json:"client_properties"`
}

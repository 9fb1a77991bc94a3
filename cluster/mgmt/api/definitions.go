package api

// Whoami is answered by GET /api/whoami.
type Whoami struct {
	Name           string   `json:"name"`
	Tags           []string `json:"tags"`
	IsInternalUser bool     `json:"is_internal_user"`
}

// VHost is a virtual host. PUT /api/vhosts/{vhost} takes its description and
// tags.
type VHost struct {
	Name                  string            `json:"name"`
	Description           string            `json:"description"`
	Tags                  []string          `json:"tags"`
	DefaultQueueType      string            `json:"default_queue_type"`
	Metadata              VHostMetadata     `json:"metadata"`
	Tracing               bool              `json:"tracing"`
	ProtectedFromDeletion bool              `json:"protected_from_deletion"`
	ClusterState          map[string]string `json:"cluster_state"` // by node
}

// VHostMetadata repeats what describes a virtual host.
type VHostMetadata struct {
	Description      string   `json:"description"`
	Tags             []string `json:"tags"`
	DefaultQueueType string   `json:"default_queue_type"`
}

// User is a user. Its password is known by a hash only, in base64.
type User struct {
	Name             string         `json:"name"`
	PasswordHash     string         `json:"password_hash"`
	HashingAlgorithm string         `json:"hashing_algorithm"`
	Tags             []string       `json:"tags"`
	Limits           map[string]any `json:"limits"`
}

// Permission says what a user may do in a virtual host: three regular
// expressions on the names of queues and exchanges.
type Permission struct {
	User      string `json:"user"`
	VHost     string `json:"vhost"`
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

// TopicPermission restricts the routing keys of a user at a topic exchange, by
// two regular expressions.
type TopicPermission struct {
	User     string `json:"user"`
	VHost    string `json:"vhost"`
	Exchange string `json:"exchange"`
	Write    string `json:"write"`
	Read     string `json:"read"`
}

// Policy is a policy or an operator policy.
type Policy struct {
	VHost      string         `json:"vhost"`
	Name       string         `json:"name"`
	Pattern    string         `json:"pattern"`
	ApplyTo    string         `json:"apply-to"`
	Definition map[string]any `json:"definition"`
	Priority   int64          `json:"priority"`
}

// Queue is a queue. The figures of a queue whose leader does not answer are
// missing: they are not zero.
type Queue struct {
	Name                string         `json:"name"`
	VHost               string         `json:"vhost"`
	Type                string         `json:"type"`
	Durable             bool           `json:"durable"`
	AutoDelete          bool           `json:"auto_delete"`
	Exclusive           bool           `json:"exclusive"`
	Internal            bool           `json:"internal"`
	InternalOwner       bool           `json:"internal_owner"`
	Arguments           map[string]any `json:"arguments"`
	Policy              string         `json:"policy"`
	OperatorPolicy      string         `json:"operator_policy"`
	EffectiveDefinition map[string]any `json:"effective_policy_definition"`
	// Effective settings that are not a policy's alone.
	DeliveryLimit      int64  `json:"delivery_limit"` // negative: none
	DeadLetterStrategy string `json:"dead_letter_strategy"`

	State   string   `json:"state"` // running, minority or down
	Node    string   `json:"node"`
	Leader  *string  `json:"leader"` // null: none that answers
	Members []string `json:"members"`
	Online  []string `json:"online"`

	*QueueFigures
}

// QueueFigures are how a queue stands, as its leader says.
type QueueFigures struct {
	Messages                uint64 `json:"messages"`
	Ready                   uint64 `json:"messages_ready"`
	Unacknowledged          uint64 `json:"messages_unacknowledged"`
	Scheduled               uint64 `json:"messages_scheduled"` // not ready before their time
	Delayed                 uint64 `json:"messages_delayed"`   // returned, and tried again later
	DeadLetters             uint64 `json:"messages_dlx"`       // on their way to other queues
	Bytes                   uint64 `json:"message_bytes"`
	ReadyBytes              uint64 `json:"message_bytes_ready"`
	UnacknowledgedBytes     uint64 `json:"message_bytes_unacknowledged"`
	ScheduledBytes          uint64 `json:"message_bytes_scheduled"`
	DelayedBytes            uint64 `json:"message_bytes_delayed"`
	DeadLetterBytes         uint64 `json:"message_bytes_dlx"`
	Consumers               uint64 `json:"consumers"`
	ExpiredTotal            uint64 `json:"messages_expired_total"`
	TimedOutTotal           uint64 `json:"messages_timed_out_total"`
	DeadLetteredTotal       uint64 `json:"messages_dead_lettered_total"`
	DeadLettersDroppedTotal uint64 `json:"dead_letters_dropped_total"`
	// SettingsInForce: the queue has taken up the effective settings shown.
	SettingsInForce bool `json:"settings_in_force"`
}

// Exchange is an exchange; the default one has no name.
type Exchange struct {
	Name                string         `json:"name"`
	VHost               string         `json:"vhost"`
	Type                string         `json:"type"`
	Durable             bool           `json:"durable"`
	AutoDelete          bool           `json:"auto_delete"`
	Internal            bool           `json:"internal"`
	Arguments           map[string]any `json:"arguments"`
	Policy              string         `json:"policy"`
	OperatorPolicy      string         `json:"operator_policy"`
	EffectiveDefinition map[string]any `json:"effective_policy_definition"`
}

// Binding is a binding.
type Binding struct {
	Source          string         `json:"source"`
	VHost           string         `json:"vhost"`
	Destination     string         `json:"destination"`
	DestinationType string         `json:"destination_type"` // queue or exchange
	RoutingKey      string         `json:"routing_key"`
	Arguments       map[string]any `json:"arguments"`
	PropertiesKey   string         `json:"properties_key"`
}

// Page is what a list is answered with if a page of it was asked for.
type Page struct {
	Items         []map[string]any `json:"items"`
	Page          int              `json:"page"`
	PageCount     int              `json:"page_count"`
	PageSize      int              `json:"page_size"`
	ItemCount     int              `json:"item_count"`     // on this page
	FilteredCount int              `json:"filtered_count"` // that the name filter lets through
	TotalCount    int              `json:"total_count"`
}

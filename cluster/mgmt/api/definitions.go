package api

import "encoding/json"

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
	Redeclare             string            `json:"redeclare"` // of what exists with other arguments: strict, relaxed, adopt
	Metadata              VHostMetadata     `json:"metadata"`
	Tracing               bool              `json:"tracing"`
	ProtectedFromDeletion bool              `json:"protected_from_deletion"`
	ClusterState          map[string]string `json:"cluster_state"` // by node

	*Totals // nil if they were not asked for
	LengthDetails
	MessageStats MessageStats `json:"message_stats,omitempty"`
}

// Totals sum up the stats of queues.
type Totals struct {
	Unknown         uint64 `json:"queues_unknown"` // whose leaders do not answer: they are not in the sums
	Messages        uint64 `json:"messages"`
	Ready           uint64 `json:"messages_ready"`
	Unacknowledged  uint64 `json:"messages_unacknowledged"`
	Scheduled       uint64 `json:"messages_scheduled"`
	Delayed         uint64 `json:"messages_delayed"`
	DelayedBytes    uint64 `json:"message_bytes_delayed"`
	DeadLetters     uint64 `json:"messages_dlx"`
	DeadWaiting     uint64 `json:"messages_dlx_waiting"`
	Bytes           uint64 `json:"message_bytes"`
	DeadLetterBytes uint64 `json:"message_bytes_dlx"`
}

// Overview is answered by GET /api/overview: the cluster as far as the user
// may see it.
type Overview struct {
	ManagementVersion string         `json:"management_version"`
	RabbitMQVersion   string         `json:"rabbitmq_version"` // that it is compatible with
	ProductName       string         `json:"product_name"`
	ProductVersion    string         `json:"product_version"`
	ClusterName       string         `json:"cluster_name"`
	Node              string         `json:"node"` // that answers
	DefaultQueueType  string         `json:"default_queue_type"`
	ExchangeTypes     []ExchangeType `json:"exchange_types"`
	QueueTotals       QueueTotals    `json:"queue_totals"`
	ObjectTotals      ObjectTotals   `json:"object_totals"`
	MessageStats      MessageStats   `json:"message_stats"` // of what the user may see
	ChurnRates        ChurnRates     `json:"churn_rates"`
	Listeners         []NodeListener `json:"listeners"` // of the node that answers
	Contexts          []Context      `json:"contexts"`

	RatesMode               string            `json:"rates_mode"`
	SampleRetention         map[string][]int  `json:"sample_retention_policies"` // s
	ErlangVersion           string            `json:"erlang_version"`            // 0
	ErlangFullVersion       string            `json:"erlang_full_version"`       // that of Go
	CryptoVersion           string            `json:"crypto_lib_version"`
	ClusterTags             map[string]string `json:"cluster_tags"`
	NodeTags                map[string]string `json:"node_tags"`
	EventQueue              int               `json:"statistics_db_event_queue"`
	DisableStats            bool              `json:"disable_stats"`
	EnableQueueTotals       bool              `json:"enable_queue_totals"`
	OperatorPolicyUpdates   bool              `json:"is_op_policy_updating_enabled"`
	RequireDefinitionSuffix bool              `json:"require_definition_json_extension"`
}

// QueueTotals sum up all queues, and say how their lengths change.
type QueueTotals struct {
	Totals
	LengthDetails
	Expiry
}

// Expiry is when messages of queues expire that nobody holds and that are not scheduled.
type Expiry struct {
	NextExpiryAt *int64 `json:"next_expiry_at"` // ms since the epoch; null: none will
	WithinMinute uint64 `json:"messages_expiring_within_minute"`
	WithinHour   uint64 `json:"messages_expiring_within_hour"` // those within a minute included
}

// Add adds a queue: when its next message expires, and how many do within times.
func (e *Expiry) Add(next *int64, within []ExpiringWithin) {
	if next != nil && (e.NextExpiryAt == nil || *next < *e.NextExpiryAt) {
		e.NextExpiryAt = next
	}
	for i, x := range within { // sooner ones are in later counts
		if x.WithinMS <= 60_000 {
			e.WithinMinute += x.Messages - before(within, i)
		}
		if x.WithinMS <= 3_600_000 {
			e.WithinHour += x.Messages - before(within, i)
		}
	}
}

// before is the count before that at i.
func before(within []ExpiringWithin, i int) uint64 {
	if i == 0 {
		return 0
	}
	return within[i-1].Messages
}

// NodeListener is an address at which a node listens, as the overview lists them.
type NodeListener struct {
	Node          string         `json:"node"`
	Protocol      string         `json:"protocol"`
	IPAddress     string         `json:"ip_address"`
	Port          int            `json:"port"`
	TLS           bool           `json:"tls"`
	Speaks        []string       `json:"speaks,omitempty"` // as of Listener
	SocketOptions map[string]any `json:"socket_opts"`
}

// Context is an HTTP listener of a node.
type Context struct {
	Node        string `json:"node"`
	Description string `json:"description"`
	Path        string `json:"path"`
	IP          string `json:"ip"`
	Port        string `json:"port"`
	TLS         string `json:"ssl"`
}

// ChurnRates count what clients have opened, closed, declared and deleted since
// the nodes began.
type ChurnRates struct {
	ConnectionCreated        uint64   `json:"connection_created"`
	ConnectionCreatedDetails *Details `json:"connection_created_details"`
	ConnectionClosed         uint64   `json:"connection_closed"`
	ConnectionClosedDetails  *Details `json:"connection_closed_details"`
	ChannelCreated           uint64   `json:"channel_created"`
	ChannelCreatedDetails    *Details `json:"channel_created_details"`
	ChannelClosed            uint64   `json:"channel_closed"`
	ChannelClosedDetails     *Details `json:"channel_closed_details"`
	QueueDeclared            uint64   `json:"queue_declared"` // passive declares left out
	QueueDeclaredDetails     *Details `json:"queue_declared_details"`
	QueueCreated             uint64   `json:"queue_created"`
	QueueCreatedDetails      *Details `json:"queue_created_details"`
	QueueDeleted             uint64   `json:"queue_deleted"` // on request
	QueueDeletedDetails      *Details `json:"queue_deleted_details"`
}

// ExchangeType is a type of exchange.
type ExchangeType struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Enabled     bool   `json:"enabled"`
}

// ObjectTotals count what there is.
type ObjectTotals struct {
	Connections int    `json:"connections"`
	Channels    int    `json:"channels"`
	Queues      int    `json:"queues"`
	Exchanges   int    `json:"exchanges"`
	Consumers   uint64 `json:"consumers"`
}

// VHostMetadata repeats what describes a virtual host.
type VHostMetadata struct {
	Description      string   `json:"description"`
	Tags             []string `json:"tags"`
	DefaultQueueType string   `json:"default_queue_type"`
	Redeclare        string   `json:"redeclare,omitempty"` // empty: strict
}

// User is a user. Its password is known by a hash only, in base64.
type User struct {
	Name             string           `json:"name"`
	PasswordHash     string           `json:"password_hash"`
	HashingAlgorithm string           `json:"hashing_algorithm"`
	Tags             []string         `json:"tags"`
	Limits           map[string]int64 `json:"limits"`
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
	Notes      []string       `json:"notes,omitempty"` // what it does otherwise than at RabbitMQ
}

// TriedPolicy is a queue that a policy would match, as POST
// /api/policies/{vhost}/{name}/try lists them: the result of all policies as it is,
// and as it would be.
type TriedPolicy struct {
	Name                string         `json:"name"`
	VHost               string         `json:"vhost"`
	Policy              string         `json:"policy"`
	OperatorPolicy      string         `json:"operator_policy"`
	Definition          map[string]any `json:"effective_policy_definition"`
	WouldPolicy         string         `json:"would_policy"`
	WouldOperatorPolicy string         `json:"would_operator_policy"`
	WouldDefinition     map[string]any `json:"would_effective_policy_definition"`
	Wins                bool           `json:"wins"`    // no policy with a higher priority matches
	Changes             bool           `json:"changes"` // the definitions differ
}

// Queue is a queue. The stats of a queue whose leader does not answer are
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

	*QueueStats
	LengthDetails
	MessageStats MessageStats `json:"message_stats,omitempty"`
	// Publishers are the open channels that have published to it; nil: a node does not say.
	Publishers      *uint64          `json:"publishers,omitempty"`
	ConsumerDetails []Consumer       `json:"consumer_details,omitzero"` // if one queue is asked for
	Incoming        []WithExchange   `json:"incoming,omitzero"`         // likewise: messages that came from exchanges
	Deliveries      []WithChannel    `json:"deliveries,omitzero"`       // likewise: what channels take
	Expiring        []ExpiringWithin `json:"expiring,omitempty"`        // if one queue is asked for and some of its messages will
	Settings        []QueueSetting   `json:"settings,omitzero"`         // if one queue is asked for
}

// QueueSetting is what a queue is told under a key of policies, by whom, and what of it is in force.
type QueueSetting struct {
	Key            string `json:"key"`
	Argument       any    `json:"argument,omitempty"` // of the declaration, there with x- before the key
	Policy         any    `json:"policy,omitempty"`
	OperatorPolicy any    `json:"operator_policy,omitempty"`
	Effective      any    `json:"effective"`
	By             string `json:"by"`             // argument, policy or operator policy: whose value is in force
	Rule           string `json:"rule,omitempty"` // by which it was chosen of several
}

// ExpiringWithin says how many messages of a queue that nobody holds and that are not scheduled expire
// within a time from now on.
type ExpiringWithin struct {
	WithinMS uint64 `json:"within_ms"`
	Messages uint64 `json:"messages"` // those that expire sooner included
}

// QueueStats says how a queue is doing, as its leader says.
type QueueStats struct {
	Messages                uint64   `json:"messages"`
	Ready                   uint64   `json:"messages_ready"`
	Unacknowledged          uint64   `json:"messages_unacknowledged"`
	Scheduled               uint64   `json:"messages_scheduled"` // not ready before their time
	Delayed                 uint64   `json:"messages_delayed"`   // scheduled, or returned and tried again later
	DelayedRetry            uint64   `json:"messages_delayed_retry"`
	Deferred                uint64   `json:"messages_deferred"` // put aside by consumers
	Parked                  uint64   `json:"messages_parked"`   // over the default delivery limit
	DeadLetters             uint64   `json:"messages_dlx"`      // on their way to other queues
	Bytes                   uint64   `json:"message_bytes"`
	ReadyBytes              uint64   `json:"message_bytes_ready"`
	UnacknowledgedBytes     uint64   `json:"message_bytes_unacknowledged"`
	ScheduledBytes          uint64   `json:"message_bytes_scheduled"`
	DelayedBytes            uint64   `json:"message_bytes_delayed"`
	DeferredBytes           uint64   `json:"message_bytes_deferred"`
	ParkedBytes             uint64   `json:"message_bytes_parked"`
	DeadLetterBytes         uint64   `json:"message_bytes_dlx"`
	Consumers               uint64   `json:"consumers"`
	Paused                  bool     `json:"paused"`            // they are handed nothing
	Pause                   *Pause   `json:"pause,omitempty"`   // absent: nobody has paused it, or only a policy
	Redrive                 *Redrive `json:"redrive,omitempty"` // the last one; absent: there was none
	ExpiredTotal            uint64   `json:"messages_expired_total"`
	TimedOutTotal           uint64   `json:"messages_timed_out_total"`
	DeferredTotal           uint64   `json:"messages_deferred_total"`
	RetriedNowTotal         uint64   `json:"messages_kicked_total"` // retried before their time
	ParkedTotal             uint64   `json:"messages_parked_total"`
	UnparkedTotal           uint64   `json:"messages_unparked_total"` // of those: ready again
	LateAcksTotal           uint64   `json:"consumer_timeout_late_acks_total"`
	Groups                  uint64   `json:"groups"` // with messages or a state, or held
	GroupsHeld              uint64   `json:"groups_held"`
	GroupStateBytes         uint64   `json:"group_state_bytes"`
	GroupsTakenTotal        uint64   `json:"groups_taken_total"`
	GroupsLostTotal         uint64   `json:"groups_lost_total"`   // because their locks had ended
	Locked                  uint64   `json:"messages_locked"`     // deliveries with a lock
	LocksLostTotal          uint64   `json:"locks_lost_total"`    // before the delivery was settled
	LocksRenewedTotal       uint64   `json:"locks_renewed_total"` // on request
	LateSettlementsTotal    uint64   `json:"late_settlements_total"`
	ConsumersTimedOut       uint64   `json:"consumers_timed_out"` // now: they have not settled what was taken back
	DeadLetteredTotal       uint64   `json:"messages_dead_lettered_total"`
	DeadLettersDroppedTotal uint64   `json:"dead_letters_dropped_total"`
	DeadLettersWaiting      uint64   `json:"messages_dlx_waiting"`       // with nowhere to go for now
	DeadLettersRefusedTotal uint64   `json:"dead_letters_refused_total"` // by targets
	Forwarding              uint64   `json:"messages_forwarding"`        // those of messages_dlx that have not died
	ForwardedTotal          uint64   `json:"messages_forwarded_total"`
	DeletedTotal            uint64   `json:"messages_deleted_total"` // by request, one by one
	RedrivenTotal           uint64   `json:"messages_redriven_total"`
	CopiedTotal             uint64   `json:"messages_copied_total"`
	// Deaths by reason, whatever became of the dead, and letters of the outbox
	// that arrived.
	DiedExpiredTotal       uint64 `json:"messages_dead_lettered_expired_total"`
	DiedRejectedTotal      uint64 `json:"messages_dead_lettered_rejected_total"`
	DiedMaxlenTotal        uint64 `json:"messages_dead_lettered_maxlen_total"`
	DiedDeliveryLimitTotal uint64 `json:"messages_dead_lettered_delivery_limit_total"`
	DiedUnroutableTotal    uint64 `json:"messages_dead_lettered_unroutable_total"`
	DiedGroupExpiredTotal  uint64 `json:"messages_dead_lettered_group_expired_total"`
	DiedMaxhopsTotal       uint64 `json:"messages_dead_lettered_maxhops_total"`
	DeadConfirmedTotal     uint64 `json:"messages_dead_lettered_confirmed_total"`
	// Messages that ended otherwise: purged, and scheduled ones that were
	// cancelled or replaced by others of their schedule ids.
	PurgedTotal   uint64 `json:"messages_purged_total"`
	UnqueuedTotal uint64 `json:"messages_cancelled_total"`
	ReplacedTotal uint64 `json:"messages_replaced_total"`
	// Deaths by reason and strategy (disabled, at_most_once, transactional,
	// at_least_once), those that are not 0.
	Deaths map[string]map[string]uint64 `json:"deaths"`
	// NextDelayedAt and LastDelayedAt are the instants of the first and the last
	// scheduled message, in milliseconds since the epoch. They are there if one
	// queue was asked for and has such messages.
	NextDelayedAt int64 `json:"next_delayed_at,omitempty"`
	LastDelayedAt int64 `json:"last_delayed_at,omitempty"`
	// NextExpiryAt is when the first message expires that nobody holds, and LeaseExpiresAt when the
	// queue is deleted unless it is used before, in milliseconds since the epoch; null: never.
	NextExpiryAt   *int64 `json:"next_expiry_at"`
	LeaseExpiresAt *int64 `json:"lease_expires_at"`
	// Of messages and message_bytes: those on disk at a majority, which is all or none of a queue.
	Persistent      uint64 `json:"messages_persistent"`
	PersistentBytes uint64 `json:"message_bytes_persistent"`
	Memory          uint64 `json:"messages_ram"` // those that are nowhere else
	MemoryBytes     uint64 `json:"message_bytes_ram"`
	ReadyReturned   uint64 `json:"messages_ready_returned"` // those of messages_ready that consumers had
	// Ages of the oldest messages: of the ready ones since they came or became ready, of the unacknowledged
	// ones since they were handed out, of the scheduled ones since they were published; null: there is none.
	OldestReadyAge     *uint64 `json:"oldest_ready_age_ms"`
	OldestUnackedAge   *uint64 `json:"oldest_unacknowledged_age_ms"`
	OldestScheduledAge *uint64 `json:"oldest_scheduled_age_ms"`
	// ByHeader are the messages by the value of the header that age-header names. They are there if one queue was
	// asked for and has such messages.
	ByHeader []HeaderValue `json:"by_header,omitempty"`
	// Ready messages of each priority that has any, and how many priorities that are; absent: the
	// leader, of another version, does not say.
	ByPriority       map[string]uint64 `json:"messages_by_priority,omitzero"`
	ActivePriorities *uint64           `json:"messages_active_priorities,omitempty"`
	// ConsumerCapacity is the share of time, 0 to 1, in which the queue could hand messages to its
	// consumers at once; 0 without consumers. Absent: as above. ConsumerUtilisation is the same.
	ConsumerCapacity    *float64 `json:"consumer_capacity,omitempty"`
	ConsumerUtilisation *float64 `json:"consumer_utilisation,omitempty"`

	SingleActive string `json:"single_active_consumer_tag,omitempty"` // if there is one
	IdleSince    string `json:"idle_since,omitempty"`                 // RFC 3339, of the last activity; empty: it is in use
	LastNumber   uint64 `json:"last_message_number"`                  // of the latest that has come; 0: none has
	Raft         *Raft  `json:"raft"`                                 // null: it has one replica
	// Publishes that were duplicates of messages within the window, ids that are
	// remembered now, and those forgotten early because they were too many.
	DeduplicatedTotal     uint64 `json:"messages_deduplicated_total"`
	DedupIDs              uint64 `json:"dedup_ids"`
	DedupIDsForgottenSoon uint64 `json:"dedup_ids_forgotten_early_total"`
	// SettingsApplied: the queue has taken up the effective settings shown.
	SettingsApplied bool `json:"settings_in_force"`
}

// HeaderValue counts messages that have the same value in a header.
type HeaderValue struct {
	Value          string  `json:"value"`
	Other          bool    `json:"other"` // they have other values: there are too many to tell them apart
	Ready          uint64  `json:"messages_ready"`
	Unacknowledged uint64  `json:"messages_unacknowledged"`
	Scheduled      uint64  `json:"messages_scheduled"`
	OldestReadyAge *uint64 `json:"oldest_ready_age_ms"` // null: none is ready
}

// Scaling is what autoscalers ask of a queue. All of it are numbers, and none of them is null: an age of what
// there is not is 0.
type Scaling struct {
	Ready              uint64  `json:"messages_ready"`
	Unacknowledged     uint64  `json:"messages_unacknowledged"`
	Backlog            uint64  `json:"backlog"` // ready, unacknowledged, or due within the time
	Scheduled          uint64  `json:"messages_scheduled"`
	Due                uint64  `json:"messages_due"` // scheduled ones and retries that become ready within the time
	Within             uint64  `json:"due_within_seconds"`
	Consumers          uint64  `json:"consumers"`
	OldestReadyAge     float64 `json:"oldest_ready_age_seconds"`
	OldestUnackedAge   float64 `json:"oldest_unacknowledged_age_seconds"`
	OldestScheduledAge float64 `json:"oldest_scheduled_age_seconds"`
	PublishRate        float64 `json:"publish_rate"` // messages per second, of late
	DeliverRate        float64 `json:"deliver_rate"`
	AckRate            float64 `json:"ack_rate"`
	Capacity           float64 `json:"consumer_capacity"` // 0 to 1
	Utilisation        float64 `json:"consumer_utilisation"`
	Paused             uint64  `json:"paused"` // 1: its consumers are handed nothing
}

// Raft is the log of a queue, as its leader says.
type Raft struct {
	Term          uint64 `json:"term"`
	CommitIndex   uint64 `json:"commit_index"`
	AppliedIndex  uint64 `json:"applied_index"`
	LastIndex     uint64 `json:"last_index"`
	SnapshotIndex int64  `json:"snapshot_index"` // -1: none
	LogBytes      uint64 `json:"log_bytes"`      // payloads that it keeps
	// Members are the replicas; they are there if one queue was asked for.
	Members []RaftMember `json:"members,omitempty"`
}

// RaftMember is a replica of a queue.
type RaftMember struct {
	Node       string `json:"node"`
	State      string `json:"state"`       // leader, follower, candidate; noproc: it does not answer
	MatchIndex uint64 `json:"match_index"` // of the last entry that it and the leader have
	Lag        uint64 `json:"lag"`         // entries that the leader has and it has not
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

	MessageStats MessageStats  `json:"message_stats,omitempty"`
	Incoming     []WithChannel `json:"incoming,omitzero"` // if one exchange is asked for: what channels publish
	Outgoing     []WithQueue   `json:"outgoing,omitzero"` // likewise: what comes to queues
	// Of an exchange with a store whose leader answers.
	*DelayStats
}

// DelayStats are the stats of a delayed exchange. Instants are milliseconds
// since the epoch; 0: no message waits, or all exchanges were asked for.
type DelayStats struct {
	Delayed         uint64 `json:"messages_delayed"`
	DelayedBytes    uint64 `json:"message_bytes_delayed"`
	NextDelayedAt   int64  `json:"next_delayed_at"`
	LastDelayedAt   int64  `json:"last_delayed_at"`
	FiredTotal      uint64 `json:"delayed_fired_total"`
	CancelledTotal  uint64 `json:"delayed_cancelled_total"` // replaced and purged ones included
	UnroutableTotal uint64 `json:"delayed_unroutable_total"`
}

// Scheduled is a message that waits in a queue or at a delayed exchange. Lists
// of them come in the order in which they are due; the next page is asked for
// with ?after= and the cursor of the last one.
type Scheduled struct {
	ID          uint64         `json:"id"`
	ScheduleID  string         `json:"schedule_id,omitempty"`
	DueAt       int64          `json:"due_at"` // ms since the epoch
	RemainingMS int64          `json:"remaining_ms"`
	RoutingKey  string         `json:"routing_key"`
	Bytes       uint64         `json:"bytes"` // of the body
	MessageID   string         `json:"message_id,omitempty"`
	Headers     map[string]any `json:"headers,omitempty"` // with ?headers=true
	Cursor      string         `json:"cursor"`
}

// Pause says who has paused a queue's consumers, and until when.
type Pause struct {
	By     string `json:"by"`
	Reason string `json:"reason"`
	Since  int64  `json:"since"` // ms since the epoch
	Until  *int64 `json:"until"` // likewise; null: until they are resumed
}

// Taken is what was deleted, moved, copied or redriven.
type Taken struct {
	Messages uint64 `json:"messages"`
	// Letters that stay, since they are to go back: to a queue that is gone, or to none.
	SourceGone uint64 `json:"source_gone"`
	NoSource   uint64 `json:"no_source"`
	Next       string `json:"next"` // for after; empty: there are no more
}

// Redrive is a redrive that a queue goes on with, or has come to the end of.
type Redrive struct {
	Number uint64 `json:"number"`
	By     string `json:"by"`
	Since  int64  `json:"since"` // ms since the epoch
	Ended  *int64 `json:"ended"` // likewise; null: it goes on
	Why    string `json:"why"`   // it has ended before its end; empty: it has not
	Rate   uint64 `json:"rate"`  // messages a second; 0: as it comes
	Limit  uint64 `json:"limit"` // messages; 0: all
	To     string `json:"to"`    // a queue; empty: that where each died
	// Taken are the messages that were sent so far, and Remaining how many there may be yet, at most.
	Taken     uint64 `json:"taken"`
	Remaining uint64 `json:"remaining"`
	// Letters that stay; refused ones go where the user may not write.
	SourceGone uint64 `json:"source_gone"`
	NoSource   uint64 `json:"no_source"`
	Refused    uint64 `json:"refused"`
}

// Redriving is answered to a request that begins a redrive.
type Redriving struct {
	Number uint64 `json:"number"`
}

// Letters are answered by GET /api/queues/{vhost}/{queue}/letters: the ready messages that one search has seen, by
// their last deaths in other queues.
type Letters struct {
	Messages uint64       `json:"messages"`
	Kinds    []LetterKind `json:"kinds"`     // most messages first
	NoSource uint64       `json:"no_source"` // messages that have not died in another queue
	Other    uint64       `json:"other"`     // letters of more kinds
	Next     string       `json:"next"`      // for after; empty: there are no more
}

// LetterKind are the letters with a reason and a queue where they died last.
type LetterKind struct {
	Reason   string `json:"reason"`
	Source   string `json:"source"`
	Messages uint64 `json:"messages"`
}

// Changed is what is answered where it makes no difference to ask again.
type Changed struct {
	Changed bool `json:"changed"`
}

// Rescheduled is what changes of scheduled and delayed messages are answered with.
type Rescheduled struct {
	Messages uint64 `json:"messages"`
}

// Lock is what requests about the lock of a delivery are answered with. Without a
// time, the delivery has no lock any more, or none that is running.
type Lock struct {
	OK          bool   `json:"ok"`
	LockedUntil int64  `json:"locked_until,omitempty"` // ms since the epoch
	RemainingMS *int64 `json:"remaining_ms,omitempty"`
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
	Items         any `json:"items"`
	Page          int `json:"page"`
	PageCount     int `json:"page_count"`
	PageSize      int `json:"page_size"`
	ItemCount     int `json:"item_count"`     // on this page
	FilteredCount int `json:"filtered_count"` // that the name filter lets through
	TotalCount    int `json:"total_count"`
}

// Definitions are answered by GET /api/definitions and taken by POST. Of one vhost, the objects do
// not name it.
type Definitions struct {
	RabbitVersion   string `json:"rabbit_version"` // that the export is compatible with
	RabbitMQVersion string `json:"rabbitmq_version"`
	ProductName     string `json:"product_name"`
	ProductVersion  string `json:"product_version"`
	Format          string `json:"rabbitmq_definition_format"` // cluster or single_virtual_host
	Cluster         string `json:"original_cluster_name"`
	Explanation     string `json:"explanation"`

	// Of one vhost only.
	VHost            string           `json:"original_vhost_name,omitempty"`
	Description      string           `json:"description,omitempty"`
	Metadata         *VHostMetadata   `json:"metadata,omitempty"`
	Limits           map[string]int64 `json:"limits,omitempty"`
	DefaultQueueType string           `json:"default_queue_type,omitempty"`

	// Of the whole cluster only.
	Users            []User            `json:"users,omitzero"`
	VHosts           []DefinedVHost    `json:"vhosts,omitzero"`
	Permissions      []Permission      `json:"permissions,omitzero"`
	TopicPermissions []TopicPermission `json:"topic_permissions,omitzero"`
	GlobalParameters []GlobalParameter `json:"global_parameters,omitzero"`

	Parameters []Parameter       `json:"parameters"`
	Policies   []DefinedPolicy   `json:"policies"`
	Queues     []DefinedQueue    `json:"queues"`
	Exchanges  []DefinedExchange `json:"exchanges"`
	Bindings   []DefinedBinding  `json:"bindings"`

	Descriptions []DefinedDescription `json:"descriptions,omitempty"`
}

// DefinedVHost is a vhost in definitions.
type DefinedVHost struct {
	Name        string        `json:"name"`
	Description string        `json:"description"`
	Tags        []string      `json:"tags"`
	Metadata    VHostMetadata `json:"metadata"`
}

// Parameter is a runtime parameter: the limits of a vhost (component vhost-limits), or an operator
// policy (operator_policy).
type Parameter struct {
	Component string `json:"component"`
	VHost     string `json:"vhost,omitempty"`
	Name      string `json:"name"`
	Value     any    `json:"value"`
}

// GlobalParameter is a value that belongs to no vhost, as in /api/global-parameters.
type GlobalParameter struct {
	Name  string          `json:"name"`
	Value json.RawMessage `json:"value"`
}

// PolicyValue is the value of an operator policy as a parameter.
type PolicyValue struct {
	Pattern    string         `json:"pattern"`
	ApplyTo    string         `json:"apply-to"`
	Definition map[string]any `json:"definition"`
	Priority   int64          `json:"priority"`
}

// DefinedPolicy is a policy in definitions.
type DefinedPolicy struct {
	VHost string `json:"vhost,omitempty"`
	Name  string `json:"name"`
	PolicyValue
}

// DefinedQueue is a queue in definitions.
type DefinedQueue struct {
	Name       string         `json:"name"`
	VHost      string         `json:"vhost,omitempty"`
	Type       string         `json:"type"` // counts in place of the argument x-queue-type
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Arguments  map[string]any `json:"arguments"`
	PartOf     string         `json:"part_of,omitempty"`      // the queue or exchange that it is deleted with
	PartOfKind string         `json:"part_of_kind,omitempty"` // exchange, or empty: queue
}

// DefinedDescription is what an application says of a queue or an exchange, in definitions.
type DefinedDescription struct {
	VHost string `json:"vhost,omitempty"`
	Name  string `json:"name"`
	Kind  string `json:"kind"` // queue or exchange
	Key   string `json:"key"`
	Text  string `json:"text"`
}

// DefinedExchange is an exchange in definitions.
type DefinedExchange struct {
	Name       string         `json:"name"`
	VHost      string         `json:"vhost,omitempty"`
	Type       string         `json:"type"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Internal   bool           `json:"internal"`
	Arguments  map[string]any `json:"arguments"`
}

// DefinedBinding is a binding in definitions.
type DefinedBinding struct {
	Source          string         `json:"source"`
	VHost           string         `json:"vhost,omitempty"`
	Destination     string         `json:"destination"`
	DestinationType string         `json:"destination_type"`
	RoutingKey      string         `json:"routing_key"`
	Arguments       map[string]any `json:"arguments"`
}

// Imported is answered by POST /api/definitions if some of them were not taken: with partial=true
// and status 200, the others were.
type Imported struct {
	Taken        map[string]int `json:"taken"` // by section; what existed and is equal counts
	SkippedTotal int            `json:"skipped_total"`
	Skipped      []Skipped      `json:"skipped"` // the first 1000
	// Notes are about definitions that were taken, and mean something else here.
	Notes []Skipped `json:"notes,omitempty"` // the first 1000
}

// NotImported is answered without partial=true, and status 400: nothing was taken. With status 409,
// what is counted was, as something was changed by others meanwhile.
type NotImported struct {
	Failure
	Imported
}

// Skipped is a definition that was not taken.
type Skipped struct {
	Section string `json:"section"`
	VHost   string `json:"vhost,omitempty"`
	Name    string `json:"name"`
	Reason  string `json:"reason"`
}

// VHostLimits are the limits of a virtual host by name, as in
// GET /api/vhost-limits. A negative one is no limit.
type VHostLimits struct {
	VHost string           `json:"vhost"`
	Value map[string]int64 `json:"value"`
}

// UserLimits are the limits of a user by name, as in GET /api/user-limits. A
// negative one is no limit.
type UserLimits struct {
	User  string           `json:"user"`
	Value map[string]int64 `json:"value"`
}

package api

import "time"

// Node is a node of the cluster as GET /api/nodes lists them.
type Node struct {
	Name         string `json:"name"`
	Type         string `json:"type"` // disc
	Running      bool   `json:"running"`
	Answers      bool   `json:"answers"` // false: its numbers are not known, and zeros here
	BeingDrained bool   `json:"being_drained"`

	// Bytes, and whether there is an alarm; zero if the node does not answer.
	MemoryUsed    int64 `json:"mem_used"`
	MemoryLimit   int64 `json:"mem_limit"`
	MemoryAlarm   bool  `json:"mem_alarm"`
	DiskFree      int64 `json:"disk_free"`
	DiskFreeLimit int64 `json:"disk_free_limit"`
	DiskFreeAlarm bool  `json:"disk_free_alarm"`

	Held HeldMemory `json:"held_memory"`

	NodeProcess
	NodeRaft
}

// NodeRaft is what a node does for the cluster. Numbers are zero if the node does not answer.
type NodeRaft struct {
	Replicas     uint32            `json:"replicas"`         // of queues
	Leaders      uint32            `json:"leaders"`          // among them
	Learners     uint32            `json:"learners"`         // among them: being brought up to date, and do not vote
	SyncMS       float64           `json:"io_sync_avg_time"` // of durable writes, of late; 0: there was none
	ClockOffset  int64             `json:"clock_offset_ms"`  // of its wall clock against the median of all
	Certificates []NodeCertificate `json:"certificates"`
}

// NodeCertificate is when a certificate that a node presents expires, and the first of those that it
// checks others by, in ms since the epoch; 0: there is none.
type NodeCertificate struct {
	Protocol          string `json:"protocol"`
	File              string `json:"certfile"`
	ExpiresAt         int64  `json:"expires_at"`
	AuthoritiesFile   string `json:"cacertfile"`
	AuthoritiesExpire int64  `json:"ca_expires_at"`
}

// NodeProcess is the process of a node. Numbers are zero if the node does not
// answer.
type NodeProcess struct {
	UptimeMS    int64  `json:"uptime"`
	PID         string `json:"os_pid"`
	Processors  uint32 `json:"processors"`
	RunQueue    uint32 `json:"run_queue"` // goroutines that wait for a processor
	FilesUsed   uint32 `json:"fd_used"`
	FilesTotal  uint32 `json:"fd_total"`
	Goroutines  uint32 `json:"proc_used"`
	ProcLimit   uint32 `json:"proc_total"` // always 0: there is no limit of goroutines
	Collections uint32 `json:"gc_num"`
	NodeRates
	RatesMode  string   `json:"rates_mode"`
	Plugins    []string `json:"enabled_plugins"` // always none
	Partitions []string `json:"partitions"`      // always none: a minority serves nobody
}

// NodeRates says what a process has done since it began, where 0 stands for what is not known, and how
// its numbers change; nil: the node does not say.
type NodeRates struct {
	BytesReclaimed  uint64 `json:"gc_bytes_reclaimed"`
	ContextSwitches uint64 `json:"context_switches"`
	BytesRead       uint64 `json:"io_read_bytes"`  // from storage
	BytesWritten    uint64 `json:"io_write_bytes"` // to it

	MemoryRate      *Details `json:"mem_used_details,omitempty"`
	DiskRate        *Details `json:"disk_free_details,omitempty"`
	FilesRate       *Details `json:"fd_used_details,omitempty"`
	GoroutinesRate  *Details `json:"proc_used_details,omitempty"`
	CollectionsRate *Details `json:"gc_num_details,omitempty"`
	ReclaimedRate   *Details `json:"gc_bytes_reclaimed_details,omitempty"`
	SwitchesRate    *Details `json:"context_switches_details,omitempty"`
	ReadRate        *Details `json:"io_read_bytes_details,omitempty"`
	WrittenRate     *Details `json:"io_write_bytes_details,omitempty"`
}

// Limit is the body of PUT /api/quorate/limits/{name}: either a part of the
// machine's memory, or a size such as 50MB.
type Limit struct {
	Relative *float64 `json:"relative,omitempty"`
	Absolute string   `json:"absolute,omitempty"`
}

// Drained is answered by POST /api/quorate/drain: what has become of the
// leaderships that the node had.
type Drained struct {
	Node  string `json:"node"`
	Moved int    `json:"moved"`
	Left  int    `json:"left"` // nobody else can lead these now, or time was up
}

// Rebalance is the body of POST /api/quorate/rebalance: regular expressions;
// empty: all.
type Rebalance struct {
	VHostPattern string `json:"vhost_pattern"`
	QueuePattern string `json:"queue_pattern"`
}

// Rebalanced is its answer.
type Rebalanced struct {
	Moved int           `json:"moved"`
	Left  int           `json:"left"` // could not be moved
	Nodes []NodeLeaders `json:"nodes"`
}

// NodeLeaders is how many of the queues chosen a node is to lead.
type NodeLeaders struct {
	Node    string `json:"node"`
	Leaders int    `json:"leaders"`
}

// Transfer is the body of POST /api/quorate/queues/{vhost}/{name}/leader.
type Transfer struct {
	Node string `json:"node"`
}

// Member is a replica of a queue as GET
// /api/queues/quorum/{vhost}/{name}/status lists them.
type Member struct {
	Node          string `json:"Node Name"`
	State         string `json:"Raft State"` // leader, follower, candidate; noproc: it does not answer
	Membership    string `json:"Membership"` // voter, non_voter or unknown
	LastLogIndex  uint64 `json:"Last Log Index"`
	LastWritten   uint64 `json:"Last Written"`
	LastApplied   uint64 `json:"Last Applied"`
	CommitIndex   uint64 `json:"Commit Index"`
	SnapshotIndex int64  `json:"Snapshot Index"` // -1: none
	Term          uint64 `json:"Term"`
	Quarantined   bool   `json:"Quarantined,omitempty"` // it must not lead, whatever its state
}

// Check is answered by /api/health/checks/…: status ok, or failed with the
// reason.
type Check struct {
	Status string  `json:"status"`
	Reason string  `json:"reason,omitempty"`
	Queues []Named `json:"queues,omitempty"`
	Alarms []Alarm `json:"alarms,omitempty"`
	// Expired are those of certificate-expiration.
	Expired []Expiring `json:"expired,omitempty"`
}

// Named is a queue that a health check names.
type Named struct {
	Name         string `json:"name"`
	ReadableName string `json:"readable_name"`
	VirtualHost  string `json:"virtual_host"`
	Type         string `json:"type"`
}

// Alarm is one that is in effect.
type Alarm struct {
	Node     string `json:"node"`
	Resource string `json:"resource"`
}

// PortCheck is answered by /api/health/checks/port-listener/{port}.
type PortCheck struct {
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Port    int    `json:"port,omitempty"`
	Missing int    `json:"missing,omitempty"`
	Ports   []int  `json:"ports,omitzero"` // that are open, if the check has failed
}

// ProtocolCheck is answered by /api/health/checks/protocol-listener/{protocols}.
type ProtocolCheck struct {
	Status    string   `json:"status"`
	Reason    string   `json:"reason,omitempty"`
	Missing   []string `json:"missing,omitempty"`
	Protocols []string `json:"protocols"`
}

// VHostCheck is answered by /api/health/checks/virtual-hosts.
type VHostCheck struct {
	Status string   `json:"status"`
	Reason string   `json:"reason,omitempty"`
	VHosts []string `json:"virtual-hosts,omitempty"` // that are down
}

// SizeCheck is answered by /api/health/checks/reached-target-cluster-size.
type SizeCheck struct {
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Running int    `json:"running_nodes"`
	Size    int    `json:"target_cluster_size"`
}

// LimitCheck is answered by /api/health/checks/below-node-connection-limit.
type LimitCheck struct {
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Current int    `json:"current"`
	Limit   int    `json:"limit"`
}

// LoginAttempts are answered by GET /api/auth/attempts/{node}.
type LoginAttempts struct {
	Protocol  string `json:"protocol"` // amqp091, amqp10, http
	Attempts  uint64 `json:"auth_attempts"`
	Failed    uint64 `json:"auth_attempts_failed"`
	Succeeded uint64 `json:"auth_attempts_succeeded"`
}

// DeprecatedFeature is something that RabbitMQ deprecates, and that is served here.
type DeprecatedFeature struct {
	Name       string `json:"name"`
	Phase      string `json:"deprecation_phase"`
	State      string `json:"state"` // permitted
	ProvidedBy string `json:"provided_by"`
	About      string `json:"desc"`
	DocURL     string `json:"doc_url"`
}

// Memory is answered by GET /api/nodes/{node}/memory. Names are those of RabbitMQ; what Go has no
// class for is 0.
type Memory struct {
	Memory MemoryUse `json:"memory"`
}

// MemoryUse says what the memory of a node is used for, in bytes.
type MemoryUse struct {
	ConnectionReaders   uint64      `json:"connection_readers"`
	ConnectionWriters   uint64      `json:"connection_writers"`
	ConnectionChannels  uint64      `json:"connection_channels"`
	ConnectionOther     uint64      `json:"connection_other"`
	QueueProcs          uint64      `json:"queue_procs"`
	QuorumQueueProcs    uint64      `json:"quorum_queue_procs"`
	StreamQueueProcs    uint64      `json:"stream_queue_procs"`
	StreamReaderProcs   uint64      `json:"stream_queue_replica_reader_procs"`
	StreamCoordinator   uint64      `json:"stream_queue_coordinator_procs"`
	Plugins             uint64      `json:"plugins"`
	MetadataStore       uint64      `json:"metadata_store"`
	OtherProc           uint64      `json:"other_proc"` // stacks of goroutines
	Metrics             uint64      `json:"metrics"`
	ManagementDB        uint64      `json:"mgmt_db"`
	Mnesia              uint64      `json:"mnesia"`
	QuorumETS           uint64      `json:"quorum_ets"`
	MetadataStoreETS    uint64      `json:"metadata_store_ets"`
	OtherETS            uint64      `json:"other_ets"`
	Binary              uint64      `json:"binary"` // objects on the heap
	MessageIndex        uint64      `json:"msg_index"`
	Code                uint64      `json:"code"`
	Atom                uint64      `json:"atom"`
	OtherSystem         uint64      `json:"other_system"` // of the runtime, and what is not known of another node
	AllocatedUnused     uint64      `json:"allocated_unused"`
	ReservedUnallocated uint64      `json:"reserved_unallocated"`
	Strategy            string      `json:"strategy"` // rss
	Total               MemoryTotal `json:"total"`
}

// MemoryTotal is the whole, by three ways of counting.
type MemoryTotal struct {
	RSS       uint64 `json:"rss"`
	Allocated uint64 `json:"allocated"`
	Runtime   uint64 `json:"erlang"`
}

// FeatureFlag is a version of the replicated state, as GET /api/feature-flags lists them.
type FeatureFlag struct {
	Name       string `json:"name"`
	State      string `json:"state"` // enabled
	Stability  string `json:"stability"`
	ProvidedBy string `json:"provided_by"`
	About      string `json:"desc"`
	DocURL     string `json:"doc_url"`
}

// ClusterName is answered by GET /api/cluster-name.
type ClusterName struct {
	Name string `json:"name"`
}

// Certificate is what the node shows on one of its ways in.
type Certificate struct {
	Protocol string
	File     string
	Ends     time.Time // of the first one of its chain
	// AuthoritiesFile and AuthoritiesEnd, of the first one in it, are of those by
	// which others are checked; zero: nobody is.
	AuthoritiesFile string
	AuthoritiesEnd  time.Time
}

// Expiring is a way in whose certificates end soon, or have ended.
type Expiring struct {
	Node            string   `json:"node"`
	Protocol        string   `json:"protocol"`
	File            string   `json:"certfile"`
	Ends            []string `json:"certfile_expires_on"` // RFC 3339; empty: not so soon
	AuthoritiesFile string   `json:"cacertfile"`
	AuthoritiesEnd  []string `json:"cacertfile_expires_on"`
}

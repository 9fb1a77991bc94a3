// Package api holds the JSON values of the HTTP API: what a node answers and
// what a tool reads. It knows nothing of either.
package api

// Failure is the body of every answer that is not a success.
type Failure struct {
	Error  string `json:"error"`
	Reason string `json:"reason"`
}

// ProductVersion is that of the program.
const ProductVersion = "0.1.0"

// Version is answered by GET /api/version.
type Version struct {
	ProductVersion string `json:"product_version"`
}

// Replica is one queue's replica on the node that answers
// GET /api/quorate/replicas with a list of them; with ?hash=false state_hash is empty.
type Replica struct {
	VHost          string `json:"vhost"`
	Name           string `json:"name"`
	QueueID        uint64 `json:"queue_id"`
	Group          uint32 `json:"group"`
	Node           string `json:"node"`
	Leader         bool   `json:"leader"`
	LeaderNode     string `json:"leader_node"`
	Quarantined    bool   `json:"quarantined"` // it must not lead, see Quarantine
	Term           uint64 `json:"term"`        // of the raft group, as this replica knows it
	AppliedIndex   uint64 `json:"applied_index"`
	StateHash      string `json:"state_hash"`
	Ready          uint64 `json:"ready"`
	Unacknowledged uint64 `json:"unacknowledged"`
	Outbox         uint64 `json:"outbox"`
	Consumers      int    `json:"consumers"`
}

// Status is answered by GET /api/quorate/status: the node that answers, and
// the others as it sees them.
type Status struct {
	Node           string   `json:"node"`
	Cluster        string   `json:"cluster_name"`
	ProductVersion string   `json:"product_version"`
	FSMVersion     uint32   `json:"fsm_version"` // of the replicated state
	Ready          bool     `json:"ready"`
	NotReady       string   `json:"not_ready"` // why; empty: it is
	UptimeMS       int64    `json:"uptime"`    // of the process
	DataDir        string   `json:"data_dir"`
	CatalogLeader  string   `json:"catalog_leader"` // empty: not known
	RoutesFresh    bool     `json:"routes_fresh"`   // false: publishes wait until the catalog's leader can be asked
	Queues         int      `json:"queues"`         // in the catalog
	Replicas       int      `json:"replicas"`       // on this node
	Leaders        int      `json:"leaders"`        // among them
	Alarms         []string `json:"alarms"`
	Peers          []Peer   `json:"peers"`

	Listeners   []Listener   `json:"listeners"`
	Quarantined []Quarantine `json:"quarantined"` // queues that do not lead on this node
	Unproven    []Unproven   `json:"unproven"`    // replicas on this node that are being rebuilt
	Closed      []Closed     `json:"closed"`      // replicas on this node that could not be opened

	// Connections of clients at the AMQP listeners, and how many these take; 0: not known.
	Connections    int `json:"connections"`
	MaxConnections int `json:"max_connections"`
	// Held is the memory that is held for all clients of the node.
	Held HeldMemory `json:"held_memory"`
	// Logins with a password since the process began, over AMQP and HTTP.
	LoginsAccepted uint64 `json:"logins_accepted"`
	LoginsRefused  uint64 `json:"logins_refused"` // those that were not checked included
	// Logins has both by protocol.
	Logins []LoginAttempts `json:"logins"`

	DiskWaitMS        int64         `json:"disk_wait_ms"` // for how long the oldest write has been under way
	StalledQueues     []Standstill  `json:"standing_still"`
	ResignationsTotal uint64        `json:"resignations_total"` // leaderships that the node has given up for lack of progress
	Resignations      []Resignation `json:"resignations"`       // the last ones, except those for the disk
}

// Standstill is a queue that a node leads, or the catalog, whose work makes no
// progress.
type Standstill struct {
	VHost   string `json:"vhost"`
	Name    string `json:"name"`            // of the queue; empty: it is the catalog
	Group   uint32 `json:"group"`           // 0: the catalog's
	Reason  string `json:"reason"`          // what waits: entries, tick, settings or effects; or catalog
	ForMS   int64  `json:"for_ms"`          // without progress
	Keeps   string `json:"keeps,omitempty"` // why the leader does not give way
	Term    uint64 `json:"term"`            // of the raft group
	Last    uint64 `json:"last"`            // entry in the log
	Commit  uint64 `json:"commit"`
	Applied uint64 `json:"applied"`
}

// Resignation is a leadership that was given up for lack of progress.
type Resignation struct {
	Standstill
	AtMS int64 `json:"at_ms"`
}

// Listener is an address at which a node listens.
type Listener struct {
	Protocol string `json:"protocol"`
	Address  string `json:"address"`
	TLS      bool   `json:"tls"` // nothing is taken in plain
	// Speaks are the protocols that clients may speak there at present, as connections name them; nil: Protocol
	// says it.
	Speaks []string `json:"speaks,omitempty"`
}

// Quarantine is a queue that does not lead on a node, because work for it has
// panicked there.
type Quarantine struct {
	VHost   string `json:"vhost"`
	Name    string `json:"name"`
	Group   uint32 `json:"group"`
	SinceMS int64  `json:"since_ms"`
	Doing   string `json:"doing"`   // what panicked
	Panic   string `json:"panic"`   // its words; the stack is in the node's log
	Term    uint64 `json:"term"`    // of the raft group then
	Index   uint64 `json:"index"`   // of the last entry applied by then
	Stopped bool   `json:"stopped"` // the replica applies nothing until the node is started again
}

// Unproven is a replica that cannot prove what it acknowledged. It neither votes
// nor leads until a leader has brought it up to date.
type Unproven struct {
	VHost   string `json:"vhost"`
	Name    string `json:"name"`  // of the queue; empty: it is the catalog's
	Group   uint32 `json:"group"` // 0: the catalog's
	SinceMS int64  `json:"since_ms"`
	Reason  string `json:"reason"`
	Stuck   bool   `json:"stuck"` // most replicas are: none can be brought up to date
}

// Closed is a replica that could not be opened. That is tried again and again.
type Closed struct {
	VHost    string `json:"vhost"`
	Name     string `json:"name"` // of the queue
	Group    uint32 `json:"group"`
	ForMS    int64  `json:"for_ms"`
	Attempts int    `json:"attempts"`
	Reason   string `json:"reason"` // of the last failure
}

// Peer is another node.
type Peer struct {
	Node           string `json:"node"`
	Address        string `json:"address"`
	Alive          bool   `json:"alive"`
	Linked         bool   `json:"linked"`
	BacklogBytes   int    `json:"backlog_bytes"`
	RoundTripMicro int64  `json:"round_trip_us"` // 0: none yet
}

// Clock is answered by GET /api/quorate/clock: the clock of the node that
// answers. Offsets are milliseconds, positive for clocks that are ahead.
type Clock struct {
	Node         string      `json:"node"`
	NowMS        int64       `json:"now_ms"`      // what entries are stamped with
	OffsetMS     int64       `json:"offset_ms"`   // own wall clock against the median
	MaxSkewMS    int64       `json:"max_skew_ms"` // the setting max_clock_skew
	Skewed       bool        `json:"skewed"`      // offset_ms is beyond it: an alarm
	Sampled      bool        `json:"sampled"`     // a majority of clocks has been read
	Agreed       bool        `json:"agreed"`      // and a majority has agreed
	JumpsRefused uint64      `json:"jumps_refused"`
	Peers        []PeerClock `json:"peers"`
}

// PeerClock is another node's wall clock. Without Known it was never read.
type PeerClock struct {
	Node           string `json:"node"`
	Known          bool   `json:"known"`
	OffsetMS       int64  `json:"offset_ms"` // against the own wall clock
	RoundTripMicro int64  `json:"round_trip_us"`
	AgeMS          int64  `json:"age_ms"` // of the newest reading
}

// Setting is a setting of the whole cluster. GET /api/quorate/settings lists
// them; PUT /api/quorate/settings/{name} takes a SettingValue; DELETE gives it
// the program's value again.
type Setting struct {
	Name    string `json:"name"`
	Value   int64  `json:"value"`
	Default int64  `json:"default"`
	Low     int64  `json:"low"`
	High    int64  `json:"high"`
	About   string `json:"about"`
}

// SettingValue is the body that gives a setting its value.
type SettingValue struct {
	Value *int64 `json:"value"`
}

// OpenAPI is answered by GET /api/openapi.json: the paths of the API, in the form of OpenAPI 3.1.
type OpenAPI struct {
	OpenAPI    string                          `json:"openapi"`
	Info       OpenAPIInfo                     `json:"info"`
	Paths      map[string]map[string]Operation `json:"paths"` // by path and method in lower case
	Components OpenAPIComponents               `json:"components"`
}

// OpenAPIInfo names the API.
type OpenAPIInfo struct {
	Title   string `json:"title"`
	Version string `json:"version"`
}

// Operation is one method of a path. Tag is the least tag of a user who may use it; empty: no login
// is needed.
type Operation struct {
	Tag         string                 `json:"x-user-tag,omitempty"`
	Parameters  []OpenAPIParameter     `json:"parameters,omitempty"`
	RequestBody *OpenAPIBody           `json:"requestBody,omitempty"`
	Responses   map[string]OpenAPIText `json:"responses"`
	Security    []map[string][]string  `json:"security,omitempty"`
}

// OpenAPIParameter is a name in a path.
type OpenAPIParameter struct {
	Name     string        `json:"name"`
	In       string        `json:"in"`
	Required bool          `json:"required"`
	Schema   OpenAPISchema `json:"schema"`
}

// OpenAPISchema is the type of a value.
type OpenAPISchema struct {
	Type string `json:"type"`
}

// OpenAPIBody is what a request carries.
type OpenAPIBody struct {
	Content map[string]OpenAPIMedia `json:"content"`
}

// OpenAPIMedia is a form of a body.
type OpenAPIMedia struct {
	Schema OpenAPISchema `json:"schema"`
}

// OpenAPIText describes an answer.
type OpenAPIText struct {
	Description string `json:"description"`
}

// OpenAPIComponents holds what operations refer to.
type OpenAPIComponents struct {
	SecuritySchemes map[string]SecurityScheme `json:"securitySchemes"`
}

// SecurityScheme is a way to log in.
type SecurityScheme struct {
	Type   string `json:"type"`
	Scheme string `json:"scheme"`
}

// JoinToken lets one node join the cluster.
type JoinToken struct {
	ID string `json:"id"`
	// Token is the secret; only the answer to who has made it holds it.
	Token string `json:"token,omitempty"`
	// Node is the only name that it is good for; empty: any that is not known.
	Node string `json:"node"`
	// UsedBy is the node that it has let in; empty: none.
	UsedBy string `json:"used_by"`
	TTL    int64  `json:"ttl"` // that is left, ms
}

// NewJoinToken asks for a token.
type NewJoinToken struct {
	TTL  int64  `json:"ttl"` // ms
	Node string `json:"node,omitempty"`
}

// Selection says which queues an operation on many is about: those whose vhost
// and name match the regular expressions; empty ones match everything.
type Selection struct {
	Strategy     string `json:"strategy,omitempty"` // all (or empty), even
	VHostPattern string `json:"vhost_pattern,omitempty"`
	QueuePattern string `json:"queue_pattern,omitempty"`
	Count        int    `json:"count,omitempty"` // of grow-to-count
}

// MemberChange is how a change of members went for one queue.
type MemberChange struct {
	VHost  string `json:"vhost"`
	Name   string `json:"name"`
	Size   int    `json:"size"`   // members that it is to have now
	Result string `json:"result"` // ok, or error: and why
}

// ReplicaNode is the body that names a node.
type ReplicaNode struct {
	Node string `json:"node"`
}

// Restored is what a restore has brought back.
type Restored struct {
	Definitions uint64 `json:"definitions"`
	Queues      uint64 `json:"queues"` // whose messages have been brought back
	Messages    uint64 `json:"messages"`
	Had         uint64 `json:"already_there"` // messages that an earlier run has brought
	Refused     uint64 `json:"refused"`       // messages that their queues do not take
}

package api

import "encoding/json"

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

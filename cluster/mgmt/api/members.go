package api

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

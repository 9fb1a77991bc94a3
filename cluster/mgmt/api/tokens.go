package api

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

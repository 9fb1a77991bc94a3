package api

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

package api

// Restored is what a restore has brought back.
type Restored struct {
	Definitions uint64 `json:"definitions"`
	Queues      uint64 `json:"queues"` // whose messages have been brought back
	Messages    uint64 `json:"messages"`
	Had         uint64 `json:"already_there"` // messages that an earlier run has brought
	Refused     uint64 `json:"refused"`       // messages that their queues do not take
}

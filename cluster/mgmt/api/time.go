package api

// Next counts what is known today to come next. Each count includes those of the spans before.
type Next struct {
	Minute TimeCounts `json:"minute"`
	Hour   TimeCounts `json:"hour"`
	Day    TimeCounts `json:"day"`
}

// TimeCounts counts what comes within a time from now on.
type TimeCounts struct {
	Expire     uint64 `json:"expire"`      // messages that nobody holds and that are not scheduled
	DeadLetter uint64 `json:"dead_letter"` // of these: those that become dead letters
	Fire       uint64 `json:"fire"`        // scheduled messages that become ready
	TimeOut    uint64 `json:"time_out"`    // deliveries that are taken back from their consumers
	Unlock     uint64 `json:"unlock"`      // deliveries whose locks end
	Retry      uint64 `json:"retry"`       // returned messages that become ready again
	Return     uint64 `json:"return"`      // deferred messages that become ready again
	Delete     uint64 `json:"delete"`      // queues that are deleted unless they are used
}

// TimeWithin has the counts of one span.
type TimeWithin struct {
	WithinMS uint64 `json:"within_ms"`
	TimeCounts
}

// Time is answered by GET /api/quorate/time: what comes next in all queues that the user may see.
type Time struct {
	CountedAt int64 `json:"counted_at"`     // ms since the epoch
	Queues    int   `json:"queues"`         // that are counted
	Unknown   int   `json:"queues_unknown"` // whose leaders do not answer
	AtLeast   bool  `json:"at_least"`       // there may be more: queues are unknown, or too long to count
	Next
	Within []TimeWithin `json:"within"` // ascending; the last one is a day
}

// QueueTime is what comes next in a queue within a day.
type QueueTime struct {
	VHost    string `json:"vhost"`
	Name     string `json:"name"`
	Exchange string `json:"exchange,omitempty"` // whose delayed messages the queue holds
	NextAt   int64  `json:"next_at"`            // when something is due first, ms since the epoch
	AtLeast  bool   `json:"at_least"`           // there may be more: not all were counted
	Next
}

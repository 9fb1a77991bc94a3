package api

// MessageStats are counts by name, such as publish, since the nodes began that
// count them, and under NAME_details a Details.
type MessageStats map[string]any

// Details is how a number changes. Samples, their mean and the mean of their
// rates are there if the request asks for samples.
type Details struct {
	Rate    float64  `json:"rate"` // in a second, between the newest samples
	Samples []Sample `json:"samples,omitempty"`
	Mean    *float64 `json:"avg,omitempty"`
	AvgRate *float64 `json:"avg_rate,omitempty"`
}

// Sample is a number at a time.
type Sample struct {
	Value uint64 `json:"sample"`
	At    int64  `json:"timestamp"` // ms since 1970
}

// LengthDetails are how the lengths of queues change.
type LengthDetails struct {
	MessagesDetails       *Details `json:"messages_details,omitempty"`
	ReadyDetails          *Details `json:"messages_ready_details,omitempty"`
	UnacknowledgedDetails *Details `json:"messages_unacknowledged_details,omitempty"`
}

// WithChannel is what a channel does with an exchange or a queue.
type WithChannel struct {
	Channel ChannelDetails `json:"channel_details"`
	Stats   MessageStats   `json:"stats"`
}

// WithExchange is what a channel publishes to an exchange, or what comes from one to a queue.
type WithExchange struct {
	Exchange QueueName    `json:"exchange"`
	Stats    MessageStats `json:"stats"`
}

// WithQueue is what a channel takes from a queue, or what comes to one from an exchange.
type WithQueue struct {
	Queue QueueName    `json:"queue"`
	Stats MessageStats `json:"stats"`
}

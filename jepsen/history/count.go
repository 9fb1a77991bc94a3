package history

import (
	"maps"
	"slices"
	"time"
)

// Second is what was counted in a second, of messages of which nothing else is recorded.
type Second struct {
	At time.Duration `json:"at"` // its beginning
	Counts
	// Took is from publish to confirm, of the first of every sampledConfirms.
	Took []time.Duration `json:"took,omitempty"`
}

const sampledConfirms = 50

// pauses are the times without a confirm.
type pauses struct {
	last    time.Duration // confirm, or the first publish; 0: none
	longest time.Duration
}

// CountPublish counts an attempt of which nothing else is recorded.
func (h *History) CountPublish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.second()
	s.Published++
	h.Past.Published++
	if h.counted.last == 0 {
		h.counted.last = h.Now()
	}
}

// CountConfirm counts the confirm of such an attempt, and how long it took.
func (h *History) CountConfirm(queue string, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.second()
	if s.Confirmed%sampledConfirms == 0 {
		s.Took = append(s.Took, took)
	}
	s.Confirmed++
	h.Past.Confirmed++
	h.answers++
	now := h.Now()
	h.answered[queue] = now
	h.counted.longest, h.counted.last = max(h.counted.longest, now-h.counted.last), now
}

// CountDelivery counts a delivery of which nothing else is recorded.
func (h *History) CountDelivery(redelivered bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.second()
	s.Delivered++
	h.Past.Delivered++
	if redelivered {
		s.Redelivered++
		h.Past.Redelivered++
	}
}

// second returns the present second.
func (h *History) second() *Second {
	at := h.Now().Truncate(time.Second)
	if n := len(h.Seconds); n > 0 && h.Seconds[n-1].At >= at {
		return &h.Seconds[n-1]
	}
	h.Seconds = append(h.Seconds, Second{At: at})
	return &h.Seconds[len(h.Seconds)-1]
}

// ConfirmedTo returns the queues of which messages were confirmed, sorted.
func (h *History) ConfirmedTo() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.answered))
}

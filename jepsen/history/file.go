package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// line is a line of a history file; exactly one field is set.
type line struct {
	Attempt  *Attempt  `json:"attempt,omitempty"`
	Delivery *Delivery `json:"delivery,omitempty"`
	Fault    *Fault    `json:"fault,omitempty"`
	Skipped  *Skipped  `json:"skipped,omitempty"`
	Op       *Op       `json:"op,omitempty"`
	Led      *Led      `json:"led,omitempty"`
	Stalled  *Stalled  `json:"stalled,omitempty"`
	Second   *Second   `json:"second,omitempty"`
	Past     *Counts   `json:"past,omitempty"`
	Stall    *stall    `json:"stall,omitempty"`
}

type stall struct {
	Longest time.Duration `json:"longest"`
}

// Write writes the history as JSON lines.
func (h *History) Write(w io.Writer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := bufio.NewWriter(w)
	enc := json.NewEncoder(b)
	var errs []error
	for i := range h.Attempts {
		errs = append(errs, enc.Encode(line{Attempt: &h.Attempts[i]}))
	}
	for i := range h.Deliveries {
		errs = append(errs, enc.Encode(line{Delivery: &h.Deliveries[i]}))
	}
	for i := range h.Faults {
		errs = append(errs, enc.Encode(line{Fault: &h.Faults[i]}))
	}
	for i := range h.Skipped {
		errs = append(errs, enc.Encode(line{Skipped: &h.Skipped[i]}))
	}
	for i := range h.Ops {
		errs = append(errs, enc.Encode(line{Op: &h.Ops[i]}))
	}
	for i := range h.Leaders {
		errs = append(errs, enc.Encode(line{Led: &h.Leaders[i]}))
	}
	for i := range h.Stalls {
		errs = append(errs, enc.Encode(line{Stalled: &h.Stalls[i]}))
	}
	for i := range h.Seconds {
		errs = append(errs, enc.Encode(line{Second: &h.Seconds[i]}))
	}
	if h.Past != (Counts{}) {
		errs = append(errs, enc.Encode(line{Past: &h.Past}))
	}
	if h.Stall != 0 {
		errs = append(errs, enc.Encode(line{Stall: &stall{h.Stall}}))
	}
	return errors.Join(errors.Join(errs...), b.Flush())
}

// Read reads what Write wrote. Empty lines and lines that begin with # are skipped.
func Read(r io.Reader) (*History, error) {
	h := New()
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for n := 1; s.Scan(); n++ {
		if len(s.Bytes()) == 0 || s.Bytes()[0] == '#' {
			continue
		}
		var l line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("history line %d: %w", n, err)
		}
		switch {
		case l.Attempt != nil:
			h.Attempts = append(h.Attempts, *l.Attempt)
		case l.Delivery != nil:
			h.Deliveries = append(h.Deliveries, *l.Delivery)
		case l.Fault != nil:
			h.Faults = append(h.Faults, *l.Fault)
		case l.Skipped != nil:
			h.Skipped = append(h.Skipped, *l.Skipped)
		case l.Op != nil:
			h.Ops = append(h.Ops, *l.Op)
		case l.Led != nil:
			h.Leaders = append(h.Leaders, *l.Led)
		case l.Stalled != nil:
			h.Stalls = append(h.Stalls, *l.Stalled)
		case l.Second != nil:
			h.Seconds = append(h.Seconds, *l.Second)
		case l.Past != nil:
			h.Past = *l.Past
		case l.Stall != nil:
			h.Stall = l.Stall.Longest
		default:
			return nil, fmt.Errorf("history line %d: nothing that a history has", n)
		}
	}
	return h, s.Err()
}

// Package queue is the queue machine: what one queue does, as a function of
// its log. It takes messages in, hands them to consumers in order, takes back
// what was not settled, lets messages wait for their time, lets messages,
// deliveries and the queue itself run out of time, keeps within its length
// limits, and keeps dead letters until they have been forwarded.
//
// It promises that equal logs give equal states, answers and effects; that a
// message is in exactly one place; that no message is handed out at or after
// its expiry; and that no command a client can cause makes it panic or takes
// long without moving messages.
//
// It holds no payloads, reads no clock, and does not know how dead letters
// are routed: it only records where they go. DESIGN.md has the reasons.
package queue

import "github.com/quorate/quorate/fsm/internal/ordered"

// What the parts keep their state in.
type (
	key           = ordered.Key
	sorted[V any] = ordered.Table[V]
	pages[T any]  = ordered.Pages[T]
	arena[T any]  = ordered.Arena[T]
	deque[T any]  = ordered.Deque[T]
	labels        = ordered.Labels
)

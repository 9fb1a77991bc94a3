// Package stream carries the numbered commands of a session to a queue, and knows
// the way to the queue's leader.
//
// Each command reaches the queue once and in the order of its number, whatever is
// lost, late or doubled on the way, and its owner is given one answer to it, in
// that order. Deliveries come out in order without a gap, or are asked for again.
// Only the end of the queue or of the session leaves commands without effect.
//
// It neither routes nor knows clients: Owner and Receiver are what it tells, and
// Host is what it needs of the node.
package stream

// Package stream carries the numbered commands of a session to a queue, and knows the way to the
// queue's leader.
//
// Each command reaches the queue once and in the order of its number, whatever is lost, late or
// duplicated on the way, and its owner gets one answer to it, in that order. Deliveries come out
// in order and without gaps; missing ones are requested again. Only the end of the queue or of the
// session leaves commands without effect.
//
// It neither routes nor knows clients: it reports to Owner and Receiver, and Host is what it needs
// of the node.
package stream

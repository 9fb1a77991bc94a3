// Package deadletter sends the dead letters of the queues that a node leads to their targets, and
// what they forward.
//
// Letters in a queue's outbox arrive at each target exactly once and in the order in which they
// died, also across changes of leader. A letter leaves the outbox when the log records that all
// its targets have it, or that it has none. Letters that are in no outbox are sent at most once,
// and counted if they do not arrive.
//
// The package decides where letters go, by the catalog's view, and what they carry. What a queue
// does with dying messages is decided by its machine (fsm/queue); cluster/stream ensures that
// commands reach a queue once.
package deadletter

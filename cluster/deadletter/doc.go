// Package deadletter sends the dead letters of the queues that a node leads to the
// queues that they go to.
//
// What a queue holds in its outbox arrives at each target once and in the order in
// which it died, also across changes of leader; a letter leaves the outbox when the
// log says that all its targets have it, or that there is none. What is in no outbox
// is sent at most once, and counted if it does not arrive.
//
// It decides where letters go, by the catalog's view, and what they carry. What a
// queue does with messages that die is its machine's (fsm/queue); that commands
// reach a queue once is cluster/stream's.
package deadletter

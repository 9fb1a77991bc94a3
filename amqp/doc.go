// Package amqp serves clients: it accepts connections, finds out which protocol
// each of them speaks, logs the client in, bounds what it may make the node hold,
// and writes what it is to get. What frames mean it leaves to a Protocol, such as
// the one of amqp/v091, and what requests mean for queues to a Broker.
//
// It promises: a client that sends too much is blocked at its socket, one that
// does not read is dropped, one that is silent for too long is given up; what is
// pushed to an outbox is written in order, without a copy of large payloads; a
// panic in work for a connection ends that connection only.
//
// It does not route, store, order or expire messages, knows no users,
// permissions or policies, and keeps nothing once a connection has ended.
// DESIGN.md explains the inner workings of a connection.
package amqp

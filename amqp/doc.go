// Package amqp serves AMQP 0-9-1 clients: connections, channels, consumers,
// confirms. It leaves the meaning of a method for queues to a Broker.
//
// It promises: frames of a channel take effect in the order in which they
// arrive; a channel that waits for the broker does not delay another one; a
// publish is confirmed only with its outcome at the broker, and a basic.return
// comes before its confirm; a client that sends too much is blocked at its
// socket, one that does not read is dropped; no input makes it panic; every
// error a client sees has a reply code from errors.go.
//
// It does not route, store, order or expire messages, knows no users,
// permissions or policies, and keeps nothing once a connection has ended.
// DESIGN.md explains the inner workings of a connection.
package amqp

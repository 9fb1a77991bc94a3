// Package amqp serves AMQP 0-9-1 clients: connections, channels, consumers,
// confirms. What a method means for queues it leaves to a Broker.
//
// It promises: frames of a channel take effect in the order in which they
// came; a channel that waits for the broker does not hold up another one; a
// publish is confirmed only with its outcome at the broker, and a basic.return comes
// before its confirm; a client that sends too much is held at its socket, one
// that does not read is dropped; no input makes it panic; every error a client
// sees has a reply code from errors.go.
//
// It does not route, store, order or expire messages, does not know users,
// permissions or policies, and keeps nothing once a connection has ended.
// DESIGN.md tells how a connection works inside.
package amqp

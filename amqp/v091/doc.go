// Package v091 is AMQP 0-9-1 for the server of package amqp: connections,
// channels, consumers, confirms. It leaves the meaning of a method for queues to
// a Broker.
//
// It promises: frames of a channel take effect in the order in which they
// arrive; a channel that waits for the broker does not delay another one; a
// publish is confirmed only with its outcome at the broker, and a basic.return
// comes before its confirm; no input makes it panic; every error a client sees has
// a reply code from errors.go.
//
// It does not accept connections, time them out or bound what they hold, which
// package amqp does for every protocol. DESIGN.md explains the inner workings of a
// channel.
package v091

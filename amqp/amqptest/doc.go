// Package amqptest is what tests of package amqp need at both its ends: a
// Broker that lives in memory and does what the test tells it to, and a client
// that sends and receives single frames, described as text.
//
// The Broker knows queues, consumers with prefetch, gets, and default, direct
// and fanout exchanges. It has no policies, permissions, limits or expiry; it
// is exact in what it promises package amqp, not in what a queue is.
package amqptest

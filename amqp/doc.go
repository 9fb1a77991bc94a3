// Package amqp is the AMQP 0-9-1 front: listener, connections, channels,
// consumers, confirms. What a method means for queues it leaves to a Broker.
package amqp

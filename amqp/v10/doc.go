// Package v10 holds the rules of AMQP 1.0: addresses, windows and credit, the
// assembly of deliveries, their outcomes and settlement. Each is a small type
// that knows neither sockets nor the broker.
//
// It promises: ids and counts of 32 bits are compared as serial numbers; what a
// client announces takes no memory; a client's mistake is a *wire.Error that
// says which condition to tell, and the caller knows whether the link, the
// session or the connection ends.
//
// It serves nobody by itself: no listener speaks AMQP 1.0.
package v10

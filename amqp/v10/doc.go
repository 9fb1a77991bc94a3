// Package v10 serves AMQP 1.0 clients over the Broker of package amqp:
// connections, sessions, links, credit and outcomes. A session of the protocol is
// one session of the broker, a receiving link one consumer in credit mode.
//
// It promises: frames of a session take effect in the order in which they arrive;
// a session that waits for the broker does not delay another one; each unsettled
// publish gets its outcome once, when the broker has it; what a client announces
// takes no memory; a mistake ends the link, the session or the connection that the
// protocol names, and nothing else; no input makes it panic.
//
// It does not route, store or order messages: the message of a client is kept and
// given back byte for byte, and package message shows it one of another protocol.
// DESIGN.md says what is left out.
package v10

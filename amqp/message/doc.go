// Package message says what a stored message means, whichever protocol it came by:
// its labels, headers, routing keys, times and history; and how a receiver of the
// other protocol sees it. A message of AMQP 0-9-1 has what it says in its property
// list, one of AMQP 1.0 in its annotations and its sections.
//
// It promises: nothing that a payload may contain makes it fail or panic, what does
// not decode says nothing; work and memory are bounded by the length of a payload;
// a payload is never changed, and the bare message of one of AMQP 1.0 stays byte for
// byte in what is made of it.
//
// It knows no connection and no queue, and writes no frames.
package message

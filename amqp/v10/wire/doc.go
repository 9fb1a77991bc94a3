// Package wire is the codec of AMQP 1.0: frames, performatives, SASL frames,
// delivery states, values and the sections of messages, from bytes to Go
// values and back.
//
// It promises: no input makes it panic; sizes and counts are checked against
// what is left of their container before anything is read or allocated because
// of them; a client's mistake is returned as an *Error with the condition and
// text for the client; encoders append to the caller's slice and allocate
// nothing else; transfers, dispositions and flows are decoded without
// allocating; maps, values and messages are views of the input.
//
// It does not know connections, sessions or links, nor the order in which
// frames are allowed; it starts no goroutine, sets no deadline and does not log.
//
// Primitive types are written by hand, composite ones generated from a table;
// see internal/generate.
package wire

//go:generate go run ./internal/generate

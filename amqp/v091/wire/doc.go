// Package wire is the codec of AMQP 0-9-1: frames, methods, field tables and
// content properties, from bytes to Go values and back.
//
// It promises: no input makes it panic; sizes are checked before anything is
// read or allocated because of them; a client's mistake is returned as an
// *Error with the reply code and text for the client; encoders append to the
// caller's slice and allocate nothing else; field tables and property lists
// keep their order, their duplicates and, where nothing is edited, their bytes.
//
// It does not know connections, channels or the order in which methods are
// allowed; it starts no goroutine, sets no deadline and does not log.
//
// The methods come from the machine-readable specification that ships with
// the amqp091-go module; see internal/generate.
package wire

//go:generate go run ./internal/generate

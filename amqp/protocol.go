package amqp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Header is what a client sends first: the protocol that it speaks.
type Header [8]byte

// Protocol is one of the protocols that a server speaks. It is asked by many
// connections at a time.
type Protocol interface {
	// Name is short, and tells protocols apart where they are counted.
	Name() string
	// Speaks reports whether a connection that begins with this header is the
	// protocol's. The answer may change.
	Speaks(Header) bool
	// Header is the answer to a header that no protocol speaks, if this is the
	// first protocol of the server that speaks its own.
	Header() Header
	// Validate returns an error that names the first setting out of range.
	Validate() error
	// Open returns the protocol's side of a connection whose header has been
	// read, and not answered. It does not block.
	Open(*Conn, Header) Endpoint
}

// Endpoint is a protocol's side of one connection. The connection's goroutine
// calls it, except where noted.
type Endpoint interface {
	// Handshake takes the connection to where it is open: it logs the client in
	// (Conn.Login), opens the vhost (Conn.Connect) and sets the Terms. It writes
	// to the socket itself, except for what it leaves in the outbox. ctx ends
	// with the time for it, as the socket's deadline does. ErrRefused: the
	// client has been told; ErrDropLater: it is to be told nothing. Accounts hold next
	// to nothing until it returns: they are below the user's only then.
	Handshake(ctx context.Context) error
	// Refuse tells the client with which error the handshake has failed. It
	// reports whether something was written that the client should read.
	Refuse(err error) (told bool)
	// Describe fills in what only the protocol knows of an open connection.
	Describe(*ConnectionInfo)
	// Encoder returns what encodes the items of the connection's outbox. It is
	// called once.
	Encoder(*Writer) Encoder

	// Run reads frames until the connection ends, and returns why. ErrClientClosed:
	// by the client's close, which FinishClose answers; ErrEnding: the client is being
	// told, or has been; any other error ends the connection without a word.
	Run() error
	// Admit is called before the socket is read. It may wait (Conn.Await), and
	// returns false to stop reading.
	Admit() bool
	// DropRelieved drops what the reader holds for channels that have been
	// relieved of their memory.
	DropRelieved()

	// Fail ends the connection with a close that gives this reason, unless it
	// is ending already (Conn.Fail). It does not block. Any goroutine may call
	// it once the connection is open.
	Fail(reason error)
	// Renew checks the client's rights again, and ends the connection if it is
	// no longer allowed. It is Fail's like.
	Renew()
	// AwaitClose reads until the client has answered the server's close, or
	// reading fails.
	AwaitClose()
	// FinishClose answers the client's close. Its sessions are closed.
	FinishClose()

	// Shut makes the channels ignore all events. The reader has stopped.
	Shut()
	// Leave returns the sessions that are to be closed, once no task of the
	// connection runs any more.
	Leave() []Session
	// Vacate gives back what the channels hold; see Account.Close for clean.
	Vacate(clean bool)
	// Parts are the accounts of the open channels. Any goroutine may call it.
	Parts() []*Account
}

// dispatch reads the protocol header and returns what serves such a connection.
func (s *Server) dispatch(c *Conn) (Endpoint, error) {
	var got Header
	_, err := io.ReadFull(c.Source, got[:])
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err // io.EOF: no byte was sent, a health check
	}
	for _, p := range c.protocols {
		if p.Speaks(got) {
			c.protocol = p.Name()
			return p.Open(c, got), nil
		}
	}
	s.unknown.log(c, slog.LevelInfo, "unknown protocol header", slog.String("header", fmt.Sprintf("%q", got[:])))
	if _, err := io.WriteString(c.Socket, c.answer(got)); err != nil {
		return nil, err
	}
	return nil, ErrRefused
}

// answer is what a client reads whose header is unknown.
func (c *Conn) answer(got Header) string {
	if strings.HasPrefix(string(got[:]), "GET ") {
		return "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" +
			"This is an AMQP port. The HTTP API listens on the management port, 15672 by default.\n"
	}
	for _, p := range c.protocols {
		if own := p.Header(); p.Speaks(own) {
			return string(own[:])
		}
	}
	return ""
}

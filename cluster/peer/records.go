package peer

import (
	"bufio"
	"crypto/tls"
	"net"
	"sync"
)

// TLS writes a record of 16 KiB at a time, and reads about as much. Each would be
// a system call of its own.

// records is what TLS reads from and writes to. What is written while it is held
// leaves at once when it is released.
type records struct {
	net.Conn
	in *bufio.Reader

	mu   sync.Mutex
	held bool
	out  []byte
}

// maxRecords is what is held at most: what gRPC writes at once, and the records' own
// bytes.
const maxRecords = socketBuffer + 16<<10

func newRecords(c net.Conn) *records {
	return &records{Conn: c, in: bufio.NewReaderSize(c, socketBuffer)}
}

// Read implements net.Conn.
func (r *records) Read(p []byte) (int, error) { return r.in.Read(p) }

// Write implements net.Conn.
func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.held {
		return r.Conn.Write(p)
	}
	if len(r.out)+len(p) > maxRecords {
		if err := r.flush(); err != nil {
			return 0, err
		}
	}
	r.out = append(r.out, p...)
	return len(p), nil
}

func (r *records) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = true
}

func (r *records) release() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = false
	return r.flush()
}

// flush writes what is held. r.mu is held.
func (r *records) flush() error {
	if len(r.out) == 0 {
		return nil
	}
	_, err := r.Conn.Write(r.out)
	r.out = r.out[:0]
	return err
}

// plain is a connection without TLS that is read ahead. gRPC reads as it parses, a few bytes and then a
// frame: its own buffer would copy once more what TLS holds decrypted.
type plain struct {
	net.Conn
	in *bufio.Reader
}

func newPlain(c net.Conn) *plain { return &plain{c, bufio.NewReaderSize(c, socketBuffer)} }

// Read implements net.Conn.
func (c *plain) Read(p []byte) (int, error) { return c.in.Read(p) }

// secured is a connection whose Close does not wait for a farewell to pass a
// full socket. An end without one is noticed: every stream ends with a status.
type secured struct {
	*tls.Conn
	records *records
}

// Write implements net.Conn.
func (c *secured) Write(p []byte) (int, error) {
	c.records.hold()
	n, err := c.Conn.Write(p)
	if e := c.records.release(); err == nil && e != nil {
		return 0, e
	}
	return n, err
}

// Close implements net.Conn.
func (c *secured) Close() error { return c.records.Conn.Close() }

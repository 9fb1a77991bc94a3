package peer

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"
)

const (
	// maxUnproven and maxUnprovenHost bound the connections, in all and of one
	// address, that have not proved who they are. Further ones are closed.
	maxUnproven     = 256
	maxUnprovenHost = 64
)

// Keys are what a node proves its name by, and has others prove theirs. They
// are asked anew for each connection.
type Keys interface {
	// Server is for a connection that somebody has dialled, whoever it is.
	Server() (*tls.Config, error)
	// Client is for a connection that this node has dialled, to the node whose
	// name the other side must prove; empty: whichever node answers.
	Client(node string) (*tls.Config, error)
	// Invited is Client for a node that joins by a token: whichever node answers
	// must be signed by the authority whose fingerprint is given. A node that has
	// no certificate yet proves nothing then, and may only ask to join.
	Invited(authority []byte) (*tls.Config, error)
	// Authority is the fingerprint of the authority that this node is signed by.
	Authority() ([]byte, error)
}

// Security is how links are secured by TLS: both ends prove who they are, and
// a node is believed no name but one that its certificate has.
type Security struct {
	Keys Keys
	// Mixed has links without TLS accepted, and dialled to nodes that know no
	// TLS, for as long as a cluster changes over from one to the other.
	Mixed bool
}

// proof is what a connection has proved about the node at its other end.
type proof struct {
	credentials.CommonAuthInfo
	names       []string // one of which is the node's
	plain       bool     // it could prove nothing
	uncertified bool     // it has no certificate yet, and wants one
}

// AuthType implements credentials.AuthInfo.
func (p *proof) AuthType() string { return "quorate" }

// is says why the node at the other end is none with this name; nil: it may be.
func (p *proof) is(node string) error {
	if p.plain || slices.Contains(p.names, node) {
		return nil
	}
	return fmt.Errorf("%w: it says that it is node %q, its certificate is for %q", errUnproven, node, p.names)
}

// unproved is what a connection proves that is not secured.
func unproved() *proof { return &proof{plain: true} }

// proved is what a connection has proved once its ends have shaken hands.
func proved(c *tls.Conn) *proof {
	p := &proof{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	if shown := c.ConnectionState().PeerCertificates; len(shown) > 0 {
		p.names = shown[0].DNSNames
	} else {
		p.uncertified = true
	}
	return p
}

// proofOf returns what the connection of a stream has proved. One that says
// nothing about it has proved to be nobody.
func proofOf(ctx context.Context) *proof {
	if p, ok := grpcpeer.FromContext(ctx); ok {
		if proof, ok := p.AuthInfo.(*proof); ok {
			return proof
		}
	}
	return &proof{}
}

// destination is whom a connection is dialled to: a node, empty: whichever
// answers; with a pin to one that this authority has signed.
type destination struct {
	node string
	pin  []byte
}

func (d destination) config(k Keys) (*tls.Config, error) {
	if d.pin != nil {
		return k.Invited(d.pin)
	}
	return k.Client(d.node)
}

// secure shakes hands on a connection that this node has dialled. s may be nil.
func (s *Security) secure(ctx context.Context, conn net.Conn, to destination) (net.Conn, *proof, error) {
	if s == nil {
		return newPlain(conn), unproved(), nil
	}
	config, err := to.config(s.Keys)
	if err != nil {
		return nil, nil, err
	}
	r := newRecords(conn)
	c := tls.Client(r, config)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	return &secured{c, r}, proved(c), nil
}

// knowsNoTLS reports whether a handshake failed as it does with a node that
// knows no TLS: it answers something else, or hangs up.
func knowsNoTLS(err error) bool {
	var header tls.RecordHeaderError
	return errors.As(err, &header) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// connect dials an address and shakes hands, and dials again without TLS if
// that is mixed and the other side knows none. wrap is put around what is
// dialled.
func (s *Security) connect(ctx context.Context, dial func() (net.Conn, error), to destination) (net.Conn, *proof, error) {
	raw, err := dial()
	if err != nil {
		return nil, nil, err
	}
	conn, p, err := s.secure(ctx, raw, to)
	if err == nil {
		return conn, p, nil
	}
	raw.Close()
	if s.Mixed && knowsNoTLS(err) {
		if raw, err = dial(); err != nil {
			return nil, nil, err
		}
		return newPlain(raw), unproved(), nil
	}
	return nil, nil, fmt.Errorf("peer: TLS: %w", err)
}

// serverCredentials have whoever dials prove who it is, before gRPC reads a byte.
type serverCredentials struct {
	credentials.TransportCredentials // only to be one: nothing of it is called
	security                         *Security
	complain                         func(node, what string, err error)

	mu       sync.Mutex
	unproven map[netip.Addr]int
	all      int
	joiners  map[netip.Addr]int
}

func newServerCredentials(s *Security, complain func(node, what string, err error)) *serverCredentials {
	return &serverCredentials{security: s, complain: complain, unproven: map[netip.Addr]int{}, joiners: map[netip.Addr]int{}}
}

// refusedConnection is what is logged of connections.
const refusedConnection = "refused a connection that has not authenticated as a node"

// Clone implements credentials.TransportCredentials.
func (e *serverCredentials) Clone() credentials.TransportCredentials { return e }

// Info implements credentials.TransportCredentials.
func (e *serverCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "quorate"}
}

// ServerHandshake implements credentials.TransportCredentials. gRPC ends the
// connection after helloWait. Whoever is refused gets no reason, and is nobody yet:
// one address after the other does not fill the log.
func (e *serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	host := hostOf(raw)
	if !e.enter(host) {
		e.complain("", refusedConnection, fmt.Errorf("%w: %v", errCrowd, raw.RemoteAddr()))
		return nil, nil, errCrowd
	}
	defer e.leave(host)
	conn, p, err := e.shake(raw)
	if err != nil {
		err = fmt.Errorf("%w: %v: %w", errHandshake, raw.RemoteAddr(), err)
		e.complain("", refusedConnection, err)
		return nil, nil, err
	}
	if p.uncertified {
		if conn, err = e.receive(conn, host); err != nil {
			e.complain("", refusedConnection, fmt.Errorf("%w: %v", err, raw.RemoteAddr()))
			return nil, nil, err
		}
	}
	return conn, p, nil
}

func (e *serverCredentials) shake(raw net.Conn) (net.Conn, *proof, error) {
	s := e.security
	if s == nil {
		return newPlain(raw), unproved(), nil
	}
	if s.Mixed {
		first := bufio.NewReaderSize(raw, 16)
		b, err := first.Peek(1)
		if err != nil {
			return nil, nil, err
		}
		raw = &peeked{raw, first}
		if b[0] != tlsHandshake {
			return newPlain(raw), unproved(), nil
		}
	}
	config, err := s.Keys.Server()
	if err != nil {
		return nil, nil, err
	}
	r := newRecords(raw)
	c := tls.Server(r, config)
	if err := c.Handshake(); err != nil {
		return nil, nil, err
	}
	return &secured{c, r}, proved(c), nil
}

// tlsHandshake is the first byte of a connection that is secured by TLS. HTTP/2
// begins with a letter.
const tlsHandshake = 0x16

// peeked is a connection whose first bytes have been read ahead.
type peeked struct {
	net.Conn
	first *bufio.Reader // holds them until they are read
}

// Read implements net.Conn.
func (c *peeked) Read(p []byte) (int, error) {
	if c.first.Buffered() > 0 {
		return c.first.Read(p)
	}
	return c.Conn.Read(p)
}

// enter counts a connection in, unless there are too many.
func (e *serverCredentials) enter(host netip.Addr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all >= maxUnproven || e.unproven[host] >= maxUnprovenHost {
		return false
	}
	e.all++
	e.unproven[host]++
	return true
}

func (e *serverCredentials) leave(host netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all--
	if e.unproven[host]--; e.unproven[host] == 0 {
		delete(e.unproven, host)
	}
}

// hostOf is the address at the other end; the zero one, if it has none.
func hostOf(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr()
	}
	return netip.Addr{}
}

// TLS writes a record of 16 KiB at a time, and reads about as much. Each would be
// a system call of its own.

// records is what TLS reads from and writes to. What is written while it is corked
// leaves at once when it is uncorked.
type records struct {
	net.Conn
	in *bufio.Reader

	mu     sync.Mutex
	corked bool
	out    []byte
}

// maxRecords is what out has at most: what gRPC writes at once, and the records' own
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
	if !r.corked {
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

func (r *records) cork() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.corked = true
}

func (r *records) uncork() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.corked = false
	return r.flush()
}

// flush writes what is in out. r.mu is held.
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
	c.records.cork()
	n, err := c.Conn.Write(p)
	if e := c.records.uncork(); err == nil && e != nil {
		return 0, e
	}
	return n, err
}

// Close implements net.Conn.
func (c *secured) Close() error { return c.records.Conn.Close() }

const (
	// maxJoiners and maxJoinersHost bound the connections, in all and of one
	// address, of who has no certificate and asks to join.
	maxJoiners     = 16
	maxJoinersHost = 4
	// joinerWait is how long such a connection may be open: for one question.
	joinerWait = 30 * time.Second
)

// joiner is the connection of who asks to join. It is closed after a while.
type joiner struct {
	net.Conn
	once  sync.Once
	timer *time.Timer
	leave func()
}

// Close implements net.Conn.
func (g *joiner) Close() error {
	g.once.Do(func() {
		g.timer.Stop()
		g.leave()
	})
	return g.Conn.Close()
}

// receive counts a joiner in, unless there are too many.
func (e *serverCredentials) receive(conn net.Conn, host netip.Addr) (net.Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := 0
	for _, n := range e.joiners {
		all += n
	}
	if all >= maxJoiners || e.joiners[host] >= maxJoinersHost {
		return nil, errCrowd
	}
	e.joiners[host]++
	g := &joiner{Conn: conn, leave: func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.joiners[host]--; e.joiners[host] == 0 {
			delete(e.joiners, host)
		}
	}}
	g.timer = time.AfterFunc(joinerWait, func() { _ = conn.Close() }) // whoever reads closes the joiner
	return g, nil
}

package amqp

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/quorate/quorate/fsm"
)

// Names of SASL mechanisms that every protocol offers.
const (
	Plain    = "PLAIN"
	External = "EXTERNAL" // for clients with a certificate
	// Anonymous is for clients that do not say who they are, if there is a user for them.
	Anonymous = "ANONYMOUS"
)

func remoteAddr(socket net.Conn) netip.Addr {
	if a, err := netip.ParseAddrPort(socket.RemoteAddr().String()); err == nil {
		return a.Addr().Unmap()
	}
	return netip.Addr{}
}

// tlsTime bounds a TLS handshake. It is a part of the handshake's time.
const tlsTime = 5 * time.Second

// secure performs the TLS handshake, if the connection has come by TLS.
func (c *Conn) secure(ctx context.Context) error {
	t, ok := c.Socket.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, tlsTime)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		return err
	}
	if certificates := t.ConnectionState().PeerCertificates; len(certificates) > 0 {
		c.certificate = certificates[0]
	}
	return nil
}

// transport is what carries a connection. Closing a TLS connection says
// farewell, which takes its time when the client does not read; closing its
// transport does not.
func transport(socket net.Conn) net.Conn {
	if t, ok := socket.(*tls.Conn); ok {
		return t.NetConn()
	}
	return socket
}

// IsCertified reports whether the client may log in by its certificate, and the
// mechanism EXTERNAL is offered.
func (c *Conn) IsCertified() bool {
	return c.certificate != nil && c.server.cfg.CertificateUser != nil
}

// PlainLogin reads a response of the mechanism PLAIN. ok false: it is malformed,
// or speaks for another user.
func PlainLogin(response string) (user, password string, ok bool) {
	parts := strings.Split(response, "\x00")
	if len(parts) != 3 || parts[0] != "" {
		return "", "", false
	}
	return parts[1], parts[2], true
}

// Login logs the client in with a password. A *fsm.Refusal: this was not possible
// now; any other error refuses the login, after which the connection ends with
// ErrDropLater.
func (c *Conn) Login(ctx context.Context, user, password string) error {
	return c.loggedIn(user, c.server.cfg.Broker.Login(c.over(ctx), user, password, c.remote))
}

// LoginCertified is Login by the client's certificate, which it must have.
func (c *Conn) LoginCertified(ctx context.Context) error {
	user := c.server.cfg.CertificateUser(c.certificate)
	return c.loggedIn(user, c.server.cfg.Broker.LoginKnown(c.over(ctx), user, c.remote))
}

// LoginByKey is Login by a key that has a name, and belongs to no user.
func (c *Conn) LoginByKey(ctx context.Context, name string, same func() bool) error {
	return c.server.cfg.Broker.LoginByKey(c.over(ctx), name, c.remote, same)
}

// TakesAnonymous reports whether the client may log in without saying who it is, and the mechanism ANONYMOUS is offered.
func (c *Conn) TakesAnonymous() bool { return c.server.cfg.AnonymousUser != "" }

// LoginAnonymous is Login for such a client. trace is what it says of itself, for the log.
func (c *Conn) LoginAnonymous(ctx context.Context, trace string) error {
	user := c.server.cfg.AnonymousUser
	c.Log.Info("anonymous login", slog.String("trace", fsm.Short(strings.ToValidUTF8(trace, "\uFFFD"))))
	return c.loggedIn(user, c.server.cfg.Broker.LoginKnown(c.over(ctx), user, c.remote))
}

type protocolKey struct{}

// over is a context whose ProtocolOf is the connection's.
func (c *Conn) over(ctx context.Context) context.Context {
	return context.WithValue(ctx, protocolKey{}, c.protocol)
}

// ProtocolOf returns the name of the protocol of the client on whose behalf the methods of Broker are
// called with this context.
func ProtocolOf(ctx context.Context) string {
	name, _ := ctx.Value(protocolKey{}).(string)
	return name
}

func (c *Conn) loggedIn(user string, err error) error {
	if err == nil {
		c.User = user
		c.Log = c.Log.With(slog.String("user", user))
	}
	return err
}

// Connect opens a vhost for the client, which has logged in.
func (c *Conn) Connect(ctx context.Context, vhost string) error {
	c.VHost = vhost
	broker, err := c.server.cfg.Broker.Connect(c.over(ctx), c.User, vhost)
	if err != nil {
		return err
	}
	c.Broker = broker
	c.Log = c.Log.With(slog.String("vhost", vhost))
	return nil
}

package amqp

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// tlsTime bounds a TLS handshake. It is a part of the handshake's time.
const tlsTime = 5 * time.Second

// secure performs the TLS handshake, if the connection has come by TLS.
func (h *handshake) secure() error {
	t, ok := h.socket.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(h.ctx, tlsTime)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		return err
	}
	if certificates := t.ConnectionState().PeerCertificates; len(certificates) > 0 {
		h.certificate = certificates[0]
	}
	return nil
}

// mechanisms lists the SASL mechanisms that are offered.
func (h *handshake) mechanisms() string {
	if h.certificate != nil && h.server.cfg.CertificateUser != nil {
		return passwords + " " + external
	}
	return passwords
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

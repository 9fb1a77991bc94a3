package amqp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

const (
	passwords = "PLAIN AMQPLAIN" // mechanisms
	external  = "EXTERNAL"       // the mechanism for clients with a certificate
	locales   = "en_US"
)

var (
	// errRefused ends a handshake after the last answer to the client.
	errRefused = errors.New("handshake refused")
	// errDropLater is like errRefused, but the socket is closed after a delay.
	errDropLater = errors.New("login refused")
)

// handshake is the part of a connection before connection.open-ok. It writes
// to the socket itself; there is no writer yet.
type handshake struct {
	*conn
	ctx    context.Context
	remote netip.Addr
	// certificate is the client's, which has been verified; nil: it has none.
	certificate *x509.Certificate
}

// negotiate performs the handshake. A *wire.Error is sent to the client before
// its connection is dropped; any other error only drops it.
func (c *conn) negotiate() error {
	deadline := time.Now().Add(c.server.cfg.HandshakeTimeout)
	ctx, cancel := context.WithDeadline(c.server.ctx, deadline)
	defer cancel()
	if err := c.socket.SetDeadline(deadline); err != nil {
		return err
	}
	h := &handshake{conn: c, ctx: ctx, remote: remoteAddr(c.socket)}
	if err := h.secure(); err != nil {
		return err
	}
	if err := h.header(); err != nil {
		return err
	}
	if err := h.start(); err != nil {
		return err
	}
	if err := h.tune(); err != nil {
		return err
	}
	if err := h.open(); err != nil {
		return err
	}
	if counted, ok := transport(c.socket).(interface{ LoggedIn() }); ok {
		counted.LoggedIn() // the listener's limit counts logged-in and other clients separately
	}
	return c.socket.SetDeadline(time.Time{})
}

func remoteAddr(socket net.Conn) netip.Addr {
	if a, err := netip.ParseAddrPort(socket.RemoteAddr().String()); err == nil {
		return a.Addr().Unmap()
	}
	return netip.Addr{}
}

// header reads the protocol header. Versions 0-9-1 and 0-9 are spoken.
func (h *handshake) header() error {
	got, err := h.reader.in.ReadProtocolHeader()
	switch {
	case errors.Is(err, io.EOF):
		return err // no byte was sent: a health check
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return err
	}
	switch string(got[:]) {
	case "AMQP\x00\x00\x09\x01", "AMQP\x01\x01\x00\x09":
		return nil
	}
	answer := "AMQP\x00\x00\x09\x01"
	if strings.HasPrefix(string(got[:]), "GET ") {
		answer = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" +
			"This is an AMQP port. The HTTP API listens on the management port, 15672 by default.\n"
	}
	h.server.unknown.log(h.conn, slog.LevelInfo, "unknown protocol header", slog.String("header", fmt.Sprintf("%q", got[:])))
	if _, err := io.WriteString(h.socket, answer); err != nil {
		return err
	}
	return errRefused
}

func (h *handshake) send(m wire.Method) error {
	_, err := h.socket.Write(wire.AppendMethod(nil, 0, m))
	return err
}

// expect reads the next method, which must have this id. state is the name of
// the connection's state.
func (h *handshake) expect(id uint32, state string) (wire.Method, error) {
	for {
		f, err := h.reader.in.ReadFrame()
		switch {
		case err != nil:
			return nil, err
		case f.Type == wire.FrameHeartbeat:
			continue
		case f.Channel != 0 || f.Type != wire.FrameMethod:
			return nil, wire.UnexpectedFrame(f)
		}
		switch got := wire.PeekID(f.Payload); got {
		case id:
			return wire.DecodeMethod(f.Payload)
		case wire.IDConnectionClose:
			if _, err := wire.DecodeMethod(f.Payload); err != nil {
				return nil, err
			}
			if err := h.send(&wire.ConnectionCloseOK{}); err != nil {
				return nil, err
			}
			return nil, errRefused
		default:
			return nil, errUnexpectedMethod(got, state)
		}
	}
}

// start announces the server and makes the client log in.
func (h *handshake) start() error {
	err := h.send(&wire.ConnectionStart{
		VersionMajor: 0, VersionMinor: 9,
		ServerProperties: h.server.properties(), Mechanisms: h.mechanisms(), Locales: locales,
	})
	if err != nil {
		return err
	}
	m, err := h.expect(wire.IDConnectionStartOK, "starting")
	if err != nil {
		return err
	}
	ok := m.(*wire.ConnectionStartOK)
	h.mechanism, h.clientProperties = ok.Mechanism, ok.ClientProperties
	h.readClientProperties(ok.ClientProperties)
	user, err := h.login(ok.Mechanism, ok.Response)
	if e, r := (*wire.Error)(nil), (*fsm.Refusal)(nil); errors.As(err, &e) || errors.As(err, &r) {
		return protocolError(err, wire.IDConnectionStartOK)
	}
	if err != nil {
		if h.capable.authenticationFailureClose {
			if err := h.send(closeMethod(errLoginRefused(ok.Mechanism))); err != nil {
				return err
			}
		}
		return errDropLater
	}
	h.user = user
	h.log = h.log.With(slog.String("user", user))
	return nil
}

// capabilities are what the client declares to support.
type capabilities struct {
	consumerCancelNotify       bool
	authenticationFailureClose bool
	connectionBlocked          bool
}

func (h *handshake) readClientProperties(t wire.Table) {
	if v, ok := t.Get("connection_name"); ok && v.Tag == wire.TagString {
		h.log = h.log.With(slog.String("name", v.Str))
	}
	v, _ := t.Get("capabilities")
	can := func(name string) bool {
		c, _ := v.Table.Get(name)
		return c.Tag == wire.TagBool && c.Int != 0
	}
	h.capable = capabilities{
		consumerCancelNotify:       can("consumer_cancel_notify"),
		authenticationFailureClose: can("authentication_failure_close"),
		connectionBlocked:          can("connection.blocked"),
	}
}

// login authenticates the client. A *wire.Error is for the client; any other
// error refuses the login.
func (h *handshake) login(mechanism, response string) (user string, err error) {
	if mechanism == external && h.certificate != nil && h.server.cfg.CertificateUser != nil {
		user = h.server.cfg.CertificateUser(h.certificate)
		return user, h.server.cfg.Broker.LoginCertified(h.ctx, user, h.remote)
	}
	user, password, err := credentials(mechanism, response)
	if err != nil {
		return "", err
	}
	return user, h.server.cfg.Broker.Login(h.ctx, user, password, h.remote)
}

// credentials reads the response of a SASL mechanism with a password.
func credentials(mechanism, response string) (user, password string, err error) {
	switch mechanism {
	case "PLAIN":
		parts := strings.Split(response, "\x00")
		if len(parts) != 3 || parts[0] != "" {
			return "", "", errInvalidResponse(mechanism)
		}
		return parts[1], parts[2], nil
	case "AMQPLAIN":
		t, err := wire.DecodeFields([]byte(response))
		if err != nil {
			return "", "", errInvalidResponse(mechanism)
		}
		login, ok := t.Get("LOGIN")
		secret, ok2 := t.Get("PASSWORD")
		if !ok || !ok2 || !isText(login) || !isText(secret) {
			return "", "", errMissingLogin()
		}
		return login.Str, secret.Str, nil
	}
	return "", "", errUnknownMechanism(mechanism)
}

func isText(v wire.Value) bool { return v.Tag == wire.TagString || v.Tag == wire.TagBytes }

// tune negotiates limits.
func (h *handshake) tune() error {
	cfg := &h.server.cfg
	err := h.send(&wire.ConnectionTune{
		ChannelMax: cfg.ChannelMax, FrameMax: cfg.FrameMax, Heartbeat: uint16(cfg.Heartbeat / time.Second),
	})
	if err != nil {
		return err
	}
	m, err := h.expect(wire.IDConnectionTuneOK, "tuning")
	if err != nil {
		return err
	}
	ok := m.(*wire.ConnectionTuneOK)
	const (
		tooLow  = "negotiated %s = %d is lower than the minimum allowed value (%d)"
		tooHigh = "negotiated %s = %d%s is higher than the maximum allowed value (%d)"
	)
	switch {
	case ok.FrameMax != 0 && ok.FrameMax < wire.FrameMinSize:
		return errTune(tooLow, "frame_max", ok.FrameMax, wire.FrameMinSize)
	case ok.FrameMax == 0 || ok.FrameMax > cfg.FrameMax:
		return errTune(tooHigh, "frame_max", ok.FrameMax, "", cfg.FrameMax)
	case ok.ChannelMax == 0:
		return errTune(tooHigh, "channel_max", 0, " (no limit)", cfg.ChannelMax)
	case ok.ChannelMax > cfg.ChannelMax:
		return errTune(tooHigh, "channel_max", ok.ChannelMax, "", cfg.ChannelMax)
	}
	h.frameMax, h.channelMax = ok.FrameMax, ok.ChannelMax
	h.heartbeat = time.Duration(ok.Heartbeat) * time.Second
	h.reader.in.SetMaxFrame(ok.FrameMax)
	return nil
}

// open opens a vhost. open-ok is the first item in the outbox.
func (h *handshake) open() error {
	m, err := h.expect(wire.IDConnectionOpen, "opening")
	if err != nil {
		return err
	}
	h.vhost = m.(*wire.ConnectionOpen).VirtualHost
	h.broker, err = h.server.cfg.Broker.Connect(h.ctx, h.user, h.vhost)
	if err != nil {
		if isInternal(err) {
			h.log.Error("connection.open failed", slog.Any("error", err))
		}
		return protocolError(err, wire.IDConnectionOpen)
	}
	h.log = h.log.With(slog.String("vhost", h.vhost))
	h.out.push(0, &wire.ConnectionOpenOK{})
	return nil
}

func closeMethod(e *wire.Error) *wire.ConnectionClose {
	return &wire.ConnectionClose{
		ReplyCode: e.Code, ReplyText: wire.ReplyText(e.Code, e.Text), FailedClass: e.ClassID, FailedMethod: e.MethodID,
	}
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

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

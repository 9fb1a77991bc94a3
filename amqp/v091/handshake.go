package v091

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

const (
	amqplain = "AMQPLAIN"
	locales  = "en_US"
)

// handshake is the part of a connection before connection.open-ok. It writes
// to the socket itself; there is no writer yet.
type handshake struct {
	*conn
	ctx context.Context
}

// Handshake implements amqp.Endpoint. A *wire.Error is sent to the client before
// its connection is dropped.
func (c *conn) Handshake(ctx context.Context) error {
	h := &handshake{conn: c, ctx: ctx}
	if err := h.start(); err != nil {
		return err
	}
	if err := h.tune(); err != nil {
		return err
	}
	return h.open()
}

func (h *handshake) send(m wire.Method) error {
	_, err := h.Socket.Write(wire.AppendMethod(nil, 0, m))
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
			return nil, amqp.ErrRefused
		default:
			return nil, errUnexpectedMethod(got, state)
		}
	}
}

// start announces the server and makes the client log in.
func (h *handshake) start() error {
	err := h.send(&wire.ConnectionStart{
		VersionMajor: 0, VersionMinor: 9,
		ServerProperties: serverProperties(h.Config()), Mechanisms: h.mechanisms(), Locales: locales,
	})
	if err != nil {
		return err
	}
	m, err := h.expect(wire.IDConnectionStartOK, "starting")
	if err != nil {
		return err
	}
	ok := m.(*wire.ConnectionStartOK)
	h.Mechanism, h.clientProperties = ok.Mechanism, ok.ClientProperties
	h.readClientProperties(ok.ClientProperties)
	err = h.login(ok.Mechanism, ok.Response)
	if e, r := (*wire.Error)(nil), (*fsm.Refusal)(nil); errors.As(err, &e) || errors.As(err, &r) {
		return protocolError(err, wire.IDConnectionStartOK)
	}
	if err != nil {
		if h.capable.authenticationFailureClose {
			if err := h.send(closeMethod(errLoginRefused(ok.Mechanism))); err != nil {
				return err
			}
		}
		return amqp.ErrDropLater
	}
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
		h.Log = h.Log.With(slog.String("name", v.Str))
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

// login authenticates the client. A *wire.Error or a *fsm.Refusal is for the
// client; any other error refuses the login.
func (h *handshake) login(mechanism, response string) error {
	if mechanism == amqp.External && h.IsCertified() {
		return h.LoginCertified(h.ctx)
	}
	if mechanism == amqp.Anonymous && h.TakesAnonymous() {
		return h.LoginAnonymous(h.ctx, response)
	}
	user, password, err := credentials(mechanism, response)
	if err != nil {
		return err
	}
	return h.Login(h.ctx, user, password)
}

// credentials reads the response of a SASL mechanism with a password.
func credentials(mechanism, response string) (user, password string, err error) {
	switch mechanism {
	case amqp.Plain:
		user, password, ok := amqp.PlainLogin(response)
		if !ok {
			return "", "", errInvalidResponse(mechanism)
		}
		return user, password, nil
	case amqplain:
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
	cfg, channelMax := h.Config(), h.protocol.ChannelMax
	err := h.send(&wire.ConnectionTune{
		ChannelMax: channelMax, FrameMax: cfg.FrameMax, Heartbeat: uint16(cfg.Heartbeat / time.Second),
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
		return errTune(tooHigh, "channel_max", 0, " (no limit)", channelMax)
	case ok.ChannelMax > channelMax:
		return errTune(tooHigh, "channel_max", ok.ChannelMax, "", channelMax)
	}
	h.frameMax, h.channelMax = ok.FrameMax, ok.ChannelMax
	h.setHeartbeat(time.Duration(ok.Heartbeat) * time.Second)
	h.reader.in.SetMaxFrame(ok.FrameMax)
	return nil
}

// open opens a vhost. open-ok is the first item in the outbox.
func (h *handshake) open() error {
	m, err := h.expect(wire.IDConnectionOpen, "opening")
	if err != nil {
		return err
	}
	if err := h.Connect(h.ctx, m.(*wire.ConnectionOpen).VirtualHost); err != nil {
		if isInternal(err) {
			h.Log.Error("connection.open failed", slog.Any("error", err))
		}
		return protocolError(err, wire.IDConnectionOpen)
	}
	h.out.push(0, &wire.ConnectionOpenOK{})
	return nil
}

func closeMethod(e *wire.Error) *wire.ConnectionClose {
	return &wire.ConnectionClose{
		ReplyCode: e.Code, ReplyText: wire.ReplyText(e.Code, e.Text), FailedClass: e.ClassID, FailedMethod: e.MethodID,
	}
}

// mechanisms lists the SASL mechanisms that are offered.
func (h *handshake) mechanisms() string {
	list := amqp.Plain + " " + amqplain
	if h.IsCertified() {
		list += " " + amqp.External
	}
	if h.TakesAnonymous() {
		list += " " + amqp.Anonymous
	}
	return list
}

package v10

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// peerVersion is the version of RabbitMQ whose features there are. Its clients of AMQP 1.0 read it.
const peerVersion = "4.3.0"

// Codes of a SASL outcome.
const (
	saslOK            = 0
	saslRefused       = 1
	saslTemporaryFail = 4
)

// stage is how far the handshake is, for what may be told when it fails.
type stage uint8

const (
	stageLogin stage = iota // errors cannot be told
	stageOpen               // the server's open is to come
)

// handshake is the part of a connection before the server's open. It writes
// to the socket itself; there is no writer yet.
type handshake struct {
	*conn
	ctx context.Context
}

// Handshake implements amqp.Endpoint. A *wire.Error is sent to the client before
// its connection is dropped, once it has logged in.
func (c *conn) Handshake(ctx context.Context) error {
	h := &handshake{conn: c, ctx: ctx}
	if err := h.login(); err != nil {
		return err
	}
	got, err := c.in.ReadProtocolHeader()
	if err != nil {
		return err
	}
	c.Source.FrameDone()
	if _, err := c.Socket.Write(openHeader[:]); err != nil {
		return err
	}
	if got != openHeader {
		return amqp.ErrRefused
	}
	c.stage = stageOpen
	c.in.Expect(wire.FrameAMQP, c.Config().InitialFrameMax)
	return h.open()
}

// Refuse implements amqp.Endpoint. No frame may come before open, so a refused open is answered with it.
func (c *conn) Refuse(err error) (told bool) {
	e := new(wire.Error)
	if c.stage != stageOpen || !errors.As(err, &e) {
		return false
	}
	if e.Condition == wire.ConditionUnauthorized {
		c.Refused("open", e.Description)
	}
	frames := wire.AppendFrame(nil, 0, c.openFrame())
	_, err = c.Socket.Write(wire.AppendFrame(frames, 0, &wire.Close{Error: c.side.Explain(e)}))
	return err == nil
}

// login makes the client log in.
func (h *handshake) login() error {
	frames := append([]byte(nil), saslHeader[:]...)
	frames = wire.AppendFrame(frames, 0, &wire.SASLMechanisms{SASLServerMechanisms: h.side.Mechanisms()})
	if _, err := h.Socket.Write(frames); err != nil {
		return err
	}
	f, err := h.in.ReadFrame()
	if err != nil {
		return err
	}
	h.Source.FrameDone()
	var start wire.SASLInit
	if _, err := wire.Decode(f.Body, &start); err != nil {
		return err
	}
	h.Mechanism = start.Mechanism
	code, err := h.authenticate(&start)
	if code == saslTemporaryFail {
		h.Log.Error("login failed", slog.Any("error", err))
	}
	if _, e := h.Socket.Write(wire.AppendFrame(nil, 0, &wire.SASLOutcome{Code: code})); e != nil {
		return e
	}
	return err
}

// authenticate logs the client in. code is the outcome that it is told; with an error the connection ends.
func (h *handshake) authenticate(start *wire.SASLInit) (code byte, err error) {
	err = h.side.Login(h.ctx, start)
	switch {
	case err == nil:
		return saslOK, nil
	case errors.Is(err, amqp.ErrRefused):
		return saslRefused, err
	case errors.As(err, new(*fsm.Refusal)):
		return saslTemporaryFail, amqp.ErrRefused
	}
	return saslRefused, amqp.ErrDropLater
}

// open opens a vhost. The server's open is the first item in the outbox.
func (h *handshake) open() error {
	var o wire.Open
	if err := h.readOpen(&o); err != nil {
		return err
	}
	h.takeTerms(&o)
	switch {
	case o.MaxFrameSize < wire.FrameMinSize:
		return wire.Errorf(wire.ConditionFrameSizeTooSmall, "max-frame-size %d is less than %d", o.MaxFrameSize, wire.FrameMinSize)
	case o.IdleTimeOut > 0 && o.IdleTimeOut < minIdleTimeOut:
		return wire.Errorf(wire.ConditionNotAllowed, "idle-time-out %d ms is less than %d ms", o.IdleTimeOut, minIdleTimeOut)
	}
	if err := h.side.Connect(h.ctx, &o); err != nil {
		return err
	}
	h.in.Expect(wire.FrameAMQP, h.Config().FrameMax)
	h.out.push(0, h.openFrame())
	return nil
}

// readOpen reads the first frame that is not empty.
func (h *handshake) readOpen(o *wire.Open) error {
	for {
		f, err := h.in.ReadFrame()
		if err != nil {
			return err
		}
		h.Source.FrameDone()
		if len(f.Body) == 0 {
			continue
		}
		code, err := wire.Peek(f.Body)
		if err != nil {
			return err
		}
		if code != wire.CodeOpen {
			return wire.Errorf(wire.ConditionIllegalState, "expected open")
		}
		_, err = wire.Decode(f.Body, o)
		return err
	}
}

// closeLinger is how long a client may take to leave after the answer to its close.
const closeLinger = 10 * time.Second

// minIdleTimeOut is the shortest time, in ms, within which a client may want to hear something.
const minIdleTimeOut = 1000

// takeTerms takes in what the client announces.
func (h *handshake) takeTerms(o *wire.Open) {
	h.containerID, h.properties = o.ContainerID, clientTable(o.Properties)
	h.maxFrame = min(o.MaxFrameSize, h.Config().FrameMax)
	h.channelMax = min(o.ChannelMax, uint16(h.protocol.SessionMax-1))
	h.Heartbeat, h.Linger = h.Config().Heartbeat, closeLinger
	// The writer notices at its next beat that it has written nothing since the last one.
	h.Beat = time.Duration(o.IdleTimeOut) * time.Millisecond / 4
	h.Log = h.Log.With(slog.String("container", o.ContainerID))
}

// openFrame is the server's open.
func (c *conn) openFrame() *wire.Open {
	cfg := c.Config()
	o := &wire.Open{
		ContainerID: cfg.Broker.ClusterName(), MaxFrameSize: cfg.FrameMax, ChannelMax: uint16(c.protocol.SessionMax - 1),
		IdleTimeOut: uint32(cfg.Heartbeat.Milliseconds() / 2), Properties: serverProperties(cfg, c.protocol.Node),
	}
	c.side.Announce(o)
	return o
}

// serverProperties returns the properties of the server's open.
func serverProperties(cfg *amqp.Config, node string) wire.MapBytes {
	all := map[string]string{
		"cluster_name": cfg.Broker.ClusterName(),
		"copyright":    "The quorate authors",
		"information":  "https://github.com/quorate/quorate",
		"platform":     "Go",
		"product":      "quorate",
		"version":      peerVersion + "+quorate." + cfg.Version,
	}
	if node != "" {
		all["node"] = node
	}
	maps.Copy(all, cfg.ServerProperties)
	b := wire.StartMap(nil)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b = wire.AppendString(wire.AppendSymbol(b, name), all[name])
	}
	return wire.EndMap(b, 0, len(all))
}

// clientTable returns the properties of the client's open that are texts, as the listing shows them.
func clientTable(m wire.MapBytes) *fsm.Table {
	var fields []*logpb.Field
	for w := m.Walk(); w.NextPair(); {
		if w.Value.Type == wire.String || w.Value.Type == wire.Symbol {
			fields = append(fields, textField(string(w.Key.Bytes()), string(w.Value.Bytes())))
		}
	}
	if fields == nil {
		return nil
	}
	return &fsm.Table{Fields: fields}
}

func textField(name, value string) *logpb.Field {
	return &logpb.Field{Name: name, Value: &logpb.Value{Tag: 'S', Str: []byte(value)}}
}

package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// service is the gRPC side of a mesh.
type service struct {
	peerpb.UnimplementedPeerServer
	m *Mesh
}

// inbound is the stream that a peer dialled: its requests and messages come
// in, the answers go out.
type inbound struct {
	m           *Mesh
	p           *peer
	incarnation [16]byte
	ctx         context.Context
	cancel      context.CancelCauseFunc
	stream      grpc.ServerStream
	out         *outbox
	beat        chan raft.RPCResponse // of the heartbeat being handled
	received    chan struct{}         // closed when nothing more is handled
	previous    chan struct{}         // received of the stream before; nil: none
}

// Link serves the stream of a peer that dialled.
func (s *service) Link(stream grpc.BidiStreamingServer[peerpb.Frame, peerpb.Frame]) error {
	in, err := s.acceptLink(stream)
	if errors.Is(err, errWithdrawn) {
		return statusWithdrawn
	}
	if err != nil {
		s.m.Complain(host(stream.Context()), "refused a link", err)
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	defer in.p.use.links.put()
	err = in.serve()
	if errors.Is(err, errWithdrawn) {
		return statusWithdrawn // before anything else: a log may lie on the disk that hangs
	}
	if misbehaved(err) {
		s.m.Complain(in.p.name, "closed the stream of a node that sent malformed data", err)
	} else if s.m.ctx.Err() == nil && s.m.complaints.first(in.p.name, "ended") {
		s.m.log.Info("stream from node ended", slog.String("node", in.p.name), slog.Any("cause", err))
	}
	return status.Error(codes.Unavailable, "link closed")
}

// acceptLink exchanges hellos.
func (s *service) acceptLink(stream grpc.ServerStream) (*inbound, error) {
	m := s.m
	first, err := m.limits.first(stream, m.done.Go)
	if err != nil {
		return nil, err
	}
	h, err := m.cfg.checkHello(first)
	if err != nil {
		return nil, err
	}
	if err := proofOf(stream.Context()).is(h.Node); err != nil {
		return nil, err
	}
	if err := m.cfg.admits(h); err != nil {
		return nil, err
	}
	p := m.peer(h.Node)
	if p == nil {
		return nil, fmt.Errorf("%w: %q", ErrUnknownNode, h.Node)
	}
	if m.withdrawal.active.Load() {
		return nil, errWithdrawn
	}
	in := &inbound{
		m: m, p: p, stream: stream, out: newOutbox(m.cfg.LazyDelay),
		beat:     make(chan raft.RPCResponse, 1),
		received: make(chan struct{}),
	}
	copy(in.incarnation[:], h.Incarnation)
	in.ctx, in.cancel = context.WithCancelCause(stream.Context())
	if !p.use.links.take(linksPerPeer) {
		return nil, fmt.Errorf("%w: links of node %q", errCrowded, p.name)
	}
	if err := in.begin(); err != nil {
		p.use.links.put()
		return nil, err
	}
	return in, nil
}

// begin makes the stream the peer's, and says hello.
func (in *inbound) begin() error {
	hello, err := in.m.cfg.hello()
	if err != nil {
		return err
	}
	if err := in.p.accept(in); err != nil {
		return err
	}
	if in.m.withdrawal.active.Load() { // meanwhile
		err = errWithdrawn
	} else {
		err = in.stream.SendMsg(hello)
	}
	if err != nil {
		in.p.left(in)
		close(in.received)
	}
	return err
}

// serve runs until the stream breaks or is cancelled. gRPC ends the stream, and
// with it the receiving goroutine, when this function has returned. So that a
// peer's messages stay in order, nothing is received before the stream that
// this one replaces has been.
func (in *inbound) serve() error {
	defer in.out.close()
	defer in.p.left(in)
	defer context.AfterFunc(in.m.ctx, func() { in.cancel(ErrClosed) })()
	in.m.done.Go(func() {
		in.cancel(in.out.run(in.ctx.Done(), func(b *batch) error { return in.p.send(in.stream, b) }))
	})
	in.m.done.Go(func() {
		defer close(in.received)
		if in.previous != nil {
			<-in.previous
		}
		in.cancel(in.receive())
	})
	<-in.ctx.Done()
	return context.Cause(in.ctx)
}

func (in *inbound) receive() error {
	a := assembler{limits: &in.m.limits}
	defer a.end()
	msg := inMessage{assembler: &a}
	for {
		if err := in.stream.RecvMsg(&msg); err != nil {
			return err
		}
		if in.ctx.Err() != nil {
			return context.Cause(in.ctx)
		}
		if err := a.message(&msg, in.handle); err != nil {
			return err
		}
	}
}

// handle takes one frame. It must not block.
func (in *inbound) handle(f frame) error {
	switch {
	case f.kind >= FirstKind:
		return in.handleMessage(f)
	case f.kind == kindPing:
		return in.pong(f)
	case f.kind == kindCall:
		in.handleCall(f)
		return nil
	}
	cmd, idle, err := decodeCommand(f.kind, f.body, in.p.nameBytes)
	if err != nil {
		return err
	}
	if err := vetCommand(cmd); err != nil {
		return err
	}
	r := request{in: in, number: f.number, cmd: cmd, size: len(f.body), urgency: urgency(!idle)}
	in.m.groups.deliver(fsm.GroupID(f.arg), r)
	return nil
}

// pong answers a ping. Pings cost those who send them nothing, so whoever does
// not take the answers is not asked to.
func (in *inbound) pong(f frame) error {
	if len(f.body) > maxPing {
		return fmt.Errorf("%w: a ping of %d bytes", errTooMuch, len(f.body))
	}
	if in.out.backlogOf(classOwn) > maxOwnAnswers {
		return fmt.Errorf("%w: pings whose answers are not read", errTooMuch)
	}
	var b body = noBody{}
	if wall := in.m.cfg.WallClock; wall != nil {
		b = clockBody(wall())
	}
	_ = in.out.push(header{kind: kindPong, number: f.number}, b, classOwn, urgent)
	return nil
}

func (in *inbound) handleMessage(f frame) error {
	head, payload, err := f.message()
	if err != nil {
		return err
	}
	if limit := in.m.handlers.bounds[f.kind]; !limit.holds(head, payload) {
		return fmt.Errorf("%w: %d and %d bytes of kind %d", errTooMuch, len(head), len(payload), f.kind)
	}
	if h := in.m.handlers.messages[f.kind].Load(); h != nil {
		in.pass(h, head, payload)
	} else {
		in.m.log.Debug("message without handler", slog.Int("kind", int(f.kind)))
	}
	return nil
}

// pass gives a message to its handler.
func (in *inbound) pass(h *MessageHandler, head, payload []byte) {
	defer in.m.contain("handle a message", in.p.name)
	(*h)(in.p.name, head, payload)
}

// errPanic answers a call whose handler has panicked.
var errPanic = errors.New("peer: the handler has panicked")

// answer has a call answered.
func (in *inbound) answer(h *CallHandler, req []byte) (reply []byte, err error) {
	err = errPanic
	defer in.m.contain("answer a call", in.p.name)
	return (*h)(in.ctx, in.p.name, req)
}

func (in *inbound) handleCall(f frame) {
	var h *CallHandler
	if f.arg < uint32(len(in.m.handlers.calls)) {
		h = in.m.handlers.calls[f.arg].Load()
	}
	switch {
	case h == nil:
		in.respond(f.number, nil, ErrNoHandler, urgent)
		return
	case !in.m.handlers.bounds[f.arg].holds(f.body, nil):
		in.m.Complain(in.p.name, "refused a call", errTooMuch)
		in.respond(f.number, nil, errTooMuch, urgent)
		return
	case !in.p.use.calls.take(len(f.body)):
		in.respond(f.number, nil, ErrBusy, urgent)
		return
	}
	in.m.done.Go(func() {
		defer in.p.use.calls.put(len(f.body))
		reply, err := in.answer(h, f.body)
		in.respond(f.number, rawBody(reply), err, urgent)
	})
}

// respond answers a request; every answer on a link passes through here.
// response is a rawBody or an answer of raft; with an err it is ignored.
func (in *inbound) respond(number uint64, response any, err error, u urgency) {
	h, c := header{kind: kindReply, number: number}, classRaft
	var b body
	if raw, ok := response.(rawBody); ok {
		b, c = raw, classApp
	} else if n, _ := answerBody(response); n != nil {
		b = n
		if n.flags&answerGranted == 0 {
			u = urgent
		}
	} else if err == nil {
		err = fmt.Errorf("peer: no answer of type %T", response)
	}
	if err == nil {
		if err = in.out.push(h, b, c, u); err == nil {
			return
		}
	}
	h.kind, h.arg = kindFailure, failureCode(err)
	err = in.out.push(h, textBody(err.Error()), classRaft, urgent)
	if errors.Is(err, ErrBacklog) {
		in.cancel(err) // it asks and does not take the answers
	}
}

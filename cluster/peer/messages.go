package peer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Kind says what a message is about. Kinds below FirstKind are the mesh's own.
type Kind uint8

// FirstKind is the smallest kind that Handle, Send, HandleCall and Call accept.
const FirstKind Kind = 16

// MessageHandler takes one message. Handlers run on the goroutine that receives
// from the sender, one at a time and in the order sent; they must not block.
// head and payload are the handler's, but share memory with what came in the
// same gRPC message: copy a small part that is to live long.
type MessageHandler func(from string, head, payload []byte)

// CallHandler answers a call. It runs on a goroutine of its own and may block;
// ctx ends when the caller's link does.
type CallHandler func(ctx context.Context, from string, req []byte) ([]byte, error)

// handlers are what this node does about messages and calls, by their kinds.
type handlers struct {
	messages [256]atomic.Pointer[MessageHandler] // nil: messages are dropped
	calls    [256]atomic.Pointer[CallHandler]    // nil: calls are refused
	bounds   [256]Bounds                         // fixed from Start on
}

func (h *handlers) init() {
	for k := range h.bounds {
		h.bounds[k] = defaultBounds
	}
}

// Bounds of messages of a kind, in bytes. For calls, Head is that of the request.
type Bounds struct{ Head, Payload int }

// defaultBounds are those of kinds that nothing else is said of.
var defaultBounds = Bounds{Head: 1 << 20, Payload: MaxMessage}

func (b Bounds) holds(head, payload []byte) bool {
	return len(head) <= b.Head && len(payload) <= b.Payload
}

// Bound sets the bounds of a kind of messages or calls. It is called before
// Start.
func (m *Mesh) Bound(k Kind, b Bounds) {
	mustApplicationKind(k)
	m.handlers.bounds[k] = b
}

// Handle sets the handler of a message kind. Messages without one are dropped.
func (m *Mesh) Handle(k Kind, h func(from string, head []byte, payload []byte)) {
	mustApplicationKind(k)
	mh := MessageHandler(h)
	m.handlers.messages[k].Store(&mh)
}

// HandleCall sets the handler of a call kind. Calls without one are refused.
func (m *Mesh) HandleCall(k Kind, h func(ctx context.Context, from string, req []byte) ([]byte, error)) {
	mustApplicationKind(k)
	ch := CallHandler(h)
	m.handlers.calls[k].Store(&ch)
}

func mustApplicationKind(k Kind) {
	if k < FirstKind {
		panic(fmt.Sprintf("peer: kind %d is reserved", k))
	}
}

// Send queues a message for node and returns. Messages to a node keep their
// order. head is copied; payloads may be kept by reference until they are sent
// and must never change. An error (ErrDown, ErrBacklog, ErrTooLarge,
// ErrUnknownNode) means that the message will not be sent; nil promises
// nothing. The own node is an unknown one.
func (m *Mesh) Send(node string, k Kind, head []byte, payloads ...[]byte) error {
	mustApplicationKind(k)
	l, err := m.link(node)
	if err != nil {
		return err
	}
	return l.out.pushMessage(k, head, payloads)
}

// SendWait is Send for who can wait: while too much is waiting for the link
// (ErrBacklog), it waits with it.
func (m *Mesh) SendWait(node string, k Kind, head []byte, payloads ...[]byte) error {
	mustApplicationKind(k)
	for {
		l, err := m.link(node)
		if err != nil {
			return err
		}
		if err = l.out.pushMessage(k, head, payloads); !errors.Is(err, ErrBacklog) {
			return err
		}
		if freed := l.out.waitFreed(classApp); freed != nil {
			<-freed // closed with the link at the latest
		}
	}
}

// ReadsStored reports whether a node's program reads payloads of deliveries from its own log, when
// they are named and not sent.
func (m *Mesh) ReadsStored(node string) bool {
	l, err := m.link(node)
	return err == nil && l.readsStored
}

func (m *Mesh) link(node string) (*link, error) {
	p := m.peer(node)
	if p == nil {
		return nil, ErrUnknownNode
	}
	if l := p.link.Load(); l != nil {
		return l, nil
	}
	return nil, ErrDown
}

// Call sends a request and waits for the answer of node's call handler, for
// the end of ctx, or for the link to break. req may be kept by reference, even
// after Call has returned: it must never change; so must a handler's reply.
// A *RemoteError is the handler's own error; after any other one except ErrDown, ErrBacklog, ErrTooLarge and
// ErrUnknownNode the handler may have run.
func (m *Mesh) Call(ctx context.Context, node string, k Kind, req []byte) ([]byte, error) {
	mustApplicationKind(k)
	l, err := m.link(node)
	if err != nil {
		return nil, err
	}
	f, err := l.exchange(ctx.Done(), header{kind: kindCall, arg: uint32(k)}, rawBody(req), classApp, urgent)
	if err == errAbandoned {
		return nil, ctx.Err()
	}
	return f.body, err
}

// maxFields bounds the fields of a message: an empty one of a list takes two
// bytes, and hundreds when it is decoded.
const maxFields = 1 << 18

// CheckFields says why a message from another node is not to be decoded; nil: it may.
func CheckFields(p []byte) error {
	for n := 0; len(p) > 0; n++ {
		_, _, size := protowire.ConsumeField(p)
		if size < 0 {
			return fmt.Errorf("%w: %w", errProtocol, protowire.ParseError(size))
		}
		if n >= maxFields {
			return fmt.Errorf("%w: more than %d fields", errTooMuch, maxFields)
		}
		p = p[size:]
	}
	return nil
}

// message is a pointer to a protobuf message T.
type message[T any] interface {
	*T
	proto.Message
}

// Ask calls another node with a message and reads the message it answers.
func Ask[R any, P message[R]](ctx context.Context, m *Mesh, node string, k Kind, req proto.Message) (P, error) {
	encoded, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	answer, err := m.Call(ctx, node, k, encoded)
	if err != nil {
		return nil, err
	}
	r := P(new(R))
	err = CheckFields(answer)
	if errors.Is(err, errTooMuch) {
		return nil, err // there may be as much
	}
	if err == nil {
		err = proto.Unmarshal(answer, r)
	}
	if err != nil {
		m.distrust(node, err)
	}
	return r, err
}

// HandleAsk sets the function that answers a kind of Ask.
func HandleAsk[Q any, P message[Q], R proto.Message](m *Mesh, k Kind, answer func(req P) R) {
	m.HandleCall(k, func(_ context.Context, _ string, req []byte) ([]byte, error) {
		q := P(new(Q))
		err := CheckFields(req)
		if err == nil {
			err = proto.Unmarshal(req, q)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errProtocol, err)
		}
		return proto.Marshal(answer(q))
	})
}

var (
	// ErrDown is returned when there is no link to the node.
	ErrDown = errors.New("peer: no link to the node")
	// ErrBroken is returned when the link broke before the answer came.
	ErrBroken = errors.New("peer: link broke")
	// ErrBacklog is returned when too much waits to be sent to the node.
	ErrBacklog = errors.New("peer: backlog of the link is full")
	// ErrTooLarge is returned for a message above MaxMessage.
	ErrTooLarge = errors.New("peer: message too large")
	// ErrUnknownNode is returned for a node that is not a peer.
	ErrUnknownNode = errors.New("peer: unknown node")
	// ErrTimeout is returned when a raft request was not answered in time.
	ErrTimeout = errors.New("peer: no answer in time")
	// ErrClosed is returned once the mesh or the group's transport is closed.
	ErrClosed = errors.New("peer: closed")

	// ErrUnknownGroup: the node has no such raft group (in a RemoteError).
	ErrUnknownGroup = errors.New("unknown group")
	// ErrBusy: the node or group has too many requests waiting (in a
	// RemoteError).
	ErrBusy = errors.New("too many requests waiting")
	// ErrLearner: the group's member on that node must not lead (in a
	// RemoteError).
	ErrLearner = errors.New("the member must neither vote nor lead")
	// ErrSuperseded: the node has a newer snapshot of the group than the one that
	// it was to install (in a RemoteError).
	ErrSuperseded = errors.New("a newer snapshot is there already")
	// ErrNoHandler: the node knows no such kind of call (in a RemoteError).
	ErrNoHandler = errors.New("no handler for this kind of call")

	// errStranger: the other side is of another version or cluster.
	errStranger = errors.New("peer: not of this cluster")
	// errAbandoned: the waiting side gave up.
	errAbandoned = errors.New("peer: abandoned")
	// errUnproven: the other side says that it is a node that it has not proved
	// to be.
	errUnproven = errors.New("peer: the node has not proved its name")
	// errHandshake: a connection has not proved to be a node's.
	errHandshake = errors.New("peer: handshake failed")
	// errCrowd: too many connections have not proved anything yet.
	errCrowd = errors.New("peer: too many connections that have not proved to be nodes")
	// errInvitation: a token must not be shown to the node that answers.
	errInvitation = errors.New("peer: token withheld")
	// errProtocol: the other side sent something that cannot be.
	errProtocol = errors.New("peer: protocol violation")
)

// misbehaved reports whether a stream ended because of what came over it.
func misbehaved(err error) bool {
	for _, wrong := range []error{errProtocol, errShort, errTooMuch, errCrowded, ErrBacklog} {
		if errors.Is(err, wrong) {
			return true
		}
	}
	return false
}

// RemoteError is a refusal that came from another node.
type RemoteError struct {
	Node string
	Text string
	code uint32
}

func (e *RemoteError) Error() string { return fmt.Sprintf("peer: node %s: %s", e.Node, e.Text) }

// Unwrap returns ErrUnknownGroup, ErrBusy, ErrNoHandler or ErrSuperseded, or nil
// if the error is the handler's or raft's own.
func (e *RemoteError) Unwrap() error {
	if e.code > 0 && int(e.code) < len(failureCodes) {
		return failureCodes[e.code]
	}
	return nil
}

// failureCodes are the refusals with a number of their own on the wire.
var failureCodes = [...]error{nil, ErrUnknownGroup, ErrBusy, ErrNoHandler, ErrSuperseded}

func failureCode(err error) uint32 {
	for i, e := range failureCodes {
		if i > 0 && errors.Is(err, e) {
			return uint32(i)
		}
	}
	return 0
}

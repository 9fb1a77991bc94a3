package broker

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
)

// Direct reply-to: a channel that consumes from fsm.ReplyQueue gets what is
// published to the default exchange under the channel's own name, from
// session to session, without a queue in between. A reply is delivered at most
// once, and not at all if the channel is gone or does not read.

// maxReplies bounds the weight of what a channel has been given and has not
// written, replies included. A reply above it is dropped.
const maxReplies = 4 * maxUnwritten

// requester names a channel that waits for replies. The token is known to those
// only who got it in a request.
type requester struct {
	session fsm.SessionID
	token   [requesterToken]byte
}

const (
	requesterToken = 12
	requesterSize  = 4 + 8 + 8 + requesterToken
)

// suffix encodes r for a name.
func (r *requester) suffix() string {
	raw := make([]byte, 0, requesterSize)
	raw = binary.BigEndian.AppendUint32(raw, uint32(r.session.Node))
	raw = binary.BigEndian.AppendUint64(raw, r.session.Boot)
	raw = binary.BigEndian.AppendUint64(raw, r.session.Num)
	return base64.RawURLEncoding.EncodeToString(append(raw, r.token[:]...))
}

// parseRequester is the inverse of suffix.
func parseRequester(suffix string) (r requester, ok bool) {
	raw, err := base64.RawURLEncoding.DecodeString(suffix)
	if err != nil || len(raw) != requesterSize {
		return r, false
	}
	r.session.Node = fsm.NodeID(binary.BigEndian.Uint32(raw))
	r.session.Boot = binary.BigEndian.Uint64(raw[4:])
	r.session.Num = binary.BigEndian.Uint64(raw[12:])
	copy(r.token[:], raw[20:])
	return r, true
}

// replies is what a session knows of the replies to it. Session.mu guards it.
type replies struct {
	consumer uint64 // number; 0: it takes none
	name     string // empty: nobody has asked for it
	token    [requesterToken]byte
}

// ReplyName is the routing key of replies to this session.
func (s *Session) ReplyName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replyName()
}

// replyName is ReplyName with the lock held.
func (s *Session) replyName() string {
	if s.replies.name == "" {
		if _, err := rand.Read(s.replies.token[:]); err != nil {
			panic(err) // the random source of the system does not fail
		}
		r := requester{s.id, s.replies.token}
		s.replies.name = fsm.ReplyName(r.suffix())
	}
	return s.replies.name
}

// consumeReplies makes a consumer the one that gets replies.
func (s *Session) consumeReplies(spec *fsm.ConsumeSpec) error {
	if !spec.NoAck {
		return fsm.Refuse(fsm.Precondition, "reply consumer cannot acknowledge")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.replies.consumer != 0 {
		return fsm.Refuse(fsm.Precondition, "reply consumer already set")
	}
	s.replyName() // without one everybody could guess it
	s.replies.consumer = spec.Number
	return nil
}

// errNoReplies refuses a request whose channel does not consume replies.
var errNoReplies = fsm.Refuse(fsm.Precondition, "fast reply consumer does not exist")

// publishReply sends a reply and reports whether nothing is left to do for it:
// its other routing keys may lead to queues.
func (s *Session) publishReply(p *fsm.Publish, suffix string) (done bool) {
	if p.RequesterGone || !s.broker().reply(suffix, p.Payload) || len(s.route) > 0 {
		return false
	}
	s.lock()
	defer s.unlock()
	s.confirmedEvent(p.Number, true)
	return true
}

// cancelReplies ends a consumer of replies, if it is one.
func (s *Session) cancelReplies(number uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if number == 0 || s.replies.consumer != number {
		return false
	}
	s.replies.consumer = 0
	return true
}

// takesReplies reports whether a request may ask for replies to this session.
func (s *Session) takesReplies() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replies.consumer != 0
}

// requester finds a session of this node that takes replies; nil: it is gone.
func (b *Broker) requester(r *requester) *Session {
	if !b.isSelf(r.session.Node) || r.session.Boot != b.boot.Load() {
		return nil
	}
	s := b.session(r.session.Num)
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.replies.consumer == 0 || s.replies.token != r.token || s.closing {
		return nil
	}
	return s
}

// reply sends a message to the channel that its routing key names. It answers
// false if that is known to be gone.
func (b *Broker) reply(suffix string, payload fsm.Payload) bool {
	r, ok := parseRequester(suffix)
	if !ok {
		return false
	}
	if b.isSelf(r.session.Node) {
		s := b.requester(&r)
		if s != nil {
			s.deliverReply(payload)
		}
		return s != nil
	}
	node := b.requesterNode(&r)
	return node != "" && b.mesh.Send(node, kindReply, nil, payload) == nil
}

// requesterNode names the node of a session that may take replies; empty: it
// is gone, or cannot be reached.
func (b *Broker) requesterNode(r *requester) string {
	n, ok := b.view().Node(r.session.Node)
	if !ok || n.Boot != r.session.Boot || !b.mesh.Alive(n.Name) {
		return ""
	}
	return n.Name
}

// deliverReply gives the channel a reply, or drops it if the channel has too
// much to write already.
func (s *Session) deliverReply(payload fsm.Payload) {
	s.lock()
	defer s.unlock()
	if s.replies.consumer == 0 {
		return
	}
	if s.unwritten.Load() >= maxReplies {
		s.broker().slog.Debug("reply dropped: its channel does not read", "session", s.id.Num)
		return
	}
	s.unwritten.Add(int64(len(payload)) + group.DeliveryWeight)
	s.events = append(s.events, event{kind: eventDeliver, messages: []fsm.Message{{
		Consumer: s.replies.consumer, Payload: payload,
	}}})
}

// onReply takes a reply for a channel of this node.
func (b *Broker) onReply(_ string, _, payload []byte) {
	p := fsm.Payload(payload)
	if !p.Valid() {
		return
	}
	suffix, _ := fsm.ReplySuffix(string(p.RoutingKey()))
	if r, ok := parseRequester(suffix); ok {
		if s := b.requester(&r); s != nil {
			s.deliverReply(p)
		}
	}
}

// declareReplies answers a declare of a name under which channels get replies:
// whether the channel lives.
func (s *Session) declareReplies(ctx context.Context, name string) (fsm.QueueInfo, error) {
	info := fsm.QueueInfo{Name: name, Consumers: 1}
	suffix, ok := fsm.ReplySuffix(name)
	s.broker().freshView(ctx) // which knows the nodes
	if !ok || s.broker().hasRequester(ctx, suffix) {
		return info, nil
	}
	return fsm.QueueInfo{}, fsm.Refuse(fsm.NotFoundKind, fmt.Sprintf("no queue '%s' in vhost '%s'", name, s.conn.vhost))
}

// hasRequester reports whether a channel takes replies, wherever it is.
func (b *Broker) hasRequester(ctx context.Context, suffix string) bool {
	r, ok := parseRequester(suffix)
	if !ok {
		return false
	}
	if b.isSelf(r.session.Node) {
		return b.requester(&r) != nil
	}
	node := b.requesterNode(&r)
	if node == "" {
		return false
	}
	answer, err := b.mesh.Call(ctx, node, kindRequester, []byte(suffix))
	return err == nil && len(answer) == 1
}

// onRequester answers whether a channel of this node takes replies: with one
// octet if so.
func (b *Broker) onRequester(_ context.Context, _ string, req []byte) ([]byte, error) {
	if r, ok := parseRequester(string(req)); ok && b.requester(&r) != nil {
		return []byte{1}, nil
	}
	return nil, nil
}

package session

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/fsm"
)

// Direct reply-to: a channel that consumes from fsm.ReplyQueue receives what is published to the
// default exchange under the channel's own name. Replies go from session to session, without a
// queue. A reply is delivered at most once, and not at all if the channel is gone or does not read.
// A channel has one such consumer, and any number in credit mode, each with a name of its own.

// maxReplies bounds the weight of what a channel has been given and has not written, replies
// included. A reply above it is dropped.
const maxReplies = 4 * maxUnwritten

// requester names a channel that waits for replies, or one of its consumers. Only those who got the token in a
// request know it.
type requester struct {
	session fsm.SessionID
	token   replyToken
}

type replyToken [requesterToken]byte

// newToken returns a token that nobody can guess.
func newToken() (t replyToken) {
	if _, err := rand.Read(t[:]); err != nil {
		panic(err) // the random source of the system does not fail
	}
	return t
}

const (
	requesterToken = 12
	requesterSize  = 4 + 8 + 8 + requesterToken
)

// suffix encodes r as part of a name.
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

// replies handles the replies to the requests of a session.
type replies struct {
	session *Session

	// Guarded by the session's lock.
	consumer uint64 // number; 0: it takes no replies
	name     string // empty: not requested yet
	token    replyToken
	flowing  map[uint64]replyToken // of the consumers in credit mode, by number
}

// ReplyName is the routing key of replies to this session.
func (x *replies) ReplyName() string {
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	return x.replyName()
}

// replyName is ReplyName with the lock held.
func (x *replies) replyName() string {
	if x.name == "" {
		x.token = newToken()
		r := requester{x.session.id, x.token}
		x.name = fsm.ReplyName(r.suffix())
	}
	return x.name
}

// ReplyNameOf is the routing key of replies to a consumer in credit mode; empty: there is none.
func (x *replies) ReplyNameOf(consumer uint64) string {
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	token, ok := x.flowing[consumer]
	if !ok {
		return ""
	}
	r := requester{x.session.id, token}
	return fsm.ReplyName(r.suffix())
}

// of returns the consumer that a token names; 0: there is none. The session's lock is held.
func (x *replies) of(token replyToken) uint64 {
	if x.token == token {
		return x.consumer
	}
	for number, t := range x.flowing {
		if t == token {
			return number
		}
	}
	return 0
}

// consume makes a consumer the one that receives replies.
func (x *replies) consume(spec *fsm.ConsumeSpec) error {
	if !spec.NoAck {
		return fsm.Refuse(fsm.Precondition, "reply consumer cannot acknowledge")
	}
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	if spec.Credit {
		if x.flowing == nil {
			x.flowing = map[uint64]replyToken{}
		}
		x.flowing[spec.Number] = newToken()
		return nil
	}
	if x.consumer != 0 {
		return fsm.Refuse(fsm.Precondition, "reply consumer already set")
	}
	x.replyName() // without a name everybody could guess it
	x.consumer = spec.Number
	return nil
}

// errNoReplies is the error for a request whose channel does not consume replies.
var errNoReplies = fsm.Refuse(fsm.Precondition, "fast reply consumer does not exist")

// cancel ends a consumer of replies, if it is one.
func (x *replies) cancel(number uint64) bool {
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	if _, ok := x.flowing[number]; ok {
		delete(x.flowing, number)
		return true
	}
	if number == 0 || x.consumer != number {
		return false
	}
	x.consumer = 0
	return true
}

// takes reports whether a request may ask for replies to this session.
func (x *replies) takes() bool {
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	return x.consumer != 0
}

// deliver passes a reply to the consumer that a token names, or drops it if the channel already has too much to write.
func (x *replies) deliver(token replyToken, payload fsm.Payload) {
	x.session.lock()
	defer x.session.unlock()
	consumer := x.of(token)
	if consumer == 0 {
		return
	}
	if x.session.window.unwritten.Load() >= maxReplies {
		x.session.conn.in.replies.Logger.Debug("reply dropped: the client does not read", "session", x.session.id.Num)
		return
	}
	x.session.window.unwritten.Add(int64(len(payload)) + group.DeliveryWeight)
	x.session.add(event{kind: eventDeliver, messages: []fsm.Message{{
		Consumer: consumer, Payload: payload,
	}}})
}

// declare answers a declare of a reply name: it succeeds if the channel is alive.
func (x *replies) declare(ctx context.Context, name string) (fsm.QueueInfo, error) {
	info := fsm.QueueInfo{Name: name, Consumers: 1}
	suffix, ok := fsm.ReplySuffix(name)
	x.session.conn.in.replies.FreshView(ctx) // so that the nodes are known
	if !ok || x.session.conn.in.replies.has(ctx, suffix) {
		return info, nil
	}
	return fsm.QueueInfo{}, fsm.Refuse(fsm.NotFoundKind, fmt.Sprintf("no queue '%s' in vhost '%s'", name, x.session.conn.vhost))
}

// replyRouter routes replies to the channels that wait for them, at any node.
type replyRouter struct {
	*self.Node
	clients *Sessions
}

// listen registers the handlers.
func (x *replyRouter) listen() {
	x.Mesh.Handle(self.KindReply, x.onReply)
	x.Mesh.HandleCall(self.KindRequester, x.onRequester)
}

// requester finds a session of this node that takes replies; nil: it is gone.
func (x *replyRouter) requester(r *requester) *Session {
	if !x.Is(r.session.Node) || r.session.Boot != x.Boot.Load() {
		return nil
	}
	s := x.clients.session(r.session.Num)
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.replies.of(r.token) == 0 || s.closing {
		return nil
	}
	return s
}

// send sends a message to the channel named by its routing key. It returns false if the channel is
// known to be gone.
func (x *replyRouter) send(suffix string, payload fsm.Payload) bool {
	r, ok := parseRequester(suffix)
	if !ok {
		return false
	}
	if x.Is(r.session.Node) {
		s := x.requester(&r)
		if s != nil {
			s.replies.deliver(r.token, payload)
		}
		return s != nil
	}
	node := x.requesterNode(&r)
	return node != "" && x.Mesh.Send(node, self.KindReply, nil, payload) == nil
}

// requesterNode returns the node of a session that may take replies; empty: it is gone or cannot be
// reached.
func (x *replyRouter) requesterNode(r *requester) string {
	n, ok := x.View().Node(r.session.Node)
	if !ok || n.Boot != r.session.Boot || !x.Mesh.Alive(n.Name) {
		return ""
	}
	return n.Name
}

// onReply handles a reply for a channel of this node.
func (x *replyRouter) onReply(_ string, _, payload []byte) {
	p := fsm.Payload(payload)
	if !p.Valid() {
		return
	}
	suffix, _ := fsm.ReplySuffix(string(p.RoutingKey()))
	if r, ok := parseRequester(suffix); ok {
		if s := x.requester(&r); s != nil {
			s.replies.deliver(r.token, p)
		}
	}
}

// has reports whether a channel takes replies, at any node.
func (x *replyRouter) has(ctx context.Context, suffix string) bool {
	r, ok := parseRequester(suffix)
	if !ok {
		return false
	}
	if x.Is(r.session.Node) {
		return x.requester(&r) != nil
	}
	node := x.requesterNode(&r)
	if node == "" {
		return false
	}
	answer, err := x.Mesh.Call(ctx, node, self.KindRequester, []byte(suffix))
	return err == nil && len(answer) == 1
}

// onRequester answers whether a channel of this node takes replies: with one octet if so.
func (x *replyRouter) onRequester(_ context.Context, _ string, req []byte) ([]byte, error) {
	if r, ok := parseRequester(string(req)); ok && x.requester(&r) != nil {
		return []byte{1}, nil
	}
	return nil, nil
}

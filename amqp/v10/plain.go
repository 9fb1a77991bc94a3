package v10

import (
	"context"
	"encoding/binary"
	"log/slog"
	"strings"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// plain is the dialect of clients of this broker: addresses name exchanges and queues, and users log in.
type plain struct{}

// plainSide is its side of a connection.
type plainSide struct {
	*conn
	vhost string // of clients that name none
}

// Open implements Dialect.
func (plain) Open(c *Client) Side { return plainSide{c.conn, c.conn.protocol.DefaultVHost} }

// Mechanisms implements Side.
func (p plainSide) Mechanisms() []string {
	list := []string{amqp.Plain}
	if p.IsCertified() {
		list = append(list, amqp.External)
	}
	if p.TakesAnonymous() {
		list = append(list, amqp.Anonymous)
	}
	return list
}

// Login implements Side.
func (p plainSide) Login(ctx context.Context, start *wire.SASLInit) error {
	switch mechanism, response := start.Mechanism, string(start.InitialResponse); {
	case mechanism == amqp.External && p.IsCertified():
		return p.LoginCertified(ctx)
	case mechanism == amqp.Anonymous && p.TakesAnonymous():
		return p.LoginAnonymous(ctx, response)
	case mechanism == amqp.Plain:
		if user, password, ok := amqp.PlainLogin(response); ok {
			return p.Conn.Login(ctx, user, password)
		}
	}
	return amqp.ErrRefused
}

// Connect implements Side.
func (p plainSide) Connect(ctx context.Context, o *wire.Open) error {
	vhost, ok := strings.CutPrefix(o.Hostname, "vhost:")
	if !ok {
		vhost = p.vhost
	}
	if err := p.Conn.Connect(ctx, vhost); err != nil {
		if isInternal(err) {
			p.Log.Error("open failed", slog.Any("error", err))
		}
		return openError(err, p.User, vhost)
	}
	return nil
}

// capabilities are offered to clients: those that they know from other servers, and the broker's own by their names in
// 0-9-1.
var capabilities = []string{
	"LINK_PAIR_V1_0", "ANONYMOUS-RELAY", "quorate_commands", "message_lock_renewal", "message_deferral", "message_scheduling",
}

// Announce implements Side.
func (p plainSide) Announce(o *wire.Open) { o.OfferedCapabilities = capabilities }

// Attach implements Side.
func (p plainSide) Attach(a *Attach) (next func()) {
	s, l := a.Link.session, a.Link.link
	switch {
	case isManagement(a.Attach):
		s.pairs.attach(l, a.Attach)
		return nil
	case a.Role:
		return s.attachOutgoing(l, a.Attach)
	}
	return s.attachIncoming(l, a.Attach)
}

// Explain implements Side.
func (plainSide) Explain(err error) *wire.Error { return protocolError(err) }

// Unroutable implements Side.
func (plainSide) Unroutable() *wire.Error { return nil }

// Waits implements Side.
func (plainSide) Waits() bool { return true }

// Patience implements Side: as confirms of 0-9-1 do, outcomes wait.
func (plainSide) Patience() time.Duration { return 0 }

// Forgotten implements Side: nothing of it can still change.
func (plainSide) Forgotten(outcome *wire.State) wire.State { return *outcome }

// Renew implements Side.
func (p plainSide) Renew() {
	for _, s := range p.list.all() {
		s.publisher.renew()
	}
}

// Leave implements Side.
func (plainSide) Leave() {}

// Take implements Incoming: the message is published where its link, or itself, says.
func (p *publisher) Take(d *Delivery) (next func(), err *wire.Error) {
	return p.publish(d.Link.link, d.Message)
}

// plainForm is how messages look to clients of this broker.
type plainForm struct{}

// AppendHead implements Form.
func (plainForm) AppendHead(dst []byte, m *fsm.Message) []byte { return appendHead(dst, m) }

// Body implements Form.
func (plainForm) Body(m *fsm.Message) []byte { return m.Payload.Body() }

// AppendTag implements Form.
func (plainForm) AppendTag(dst []byte, id uint32, _ *fsm.Message) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(id))
}

// Singly implements Form.
func (plainForm) Singly(*wire.State) bool { return false }

// Settlement implements Form.
func (plainForm) Settlement(outcome *wire.State, _ *Received) (fsm.Settlement, *wire.Error) {
	return settlementOf(outcome)
}

// Answers implements Form.
func (plainForm) Answers(outcome *wire.State) (done *wire.State, lost func() *wire.State) {
	return stateFor(outcome), isReleased
}

// Enlist implements Form.
func (plainForm) Enlist([]byte, *wire.State, *Received) *wire.State { return nil }

// Keeps implements Form.
func (plainForm) Keeps() bool { return false }

// Quiet implements Form.
func (plainForm) Quiet() bool { return false }

package amqp

import (
	"context"
	"net/netip"

	"github.com/quorate/quorate/fsm"
)

// Broker is everything that this package knows of the cluster. Errors that a
// client may see are *fsm.Refusal; any other error is internal. ProtocolOf
// knows for whom it is called.
type Broker interface {
	// Login checks a password. Every refused login returns the same error, so
	// that a client learns nothing about which users exist; the reason is
	// logged. A *fsm.Refusal means that the password could not be checked.
	Login(ctx context.Context, user, password string, remote netip.Addr) error
	// LoginKnown is Login for a client that needs no password: its certificate
	// states its identity, or it is anonymous.
	LoginKnown(ctx context.Context, user string, remote netip.Addr) error
	// LoginByKey is Login for a client that shows a key of a name, which same compares.
	LoginByKey(ctx context.Context, name string, remote netip.Addr, same func() bool) error
	// Connect opens a vhost for a logged-in user.
	Connect(ctx context.Context, user, vhost string) (Connection, error)
	// ClusterName is announced to clients.
	ClusterName() string
}

// Connection is one client connection to one vhost.
type Connection interface {
	// OpenSession starts the session of a channel. events may be called before
	// OpenSession returns.
	OpenSession(events fsm.SessionEvents) (Session, error)
	// Renew checks the user's rights again: they may have changed, or the
	// client has sent a new secret. It calls SessionEvents.Revoked for
	// consumers whose queue may no longer be read. It does not block, and may
	// be called at any time. An error is the connection's.
	Renew() error
	// Close deletes what the connection owns exclusively. Its sessions must
	// have been closed before.
	Close(ctx context.Context)
}

// Session performs the methods of one channel. Publish, Settle, SettleAs, Renew and Written do
// not block; the others block until the cluster has answered or ctx ends. A
// channel makes one blocking call at a time; Publish, Settle, SettleAs and Renew are called from
// one goroutine at a time, never during a blocking call. Written may be called
// at any time.
type Session interface {
	// Publish routes a message. fsm.ErrNotFresh: it must be published again
	// after Refresh. Any other error is the channel's. In both cases the
	// message goes nowhere and SessionEvents.Confirmed is not called for it.
	// routed false: it has no queue, and Confirmed is not called either. On
	// return p belongs to the caller again, except for p.Payload; its strings,
	// Schedule and Delay never change.
	Publish(p *fsm.Publish) (routed bool, err error)
	// Check returns the error that Publish would return, and publishes nothing.
	// It is called under the same conditions as Publish.
	Check(p *fsm.Publish) error
	// Admit is Check for a message whose body has not arrived: it looks for the exchange and at the user's rights
	// only.
	Admit(p *fsm.Publish) error
	// Watch looks for a queue that is to be published to by the default exchange,
	// whoever owns it, and checks the user's right to do that. Once the queue is gone
	// SessionEvents.Gone is called. It blocks.
	Watch(ctx context.Context, queue string) (fsm.QueueID, error)
	// Refresh returns once the broker knows all definitions for which any
	// client of any node has had an answer, or when ctx ends. It may be called
	// during another call.
	Refresh(ctx context.Context) error
	// ReplyName is the routing key of replies to this channel. It may be called
	// at any time.
	ReplyName() string
	// ReplyNameOf is the routing key of replies to a consumer of fsm.ReplyQueue in credit mode, of which a channel
	// may have several. It is empty if there is no such consumer.
	ReplyNameOf(consumer uint64) string
	// Settle ends deliveries of a consumer, or of gets if consumer is the token
	// of a get. ids are ascending; ids that the queue has taken back are
	// ignored. The slice belongs to the caller again on return.
	Settle(consumer uint64, ids []uint64, outcome fsm.Outcome)
	// SettleAs is Settle for who says more, or waits for SessionEvents.Settled, which
	// is not called for what was only shown (fsm.ConsumeSpec.Browse). An error is the
	// client's: then nothing is settled.
	SettleAs(consumer uint64, ids []uint64, how *fsm.Settlement) error
	// Renew lets a consumer hold deliveries for longer: their locks and consumer timeouts
	// begin anew. ids are as in Settle. One command about that is under way at a time for
	// a consumer; what comes meanwhile is joined. Nobody is told.
	Renew(consumer uint64, ids []uint64)
	// Written reports that count messages for consumers, with bytes bytes of
	// payload, have been written to the socket or given back. The session
	// bounds the sum of what is delivered and not written, and delivers no more
	// than that.
	Written(count, bytes int)

	// Limit bounds the deliveries that all consumers with acknowledgements hold
	// together, besides what each may hold by its own prefetch; 0: not. It
	// returns once no more is delivered than that, as far as can be known.
	Limit(ctx context.Context, prefetch uint16)
	Consume(ctx context.Context, spec fsm.ConsumeSpec) error
	// Selects reports whether a consumer that is asked for may have a selector:
	// some queues, and consumers with a priority, may not.
	Selects(ctx context.Context, spec fsm.ConsumeSpec) bool
	// Credit says how many messages a consumer with fsm.ConsumeSpec.Credit may
	// be given. It does not wait; a newer Flow replaces one that the queue has
	// not been told of. One of replies, or that is over, is left out.
	Credit(consumer uint64, f fsm.Flow)
	// Cancel ends a consumer. What it holds stays with the session until it is
	// settled. Deliver is not called for it after Cancel has returned.
	Cancel(ctx context.Context, consumer uint64) error
	// Drop is Cancel without waiting: Deliver may still be called. It is not an
	// error if the consumer does not exist.
	Drop(consumer uint64)
	// Get takes one message. ok false: the queue has no ready message.
	Get(ctx context.Context, queue string, noAck bool) (m fsm.Message, ok bool, err error)
	DeclareQueue(ctx context.Context, spec fsm.QueueSpec) (fsm.QueueInfo, error)
	// DescribeQueue requires what a passive declare does.
	DescribeQueue(ctx context.Context, name string) (fsm.QueueDetails, error)
	// DeleteQueue returns how many ready messages were deleted with the queue.
	DeleteQueue(ctx context.Context, name string, ifUnused, ifEmpty bool) (uint64, error)
	PurgeQueue(ctx context.Context, name string) (uint64, error)
	DeclareExchange(ctx context.Context, spec fsm.ExchangeSpec) error
	DeleteExchange(ctx context.Context, name string, ifUnused bool) error
	Bind(ctx context.Context, spec fsm.BindSpec) error
	Unbind(ctx context.Context, spec fsm.BindSpec) error
	// Bindings returns the bindings with the ends and the routing key of a spec, whatever their arguments. Whoever may
	// use the vhost sees them.
	Bindings(ctx context.Context, of fsm.BindSpec) ([]fsm.BindSpec, error)
	// Close returns what the session holds to its queues and ends its
	// consumers. It returns once all reachable queues have done so.
	Close(ctx context.Context)
}

package amqp

import (
	"context"
	"net/netip"

	"github.com/quorate/quorate/fsm"
)

// Broker is all that this package knows of the cluster. Errors that a client
// gets to see are *fsm.Refusal; any other error is internal.
type Broker interface {
	// Login checks a password. Every refused login is the same error, so that a
	// client learns nothing about which users exist; the reason is logged. A
	// *fsm.Refusal says that no password could be checked.
	Login(ctx context.Context, user, password string, remote netip.Addr) error
	// LoginCertified is Login for a client whose certificate says who it is.
	LoginCertified(ctx context.Context, user string, remote netip.Addr) error
	// Connect opens a vhost for a user that has logged in.
	Connect(ctx context.Context, user, vhost string) (Connection, error)
	// ClusterName is announced to clients.
	ClusterName() string
}

// Connection is one client connection to one vhost.
type Connection interface {
	// OpenSession starts the session of a channel. events must be ready to
	// be called before OpenSession returns.
	OpenSession(events fsm.SessionEvents) (Session, error)
	// Renew checks again what the user may do: rights may have changed, or the
	// client has sent a new secret. For consumers whose queue may no longer be read
	// SessionEvents.Revoked is called. It does not block, and may be called at any time.
	// An error is the connection's.
	Renew() error
	// Close deletes what the connection owns exclusively. Its sessions have
	// been closed before.
	Close(ctx context.Context)
}

// Session does what the methods of one channel ask for. Publish, Settle and
// Written do not block; the others do, until the cluster has answered or ctx
// ends. A channel makes one blocking call at a time; Publish and Settle come
// from one goroutine at a time, never during a blocking call. Written may be
// called at any time.
type Session interface {
	// Publish routes a message. fsm.ErrNotFresh: it has to be published again
	// after Refresh. Any other error is the channel's. Either way the message went
	// nowhere and SessionEvents.Confirmed is not called for it. routed false:
	// no queue wants it, and again Confirmed is not called. p is the caller's
	// again on return, all but p.Payload; its strings, Schedule and Delay never change.
	Publish(p *fsm.Publish) (routed bool, err error)
	// Check returns the error that Publish would return, and publishes nothing.
	// It is called as Publish is.
	Check(p *fsm.Publish) error
	// Refresh returns when the broker knows all definitions that any client of any
	// node has had an answer for, or with ctx. It may be called during another call.
	Refresh(ctx context.Context) error
	// ReplyName is the routing key of replies to this channel. It may be called
	// at any time.
	ReplyName() string
	// Settle ends deliveries of a consumer, or of gets when consumer is the
	// token of a get. ids are ascending; ids the queue has taken back are ignored. The slice is
	// the caller's again on return.
	Settle(consumer uint64, ids []uint64, outcome fsm.Outcome)
	// Written says that so many messages for consumers, whose payloads had so
	// many bytes, are with the socket or were given back. Of what was delivered
	// and is not written the session bounds the sum, and delivers no more.
	Written(count, bytes int)

	Consume(ctx context.Context, spec fsm.ConsumeSpec) error
	// Cancel ends a consumer. What it holds stays with the session until it
	// is settled. No Deliver for it comes after Cancel has returned.
	Cancel(ctx context.Context, consumer uint64) error
	// Drop is Cancel without waiting: a Deliver may still come. A consumer
	// that is not there is no error.
	Drop(consumer uint64)
	// Get takes one message. ok false: the queue has none that is ready.
	Get(ctx context.Context, queue string, noAck bool) (m fsm.Message, ok bool, err error)
	DeclareQueue(ctx context.Context, spec fsm.QueueSpec) (fsm.QueueInfo, error)
	// DeleteQueue answers how many ready messages went with the queue.
	DeleteQueue(ctx context.Context, name string, ifUnused, ifEmpty bool) (uint64, error)
	PurgeQueue(ctx context.Context, name string) (uint64, error)
	DeclareExchange(ctx context.Context, spec fsm.ExchangeSpec) error
	DeleteExchange(ctx context.Context, name string, ifUnused bool) error
	Bind(ctx context.Context, spec fsm.BindSpec) error
	Unbind(ctx context.Context, spec fsm.BindSpec) error
	// Close returns what the session holds to its queues and ends its
	// consumers. It returns when the queues that can be reached have done so.
	Close(ctx context.Context)
}

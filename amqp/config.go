package amqp

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"time"

	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
)

// Config configures a Server. The zero value of a limit means its default.
type Config struct {
	// Broker performs what clients request. Required.
	Broker Broker
	// Logger receives the logs of connections; nil: none.
	Logger *slog.Logger

	// FrameMax is the largest frame offered to clients, 4096 … 16 MiB.
	FrameMax uint32
	// InitialFrameMax is the largest frame accepted before tune-ok.
	InitialFrameMax uint32
	// ChannelMax is how many channels a connection may have open.
	ChannelMax uint16
	// Heartbeat is the interval offered to clients, in whole seconds. Negative:
	// none is offered. A client's own choice, including 0, always takes
	// precedence.
	Heartbeat time.Duration
	// HandshakeTimeout is the time from accept to the running connection.
	HandshakeTimeout time.Duration
	// OperationTimeout bounds the wait for the broker's answer to a method.
	OperationTimeout time.Duration
	// MaxMessageSize is the largest body in bytes, at most 512 MiB.
	MaxMessageSize int
	// HeldByConnection, HeldByUser and HeldByNode bound the bytes of memory that are held for a connection, for all
	// connections of a user, and for all clients of the node; see account. Defaults: 64 MiB; half of the node's; 1 GiB.
	HeldByConnection, HeldByUser, HeldByNode int64
	// MaxConsumers is the maximum number of consumers of a channel; 0: no
	// limit.
	MaxConsumers int
	// CertificateUser returns the user of a verified client certificate. nil:
	// certificates cannot be used to log in, and EXTERNAL is not offered.
	CertificateUser func(*x509.Certificate) string
	// Refused is called with every request that is refused for lack of a right,
	// and with what a client loses. It must not block; it may be nil.
	Refused func(Refusal)
	// Version is announced in the server properties.
	Version string
	// ServerProperties replace or extend the properties that are announced to
	// clients.
	ServerProperties map[string]string
}

// Limits that are not configurable.
const (
	// maxUnconfirmed and maxUnconfirmedBytes bound the publishes of a connection
	// that have no outcome yet. At the bound the reader stops.
	maxUnconfirmed      = fsm.MaxUnanswered
	maxUnconfirmedBytes = 8 << 20

	// maxRequested bounds the bytes that wait for a client because of its own
	// requests: replies, returns and gets. At the bound the reader stops.
	maxRequested = 8 << 20

	// maxBacklog is how many bytes may wait for a client that does not read;
	// stallTime is how long it counts as reading after the last write.
	maxBacklog = 64 << 20
	stallTime  = 5 * time.Second

	// Bounds of the requests that a channel queues while a method waits for the broker;
	// then the reader waits.
	maxQueued      = 1024
	maxQueuedBytes = 1 << 20
	alarmedBytes   = 64 << 10 // instead of maxQueuedBytes, during an alarm

	// crowdedBytes is what publishes without an outcome may hold instead of
	// maxUnconfirmedBytes while the user or the node is at its bound, and the connection
	// holds more than its share. It is checked again every crowdedTime.
	crowdedBytes = 256 << 10
	crowdedTime  = time.Second

	// lastBody is how much of one message a connection may complete during an alarm.
	lastBody = 16 << 10

	// eagerBody is how much memory is allocated because of a content header
	// alone. A longer body gets its memory as it arrives.
	eagerBody = 1 << 20

	loginDelay      = 3 * time.Second  // until a refused login is dropped
	maxDelayed      = 100              // refused logins kept at a time
	frameTime       = 30 * time.Second // from the first to the last byte of a frame
	minWriteTimeout = 30 * time.Second
	maxCloseWait    = 30 * time.Second // for the client's part of a close
	lingerTime      = time.Second      // after the last write, for the client to read it
	keepAliveIdle   = 30 * time.Second
	keepAliveEvery  = 10 * time.Second
	keepAliveCount  = 3
	closeWorkers    = 16 // sessions of a connection that are closed at a time
)

const defaultFrameMax = 128 << 10

// addedProperties is the room in a header frame for what is added to a message's own
// properties before it is delivered: its deaths and counts.
const addedProperties = 8 << 10

// maxProperties bounds the encoded properties of a publish.
func maxProperties(frameMax uint32) int { return int(frameMax - min(addedProperties, frameMax/2)) }

// withDefaults fills in what is not set.
func (c Config) withDefaults() Config {
	set(&c.Logger, slog.New(slog.DiscardHandler))
	set(&c.FrameMax, defaultFrameMax)
	set(&c.InitialFrameMax, 8192)
	set(&c.ChannelMax, 2047)
	set(&c.Heartbeat, 60*time.Second)
	set(&c.HandshakeTimeout, 10*time.Second)
	set(&c.OperationTimeout, 15*time.Second)
	set(&c.MaxMessageSize, 16<<20)
	set(&c.HeldByConnection, 64<<20)
	set(&c.HeldByNode, 1<<30)
	set(&c.HeldByUser, c.HeldByNode/2)
	set(&c.Version, "0.0.0")
	c.Heartbeat = max(c.Heartbeat, 0)
	return c
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate returns an error that names the first setting out of range.
func (c Config) Validate() error {
	c = c.withDefaults()
	for _, s := range []struct {
		name             string
		value, low, high int64
	}{
		{"frame_max", int64(c.FrameMax), wire.FrameMinSize, 16 << 20},
		{"initial_frame_max", int64(c.InitialFrameMax), wire.FrameMinSize, 16 << 20},
		{"heartbeat (s)", int64(c.Heartbeat / time.Second), 0, 65535},
		{"handshake_timeout (ms)", c.HandshakeTimeout.Milliseconds(), 1, 10 * 60 * 1000},
		{"operation_timeout (ms)", c.OperationTimeout.Milliseconds(), 1, 10 * 60 * 1000},
		{"max_message_size", int64(c.MaxMessageSize), 1, wire.MaxBodySize},
		{boundConnection, c.HeldByConnection, 1 << 20, 1 << 40},
		{boundUser, c.HeldByUser, 1 << 20, 1 << 40},
		{boundNode, c.HeldByNode, 1 << 20, 1 << 40},
		{"max_consumers", int64(c.MaxConsumers), 0, 1 << 31},
	} {
		if s.value < s.low || s.value > s.high {
			return fmt.Errorf("%s is %d, must be between %d and %d", s.name, s.value, s.low, s.high)
		}
	}
	if c.Broker == nil {
		return fmt.Errorf("broker is missing")
	}
	return nil
}

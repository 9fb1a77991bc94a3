package v091

import (
	"fmt"
	"maps"
	"slices"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v091/wire"
)

// Protocol is AMQP 0-9-1, for the server's list of protocols. The zero value of a
// limit means its default.
type Protocol struct {
	// ChannelMax is how many channels a connection may have open; by default 2047.
	ChannelMax uint16
	// MaxConsumers is the maximum number of consumers of a channel; 0: no
	// limit.
	MaxConsumers int
}

// own is the header of AMQP 0-9-1, older the one of 0-9, which is no different.
var (
	own   = amqp.Header{'A', 'M', 'Q', 'P', 0, 0, 9, 1}
	older = amqp.Header{'A', 'M', 'Q', 'P', 1, 1, 0, 9}
)

// Name implements amqp.Protocol.
func (Protocol) Name() string { return "amqp091" }

// Speaks implements amqp.Protocol: versions 0-9-1 and 0-9 are spoken.
func (Protocol) Speaks(h amqp.Header) bool { return h == own || h == older }

// Header implements amqp.Protocol.
func (Protocol) Header() amqp.Header { return own }

// Validate implements amqp.Protocol.
func (p Protocol) Validate() error {
	if p.MaxConsumers < 0 || p.MaxConsumers > 1<<31 {
		return fmt.Errorf("max_consumers is %d, must be between 0 and %d", p.MaxConsumers, 1<<31)
	}
	return nil
}

// Open implements amqp.Protocol.
func (p Protocol) Open(c *amqp.Conn, _ amqp.Header) amqp.Endpoint {
	if p.ChannelMax == 0 {
		p.ChannelMax = 2047
	}
	return newConn(p, c)
}

// Limits that are not configurable.
const (
	// Bounds of the requests that a channel queues while a method waits for the broker;
	// then the reader waits.
	maxQueued      = 1024
	maxQueuedBytes = 1 << 20
	alarmedBytes   = 64 << 10 // instead of maxQueuedBytes, during an alarm

	// lastBody is how much of one message a connection may complete during an alarm.
	lastBody = 16 << 10

	// eagerBody is how much memory is allocated because of a content header
	// alone. A longer body gets its memory as it arrives.
	eagerBody = 1 << 20

	// keepItems is how many settlements a channel keeps room for.
	keepItems = 4096
)

// addedProperties is the room in a header frame for what is added to a message's own
// properties before it is delivered: its deaths and counts.
const addedProperties = 8 << 10

// maxProperties bounds the encoded properties of a publish.
func maxProperties(frameMax uint32) int { return int(frameMax - min(addedProperties, frameMax/2)) }

// serverProperties returns the server properties of connection.start.
func serverProperties(cfg *amqp.Config) wire.Table {
	var capabilities wire.Table
	for _, name := range []string{
		"publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify",
		"connection.blocked", "consumer_priorities", "authentication_failure_close", "per_consumer_qos",
		"quorate_commands", "message_scheduling", "message_lock_renewal", "message_deferral",
	} {
		capabilities = append(capabilities, wire.Field{Name: name, Value: wire.Bool(true)})
	}
	capabilities = append(capabilities,
		wire.Field{Name: "direct_reply_to", Value: wire.Bool(true)},
		wire.Field{Name: "accept_consumer_cancel_ok", Value: wire.Bool(true)},
	)
	t := wire.Table{
		{Name: "capabilities", Value: wire.Nested(capabilities)},
		{Name: "cluster_name", Value: wire.String(cfg.Broker.ClusterName())},
		{Name: "copyright", Value: wire.String("The quorate authors")},
		{Name: "information", Value: wire.String("https://github.com/quorate/quorate")},
		{Name: "platform", Value: wire.String("Go")},
		{Name: "product", Value: wire.String("quorate")},
		{Name: "version", Value: wire.String(cfg.Version)},
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.ServerProperties)) {
		t = setField(t, name, cfg.ServerProperties[name])
	}
	return t
}

func setField(t wire.Table, name, value string) wire.Table {
	for i := range t {
		if t[i].Name == name {
			t[i].Value = wire.String(value)
			return t
		}
	}
	return append(t, wire.Field{Name: name, Value: wire.String(value)})
}

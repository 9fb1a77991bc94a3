package v091

import (
	"context"
	"strings"

	"github.com/quorate/quorate/amqp"
	messages "github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// methodBlocks reports whether a method has to wait for the broker.
func methodBlocks(m wire.Method) bool {
	switch m := m.(type) {
	case *wire.BasicQos:
		return m.Global && m.PrefetchSize == 0
	case *wire.ExchangeDeclare, *wire.ExchangeDelete, *wire.ExchangeBind, *wire.ExchangeUnbind,
		*wire.QueueDeclare, *wire.QueueBind, *wire.QueueUnbind, *wire.QueuePurge, *wire.QueueDelete,
		*wire.BasicConsume, *wire.BasicCancel, *wire.BasicGet, *wire.TxCommit:
		return true
	}
	return false
}

// act does a method that does not wait for the broker. The gate is held.
func (ch *channel) act(m wire.Method) error {
	switch m := m.(type) {
	case *wire.ChannelFlow:
		if !m.Active {
			return errNotImplemented(wire.ID(m), "active=false")
		}
		ch.reply(false, &wire.ChannelFlowOK{Active: true})
	case *wire.AccessRequest:
		ch.reply(false, &wire.AccessRequestOK{Ticket: 1})
	case *wire.BasicQos:
		if m.PrefetchSize != 0 {
			return errPrefetchSize(m.PrefetchSize)
		}
		ch.prefetch = m.PrefetchCount
		ch.reply(false, &wire.BasicQosOK{})
	case *wire.BasicRecover:
		if !m.Requeue {
			return errNotImplemented(wire.ID(m), "requeue=false")
		}
		ch.recover(func() { ch.reply(false, &wire.BasicRecoverOK{}) })
	case *wire.BasicRecoverAsync:
		if !m.Requeue {
			return errNotImplemented(wire.ID(m), "requeue=false")
		}
		ch.recover(nil)
	case *wire.ConfirmSelect:
		if ch.tx.on {
			return errTxMode(wire.ID(m), "cannot switch from tx to confirm mode")
		}
		ch.publisher.confirms.begin()
		ch.publisher.confirming = true
		ch.reply(m.NoWait, &wire.ConfirmSelectOK{})
	case *wire.TxSelect:
		return ch.selectTx()
	case *wire.TxRollback:
		return ch.rollBack()
	default:
		return errUnimplementedMethod(wire.ID(m))
	}
	return nil
}

// call does a method that waits for the broker. Busy is set.
func (ch *channel) call(ctx context.Context, m wire.Method) error {
	switch m := m.(type) {
	case *wire.BasicQos: // of all consumers together
		ch.session.Limit(ctx, m.PrefetchCount)
		ch.gate.Lock()
		ch.shared = m.PrefetchCount
		ch.gate.Unlock()
		ch.reply(false, &wire.BasicQosOK{})
		return nil
	case *wire.BasicConsume:
		return ch.consume(ctx, m)
	case *wire.BasicCancel:
		return ch.cancel(ctx, m)
	case *wire.BasicGet:
		return ch.get(ctx, m)
	case *wire.TxCommit:
		return ch.commit()
	case *wire.QueueDelete:
		ch.consumers.deferCancels()
		defer ch.consumers.sendCancels()
	}
	answer, noWait, err := ch.definitions.call(ctx, m)
	if err == nil {
		ch.reply(noWait, answer)
	}
	return err
}

// reply sends the answer of a method, unless the client does not want it.
func (ch *channel) reply(noWait bool, m wire.Method) {
	if !noWait {
		ch.conn.out.push(ch.number, m)
	}
}

// definitions does the methods that define exchanges, queues and bindings. It
// belongs to whoever makes the blocking call of the channel.
type definitions struct {
	session   amqp.Session
	lastQueue string // declared last on the channel; empty: none
}

// call does a method. answer is not wanted if noWait.
func (d *definitions) call(ctx context.Context, m wire.Method) (answer wire.Method, noWait bool, err error) {
	switch m := m.(type) {
	case *wire.ExchangeDeclare:
		return &wire.ExchangeDeclareOK{}, m.NoWait, d.session.DeclareExchange(ctx, fsm.ExchangeSpec{
			Name: cleanName(m.Exchange), Type: m.Type, Passive: m.Passive, Durable: m.Durable,
			AutoDelete: m.AutoDelete, Internal: m.Internal, Arguments: messages.Table(m.Arguments),
		})
	case *wire.ExchangeDelete:
		return &wire.ExchangeDeleteOK{}, m.NoWait, d.session.DeleteExchange(ctx, cleanName(m.Exchange), m.IfUnused)
	case *wire.ExchangeBind:
		return &wire.ExchangeBindOK{}, m.NoWait, d.session.Bind(ctx, fsm.BindSpec{
			Source: cleanName(m.Source), Destination: cleanName(m.Destination), ToExchange: true,
			RoutingKey: m.RoutingKey, Arguments: messages.Table(m.Arguments),
		})
	case *wire.ExchangeUnbind:
		return &wire.ExchangeUnbindOK{}, m.NoWait, d.session.Unbind(ctx, fsm.BindSpec{
			Source: cleanName(m.Source), Destination: cleanName(m.Destination), ToExchange: true,
			RoutingKey: m.RoutingKey, Arguments: messages.Table(m.Arguments),
		})
	case *wire.QueueDeclare:
		return d.declareQueue(ctx, m)
	case *wire.QueueBind:
		spec, err := d.queueBinding(m.Queue, m.Exchange, m.RoutingKey, m.Arguments, wire.ID(m))
		if err == nil {
			err = d.session.Bind(ctx, spec)
		}
		return &wire.QueueBindOK{}, m.NoWait, err
	case *wire.QueueUnbind:
		spec, err := d.queueBinding(m.Queue, m.Exchange, m.RoutingKey, m.Arguments, wire.ID(m))
		if err == nil {
			err = d.session.Unbind(ctx, spec)
		}
		return &wire.QueueUnbindOK{}, false, err
	case *wire.QueuePurge:
		return d.purgeQueue(ctx, m)
	case *wire.QueueDelete:
		return d.deleteQueue(ctx, m)
	}
	return nil, false, errUnimplementedMethod(wire.ID(m))
}

func (d *definitions) declareQueue(ctx context.Context, m *wire.QueueDeclare) (wire.Method, bool, error) {
	info, err := d.session.DeclareQueue(ctx, fsm.QueueSpec{
		Name: cleanName(m.Queue), Passive: m.Passive, Durable: m.Durable,
		Exclusive: m.Exclusive, AutoDelete: m.AutoDelete, Arguments: messages.Table(m.Arguments),
	})
	if err != nil {
		return nil, false, err
	}
	d.lastQueue = info.Name
	return &wire.QueueDeclareOK{
		Queue: info.Name, MessageCount: count32(info.Ready), ConsumerCount: count32(info.Consumers),
	}, m.NoWait, nil
}

func (d *definitions) purgeQueue(ctx context.Context, m *wire.QueuePurge) (wire.Method, bool, error) {
	queue, err := d.queueName(m.Queue, wire.ID(m))
	if err != nil {
		return nil, false, err
	}
	n, err := d.session.PurgeQueue(ctx, queue)
	return &wire.QueuePurgeOK{MessageCount: count32(n)}, m.NoWait, err
}

func (d *definitions) deleteQueue(ctx context.Context, m *wire.QueueDelete) (wire.Method, bool, error) {
	queue, err := d.queueName(m.Queue, wire.ID(m))
	if err != nil {
		return nil, false, err
	}
	n, err := d.session.DeleteQueue(ctx, queue, m.IfUnused, m.IfEmpty)
	return &wire.QueueDeleteOK{MessageCount: count32(n)}, m.NoWait, err
}

// queueBinding is the binding a queue.bind or unbind means. Without a queue it
// is that of the last declared one, whose name also stands for an empty key.
func (d *definitions) queueBinding(queue, exchange, key string, arguments wire.Table, id uint32) (fsm.BindSpec, error) {
	name, err := d.queueName(queue, id)
	if err != nil {
		return fsm.BindSpec{}, err
	}
	if queue == "" && key == "" {
		key = name
	}
	return fsm.BindSpec{
		Source: cleanName(exchange), Destination: name, RoutingKey: key, Arguments: messages.Table(arguments),
	}, nil
}

// queueName returns the queue a method means: the one named, or the one
// declared last on this channel.
func (d *definitions) queueName(name string, id uint32) (string, error) {
	if name != "" {
		return cleanName(name), nil
	}
	if d.lastQueue == "" {
		return "", errNoQueue(id)
	}
	return d.lastQueue, nil
}

// cleanName takes CR and LF out of a name.
func cleanName(name string) string {
	if !strings.ContainsAny(name, "\r\n") {
		return name
	}
	return strings.NewReplacer("\r", "", "\n", "").Replace(name)
}

func count32(n uint64) uint32 { return uint32(min(n, 1<<32-1)) }

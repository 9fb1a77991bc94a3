package amqp

import (
	"context"
	"strings"

	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
)

// methodBlocks reports whether a method has to wait for the broker.
func methodBlocks(m wire.Method) bool {
	switch m.(type) {
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
		if ch.tx != nil {
			return errTxMode(wire.ID(m), "cannot switch from tx to confirm mode")
		}
		ch.confirms.begin()
		ch.reply(m.NoWait, &wire.ConfirmSelectOK{})
	case *wire.TxSelect:
		return ch.selectTx()
	case *wire.TxRollback:
		return ch.rollback()
	default:
		return errUnimplementedMethod(wire.ID(m))
	}
	return nil
}

// call does a method that waits for the broker. Busy is set.
func (ch *channel) call(ctx context.Context, m wire.Method) error {
	switch m := m.(type) {
	case *wire.ExchangeDeclare:
		return ch.answer(m.NoWait, &wire.ExchangeDeclareOK{}, ch.session.DeclareExchange(ctx, fsm.ExchangeSpec{
			Name: cleanName(m.Exchange), Type: m.Type, Passive: m.Passive, Durable: m.Durable,
			AutoDelete: m.AutoDelete, Internal: m.Internal, Arguments: catalogTable(m.Arguments),
		}))
	case *wire.ExchangeDelete:
		return ch.answer(m.NoWait, &wire.ExchangeDeleteOK{}, ch.session.DeleteExchange(ctx, cleanName(m.Exchange), m.IfUnused))
	case *wire.ExchangeBind:
		return ch.answer(m.NoWait, &wire.ExchangeBindOK{}, ch.session.Bind(ctx, fsm.BindSpec{
			Source: cleanName(m.Source), Destination: cleanName(m.Destination), ToExchange: true,
			RoutingKey: m.RoutingKey, Arguments: catalogTable(m.Arguments),
		}))
	case *wire.ExchangeUnbind:
		return ch.answer(m.NoWait, &wire.ExchangeUnbindOK{}, ch.session.Unbind(ctx, fsm.BindSpec{
			Source: cleanName(m.Source), Destination: cleanName(m.Destination), ToExchange: true,
			RoutingKey: m.RoutingKey, Arguments: catalogTable(m.Arguments),
		}))
	case *wire.QueueDeclare:
		return ch.declareQueue(ctx, m)
	case *wire.QueueBind:
		spec, err := ch.queueBinding(m.Queue, m.Exchange, m.RoutingKey, m.Arguments, wire.ID(m))
		if err != nil {
			return err
		}
		return ch.answer(m.NoWait, &wire.QueueBindOK{}, ch.session.Bind(ctx, spec))
	case *wire.QueueUnbind:
		spec, err := ch.queueBinding(m.Queue, m.Exchange, m.RoutingKey, m.Arguments, wire.ID(m))
		if err != nil {
			return err
		}
		return ch.answer(false, &wire.QueueUnbindOK{}, ch.session.Unbind(ctx, spec))
	case *wire.QueuePurge:
		return ch.purgeQueue(ctx, m)
	case *wire.QueueDelete:
		return ch.deleteQueue(ctx, m)
	case *wire.BasicConsume:
		return ch.consume(ctx, m)
	case *wire.BasicCancel:
		return ch.cancel(ctx, m)
	case *wire.BasicGet:
		return ch.get(ctx, m)
	case *wire.TxCommit:
		return ch.commitTx()
	}
	return errUnimplementedMethod(wire.ID(m))
}

// reply sends the answer of a method, unless the client does not want it.
func (ch *channel) reply(noWait bool, m wire.Method) {
	if !noWait {
		ch.conn.out.push(ch.number, m)
	}
}

// answer is reply, if there is no error.
func (ch *channel) answer(noWait bool, m wire.Method, err error) error {
	if err == nil {
		ch.reply(noWait, m)
	}
	return err
}

func (ch *channel) declareQueue(ctx context.Context, m *wire.QueueDeclare) error {
	info, err := ch.session.DeclareQueue(ctx, fsm.QueueSpec{
		Name: cleanName(m.Queue), Passive: m.Passive, Durable: m.Durable,
		Exclusive: m.Exclusive, AutoDelete: m.AutoDelete, Arguments: catalogTable(m.Arguments),
	})
	if err != nil {
		return err
	}
	ch.lastQueue = info.Name
	ch.reply(m.NoWait, &wire.QueueDeclareOK{
		Queue: info.Name, MessageCount: count32(info.Ready), ConsumerCount: count32(info.Consumers),
	})
	return nil
}

func (ch *channel) purgeQueue(ctx context.Context, m *wire.QueuePurge) error {
	queue, err := ch.queueName(m.Queue, wire.ID(m))
	if err != nil {
		return err
	}
	n, err := ch.session.PurgeQueue(ctx, queue)
	return ch.answer(m.NoWait, &wire.QueuePurgeOK{MessageCount: count32(n)}, err)
}

func (ch *channel) deleteQueue(ctx context.Context, m *wire.QueueDelete) error {
	queue, err := ch.queueName(m.Queue, wire.ID(m))
	if err != nil {
		return err
	}
	ch.holdCancels()
	defer ch.tellCancels()
	n, err := ch.session.DeleteQueue(ctx, queue, m.IfUnused, m.IfEmpty)
	return ch.answer(m.NoWait, &wire.QueueDeleteOK{MessageCount: count32(n)}, err)
}

// queueBinding is the binding a queue.bind or unbind means. Without a queue it
// is that of the last declared one, whose name also stands for an empty key.
func (ch *channel) queueBinding(queue, exchange, key string, arguments wire.Table, id uint32) (fsm.BindSpec, error) {
	name, err := ch.queueName(queue, id)
	if err != nil {
		return fsm.BindSpec{}, err
	}
	if queue == "" && key == "" {
		key = name
	}
	return fsm.BindSpec{
		Source: cleanName(exchange), Destination: name, RoutingKey: key, Arguments: catalogTable(arguments),
	}, nil
}

// queueName returns the queue a method means: the one named, or the one
// declared last on this channel.
func (ch *channel) queueName(name string, id uint32) (string, error) {
	if name != "" {
		return cleanName(name), nil
	}
	if ch.lastQueue == "" {
		return "", errNoQueue(id)
	}
	return ch.lastQueue, nil
}

// cleanName takes CR and LF out of a name.
func cleanName(name string) string {
	if !strings.ContainsAny(name, "\r\n") {
		return name
	}
	return strings.NewReplacer("\r", "", "\n", "").Replace(name)
}

func count32(n uint64) uint32 { return uint32(min(n, 1<<32-1)) }

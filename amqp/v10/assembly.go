package v10

import (
	"bytes"

	"github.com/quorate/quorate/amqp/v10/wire"
)

// Settle modes of a link's sender.
const (
	sendUnsettled = 0
	sendSettled   = 1
	sendMixed     = 2
)

// maxTag is the longest delivery-tag, in bytes.
const maxTag = 32

// firstPart is how much memory a delivery of several frames gets at first. It is doubled as the delivery arrives,
// whatever that has announced.
const firstPart = 4 << 10

// assembly is the delivery of a link that is arriving.
//
// Invariants: without a delivery body is empty; len(body) ≤ limit.
type assembly struct {
	mode  byte // of the link's sender
	limit int  // of a message, in bytes
	// transacts: its dialect knows transactions.
	transacts bool

	active  bool
	id      uint32
	settled bool
	format  uint32
	tag     [maxTag]byte
	tagSize int
	txn     []byte // the id of its transaction; nil: it is in none
	body    []byte // of more than one frame
}

// add takes in a frame. done: message is complete, of id and settled, and valid until the next call; without a message the
// delivery was aborted. An error is the link's, whose delivery is dropped.
func (a *assembly) add(t *wire.Transfer, payload []byte) (message []byte, done bool, err *wire.Error) {
	if err = a.admit(t); err == nil && len(a.body)+len(payload) > a.limit {
		err = wire.Errorf(wire.ConditionMessageSize, "message size exceeds maximum message size (%d)", a.limit)
	}
	switch {
	case err != nil || t.Aborted:
		a.drop()
		return nil, err == nil, err
	case t.More:
		a.keep(payload)
		return nil, false, nil
	}
	message = payload
	if len(a.body) > 0 {
		a.keep(payload)
		message = a.body
	}
	a.drop()
	if message == nil {
		message = []byte{}
	}
	return message, true, nil
}

// admit checks a frame, and begins a delivery with the first one.
func (a *assembly) admit(t *wire.Transfer) *wire.Error {
	switch {
	case t.Resume:
		return wire.Errorf(wire.ConditionNotImplemented, "Link recovery not supported")
	case t.State.Kind == wire.StateTransactional && !a.transacts:
		return wire.Errorf(wire.ConditionNotImplemented, "Transactions not supported")
	case a.active && t.DeliveryID.Or(a.id) != a.id:
		return wire.Errorf(wire.ConditionInvalidField, "delivery-id %d within delivery %d", t.DeliveryID.Value, a.id)
	case a.active && t.Settled.Or(a.settled) != a.settled:
		return wire.Errorf(wire.ConditionInvalidField, "settled changes within a delivery")
	case a.active:
		return nil
	case !t.DeliveryID.Present:
		return wire.Errorf(wire.ConditionInvalidField, "the first transfer of a delivery has no delivery-id")
	case a.mode == sendUnsettled && t.Settled.Value, a.mode == sendSettled && !t.Settled.Value:
		return wire.Errorf(wire.ConditionInvalidField, "settled is %v, against the link's snd-settle-mode %d", t.Settled.Value, a.mode)
	case !t.Settled.Value && t.RcvSettleMode.Value == 1:
		return wire.Errorf(wire.ConditionNotImplemented, "rcv-settle-mode second not supported")
	}
	a.tagSize, a.txn = copy(a.tag[:], t.DeliveryTag), nil
	if t.State.Kind == wire.StateTransactional {
		a.txn = bytes.Clone(t.State.Transactional.TxnID)
	}
	a.active, a.id, a.settled, a.format = true, t.DeliveryID.Value, t.Settled.Value, t.MessageFormat.Value
	return nil
}

// keep adds a part, of which no more than limit come.
func (a *assembly) keep(payload []byte) {
	if n := len(a.body) + len(payload); n > cap(a.body) {
		grown := make([]byte, len(a.body), max(min(2*n, a.limit), min(firstPart, a.limit), n))
		copy(grown, a.body)
		a.body = grown
	}
	a.body = append(a.body, payload...)
}

// drop ends the delivery. What add has returned stays valid.
func (a *assembly) drop() { a.active, a.body = false, nil }

// size is how much memory the delivery takes.
func (a *assembly) size() int64 { return int64(cap(a.body)) }

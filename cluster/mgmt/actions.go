package mgmt

import (
	"context"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// queueActions serves what operators do with one queue.
type queueActions struct {
	placement Placement
	messages  Messages
	queues    Queues
	consumers Connections
}

// perform does the action that the body names.
func (a queueActions) perform(w *responder, r *request) {
	name := r.PathValue("name")
	if !w.finds(r, name) {
		return
	}
	b, ok := w.body(r)
	if !ok || w.missing(b, "action") {
		return
	}
	var do func(context.Context, *catalog.Queue, body) error
	var keys []string
	switch action := b.word("action"); action {
	case "transfer_leadership":
		do, keys = a.transfer, []string{"node"}
	case "snapshot":
		do = a.snapshot
	case "expire_now":
		do = a.expire
	case "cancel_consumer":
		do, keys = a.cancel, []string{"tag", "channel"}
	default:
		w.badRequest("unsupported action: " + action)
		return
	}
	if !r.has(administrator) {
		w.unauthorized("not_authorised", levels[administrator].reason)
		return
	}
	if w.missing(b, keys...) {
		return
	}
	for _, key := range keys {
		if _, err := b.text(key); err != nil {
			w.failed(err)
			return
		}
	}
	q, _ := r.view.Queue(r.PathValue("vhost"), name)
	w.changed(do(r.Context(), q, b), false)
}

func (a queueActions) transfer(ctx context.Context, q *catalog.Queue, b body) error {
	return a.placement.TransferLeadership(ctx, q, b.word("node"))
}

func (a queueActions) snapshot(ctx context.Context, q *catalog.Queue, _ body) error {
	return a.placement.Snapshot(ctx, q)
}

func (a queueActions) expire(ctx context.Context, q *catalog.Queue, _ body) error {
	return a.messages.ExpireDue(ctx, q)
}

// cancel cancels the consumer with a tag on a channel.
func (a queueActions) cancel(ctx context.Context, q *catalog.Queue, b body) error {
	tag, channel := b.word("tag"), b.word("channel")
	for _, c := range a.queues.Consumers(ctx, q.ID) {
		at, known := c.Channel.(api.ChannelDetails)
		if !known || c.Tag != tag || at.Name != channel {
			continue
		}
		if found, err := a.consumers.CancelConsumer(ctx, q, at, tag); found || err != nil {
			return err
		}
	}
	return fsm.Refuse(fsm.NotFoundKind, "consumer_not_found")
}

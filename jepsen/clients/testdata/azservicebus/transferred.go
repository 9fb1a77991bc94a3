package main

import (
	"errors"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"
)

// transferred finds what a queue and a topic could not hand on.
func transferred(r *run) {
	at, q, topic := managers(), r.prefix, r.prefix+"-topic"
	counts := need(at[2].GetQueueRuntimeProperties(r.ctx, q, nil))
	for counts.TransferDeadLetterMessageCount < 2 { // they are on their way
		counts = need(at[2].GetQueueRuntimeProperties(r.ctx, q, nil))
	}
	check(counts.TransferDeadLetterMessageCount == 2 && counts.TransferMessageCount == 0 && counts.DeadLetterMessageCount == 0 && counts.TotalMessageCount == 2, counts)

	sub := &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueTransfer}
	from := need(r.client.NewReceiverForQueue(q, sub))
	r.refused(from, "gone", "off")
	check(need(at[1].GetQueueRuntimeProperties(r.ctx, q, nil)).TransferDeadLetterMessageCount == 0, "counted once they are gone")
	check(len(need(need(r.client.NewReceiverForSubscription(topic, "sub", sub)).PeekMessages(r.ctx, 10, nil))) == 1, "that of a subscription is its topic's")
	r.refused(need(r.client.NewReceiverForQueue(topic, sub)), "topic")

	var refused *amqp.Error
	err := need(r.client.NewSender(q+"/$transfer/$DeadLetterQueue", nil)).SendMessage(r.ctx, message("a"), nil)
	check(errors.As(err, &refused) && refused.Condition == amqp.ErrCondNotAllowed, err)
	need(at[0].DeleteQueue(r.ctx, q, nil))
	_, err = need(r.client.NewReceiverForQueue(q, sub)).ReceiveMessages(r.ctx, 1, nil)
	fails(err, azservicebus.CodeNotFound)
	need(at[0].CreateQueue(r.ctx, q, nil))
	r.none(need(r.client.NewReceiverForQueue(q, sub)))
}

// refused peeks, receives and completes messages that were not taken, in any order.
func (r *run) refused(from *azservicebus.Receiver, ids ...string) {
	check(len(need(from.PeekMessages(r.ctx, 10, nil))) == len(ids), "peeked")
	left := map[string]bool{}
	for _, id := range ids {
		left[id] = true
	}
	for again := true; len(left) > 0; {
		for _, m := range need(from.ReceiveMessages(r.ctx, len(left), nil)) {
			check(left[m.MessageID] && string(m.Body) == m.MessageID && m.ApplicationProperties["of"] == m.MessageID, m.MessageID)
			check(*m.DeadLetterReason == "TransferRefused" && *m.DeadLetterErrorDescription != "" && m.DeliveryCount == 1 && *m.TimeToLive == 0, m)
			if again { // nothing is counted
				need(0, from.AbandonMessage(r.ctx, m, nil))
				again = false
				continue
			}
			need(0, from.RenewMessageLock(r.ctx, m, nil))
			need(0, from.CompleteMessage(r.ctx, m, nil))
			delete(left, m.MessageID)
		}
	}
	r.none(from)
}

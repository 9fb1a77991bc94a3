package main

import "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

// emulated does what the samples of the service's emulator do, at the entities of their file, and leaves a message in queue.1.
func emulated(r *run) {
	_, s, from := r.queue("queue.1")
	r.send(s, "one", "two")
	batch := need(s.NewMessageBatch(r.ctx, nil))
	for _, id := range []string{"three", "four"} {
		need(0, batch.AddMessage(message(id), nil))
	}
	need(0, s.SendMessageBatch(r.ctx, batch, nil))
	r.takes(from, "one", "two", "three", "four")
	r.send(s, "kept")

	m := message("in a session")
	m.SessionID = set("s")
	need(0, need(r.client.NewSender(r.prefix+"queue.sessions", nil)).SendMessage(r.ctx, m, nil))
	x := need(r.client.AcceptNextSessionForQueue(r.ctx, r.prefix+"queue.sessions", nil))
	got := need(x.ReceiveMessages(r.ctx, 1, nil))[0]
	check(x.SessionID() == "s" && got.MessageID == "in a session", x.SessionID(), got.MessageID)
	need(0, x.CompleteMessage(r.ctx, got, nil))

	topic := r.prefix + "topic.1"
	to := need(r.client.NewSender(topic, nil))
	all := message("msgid1")
	all.ContentType, all.CorrelationID, all.Subject, all.ReplyTo = set("application/text"), set("id1"), set("subject1"), set("someQueue")
	all.ReplyToSessionID, all.SessionID, all.To = set("sessionId"), set("session1"), set("xyz")
	property := message("property")
	property.ApplicationProperties["prop1"] = "value1"
	sql := message("123456")
	sql.ApplicationProperties["userProp1"] = "value1"
	for _, m := range []*azservicebus.Message{all, property, sql} {
		need(0, to.SendMessage(r.ctx, m, nil))
	}
	for name, ids := range map[string][]string{
		"subscription.1": {"msgid1"}, "subscription.2": {"property"}, "subscription.3": {"msgid1", "property", "123456"}, "subscription.4": {"123456"},
	} {
		from := need(r.client.NewReceiverForSubscription(topic, name, nil))
		got := r.takes(from, ids...)
		if name == "subscription.4" {
			check(got[0].To != nil && *got[0].To == "Entity", "the rule's action")
		}
		r.none(from)
	}
}

// emulatedAgain finds what emulated has left.
func emulatedAgain(r *run) {
	_, _, from := r.queue("queue.1")
	r.takes(from, "kept")
	r.none(from)
}

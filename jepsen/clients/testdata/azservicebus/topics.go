package main

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"github.com/Azure/go-amqp"
)

// topic creates a topic, and returns what manages it.
func (r *run) topic(name string, p *admin.TopicProperties) (*admin.Client, string) {
	at := managers()[0]
	need(at.CreateTopic(r.ctx, r.prefix+name, &admin.CreateTopicOptions{Properties: p}))
	return at, r.prefix + name
}

// subscription creates a subscription, and returns a receiver of it, and one of its dead letters. rule nil: it takes all.
func (r *run) subscription(at *admin.Client, topic, name string, p *admin.SubscriptionProperties, rule *admin.RuleProperties) (from, dead *azservicebus.Receiver) {
	if p == nil {
		p = &admin.SubscriptionProperties{}
	}
	p.DefaultRule = rule
	need(at.CreateSubscription(r.ctx, topic, name, &admin.CreateSubscriptionOptions{Properties: p}))
	from = need(r.client.NewReceiverForSubscription(topic, name, nil))
	return from, need(r.client.NewReceiverForSubscription(topic, name, &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter}))
}

// sql is a rule.
func sql(name, filter, action string) *admin.RuleProperties {
	p := &admin.RuleProperties{Name: name, Filter: &admin.SQLFilter{Expression: filter}}
	if action != "" {
		p.Action = &admin.SQLAction{Expression: action}
	}
	return p
}

// takes receives and completes messages with these ids, in order.
func (r *run) takes(from *azservicebus.Receiver, ids ...string) (all []*azservicebus.ReceivedMessage) {
	all = r.receive(from, ids...)
	for _, m := range all {
		need(0, from.CompleteMessage(r.ctx, m, nil))
	}
	return all
}

// publishes sends to a topic. Each subscription has its own copy, with the number of the message at the topic.
func publishes(r *run) {
	at, topic := r.topic("Published", nil)
	all, dead := r.subscription(at, topic, "All", nil, nil)
	none, _ := r.subscription(at, topic, "none", nil, &admin.RuleProperties{Name: "no", Filter: &admin.FalseFilter{}})
	red, _ := r.subscription(at, topic, "red", nil, &admin.RuleProperties{Name: "red", Filter: &admin.CorrelationFilter{Subject: set("red"), ApplicationProperties: map[string]any{"n": int64(7)}}})
	s := need(r.client.NewSender(topic, nil))
	r.send(s, "plain")
	m := message("colour")
	m.Subject = set("red")
	need(0, s.SendMessage(r.ctx, m, nil))
	batch := need(s.NewMessageBatch(r.ctx, nil))
	for _, id := range []string{"b1", "b2"} {
		need(0, batch.AddMessage(message(id), nil))
	}
	need(0, s.SendMessageBatch(r.ctx, batch, nil))
	numbers := need(s.ScheduleMessages(r.ctx, []*azservicebus.Message{message("never"), message("soon")}, time.Now().Add(2*time.Second), nil))
	need(0, s.CancelScheduledMessages(r.ctx, numbers[:1], nil))
	got := r.takes(all, "plain", "colour", "b1", "b2", "soon")
	for i, m := range got[:4] {
		check(*m.SequenceNumber == int64(i+1) && *m.EnqueuedSequenceNumber == int64(i+1) && m.ApplicationProperties["n"] == int64(7) && m.DeliveryCount == 1, m)
	}
	check(*got[4].SequenceNumber == 5 && *got[4].EnqueuedSequenceNumber > 5, *got[4].EnqueuedSequenceNumber)
	check(*r.takes(red, "colour")[0].EnqueuedSequenceNumber == 2, "its number at the topic")
	r.none(none)
	r.none(red)
	// The other outcomes are those of queues.
	r.send(s, "x")
	x := r.receive(all, "x")[0]
	need(0, all.AbandonMessage(r.ctx, x, nil))
	x = r.receive(all, "x")[0]
	need(0, all.RenewMessageLock(r.ctx, x, nil))
	need(0, all.DeferMessage(r.ctx, x, nil))
	x = need(all.ReceiveDeferredMessages(r.ctx, []int64{*x.SequenceNumber}, nil))[0]
	need(0, all.DeadLetterMessage(r.ctx, x, &azservicebus.DeadLetterOptions{Reason: set("why")}))
	check(*r.takes(dead, "x")[0].DeadLetterReason == "why", "the reason")
	// A topic is for senders, a subscription for receivers.
	var refused *amqp.Error
	_, err := need(r.client.NewReceiverForQueue(topic, nil)).ReceiveMessages(r.ctx, 1, nil)
	check(errors.As(err, &refused) && refused.Condition == amqp.ErrCondNotAllowed, err)
	err = need(r.client.NewSender(topic+"/Subscriptions/all", nil)).SendMessage(r.ctx, message("x"), nil)
	check(errors.As(err, &refused) && refused.Condition == amqp.ErrCondNotAllowed, err)
	p := need(at.GetTopicRuntimeProperties(r.ctx, topic, nil))
	check(p.SubscriptionCount == 3 && p.ScheduledMessageCount == 0, p)
	need(at.DeleteTopic(r.ctx, topic, nil))
	_, err = all.ReceiveMessages(r.ctx, 1, nil)
	check(err != nil, "it is gone")
}

// filters makes copies by rules, which change as the program runs.
func filters(r *run) {
	at, topic := r.topic("filtered", nil)
	from, _ := r.subscription(at, topic, "S", nil, sql("even", "n % 2 = 0 AND sys.Label LIKE 'a%'", "SET n = n * 10; SET sys.Label = 'even'; REMOVE text"))
	strict, strictDead := r.subscription(at, topic, "strict", &admin.SubscriptionProperties{EnableDeadLetteringOnFilterEvaluationExceptions: set(true)}, sql("fails", "1 / (n - 5) = 1", ""))
	_, needyDead := r.subscription(at, topic, "sessions", &admin.SubscriptionProperties{RequiresSession: set(true)}, sql("five", "n = 5", ""))
	s := need(r.client.NewSender(topic, nil))
	send := func(id string, n int64) {
		m := message(id)
		m.ApplicationProperties["n"], m.Subject = n, set("abc")
		need(0, s.SendMessage(r.ctx, m, nil))
	}
	send("odd", 3)
	send("two", 2)
	m := r.takes(from, "two")[0]
	same(m.ApplicationProperties, map[string]any{"n": int64(20), "RuleName": "even"})
	check(*m.Subject == "even", *m.Subject)
	// A copy for each rule with an action, and one for all others together.
	need(at.CreateRule(r.ctx, topic, "S", &admin.CreateRuleOptions{Name: set("big"), Filter: &admin.SQLFilter{Expression: "n > @least", Parameters: map[string]any{"@least": int64(3)}}}))
	need(at.CreateRule(r.ctx, topic, "S", &admin.CreateRuleOptions{Name: set("all"), Filter: &admin.TrueFilter{}}))
	need(at.CreateRule(r.ctx, topic, "S", &admin.CreateRuleOptions{Name: set("tag"), Filter: &admin.TrueFilter{}, Action: &admin.SQLAction{Expression: "SET tag = 'it'"}}))
	send("four", 4)
	var made []string
	for _, m := range r.takes(from, "four", "four", "four") {
		p := m.ApplicationProperties
		made = append(made, fmt.Sprintf("%v %v %v", p["RuleName"], p["n"], p["tag"]))
	}
	slices.Sort(made)
	same(made, []string{"<nil> 4 <nil>", "even 40 <nil>", "tag 4 it"})
	r.none(from)
	for _, name := range []string{"big", "all", "tag", "even"} {
		need(at.DeleteRule(r.ctx, topic, "S", name, nil))
		send("more", 8)
	}
	r.takes(from, slices.Repeat([]string{"more"}, 3+2+1)...)
	r.none(from)
	_, err := at.CreateRule(r.ctx, topic, "S", &admin.CreateRuleOptions{Name: set("wrong"), Filter: &admin.SQLFilter{Expression: "n = = 1"}})
	answered(err, http.StatusBadRequest, "Filter")
	_, err = at.CreateRule(r.ctx, topic, "S", &admin.CreateRuleOptions{Name: set("wrong"), Filter: &admin.SQLFilter{Expression: "sys.Colour = 1"}})
	answered(err, http.StatusBadRequest, "Filter")
	send("five", 5)
	check(*r.takes(strictDead, "five")[0].DeadLetterReason == "FilterEvaluationException", "the reason")
	check(*r.takes(needyDead, "five")[0].DeadLetterReason == "Session ID is null.", "the reason")
	send("six", 6)
	r.takes(strict, "six")
	need(at.DeleteTopic(r.ctx, topic, nil))
}

// lives has messages live as long as the least of what they, their topic and their subscription say.
func lives(r *run) {
	at, topic := r.topic("lived", &admin.TopicProperties{DefaultMessageTimeToLive: set("PT40S")})
	long, _ := r.subscription(at, topic, "long", &admin.SubscriptionProperties{DefaultMessageTimeToLive: set("PT1H")}, nil)
	short, _ := r.subscription(at, topic, "short", &admin.SubscriptionProperties{DefaultMessageTimeToLive: set("PT20S")}, nil)
	gone, dead := r.subscription(at, topic, "dies", &admin.SubscriptionProperties{DefaultMessageTimeToLive: set("PT1S"), DeadLetteringOnMessageExpiration: set(true)}, nil)
	s := need(r.client.NewSender(topic, nil))
	r.send(s, "plain")
	for i, id := range []string{"ten", "hour"} {
		m := message(id)
		m.TimeToLive = set([]time.Duration{10 * time.Second, time.Hour}[i])
		need(0, s.SendMessage(r.ctx, m, nil))
	}
	for _, c := range []struct {
		from *azservicebus.Receiver
		most [3]time.Duration
	}{{long, [3]time.Duration{40, 10, 40}}, {short, [3]time.Duration{20, 10, 20}}} {
		for i, m := range r.takes(c.from, "plain", "ten", "hour") {
			most := c.most[i] * time.Second
			check(*m.TimeToLive <= most && *m.TimeToLive > most-5*time.Second && m.ExpiresAt.Before(time.Now().Add(most)), m.MessageID, *m.TimeToLive)
		}
	}
	for _, m := range r.takes(dead, "plain", "ten", "hour") {
		check(*m.DeadLetterReason == "TTLExpiredException" && *m.TimeToLive == 0, m)
	}
	r.none(gone)
	need(at.DeleteTopic(r.ctx, topic, nil))
}

// made creates a queue, and returns a receiver of it, and one of its dead letters.
func (r *run) made(at *admin.Client, name string, p *admin.QueueProperties) (string, *azservicebus.Receiver, *azservicebus.Receiver) {
	q := r.prefix + name
	need(at.CreateQueue(r.ctx, q, &admin.CreateQueueOptions{Properties: p}))
	return q, need(r.client.NewReceiverForQueue(q, nil)), need(r.client.NewReceiverForQueue(q, &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter}))
}

// forwards hands messages and dead letters on to queues and topics.
func forwards(r *run) {
	at := managers()[1]
	// Four steps are taken, and what would take the fifth is a dead letter. The destination is made first.
	to, last, _ := r.made(at, "hop-5", nil)
	var dead *azservicebus.Receiver
	for i := 4; i >= 0; i-- {
		var letters *azservicebus.Receiver
		if to, _, letters = r.made(at, fmt.Sprint("hop-", i), &admin.QueueProperties{ForwardTo: set(to)}); i == 4 {
			dead = letters
		}
	}
	r.send(need(r.client.NewSender(r.prefix+"hop-1", nil)), "four")
	r.takes(last, "four")
	r.send(need(r.client.NewSender(r.prefix+"hop-0", nil)), "five")
	check(*r.takes(dead, "five")[0].DeadLetterReason == "MaxTransferHopCountExceeded", "the reason")
	_, err := need(r.client.NewReceiverForQueue(r.prefix+"hop-0", nil)).ReceiveMessages(r.ctx, 1, nil)
	check(err != nil, "it forwards")
	_, err = at.CreateQueue(r.ctx, r.prefix+"lost", &admin.CreateQueueOptions{Properties: &admin.QueueProperties{ForwardTo: set(r.prefix + "nowhere")}})
	answered(err, http.StatusBadRequest, "ForwardTo")
	// From a subscription to a topic, whose subscription hands its dead letters on.
	sink, letters, _ := r.made(at, "letters", nil)
	_, second := r.topic("second", nil)
	final, _ := r.subscription(at, second, "S", &admin.SubscriptionProperties{ForwardDeadLetteredMessagesTo: &sink}, nil)
	_, first := r.topic("first", nil)
	r.subscription(at, first, "S", &admin.SubscriptionProperties{ForwardTo: &second}, sql("r", "n = 7", "SET by = 'first'"))
	s := need(r.client.NewSender(first, nil))
	r.send(s, "far")
	m := r.receive(final, "far")[0]
	check(m.ApplicationProperties["by"] == "first" && m.ApplicationProperties["RuleName"] == "r" && m.EnqueuedSequenceNumber != nil, m.ApplicationProperties)
	need(0, final.DeadLetterMessage(r.ctx, m, &azservicebus.DeadLetterOptions{Reason: set("why")}))
	m = r.takes(letters, "far")[0]
	check(*m.DeadLetterReason == "why" && *m.DeadLetterSource == second+"/Subscriptions/S", m)
	// It begins and ends later; what was deleted takes nothing.
	q, from, dead := r.made(at, "changes", nil)
	there, taken, _ := r.made(at, "there", nil)
	p := need(at.GetQueue(r.ctx, q, nil)).QueueProperties
	p.ForwardTo = &there
	need(at.UpdateQueue(r.ctx, q, p, nil))
	to = q
	s = need(r.client.NewSender(to, nil))
	r.send(s, "a")
	r.takes(taken, "a")
	need(at.DeleteQueue(r.ctx, there, nil))
	r.send(s, "b")
	check(*r.takes(dead, "b")[0].DeadLetterReason == "TransferRefused", "the reason")
	p.ForwardTo = set("")
	need(at.UpdateQueue(r.ctx, q, p, nil))
	r.send(s, "c")
	r.takes(from, "c")
	for _, topic := range []string{first, second} {
		need(at.DeleteTopic(r.ctx, topic, nil))
	}
}

// duplicates sends everything twice.
func duplicates(r *run) {
	at, topic := r.topic("twice", &admin.TopicProperties{RequiresDuplicateDetection: set(true)})
	from, _ := r.subscription(at, topic, "S", nil, nil)
	q, here, _ := r.made(at, "twice-queue", &admin.QueueProperties{RequiresDuplicateDetection: set(true), DuplicateDetectionHistoryTimeWindow: set("PT20S")})
	for to, from := range map[string]*azservicebus.Receiver{topic: from, q: here} {
		s := need(r.client.NewSender(to, nil))
		r.send(s, "a", "b", "a")
		batch := need(s.NewMessageBatch(r.ctx, nil))
		for _, id := range []string{"c", "b", "c"} {
			need(0, batch.AddMessage(message(id), nil))
		}
		need(0, s.SendMessageBatch(r.ctx, batch, nil))
		later := time.Now().Add(time.Second)
		need(s.ScheduleMessages(r.ctx, []*azservicebus.Message{message("d"), message("a")}, later, nil))
		r.send(s, "d", "e")
		r.takes(from, "a", "b", "c", "e", "d")
		r.none(from)
	}
	need(at.DeleteTopic(r.ctx, topic, nil))
}

// disabled wants an operation refused because of a status.
func disabled(err error) {
	var e *amqp.Error
	check(errors.As(err, &e) && e.Condition == "com.microsoft:entity-disabled", err)
}

// statuses changes the status of a queue, a topic and a subscription while links are open.
func statuses(r *run) {
	at := managers()[2]
	q, from, dead := r.made(at, "disabled", nil)
	status := func(s admin.EntityStatus) {
		p := need(at.GetQueue(r.ctx, q, nil)).QueueProperties
		p.Status = &s
		need(at.UpdateQueue(r.ctx, q, p, nil))
	}
	s := need(r.client.NewSender(q, nil))
	r.send(s, "a")
	got := r.receive(from, "a")
	status(admin.EntityStatusSendDisabled)
	disabled(s.SendMessage(r.ctx, message("b"), nil))
	need(0, from.CompleteMessage(r.ctx, got[0], nil))
	status(admin.EntityStatusReceiveDisabled)
	s = need(r.client.NewSender(q, nil))
	r.send(s, "c")
	_, err := from.ReceiveMessages(r.ctx, 1, nil)
	disabled(err)
	_, err = dead.ReceiveMessages(r.ctx, 1, nil)
	disabled(err)
	status(admin.EntityStatusDisabled)
	disabled(need(r.client.NewSender(q, nil)).SendMessage(r.ctx, message("b"), nil))
	_, err = need(r.client.NewReceiverForQueue(q, nil)).ReceiveMessages(r.ctx, 1, nil)
	disabled(err)
	check(need(at.GetQueueRuntimeProperties(r.ctx, q, nil)).ActiveMessageCount == 1, "the message is still there")
	status(admin.EntityStatusActive)
	r.takes(need(r.client.NewReceiverForQueue(q, nil)), "c")
	// What is forwarded to what takes nothing is a dead letter of where it comes from.
	source, _, letters := r.made(at, "source", &admin.QueueProperties{ForwardTo: &q})
	status(admin.EntityStatusSendDisabled)
	to := need(r.client.NewSender(source, nil))
	r.send(to, "d")
	check(*r.takes(letters, "d")[0].DeadLetterReason == "TransferRefused", "the reason")
	status(admin.EntityStatusActive)
	r.send(to, "e")
	r.takes(need(r.client.NewReceiverForQueue(q, nil)), "e")

	_, topic := r.topic("disabled-topic", nil)
	sub, _ := r.subscription(at, topic, "S", nil, nil)
	p := need(at.GetTopic(r.ctx, topic, nil)).TopicProperties
	s = need(r.client.NewSender(topic, nil))
	r.send(s, "f")
	p.Status = set(admin.EntityStatusSendDisabled)
	need(at.UpdateTopic(r.ctx, topic, p, nil))
	disabled(s.SendMessage(r.ctx, message("g"), nil))
	r.takes(sub, "f")
	need(at.DeleteTopic(r.ctx, topic, nil))
}

// killedPublishes sends to a topic while the leader of what it keeps is gone, and then the node to which the program is
// connected. What is sent again is a duplicate.
func killedPublishes(r *run) {
	at, topic := r.topic("killed-topic", &admin.TopicProperties{RequiresDuplicateDetection: set(true)})
	all, _ := r.subscription(at, topic, "all", nil, nil)
	some, _ := r.subscription(at, topic, "some", nil, sql("r", "n = 7", "SET by = 'rule'"))
	s := need(r.client.NewSender(topic, nil))
	r.send(s, names("m", 0, 10)...)
	ask("kill " + topic + "/$topic")
	r.send(s, names("m", 10, 10)...)
	ask("restart")
	r.send(s, names("m", 20, 10)...)
	ask("bounce")
	r.send(s, names("m", 30, 4)...)
	r.rest(all, nil, names("m", 0, 34)...)
	r.rest(some, nil, names("m", 0, 34)...)
}

package clients

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/frames"
)

// topicHabits are about topics, what entities are for clients of other protocols, and where messages go on to.
var topicHabits = []habit{
	{"AD-4 plain", "", (*player).meetsAMQP091},
	{"TP-2 nobody", "", (*player).publishesToNobody},
	{"TP-8 bounds", "", (*player).writesLongRules},
	{"FD-2 full", "", (*player).forwardsToFull},
	{"HT-5 kinds", "", (*player).readsKindsInOrder},
	{"ER-3 names", "", (*player).hearsOfNoOther},
}

// publishesToNobody: what nobody has subscribed to is accepted and gone (TP-2).
func (p *player) publishesToNobody() {
	topic := p.queue + "-Topic"
	p.bus.mustPut(p.t, topic, "TopicDescription", "")
	p.to(sender, "/"+topic)
	p.want(p.transfer(ofLinks, sender, nil, message("a")), "accepted")
	p.sendIn(largestFrame-512, batchFormat, batch(message("b"), message("c")))
	p.want(p.answer(true), "accepted")
	p.awaitHolds(topic+"/$topic", 0)
	p.bus.mustPut(p.t, strings.ToLower(topic)+"/Subscriptions/late", "SubscriptionDescription", "")
	p.bus.mustPut(p.t, strings.ToUpper(topic)+"/Subscriptions/late/Rules/more", "RuleDescription", "<Name>more</Name>") // whatever the capitals
	p.want(p.transfer(ofLinks, sender, nil, message("d")), "accepted")
	p.from(receiver, topic+"/Subscriptions/late", nil)
	p.flow(receiver, 0, 5, frames.Fields{"drain": true})
	p.awaitHolds(topic+"/$topic", 0)
	p.flow(receiver, 0, 6, nil)
	if g := p.take(1)[0]; g.data != "d" || g.annotations.Get("x-opt-enqueue-sequence-number") != int64(4) {
		p.t.Errorf("received %q %v", g.data, g.annotations)
	}
	p.awaitHolds(topic+"/Subscriptions/late", 1)
}

// awaitHolds waits until a queue has so many messages.
func (p *player) awaitHolds(queue string, n int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.bus.ctx, 20*time.Second)
	defer cancel()
	p.becomesSuch(ctx, queue, fmt.Sprint(n, " messages"), func(q cluster.Queue) bool { return q.Messages == n })
}

// writesLongRules: filters have at most 1,024 characters, and actions 32 statements, however they are written (TP-8).
func (p *player) writesLongRules() {
	topic := p.queue + "-Topic"
	subscription := topic + "/Subscriptions/s"
	p.bus.mustPut(p.t, topic, "TopicDescription", "")
	p.bus.mustPut(p.t, subscription, "SubscriptionDescription", "")
	filter := func(characters int) string {
		const around = "text = ''"
		return "text = '" + strings.Repeat("ü", characters-len(around)) + "'"
	}
	action := func(statements int) string { return strings.TrimSuffix(strings.Repeat("SET n = 1;", statements), ";") }
	r := p.pair(ofNet, ofRequests, subscription+"/$management")
	for i, c := range []struct {
		filter, action string
		refused        string // the field; empty: it is not
	}{{filter(1024), action(32), ""}, {filter(1025), action(32), "Filter"}, {filter(1024), action(33), "Action"}} {
		name := fmt.Sprint("r", i)
		inner := `<Filter xmlns:i="http://www.w3.org/2001/XMLSchema-instance" i:type="SqlFilter"><SqlExpression>` + c.filter + `</SqlExpression></Filter>` +
			`<Action xmlns:i="http://www.w3.org/2001/XMLSchema-instance" i:type="SqlRuleAction"><SqlExpression>` + c.action + `</SqlExpression></Action><Name>` + name + `</Name>`
		overHTTP, byRequest := 201, 200
		if c.refused != "" {
			overHTTP, byRequest = 400, 400
		}
		status, text := p.call("PUT", subscription+"/Rules/"+name, entry("RuleDescription", inner))
		a := r.ask("add-rule", byRequest, "rule-name", name+"-asked", "rule-description", frames.Map{
			"sql-filter", frames.Map{"expression", c.filter}, "sql-rule-action", frames.Map{"expression", c.action},
		})
		if status != overHTTP || !strings.Contains(text, c.refused) || c.refused != "" && (a.condition != "com.microsoft:argument-error" || !strings.Contains(a.description, c.refused)) {
			p.t.Errorf("rule %d: %d %s, %v", i, status, text, a)
		}
	}
	status, text := p.call("GET", subscription+"/Rules", "")
	if n := strings.Count(text, "<Name>"); status != 200 || n != 3 { // with the default one
		p.t.Errorf("%d rules: %d %s", n, status, text)
	}
}

// forwardsToFull: what a full entity does not take is a dead letter of where it comes from (FD-2).
func (p *player) forwardsToFull() {
	full, source, topic := p.queue+"-Full", p.queue+"-Source", p.queue+"-Topic"
	subscription := topic + "/Subscriptions/s"
	p.bus.mustPut(p.t, full, "QueueDescription", "<MaxSizeInMegabytes>1</MaxSizeInMegabytes>")
	p.bus.mustPut(p.t, source, "QueueDescription", "<ForwardTo>"+full+"</ForwardTo>")
	p.bus.mustPut(p.t, topic, "TopicDescription", "")
	p.bus.mustPut(p.t, subscription, "SubscriptionDescription", "<ForwardTo>"+full+"</ForwardTo>")
	large := func(handle int, id string) frames.Composite {
		p.sendOn(handle, largestFrame-512, nil, frames.Append(message(id), frames.Described{Descriptor: uint64(0x75), Value: make([]byte, 600<<10)}))
		return p.answer(true)
	}
	p.to(sender, "/"+full)
	taken := 0
	state := large(sender, "first")
	for ; state.Name == "accepted" && taken < 5; taken++ {
		state = large(sender, "first")
	}
	p.want(state, "rejected amqp:resource-limit-exceeded")
	p.tracked(state.Fields.Of("error").Text("description"))
	for handle, name := range []string{2: source, 3: topic} {
		if name != "" {
			p.to(handle, "/"+name)
			p.want(large(handle, name), "accepted")
		}
	}
	for handle, name := range []string{4: source, 5: subscription} {
		if name == "" {
			continue
		}
		p.from(handle, name+"/$DeadLetterQueue", frames.Fields{"snd-settle-mode": 1})
		p.flow(handle, 0, 1, nil)
		want, _, _ := strings.Cut(name, "/")
		if g := p.take(1)[0]; g.properties["message-id"] != want || g.application.Get("DeadLetterReason") != "TransferRefused" {
			p.t.Errorf("dead is %v %v", g.properties, g.application)
		}
	}
	// What is free again takes what comes.
	p.from(receiver, "/"+full, frames.Fields{"snd-settle-mode": 1})
	p.flow(receiver, 0, taken, nil)
	p.take(taken)
	p.want(p.transfer(ofLinks, 2, nil, message("more")), "accepted")
	p.flow(receiver, taken, 1, nil)
	if g := p.take(1)[0]; g.data != "more" {
		p.t.Errorf("received %.20q", g.data)
	}
}

// meetsAMQP091: the queues of entities are queues for a client of AMQP 0-9-1 that may use them (AD-4, MP-5).
func (p *player) meetsAMQP091() {
	topic, user := p.queue+"-Topic", p.queue+"-reader"
	subscription := topic + "/Subscriptions/s"
	p.bus.mustPut(p.t, topic, "TopicDescription", "")
	p.bus.mustPut(p.t, subscription, "SubscriptionDescription", "")
	at, ctx := p.at, p.bus.ctx
	p.must(at.SetUser(ctx, user, "secret", ""))
	p.must(at.SetPermissions(ctx, user, "^$", "^amq\\.default$", "^"+regexp.QuoteMeta(p.queue)))
	connect := func(as string) *amqp.Channel {
		conn, err := amqp.Dial("amqp://" + as + "@" + at.AMQP + "/")
		p.must(err)
		p.t.Cleanup(func() { conn.Close() })
		ch, err := conn.Channel()
		p.must(err)
		return ch
	}
	p.send(message("a"), message("dies"))
	p.detach(ofLinks, sender)
	p.from(receiver, "/"+p.queue, nil)
	p.flow(receiver, 0, 2, nil)
	both := p.take(2)
	p.dispose(both[1].id, both[1].id, false, frames.Composite{Name: "rejected"})
	p.want(p.answer(false), "rejected")
	p.dispose(both[0].id, both[0].id, false, frames.Composite{Name: "released"})
	p.want(p.answer(false), "released")
	p.detach(ofLinks, receiver)
	p.to(sender, "/"+topic)
	p.want(p.transfer(ofLinks, sender, nil, message("copy")), "accepted")
	p.detach(ofLinks, sender)
	ch := connect(url.PathEscape(user) + ":secret")
	for queue, id := range map[string]string{p.queue: "a", p.queue + "/$deadletterqueue": "dies", subscription: "copy"} {
		all, err := ch.Consume(queue, queue, false, false, false, false, nil)
		p.must(err)
		select {
		case d := <-all:
			if d.MessageId != id || string(d.Body) != id || d.Headers["of"] != id {
				p.t.Errorf("%s has %+v", queue, d)
			}
			p.must(d.Ack(false))
		case <-ctx.Done():
			p.t.Fatal(queue, ctx.Err())
		}
		p.must(ch.Cancel(queue, false))
		p.awaitHolds(queue, 0)
	}
	// What it publishes to the queue is a message like others; the exchange of a topic takes only what has its number.
	writes := connect("guest:guest")
	p.must(writes.Confirm(false))
	sent := amqp.Publishing{MessageId: "back", Expiration: "600000", Headers: amqp.Table{"n": int32(7)}, Body: []byte("back")}
	confirm, err := writes.PublishWithDeferredConfirmWithContext(ctx, "", p.queue, true, false, sent)
	p.must(err)
	if ok, err := confirm.WaitContext(ctx); !ok || err != nil {
		p.t.Errorf("confirmed: %v %v", ok, err)
	}
	p.from(receiver, "/"+p.queue, nil)
	p.flow(receiver, 0, 1, nil)
	if g := p.take(1)[0]; g.data != "back" || g.properties["message-id"] != "back" || g.header.Int("ttl") != 600_000 || g.application.Get("n") != int32(7) {
		p.t.Errorf("received %q %v %v %v", g.data, g.header, g.properties, g.application)
	}
	closed := writes.NotifyClose(make(chan *amqp.Error, 1))
	p.must(writes.PublishWithContext(ctx, topic, "", false, false, sent))
	select {
	case e := <-closed:
		if e == nil || e.Code != amqp.AccessRefused {
			p.t.Errorf("a publish to the exchange of a topic: %v", e)
		}
	case <-ctx.Done():
		p.t.Error(ctx.Err())
	}
	// The list of queues shows which they are by their arguments.
	for queue, ours := range map[string]bool{p.queue: true, subscription: true, topic + "/$topic": true} {
		q, err := at.Queue(ctx, queue)
		p.must(err)
		if _, marked := q.Arguments["x-sent-refused-queue"]; marked != ours {
			p.t.Errorf("%s has the arguments %v", queue, q.Arguments)
		}
	}
}

// kindSchemas are the orders of the elements of other kinds than queues.
var kindSchemas = map[string]string{
	"TopicDescription": "DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection DuplicateDetectionHistoryTimeWindow EnableBatchedOperations SizeInBytes " +
		"FilteringMessagesBeforePublishing IsAnonymousAccessible AuthorizationRules Status UserMetadata CreatedAt UpdatedAt AccessedAt SupportOrdering CountDetails " +
		"SubscriptionCount AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus EnableSubscriptionPartitioning EnableExpress MaxMessageSizeInKilobytes " +
		"SqlFilterCount CorrelationFilterCount",
	"SubscriptionDescription": "LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration DeadLetteringOnFilterEvaluationExceptions " +
		"MessageCount MaxDeliveryCount EnableBatchedOperations Status ForwardTo CreatedAt UpdatedAt AccessedAt UserMetadata CountDetails " +
		"ForwardDeadLetteredMessagesTo AutoDeleteOnIdle EntityAvailabilityStatus",
	"RuleDescription": "Filter Action CreatedAt Name",
}

// readsKindsInOrder: topics, subscriptions and rules have all of their elements in the order of the schema.
func (p *player) readsKindsInOrder() {
	topic := p.queue + "-Topic"
	subscription := topic + "/Subscriptions/s"
	for _, c := range [][3]string{
		{topic, "TopicDescription", "<UserMetadata>m</UserMetadata><EnableBatchedOperations>true</EnableBatchedOperations>"},
		{subscription, "SubscriptionDescription", "<UserMetadata>m</UserMetadata><ForwardDeadLetteredMessagesTo>" + p.queue + "</ForwardDeadLetteredMessagesTo><ForwardTo>" + p.queue + "</ForwardTo>"},
		{subscription + "/Rules/r", "RuleDescription", "<Name>r</Name>"},
	} {
		p.bus.mustPut(p.t, c[0], c[1], c[2])
		_, text := p.call("GET", c[0], "")
		_, inner, _ := strings.Cut(text, "<"+c[1])
		inner, _, _ = strings.Cut(inner, "</"+c[1])
		p.inOrder(inner, strings.Fields(kindSchemas[c[1]]))
	}
}

// inOrder wants all elements of some names, in their order.
func (p *player) inOrder(text string, names []string) {
	p.t.Helper()
	last := -1
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`<([A-Za-z]+)[ >/]`).FindAllStringSubmatch(text, -1) {
		if at := slices.Index(names, m[1]); at >= 0 {
			if at < last {
				p.t.Errorf("%s comes after %s", m[1], names[last])
			}
			last, seen[m[1]] = at, true
		}
	}
	if len(seen) < len(names) {
		p.t.Errorf("%d of %d elements: %s", len(seen), len(names), fmt.Sprint(seen))
	}
}

// hearsOfNoOther: no text of an error names another entity than the client has named, nor what it is inside.
func (p *player) hearsOfNoOther() {
	secret := p.queue + "-Secret"
	forwards, topic, full := p.queue+"-Source", p.queue+"-Topic", p.queue+"-Full"
	p.bus.mustPut(p.t, secret, "QueueDescription", "")
	p.bus.mustPut(p.t, forwards, "QueueDescription", "<ForwardTo>"+secret+"</ForwardTo><ForwardDeadLetteredMessagesTo>"+secret+"</ForwardDeadLetteredMessagesTo>"+rules("manages", "Manage"))
	p.bus.mustPut(p.t, topic, "TopicDescription", "")
	p.bus.mustPut(p.t, topic+"/Subscriptions/s", "SubscriptionDescription", "<ForwardTo>"+secret+"</ForwardTo>")
	p.bus.mustPut(p.t, full, "QueueDescription", "<MaxSizeInMegabytes>1</MaxSizeInMegabytes><RequiresSession>true</RequiresSession>")
	var texts []string
	hear := func(e frames.Fields) { texts = append(texts, fmt.Sprint(e["condition"], " ", e["description"])) }
	refused := func(frames.Fields) {
		f := p.await("detach")
		hear(f.Fields.Of("error"))
		p.must(p.Send(f.Channel, "detach", frames.Fields{"handle": f.Fields.Int("handle"), "closed": true}))
	}
	const stops = "Cannot create a message receiver on an entity with auto-forwarding enabled"
	for i, address := range []string{forwards, forwards + "/$deadletterqueue", topic + "/Subscriptions/s"} {
		p.refused(p.from(90+i, address, nil), "source", "amqp:not-allowed", stops+": '"+address+"'.")
	}
	for i, address := range []string{topic, topic + "/$topic", secret + "2", full} {
		refused(p.from(100+i, address, nil))
	}
	for i, address := range []string{topic + "/Subscriptions/s", topic + "/$topic", forwards + "/$deadletterqueue"} {
		refused(p.to(120+i, address))
	}
	p.must(p.Send(ofLinks, "attach", frames.Fields{
		"name": "via", "handle": 130, "role": false, "initial-delivery-count": 0, "source": source(own, nil), "target": target(forwards),
		"properties": frames.Map{frames.Symbol("com.microsoft:transfer-destination-address"), topic + "/Subscriptions/s"},
	}))
	p.await("attach")
	refused(nil)
	p.to(131, full)
	hear(p.transfer(ofLinks, 131, nil, message("no session")).Fields.Of("error"))
	r := p.pair(ofNet, ofRequests, forwards+"/$management")
	for _, q := range entityRequests {
		r.request(r.back(), append(frames.Map{"operation", "com.microsoft:" + q.operation}, r.timeout...), q.body)
		if a := r.answer(); a.status >= 300 {
			texts = append(texts, fmt.Sprint(q.operation, " ", a))
		}
	}
	r.close()
	r = p.pair(ofNet, ofRequests, topic+"/$management")
	for _, q := range slices.Concat(entityRequests, ruleRequests) {
		r.request(r.back(), append(frames.Map{"operation", "com.microsoft:" + q.operation}, r.timeout...), q.body)
		if a := r.answer(); a.status >= 300 {
			texts = append(texts, fmt.Sprint(q.operation, " ", a))
		}
	}
	// Who may manage one entity learns nothing of another one.
	token := tokenOf("manages", keyOf("manages"), "sb://h/"+forwards, time.Now().Add(time.Hour))
	for _, c := range [][3]string{{"PUT", forwards, "<RequiresSession>true</RequiresSession>"}, {"GET", secret, ""}, {"DELETE", secret, ""}} {
		body := ""
		if c[0] == "PUT" {
			body = entry("QueueDescription", c[2])
		}
		status, text := p.call(c[0], c[1], body, "Authorization", token, "If-Match", "*")
		if text = strings.ReplaceAll(text, "/"+c[1], "/…"); status < 400 {
			p.t.Errorf("%v: %d %s", c, status, text)
		}
		texts = append(texts, text)
	}
	for _, text := range texts {
		if strings.Contains(strings.ReplaceAll(text, secret+"2", "…"), secret) || strings.Contains(strings.ReplaceAll(text, topic+"/$topic", "…"), "$topic") || strings.Contains(text, "vhost") {
			p.t.Errorf("it says %s", text)
		}
	}
}

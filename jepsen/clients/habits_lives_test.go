package clients

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

// lifeHabits are about how long messages live, when they are due, and who else reads them.
var lifeHabits = []habit{
	{"MP-3 endless", "", (*player).livesForever},
	{"MP-3 ceiling", "<DefaultMessageTimeToLive>P4000000D</DefaultMessageTimeToLive>", (*player).livesLong},
	{"MP-5 crossing", "", func(p *player) { p.crosses("") }},
	{"MP-5 sessions", session, func(p *player) { p.crosses("s") }},
	{"MP-6 no id", "<RequiresDuplicateDetection>true</RequiresDuplicateDetection>", (*player).namesNothing},
	{"TT-2 expired", "", (*player).seesNoneExpired},
	{"TT-3 lock", deadLetters, (*player).outlastsTTL},
	{"TT-3 lock end", deadLetters + shortLock, (*player).diesAfterLock},
	{"TT-4 later", "", (*player).livesLater},
	{"TT-11 change", "", (*player).changesTTL},
	{"SD-1 past", "", (*player).schedulesInThePast},
	{"SD-2 rule", "", (*player).schedulesBeforeRule},
}

// deadLetters is the element of queues whose expired messages are dead letters.
const deadLetters = "<DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>"

// lasting is a message with a time to live in ms; nil: it says nothing of that.
func lasting(text string, ttl any) []byte { return later(text, nil, ttl) }

// later is a message that is to be enqueued at a time, with a time to live from then on; nil: it says nothing of these.
func later(text string, at, ttl any) (b []byte) {
	if ttl != nil {
		b = frames.Append(b, frames.Composite{Name: "header", Fields: frames.Fields{"ttl": ttl}})
	}
	if at != nil {
		b = frames.Append(b, frames.Described{Descriptor: uint64(0x72), Value: frames.Map{frames.Symbol("x-opt-scheduled-enqueue-time"), at}})
	}
	return append(b, message(text)...)
}

// in is a time from now on.
func in(d time.Duration) frames.Timestamp { return frames.Timestamp(time.Now().Add(d).UnixMilli()) }

// receive receives messages, with locks, by a link of its own.
func (p *player) receive(n int) []got {
	p.t.Helper()
	p.from(receiver, "/"+p.queue, nil)
	p.flow(receiver, 0, n, nil)
	return p.take(n)
}

// waiting receives messages that another connection sends while the link waits for them, so that each is locked at once.
func (p *player) waiting(all ...[]byte) (other *player, received []got) {
	p.t.Helper()
	p.from(receiver, "/"+p.queue, nil)
	p.flow(receiver, 0, len(all), nil)
	other = p.bus.mustPlay(p.t, p.queue)
	other.send(all...)
	return other, p.take(len(all))
}

// wantLife wants what a message says of its time to live, in ms.
func (p *player) wantLife(g got, ttl any, expires any) {
	p.t.Helper()
	if g.header == nil || g.header["ttl"] != ttl || g.properties["absolute-expiry-time"] != expires {
		p.t.Errorf("%s lives for %v, until %v, not for %v, until %v", g.data, g.header["ttl"], g.properties["absolute-expiry-time"], ttl, expires)
	}
}

// Bounds of times: of a header, and of programs, which know no year after 9999.
const (
	longestTTL = uint32(1<<32 - 1)
	lastTime   = frames.Timestamp(253_402_300_799_999)
)

// livesForever: a message that lives for ever says nothing of the time, as .NET does for the longest TimeSpan.
func (p *player) livesForever() {
	p.send(lasting("a", nil), lasting("b", longestTTL))
	all := p.receive(2)
	p.wantLife(all[0], nil, nil)
	p.wantLife(all[1], longestTTL, all[1].time("enqueued-time")+frames.Timestamp(longestTTL))
}

// livesLong: what an entity gives its messages may be longer than the calendar. They live to the end of that.
func (p *player) livesLong() {
	p.send(lasting("a", nil), lasting("b", uint32(60_000)))
	all := p.receive(2)
	p.wantLife(all[0], longestTTL, lastTime)
	p.wantLife(all[1], uint32(60_000), all[1].time("enqueued-time")+60_000)
	a := p.requests().ask("peek-message", 200, "from-sequence-number", int64(1), "message-count", int32(1))
	p.wantLife(p.inAnswer(a), longestTTL, lastTime)
}

// crosses: clients of AMQP 0-9-1 receive what SDKs send, and the other way round. Where sessions are required both name one.
func (p *player) crosses(group string) {
	const ttl = 600_000
	conn, err := amqp.Dial(p.at.URI())
	p.must(err)
	defer conn.Close()
	ch, err := conn.Channel()
	p.must(err)
	id := group
	if id == "" {
		id = "g"
	}
	b := frames.Append(nil, frames.Composite{Name: "header", Fields: frames.Fields{"durable": true, "priority": 4, "ttl": ttl}})
	b = frames.Append(b, frames.Composite{Name: "properties", Fields: frames.Fields{
		"message-id": "id", "correlation-id": "c", "reply-to": "r", "content-type": "text/plain", "creation-time": frames.Timestamp(1_700_000_000_000), "group-id": id,
	}})
	b = frames.Append(b, frames.Described{Descriptor: uint64(0x74), Value: frames.Map{"k", "v", "n", int32(5)}})
	p.send(frames.Append(b, frames.Described{Descriptor: uint64(0x75), Value: []byte("body")}))
	var d amqp.Delivery
	p.until("the message", func() (ok bool) {
		d, ok, err = ch.Get(p.queue, true)
		p.must(err)
		return ok
	})
	if d.MessageId != "id" || d.CorrelationId != "c" || d.ReplyTo != "r" || d.ContentType != "text/plain" || d.Expiration != fmt.Sprint(ttl) || d.Priority != 4 ||
		d.DeliveryMode != amqp.Persistent || d.Timestamp.Unix() != 1_700_000_000 || string(d.Body) != "body" {
		p.t.Errorf("received by 0-9-1: %+v", d)
	}
	if want := (amqp.Table{"k": "v", "n": int32(5), "x-group-id": id}); !maps.Equal(d.Headers, want) {
		p.t.Errorf("received by 0-9-1: %v, not %v", d.Headers, want)
	}
	p.must(ch.PublishWithContext(p.bus.ctx, "", p.queue, false, false, amqp.Publishing{
		MessageId: "id", CorrelationId: "c", ContentType: "text/plain", Expiration: fmt.Sprint(ttl), DeliveryMode: amqp.Persistent, Timestamp: time.Unix(1_700_000_000, 0),
		Headers: amqp.Table{"k": "v", "n": int32(5), "x-group-id": id}, Body: []byte("body"),
	}))
	p.from(receiver, "", p.ofGroup(group))
	p.flow(receiver, 0, 1, nil)
	g := p.take(1)[0]
	if g.properties["message-id"] != "id" || g.properties["correlation-id"] != "c" || g.properties.Text("content-type") != "text/plain" || g.properties["group-id"] != id ||
		g.properties["creation-time"] != frames.Timestamp(1_700_000_000_000) || g.header["durable"] != true || g.data != "body" || g.application.Get("k") != "v" || g.application.Get("n") != int32(5) {
		p.t.Errorf("received by AMQP 1.0: %v %v %v %q", g.header, g.properties, g.application, g.data)
	}
	p.wantLife(g, uint32(ttl), g.time("enqueued-time")+ttl)
	p.dispose(g.id, g.id, false, frames.Composite{Name: "accepted"})
	p.want(p.answer(false), "accepted")
}

// ofGroup is where messages of a session are received, or of none.
func (p *player) ofGroup(id string) frames.Fields {
	if id == "" {
		return frames.Fields{"source": source("/"+p.queue, frames.Map{})}
	}
	return p.ofSession(nil, 10_000)
}

// made is an id that the broker makes.
var made = regexp.MustCompile(`^[0-9a-f]{32}$`)

// namesNothing: messages without an id get one each, and are no duplicates.
func (p *player) namesNothing() {
	bare := frames.Append(nil, frames.Described{Descriptor: uint64(0x75), Value: []byte("bare")})
	named := append(frames.Append(nil, frames.Composite{Name: "properties", Fields: frames.Fields{"subject": "s"}}), bare...)
	p.send(bare, bare, named, named, message("a"), message("a"), message("last"))
	all := p.receive(6)
	seen := map[any]bool{}
	for i, g := range all[:4] {
		id, _ := g.properties["message-id"].(string)
		if !made.MatchString(id) || seen[id] || g.data != "bare" || (i >= 2) != (g.properties["subject"] == "s") {
			p.t.Errorf("message %d has %v", i, g.properties)
		}
		seen[id] = true
	}
	if all[4].data != "a" || all[5].data != "last" {
		p.t.Errorf("received %q and %q", all[4].data, all[5].data)
	}
}

// peeked are all messages of the queue that are shown.
func (p *player) peeked(r *pair) []string {
	p.t.Helper()
	r.credit()
	r.request(r.back(), frames.Map{"operation", "com.microsoft:peek-message"}, frames.Map{"from-sequence-number", int64(1), "message-count", int32(100)})
	var texts []string
	for _, g := range p.allIn(r.answer()) {
		texts = append(texts, g.data)
	}
	return texts
}

// seesNoneExpired: what has expired is not shown, and what was deferred and has expired is not there.
func (p *player) seesNoneExpired() {
	const short = uint32(8000) // in which they are deferred
	r := p.requests()
	p.send(lasting("expires deferred", short), lasting("lives deferred", nil))
	all := p.receive(2)
	for _, g := range all {
		p.dispose(g.id, g.id, false, modified(frames.Fields{"undeliverable-here": true}))
		p.want(p.answer(false), "modified")
	}
	other := p.bus.mustPlay(p.t, p.queue)
	other.send(lasting("expires", short), lasting("lives", nil))
	p.until("the end of messages", func() bool { return slices.Equal(p.peeked(r), []string{"lives deferred", "lives"}) })
	r.credit()
	numbers := frames.Array{Code: 0x81, Values: []any{all[0].number()}}
	if a := r.ask("receive-by-sequence-number", 404, "sequence-numbers", numbers, "receiver-settle-mode", uint32(1)); a.condition != "com.microsoft:message-not-found" {
		p.t.Errorf("deferred and expired: %v", a)
	}
	if g := p.deferred(r, all[1].number()); g.data != "lives deferred" {
		p.t.Errorf("deferred is %q", g.data)
	}
	p.flow(receiver, 2, 1, nil)
	if g := p.take(1)[0]; g.data != "lives" {
		p.t.Errorf("received %q", g.data)
	}
}

// dead receives dead letters of the queue.
func (p *player) dead(handle, count, n int) []got {
	p.t.Helper()
	p.flow(handle, count, n, nil)
	all := p.take(n)
	for _, g := range all {
		if frames.Text(g.application.Get("DeadLetterReason")) != "TTLExpiredException" || g.header["ttl"] != nil || g.properties["absolute-expiry-time"] != nil {
			p.t.Errorf("the dead letter %q: %v %v %v", g.data, g.header, g.properties, g.application)
		}
	}
	return all
}

// outlastsTTL: a message that is locked is settled and renewed as others are after its time to live. One that is given back expires then.
func (p *player) outlastsTTL() {
	const deadLink = 5
	const ttl = uint32(1500)
	other, all := p.waiting(lasting("completed", ttl), lasting("abandoned", ttl), lasting("released", ttl))
	p.want(other.transfer(ofLinks, sender, nil, lasting("witness", ttl)), "accepted") // it is over after the others
	p.from(deadLink, "/"+p.queue+"/$DeadLetterQueue", nil)
	if g := p.dead(deadLink, 0, 1)[0]; g.data != "witness" {
		p.t.Errorf("%q is dead", g.data)
	}
	r := p.requests()
	for _, g := range all {
		r.ask("renew-lock", 200, "lock-tokens", g.token())
	}
	for i, state := range []frames.Composite{{Name: "accepted"}, modified(nil), {Name: "released"}} {
		p.dispose(all[i].id, all[i].id, false, state)
		p.want(p.answer(false), state.Name)
	}
	for i, g := range p.dead(deadLink, 1, 2) {
		if want := []string{"abandoned", "released"}[i]; g.data != want {
			p.t.Errorf("%q is dead, not %q", g.data, want)
		}
	}
	p.until("the end of all messages", func() bool { return p.bus.holds(p.t, p.queue) == 0 })
}

// diesAfterLock: a message whose time to live is over when its lock ends is a dead letter then, and not before.
func (p *player) diesAfterLock() {
	_, all := p.waiting(lasting("a", uint32(500)))
	until := all[0].time("locked-until")
	p.from(anotherReceiver, "/"+p.queue+"/$DeadLetterQueue", nil)
	if g := p.dead(anotherReceiver, 0, 1)[0]; g.data != "a" || until == 0 || g.time("enqueued-time") < until {
		p.t.Errorf("%q was locked until %d, and died at %d", g.data, until, g.time("enqueued-time"))
	}
}

// livesLater: the time to live of a scheduled message begins when it is due.
func (p *player) livesLater() {
	const ttl = uint32(60_000)
	r := p.requests()
	for wait, early := 1500*time.Millisecond, false; !early; wait *= 2 { // until both are there before they are due
		at := in(wait)
		p.send(later("annotated", at, ttl))
		r.ask("schedule-message", 200, "messages", frames.List{frames.Map{"message-id", "requested", "message", later("requested", at, ttl)}})
		early = in(0) < at
		for _, g := range p.receive(2) {
			if early && (g.time("enqueued-time") != at || g.time("scheduled-enqueue-time") != at || g.annotations.Get("x-opt-message-state") != nil) {
				p.t.Errorf("%s was due at %d: %v", g.data, at, g.annotations)
			}
			if early {
				p.wantLife(g, ttl, at+frames.Timestamp(ttl))
			}
			p.dispose(g.id, g.id, false, frames.Composite{Name: "accepted"})
			p.want(p.answer(false), "accepted")
		}
		p.detach(ofLinks, sender)
		p.detach(ofLinks, receiver)
	}
}

// changesTTL: what an entity gives its messages it gives to those that come later.
func (p *player) changesTTL() {
	p.send(message("0"))
	times := []uint32{3_600_000, 600_000, 7_200_000}
	for i, text := range []string{"PT1H", "PT10M", "PT2H"} {
		p.bus.mustChange(p.t, p.queue, "QueueDescription", "<DefaultMessageTimeToLive>"+text+"</DefaultMessageTimeToLive>")
		p.want(p.transfer(ofLinks, sender, nil, message(fmt.Sprint(i+1))), "accepted")
	}
	all := p.receive(4)
	p.wantLife(all[0], nil, nil)
	for i, g := range all[1:] {
		p.wantLife(g, times[i], g.time("enqueued-time")+frames.Timestamp(times[i]))
	}
}

// schedulesInThePast: what was due before it was sent is enqueued now, with the number that the request returns.
func (p *player) schedulesInThePast() {
	past := in(-time.Hour)
	p.send(message("0"), later("1", past, nil))
	a := p.requests().ask("schedule-message", 200, "messages", frames.List{frames.Map{"message-id", "2", "message", later("2", past, nil)}})
	p.want(p.transfer(ofLinks, sender, nil, later("3", frames.Timestamp(0), nil)), "accepted")
	p.want(p.transfer(ofLinks, sender, nil, message("4")), "accepted")
	all := p.receive(5)
	for i, g := range all {
		if g.data != fmt.Sprint(i) || g.number() != int64(i+1) || g.time("enqueued-time") < all[0].time("enqueued-time") || g.annotations.Get("x-opt-message-state") != nil {
			p.t.Errorf("message %d is %q, %v", i, g.data, g.annotations)
		}
	}
	if all[1].time("scheduled-enqueue-time") != past {
		p.t.Errorf("the annotations are %v", all[1].annotations)
	}
	if numbers, _ := a.body.Get("sequence-numbers").(frames.Array); len(numbers.Values) != 1 || numbers.Values[0] != int64(3) {
		p.t.Errorf("the number is %v", a.body)
	}
}

// ruleOf is what a rule is described by: a filter that takes all, or nothing.
func ruleOf(name string, takes bool) string {
	filter := map[bool]string{true: "TrueFilter", false: "FalseFilter"}[takes]
	expression := map[bool]string{true: "1=1", false: "1=0"}[takes]
	return `<Filter i:type="` + filter + `" xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><SqlExpression>` + expression + "</SqlExpression></Filter><Name>" + name + "</Name>"
}

// schedulesBeforeRule: what is sent to a topic for later goes where the rules say when it is due.
func (p *player) schedulesBeforeRule() {
	for wait := 2 * time.Second; ; wait *= 2 { // until the rules are changed before the message is due
		topic := fmt.Sprint(p.queue, "-", wait)
		before, after := topic+"/Subscriptions/before", topic+"/Subscriptions/after"
		p.bus.mustPut(p.t, topic, "TopicDescription", "")
		p.bus.mustPut(p.t, before, "SubscriptionDescription", "")
		p.bus.mustPut(p.t, after, "SubscriptionDescription", "")
		p.bus.mustPut(p.t, after+"/Rules/none", "RuleDescription", ruleOf("none", false))
		p.bus.mustDelete(p.t, after+"/Rules/$Default")
		p.to(sender, "/"+topic)
		at := in(wait)
		p.want(p.transfer(ofLinks, sender, nil, later("later", at, nil)), "accepted")
		p.bus.mustPut(p.t, before+"/Rules/none", "RuleDescription", ruleOf("none", false))
		p.bus.mustDelete(p.t, before+"/Rules/$Default")
		p.bus.mustPut(p.t, after+"/Rules/all", "RuleDescription", ruleOf("all", true))
		if in(0) >= at {
			p.detach(ofLinks, sender)
			continue
		}
		p.from(1, "/"+after, nil)
		p.flow(1, 0, 1, nil)
		if g := p.take(1)[0]; g.data != "later" {
			p.t.Errorf("received %q", g.data)
		}
		// What the topic makes copies of goes to each subscription in its order.
		p.bus.mustPut(p.t, before+"/Rules/all", "RuleDescription", ruleOf("all", true))
		p.want(p.transfer(ofLinks, sender, nil, message("last")), "accepted")
		p.from(2, "/"+before, nil)
		p.flow(2, 0, 1, nil)
		if g := p.take(1)[0]; g.data != "last" {
			p.t.Errorf("by rules that were gone before it was due: %q", g.data)
		}
		return
	}
}

package clients

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

// boundHabits are about what is deleted at once, what is too large, rights to two entities, and transactions of an SDK's own making.
var boundHabits = []habit{
	{"TX-6 first", "", (*player).sendsByFirst},
	{"TX-9 requests", "", (*player).asksInTransaction},
	{"HT-6 forward", rules("own", "Manage"), (*player).forwardsWithTokens},
	{"HT-9 bodies", "", (*player).writesLongBodies},
	{"MG-1 deletes", "", (*player).deletesBatches},
	{"MG-1 sessions", session, (*player).deletesOfSession},
	{"LI-1 frames", "", (*player).sendsWithoutEnd},
	{"TX-5 rights", rules("sends", "Send", "listens", "Listen"), (*player).sendsViaWithRights},
}

// peeked is a message that was looked at.
type peeked struct {
	id       string
	enqueued frames.Timestamp
}

// peek looks at all messages of the player's queue.
func (r *pair) peek() (all []peeked) {
	r.t.Helper()
	a := r.ask("peek-message", 200, "from-sequence-number", int64(1), "message-count", int32(100))
	found, _ := a.body.Get("messages").(frames.List)
	for _, m := range found {
		var g got
		r.read(&g, m.(frames.Map).Get("message").([]byte))
		at, _ := g.annotations.Get("x-opt-enqueued-time").(frames.Timestamp)
		all = append(all, peeked{g.properties.Text("message-id"), at})
	}
	return all
}

// delete asks for messages to be deleted, and returns how many were.
func (r *pair) delete(count int32, before frames.Timestamp, more ...any) int {
	r.t.Helper()
	body := append(frames.Map{"message-count", count, "enqueued-time-utc", before}, more...)
	r.request(r.back(), append(frames.Map{"operation", "com.microsoft:batch-delete-messages"}, r.timeout...), body)
	a := r.answer()
	n, ok := a.body.Get("message-count").(int32)
	if want := map[bool]int{true: 200, false: 204}[n > 0]; !ok || a.status != want {
		r.t.Errorf("deleted is %v", a)
	}
	return int(n)
}

// deletesBatches: what is active and came before a time is deleted, the oldest first; what is locked, deferred or scheduled stays.
func (p *player) deletesBatches() {
	r := p.pair(ofNet, ofRequests, p.queue+"/$management")
	held := p.lock("locked", "deferred")
	p.dispose(held[1].id, held[1].id, false, modified(frames.Fields{"undeliverable-here": true}))
	p.want(p.answer(false), "modified")
	later := frames.Append(nil, frames.Described{Descriptor: uint64(0x72), Value: frames.Map{frames.Symbol("x-opt-scheduled-enqueue-time"), inAnHour}})
	r.ask("schedule-message", 200, "messages", frames.List{frames.Map{"message-id", "scheduled", "message", append(later, message("scheduled")...)}})
	p.to(sender, "/"+p.queue)
	var active []peeked
	for n := 0; len(active) < 3 || active[0].enqueued == active[len(active)-1].enqueued; n++ {
		p.want(p.transfer(ofLinks, sender, nil, message(fmt.Sprint(n))), "accepted")
		active = slices.DeleteFunc(r.peek(), func(m peeked) bool { return strings.ContainsAny(m.id, "lds") })
	}
	last := active[len(active)-1].enqueued
	before := slices.IndexFunc(active, func(m peeked) bool { return m.enqueued == last })
	if n := r.delete(1, last); n != 1 {
		p.t.Errorf("%d of one", n)
	}
	if n := r.delete(100, last); n != before-1 {
		p.t.Errorf("%d of %d before %v are deleted", n, before-1, last)
	}
	left := []string{"locked", "deferred", "scheduled"}
	for _, m := range active[before:] {
		left = append(left, m.id)
	}
	var have []string
	for _, m := range r.peek() {
		have = append(have, m.id)
	}
	if !slices.Equal(have, left) {
		p.t.Errorf("left is %q, not %q", have, left)
	}
	if n := r.delete(4000, last); n != 0 {
		p.t.Errorf("%d more are deleted", n)
	}
	if n := r.delete(4000, inAnHour); n != len(active)-before {
		p.t.Errorf("%d of the last %d", n, len(active)-before)
	}
	for _, body := range []frames.Map{
		{"message-count", int32(4001), "enqueued-time-utc", inAnHour}, {"message-count", int32(0), "enqueued-time-utc", inAnHour}, {"message-count", int32(1)}, {"enqueued-time-utc", inAnHour},
	} {
		if a := r.ask("batch-delete-messages", 400, body...); a.condition != "com.microsoft:argument-error" {
			p.t.Errorf("%v: %v", body, a)
		}
	}
	r.ask("update-disposition", 200, "disposition-status", "completed", "lock-tokens", frames.List{held[0].delivery.Get("x-opt-lock-token")})
}

// deletesOfSession: of a session alone, if the request names one.
func (p *player) deletesOfSession() {
	p.send(grouped("a", "one"), grouped("b", "two"), grouped("c", "one"), grouped("d", ""))
	r := p.pair(ofJava, ofRequests, p.queue+"/$management")
	for session, want := range map[string]int{"one": 2, "three": 0, "": 1} {
		if n := r.delete(10, inAnHour, "session-id", session); n != want {
			p.t.Errorf("%d of %d of session %q", n, want, session)
		}
	}
	if left := r.peek(); len(left) != 1 || left[0].id != "b" {
		p.t.Errorf("left is %v", left)
	}
	if n := r.delete(10, inAnHour); n != 1 {
		p.t.Errorf("%d of the last one", n)
	}
}

// sendsWithoutEnd: what is too large is refused as soon as it is, before its end has come.
func (p *player) sendsWithoutEnd() {
	limits := map[string]int{p.queue: 1 << 20, p.queue + "/$management": 2 << 20, "$cbs": 1 << 20}
	for address, limit := range limits {
		for _, settled := range []bool{false, true} {
			p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host})
			tokens := p.pair(ofNet, ofTokens, "$cbs")
			audience := "sb://" + p.host + "/"
			if a := tokens.put(audience, busToken(audience), inAnHour); a.status != 202 {
				p.t.Fatal(a)
			}
			tokens.close()
			if answer := p.to(sender, address); frames.Int(answer["max-message-size"]) != limit {
				p.t.Fatalf("%s takes %v", address, answer["max-message-size"])
			}
			f := frames.Fields{"handle": sender, "delivery-id": p.next, "delivery-tag": "t", "settled": settled, "more": true}
			part := make([]byte, largestFrame-512)
			for sent := 0; sent <= limit; sent += len(part) {
				p.must(p.Send(ofLinks, "transfer", f, part...))
				f = frames.Fields{"handle": sender, "more": true}
			}
			if !settled {
				p.want(p.answer(true), "rejected amqp:link:message-size-exceeded")
			}
			p.detached("amqp:link:message-size-exceeded", "")
		}
	}
	p.send(message("small"))
}

// sendsViaWithRights: who has an entity hand messages on needs the right to send to both.
func (p *player) sendsViaWithRights() {
	to := p.queue + "-To"
	p.bus.mustPut(p.t, to, "QueueDescription", rules("sends", "Send", "listens", "Listen"))
	via := func(handle int) frames.Fields {
		return p.attach(ofLinks, handle, false, frames.Fields{
			"source": source(own, nil), "target": target(p.queue), "properties": frames.Map{frames.Symbol("com.microsoft:transfer-destination-address"), to},
		})
	}
	for i, c := range [][2]string{{"sends", ""}, {"", "sends"}, {"sends", "listens"}, {"listens", "sends"}, {"sends", "sends"}} {
		p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host})
		r := p.pair(ofNet, ofTokens, "$cbs")
		for j, name := range []string{p.queue, to} {
			audience, rule := "sb://"+p.host+"/"+name, c[j]
			if rule != "" {
				if a := r.put(audience, tokenOf(rule, keyOf(rule), audience, time.Now().Add(time.Hour)), inAnHour); a.status != 202 {
					p.t.Fatal(a)
				}
			}
		}
		switch answer := via(sender); i {
		case 4:
			p.want(p.transfer(ofLinks, sender, nil, message("a")), "accepted")
		case 0, 2:
			p.refused(answer, "target", "amqp:unauthorized-access", "/"+to+"'")
		default:
			p.refused(answer, "target", "amqp:unauthorized-access", "/"+p.queue+"'")
		}
	}
	p.awaitHolds(to, 1)
	p.bus.mustChange(p.t, to, "QueueDescription", rules("listens", "Listen")) // the right to it ends, and with it the link
	p.detached("amqp:unauthorized-access", "/"+to+"'")
}

// begin begins a transaction on a link to a coordinator, which is attached to a channel.
func (p *player) begin(channel uint16, handle int) (txn []byte) {
	p.t.Helper()
	p.attach(channel, handle, false, frames.Fields{"source": source(own, nil), "target": frames.Composite{Name: "coordinator"}})
	return p.declareBy(channel, handle)
}

// sendsByFirst: .NET has transactions over entities by a controller in its first session: what it sends there to another entity than
// that of its first receiver goes by way of that one.
func (p *player) sendsByFirst() {
	const controller, other = 9, 8
	for i, fail := range []bool{true, false} {
		to := p.queue + fmt.Sprint("-To-", i)
		p.bus.mustCreate(p.t, to, "")
		p.send(message("given"))
		p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host})
		p.putToken(ofNet, ofTokens)
		txn := p.begin(ofLinks, controller)
		p.from(receiver, p.queue, nil)
		p.flow(receiver, 0, 1, nil)
		g := p.take(1)[0]
		p.to(other, to)
		p.want(p.transfer(ofLinks, other, txn, message("onward")), "transactional-state accepted")
		p.want(p.complete(g.id, txn), "transactional-state accepted")
		if n := p.bus.holds(p.t, to); n != 0 {
			p.t.Errorf("%d messages arrive before the discharge", n)
		}
		p.want(p.transfer(ofLinks, controller, nil, control("discharge", frames.Fields{"txn-id": txn, "fail": fail})), "accepted")
		if fail {
			p.want(p.complete(g.id, nil), "accepted") // it is still locked
			if n := p.bus.holds(p.t, to); n != 0 {
				p.t.Errorf("%d messages arrive that were taken back", n)
			}
		} else {
			p.awaitHolds(to, 1)
		}
		p.awaitHolds(p.queue, 0)
		p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host})
		p.putToken(ofNet, ofTokens)
	}
}

// asksInTransaction: a disposition by request takes effect with its transaction, whose id the request's transfer has.
func (p *player) asksInTransaction() {
	const controller = 9
	r := p.pair(ofPython, ofRequests, p.queue+"/$management")
	for _, fail := range []bool{true, false} {
		g := p.lock("given")[0]
		txn := p.begin(ofOthers, controller)
		tokens := frames.List{g.delivery.Get("x-opt-lock-token")}
		r.within = txn
		r.ask("update-disposition", 200, "disposition-status", "completed", "lock-tokens", tokens)
		if a := r.ask("schedule-message", 400, "messages", frames.List{frames.Map{"message-id", "m", "message", message("m")}}); a.condition != "com.microsoft:argument-error" {
			p.t.Errorf("scheduled in a transaction: %v", a)
		}
		r.within = nil
		r.ask("renew-lock", 200, "lock-tokens", tokens) // it is still locked
		p.want(p.transfer(ofOthers, controller, nil, control("discharge", frames.Fields{"txn-id": txn, "fail": fail})), "accepted")
		status := 410
		if fail {
			status = 200
		}
		r.ask("update-disposition", status, "disposition-status", "completed", "lock-tokens", tokens)
		p.awaitHolds(p.queue, 0)
		p.detach(ofOthers, controller)
		p.detach(ofLinks, receiver)
	}
}

// forwardsWithTokens: who may manage one entity has it forward to another one with a token for that, too.
func (p *player) forwardsWithTokens() {
	to := p.queue + "-To"
	p.bus.mustPut(p.t, to, "QueueDescription", rules("other", "Manage"))
	sign := func(rule, name string) string {
		return tokenOf(rule, keyOf(rule), "http://"+p.at.Manage+"/"+name, time.Now().Add(time.Hour))
	}
	const forward, dead = "ServiceBusSupplementaryAuthorization", "ServiceBusDlqSupplementaryAuthorization"
	for _, c := range []struct {
		element string
		headers []string
		status  int
	}{
		{"ForwardTo", nil, 401}, {"ForwardTo", []string{forward, sign("own", p.queue)}, 401}, {"ForwardTo", []string{dead, sign("other", to)}, 401},
		{"ForwardTo", []string{forward, sign("other", to)}, 200},
		{"ForwardDeadLetteredMessagesTo", []string{forward, sign("other", to)}, 401}, {"ForwardDeadLetteredMessagesTo", []string{dead, sign("other", to)}, 200},
	} {
		body := entry("QueueDescription", "<"+c.element+">"+to+"</"+c.element+">"+rules("own", "Manage"))
		headers := append([]string{"Authorization", sign("own", p.queue), "If-Match", "*"}, c.headers...)
		if status, text := p.call("PUT", p.queue, body, headers...); status != c.status {
			p.t.Errorf("%s with %v: %d %s", c.element, c.headers, status, text)
		}
	}
}

// writesLongBodies: what is too long, too deep, or has entities is refused, and nothing is made.
func (p *player) writesLongBodies() {
	queue := p.queue + "-Made"
	for name, body := range map[string]string{
		"long":    entry("QueueDescription", strings.Repeat(" ", 1<<20)),
		"deep":    entry("QueueDescription", strings.Repeat("<a>", 40)+strings.Repeat("</a>", 40)),
		"typed":   `<!DOCTYPE entry [<!ENTITY e "PT17S">]>` + entry("QueueDescription", "<LockDuration>&e;</LockDuration>"),
		"no XML":  "{}",
		"cut off": entry("QueueDescription", "")[:100],
	} {
		if status, text := p.call("PUT", queue, body); status != 400 || !strings.Contains(text, "TrackingId:") {
			p.t.Errorf("%s: %d %s", name, status, text)
		}
		if status, text := p.call("GET", queue, ""); status != 404 {
			p.t.Errorf("%s has made something: %d %s", name, status, text)
		}
	}
}

package clients

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

// linkHabits are about connections, tokens, links and sessions.
var linkHabits = []habit{
	{"TR-1 mechanism", "", (*player).choosesMechanism},
	{"TR-5 open", "", (*player).opensAnyHost},
	{"CB-2 token", "", (*player).putsTokens},
	{"CB-3 answer", "", (*player).findsAnswers},
	{"CB-8 audience", "", (*player).namesAudiences},
	{"ER-3 tracking", "", (*player).tracksErrors},
	{"AD-1 address", "", (*player).spellsAddresses},
	{"AD-3 missing", "", (*player).missesEntity},
	{"LN-1 attach", "", (*player).attaches},
	{"LN-7 drain", "", (*player).drains},
	{"SE-1 filter", session, (*player).filtersSessions},
	{"SE-2 next", session, (*player).waitsForSession},
	{"SE-5 renewal", session, (*player).renewsSession},
}

// choosesMechanism: MSSBCBS, which .NET takes, is the first one, succeeds with any response, and gives no rights (TR-3).
func (p *player) choosesMechanism() {
	for _, response := range []any{nil, []byte{}, "anything"} {
		mechanisms, _ := p.open(frames.Fields{"mechanism": "MSSBCBS", "initial-response": response, "hostname": p.host}, frames.Fields{"hostname": p.host})
		if !slices.Equal(mechanisms, []string{"MSSBCBS", "ANONYMOUS", "PLAIN"}) {
			p.t.Errorf("the mechanisms are %q", mechanisms)
		}
		p.refused(p.to(sender, "/"+p.queue), "target", "amqp:unauthorized-access", "")
		p.refused(p.from(receiver, "/"+p.queue, nil), "source", "amqp:unauthorized-access", "")
		p.putToken(ofNet, ofTokens)
		p.send(message("a"))
	}
}

// opensAnyHost: whatever the namespace is called, it is that of the listener (CS-3), and what the client wants to hear within 60 s the
// broker wants within a time of its own.
func (p *player) opensAnyHost() {
	_, port, _ := strings.Cut(p.at.Bus, ":")
	for _, host := range []any{nil, "127.0.0.1", p.at.Bus, "LOCALHOST", "Some.servicebus.windows.net", "sb.example:" + port} {
		for _, k := range sdks {
			_, opened := p.open(frames.Fields{"mechanism": "ANONYMOUS"}, frames.Fields{"hostname": host, "idle-time-out": 60_000})
			if n := opened.Int("idle-time-out"); n <= 0 || opened["offered-capabilities"] != nil { // TR-8
				p.t.Errorf("answered with %v", opened)
			}
			p.putToken(k, ofTokens)
		}
	}
	p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host, "idle-time-out": 1000})
	if f, err := p.ReadFrame(); err != nil || f.Name != "" {
		p.t.Errorf("heard %v, %v", f, err)
	}
}

// putsTokens: an expiration may be of any type, or missing, and does not count; types of tokens do.
func (p *player) putsTokens() {
	audience := "sb://" + p.host + "/" + p.queue
	for i, k := range sdks {
		p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host})
		r := p.pair(k, ofTokens, "$cbs")
		for _, expires := range []any{inAnHour, frames.Timestamp(1), nil, "1795738022", uint64(1), int64(1), int32(1)} {
			if a := r.put(audience, busToken(audience), expires); a.status != 202 || a.condition != "" {
				p.t.Errorf("%s, %v: %v", k.name, expires, a)
			}
		}
		for token, status := range map[string]int{
			busToken("sb://other/nothing"): 401, "SharedAccessSignature sr=x": 400, strings.Replace(busToken(audience), busRule, "nobody", 1): 401, "": 400,
		} {
			if a := r.put(audience, token, inAnHour); a.status != status {
				p.t.Errorf("%s, %q: %v, not %d", k.name, token, a, status)
			}
		}
		p.send(message(fmt.Sprint(i)))
	}
}

// findsAnswers: an answer goes to the link whose address a request names, else to the link of that name, in the session of the
// request if there are two. Python does not say where it goes: there is one.
func (p *player) findsAnswers() {
	p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host})
	audience := "sb://" + p.host + "/" + p.queue
	p.putToken(ofPython, ofTokens)
	first, second := p.pair(ofJava, ofRequests, p.queue+"/$management"), p.pair(ofJava, ofOthers, p.queue+"/$management")
	first.ask("peek-message", 204, "from-sequence-number", int64(1), "message-count", int32(1))
	second.ask("peek-message", 204, "from-sequence-number", int64(1), "message-count", int32(1))
	first.ask("peek-message", 204, "from-sequence-number", int64(1), "message-count", int32(1))

	p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host})
	named, addressed := ofNet, ofNet
	named.target = func(string) string { return "" }
	addressed.target = func(string) string { return fmt.Sprint("duplex", firstRequest, ":receiver") } // the name of the other one
	r := p.pair(named, ofTokens, "$cbs")
	other := &pair{player: p, sdk: addressed, channel: ofTokens, handle: p.handles, node: "$cbs"}
	p.attach(ofTokens, other.handle+1, true, frames.Fields{"snd-settle-mode": 1, "source": source("$cbs", nil), "target": target(addressed.target(""))})
	p.must(p.Send(ofTokens, "flow", frames.Fields{
		"next-incoming-id": 0, "incoming-window": 1000, "next-outgoing-id": 0, "outgoing-window": 1000, "handle": other.handle + 1, "delivery-count": 0, "link-credit": 5,
	}))
	put := frames.Map{"operation", "put-token", "type", "servicebus.windows.net:sastoken", "name", audience}
	r.request(addressed.target(""), put, busToken(audience))
	other.requested = r.requested
	if a := other.answer(); a.status != 202 {
		p.t.Errorf("by its address: %v", a)
	}
	p.detach(ofTokens, other.handle+1)
	r.request(addressed.target(""), put, busToken(audience))
	if a := r.answer(); a.status != 202 {
		p.t.Errorf("by its name: %v", a)
	}
}

// namesAudiences: a token is for what its audience names, however SDKs spell that.
func (p *player) namesAudiences() {
	for _, k := range sdks {
		for _, audience := range []string{
			"sb://HOST/QUEUE", "amqp://HOST/QUEUE", "amqps://HOST/QUEUE", "sb://HOST/QUEUE/", "amqp://HOST/QUEUE/", "sb://HOST:5672/QUEUE", "http://HOST/QUEUE/", "sb://HOST/", "amqp://HOST",
			"sb://HOST/QUEUE/$management", "amqp://HOST/QUEUE/$management",
		} {
			audience = strings.NewReplacer("HOST", p.host, "QUEUE", p.queue).Replace(audience)
			p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host})
			r := p.pair(k, ofTokens, "$cbs")
			if a := r.put(audience, busToken(audience), k.expires); a.status != 202 {
				p.t.Errorf("%s, %s: %v", k.name, audience, a)
			}
			p.to(sender, p.queue) // allowed
		}
	}
}

// spellsAddresses: .NET attaches to the path of a URL, Python to a whole one, and the case of no part of it matters.
func (p *player) spellsAddresses() {
	topic := p.queue + "-Topic"
	p.bus.mustPut(p.t, topic, "TopicDescription", "")
	p.bus.mustPut(p.t, topic+"/Subscriptions/Some", "SubscriptionDescription", "")
	for i, c := range [][2]string{
		{"/QUEUE", "amqps://HOST/QUEUE"}, {"amqps://HOST/QUEUE", "/Q"}, {"sb://HOST:5672/QUEUE/", "Q/"},
		{"/TOPIC", "/TOPIC/Subscriptions/Some"}, {"amqps://HOST/TOPIC", "amqps://HOST/T/subscriptions/some"}, {"T", "T/subscriptions/SOME/"},
	} {
		names := strings.NewReplacer("HOST", p.host, "QUEUE", p.queue, "Q", strings.ToLower(p.queue), "TOPIC", topic, "T", strings.ToLower(topic))
		to, from, text := names.Replace(c[0]), names.Replace(c[1]), fmt.Sprint(i)
		answer := p.to(2*i, to)
		p.want(p.transfer(ofLinks, 2*i, nil, message(text)), "accepted")
		if have := p.from(2*i+1, from, nil).Of("source").Text("address"); have != from || answer.Of("target").Text("address") != to {
			p.t.Errorf("answered with %s and %v, not %s and %s", have, answer["target"], from, to)
		}
		p.flow(2*i+1, 0, 1, nil)
		g := p.take(1)[0]
		if g.data != text {
			p.t.Errorf("%s gets %q, not %q", from, g.data, text)
		}
		dead := []string{"/" + p.queue + "/$DeadLetterQueue", "/" + topic + "/Subscriptions/Some/$deadletterqueue"}[i/3]
		p.dispose(g.id, g.id, false, frames.Composite{Name: "rejected"})
		p.want(p.answer(false), "rejected")
		p.from(100+i, dead, frames.Fields{"snd-settle-mode": 1})
		p.flow(100+i, 0, 1, nil)
		if g := p.take(1)[0]; g.data != text {
			p.t.Errorf("%s gets %q, not %q", dead, g.data, text)
		}
	}
}

// missesEntity: the sentence by which SDKs know that there is no such entity.
func (p *player) missesEntity() {
	const missing = "missing/entity"
	sentence := "The messaging entity 'sb://" + p.host + "/" + missing + "' could not be found."
	p.refused(p.to(sender, "/"+missing), "target", "amqp:not-found", sentence)
	p.refused(p.from(receiver, "amqps://"+p.host+"/"+missing, nil), "source", "amqp:not-found", sentence)
	p.refused(p.attach(ofRequests, 0, false, frames.Fields{"source": source(own, nil), "target": target(missing + "/$management")}), "target", "amqp:not-found", sentence)
	p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host})
	for _, audience := range []string{"sb://" + p.host + "/" + missing, "amqp://" + p.host + "/" + missing + "/$management"} {
		r := p.pair(ofJava, ofTokens, "$cbs")
		if a := r.put(audience, busToken("sb://"+p.host+"/"), inAnHour); a.status != 404 || !strings.Contains(a.description, sentence) {
			p.t.Errorf("%s: %v", audience, a)
		}
		r.close()
	}
}

// attaches: what is said of a link is answered with, and what is not for this broker is not.
func (p *player) attaches() {
	for handle, answer := range []frames.Fields{p.to(0, "/"+p.queue), p.from(1, "/"+p.queue, nil)} {
		ours, theirs := "target", "source"
		if handle == 1 {
			ours, theirs = theirs, ours
		}
		if answer.Of(ours).Text("address") != "/"+p.queue || answer.Of(theirs).Text("address") != own {
			p.t.Errorf("link %d is from %v to %v", handle, answer["source"], answer["target"])
		}
		all := answer.Map("properties")
		_, isSize := answer["max-message-size"].(uint64)
		_, isBatch := all.Get("com.microsoft:max-message-batch-size").(uint64)
		want := 1 + 1 - handle
		if all.Get("com.microsoft:tracking-id") != own || len(all) != 2*want || handle == 0 && !(isSize && isBatch) {
			p.t.Errorf("link %d has %v, %v", handle, answer["max-message-size"], all)
		}
	}
	p.want(p.transfer(ofLinks, 0, nil, message("a")), "accepted")
	p.flow(1, 0, 1, nil)
	p.take(1)
}

// drains: a link that is drained uses up its credit, and says so, whether or not it has some.
func (p *player) drains() {
	p.send(message("a"), message("b"))
	if answer := p.from(receiver, "/"+p.queue, nil); answer["initial-delivery-count"] != uint32(0) { // Python does not attach without
		p.t.Errorf("attached with %v", answer)
	}
	for _, c := range []struct{ messages, count, credit, end int }{{2, 0, 5, 5}, {0, 5, 2, 7}, {0, 7, 0, 7}} {
		p.flow(receiver, c.count, c.credit, frames.Fields{"drain": true})
		p.take(c.messages)
		f := p.await("flow").Fields
		if f.Int("handle") != receiver || f["drain"] != true || f.Int("link-credit") != 0 || f.Int("delivery-count") != c.end {
			p.t.Errorf("drained with %v, not up to %d", f, c.end)
		}
	}
}

// sessionFilter is the name of the filter for a session, and described what Go says of its value.
const sessionFilter = frames.Symbol("com.microsoft:session-filter")

func described(v any) any { return frames.Described{Descriptor: uint64(0x137000000C), Value: v} }

// grouped is a message of a session.
func grouped(id, session string) []byte {
	b := frames.Append(nil, frames.Composite{Name: "properties", Fields: frames.Fields{"message-id": id, "group-id": session}})
	return frames.Append(b, frames.Described{Descriptor: uint64(0x75), Value: []byte(id)})
}

// filtersSessions: the answer has the id in the form of the request, and until when the session is held as .NET counts.
func (p *player) filtersSessions() {
	named := func(v any) any { return frames.Described{Descriptor: sessionFilter, Value: v} }
	bare := func(v any) any { return v }
	p.send(grouped("a", "next"))
	for i, form := range []func(any) any{bare, described, named} {
		for _, id := range []any{"mine", nil} {
			answer := p.from(receiver, "", frames.Fields{"source": source("/"+p.queue, frames.Map{sessionFilter, form(id)})})
			want := form("next")
			if id != nil {
				want = form(id)
			}
			if have := answer.Of("source").Map("filter").Get(string(sessionFilter)); have != want {
				p.t.Errorf("form %d: %v is answered with %v", i, id, have)
			}
			ticks, ok := answer.Map("properties").Get("com.microsoft:locked-until-utc").(int64)
			if left := time.Until(time.UnixMilli((ticks - ticks1970) / 10_000)); !ok || left < 30*time.Second || left > 70*time.Second { // PT1M
				p.t.Errorf("held for %v: %v", left, answer.Map("properties"))
			}
			if id == nil {
				p.flow(receiver, 0, 1, nil)
				if g := p.take(1)[0]; g.properties.Text("group-id") != "next" {
					p.t.Errorf("received %v", g.properties)
				}
			}
			p.detach(ofLinks, receiver)
		}
	}
}

// ticks1970 is when 1970 began, in ticks of .NET.
const ticks1970 = 621_355_968_000_000_000

// waitsForSession: the attach says how long it waits for the next session.
func (p *player) waitsForSession() {
	next := frames.Fields{"source": source("/"+p.queue, frames.Map{sessionFilter, nil})}
	for _, timeout := range []any{uint32(200), int64(200), int32(200)} {
		next["properties"] = frames.Map{frames.Symbol("com.microsoft:timeout"), timeout}
		began := time.Now()
		p.refused(p.from(receiver, "", next), "source", "com.microsoft:timeout", "")
		if took := time.Since(began); took < 200*time.Millisecond {
			p.t.Errorf("%v: it waited for %v only", timeout, took)
		}
	}
}

// renewsSession: requests about a session come by links of another session of AMQP, and name the one that holds it.
func (p *player) renewsSession() {
	p.from(receiver, "", frames.Fields{"source": source("/"+p.queue, frames.Map{sessionFilter, "s"})})
	for _, k := range sdks {
		r := p.pair(k, ofRequests, p.queue+"/$management")
		a := r.ask("renew-session-lock", 200, "session-id", "s")
		if until, ok := a.body.Get("expiration").(frames.Timestamp); !ok || time.Until(time.UnixMilli(int64(until))) < 30*time.Second {
			p.t.Errorf("%s: renewed is %v", k.name, a.body)
		}
		if a = r.ask("get-session-state", 200, "session-id", "s"); a.body.Get("session-state") != nil || !slices.Equal(a.body.Keys(), []string{"session-state"}) {
			p.t.Errorf("%s: the state is %v", k.name, a.body)
		}
		r.ask("set-session-state", 200, "session-id", "s", "session-state", []byte(k.name))
		if a = r.ask("get-session-state", 200, "session-id", "s"); frames.Text(a.body.Get("session-state")) != k.name {
			p.t.Errorf("%s: the state is %v", k.name, a.body)
		}
		r.ask("set-session-state", 200, "session-id", "s", "session-state", nil)
		if a = r.ask("renew-session-lock", 410, "session-id", "t"); a.condition != "com.microsoft:session-lock-lost" {
			p.t.Errorf("%s: the condition is %q", k.name, a.condition)
		}
		r.close()
	}
}

// tracksErrors: whatever is refused, the log says more of it, also of what no SDK should do.
func (p *player) tracksErrors() {
	p.refused(p.attach(ofLinks, receiver, true, frames.Fields{
		"source": source(p.queue, nil), "target": target(own), "unsettled": frames.Map{[]byte("tag"), nil},
	}), "source", "amqp:not-implemented", "")
	p.to(sender, p.queue)
	p.sendIn(largestFrame-512, nil, message(strings.Repeat("x", 1<<20)))
	state := p.answer(true)
	p.want(state, "rejected amqp:link:message-size-exceeded")
	p.tracked(state.Fields.Of("error").Text("description"))
	p.detached("amqp:link:message-size-exceeded", "")
	p.to(sender, p.queue)
	p.want(p.transfer(ofLinks, sender, nil, []byte("x")), "rejected amqp:decode-error")

	p.must(p.Send(ofRequests, "transfer", frames.Fields{"handle": 77, "delivery-id": 0, "delivery-tag": "x"}, message("x")...))
	p.ended("end", "amqp:session:unattached-handle")
	p.must(p.Send(0, "open", frames.Fields{"container-id": "again"}))
	p.ended("close", "amqp:illegal-state")
}

// ended wants the end of a session or the connection with a condition.
func (p *player) ended(name, condition string) {
	p.t.Helper()
	f, err := p.Await(name)
	p.must(err)
	e := f.Fields.Of("error")
	if e.Text("condition") != condition {
		p.t.Errorf("%s says %v, not %s", name, e, condition)
	}
	p.tracked(e.Text("description"))
}

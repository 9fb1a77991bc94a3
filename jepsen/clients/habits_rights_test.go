package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/frames"
)

// rightHabits are about what rules allow, and for how long.
var rightHabits = []habit{
	{"CB-9 text", rules("known", "Send"), (*player).guessesRules},
	{"CB-10 requests", rules("listens", "Listen", "sends", "Send", "manages", "Manage"), (*player).asksWithoutRight},
	{"CB-11 audit", "", (*player).isAudited},
	{"CB-12 renewal", "", (*player).renewsToken},
	{"CB-13 rule", rules("own", "Listen"), (*player).losesRule},
}

// keyOf is the key of a rule of the tests.
func keyOf(rule string) string { return "key of " + rule }

// rules is the element of an entity for its own rules, each of which has one right.
func rules(pairs ...string) string {
	all := ""
	for i := 0; i < len(pairs); i += 2 {
		all += "<AuthorizationRule>" + inRule(pairs[i], pairs[i+1]) + "</AuthorizationRule>"
	}
	return "<AuthorizationRules>" + all + "</AuthorizationRules>"
}

func inRule(name, right string) string {
	return "<Rights><AccessRights>" + right + "</AccessRights></Rights><KeyName>" + name + "</KeyName><PrimaryKey>" + keyOf(name) + "</PrimaryKey>"
}

// openAs connects with a token of a rule for an entity.
func (p *player) openAs(rule, name string) {
	p.t.Helper()
	p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host})
	audience := "sb://" + p.host + "/" + name
	if a := p.pair(ofNet, ofTokens, "$cbs").put(audience, tokenOf(rule, keyOf(rule), audience, time.Now().Add(time.Hour)), inAnHour); a.status != 202 {
		p.t.Fatalf("the token of %s is answered with %v", rule, a)
	}
}

// guessesRules: who has no key learns from no answer whether there is a rule.
func (p *player) guessesRules() {
	p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host})
	r := p.pair(ofNet, ofTokens, "$cbs")
	audience := "sb://" + p.host + "/" + p.queue
	said, saidOverHTTP := map[string]bool{}, map[string]bool{}
	for _, end := range []time.Time{time.Now().Add(time.Hour), time.Now().Add(-time.Hour)} { // that it is over learns who has the key
		for _, rule := range []string{busRule, "known", "unknown", "Known"} {
			token := tokenOf(rule, "guess", audience, end)
			a := r.put(audience, token, inAnHour)
			said[fmt.Sprint(a.status, a.condition, tracking.ReplaceAllString(a.description, ""))] = true
			status, text := p.call("GET", p.queue, "", "Authorization", token)
			saidOverHTTP[fmt.Sprint(status, untimed(text))] = true
		}
	}
	if len(said) != 1 || len(saidOverHTTP) != 1 {
		p.t.Errorf("answered with %v, over HTTP with %v", said, saidOverHTTP)
	}
	for _, rule := range []string{busRule, "known", "unknown"} {
		if _, err := frames.Login(p.bus.ctx, p.at.Bus, rule, "guess", p.host); err == nil || !strings.Contains(err.Error(), "login refused with 1") {
			p.t.Errorf("%s: the login says %v", rule, err)
		}
	}
}

// untimed is an error of HTTP without what tells one from another.
func untimed(text string) string {
	before, _, _ := strings.Cut(text, " TrackingId:")
	return before
}

// rightful is a request, and the right that it needs.
type rightful struct {
	operation, right string
	body             frames.Map
}

// entityRequests are those about messages, ruleRequests those about rules.
var (
	entityRequests = []rightful{
		{"peek-message", "Listen", frames.Map{"from-sequence-number", int64(1), "message-count", int32(1)}},
		{"renew-lock", "Listen", frames.Map{"lock-tokens", frames.List{frames.UUID{}}}},
		{"receive-by-sequence-number", "Listen", frames.Map{"sequence-numbers", frames.List{int64(4711)}, "receiver-settle-mode", uint32(0)}},
		{"update-disposition", "Listen", frames.Map{"disposition-status", "completed", "lock-tokens", frames.List{frames.UUID{}}}},
		{"renew-session-lock", "Listen", frames.Map{"session-id", "s"}},
		{"set-session-state", "Listen", frames.Map{"session-id", "s", "session-state", []byte("x")}},
		{"get-session-state", "Listen", frames.Map{"session-id", "s"}},
		{"get-message-sessions", "Listen", frames.Map{"last-updated-time", frames.Timestamp(253_402_300_800_000), "skip", int32(0), "top", int32(10)}},
		{"batch-delete-messages", "Listen", frames.Map{"message-count", int32(1), "enqueued-time-utc", inAnHour}},
		{"schedule-message", "Send", frames.Map{"messages", frames.List{frames.Map{"message-id", "a", "message", message("a")}}}},
		{"cancel-scheduled-message", "Send", frames.Map{"sequence-numbers", frames.List{int64(4711)}}},
	}
	ruleRequests = []rightful{
		{"enumerate-rules", "Manage", frames.Map{"top", int32(10), "skip", int32(0)}},
		{"add-rule", "Manage", frames.Map{"rule-name", "r", "rule-description", frames.Map{"sql-filter", frames.Map{"expression", "n = 1"}}}},
		{"remove-rule", "Manage", frames.Map{"rule-name", "r"}},
	}
)

// asksWithoutRight: each request asks for its right, whatever the others need, and the links live on.
func (p *player) asksWithoutRight() {
	topic := p.queue + "-Topic"
	subscription := topic + "/Subscriptions/s"
	p.bus.mustPut(p.t, topic, "TopicDescription", rules("listens", "Listen", "sends", "Send", "manages", "Manage"))
	p.bus.mustPut(p.t, subscription, "SubscriptionDescription", "")
	for rule, right := range map[string]string{"listens": "Listen", "sends": "Send", "manages": "Manage"} {
		for name, requests := range map[string][]rightful{p.queue: entityRequests, subscription: ruleRequests} {
			entity, _, _ := strings.Cut(name, "/")
			p.openAs(rule, entity)
			for _, k := range sdks {
				r := p.pair(k, ofRequests, name+"/$management")
				for _, q := range requests {
					r.request(r.back(), append(frames.Map{"operation", "com.microsoft:" + q.operation}, r.timeout...), q.body)
					a := r.answer()
					refused := a.status == 401 && a.condition == "amqp:unauthorized-access" && strings.Contains(a.description, "'"+q.right+"' claim")
					if allowed := right == q.right || right == "Manage"; allowed == (a.status == 401) || refused == allowed {
						p.t.Errorf("%s asks with %s: %v", q.operation, right, a)
					}
				}
				r.close()
			}
		}
	}
}

// audited is a line of the audit log.
type audited struct {
	Kind, Action, User, Protocol, Address, Outcome string

	Target map[string]string
}

// records reads the lines of the audit log so far.
func (p *player) records() (all []audited) {
	p.t.Helper()
	text, err := os.ReadFile(p.bus.audited)
	p.must(err)
	if strings.Contains(string(text), keyOf("")) {
		p.t.Error("a key is in the audit log")
	}
	for line := range strings.Lines(string(text)) {
		var r audited
		if strings.HasSuffix(line, "\n") {
			p.must(json.Unmarshal([]byte(line), &r))
			all = append(all, r)
		}
	}
	return all
}

// recorded wants a line in the audit log.
func (p *player) recorded(want audited) {
	p.t.Helper()
	var found []audited
	ctx, cancel := context.WithTimeout(p.bus.ctx, 10*time.Second)
	defer cancel()
	err := await.Until(ctx, 20*time.Millisecond, fmt.Sprintf("%+v in the audit log", want), func() (bool, error) {
		found = nil
		for _, r := range p.records() {
			same := r.Kind == want.Kind && r.Action == want.Action && r.User == want.User && r.Protocol == want.Protocol && r.Outcome == want.Outcome
			for name, value := range want.Target {
				same = same && r.Target[name] == value
			}
			if same && strings.HasPrefix(r.Address, "127.0.0.1") {
				found = append(found, r)
			}
		}
		return len(found) > 0, nil
	})
	if err != nil || len(found) != 1 {
		p.t.Errorf("%v: %+v, not once %+v", err, found, want)
	}
}

// isAudited: the audit log says who changes entities, rules and keys, and never a key. Of what is refused it says a few lines in ten
// seconds.
func (p *player) isAudited() {
	topic, rule := p.queue+"-Topic", p.queue+"-rule"
	p.bus.mustPut(p.t, topic, "TopicDescription", rules("manages", "Manage"))
	p.bus.mustPut(p.t, topic+"/Subscriptions/s", "SubscriptionDescription", "")
	const http, amqp = "servicebus", "amqp10"
	changed := func(protocol, action, user, entity string) audited {
		return audited{Kind: "definition", Action: action, User: user, Protocol: protocol, Outcome: "ok", Target: map[string]string{"entity": entity}}
	}
	of := func(action, user, entity string) audited { return changed(http, action, user, entity) }
	p.recorded(of("CreateOrUpdateEntity", busRule, p.queue))
	p.recorded(of("CreateOrUpdateSubscription", busRule, topic+"/Subscriptions/s"))
	policy := "$AuthorizationRules/" + rule
	p.bus.mustManage(p.t, p.at, "PUT", policy, entry("AuthorizationRule", inRule(rule, "Listen")), 201)
	p.recorded(of("CreateOrUpdateAuthorizationRule", busRule, policy))
	p.bus.mustManage(p.t, p.at, "DELETE", policy, "", 200)
	p.recorded(of("DeleteAuthorizationRule", busRule, policy))
	p.openAs("manages", topic)
	r := p.pair(ofJava, ofRequests, topic+"/Subscriptions/s/$management")
	r.ask("add-rule", 200, "rule-name", "r", "rule-description", frames.Map{"sql-filter", frames.Map{"expression", "n = 1"}})
	p.recorded(changed(amqp, "add-rule", "manages", topic+"/Subscriptions/s/Rules/r"))
	r.ask("remove-rule", 200, "rule-name", "r")
	p.recorded(changed(amqp, "remove-rule", "manages", topic+"/Subscriptions/s/Rules/r"))
}

// shortToken puts a token that ends, and returns when.
func (r *pair) shortToken(audience string, end time.Time) {
	r.t.Helper()
	if a := r.put(audience, tokenOf(busRule, busKey, audience, end), nil); a.status != 202 {
		r.t.Fatalf("the token is answered with %v", a)
	}
}

// renewsToken: links end with the token that they depend on, unless a newer one covers them; what they have received stays locked.
func (p *player) renewsToken() {
	open := func(end time.Time) (*player, *pair) {
		q := p.bus.mustKnow(p.t, p.queue)
		q.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": q.host})
		r := q.pair(ofNet, ofTokens, "$cbs")
		r.shortToken("sb://"+q.host+"/"+q.queue, end)
		return q, r
	}
	ends := time.Now().Add(10 * time.Second).Truncate(time.Second)
	same, sameTokens := open(ends.Add(-time.Second))
	wider, widerTokens := open(ends.Add(-time.Second))
	loser, _ := open(ends)
	locked := loser.lock("a")[0]
	loser.to(sender, "/"+p.queue)
	for _, q := range []*player{same, wider} {
		q.to(sender, "/"+p.queue)
		q.from(receiver, "/"+p.queue, nil)
	}
	sameTokens.shortToken("sb://"+p.host+"/"+p.queue, time.Now().Add(time.Hour))
	widerTokens.shortToken("amqp://"+p.host, time.Now().Add(time.Hour))
	loser.detached("amqp:unauthorized-access", "")
	loser.detached("amqp:unauthorized-access", "")
	if now := time.Now(); now.Before(ends) {
		p.t.Errorf("the links end %v before the token", ends.Sub(now))
	}
	loser.refused(loser.from(receiver, "/"+p.queue, nil), "source", "amqp:unauthorized-access", "")
	for _, q := range []*player{same, wider} { // nothing has happened to their links
		q.want(q.transfer(ofLinks, sender, nil, message("b")), "accepted")
		q.flow(receiver, 0, 1, nil)
		g := q.take(1)[0]
		if g.data != "b" {
			p.t.Errorf("received %q, which is locked", g.data)
		}
		q.dispose(g.id, g.id, false, frames.Composite{Name: "accepted"})
		q.want(q.answer(false), "accepted")
	}
	r := same.pair(ofNet, ofRequests, p.queue+"/$management")
	token := frames.List{locked.delivery.Get("x-opt-lock-token")}
	r.ask("renew-lock", 200, "lock-tokens", token)
	r.ask("update-disposition", 200, "disposition-status", "completed", "lock-tokens", token)
}

// losesRule: a rule that is deleted, has another key or fewer rights ends the links that depend on it, at whatever node.
func (p *player) losesRule() {
	name := p.queue + "-rule"
	policy := "$AuthorizationRules/" + name
	elsewhere := p.bus.other(p.at)
	put := func(right string, status int) {
		p.bus.mustManage(p.t, elsewhere, http.MethodPut, policy, entry("AuthorizationRule", strings.Replace(inRule(name, "Listen"), "<Rights>", "<Rights><AccessRights>"+right+"</AccessRights>", 1)), status)
	}
	put("Send", 201)
	for _, c := range []struct {
		what  string
		rule  string
		sends bool // the link on which the client sends ends, too
		do    func()
	}{
		{"a key", "own", false, func() {
			changed := strings.Replace(rules("own", "Listen"), keyOf("own"), "another key", 1)
			p.bus.mustManage(p.t, elsewhere, http.MethodPut, p.queue, entry("QueueDescription", changed), 200)
		}},
		{"a right", name, true, func() { put("Listen", 200) }},
		{"a rule", name, false, func() { p.bus.mustManage(p.t, elsewhere, http.MethodDelete, policy, "", 200) }},
	} {
		p.openAs(c.rule, p.queue)
		if c.sends {
			p.to(sender, "/"+p.queue)
		} else {
			p.from(receiver, "/"+p.queue, nil)
		}
		c.do()
		began := time.Now()
		p.detached("amqp:unauthorized-access", "")
		p.t.Logf("%s that changes at another node ends a link %v after the answer", c.what, time.Since(began))
	}
	put("Send", 201)
	conn, err := frames.Login(p.bus.ctx, p.at.Bus, name, keyOf(name), p.host)
	p.must(err)
	defer conn.Close()
	p.Conn, p.next = conn, 0
	p.must(p.Send(ofLinks, "begin", frames.Fields{"next-outgoing-id": 0, "incoming-window": 1000, "outgoing-window": 1000}))
	p.await("begin")
	p.to(sender, "/"+p.queue)
	p.bus.mustManage(p.t, elsewhere, http.MethodDelete, policy, "", 200)
	p.detached("amqp:unauthorized-access", "")
}

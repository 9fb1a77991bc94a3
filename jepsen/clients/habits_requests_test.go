package clients

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

// requestHabits are about requests by messages.
var requestHabits = []habit{
	{"MG-2 numbers", "", (*player).namesNumbers},
	{"MG-3 tokens", "", (*player).namesTokens},
	{"MG-1 refusals", "", (*player).isRefused},
	{"MG dispositions", "", (*player).updatesDispositions},
	{"SE-9 list", session, (*player).listsSessions},
}

// httpHabits are about requests over HTTP.
var httpHabits = []habit{
	{"HT-2 plain", "", (*player).administersPlainly},
	{"HT-5 order", "", (*player).readsInOrder},
}

// numberForms are how SDKs write sequence numbers: .NET an array of long, in its short form, too; Java one of the shortest long that
// there is; Python a list.
var numberForms = map[string]func(int64) any{
	"net":    func(n int64) any { return frames.Array{Code: 0x81, Values: []any{n}} },
	"short":  func(n int64) any { return frames.Raw{0xe0, 10, 1, 0x81, 0, 0, 0, 0, 0, 0, 0, byte(n)} },
	"java":   func(n int64) any { return frames.Array{Code: 0x55, Values: []any{int8(n)}} },
	"python": func(n int64) any { return frames.List{n} },
	"small":  func(n int64) any { return frames.Raw{0xc0, 3, 1, 0x55, byte(n)} },
}

// namesNumbers: numbers are read in any form, and answered as an array of long; messages as a list of maps.
func (p *player) namesNumbers() {
	for i, k := range sdks {
		r := p.pair(k, ofRequests, p.queue+"/$management")
		for form, numbers := range numberForms {
			text := k.name + form
			later := frames.Append(nil, frames.Described{Descriptor: uint64(0x72), Value: frames.Map{frames.Symbol("x-opt-scheduled-enqueue-time"), inAnHour}})
			a := r.ask("schedule-message", 200, "messages", frames.List{frames.Map{"message-id", text, "message", append(later, message(text)...), "partition-key", nil}})
			array, _ := a.body.Get("sequence-numbers").(frames.Array)
			if array.Code != 0x81 || len(array.Values) != 1 {
				p.t.Fatalf("%s: the numbers are %v", text, a.body)
			}
			r.ask("cancel-scheduled-message", 200, "sequence-numbers", numberForms[form](array.Values[0].(int64)))
			r.ask("cancel-scheduled-message", 404, "sequence-numbers", numberForms[form](array.Values[0].(int64)))

			g := p.lock(text)[0]
			p.dispose(g.id, g.id, false, modified(frames.Fields{"undeliverable-here": true}))
			p.want(p.answer(false), "modified")
			p.detach(ofLinks, receiver)
			mode := []any{uint32(1), uint8(1), nil}[i]
			a = r.ask("receive-by-sequence-number", 200, "sequence-numbers", numbers(g.annotations.Get("x-opt-sequence-number").(int64)), "receiver-settle-mode", mode)
			found, _ := a.body.Get("messages").(frames.List)
			if len(found) != 1 {
				p.t.Fatalf("%s: received %v", text, a.body)
			}
			entry, _ := found[0].(frames.Map)
			token, ok := entry.Get("lock-token").(frames.UUID)
			var inner got
			p.read(&inner, entry.Get("message").([]byte))
			if !ok || inner.delivery.Get("x-opt-lock-token") != token || inner.data != text {
				p.t.Errorf("%s: received %v", text, entry)
			}
			r.ask("update-disposition", 200, "disposition-status", "completed", "lock-tokens", frames.Array{Code: 0x98, Values: []any{token}})
		}
		r.close()
	}
}

// tokenForms are how SDKs write lock tokens.
var tokenForms = map[string]func(...any) any{
	"net, java": func(all ...any) any { return frames.Array{Code: 0x98, Values: all} },
	"short": func(all ...any) any {
		b := frames.Raw{0xe0, byte(2 + 16*len(all)), byte(len(all)), 0x98}
		for _, u := range all {
			u := u.(frames.UUID)
			b = append(b, u[:]...)
		}
		return b
	},
	"python": func(all ...any) any { return frames.List(all) },
}

// namesTokens: tokens are read in any form, and the ends of locks are an array of timestamps in their order.
func (p *player) namesTokens() {
	for _, k := range sdks {
		r := p.pair(k, ofRequests, p.queue+"/$management")
		for form, tokens := range tokenForms {
			all := p.lock(k.name+form, "second")
			first, second := all[0].delivery.Get("x-opt-lock-token"), all[1].delivery.Get("x-opt-lock-token")
			a := r.ask("renew-lock", 200, "lock-tokens", tokens(first, second))
			array, _ := a.body.Get("expirations").(frames.Array)
			if array.Code != 0x83 || len(array.Values) != 2 || time.Until(time.UnixMilli(int64(frames.Int(array.Values[1])))) < 30*time.Second {
				p.t.Errorf("%s, %s: renewed until %v", k.name, form, a.body)
			}
			r.ask("update-disposition", 200, "disposition-status", "completed", "lock-tokens", tokens(first, second))
			a = r.ask("renew-lock", 410, "lock-tokens", tokens(second))
			if a.condition != "com.microsoft:message-lock-lost" {
				p.t.Errorf("%s, %s: the condition is %q", k.name, form, a.condition)
			}
			p.detach(ofLinks, receiver)
		}
		r.close()
	}
}

// isRefused: what is not known or malformed is refused with a condition that .NET can cast, and the links live on.
func (p *player) isRefused() {
	for _, k := range sdks {
		r := p.pair(k, ofRequests, p.queue+"/$management")
		for _, c := range []struct {
			operation string
			status    int
			condition string
			body      frames.Map
		}{
			{"nothing", 501, "amqp:not-implemented", nil},
			{"peek-message", 400, "com.microsoft:argument-error", frames.Map{"from-sequence-number", int64(1)}},
			{"renew-lock", 400, "com.microsoft:argument-error", frames.Map{"lock-tokens", "x"}},
			{"update-disposition", 410, "com.microsoft:message-lock-lost", frames.Map{"disposition-status", "completed", "lock-tokens", frames.List{frames.UUID{}}}},
			{"receive-by-sequence-number", 404, "com.microsoft:message-not-found", frames.Map{"sequence-numbers", frames.List{int64(4711)}, "receiver-settle-mode", uint32(0)}},
			{"add-rule", 400, "amqp:not-allowed", frames.Map{"rule-name", "r"}},
			{"renew-session-lock", 410, "com.microsoft:session-lock-lost", frames.Map{"session-id", "s"}},
		} {
			if a := r.ask(c.operation, c.status, c.body...); a.condition != c.condition {
				p.t.Errorf("%s, %s: %v", k.name, c.operation, a)
			}
		}
		r.ask("peek-message", 204, "from-sequence-number", int64(1), "message-count", int32(1))
		r.close()
	}
}

// updatesDispositions: every status that .NET has words for, of which it never sends the last two.
func (p *player) updatesDispositions() {
	r := p.pair(ofNet, ofRequests, p.queue+"/$management")
	for _, c := range []struct {
		status string
		again  bool // it is still locked
		count  int  // it is received again with that; -1: it is not
	}{{"completed", false, -1}, {"suspended", false, -1}, {"defered", false, -1}, {"abandoned", false, 1}, {"unlocked", false, 0}, {"renewed", true, -1}} {
		g := p.lock(c.status)[0]
		tokens := frames.Array{Code: 0x98, Values: []any{g.delivery.Get("x-opt-lock-token")}}
		r.ask("update-disposition", 200, "disposition-status", c.status, "lock-tokens", tokens, "deadletter-reason", "why", "deadletter-description", "how", "properties-to-modify", frames.Map{"k", int32(1)})
		if c.count >= 0 {
			p.flow(receiver, 1, 1, nil)
			if g = p.take(1)[0]; g.data != c.status || g.header.Int("delivery-count") != c.count {
				p.t.Errorf("%s: %q, %v", c.status, g.data, g.header)
			}
			tokens.Values[0] = g.delivery.Get("x-opt-lock-token")
		}
		status := 410
		if c.again || c.count >= 0 {
			status = 200
		}
		r.ask("update-disposition", status, "disposition-status", "completed", "lock-tokens", tokens)
		p.detach(ofLinks, receiver)
	}
	p.from(receiver, "/"+p.queue+"/$DeadLetterQueue", nil)
	p.flow(receiver, 0, 1, nil)
	g := p.take(1)[0]
	if g.data != "suspended" || g.application.Get("DeadLetterReason") != "why" || g.application.Get("DeadLetterErrorDescription") != "how" || g.application.Get("k") != int32(1) {
		p.t.Errorf("dead is %q, %v", g.data, g.application)
	}
	dead := p.pair(ofJava, ofOthers, p.queue+"/$DeadLetterQueue/$management")
	tokens := frames.Array{Code: 0x98, Values: []any{g.delivery.Get("x-opt-lock-token")}}
	if a := dead.ask("update-disposition", 400, "disposition-status", "suspended", "lock-tokens", tokens); a.condition != "amqp:not-allowed" {
		p.t.Errorf("a dead letter dies: %v", a)
	}
	p.dispose(g.id, g.id, false, frames.Composite{Name: "rejected"})
	state := p.answer(false)
	p.want(state, "rejected amqp:not-allowed")
	p.tracked(state.Fields.Of("error").Text("description"))
}

// listsSessions: they are an array of strings.
func (p *player) listsSessions() {
	p.send(grouped("a", "one"), grouped("b", "two"))
	for _, k := range sdks {
		r := p.pair(k, ofRequests, p.queue+"/$management")
		a := r.ask("get-message-sessions", 200, "last-updated-time", frames.Timestamp(253_402_300_800_000), "skip", int32(0), "top", int32(10))
		array, _ := a.body.Get("sessions-ids").(frames.Array)
		if array.Code != 0xb1 && array.Code != 0xa1 || !slices.Equal(array.Values, []any{"one", "two"}) {
			p.t.Errorf("%s: the sessions are %v", k.name, a.body)
		}
		a = r.ask("peek-message", 200, "from-sequence-number", int64(1), "message-count", int32(10), "session-id", "two")
		if found, _ := a.body.Get("messages").(frames.List); len(found) != 1 {
			p.t.Errorf("%s: peeked is %v", k.name, a.body)
		}
		r.close()
	}
}

// descriptions are what .NET and Python write: the latter gives each namespace a prefix.
var descriptions = map[string]string{
	"net": `<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription xmlns="CONNECT" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">INNER</QueueDescription></content></entry>`,
	"python": "<?xml version='1.0' encoding='utf-8'?>\n" +
		`<ns0:entry xmlns:ns0="http://www.w3.org/2005/Atom"><ns0:content type="application/xml"><ns1:QueueDescription xmlns:ns1="CONNECT">INNER</ns1:QueueDescription></ns0:content></ns0:entry>`,
}

// call sends a request over HTTP, with a token for its URL, and returns the answer.
func (p *player) call(method, path, body string, headers ...string) (status int, text string) {
	p.t.Helper()
	address := "http://" + p.at.Manage + "/" + path
	r, err := http.NewRequestWithContext(p.bus.ctx, method, address, strings.NewReader(body))
	p.must(err)
	r.Header.Set("Authorization", busToken(strings.ToLower(address)))
	r.Header.Set("Content-Type", "application/atom+xml;type=entry;charset=utf-8")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	p.must(err)
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	p.must(err)
	return answer.StatusCode, string(b)
}

// administersPlainly: without TLS on the port of both, with a token for a URL of http, and as .NET and Python write.
func (p *player) administersPlainly() {
	for name, description := range descriptions {
		queue := p.queue + "-" + name
		write := func(inner string) string {
			if name == "python" {
				inner = strings.NewReplacer("</", "</ns1:", "<", "<ns1:").Replace(inner)
			}
			return strings.NewReplacer("CONNECT", "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect", "INNER", inner).Replace(description)
		}
		for _, c := range []struct {
			method, path, inner string
			headers             []string
			status              int
			want                string
		}{
			{"GET", queue, "", nil, 404, "TrackingId:"},
			{"PUT", queue, "<LockDuration>PT17S</LockDuration><MaxDeliveryCount>7</MaxDeliveryCount>", nil, 201, "<LockDuration>PT17S</LockDuration>"},
			{"PUT", queue, "<LockDuration>PT17S</LockDuration>", nil, 409, "SubCode=40900"},
			{"GET", queue + "?enrich=false&api-version=2017-04", "", nil, 200, "<MaxDeliveryCount>7</MaxDeliveryCount>"},
			{"PUT", queue, "<LockDuration>PT18S</LockDuration>", []string{"If-Match", "*"}, 200, "<LockDuration>PT18S</LockDuration>"},
			{"GET", "$Resources/queues?$skip=0&$top=100", "", nil, 200, `<title type="text">` + queue + "</title>"},
			{"DELETE", queue, "", nil, 200, ""},
		} {
			body := ""
			if c.method == "PUT" {
				body = write(c.inner)
			}
			if status, text := p.call(c.method, c.path, body, c.headers...); status != c.status || !strings.Contains(text, c.want) {
				p.t.Errorf("%s: %s %s: %d %s", name, c.method, c.path, status, text)
			}
		}
	}
	stranger := busToken("http://" + p.at.Manage + "/other")
	if status, text := p.call("GET", p.queue, "", "Authorization", stranger); status != 401 {
		p.t.Errorf("with a token for something else: %d %s", status, text)
	}
	if status, text := p.call("GET", p.queue, "", "Authorization", busToken("http://"+url.PathEscape(p.host)+"/")); status != 200 {
		p.t.Errorf("with a token for all: %d %s", status, text)
	}
}

// schema is the order of the elements of a queue.
const schema = "LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration " +
	"DuplicateDetectionHistoryTimeWindow MaxDeliveryCount EnableBatchedOperations SizeInBytes MessageCount IsAnonymousAccessible AuthorizationRules Status " +
	"ForwardTo UserMetadata CreatedAt UpdatedAt AccessedAt SupportOrdering CountDetails AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus " +
	"ForwardDeadLetteredMessagesTo EnableExpress MaxMessageSizeInKilobytes"

// readsInOrder: elements come in the order of the schema, whatever the order of the request was.
func (p *player) readsInOrder() {
	write := func(inner string) string {
		return strings.NewReplacer("CONNECT", "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect", "INNER", inner).Replace(descriptions["net"])
	}
	queue := p.queue + "-all"
	status, text := p.call("PUT", queue, write("<ForwardDeadLetteredMessagesTo>sb://"+p.host+"/"+p.queue+"</ForwardDeadLetteredMessagesTo><UserMetadata>m</UserMetadata><ForwardTo>"+p.queue+"</ForwardTo><LockDuration>PT17S</LockDuration>"))
	if status != 201 {
		p.t.Fatal(status, text)
	}
	_, inner, _ := strings.Cut(text, "<QueueDescription")
	p.inOrder(inner, strings.Fields(schema))
}

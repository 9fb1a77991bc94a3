package console

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/internal/long"
)

const (
	// bindings are more than the graph of an exchange draws, drawn is what it does.
	bindings, drawn = 33, 30
	// links are the other ends in the graph of an exchange.
	links = "all('svg.graph a').map((e) => e.ariaLabel)"
)

// testGraph looks at the bindings of an exchange as a drawing, follows one by the keyboard, and looks at
// more of them than are drawn.
func testGraph(t *testing.T, w *world) {
	long.Test(t)
	bind := func(source, kind, destination, key string) {
		t.Helper()
		w.mustCall(t, http.MethodPost, "/api/bindings/%2F/e/"+source+"/"+kind+"/"+destination, map[string]any{"routing_key": key, "arguments": map[string]any{}}, nil)
	}
	for _, name := range []string{"drawn", "drawn.from", "drawn.to"} {
		w.mustCall(t, http.MethodPut, "/api/exchanges/%2F/"+name, map[string]any{"type": "topic"}, nil)
	}
	w.mustQueue(t, "drawn", nil)
	p := mustLogIn(t, w.browser, w.url)
	p.open("Exchange drawn", "exchange", "/", "drawn")
	p.await("that it has no bindings", "text('[aria-label=Graph]').includes('Nothing is bound to it')")
	bind("drawn.from", "e", "drawn", "in.#")
	bind("drawn", "e", "drawn.to", "out")
	bind("drawn", "q", "drawn", "one.*")
	bind("drawn", "q", "drawn", "two.*")
	p.await("the other ends, each once", links+".sort().join() === 'exchange drawn.from,exchange drawn.to,queue drawn'")
	p.await("keys", "all('svg.graph .key').map((e) => e.lastChild.data).sort().join() === 'in.#,one.* +1,out' && all('svg.graph .key title').some((e) => e.textContent === 'one.*\\ntwo.*')")
	p.await("what it is in words", "document.querySelector('svg.graph').ariaLabel === '3 bindings from the exchange drawn, 1 to it' && !document.querySelector('.graph figcaption')")
	p.do("all('svg.graph a').find((e) => e.ariaLabel === 'queue drawn')", "focus()")
	p.run(chromedp.KeyEvent("\r"))
	p.await("the queue", "text('h1') === 'Queue drawn'")

	for i := range bindings {
		bind("drawn.to", "q", "drawn", fmt.Sprintf("key.%02d", i))
	}
	bind("drawn.to", "q", "live", "last")
	p.open("Exchange drawn.to", "exchange", "/", "drawn.to")
	p.await("what is left out", fmt.Sprintf("text('.graph figcaption') === 'Of %d bindings from it, the first %d are drawn.'", bindings+1, drawn))
	p.await("one end only", links+".sort().join() === 'exchange drawn,queue drawn'")
}

// testRights gives a user other tags, another password, permissions for topics and limits, and takes
// them away again.
func testRights(t *testing.T, w *world) {
	long.Test(t)
	w.mustCall(t, http.MethodPut, "/api/users/ruled", map[string]any{"password": "first", "tags": "management"}, nil)
	w.mustCall(t, http.MethodPut, "/api/exchanges/%2F/ruled", map[string]any{"type": "topic"}, nil)
	p := mustLogIn(t, w.browser, w.url)
	p.open("User ruled", "user", "ruled")
	p.await("its tags", "text('main .badge') === 'management'")
	p.press("Change tags")
	p.fill("tags", "management,policymaker")
	p.press("Change")
	p.await("other tags", "text('.notices').includes('tags are set') && all('main .badge').map((e) => e.innerText).join() === 'management,policymaker'")
	logIn := func(password, what, expression string) {
		t.Helper()
		other := mustOpen(t, w.browser, w.url)
		other.logIn("ruled", password)
		other.await(what, expression)
	}
	logIn("first", "the password is as before", "text('h1') === 'Overview'")
	p.press("Change password")
	p.fill("password", "second")
	p.press("Change")
	p.await("another password", "text('.notices').includes('password is set') && all('main .badge').map((e) => e.innerText).join() === 'management,policymaker'")
	logIn("first", "the old one is refused", "text('.notice').includes('the password is wrong')")
	logIn("second", "the new one is taken", "text('h1') === 'Overview'")

	p.press("Set permissions")
	p.await("the vhosts", "all('dialog [name=vhost] option').length > 0")
	p.fill("vhost", "/", "configure", "^$", "write", "^ruled$", "read", "^ruled$")
	p.press("Set")
	p.await("the permission", rows("Permissions")+".some((r) => r.includes('^ruled$'))")
	p.do("all('[aria-label=Permissions] button').find((b) => b.textContent === 'Edit')", "click()")
	p.await("what it was", "document.querySelector('dialog [name=write]').value === '^ruled$' && all('dialog [name=vhost] option').length === 1")
	p.fill("write", "^other$")
	p.press("Set")
	p.await("another permission", rows("Permissions")+".some((r) => r.includes('^other$'))")
	p.press("Set topic permissions")
	p.await("the vhosts", "all('dialog [name=vhost] option').length > 0")
	p.fill("vhost", "/", "exchange", "ruled", "write", "^a[.]", "read", "^b[.]")
	p.press("Set")
	p.await("the topic permission", rows("Topic permissions")+".some((r) => /ruled[^]*\\^a\\[\\.\\][^]*\\^b/.test(r))")
	p.do("all('[aria-label=\"Topic permissions\"] button').find((b) => b.textContent === 'Edit')", "click()")
	p.fill("write", "^c[.]")
	p.press("Set")
	p.await("another topic permission", rows("Topic permissions")+".length === 1 && "+rows("Topic permissions")+"[0].includes('^c[.]')")

	limit := func(of, name, value, shows string) {
		t.Helper()
		p.do("document.querySelector('[aria-label=\"Set "+name+"\"]')", "click()")
		p.fill("value", value)
		p.press("Set")
		p.await("the limit of "+of, rows("Limits")+".some((r) => r.includes("+quote(name)+") && r.includes("+quote(shows)+"))")
	}
	limit("the user", "max-channels", "1234", "1,234")
	limit("the user", "max-connections", "-1", "none")
	p.open("Users", "users")
	p.await("the limits", "row('ruled').innerText.includes('max-channels 1234')")
	p.open("Virtual host /", "vhost", "/")
	p.await("who may use it", rows("Permissions")+".some((r) => r.includes('ruled') && r.includes('^other$'))")
	p.await("and at topics", rows("Topic permissions")+".some((r) => r.includes('ruled') && r.includes('^c[.]'))")
	limit("the vhost", "max-queues", "54321", "54,321")
	p.do("document.querySelector('[aria-label=\"Clear max-queues\"]')", "click()")
	p.await("no limit", rows("Limits")+".filter((r) => r.includes('settings say')).length === 2")
	p.press("Protect from deletion")
	p.await("it is protected", "text('[aria-label=State]').includes('protected') && !button('Delete', document.querySelector('main > .buttons'))")
	p.press("Allow deletion")
	p.await("it is not", "text('[aria-label=State]').includes('possible') && button('Delete', document.querySelector('main > .buttons'))")

	p.open("User ruled", "user", "ruled")
	for _, section := range []string{"Topic permissions", "Permissions"} {
		p.do("all('[aria-label=\""+section+"\"] button').find((b) => b.textContent === 'Delete')", "click()")
		p.press("Delete it")
		p.await("none of the "+section, rows(section)+".length === 1 && !"+rows(section)+"[0].includes('Delete')")
	}
	p.do("document.querySelector('[aria-label=\"Clear max-channels\"]')", "click()")
	p.await("as the settings say", rows("Limits")+".some((r) => r.includes('max-channels') && r.includes('settings say'))")
}

// testDrift has a vhost tolerate what is declared otherwise, and lists it.
func testDrift(t *testing.T, w *world) {
	const at = "/api/queues/drifting/q"
	w.mustCall(t, http.MethodPut, "/api/vhosts/drifting", map[string]any{}, nil)
	p := mustLogIn(t, w.browser, w.url)
	p.open("Virtual host drifting", "vhost", "drifting")
	p.await("it is strict", "text('[aria-label=State]').includes('refused') && text('[aria-label=Drift]').includes('Nobody has declared otherwise')")
	p.press("Change")
	p.fill("redeclare", "relaxed")
	p.press("Change")
	p.await("it is relaxed", "text('[aria-label=State]').includes('answered as if they were the same')")
	for n := range 2 {
		w.mustCall(t, http.MethodPut, at, map[string]any{"durable": true, "arguments": map[string]any{"x-max-length": 41 + n}}, nil)
	}
	p.await("what is declared otherwise", rows("Drift")+".some((r) => r.includes('x-max-length') && r.includes('41') && r.includes('42') && r.includes('HTTP'))")
}

// mustDialAs opens a connection as a user, whose password is the name.
func (w *world) mustDialAs(t *testing.T, user string) *amqp.Connection {
	t.Helper()
	at, err := url.Parse(w.Nodes[0].URI())
	if err != nil {
		t.Fatal(err)
	}
	at.User = url.UserPassword(user, user)
	c, err := amqp.Dial(at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// testDisconnect closes all connections of a user.
func testDisconnect(t *testing.T, w *world) {
	w.mustCall(t, http.MethodPut, "/api/users/gone", map[string]any{"password": "gone", "tags": ""}, nil)
	w.mustCall(t, http.MethodPut, "/api/permissions/%2F/gone", map[string]any{"configure": "", "write": "", "read": ""}, nil)
	closed := w.mustDialAs(t, "gone").NotifyClose(make(chan *amqp.Error, 1))
	p := mustLogIn(t, w.browser, w.url)
	p.open("User gone", "user", "gone")
	p.press("Close its connections")
	p.press("Close them")
	p.await("that it is done", "text('.notices').includes('are closed')")
	select {
	case <-closed:
	case <-time.After(patience):
		t.Error("the client is still connected")
	}
}

// testFeatures uses a deprecated feature.
func testFeatures(t *testing.T, w *world) {
	long.Test(t)
	p := mustLogIn(t, w.browser, w.url)
	p.open("Features", "features")
	p.await("none in use", "text('main').includes('No deprecated feature is in use') && row('global_qos') && !row('in use')")
	p.await("versions", "row('fsm_version_1')?.innerText.includes('enabled') && row('fsm_version_2')?.innerText.includes('enabled')")
	if err := w.mustDial(t, "a shared prefetch").Qos(1, 0, true); err != nil {
		t.Fatal(err)
	}
	p.await("one in use", "row('global_qos').innerText.includes('in use') && !row('transient_nonexcl_queues').innerText.includes('in use') && text('main').includes('goes on serving it')")
}

// testClose has a consumer hold a message whose deadline is near, compared with the timeout that holds
// by now.
func testClose(t *testing.T, w *world) {
	long.Test(t)
	policy := func(ms int) {
		t.Helper()
		w.mustCall(t, http.MethodPut, "/api/policies/%2F/near", map[string]any{"pattern": "^near$", "definition": map[string]any{"consumer-timeout": ms}, "priority": 9}, nil)
		p := mustLogIn(t, w.browser, w.url)
		p.open("Queue near", "queue", "/", "near")
		p.await("the settings hold", fmt.Sprintf("rows().some((r) => r.includes('consumer-timeout') && r.includes('%d')) && !text('main').includes('not taken up')", ms))
	}
	w.mustQueue(t, "near", nil)
	policy(600_000)
	w.mustPublish(t, "near", "held", nil)
	got, err := w.mustDial(t, "a consumer with little time").Consume("near", "hurried", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-got
	p := mustLogIn(t, w.browser, w.url)
	const closest = "text('[aria-label=\"Close to the deadline\"]')"
	p.open("Consumers", "consumers")
	p.await("enough time", "/in (10|9) min/.test(row('hurried')?.innerText) && "+closest+".includes('none has used up more than 80 %')")
	policy(36_000_000)
	p.await("little time", "/hurried[^]*in (10|9|8) min[^]*close/.test("+closest+")")
}

// testWhy sees which of an argument and policies holds, where dead letters go, and which policies match.
func testWhy(t *testing.T, w *world) {
	w.mustQueue(t, "why(1)", map[string]any{"x-message-ttl": 60_000, "x-dead-letter-exchange": "amq.fanout", "x-dead-letter-routing-key": "died", "x-overflow": "drop-head", "x-max-length": 10})
	for name, priority := range map[string]int{"strong": 7, "weak": 3} {
		w.mustCall(t, http.MethodPut, "/api/policies/%2F/"+name, map[string]any{"pattern": `^why`, "priority": priority, "definition": map[string]any{
			"message-ttl": 70_000 + priority, "dead-letter-exchange": "amq.direct", "overflow": "reject-publish", "max-length": 20, "delivery-limit": priority,
		}}, nil)
	}
	w.mustCall(t, http.MethodPut, "/api/policies/%2F/elsewhere", map[string]any{"pattern": `^why$`, "priority": 9, "definition": map[string]any{"message-ttl": 1}}, nil)
	w.mustCall(t, http.MethodPut, "/api/operator-policies/%2F/ceiling", map[string]any{"pattern": `^why`, "definition": map[string]any{"message-ttl": 20_000}}, nil)
	p := mustLogIn(t, w.browser, w.url)
	p.open("Queue why(1)", "queue", "/", "why(1)")
	for key, holds := range map[string]string{
		"message-ttl": "20000 ms (20 s) the operator policy's: the smaller", "dead-letter-exchange": `"amq.fanout" the argument's`, "overflow": `"reject-publish" the policy's`,
		"max-length": "10 the argument's: the smaller", "delivery-limit": "7 the policy's", "dead-letter-routing-key": `"died" the argument's`,
	} {
		p.await("what holds of "+key, "all('[aria-label=Settings] tbody tr').some((r) => r.firstChild.innerText === "+quote(key)+" && r.lastChild.innerText === "+quote(holds)+")")
	}
	p.await("where dead letters go", "/Dead letters go\\s*to the exchange amq.fanout with the key died/.test(text('[aria-label=State]')) && /Dead letters under way\\s*0/.test(text('[aria-label=State]'))")
	p.press("Why these policies?")
	p.await("those that match, the one that holds first", "/Policies\\s+strong[^]*in effect\\s+weak[^]*Operator policies\\s+ceiling[^]*in effect/.test(text('dialog [aria-live]')) && !text('dialog').includes('elsewhere') && all('dialog .badge').length === 2")
	p.press("Close")
}

// testPriorities has the node answer with counts by priority.
func testPriorities(t *testing.T, w *world) {
	long.Test(t)
	w.mustQueue(t, "ranked", nil)
	p := mustLogIn(t, w.browser, w.url)
	p.open("Queue ranked", "queue", "/", "ranked")
	p.await("its state", "rows().length > 2")
	mustEval[bool](p, `(() => {
		const real = window.fetch;
		window.fetch = async (url, options) => {
			const answer = await real(url, options);
			if (!url.startsWith('/api/queues/%2F/ranked?')) return answer;
			return Response.json({ ...await answer.json(), messages_by_priority: { 0: 5, 4: 1200, 9: 1, '`+hostile[1]+`': 3 } });
		};
		return true;
	})()`)
	p.await("the highest first", "/Priority 9\\s*1\\s+Priority 4\\s*1,200\\s+Priority 0\\s*5/.test(text('[aria-label=Priorities]')) && text('[aria-label=Priorities]').includes("+quote(hostile[1])+") && window.__xss === undefined")
}

// testGet takes messages from a queue.
func testGet(t *testing.T, w *world) {
	w.mustQueue(t, "taken", nil)
	for _, name := range []string{hostile[0], "second"} {
		w.mustPublish(t, "taken", name, nil)
	}
	p := mustLogIn(t, w.browser, w.url)
	p.open("Queue taken", "queue", "/", "taken", "messages")
	p.await("both", "rows().length === 2")
	p.press("Get")
	p.fill("ackmode", "ack_requeue_false")
	p.press("Get")
	p.await("the first", "text('[aria-label=Got]').includes("+quote(hostile[0])+") && rows().length === 1 && row('second') && all('main img').length === 0")
	p.press("Get")
	p.fill("count", "7", "ackmode", "ack_requeue_true")
	p.press("Get")
	p.await("the second, which stays", "text('[aria-label=Got]').includes('second') && rows().length === 1 && row('second')")
}

// testGlance sees on the overview how far clocks are apart, and that no queue is without a leader.
func testGlance(t *testing.T, w *world) {
	p := mustLogIn(t, w.browser, w.url)
	p.await("the clocks", "/The clocks of the 3 nodes that run are within \\d+ ms/.test(text('[aria-label=Nodes]'))")
	p.await("no queue", "card('Without a leader') === 0")
	p.do("all('.card').find((c) => c.firstChild.textContent === 'Without a leader')?.querySelector('a')", "click()")
	p.await("the list of them", "text('h1') === 'Queues' && document.querySelector('[aria-label=\"Which queues\"]').value === 'leaderless'")
	w.mustDial(t, "a client that says what it is")
	p.open("Connections", "connections")
	p.await("its program and its heartbeat", "/says what it is 7.1[^]*10 s/.test(row('a client that says what it is')?.innerText)")
}

package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp10 "github.com/Azure/go-amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/internal/long"
)

func queuePath(name string, more ...string) string {
	return "/api/queues/%2F/" + strings.Join(append([]string{url.PathEscape(name)}, more...), "/")
}

// rows are the texts of the rows of a section.
func rows(section string) string {
	return "all('[aria-label=\"" + section + "\"] tbody tr').map((r) => r.innerText)"
}

// mustDial opens a channel to the first node, on a connection with a name.
func (w *world) mustDial(t *testing.T, name string) *amqp.Channel {
	t.Helper()
	return w.mustDialAt(t, 0, name)
}

// mustDialAt opens a channel to a node.
func (w *world) mustDialAt(t *testing.T, node int, name string) *amqp.Channel {
	t.Helper()
	c, err := amqp.DialConfig(w.Nodes[node].URI(), amqp.Config{Properties: amqp.Table{"connection_name": name, "product": name, "version": "7.1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// mustPublish publishes a message to a queue, which is confirmed.
func (w *world) mustPublish(t *testing.T, queue, body string, headers map[string]any) {
	t.Helper()
	w.mustPublishWith(t, queue, body, map[string]any{"message_id": body, "headers": headers})
}

// mustPublishWith publishes a message with properties.
func (w *world) mustPublishWith(t *testing.T, queue, body string, properties map[string]any) {
	t.Helper()
	var answer struct{ Routed bool }
	w.mustCall(t, http.MethodPost, "/api/exchanges/%2F/amq.default/publish", map[string]any{
		"routing_key": queue, "payload": body, "payload_encoding": "string", "properties": properties,
	}, &answer)
	if !answer.Routed {
		t.Fatalf("%s has not taken %q", queue, body)
	}
}

func testLogin(t *testing.T, w *world) {
	p := mustOpen(t, w.browser, w.url)
	p.logIn("guest", "wrong")
	p.await("a refusal", "text('.notice').includes('the password is wrong')")
	p.await("nothing kept", "sessionStorage.length === 0")
	p.fill("user", "guest", "password", "guest")
	p.press("Log in")
	p.await("the overview", "text('h1') === 'Overview'")
	p.await("nothing where it would stay", "localStorage.length === 0 && document.cookie === '' && !location.href.includes('guest')")
	p.await("the state of the nodes", "text('main').includes('Every queue has a leader') && rows().filter((r) => r.includes('running')).length === 3")
	p.press("Log out")
	p.await("the login", "document.querySelector('[name=password]')")
	p.await("nothing kept", "sessionStorage.length === 0")

	w.mustCall(t, http.MethodPut, "/api/users/plain", map[string]any{"password": "plain", "tags": ""}, nil)
	p.fill("user", "plain", "password", "plain")
	p.press("Log in")
	p.await("what the user lacks", "text('.notice').includes('Not management user')")
}

func testLive(t *testing.T, w *world) {
	w.mustQueue(t, "live", nil)
	ch := w.mustDial(t, "live")
	p := mustLogIn(t, w.browser, w.url)
	const published = "all('.scroll tbody tr').map((r) => r.innerText).find((r) => r.startsWith('Published'))"
	p.await("counts", published)
	ended, stop := make(chan error), make(chan struct{})
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				ended <- nil
				return
			case <-tick.C:
				if err := ch.PublishWithContext(t.Context(), "", "live", false, false, amqp.Publishing{}); err != nil {
					ended <- err
					return
				}
			}
		}
	}()
	rate := fmt.Sprintf("Number(/([\\d.,]+)\\/s/.exec(%s)?.[1])", published)
	p.await("a rate", rate+" > 0")
	p.await("ready messages", "card('Ready') > 10")
	p.await("a chart", "document.querySelector('.chart canvas') && /Published [1-9]/.test(document.querySelector('.chart').ariaLabel)")
	before := mustEval[int](p, "card('Ready')")
	p.await("more messages", fmt.Sprintf("card('Ready') > %d", before))
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	p.open("Queues", "queues")
	p.await("the queue's rate", "row('live') && !row('live').innerText.includes('no leader')")
}

func testPublish(t *testing.T, w *world) {
	p := mustLogIn(t, w.browser, w.url)
	p.open("Queues", "queues")
	p.press("Add a queue")
	p.fill("name", "orders", "arguments", `{"x-message-ttl": "soon"}`)
	p.press("Add")
	p.await("what is wrong", "text('dialog .notice').includes('x-message-ttl')")
	p.fill("arguments", `{"x-message-ttl": 3600000}`)
	p.press("Add")
	p.await("the queue", "text('h1') === 'Queue orders'")
	p.await("its replicas", "rows().filter((r) => /leader|follower/.test(r)).length === 3")
	p.await("its time to live", "rows().some((r) => r.includes('message-ttl') && r.includes('3600000'))")

	p.press("Publish")
	p.fill("payload", "one order", "headers", `{"priority": "high"}`)
	p.press("Publish")
	p.await("a confirm", "text('.notices').includes('confirmed')")
	p.open("Queue orders", "queue", "/", "orders", "messages")
	p.await("the message", "row('one order')")
	p.await("its countdown", "/in 59 min/.test(row('one order').innerText)")
	p.press("Show")
	p.await("all of it", "text('dialog pre') === 'one order' && text('dialog').includes('header priority')")
	p.press("Close")
	var page struct{ Items []struct{ Payload string } }
	w.mustCall(t, http.MethodGet, queuePath("orders", "messages", "peek"), nil, &page)
	if len(page.Items) != 1 || page.Items[0].Payload != "one order" {
		t.Errorf("%+v", page)
	}

	p.open("Queue orders", "queue", "/", "orders")
	p.press("Purge")
	p.await("a question", "text('dialog h2') === 'Purge orders?'")
	p.press("Purge")
	p.await("purged", "text('.notices').includes('are gone')")
	p.press("Delete")
	p.await("a question", "text('dialog h2') === 'Delete orders?'")
	p.press("Delete")
	p.await("the list", "text('h1') === 'Queues' && rows().length > 0 && !row('orders')")
}

func testScheduled(t *testing.T, w *world) {
	w.mustQueue(t, "later", nil)
	for _, name := range []string{"first", "second", "third"} {
		w.mustPublish(t, "later", name, map[string]any{"x-opt-delivery-delay": 3_600_000})
	}
	p := mustLogIn(t, w.browser, w.url)
	p.open("Queue later", "queue", "/", "later", "scheduled")
	p.await("the messages", "rows().length === 3 && row('second')")
	p.await("a timeline", "document.querySelector('.bars')?.ariaLabel.startsWith('3 scheduled messages')")
	p.do("row('first')", "querySelectorAll('button')[0].click()")
	p.await("it is sent off", "rows().length === 2 && !row('first')")
	p.do("row('second')", "querySelectorAll('button')[2].click()")
	p.press("Cancel it")
	p.await("it is cancelled", "rows().length === 1 && !row('second')")
	p.do("row('third')", "querySelectorAll('button')[1].click()")
	p.fill("delay", "7200000")
	p.press("Move")
	p.await("it is moved", "/in (2 h|1 h 59 min)/.test(row('third').innerText)")
	p.open("Queue later", "queue", "/", "later", "messages")
	p.await("the message that was fired", "rows().length === 1 && row('first')")
}

// testLetters sees why the letters in a queue died, and where.
func testLetters(t *testing.T, w *world) {
	w.mustQueue(t, "failed", nil)
	for name, arguments := range map[string]map[string]any{"parcels": {}, "brief": {"x-message-ttl": 1}} {
		arguments["x-dead-letter-exchange"], arguments["x-dead-letter-routing-key"] = "", "failed"
		w.mustQueue(t, name, arguments)
	}
	w.mustPublish(t, "failed", "no letter", nil)
	w.mustPublish(t, "brief", "expired", nil)
	for _, body := range []string{"first", "second"} {
		w.mustPublish(t, "parcels", body, nil)
	}
	reject := map[string]any{"count": 2, "ackmode": "reject_requeue_false", "encoding": "auto"}
	w.mustCall(t, http.MethodPost, queuePath("parcels", "get"), reject, nil)
	p := mustLogIn(t, w.browser, w.url)
	p.open("Queue failed", "queue", "/", "failed", "letters")
	const bars = "text('[aria-label=\"By %s\"] .histogram').replace(/\\s+/g, ' ').trim() === '%s'"
	p.await("reasons", fmt.Sprintf(bars, "reason", "rejected 2 expired 1"))
	p.await("queues", fmt.Sprintf(bars, "queue", "parcels 2 brief 1"))
	p.await("what is no letter", "text('main').includes('4 ready messages: 1 message of them did not die')")

	p.do("row('expired')", "querySelector('button').click()")
	p.await("what the row is about", "document.querySelector('dialog [name=reason]').value === 'expired' && document.querySelector('dialog [name=source]').value === 'brief'")
	p.fill("to", "none")
	p.press("Begin")
	p.await("no such queue", "text('dialog .notice').includes('no queue')")
	p.fill("reason", "rejected", "source", "", "to", "", "rate", "1")
	p.press("Begin")
	const last = "text('[aria-label=\"Last redrive\"]')"
	p.await("it goes on", "/goes on/.test("+last+") && /by guest/.test("+last+") && /at most 1\\/s/.test("+last+")")
	p.await("it is done", "/done/.test("+last+") && /Sent\\s*2/.test("+last+")")
	p.await("they have gone", fmt.Sprintf(bars, "reason", "expired 1"))

	for range 3 {
		w.mustPublish(t, "parcels", "again", nil)
	}
	w.mustCall(t, http.MethodPost, queuePath("parcels", "get"), map[string]any{"count": 5, "ackmode": "reject_requeue_false", "encoding": "auto"}, nil)
	p.await("more letters", fmt.Sprintf(bars, "reason", "rejected 5 expired 1"))
	p.press("Redrive")
	p.fill("rate", "1")
	p.press("Begin")
	p.press("Cancel the redrive")
	p.await("it is cancelled", "/ended before/.test("+last+") && /cancelled by guest/.test("+last+") && !button('Cancel the redrive')?.checkVisibility()")
}

func testEnded(t *testing.T, w *world) {
	long.Test(t)
	w.mustQueue(t, "leased", map[string]any{"x-message-ttl": 7_200_000, "x-expires": 10_800_000})
	w.mustPublish(t, "leased", "soon over", nil)
	w.mustQueue(t, "short", map[string]any{"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
	w.mustQueue(t, "dead", nil)
	w.mustPublish(t, "short", "brief", nil)
	p := mustLogIn(t, w.browser, w.url)
	p.open("Queues", "queues")
	p.await("what is left of both", "/in (1 h 59 min|2 h)\\s*in (2 h 59 min|3 h)/.test(row('leased')?.innerText)")
	p.open("Queue leased", "queue", "/", "leased")
	p.await("what is left of both", "/Next message expires\\s*in (1 h 59|2 h)/.test(text('main')) && /the queue is deleted\\s*in (2 h 59|3 h)/.test(text('main')) && /Log\\s*term/.test(text('main'))")
	p.await("one message ahead", "document.querySelector('[aria-label=Expiry] .bars')?.ariaLabel === '1 message expires within 2 h, at most 1 of them in 1 h to 2 h'")
	w.mustQueue(t, "several", nil)
	for _, ms := range []string{"4000000", "10000000", "10000001"} {
		w.mustPublishWith(t, "several", ms, map[string]any{"expiration": ms})
	}
	w.mustPublish(t, "several", "for ever", nil)
	p.open("Overview", "overview")
	p.await("those of the next hour", "card('Expire within 1 min') === 0 && card('Expire within 1 h') >= 0 && text('main').includes('The next message expires in ')")
	w.mustPublishWith(t, "several", "within an hour", map[string]any{"expiration": "3000000"})
	p.await("one more", "card('Expire within 1 h') === 1 && /expires in (49|50) min/.test(text('main'))")
	w.mustCall(t, http.MethodDelete, queuePath("several", "contents"), nil, nil)
	for _, ms := range []string{"4000000", "10000000", "10000001"} {
		w.mustPublishWith(t, "several", ms, map[string]any{"expiration": ms})
	}
	p.open("Queue several", "queue", "/", "several")
	p.await("when most expire", "text('[aria-label=Expiry]').includes('3 messages expire within 4 h, at most 2 of them in 2 h to 4 h')")
	p.await("a bar for each span", "all('[aria-label=Expiry] .bar').map((e) => e.title).slice(-3).join() === '0 in 30 min to 1 h,1 in 1 h to 2 h,2 in 2 h to 4 h'")
	p.open("Queue dead", "queue", "/", "dead")
	p.await("nothing ahead", "text('[aria-label=Expiry]').includes('No message')")
	p.open("Queue short", "queue", "/", "short", "ended")
	p.await("its end", "row('expired') && row('brief') && row('dead')")
	p.do("row('expired')", "querySelector('button').click()")
	p.await("its life", "/enqueued/.test(text('.life')) && /expired/.test(text('.life'))")
}

func testConnections(t *testing.T, w *world) {
	long.Test(t)
	w.mustQueue(t, "held", map[string]any{"x-consumer-timeout": 600_000})
	ch := w.mustDial(t, "a client to close")
	w.mustPublish(t, "held", "one", nil)
	got, err := ch.Consume("held", "worker", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-got
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	p := mustLogIn(t, w.browser, w.url)
	p.open("Queue held", "queue", "/", "held", "consumers")
	p.await("the deadline", "/in (10|9) min/.test(row('worker')?.innerText)")
	p.open("Channels", "channels")
	p.await("the channel", "rows().length > 0")
	const cell = "(name, text) => [...row(name).cells].some((c) => c.textContent === text)" // which may be hidden in a narrow window
	if err := ch.Tx(); err != nil {
		t.Fatal(err)
	}
	if err := ch.PublishWithContext(t.Context(), "", "held", false, false, amqp.Publishing{Body: make([]byte, 2<<20)}); err != nil {
		t.Fatal(err)
	}
	p.open("Nodes", "nodes")
	p.await("what is held for clients", "/Memory held for clients\\s+2 MiB: channels 2 MiB, unconfirmed publishes 0 B, unsent answers 0 B/.test(text('main')) && ("+cell+")('n1', '2 MiB') && ("+cell+")('n2', '0 B')")
	p.open("Connections", "connections")
	p.await("what is held for one", "("+cell+")('a client to close', '2 MiB')")
	p.press("Memory held")
	p.press("Memory held")
	p.await("who makes the node hold most", "rows()[0].includes('a client to close')")
	p.do("row('a client to close')", "querySelector('a').click()")
	p.await("for what", "/Memory held for it\\s+2 MiB: channels 2 MiB, /.test(text('main'))")
	p.open("Connections", "connections")
	p.do("row('a client to close')", "querySelector('button').click()")
	p.fill("reason", "it is in the way")
	p.press("Close it")
	p.await("it is gone", "!row('a client to close')")
	select {
	case why := <-closed:
		if why == nil || why.Code != amqp.ConnectionForced || !strings.Contains(why.Reason, "it is in the way") {
			t.Error(why)
		}
	case <-time.After(patience):
		t.Error("the client is not told")
	}
}

// testSessions: the page of a connection of AMQP 1.0 shows sessions and links in place of channels, and consumers lead
// to it.
func testSessions(t *testing.T, w *world) {
	long.Test(t)
	w.mustQueue(t, "linked", nil)
	c, err := amqp10.Dial(t.Context(), w.Nodes[0].URI(), &amqp10.ConnOptions{ContainerID: "a container"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	s, err := c.NewSession(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.NewSender(t.Context(), "/queues/linked", &amqp10.SenderOptions{Name: hostile[0]}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.NewReceiver(t.Context(), "/queues/linked", &amqp10.ReceiverOptions{Name: hostile[1], Credit: 17}); err != nil {
		t.Fatal(err)
	}
	p := mustLogIn(t, w.browser, w.url)
	p.open("Queue linked", "queue", "/", "linked", "consumers")
	p.do("row("+quote(hostile[1])+")", "querySelector('a').click()")
	p.await("its connection", "/Protocol\\s+AMQP 1-0/.test(text('main')) && /Container\\s+a container/.test(text('main')) && /Sessions\\s+1 of /.test(text('main'))")
	p.await("its session", rows("Sessions")+".some((r) => /^0\\s/.test(r) && r.includes('400'))")
	p.await("where it publishes", rows("Incoming links")+".some((r) => r.includes("+quote(hostile[0])+") && r.includes('/queues/linked') && r.includes('170'))")
	p.await("what it receives", rows("Outgoing links")+".some((r) => r.includes("+quote(hostile[1])+") && r.includes('17'))")
	p.await("no channels", "!document.querySelector('[aria-label=Channels]')")
}

// testTimeouts has a consumer whose tag is markup hold a message for too long: it is listed with its
// channel, also when that is closed.
func testTimeouts(t *testing.T, w *world) {
	long.Test(t)
	w.mustQueue(t, "slow", map[string]any{"x-consumer-timeout": 1000})
	ch := w.mustDial(t, "a slow client")
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	got, err := ch.Consume("slow", hostile[0], false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.mustPublish(t, "slow", "one", nil)
	<-got
	p := mustLogIn(t, w.browser, w.url)
	const last = "all('[aria-label=\"Last timeouts\"] tbody tr').map((r) => r.innerText)"
	p.open("Consumers", "consumers")
	p.await("the timeout", last+".some((r) => r.includes('slow') && r.includes("+quote(hostile[0])+") && /consumer cancelled|channel closed/.test(r) && /-> .* \\(1\\)/.test(r))")
	_ = ch.Close()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Fatal("the channel does not close")
	}
	p.open("Queue slow", "queue", "/", "slow", "consumers")
	p.await("the same of the queue", last+".length === 1 && "+last+"[0].includes("+quote(hostile[0])+")")
	p.await("text only", "all('main img').length === 0")
	p.open("Queue live", "queue", "/", "live", "consumers")
	p.await("none of another queue", last+".length === 1 && "+last+"[0].includes('No consumer')")
}

// hostile are names and texts that a careless page would run.
var hostile = []string{
	`<img src=x onerror="window.__xss=1;alert(1)">`,
	`<script>window.__xss=1;alert(1)</script>`,
	`"><svg/onload=alert(1)>`,
	`' onmouseover='alert(1)' x='`,
	`</td></tr></table><iframe src="javascript:alert(1)"></iframe>`,
	`javascript:alert(1)`,
	`{{constructor.constructor('window.__xss=1')()}}`,
	`${alert(1)}`,
	`%3Cimg%20src=x%20onerror=alert(1)%3E`,
	`a/b?c#d&e=f%2F`,
}

// testHostile has every kind of object carry every hostile text, and looks at all pages.
func testHostile(t *testing.T, w *world) {
	long.Test(t)
	ch := w.mustDial(t, hostile[0])
	for i, name := range hostile {
		w.mustQueue(t, name, map[string]any{"x-dead-letter-exchange": name})
		w.mustPublish(t, name, name, map[string]any{name: name, "x-opt-delivery-delay": 0})
		w.mustPublish(t, name, name+" later", map[string]any{name: name, "x-opt-delivery-delay": 3_600_000})
		for path, body := range map[string]any{
			"/api/users/":         map[string]any{"password": "p", "tags": []string{name}},
			"/api/exchanges/%2F/": map[string]any{"type": "topic"},
			"/api/policies/%2F/":  map[string]any{"pattern": "^hostile$", "definition": map[string]any{"dead-letter-exchange": name}, "priority": i},
			"/api/vhosts/":        map[string]any{"description": name, "tags": name},
		} {
			w.mustCall(t, http.MethodPut, path+url.PathEscape(name), body, nil)
		}
		w.mustCall(t, http.MethodPut, "/api/permissions/"+url.PathEscape(name)+"/"+url.PathEscape(name), map[string]any{"configure": regexp.QuoteMeta(name), "write": "", "read": ""}, nil)
		w.mustCall(t, http.MethodPut, "/api/topic-permissions/"+url.PathEscape(name)+"/"+url.PathEscape(name), map[string]any{"exchange": name, "write": regexp.QuoteMeta(name), "read": ""}, nil)
		w.mustCall(t, http.MethodPost, "/api/bindings/%2F/e/"+url.PathEscape(name)+"/e/"+url.PathEscape(name), map[string]any{"routing_key": name, "arguments": map[string]any{}}, nil)
		w.mustCall(t, http.MethodPost, "/api/bindings/%2F/e/"+url.PathEscape(name)+"/q/"+url.PathEscape(name), map[string]any{"routing_key": name, "arguments": map[string]any{name: name}}, nil)
		if _, err := ch.Consume("live", name, false, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	p := mustLogIn(t, w.browser, w.url)
	show := func(heading, has string, names ...string) {
		t.Helper()
		p.open(heading, names...)
		p.await(fmt.Sprintf("%q on %q", has, heading), "document.body.innerText.includes("+quote(has)+")")
		strange := mustEval[[]string](p, `all('img, iframe, svg:not(.graph), svg.graph *:not(g, a, text, title, rect, path), object, embed, script:not([src^="/console/"]), body style, [onerror], [onload], [onmouseover], a:not([href^="#"])').map((e) => e.outerHTML)
			.concat(window.__xss === undefined ? [] : ['window.__xss'])`)
		if len(strange) > 0 {
			t.Errorf("%q: %q", heading, strange)
		}
	}
	for _, name := range hostile {
		show("Queues", name, "queues")
		show("Queue "+name, name, "queue", "/", name)
		p.await("its replicas", "rows().some((r) => r.includes('leader'))")
		show("Queue "+name, name, "queue", "/", name, "messages")
		p.press("Show")
		p.await("all of it", "text('dialog pre') === "+quote(name)+" && text('dialog').includes("+quote("header "+name)+")")
		show("Queue "+name, name+" later", "queue", "/", name, "scheduled")
	}
	for _, name := range hostile {
		show("Exchange "+name, name, "exchange", "/", name)
		p.await("its binding", "rows().filter((r) => r.includes("+quote(name)+")).length > 0")
		p.await("its graph", links+".length === 3 && "+links+".every((e) => e.includes("+quote(name)+"))")
		show("Exchange "+name, name, "exchange", "/", name)
		show("User "+name, name, "user", name)
		p.await("its permissions", "all('[aria-label=\"Topic permissions\"] tbody tr').some((r) => r.children[1]?.innerText === "+quote(name)+")")
		show("Virtual host "+name, name, "vhost", name)
		p.await("who may use it", "all('[aria-label=\"Topic permissions\"] tbody tr').some((r) => r.firstChild.innerText === "+quote(name)+")")
		show("Virtual host "+name, regexp.QuoteMeta(name), "vhost", name)
		show("Queues", name, "queues", name)
	}
	for heading, page := range map[string]string{"Exchanges": "exchanges", "Policies": "policies", "Users": "users", "Virtual hosts": "vhosts"} {
		for _, name := range hostile {
			show(heading, name, page)
		}
	}
	show("Queue live", hostile[1], "queue", "/", "live", "consumers")
	show("Connections", hostile[0], "connections")
	show("Consumers", hostile[2], "consumers")
	names, _ := json.Marshal([]string{"queue", "/", ".."})
	mustEval[string](p, fmt.Sprintf("location.hash = '#/' + %s.map(encodeURIComponent).join('/')", names))
	p.await("a name that browsers change", "text('main').includes('a browser cannot ask')")
}

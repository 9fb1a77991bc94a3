package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/quorate/quorate/jepsen/internal/long"
)

// widths are those of a phone, of a laptop and of a large screen.
var widths = []int64{390, 1280, 1920}

const (
	// fits is that the page is no wider than the window (%d), that a table says if it is, and that what can be
	// done is in sight. A phone that shows a wide page has a wide window: it is compared with what it was set to.
	fits = `document.documentElement.scrollWidth <= %[1]d
		&& all('.scroll').every((e) => e.scrollWidth <= e.clientWidth + 1 || getComputedStyle(e).boxShadow !== 'none')
		&& all('main td button').filter((e) => e.checkVisibility()).every((e) => e.getBoundingClientRect().right <= %[1]d)`
	// lines is in how many lines a word of an element is.
	lines = `((e, word) => {
		const walk = document.createTreeWalker(e, NodeFilter.SHOW_TEXT), range = document.createRange();
		for (let n = walk.nextNode(); n; n = walk.nextNode()) {
			const at = n.data.indexOf(word);
			if (at < 0) continue;
			range.setStart(n, at);
			range.setEnd(n, at + word.length);
			return new Set([...range.getClientRects()].map((r) => r.top)).size;
		}
		return 0;
	})`
)

// testWidths walks all pages, with names as long as names can be, on all screens.
func testWidths(t *testing.T, w *world) {
	long.Test(t)
	name := strings.Repeat("w", 255)
	at := url.PathEscape(name)
	call := func(method, path string, body any) {
		t.Helper()
		w.mustCall(t, method, path, body, nil)
	}
	policy := map[string]any{"pattern": "^" + name + "$", "definition": map[string]any{"message-ttl": 3_600_000}, "priority": 1}
	call(http.MethodPut, "/api/vhosts/"+at, map[string]any{"description": name, "tags": name})
	call(http.MethodPut, "/api/users/"+at, map[string]any{"password": "p", "tags": []string{name}})
	call(http.MethodPut, "/api/permissions/%2F/"+at, map[string]any{"configure": name, "write": name, "read": name})
	call(http.MethodPut, "/api/exchanges/%2F/"+at, map[string]any{"type": "topic"})
	call(http.MethodPut, "/api/policies/%2F/"+at, policy)
	call(http.MethodPut, "/api/operator-policies/%2F/"+at, policy)
	w.mustQueue(t, name, map[string]any{"x-dead-letter-exchange": name, "x-dead-letter-routing-key": name})
	for _, kind := range []string{"q", "e"} {
		call(http.MethodPost, "/api/bindings/%2F/e/"+at+"/"+kind+"/"+at, map[string]any{"routing_key": name, "arguments": map[string]any{name: name}})
	}
	w.mustPublish(t, name, name, map[string]any{name: name})
	w.mustPublish(t, name, "later", map[string]any{"x-opt-delivery-delay": 3_600_000})
	w.mustQueue(t, "widths", map[string]any{"x-consumer-timeout": 600_000})
	ch := w.mustDial(t, name)
	if _, err := ch.Consume("widths", name, false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	var channels []struct {
		Name    string
		Details struct{ Name string } `json:"connection_details"`
	}
	w.mustCall(t, http.MethodGet, "/api/channels?sort=number&name=", nil, &channels)
	if len(channels) == 0 {
		t.Fatal("no channel is listed")
	}

	p := mustLogIn(t, w.browser, w.url)
	check := func(what string) {
		t.Helper()
		for _, width := range widths {
			p.appear("light", width, 800)
			p.await(fmt.Sprintf("%s in %d px", what, width), fmt.Sprintf(fits, width))
		}
	}
	// The overview names queues under a check that fails.
	mustEval[bool](p, `(() => {
		const real = window.fetch;
		window.fetch = async (url, options) => (url.includes('quorum-queues-without') ? Response.json({ status: 'failed', reason: 'Queues without a leader', queues: [{ virtual_host: '/', name: '`+name+`', readable_name: '`+name+`' }] }, { status: 503 }) : real(url, options));
		return true;
	})()`)
	for _, page := range []struct {
		heading, ready string
		names          []string
	}{
		{"Overview", "text('.health').includes('" + name + "') && rows().length > 10", []string{"overview"}},
		{"Time", "row('" + name + "')", []string{"time"}},
		{"Queues", "row('" + name + "')", []string{"queues"}},
		{"Queues", "rows().length > 0", []string{"queues", name}},
		{"Queue " + name, "rows().some((r) => r.includes('leader')) && text('[aria-label=Settings]').includes('" + name + "')", []string{"queue", "/", name}},
		{"Queue " + name, "button('Show')", []string{"queue", "/", name, "messages"}},
		{"Queue " + name, "button('Fire')", []string{"queue", "/", name, "scheduled"}},
		{"Queue " + name, "rows().length > 0", []string{"queue", "/", name, "consumers"}},
		{"Queue " + name, "row('" + name + "')", []string{"queue", "/", name, "bindings"}},
		{"Queue " + name, "rows().length > 0", []string{"queue", "/", name, "ended"}},
		{"Queue widths", "row('" + name + "')", []string{"queue", "/", "widths", "consumers"}},
		{"Consumers", "row('" + name + "')", []string{"consumers"}},
		{"Connections", "row('" + name + "')", []string{"connections"}},
		{"Connection " + channels[0].Details.Name, "rows().length > 0", []string{"connection", channels[0].Details.Name}},
		{"Channels", "rows().length > 0", []string{"channels"}},
		{"Channel " + channels[0].Name, "text('dl').includes('running')", []string{"channel", channels[0].Name}},
		{"Exchanges", "row('" + name + "')", []string{"exchanges"}},
		{"Exchange " + name, "row('" + name + "') && document.querySelector('svg.graph')", []string{"exchange", "/", name}},
		{"Policies", "all('tbody tr').filter((r) => r.innerText.includes('" + name + "')).length > 1", []string{"policies"}},
		{"Nodes", "rows().length > 6", []string{"nodes"}},
		{"Features", "rows().length > 2", []string{"features"}},
		{"Virtual hosts", "row('" + name + "')", []string{"vhosts"}},
		{"Virtual host " + name, "text('dl').includes('" + name + "')", []string{"vhost", name}},
		{"Virtual host /", "row('" + name + "')", []string{"vhost", "/"}},
		{"Users", "row('" + name + "')", []string{"users"}},
		{"User " + name, "row('" + name + "')", []string{"user", name}},
		{"Definitions", "all('[name=of] option').some((o) => o.value === '" + name + "')", []string{"definitions"}},
	} {
		p.appear("light", 1280, 800)
		p.open(page.heading, page.names...)
		p.await("what is on "+page.heading, page.ready)
		check(strings.Join(page.names, "/"))
	}

	p.appear("light", 1280, 800)
	p.open("Connections", "connections")
	p.await("addresses in one piece", "all('main tbody tr').every((r) => "+lines+"(r, /[0-9.]+:[0-9]+/.exec(r.innerText)[0]) === 1)")
	p.appear("light", 390, 800)
	p.open("Nodes", "nodes")
	p.await("words in one piece", lines+"(row('clustering'), 'clustering') === 1")
	p.open("Queue "+name, "queue", "/", name, "messages")
	p.await("a payload and what can be done", "(() => { const r = document.querySelector('.payload').getBoundingClientRect(); return r.left >= 0 && r.right <= 390 && button('Show').getBoundingClientRect().right <= 390; })()")
	p.press("Show")
	p.await("its headers", "text('dialog').includes('header ') && document.querySelector('dialog').scrollWidth <= document.querySelector('dialog').clientWidth + 1")

	call(http.MethodDelete, "/api/operator-policies/%2F/"+at, nil)
	call(http.MethodDelete, "/api/policies/%2F/"+at, nil)
	call(http.MethodDelete, queuePath(name), nil)
	call(http.MethodDelete, "/api/vhosts/"+at, nil)
	call(http.MethodDelete, "/api/users/"+at, nil)
}

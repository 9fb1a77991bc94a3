package console

import (
	"net/http"
	"testing"

	"github.com/quorate/quorate/jepsen/internal/long"
)

// answered makes the page get other answers: change is a function of the path and of the answer of the node.
func (p *tab) answered(change string) {
	p.t.Helper()
	mustEval[bool](p, `(() => {
		const real = window.fetch, change = `+change+`;
		window.fetch = async (url, options) => {
			const answer = await real(url, options);
			return answer.ok ? Response.json(change(url, await answer.json())) : answer;
		};
		return true;
	})()`)
}

// testUnknown has no queue with a leader that answers, and a node that does not: what is not known is no zero.
func testUnknown(t *testing.T, w *world) {
	w.mustQueue(t, "unled", map[string]any{"x-dead-letter-exchange": "amq.fanout"})
	p := mustLogIn(t, w.browser, w.url)
	p.await("known totals", "card('Ready') >= 0 && card('Queues') > 0 && !text('main').includes('not known')")
	p.answered(`(url, a) => {
		if (url.startsWith('/api/overview') && a.queue_totals) for (const key of Object.keys(a.queue_totals)) if (!key.endsWith('_details')) a.queue_totals[key] = key === 'queues_unknown' ? a.object_totals.queues : 0;
		if (url.startsWith('/api/overview') && a.queue_totals) a.object_totals.consumers = 0;
		if (url.startsWith('/api/nodes')) for (const n of a) if (n.name === 'n2') for (const key of Object.keys(n)) n[key] = typeof n[key] === 'number' ? 0 : key === 'answers' ? false : n[key];
		if (url.startsWith('/api/queues/%2F/unled?')) a = Object.fromEntries(Object.entries({ ...a, leader: null }).filter(([key]) => !/^(messages|message|consumers|locks|next|lease|idle|raft|groups|expiring)/.test(key)));
		if (url.startsWith('/api/queues?')) a.items = a.items.map((q) => ({ vhost: q.vhost, name: q.name, type: q.type, state: q.state, members: q.members, online: q.online, leader: null, policy: '', operator_policy: '' }));
		if (url.startsWith('/api/vhosts?') && a.items[0]?.messages_ready !== undefined) for (const v of a.items) Object.assign(v, { messages_ready: 0, messages_unacknowledged: 0, queues_unknown: 1 });
		return a;
	}`)
	const shown = "(name) => all('.card').find((c) => c.firstChild.textContent === name)?.lastChild.textContent"
	p.open("Queues", "queues")
	p.await("a list without numbers", "row('unled') && /no leader(\\s+–)+\\s*$/.test(row('unled').innerText)")
	p.open("Queue unled", "queue", "/", "unled")
	p.await("a queue without numbers", "/Ready\\s*–/.test(text('[aria-label=State]')) && /Unacknowledged\\s*–/.test(text('[aria-label=State]')) && text('[aria-label=State]').includes('no leader answers') && text('[aria-label=Expiry]').includes('Not known')")
	p.await("charts of nothing", "all('.chart').every((e) => / –(, .* –)*$/.test(e.ariaLabel))")
	p.open("Overview", "overview")
	p.await("totals that are not known", "['Ready', 'Unacknowledged', 'Scheduled', 'Expire within 1 h', 'Consumers'].every((name) => ("+shown+")(name) === '–') && /have no leader that answers[^]*not known/.test(text('.unknown'))")
	p.await("a node that does not answer", "/^n2\\s+does not answer(\\s+–)+\\s*$/.test(row('n2')?.innerText) && /^n1\\s+running/.test(row('n1')?.innerText)")
	p.open("Virtual hosts", "vhosts")
	p.await("virtual hosts without numbers", "rows().length > 0 && all('main tbody tr').every((r) => all('td.number', r).every((e) => e.innerText === '–'))")
}

// testAbsent opens pages about what is not there: each says so once, and offers nothing to do with it.
func testAbsent(t *testing.T, w *world) {
	p := mustLogIn(t, w.browser, w.url)
	for _, page := range []struct {
		heading, says string
		names         []string
	}{
		{"Queue none", "There is no queue none in the virtual host /", []string{"queue", "/", "none"}},
		{"Queue none", "There is no queue none in the virtual host /", []string{"queue", "/", "none", "messages"}},
		{"Queue none", "There is no queue none in the virtual host /", []string{"queue", "/", "none", "consumers"}},
		{"Exchange none", "There is no exchange none in the virtual host /", []string{"exchange", "/", "none"}},
		{"Virtual host none", "There is no virtual host none", []string{"vhost", "none"}},
		{"User none", "There is no user none", []string{"user", "none"}},
		{"Connection none", "The connection none is closed", []string{"connection", "none"}},
		{"Channel none", "The channel none is closed", []string{"channel", "none"}},
	} {
		p.open(page.heading, page.names...)
		p.await(page.says, "all('main .notice').length === 1 && text('main .notice').startsWith("+quote(page.says)+") && !text('main').includes('Not Found') && all('main button, main table').length === 0")
	}
}

// testWords reads what pages say: words instead of names of the API, each once, times in one form, and units.
func testWords(t *testing.T, w *world) {
	long.Test(t)
	w.mustQueue(t, "worded", map[string]any{"x-message-ttl": 86_400_000, "x-max-length": 10})
	w.mustCall(t, http.MethodPut, "/api/operator-policies/%2F/worded", map[string]any{"pattern": "^worded$", "definition": map[string]any{"expires": 90_000_000}}, nil)
	p := mustLogIn(t, w.browser, w.url)
	const heads = "(label) => all('th', document.querySelector('[role=region][aria-label=\"' + label + '\"]')).map((e) => e.innerText)"
	p.await("what is counted", "text('main').includes('Published') && ("+heads+")('Counts since the nodes started').join() === 'Messages,Per second,Total' && ("+heads+")('Connections, channels and queues').join() === 'Event,Per second,Total'")
	p.await("words in charts", "all('.u-legend .u-label').map((e) => e.innerText).join() === 'Time,Published,Confirmed,Delivered,Acknowledged,Redelivered,Time,Ready,Unacknowledged'")
	p.open("Queue worded", "queue", "/", "worded")
	const setting = "(key) => all('[aria-label=Settings] tbody tr').find((r) => r.firstChild.innerText === key)?.lastChild.innerText"
	p.await("units", "("+setting+")('message-ttl') === "+quote("86400000 ms (1 d) the argument's")+" && ("+setting+")('max-length') === "+quote("10 the argument's"))
	p.await("whose policy it is", "("+setting+")('expires') === "+quote("90000000 ms (1 d 1 h) the operator policy's"))
	p.await("a strategy is none", "/Dead-letter strategy\\s*disabled/.test(text('main')) && !/Dead letters go\\s*disabled/.test(text('main'))")
	p.await("times in one form", `(() => {
		const over = document.querySelector('.u-over'), r = over.getBoundingClientRect();
		for (const kind of ['mouseenter', 'mousemove']) over.dispatchEvent(new MouseEvent(kind, { bubbles: true, clientX: r.left + r.width / 2, clientY: r.top + r.height / 2 }));
		return /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC$/.test(text('.u-legend .u-value'));
	})()`)
	for heading, names := range map[string][]string{"Nodes": {"nodes"}, "Queues": {"queues"}, "Connections": {"connections"}, "Channels": {"channels"}, "Consumers": {"consumers"}, "Exchanges": {"exchanges"}, "Policies": {"policies"}, "Time": {"time"}} {
		p.open(heading, names...)
		p.await("heads that differ, in words, on "+heading, "all('main table').length > 0 && all('main table').every((t) => { const list = all('th', t).map((e) => e.textContent); return new Set(list).size === list.length; }) && !/\\bVhost|deliver_get|messages_ready|All vhosts/.test(text('main'))")
	}
	w.mustCall(t, http.MethodDelete, "/api/operator-policies/%2F/worded", nil, nil)
}

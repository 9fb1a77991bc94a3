package console

import (
	"net/http"
	"testing"
)

// testTime looks at what comes next, as a user who sees one virtual host, and as one who sees all.
func testTime(t *testing.T, w *world) {
	for path, body := range map[string]any{"/api/vhosts/clock": map[string]any{}, "/api/users/watch": map[string]any{"password": "watch", "tags": "management"}} {
		w.mustCall(t, http.MethodPut, path, body, nil)
	}
	for _, user := range []string{"guest", "watch"} {
		w.mustCall(t, http.MethodPut, "/api/permissions/clock/"+user, map[string]any{"configure": ".*", "write": ".*", "read": ".*"}, nil)
	}
	w.mustCall(t, http.MethodPut, "/api/queues/clock/dying", map[string]any{"arguments": map[string]any{"x-dead-letter-exchange": "amq.fanout"}}, nil)
	w.mustCall(t, http.MethodPut, "/api/queues/clock/firing", map[string]any{"arguments": map[string]any{"x-expires": 80_000_000}}, nil)
	w.mustCall(t, http.MethodPut, "/api/queues/clock/quiet", map[string]any{}, nil)
	for _, m := range []struct {
		queue      string
		properties map[string]any
	}{
		{"dying", map[string]any{"expiration": "3000000"}}, {"dying", map[string]any{"expiration": "3000000"}}, {"dying", map[string]any{"expiration": "80000000"}}, {"dying", map[string]any{"expiration": "172800000"}},
		{"firing", map[string]any{"headers": map[string]any{"x-opt-delivery-delay": 2_000_000}}}, {"firing", map[string]any{"headers": map[string]any{"x-opt-delivery-delay": 20_000_000}}}, {"firing", map[string]any{"expiration": "80000000"}},
	} {
		w.mustCall(t, http.MethodPost, "/api/exchanges/clock/amq.default/publish", map[string]any{"routing_key": m.queue, "payload": "", "payload_encoding": "string", "properties": m.properties}, nil)
	}
	w.mustQueue(t, "unseen", map[string]any{"x-message-ttl": 3_000_000})
	w.mustPublish(t, "unseen", "one", nil)

	p := mustOpen(t, w.browser, w.url)
	p.logIn("watch", "watch")
	p.await("the overview", "text('h1') === 'Overview'")
	p.do("all('nav a').find((a) => a.innerText === 'Time')", "click()")
	const next = "(label) => all('[role=region][aria-label=\"What comes next\"] tbody tr').find((r) => r.innerText.startsWith(label))?.innerText.split('\\t').slice(1).map((s) => s.trim()).join()"
	for label, counts := range map[string]string{
		"Messages expire": "0,2,4", "of which": "0,2,3", "Scheduled messages fire": "0,1,2", "Held messages": "0,0,0", "Locks end": "0,0,0", "Failed messages": "0,0,0", "Deferred": "0,0,0", "Unused queues": "0,0,1",
	} {
		p.await(label, "("+next+")("+quote(label)+") === "+quote(counts))
	}
	const rowsOf = "all('[aria-label=Queues] tbody tr').map((r) => r.innerText)"
	p.await("the queues, the one first in which something comes first", rowsOf+".length === 2 && /^firing\\s+clock\\s+in (33|32) min[^]*0 \\/ 1\\s+–\\s+1 \\/ 2/.test("+rowsOf+"[0]) && /^dying\\s+clock\\s+in (50|49) min[^]*2 \\/ 3\\s+2 \\/ 3/.test("+rowsOf+"[1])")
	p.await("nothing of others", "!text('main').includes('unseen') && text('main').includes('3 queues counted')")
	p.await("a picture in words", "document.querySelector('.ahead .bars').ariaLabel === '6 messages within a day, at most 3 in 30 min to 1 h: 2 expire, 1 fire' && all('.ahead .stack > span').length === 4 && all('.legend li').length === 6")
	p.do("all('[aria-label=Queues] a').find((a) => a.innerText === 'dying')", "click()")
	p.await("the queue", "text('h1') === 'Queue dying'")

	guest := mustLogIn(t, w.browser, w.url)
	guest.open("Time", "time")
	guest.await("those of all", "row('unseen') && row('dying')")
	guest.answered(`(url, a) => (url.startsWith('/api/quorate/time') && a.within ? { ...a, at_least: true, queues_unknown: 2 } : a)`)
	guest.await("what is not known", "text('main').includes('2 queues have no leader that answers') && /at least \\d/.test(row('Messages expire').innerText)")
}

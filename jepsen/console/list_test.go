package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/long"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

const (
	// few is how many queues the list has without the flag: some pages of it.
	few = 120
	// shownRows is how many queues the list shows at a time.
	shownRows = 50
	// batch is how many queues are declared with one request.
	batch = 64
	// calm is for how long the machine has no long stall before many queues are measured.
	calm = 10 * time.Second
)

// watchPaint is in a page before its own scripts: watchPaint(since, ready) sets painted to the time in
// ms from since until what makes ready true has been painted. A task that a callback before a frame
// has queued runs after that frame.
const watchPaint = `
window.watchPaint = (since, ready) => {
  window.painted = undefined;
  const watch = new MutationObserver(look);
  function look() {
    if (!ready()) return;
    watch.disconnect();
    requestAnimationFrame(() => setTimeout(() => { window.painted = performance.now() - since; }));
  }
  watch.observe(document, { childList: true, subtree: true, attributes: true });
  look();
};
window.listed = () => [...document.querySelectorAll('main tbody tr:not(.none)')];
watchPaint(0, () => listed().length === 50);
`

// testManyQueues measures how long the list of queues takes until it is on the screen: from the
// navigation, when it is sorted, and when it is filtered.
func testManyQueues(t *testing.T, w *world) {
	long.Test(t)
	n, times := few, 1
	if *many > 0 {
		n, times = max(*many, few), 5
	}
	name := func(i int) string { return fmt.Sprintf("many.%05d", i) }
	busy := name(n - 1)
	for begin := 0; begin < n; begin += batch {
		var queues []map[string]any
		for i := begin; i < min(begin+batch, n); i++ {
			queues = append(queues, map[string]any{"name": name(i), "vhost": "/", "durable": true, "arguments": map[string]any{}})
		}
		w.mustCall(t, http.MethodPost, "/api/definitions", map[string]any{"queues": queues}, nil)
	}
	w.mustAwaitLeaders(t, n)
	for range 9 { // few queues have as many: it is on the first page
		w.mustPublish(t, busy, "one", nil)
	}

	p := mustLogIn(t, w.browser, w.url)
	p.open("Queues", "queues")
	must(p, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watchPaint})
	machine := stall.Start()
	defer machine.Stop()
	if *many > 0 { // what the nodes and the browser do after so many declarations ends, if nobody else keeps the machine busy
		began := time.Now()
		_ = await.Until(t.Context(), 10*poll, "a calm machine", func() (bool, error) {
			past := time.Since(began)
			return past > patience/2 || past > calm && machine.Longest(time.Now().Add(-calm)) < calm/100, nil
		})
	}
	measure := func(what string, do func()) {
		t.Helper()
		began := time.Now()
		do()
		p.await(what+" is painted", "window.painted > 0")
		took := time.Duration(mustEval[float64](p, "painted") * float64(time.Millisecond)).Round(time.Millisecond)
		allowed := stall.Tolerance(machine.Longest(began))
		t.Logf("%d queues: %s is painted after %v, at most %v", n, what, took, allowed)
		if *many > 0 && took > allowed {
			t.Errorf("%s takes %v to be painted, more than %v", what, took, allowed)
		}
	}

	for range times {
		measure("the list", func() { p.run(chromedp.Reload()) })
	}
	const asked = "performance.getEntriesByType('resource').find((e) => e.name.includes(%s))"
	p.await("what is asked for after the list", fmt.Sprintf("["+asked+", "+asked+"].every((e) => e && e.startTime >= "+asked+".responseEnd)",
		quote("/api/vhosts?"), quote("/api/overview?"), quote("/api/queues?")))
	p.await("its pages", fmt.Sprintf("listed().length === %d && parseInt(text('.info').replaceAll(',', '').split(' of ')[1]) >= %d && !row(%s)", shownRows, n, quote(busy)))
	p.press("Ready")
	p.await("the order", "document.querySelector('th[aria-sort=ascending]')?.innerText.startsWith('Ready') && !row("+quote(busy)+")")
	measure("the order by ready messages", func() {
		mustEval[bool](p, fmt.Sprintf("(watchPaint(performance.now(), () => listed().some((r) => r.textContent.includes(%s))), button('Ready').click(), true)", quote(busy)))
	})
	measure("the filter by name", func() {
		mustEval[bool](p, fmt.Sprintf(`(() => {
			watchPaint(performance.now(), () => listed().length === 1 && listed()[0].textContent.includes(%[1]s));
			const e = document.querySelector('main [type=search]');
			e.value = %[1]s;
			e.dispatchEvent(new Event('input', { bubbles: true }));
			return true;
		})()`, quote(busy)))
	})
}

// mustAwaitLeaders waits until each of n queues has a leader.
func (w *world) mustAwaitLeaders(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience+time.Duration(n)*20*time.Millisecond)
	defer cancel()
	err := await.Until(ctx, 10*poll, "leaders of all queues", func() (bool, error) {
		err := w.Nodes[0].Call(ctx, http.MethodGet, "/api/health/checks/quorum-queues-without-elected-leaders/all-vhosts", nil, nil)
		return err == nil, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// testFilters lists the queues that an operator looks for.
func testFilters(t *testing.T, w *world) {
	w.mustQueue(t, "lasting", map[string]any{"x-expires": 7_200_000})
	w.mustQueue(t, "ending", map[string]any{"x-expires": 1_800_000})
	p := mustLogIn(t, w.browser, w.url)
	p.open("Queues", "queues")
	p.await("both", "row('lasting') && row('ending')")
	p.choose("Which queues", "lease-ending")
	p.await("the one that is deleted soon", "rows().length === 1 && /ending[^]*in (29|30) min/.test(rows()[0]) && text('.info').startsWith('1–1 of 1,')")
	p.await("the vhosts", "all('[aria-label=\"Virtual host\"] option').some((o) => o.value === '/')")
	p.choose("Virtual host", "/")
	p.await("the same of one vhost", "location.hash === '#/queues/%2F/lease-ending' && rows().length === 1 && row('ending')")
	p.choose("Which queues", "minority")
	p.await("none", "location.hash === '#/queues/%2F/minority' && rows().length === 1 && row('There are none')")
	p.open("Queues", "queues", "", "leaderless")
	p.await("none without a leader", "rows().length === 1 && row('There are none') && document.querySelector('[aria-label=\"Which queues\"]').value === 'leaderless'")
}

// testKept filters and sorts lists by hand, and then chooses which queues and exchanges they show.
func testKept(t *testing.T, w *world) {
	long.Test(t)
	for _, name := range []string{"kept/one?", "kept/two?", "lost/one?"} {
		w.mustQueue(t, name, map[string]any{"x-expires": 1_800_000})
		w.mustCall(t, http.MethodPut, "/api/exchanges/%2F/"+url.PathEscape(name), map[string]any{"type": "topic"}, nil)
	}
	p := mustLogIn(t, w.browser, w.url)
	filter := func(text string) {
		t.Helper()
		p.do("document.querySelector('main [type=search]')", "value = "+quote(text)+"; e.dispatchEvent(new Event('input', { bubbles: true }))")
	}
	const kept = "document.querySelector('main [type=search]').value === '^kept/.*[?]$' && document.querySelector('main [type=checkbox]').checked"
	const both = "rows().length === 2 && /kept.two[^]*kept.one/.test(rows().join())"
	p.open("Queues", "queues")
	filter("^kept/.*[?]$")
	p.do("document.querySelector('main [type=checkbox]')", "click()")
	p.await("those of the expression", "rows().length === 2 && row('kept/one?') && row('kept/two?')")
	p.press("Name")
	p.await("the other order", both)
	p.await("the vhosts", "all('[aria-label=\"Virtual host\"] option').some((o) => o.value === '/')")
	p.choose("Virtual host", "/")
	p.await("the same of one vhost", "location.hash.startsWith('#/queues/%2F/?') && "+kept+" && "+both)
	p.choose("Which queues", "lease-ending")
	p.await("the same of those that end", "location.hash.startsWith('#/queues/%2F/lease-ending?') && "+kept+" && "+both)
	p.run(chromedp.Reload())
	p.await("the same after a reload", kept+" && "+both)
	p.choose("Virtual host", "")
	p.await("the same of all", "location.hash.startsWith('#/queues//lease-ending?') && "+kept+" && "+both)
	filter("")
	p.await("all of them", "rows().length > 2 && row('lost/one?')")
	p.do("all('nav a').find((a) => a.innerText === 'Exchanges')", "click()")
	p.await("the exchanges", "text('h1') === 'Exchanges' && location.hash === '#/exchanges' && row('lost/one?')")
	filter("KEPT/")
	p.await("some of them", "rows().length === 2 && row('kept/one?')")
	p.await("the vhosts", "all('[aria-label=\"Virtual host\"] option').some((o) => o.value === '/')")
	p.choose("Virtual host", "/")
	p.await("the same of one vhost", "location.hash === '#/exchanges/%2F?name=KEPT%2F&sort=name' && rows().length === 2 && row('kept/one?')")
}

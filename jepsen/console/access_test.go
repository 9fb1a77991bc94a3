package console

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/quorate/quorate/jepsen/internal/long"
)

// testKeyboard reaches all that can be used on a page with the tabulator key, and uses it.
func testKeyboard(t *testing.T, w *world) {
	long.Test(t)
	w.mustQueue(t, "reached", nil)
	p := mustLogIn(t, w.browser, w.url)
	p.open("Queues", "queues")
	p.await("the queue", "row('reached')")
	all := mustEval[int](p, "(window.reached = new Set(), all('a, button:not(:disabled), input, select').filter((e) => e.checkVisibility()).length)")
	// The list may get shorter or longer meanwhile: what counts is that nothing is left out.
	for range 4 * all {
		p.run(chromedp.KeyEvent("\t"))
		if mustEval[int](p, "(reached.add(document.activeElement), all('a, button:not(:disabled), input, select').filter((e) => e.checkVisibility() && !reached.has(e)).length)") == 0 {
			break
		}
	}
	p.await("everything reached", "all('a, button:not(:disabled), input, select').filter((e) => e.checkVisibility() && !reached.has(e)).length === 0")

	// Open a dialog, leave it, sort, and follow a link, by keys only.
	p.do("button('Add a queue')", "focus()")
	p.run(chromedp.KeyEvent("\r"))
	p.await("the dialog has the focus", "document.querySelector('dialog')?.contains(document.activeElement)")
	p.run(chromedp.KeyEvent("\x1b"))
	p.await("the focus is back", "!document.querySelector('dialog') && document.activeElement === button('Add a queue')")
	p.do("button('Ready')", "focus()")
	p.run(chromedp.KeyEvent("\r"))
	p.await("sorted", "document.querySelector('th[aria-sort=ascending]')?.innerText.startsWith('Ready')")
	p.do("document.querySelector('[type=search]')", "focus()")
	p.run(chromedp.KeyEvent("reached"))
	p.await("filtered", "rows().length === 1 && row('reached')")
	p.do("row('reached').querySelector('a')", "focus()")
	p.run(chromedp.KeyEvent("\r"))
	p.await("the heading has the focus", "document.activeElement === document.querySelector('h1') && text('h1') === 'Queue reached'")
}

// testSmallAndDark shows pages on a phone, in the dark.
func testSmallAndDark(t *testing.T, w *world) {
	long.Test(t)
	p := mustLogIn(t, w.browser, w.url)
	p.appear("dark", 390, 800)
	p.await("dark", "getComputedStyle(document.body).backgroundColor === 'rgb(20, 24, 28)'")
	for heading, names := range map[string][]string{
		"Overview": {"overview"}, "Time": {"time"}, "Queues": {"queues"}, "Queue live": {"queue", "/", "live"}, "Connections": {"connections"}, "Channels": {"channels"}, "Consumers": {"consumers"}, "Exchanges": {"exchanges"}, "Exchange drawn": {"exchange", "/", "drawn"}, "User ruled": {"user", "ruled"}, "Virtual host /": {"vhost", "/"}, "Features": {"features"}, "Policies": {"policies"}, "Nodes": {"nodes"}, "Users": {"users"}, "Virtual hosts": {"vhosts"},
	} {
		p.open(heading, names...)
		p.await(heading+" is as wide as the screen", "rows().length > 0 && document.documentElement.scrollWidth <= 390")
	}
}

// takeScreenshots writes the pictures of the documentation.
func takeScreenshots(t *testing.T, w *world) {
	dir := *screenshots
	if dir == "" {
		t.Skip("-console.screenshots is not given")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p := mustLogIn(t, w.browser, w.url)
	for _, shot := range []struct {
		file, heading, ready string
		names                []string
	}{
		{"overview", "Overview", "rows().length > 10", []string{"overview"}},
		{"time", "Time", "rows().length > 10 && document.querySelector('.ahead')", []string{"time"}},
		{"queues", "Queues", "rows().length > 0", []string{"queues"}},
		{"queue", "Queue live", "rows().length > 2", []string{"queue", "/", "live"}},
		{"scheduled", "Queue later", "rows().length > 0", []string{"queue", "/", "later", "scheduled"}},
		{"policies", "Policies", "rows().length > 1", []string{"policies"}},
		{"nodes", "Nodes", "rows().length > 4", []string{"nodes"}},
		{"exchange", "Exchange drawn", "rows().length > 3 && document.querySelector('svg.graph')", []string{"exchange", "/", "drawn"}},
		{"user", "User guest", "row('max-channels')", []string{"user", "guest"}},
		{"consumers", "Consumers", "rows().length > 2", []string{"consumers"}},
		{"features", "Features", "rows().length > 2", []string{"features"}},
	} {
		p.open(shot.heading, shot.names...)
		for _, screen := range []struct {
			suffix, scheme string
			width, height  int64
		}{{"", "light", 1280, 700}, {"-dark", "dark", 1280, 700}, {"-phone", "dark", 390, 800}} {
			p.appear(screen.scheme, screen.width, screen.height)
			p.await(shot.heading, shot.ready)
			picture, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, shot.file+screen.suffix+".png"), picture, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// appear sets the colours that the user prefers, and the size of the screen.
func (p *tab) appear(scheme string, width, height int64) {
	p.t.Helper()
	must(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 500})
	must(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}, // colours change at once
	}})
}

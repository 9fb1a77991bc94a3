package console

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

const (
	// patience bounds the wait for one state.
	patience = time.Minute
	// poll is the interval at which a page is asked for a state.
	poll = 50 * time.Millisecond
)

// programs are the names under which Chromium is installed.
var programs = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}

// mustBrowse starts a browser, or skips the test if that is not possible.
func mustBrowse(t *testing.T) context.Context {
	t.Helper()
	program := installed()
	if program == "" {
		t.Skipf("no Chromium is installed: none of %q", programs)
	}
	dir, err := os.MkdirTemp("", "console") // t.TempDir would fail the test if it could not be removed
	if err != nil {
		t.Fatal(err)
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(program), chromedp.Flag("headless", "new"), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("no-proxy-server", true), chromedp.UserDataDir(dir), chromedp.WindowSize(1280, 900))
	ctx, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(ctx)
	t.Cleanup(func() {
		closing, closed := context.WithTimeout(ctx, patience)
		_ = chromedp.Cancel(closing)
		closed()
		cancel()
		stop()
		_ = os.RemoveAll(dir)
	})
	started := make(chan error, 1)
	go func() { started <- chromedp.Do(ctx) }()
	select {
	case err := <-started:
		if err != nil {
			t.Skipf("%s does not start: %v", program, err)
		}
	case <-time.After(patience):
		t.Skipf("%s does not start within %v", program, patience)
	}
	return ctx
}

// installed finds a browser; empty: there is none.
func installed() string {
	for _, name := range programs {
		if at, err := exec.LookPath(name); err == nil {
			return at
		}
	}
	return ""
}

// tab is a page in the browser.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu sync.Mutex
	// dialogs are those that a script has opened; complaints are exceptions, and what the browser
	// has refused to do.
	dialogs, complaints []string
}

// mustOpen opens a tab, with an empty store of its own, on an address.
func mustOpen(t *testing.T, in context.Context, url string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(in, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	p := &tab{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, p.note); err != nil {
		t.Fatal(err)
	}
	must(p, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	must(p, log.Enable, cdp.Empty{})
	p.run(chromedp.Navigate(url))
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.dialogs)+len(p.complaints) > 0 {
			t.Errorf("dialogs %q, complaints %q", p.dialogs, p.complaints)
		}
	})
	return p
}

// note notes what must not happen.
func (p *tab) note(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *page.EventJavascriptDialogOpening:
		p.dialogs = append(p.dialogs, e.Message)
		go func() { _, _ = chromedp.Call(p.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{}) }()
	case *runtime.EventExceptionThrown:
		p.complaints = append(p.complaints, fmt.Sprintf("%+v", e.ExceptionDetails))
	case *log.EventEntryAdded:
		if e.Entry.Source != log.EntrySourceNetwork { // answers that are no success
			p.complaints = append(p.complaints, e.Entry.Text)
		}
	}
}

func (p *tab) run(action chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, action); err != nil {
		p.t.Fatalf("%v\n%s", err, p.shown())
	}
}

// must sends a command to the tab.
func must[P, R any](p *tab, command cdp.Command[P, R], parameters P) R {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	result, err := chromedp.Call(ctx, command, parameters)
	if err != nil {
		p.t.Fatal(err)
	}
	return result
}

// helpers are for the expressions below.
const helpers = `
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const text = (selector) => document.querySelector(selector)?.innerText ?? '';
const rows = () => all('main tbody tr').map((r) => r.innerText);
const row = (word) => all('main tbody tr').find((r) => r.innerText.includes(word));
const button = (name, within = document.querySelector('dialog') ?? document) => all('button', within).find((b) => b.textContent === name && !b.disabled);
const card = (name) => Number(all('.card').find((c) => c.firstChild.textContent === name)?.lastChild.textContent.replaceAll(',', '') ?? NaN);
const field = (name, value) => {
  const e = document.querySelector('dialog [name="' + name + '"], main [name="' + name + '"]');
  e.value = value;
  e.dispatchEvent(new Event('input', { bubbles: true }));
  e.dispatchEvent(new Event('change', { bubbles: true }));
};
`

// eval evaluates an expression in the page of a tab.
func eval[T any](p *tab, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T]("(() => {"+helpers+"return ("+expression+");})()"))
}

// mustEval is eval of what cannot fail.
func mustEval[T any](p *tab, expression string) T {
	p.t.Helper()
	value, err := eval[T](p, expression)
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// await waits until an expression is true.
func (p *tab) await(what, expression string) {
	p.t.Helper()
	var last error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		ok, err := eval[bool](p, "Boolean("+expression+")")
		if ok {
			return
		}
		last = err
		select {
		case <-p.ctx.Done():
			p.t.Fatalf("%s: %v", what, p.ctx.Err())
		case <-time.After(poll):
		}
	}
	p.t.Fatalf("%s: not within %v: %v\n%s", what, patience, last, p.shown())
}

// do waits until an expression names something, and calls a method of it.
func (p *tab) do(expression, call string) {
	p.t.Helper()
	p.await(expression, fmt.Sprintf("(() => { const e = %s; if (!e) return false; e.%s; return true; })()", expression, call))
}

// press presses a button by its text, in the dialog if one is open.
func (p *tab) press(name string) {
	p.t.Helper()
	p.do("button("+quote(name)+")", "click()")
}

// fill sets fields of a form, given as names and values.
func (p *tab) fill(pairs ...string) {
	p.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		p.await("the field "+pairs[i], "document.querySelector('[name="+pairs[i]+"]')")
		mustEval[bool](p, fmt.Sprintf("(field(%s, %s), true)", quote(pairs[i]), quote(pairs[i+1])))
	}
}

// choose chooses a value of a control that has a label.
func (p *tab) choose(label, value string) {
	p.t.Helper()
	p.do(fmt.Sprintf("all('select').find((e) => e.ariaLabel === %s && [...e.options].some((o) => o.value === %s))", quote(label), quote(value)),
		fmt.Sprintf("value = %s; e.dispatchEvent(new Event('change'))", quote(value)))
}

// open opens a page of the console by its names.
func (p *tab) open(heading string, names ...string) {
	p.t.Helper()
	script, _ := json.Marshal(names)
	mustEval[string](p, fmt.Sprintf("location.hash = '#/' + %s.map(encodeURIComponent).join('/')", script))
	p.await("the page "+heading, "text('h1') === "+quote(heading))
}

// shown is the text on the screen.
func (p *tab) shown() string {
	shown, err := eval[string](p, "location.href + '\\n' + document.body.innerText")
	if err != nil {
		return err.Error()
	}
	return shown
}

func quote(text string) string {
	quoted, _ := json.Marshal(text)
	return string(quoted)
}

// logIn enters a user by the keyboard.
func (p *tab) logIn(user, password string) {
	p.t.Helper()
	p.await("the login", "document.activeElement?.name === 'user'")
	p.run(chromedp.KeyEvent(user))
	p.run(chromedp.KeyEvent("\t"))
	p.await("the password", "document.activeElement?.name === 'password'")
	p.run(chromedp.KeyEvent(password))
	p.run(chromedp.KeyEvent("\r"))
}

// mustLogIn opens a tab as the administrator, on the overview.
func mustLogIn(t *testing.T, in context.Context, url string) *tab {
	t.Helper()
	p := mustOpen(t, in, url)
	p.logIn("guest", "guest")
	p.await("the overview", "text('h1') === 'Overview'")
	return p
}

// version says which browser it is.
func version(ctx context.Context) string {
	v, err := chromedp.CallBrowser(ctx, browser.GetVersion, cdp.Empty{})
	if err != nil {
		return err.Error()
	}
	return v.Product
}

package console

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/internal/await"
)

// testPolicy tries a policy, sees what it would change, sets it, and sees why a queue has its settings.
func testPolicy(t *testing.T, w *world) {
	for _, name := range []string{"bills.new", "bills.old", "other"} {
		w.mustQueue(t, name, nil)
	}
	w.mustCall(t, http.MethodPut, "/api/policies/%2F/old", map[string]any{"pattern": `^bills\.old$`, "definition": map[string]any{"message-ttl": 1000}, "priority": 5}, nil)
	p := mustLogIn(t, w.browser, w.url)
	p.open("Policies", "policies")
	p.await("the vhosts", "all('[name=vhost] option').some((o) => o.value === '/')")
	p.fill("vhost", "/", "name", "bills", "pattern", "^bills(", "priority", "1", "definition", `{"message-ttl": 7200000}`)
	p.press("Try")
	p.await("what is wrong", "text('main').includes('invalid')")
	p.fill("pattern", `^bills\.`)
	p.press("Try")
	p.await("the result", "text('.outcome').includes('match 2 queues; 1 of the 2')")
	p.await("what changes", "/apply[^]*message-ttl: nothing → 7200000/.test(all('#tried tr').find((r) => r.innerText.includes('bills.new')).innerText)")
	p.await("what does not", "/not apply: old is before it[^]*nothing/.test(all('#tried tr').find((r) => r.innerText.includes('bills.old')).innerText)")
	var queue struct{ Policy string }
	w.mustCall(t, http.MethodGet, queuePath("bills.new"), nil, &queue)
	if queue.Policy != "" {
		t.Errorf("it has been set: %+v", queue)
	}
	p.press("Set")
	p.await("it is set", "rows().some((r) => r.includes('^bills') && r.includes('7200000')) && text('.notices').includes('is set')")
	const note = "has no effect here: queue-mode"
	p.fill("name", "lazy", "pattern", `^lazy$`, "definition", `{"queue-mode": "lazy", "message-ttl": 1}`)
	p.press("Try")
	p.await("what has no effect", "all('[aria-live] .notice').some((n) => n.innerText === '"+note+"')")
	p.press("Set")
	p.await("what has no effect is told and listed", "text('.notices').includes('is set') && text('.notices').includes('"+note+"') && row('lazy').innerText.includes('"+note+"')")
	p.open("Queue bills.new", "queue", "/", "bills.new")
	p.await("where the setting comes from", "rows().some((r) => r.includes('message-ttl') && r.includes('7200000')) && text('main').includes('priority 1')")
}

// testExchange adds an exchange and a binding, and publishes through them.
func testExchange(t *testing.T, w *world) {
	w.mustQueue(t, "bound", nil)
	p := mustLogIn(t, w.browser, w.url)
	p.open("Exchanges", "exchanges")
	p.press("Add an exchange")
	p.fill("name", "shop", "type", "topic")
	p.press("Add")
	p.await("the exchange", "text('h1') === 'Exchange shop'")
	p.press("Bind")
	p.fill("name", "bound", "key", "a.#/b")
	p.press("Bind")
	p.await("the binding", "row('a.#/b')")
	p.open("Queue bound", "queue", "/", "bound", "bindings")
	p.await("the same at the queue", "row('a.#/b')?.innerText.startsWith('shop') && row('(default)') && rows().length === 2")
	p.press("Bind")
	p.fill("name", "missing")
	p.press("Bind")
	p.await("no such exchange", "text('dialog .notice').includes('Not Found')")
	p.fill("name", "amq.topic", "key", "other.*")
	p.press("Bind")
	p.await("another binding", "row('other.*')?.innerText.startsWith('amq.topic')")
	p.do("row('other.*')", "querySelector('button').click()")
	p.press("Delete")
	p.await("it is gone", "!row('other.*') && row('a.#/b') && text('.notices').includes('deleted')")
	p.open("Exchange shop", "exchange", "/", "shop")
	p.press("Publish")
	p.fill("key", "nowhere", "payload", "lost")
	p.press("Publish")
	p.await("no route", "text('.notices').includes('no route')")
	p.do("row('a.#/b')", "querySelector('button').click()")
	p.press("Delete")
	p.await("no binding", "!row('a.#/b') && text('.notices').includes('deleted')")
	p.open("Exchange (default)", "exchange", "/", "")
	p.await("its bindings", "row('bound')")
}

// testReplicas removes a replica of a queue, and adds it again.
func testReplicas(t *testing.T, w *world) {
	w.mustQueue(t, "placed", nil)
	p := mustLogIn(t, w.browser, w.url)
	p.open("Queue placed", "queue", "/", "placed")
	const replicas = "all('[aria-label=Replicas] tbody tr').map((r) => r.innerText)"
	p.await("its replicas", replicas+".filter((r) => /leader|follower/.test(r)).length === 3")
	node := mustEval[string](p, replicas+".find((r) => r.includes('follower')).split('\t')[0]")
	p.press("Remove the replica on " + node)
	p.await("a question", "text('dialog').includes('keeps 2 of 3 replicas')")
	p.press("Remove it")
	p.await("it is gone", replicas+".length === 2 && !"+replicas+".some((r) => r.startsWith("+quote(node)+"))")
	w.mustBeRemoved(t, "placed", node)
	p.press("Add a replica on " + node)
	p.await("it votes", replicas+".some((r) => r.startsWith("+quote(node)+") && /follower\\s+yes/.test(r))")
}

// mustBeRemoved waits until the group of a queue has no replica on a node. The request changes nothing
// more, and is answered when that is so.
func (w *world) mustBeRemoved(t *testing.T, queue, node string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := await.Until(ctx, poll, "the removal of a replica", func() (bool, error) {
		err := w.Nodes[0].Call(ctx, http.MethodDelete, "/api/queues/quorum/%2F/"+queue+"/replicas/delete", map[string]any{"node": node}, nil)
		return err == nil, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// testUsers adds a user with permissions, who then logs in and sees what is permitted.
func testUsers(t *testing.T, w *world) {
	p := mustLogIn(t, w.browser, w.url)
	p.open("Users", "users")
	p.press("Add a user")
	p.fill("name", "clerk", "password", "clerk", "tags", "management")
	p.press("Add")
	p.await("the user", "row('clerk')")
	p.open("User clerk", "user", "clerk")
	p.press("Set permissions")
	p.await("the vhosts", "all('dialog [name=vhost] option').length > 0")
	p.fill("vhost", "/", "configure", "^$", "write", "^$", "read", "^later$")
	p.press("Set")
	p.await("the permission", "row('^later$')")
	p.open("Virtual hosts", "vhosts")
	p.press("Add a virtual host")
	p.fill("name", "branch", "description", "of the firm")
	p.press("Add")
	p.await("the vhost", "row('of the firm')")

	clerk := mustOpen(t, w.browser, w.url)
	clerk.logIn("clerk", "clerk")
	clerk.await("the overview", "text('h1') === 'Overview' && text('main').includes('Every queue has a leader')")
	clerk.await("the menu of such users", "all('nav li').length === 9")
	clerk.open("Queue live", "queue", "/", "live", "messages")
	clerk.await("a refusal", "text('.notices').includes('Access refused')")
}

// testDefinitions imports a file with something that is not taken.
func testDefinitions(t *testing.T, w *world) {
	p := mustLogIn(t, w.browser, w.url)
	p.open("Definitions", "definitions")
	const file = `{"queues":[{"name":"imported","vhost":"/","durable":true,"arguments":{}},{"name":"streamed","vhost":"/","durable":true,"arguments":{"x-queue-type":"stream"}}]}`
	mustEval[bool](p, fmt.Sprintf("(() => { const d = new DataTransfer(); d.items.add(new File([%s], 'some.json')); document.querySelector('[type=file]').files = d.files; return true; })()", quote(file)))
	p.press("Import")
	p.press("Import it")
	p.await("what was not taken", "text('main').includes('Imported: 1 definition. Not imported: 1.') && text('main').includes('streamed')")
	p.open("Queue imported", "queue", "/", "imported")
}

// testDrain drains the node that the page is from, and revives it.
func testDrain(t *testing.T, w *world) {
	p := mustLogIn(t, w.browser, w.url)
	p.open("Nodes", "nodes")
	p.await("the nodes", "rows().filter((r) => /^n[123]\\s+running/.test(r)).length === 3")
	p.await("the clock", "text('main').includes('agrees with a majority')")
	p.await("leaders, and how long the disk takes", "rows().filter((r) => /^n[123]\\s+running[^]*\\d+ of \\d+[^]*\\d\\.\\d\\d ms/.test(r)).length === 3")
	p.await("their balance", "/leads \\d+ to \\d+ queues/.test(text('[aria-label=Nodes]'))")
	p.await("certificates of the links", "all('[aria-label=Certificates] tbody tr').filter((r) => /^n[123]\\s+clustering\\s+in 36\\d d/.test(r.innerText)).length === 3")
	var nodes []struct {
		Name                        string
		Replicas, Leaders, Learners int
		SyncMS                      float64 `json:"io_sync_avg_time"`
		ClockOffset                 int64   `json:"clock_offset_ms"`
		Certificates                []any
	}
	var all []any
	w.mustCall(t, http.MethodGet, "/api/nodes", nil, &nodes)
	w.mustCall(t, http.MethodGet, "/api/queues", nil, &all)
	leaders := 0
	for _, n := range nodes {
		leaders += n.Leaders
		if n.Replicas < n.Leaders || n.Replicas > len(all) || n.Learners != 0 || n.SyncMS <= 0 || n.ClockOffset > 1000 || n.ClockOffset < -1000 || n.Certificates == nil {
			t.Errorf("%d queues: %+v", len(all), n)
		}
	}
	if leaders != len(all) {
		t.Errorf("%d leaders of %d queues", leaders, len(all))
	}
	p.press("Drain")
	p.await("a question", "text('dialog h2') === 'Drain the node n1?'")
	p.press("Drain it")
	p.await("it is drained", "/^n1\\s+drained/.test(row('n1').innerText) && text('.notices').includes('leaderships moved')")
	p.press("Revive")
	p.await("it serves again", "/^n1\\s+running/.test(row('n1').innerText)")
}

// testActions does what administrators do with a queue. The consumer that is cancelled is at another node.
func testActions(t *testing.T, w *world) {
	w.mustQueue(t, "acted", nil)
	w.mustPublish(t, "acted", "held", nil)
	w.mustPublishWith(t, "acted", "brief", map[string]any{"expiration": "1"})
	ch := w.mustDialAt(t, 1, "a consumer to cancel")
	if err := ch.Qos(1, 0, false); err != nil {
		t.Fatal(err)
	}
	cancelled := ch.NotifyCancel(make(chan string, 1))
	got, err := ch.Consume("acted", hostile[0], false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	held := <-got
	p := mustLogIn(t, w.browser, w.url)
	p.open("Queue acted", "queue", "/", "acted", "consumers")
	p.do("row("+quote(hostile[0])+")", "querySelector('button').click()")
	p.await("a question", "text('dialog h2').includes("+quote(hostile[0])+")")
	p.press("Cancel it")
	p.await("it is cancelled", "text('.notices').includes('is cancelled')")
	select {
	case tag := <-cancelled:
		if tag != hostile[0] {
			t.Errorf("the client is told of %q", tag)
		}
	case <-time.After(patience):
		t.Fatal("the client is not told")
	}
	w.mustPublish(t, "acted", "for nobody", nil)
	if err := held.Ack(false); err != nil { // what it holds can be settled
		t.Fatal(err)
	}
	p.await("it has gone", "!row("+quote(hostile[0])+")")
	for range got {
		t.Error("it gets more")
	}

	p.open("Queue acted", "queue", "/", "acted")
	p.press("Expire now")
	p.await("it is done", "text('.notices').includes('Nothing in the queue is due')")
	p.await("one message", "/Ready\\s*1 /.test(text('[aria-label=State]')) && /Expired\\s*1/.test(text('[aria-label=Time]')) && /Unacknowledged\\s*0 /.test(text('[aria-label=State]'))")
	p.press("Snapshot")
	p.await("it is written", "text('.notices').includes('has written a snapshot')")
	var members []map[string]any
	w.mustCall(t, http.MethodGet, "/api/queues/quorum/%2F/acted/status", nil, &members)
	for _, m := range members {
		if at, _ := m["Snapshot Index"].(float64); at < 1 {
			t.Errorf("no snapshot: %v", m)
		}
	}
	if len(members) != 3 {
		t.Errorf("%v", members)
	}
	p.press("Snapshot")
	p.await("nothing new to be written is no failure", "text('.notices').includes('has written a snapshot')")
}

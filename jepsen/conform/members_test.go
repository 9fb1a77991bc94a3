package conform

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestMembers(t *testing.T) { memberRows.run(t) }

var memberRows = suite{
	test: "TestMembers", title: "Placement and members",
	rows: []row{
		{id: "C1", what: "declare on n2, 3 nodes: members n1, n2, n3; leader n2 (client-local); balanced: one of them leads", run: placement},
		{id: "C15", what: "add_member and delete_member during load: no confirmed loss; the second call changes nothing; the last member is refused", run: changeMembers},
		{id: "C28", what: "declare the same name on two nodes at the same time: with equal arguments both succeed, with different ones one gets 406", run: declareTwice},
		{id: "C30", what: "delete and redeclare at once under load: no message of the old queue appears in the new one", run: redeclare},
	},
}

// replica is a member in a queue's status.
type replica struct {
	Node       string `json:"Node Name"`
	State      string `json:"Raft State"`
	Membership string
}

// members returns the nodes of a queue's voting members and its leader.
func (t *T) members(queue string) (voters, leader string) {
	t.Helper()
	var all []replica
	t.must(t.Nodes[0].Call(t.ctx, http.MethodGet, "/api/queues/quorum/%2F/"+queue+"/status", nil, &all))
	var names []string
	for _, m := range all {
		if m.Membership == "voter" {
			names = append(names, m.Node)
		}
		if m.State == "leader" {
			leader = m.Node
		}
	}
	return strings.Join(names, " "), leader
}

func placement(t *T) {
	local, balanced := t.name("local"), t.name("balanced")
	for q, locator := range map[string]string{local: "client-local", balanced: "balanced"} {
		_, err := t.openAt(1).QueueDeclare(q, true, false, false, false, with("x-queue-leader-locator", locator))
		t.must(err)
	}
	t.eventually("three members, n2 leads", func() error {
		if voters, leader := t.members(local); len(strings.Fields(voters)) != 3 || leader != "n2" {
			return fmt.Errorf("%s, leader %s", voters, leader)
		}
		if voters, leader := t.members(balanced); len(strings.Fields(voters)) != 3 || !strings.Contains(voters, leader) || leader == "" {
			return fmt.Errorf("%s, leader %s", voters, leader)
		}
		return nil
	})
}

func changeMembers(t *T) {
	q := t.queue("Q", "x-quorum-initial-group-size", 1)
	change := func(method, what, node string, status int, words string) {
		t.Helper()
		got, body, err := t.Nodes[1].Do(t.ctx, method, "/api/queues/quorum/%2F/"+q+"/replicas/"+what, map[string]string{"node": node})
		t.must(err)
		if got != status || !strings.Contains(string(body), words) {
			t.Errorf("%s %s: %d %s", what, node, got, body)
		}
	}
	sent := 0
	publish := func() {
		for range 50 {
			c, err := t.ch().PublishWithDeferredConfirmWithContext(t.ctx, "", q, false, false, amqp.Publishing{Body: []byte("x")})
			t.must(err)
			if ok, err := c.WaitContext(t.ctx); err != nil || !ok {
				t.Fatalf("not confirmed: %v", err)
			}
			sent++
		}
	}
	for _, node := range []string{"n2", "n2", "n3"} {
		change(http.MethodPost, "add", node, http.StatusNoContent, "")
		publish()
	}
	for _, node := range []string{"n1", "n1", "n2"} {
		change(http.MethodDelete, "delete", node, http.StatusNoContent, "")
		publish()
	}
	change(http.MethodDelete, "delete", "n3", http.StatusBadRequest, "last_node")
	change(http.MethodPost, "add", "n9", http.StatusNotFound, "not_found")
	if voters, _ := t.members(q); voters != "n3" {
		t.Errorf("members %s", voters)
	}
	t.equal("ready messages", t.ready(q), sent)
}

func declareTwice(t *T) {
	declare := func(name string, at int, ttl int) error {
		_, err := t.openAt(at).QueueDeclare(t.name(name), true, false, false, false, with("x-message-ttl", ttl))
		return err
	}
	for i := range 5 {
		var errs [4]error
		var both sync.WaitGroup
		for at := range 2 {
			both.Go(func() { errs[at] = declare(fmt.Sprint("same", i), at, 60000) })
			both.Go(func() { errs[2+at] = declare(fmt.Sprint("other", i), at, 60000+at) })
		}
		both.Wait()
		if errs[0] != nil || errs[1] != nil {
			t.Errorf("equal: %v, %v", errs[0], errs[1])
		}
		if a, b := errs[2], errs[3]; (a == nil) == (b == nil) || !isCode(a, amqp.PreconditionFailed) && !isCode(b, amqp.PreconditionFailed) {
			t.Errorf("different: %v, %v", a, b)
		}
	}
}

func redeclare(t *T) {
	for i := range 5 {
		q := t.queue("Q")
		old, now := fmt.Sprint("old", i), fmt.Sprint("new", i)
		for range 100 {
			t.must(t.ch().PublishWithContext(t.ctx, "", q, false, false, amqp.Publishing{Body: []byte(old)}))
		}
		_, err := t.ch().QueueDelete(q, false, false, false)
		t.must(err)
		t.queue("Q")
		c, err := t.ch().PublishWithDeferredConfirmWithContext(t.ctx, "", q, false, false, amqp.Publishing{Body: []byte(now)})
		t.must(err)
		if ok, err := c.WaitContext(t.ctx); err != nil || !ok {
			t.Fatalf("not confirmed: %v", err)
		}
		t.equal("messages", bodies(t.take(q, 1)), now)
		t.mustNotGet(q)
		_, err = t.ch().QueueDelete(q, false, false, false)
		t.must(err)
	}
}

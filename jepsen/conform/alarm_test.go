package conform

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
)

// blocking waits until a client is told that it is blocked, for a reason; or,
// without one, that it no longer is.
func (t *T) blocking(told <-chan amqp.Blocking, reason string) {
	t.Helper()
	select {
	case b := <-told:
		if b.Active != (reason != "") || b.Reason != reason {
			t.Fatalf("told %+v, not %q", b, reason)
		}
	case <-time.After(patience):
		t.Fatalf("not told: %q", reason)
	}
}

// setLimit changes a limit of a node, as quoratectl does.
func (t *T) setLimit(n *cluster.Node, name string, to any) {
	t.Helper()
	t.must(n.Call(t.ctx, http.MethodPut, "/api/quorate/limits/"+name, to, nil))
}

// alarmed waits until a node's health check names exactly these alarms, as
// "node resource".
func (t *T) alarmed(n *cluster.Node, want ...string) {
	t.Helper()
	t.eventually(fmt.Sprintf("alarms %q", want), func() error {
		status, body, err := n.Do(t.ctx, http.MethodGet, "/api/health/checks/alarms", nil)
		if err != nil {
			return err
		}
		ok := (status == http.StatusServiceUnavailable) == (len(want) > 0) && strings.Count(string(body), `"resource"`) == len(want)
		for _, w := range want {
			node, resource, _ := strings.Cut(w, " ")
			ok = ok && strings.Contains(string(body), fmt.Sprintf(`{"node":%q,"resource":%q}`, node, resource))
		}
		if !ok {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
}

// publisher is a connection that publishes, and what it is told.
func (t *T) publisher(node int) (*amqp.Channel, <-chan amqp.Blocking) {
	t.Helper()
	conn, err := client.Connect(t.ctx, t.Nodes[node].URI())
	t.must(err)
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }) // perhaps it is blocked
	told := conn.NotifyBlocked(make(chan amqp.Blocking, 10))
	ch, err := conn.Channel()
	t.must(err)
	t.must(ch.Confirm(false))
	return ch, told
}

// confirmed publishes a numbered message; what it returns waits for the confirm.
func (t *T) confirmed(ch *amqp.Channel, queue string, number int) (wait func()) {
	t.Helper()
	c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, "", queue, false, false, amqp.Publishing{Body: fmt.Append(nil, number)})
	t.must(err)
	return func() {
		t.Helper()
		if ok, err := c.WaitContext(t.ctx); err != nil || !ok {
			t.Fatalf("message %d: %v, %v", number, ok, err)
		}
	}
}

// memoryAlarm has a node use more memory than it may: who publishes is
// blocked after its first message, and not answered; who does not is not.
func memoryAlarm(t *T) {
	q := t.queue("memory")
	ch, told := t.publisher(0)
	none := map[string]float64{"relative": 0}
	t.setLimit(t.Nodes[0], "vm_memory_high_watermark", none)
	t.confirmed(ch, q, 1)()
	t.blocking(told, "low on memory")
	get := t.openAt(1)
	t.eventually("the message is there", func() error {
		_, ok, err := get.Get(q, true)
		if err == nil && !ok {
			err = fmt.Errorf("none")
		}
		return err
	})
	declared := make(chan error, 1)
	go func() {
		_, err := ch.QueueDeclarePassive(q, true, false, false, false, nil)
		declared <- err
	}()
	select {
	case err := <-declared:
		t.Fatalf("queue.declare is answered: %v", err)
	case <-time.After(ms(500)):
	}
	t.setLimit(t.Nodes[0], "vm_memory_high_watermark", map[string]float64{"relative": 0.9})
	t.blocking(told, "")
	t.must(<-declared)
	t.confirmed(ch, q, 2)()
}

// diskAlarm has the disk of a follower run full: publishers of all nodes wait,
// nothing is lost, and consumers go on. The alarm ends with its reason, and
// with its node.
func diskAlarm(t *T) {
	q := t.queue("disk")
	const n = 200
	one, oneTold := t.publisher(0)
	two, twoTold := t.publisher(1)
	t.confirmed(one, q, 0)()
	t.confirmed(two, q, 1)()
	full, fine := map[string]string{"absolute": "1000TB"}, map[string]string{"absolute": "50MB"}
	t.setLimit(t.Nodes[2], "disk_free_limit", full)
	t.blocking(oneTold, "low on disk")
	t.blocking(twoTold, "low on disk")
	t.alarmed(t.Nodes[1], "n3 disk")
	var waits []func()
	for i := range n {
		waits = append(waits, t.confirmed(one, q, 2+2*i), t.confirmed(two, q, 3+2*i))
	}
	consumer := t.openAt(1) // a connection that has not published
	from, err := consumer.Consume(q, "", false, false, false, false, nil)
	t.must(err)
	seen := map[string]bool{}
	take := func() {
		d := t.next(from)
		if seen[string(d.Body)] {
			t.Fatalf("message %s came twice", d.Body)
		}
		seen[string(d.Body)] = true
		t.must(d.Ack(false))
	}
	take()
	take()
	t.setLimit(t.Nodes[2], "disk_free_limit", fine)
	t.blocking(oneTold, "")
	t.blocking(twoTold, "")
	for _, wait := range waits {
		wait()
	}
	for len(seen) < 2+2*n {
		take()
	}
	t.alarmed(t.Nodes[0])

	t.setLimit(t.Nodes[2], "disk_free_limit", full)
	t.blocking(oneTold, "low on disk")
	t.must(t.Nodes[2].Kill(t.ctx))
	t.blocking(oneTold, "")
	t.confirmed(one, q, -1)()
	t.must(t.Nodes[2].Restart())
	t.must(t.Nodes[2].AwaitReady(t.ctx))
	t.alarmed(t.Nodes[2])
}

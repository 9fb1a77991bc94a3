package conform

import (
	"context"
	"fmt"
	"net/http"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
)

// vhost makes a vhost, and deletes it in the end.
func (t *T) vhost(name string) string {
	t.Helper()
	v := t.name(name)
	t.put("vhosts/"+v, map[string]any{})
	ctx := context.WithoutCancel(t.ctx) // that of the row has ended by then
	t.Cleanup(func() { _, _, _ = t.Nodes[0].Do(ctx, http.MethodDelete, "/api/vhosts/"+v, nil) })
	return v
}

func (t *T) put(path string, in map[string]any) {
	t.Helper()
	t.must(t.Nodes[0].Call(t.ctx, http.MethodPut, "/api/"+path, in, nil))
}

func (t *T) limit(path string, n int) {
	t.Helper()
	t.put(path, map[string]any{"value": n})
}

// enter connects to a vhost at node n as soon as that is possible.
func (t *T) enter(n int, vhost string) (conn *amqp.Connection) {
	t.Helper()
	t.eventually("a connection", func() (err error) {
		conn, err = client.Connect(t.ctx, fmt.Sprintf("amqp://guest:guest@%s/%s", t.Nodes[n].AMQP, vhost))
		return err
	})
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }) // perhaps it is closed
	return conn
}

func limitsHold(t *T) {
	v := t.vhost("v")
	limits := "vhost-limits/" + v + "/"
	t.limit(limits+"max-queues", 1)
	first := t.enter(0, v)
	declare := func(queue string) error {
		ch, err := first.Channel()
		t.must(err)
		defer ch.Close()
		_, err = ch.QueueDeclare(queue, true, false, false, false, nil)
		return err
	}
	t.must(declare("a"))
	t.must(declare("a"))
	t.mustBe(declare("b"), amqp.PreconditionFailed, "cannot declare queue 'b': queue limit in vhost '"+v+"' (1) is reached")

	// One at another node counts; when it has gone there is room.
	t.limit(limits+"max-connections", 2)
	second := t.enter(1, v)
	full := "NOT_ALLOWED - access to vhost '" + v + "' refused for user 'guest': connection limit (%d) is reached"
	t.mustRefuseOpen(t.dial().Login(v, client.DefaultTune), fmt.Sprintf(full, 2))
	t.must(second.Close())
	t.must(t.enter(0, v).Close())
	t.limit(limits+"max-connections", 0)
	t.mustRefuseOpen(t.dial().Login(v, client.DefaultTune), fmt.Sprintf(full, 0))
	t.limit(limits+"max-connections", -1)
	t.must(t.enter(0, v).Close())

	conn := t.as("u", "", ".*", ".*", ".*")
	user := t.name("u")
	t.limit("user-limits/"+user+"/max-connections", 1)
	r := t.dial()
	_, err := r.Start("PLAIN", "\x00"+user+"\x00p")
	t.must(err)
	_, err = r.Expect(10<<16 | 30)
	t.must(err)
	t.must(r.TuneOK(client.DefaultTune))
	t.must(r.Method(0, 10<<16|40, client.Join(client.ShortString("/"), client.ShortString(""), []byte{0})))
	t.closes(r, amqp.NotAllowed, "NOT_ALLOWED - connection refused for user '"+user+"': user connection limit (1) is reached", "10,40")

	t.limit("user-limits/"+user+"/max-channels", 1)
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	ch, err := conn.Channel()
	t.must(err)
	t.must(ch.Close())
	_, err = conn.Channel() // the place is free again
	t.must(err)
	_, err = conn.Channel()
	if err == nil {
		t.Fatal("two channels of a user who may have one")
	}
	t.mustBe(<-closed, amqp.NotAllowed, "number of channels opened for user '"+user+"' has reached the maximum allowed user limit of 1")
}

func vhostGoes(t *T) {
	v := t.vhost("v")
	var closed []chan *amqp.Error
	for n := range t.Nodes {
		conn := t.enter(n, v)
		ch, err := conn.Channel()
		t.must(err)
		_, err = ch.QueueDeclare("q", true, false, false, false, nil)
		t.must(err)
		closed = append(closed, conn.NotifyClose(make(chan *amqp.Error, 1)))
	}
	other := t.conn(0)
	t.must(t.Nodes[0].Call(t.ctx, http.MethodDelete, "/api/vhosts/"+v, nil, nil))
	for n, c := range closed {
		select {
		case err := <-c:
			t.mustBe(err, amqp.ConnectionForced, "CONNECTION_FORCED - vhost '"+v+"' is down")
		case <-time.After(patience):
			t.Errorf("node %d keeps its client", n)
		}
	}
	t.mustRefuseOpen(t.dial().Login(v, client.DefaultTune), "NOT_ALLOWED - vhost "+v+" not found")
	if other.IsClosed() {
		t.Error("a connection to another vhost is closed")
	}
}

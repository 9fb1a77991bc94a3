package conform

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
)

func TestRedeclares(t *testing.T) { redeclareRows.run(t) }

var redeclareRows = suite{test: "TestRedeclares", title: "Declared again with other arguments", rows: []row{
	{id: "Q-DF1", what: "redeclare relaxed: a worker at another node that declares otherwise goes on, and the queue stays as it is; HTTP, quoratectl and a metric say who declares what; strict again, it is refused", run: func(t *T) {
		v := t.redeclare("relaxed")
		t.declares(t.enter(0, v), "q", args("x-max-length", int32(2), "x-overflow", "reject-publish"))
		conn, err := amqp.DialConfig("amqp://guest:guest@"+t.Nodes[1].AMQP+"/"+v, amqp.Config{Properties: amqp.Table{"connection_name": "billing"}})
		t.must(err)
		t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
		for range 2 {
			t.declares(conn, "q", args("x-max-length", int64(7)))
		}
		t.declares(conn, "q", args("x-max-length", int64(2), "x-overflow", "reject-publish"))
		t.equal("arguments", t.argumentsIn(v), "map[x-max-length:2 x-overflow:reject-publish]")
		t.equal("drift", t.drift(v), "q x-max-length 2 7 false guest billing 2; q x-overflow reject-publish <nil> false guest billing 2; ")
		t.says(t.mustCtl(2, "drift", "-p", v, "name", "argument", "declared", "received", "client"), "q\tx-max-length\t2\t7\tbilling")
		t.says(t.mustCtl(2, "list_vhosts", "name", "redeclare"), v+"\trelaxed")
		t.metric(2, "quorate_drifted_declares_total", `outcome="tolerated"`)

		t.mustCtl(0, "update_vhost_metadata", v, "--redeclare", "strict")
		t.refusedIn(conn, amqp.PreconditionFailed, "inequivalent arg 'x-max-length' for queue 'q'", func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare("q", true, false, false, false, args("x-max-length", int64(7)))
			return err
		})
	}},
	{id: "Q-DF2", what: "redeclare adopt: what a policy may change is as in the newest declare, and at once what the next is compared with; the rest stays; so does what was adopted in a vhost that is strict again", run: func(t *T) {
		v := t.redeclare("adopt")
		conn := t.enter(0, v)
		t.declares(conn, "q", args("x-max-length", int32(1), "x-overflow", "reject-publish", "x-max-priority", int32(3)))
		t.declares(t.enter(1, v), "q", args("x-max-length", int32(2), "x-max-priority", int32(5)))
		t.equal("arguments", t.argumentsIn(v), "map[x-max-length:2 x-max-priority:3]")
		t.holds(conn, 5, 2)
		t.declares(t.enter(2, v), "q", args("x-max-length", int32(4), "x-max-priority", int32(3)))
		t.holds(conn, 5, 4)
		t.equal("drift", t.drift(v), "q x-max-length 4 2 false guest  1; q x-max-length 4 4 true guest  1; q x-max-priority 3 5 false guest  1; q x-overflow <nil> <nil> true guest  1; ")

		t.put("vhosts/"+v, map[string]any{"redeclare": "strict"})
		t.declares(conn, "q", args("x-max-length", int32(4), "x-max-priority", int32(3)))
		t.refusedIn(conn, amqp.PreconditionFailed, "received '1' but current is '4'", func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare("q", true, false, false, false, args("x-max-length", int32(1), "x-max-priority", int32(3)))
			return err
		})
	}},
	{id: "Q-DF3", what: "never tolerated: another connection's exclusive queue, other flags, less than a quorum queue, values and combinations that are refused of a new queue, an exchange of another type; nor what the user may not do", run: func(t *T) {
		v := t.redeclare("relaxed")
		conn := t.enter(0, v)
		t.declares(conn, "q", args("x-queue-type", "classic", "x-max-length", int32(1)))
		queue := func(durable, exclusive bool, table amqp.Table) func(ch *amqp.Channel) error {
			return func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare("q", durable, false, exclusive, false, table)
				return err
			}
		}
		t.refusedIn(conn, amqp.PreconditionFailed, "inequivalent arg 'durable'", queue(false, false, args("x-max-length", int32(5))))
		t.refusedIn(conn, amqp.ResourceLocked, "", queue(true, true, args("x-max-length", int32(5))))
		t.refusedIn(conn, amqp.PreconditionFailed, "inequivalent arg 'x-queue-type'", queue(true, false, args("x-queue-type", "quorum", "x-max-length", int32(5))))
		t.refusedIn(conn, amqp.PreconditionFailed, "invalid arg 'x-max-length' for queue 'q' in vhost '"+v+"': {value_negative,-5}", queue(true, false, args("x-max-length", int32(-5))))
		t.refusedIn(conn, amqp.PreconditionFailed, "routing_key_but_no_dlx_defined", queue(true, false, args("x-dead-letter-routing-key", "k")))
		user := t.name("u")
		t.must(t.Nodes[0].SetUser(t.ctx, user, "p", ""))
		t.put("permissions/"+v+"/"+user, map[string]any{"configure": "^q$", "write": "^mine$", "read": ".*"})
		limited, err := client.Connect(t.ctx, fmt.Sprintf("amqp://%s:p@%s/%s", user, t.Nodes[0].AMQP, v))
		t.must(err)
		t.Cleanup(func() { _ = limited.CloseDeadline(time.Now().Add(time.Second)) })
		t.refusedIn(limited, amqp.AccessRefused, "write access to exchange 'other'", queue(true, false, args("x-max-length", int32(5), "x-dead-letter-exchange", "other")))
		t.must(queue(true, false, args("x-max-length", int32(5), "x-dead-letter-exchange", "mine"))(t.channel(limited)))

		x := t.any() // drift of exchanges goes by their names
		exchange := func(kind string, table amqp.Table) func(ch *amqp.Channel) error {
			return func(ch *amqp.Channel) error { return ch.ExchangeDeclare(x, kind, true, false, false, false, table) }
		}
		t.must(exchange("topic", nil)(t.channel(conn)))
		t.must(exchange("topic", args("alternate-exchange", "other"))(t.channel(conn)))
		t.refusedIn(conn, amqp.PreconditionFailed, "inequivalent arg 'type'", exchange("direct", nil))
		t.equal("drift", t.drift(v), "q x-dead-letter-exchange <nil> mine false "+user+"  1; q x-max-length 1 5 false "+user+"  1; "+x+" alternate-exchange <nil> other false guest  1; ")
	}},
	{id: "Q-DF4", what: "the same of queues that are declared by HTTP and by the management of AMQP 1.0", run: func(t *T) {
		v := t.redeclare("adopt")
		t.declares(t.enter(0, v), "q", args("x-max-length", int32(1)))
		at := "queues/" + v + "/q"
		t.put(at, map[string]any{"durable": true, "arguments": map[string]any{"x-max-length": 2}})
		t.equal("arguments", t.argumentsIn(v), "map[x-max-length:2]")
		p := t.open10(fields{"hostname": "vhost:" + v}).begin().pair("m", false)
		p.must(200, "PUT", "/queues/q", mode10("x-max-length", int64(3)))
		t.equal("arguments", t.argumentsIn(v), "map[x-max-length:3]")
		p.must(409, "PUT", "/queues/q", mode10("x-max-length", int64(-3)))
		t.equal("drift", t.drift(v), "q x-max-length 3 2 false guest  1; q x-max-length 3 3 true guest  1; ")
	}},
}}

// redeclareKillRows are rows in which the catalog loses its leader.
var redeclareKillRows = []row{
	{id: "Q-DF1K", what: "workers adopt twelve limits in turn while the catalog's leader is killed: none is refused, each change is made once, all nodes agree, and the last one holds", run: func(t *T) {
		v := t.redeclare("adopt")
		leader := t.catalogLeader()
		others := []int{(leader + 1) % 3, (leader + 2) % 3}
		killed := make(chan error, 1)
		for n := range 12 {
			if n == 4 {
				go func() { killed <- t.Nodes[leader].Kill(t.ctx) }()
			}
			t.eventually("a declare", func() error {
				err := t.tryDeclare(others[n%2], v, args("x-max-length", int32(n+1)))
				if isCode(err, amqp.PreconditionFailed) {
					t.Fatal(err)
				}
				return err
			})
		}
		t.must(<-killed)
		t.must(t.Nodes[leader].Restart())
		t.lostConnections()
		t.must(t.Nodes[leader].AwaitReady(t.ctx))
		for i, n := range t.Nodes {
			t.eventually("node "+fmt.Sprint(i)+" agrees", func() error {
				var q struct{ Arguments map[string]any }
				var drift []struct{ Adoptions int }
				err := errors.Join(n.Call(t.ctx, http.MethodGet, "/api/queues/"+v+"/q", nil, &q), n.Call(t.ctx, http.MethodGet, "/api/drift/"+v, nil, &drift))
				if err == nil && (fmt.Sprint(q.Arguments) != "map[x-max-length:12]" || len(drift) == 0 || drift[0].Adoptions != 11) {
					err = fmt.Errorf("%v, %v", q.Arguments, drift)
				}
				return err
			})
		}
		t.holds(t.enter(others[0], v), 20, 12)
	}},
}

// redeclare makes a vhost in which declares with other arguments are taken so.
func (t *T) redeclare(mode string) (vhost string) {
	t.Helper()
	v := t.vhost("v")
	t.put("vhosts/"+v, map[string]any{"redeclare": mode})
	return v
}

func (t *T) channel(conn *amqp.Connection) *amqp.Channel {
	t.Helper()
	ch, err := conn.Channel()
	t.must(err)
	return ch
}

// declares declares a durable queue, which must not be refused.
func (t *T) declares(conn *amqp.Connection, queue string, table amqp.Table) {
	t.Helper()
	t.declare(t.channel(conn), queue, flags{durable: true}, table)
}

// tryDeclare declares the queue q of a vhost, on a connection of its own.
func (t *T) tryDeclare(node int, vhost string, table amqp.Table) error {
	conn, err := client.Connect(t.ctx, fmt.Sprintf("amqp://guest:guest@%s/%s", t.Nodes[node].AMQP, vhost))
	if err != nil {
		return err
	}
	defer conn.CloseDeadline(time.Now().Add(time.Second))
	ch, err := conn.Channel()
	if err == nil {
		_, err = ch.QueueDeclare("q", true, false, false, false, table)
	}
	return err
}

// refusedIn checks that a call is refused, and that the connection goes on.
func (t *T) refusedIn(conn *amqp.Connection, code int, words string, call func(ch *amqp.Channel) error) {
	t.Helper()
	t.mustBe(call(t.channel(conn)), code, words)
	t.must(t.channel(conn).Close())
}

// argumentsIn returns the arguments of the queue q in a vhost.
func (t *T) argumentsIn(vhost string) string {
	t.Helper()
	return fmt.Sprint(t.http(http.MethodGet, "/api/queues/"+vhost+"/q", nil)["arguments"])
}

// drift lists what is declared otherwise in a vhost.
func (t *T) drift(vhost string) (text string) {
	t.Helper()
	var all []map[string]any
	t.call(http.MethodGet, "/api/drift/"+vhost+"?sort=argument", nil, &all)
	slices.SortStableFunc(all, func(a, b map[string]any) int {
		return cmp.Compare(fmt.Sprint(b["kind"], a["argument"], a["received"]), fmt.Sprint(a["kind"], b["argument"], b["received"]))
	})
	for _, d := range all {
		text += fmt.Sprint(d["name"], " ", d["argument"], " ", d["declared"], " ", d["received"], " ", d["adopted"], " ", d["user"], " ", d["client"], " ", d["times"], "; ")
	}
	return text
}

// holds publishes messages to the queue q until it keeps no more than a limit, and empties it.
func (t *T) holds(conn *amqp.Connection, published, limit int) {
	t.Helper()
	ch := t.channel(conn)
	t.must(ch.Confirm(false))
	t.eventually(fmt.Sprint("it holds ", limit), func() error {
		if _, err := ch.QueuePurge("q", false); err != nil {
			return err
		}
		for range published {
			confirm, err := ch.PublishWithDeferredConfirm("", "q", false, false, amqp.Publishing{})
			if err != nil {
				return err
			}
			if _, err := confirm.WaitContext(t.ctx); err != nil {
				return err
			}
		}
		q, err := ch.QueueDeclarePassive("q", true, false, false, false, nil)
		if err == nil && q.Messages != limit {
			err = fmt.Errorf("%d messages", q.Messages)
		}
		return err
	})
}

// catalogLeader returns the node that leads the catalog, counted from 0.
func (t *T) catalogLeader() (number int) {
	t.Helper()
	t.eventually("the catalog has a leader", func() error {
		var status struct {
			Leader string `json:"catalog_leader"`
		}
		if err := t.Nodes[0].Call(t.ctx, http.MethodGet, "/api/quorate/status", nil, &status); err != nil {
			return err
		}
		for i, n := range t.Nodes {
			if n.Name() == status.Leader {
				number = i
				return nil
			}
		}
		return fmt.Errorf("%q leads it", status.Leader)
	})
	return number
}

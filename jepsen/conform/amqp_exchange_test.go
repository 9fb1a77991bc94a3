package conform

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
)

// local declares an exclusive queue of the row's connection to node 0.
func (t *T) local(name string) string {
	t.Helper()
	q, err := t.ch().QueueDeclare(t.name(name), false, false, true, false, nil)
	t.must(err)
	return q.Name
}

// refuseExchange checks that the declare of an exchange is refused.
func (t *T) refuseExchange(code int, words, name, kind string, durable bool, pairs ...any) {
	t.Helper()
	t.refused(code, words, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(name, kind, durable, false, false, false, args(pairs...))
	})
}

// emptied takes everything that is ready, as bodies in alphabetical order.
func (t *T) emptied(queue string) []string {
	t.Helper()
	got := []string{}
	for {
		d, ok, err := t.ch().Get(queue, true)
		t.must(err)
		if !ok {
			sort.Strings(got)
			return got
		}
		got = append(got, string(d.Body))
	}
}

// returned publishes a mandatory message and reports whether it comes back. The
// return must be there before the confirm.
func (t *T) returned(exchange, key string) bool {
	t.Helper()
	ch := t.open()
	t.must(ch.Confirm(false))
	back := ch.NotifyReturn(make(chan amqp.Return, 1))
	c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, exchange, key, true, false, amqp.Publishing{Body: []byte("x"), MessageId: "m"})
	t.must(err)
	if acked, err := c.WaitContext(t.ctx); err != nil || !acked {
		t.Fatalf("confirmed %v: %v", acked, err)
	}
	defer ch.Close()
	select {
	case r := <-back:
		t.equal("return", []any{r.ReplyCode, r.ReplyText, r.Exchange, r.RoutingKey, string(r.Body), r.MessageId}, []any{312, "NO_ROUTE", exchange, key, "x", "m"})
		return true
	default:
		return false
	}
}

var exchangeRows = []row{
	{id: "A047", what: "the default exchange, amq.foo and an unknown type are refused", run: func(t *T) {
		t.refuseExchange(amqp.AccessRefused, "operation not permitted on the default exchange", "", "direct", true)
		t.refuseExchange(amqp.AccessRefused, "exchange name 'amq.foo' contains reserved prefix 'amq.*'", "amq.foo", "direct", true)
		t.refuseExchange(amqp.PreconditionFailed, "unknown exchange type 'nosuch'", t.name("x"), "nosuch", true)
		t.refused(amqp.NotFound, "no exchange 'A047.none' in vhost '/'", func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(t.name("none"), "nosuch", true, false, false, false, nil)
		})
	}},
	{id: "A048", what: "declared again with other arguments: inequivalent", run: func(t *T) {
		t.refuseExchange(amqp.PreconditionFailed, "inequivalent arg 'durable' for exchange 'amq.direct' in vhost '/': received 'false' but current is 'true'", "amq.direct", "direct", false)
		t.refuseExchange(amqp.PreconditionFailed, "inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': received 'fanout' but current is 'direct'", "amq.direct", "fanout", true)
		x := t.exchange("x", "direct")
		t.refuseExchange(amqp.PreconditionFailed, "inequivalent arg 'alternate-exchange' for exchange 'A048.x' in vhost '/': received the value 'ae' of type 'longstr' but current is none", x, "direct", true, "alternate-exchange", "ae")
		t.must(t.ch().ExchangeDeclare(x, "direct", true, false, false, false, args("x-unknown", "y")))
		t.must(t.ch().ExchangeDeclarePassive(x, "fanout", false, true, true, false, nil))
	}},
	{id: "A049", what: "an alternate exchange that is not a text", run: func(t *T) {
		t.refuseExchange(amqp.PreconditionFailed, "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'A049.x' in vhost '/'", t.name("x"), "direct", true, "alternate-exchange", int32(5))
	}},
	{id: "A050", what: "deleting a missing, a predefined, a used exchange, and one that is only a destination", run: func(t *T) {
		t.must(t.ch().ExchangeDelete(t.name("none"), false, false))
		t.refused(amqp.AccessRefused, "deletion of system exchange 'amq.direct' in vhost '/' not allowed", func(ch *amqp.Channel) error {
			return ch.ExchangeDelete("amq.direct", false, false)
		})
		x, y := t.exchange("x", "fanout"), t.exchange("y", "fanout")
		t.must(t.ch().ExchangeBind(y, "", x, false, nil))
		t.refused(amqp.PreconditionFailed, "exchange 'A050.x' in vhost '/' in use", func(ch *amqp.Channel) error {
			return ch.ExchangeDelete(x, true, false)
		})
		t.must(t.ch().ExchangeDelete(y, true, false))
		t.must(t.ch().ExchangeDelete(x, true, false))
	}},
	{id: "A051", what: "publishing to a missing, an internal, a forbidden exchange", run: func(t *T) {
		t.refusePublish(amqp.NotFound, "no exchange 'A051.none' in vhost '/'", t.name("none"), "")
		x := t.name("x")
		t.must(t.ch().ExchangeDeclare(x, "fanout", true, false, true, false, nil))
		t.refusePublish(amqp.AccessRefused, "cannot publish to internal exchange 'A051.x' in vhost '/'", x, "")
		conn := t.as("u", "", ".*", "^$", ".*")
		t.closedWith(conn, amqp.AccessRefused, "write access to exchange 'amq.default' in vhost '/' refused for user 'A051.u'", func(ch *amqp.Channel) {
			t.must(ch.PublishWithContext(t.ctx, "", "q", false, false, amqp.Publishing{}))
		})
	}},
	{id: "A052", what: "twelve topic patterns against nine keys", run: topicMatrix},
	{id: "A053", what: "six header bindings against five messages", run: headerMatrix},
	{id: "A054", what: "a third # in a topic binding: 406", run: func(t *T) {
		q := t.local("q")
		t.refused(amqp.PreconditionFailed, "Topic binding key '#.a.#.b.#' uses 3 '#' wildcards, at most 2 are allowed", func(ch *amqp.Channel) error {
			return ch.QueueBind(q, "#.a.#.b.#", "amq.topic", false, nil)
		})
		t.bind(q, "#.a.#", "amq.topic")
	}},
	{id: "A055", what: "weights and arguments of a consistent hash exchange", run: func(t *T) {
		x, q := t.exchange("x", "x-consistent-hash"), t.local("q")
		for key, words := range map[string]string{"abc": `The binding key must be an integer: "abc"`, "0": "The binding key must be greater than 0"} {
			t.refused(amqp.PreconditionFailed, words, func(ch *amqp.Channel) error { return ch.QueueBind(q, key, x, false, nil) })
		}
		t.refuseExchange(amqp.PreconditionFailed, "hash-header and hash-property are mutually exclusive", t.name("y"), "x-consistent-hash", true, "hash-header", "h", "hash-property", "message_id")
		t.refuseExchange(amqp.PreconditionFailed, "Unsupported property: app_id", t.name("y"), "x-consistent-hash", true, "hash-property", "app_id")
	}},
	{id: "A056", what: "10,000 keys over three equal weights; the same queue for a key on every node", run: equalWeights},
	{id: "A057", what: "x-delayed-message", test: "jepsen/conform: TestDelayed/T-60, TestDelayed/T-71"},
	{id: "A058", what: "mandatory and unroutable: returned, then confirmed", run: func(t *T) {
		if !t.returned("", t.name("none")) || !t.returned(t.exchange("x", "direct"), "k") {
			t.Error("it is not returned")
		}
		if t.returned("", t.queue("q")) {
			t.Error("a routed one is returned")
		}
	}},
	{id: "A059", what: "alternate exchanges, by argument and by policy", run: alternates},
	{id: "A111", what: "x-consistent-hash by a header and by properties; x-modulus-hash: one queue for each value", run: func(t *T) {
		queues := []string{t.local("a"), t.local("b"), t.local("c")}
		for i, c := range []struct {
			kind string
			args []any
			set  func(p *amqp.Publishing, value int) (key string)
		}{
			{"x-consistent-hash", []any{"hash-header", "h"}, func(p *amqp.Publishing, n int) string { p.Headers = args("h", int32(n)); return t.any() }},
			{"x-consistent-hash", []any{"hash-property", "message_id"}, func(p *amqp.Publishing, n int) string { p.MessageId = fmt.Sprint(n); return t.any() }},
			{"x-consistent-hash", []any{"hash-property", "correlation_id"}, func(p *amqp.Publishing, n int) string { p.CorrelationId = fmt.Sprint(n); return t.any() }},
			{"x-consistent-hash", []any{"hash-property", "timestamp"}, func(p *amqp.Publishing, n int) string { p.Timestamp = time.Unix(int64(n+1), 0); return t.any() }},
			{"x-modulus-hash", nil, func(_ *amqp.Publishing, n int) string { return fmt.Sprint("key-", n) }},
		} {
			x := t.exchange(fmt.Sprint("x", i), c.kind, c.args...)
			for _, q := range queues {
				t.bind(q, "1", x)
			}
			t.oneQueueEach(x, queues, c.set)
		}
	}},
	{id: "A112", what: "x-random: all queues get some; x-local-random: only queues of the publisher's node", run: func(t *T) {
		near, far := t.local("near"), t.name("far")
		there := t.openAt(1)
		t.must(there.Confirm(false))
		_, err := there.QueueDeclare(far, false, false, true, false, nil)
		t.must(err)
		x, y := t.exchange("x", "x-random"), t.exchange("y", "x-local-random")
		for _, source := range []string{x, y} {
			t.level(there)
			t.bind(near, "", source)
			t.must(there.QueueBind(far, "", source, false, nil))
		}
		t.level(t.ch())
		t.level(there)
		count := func(exchange string, publish func(exchange string)) (atNear, atFar int) {
			for range 40 {
				publish(exchange)
			}
			n, err := t.ch().QueuePurge(near, false)
			t.must(err)
			m, err := there.QueuePurge(far, false)
			t.must(err)
			return n, m
		}
		here := func(exchange string) { t.send(exchange, "") }
		if n, m := count(x, here); n == 0 || m == 0 || n+m != 40 {
			t.Errorf("by chance: %d and %d", n, m)
		}
		n, m := count(y, here)
		t.equal("published here", []int{n, m}, []int{40, 0})
		n, m = count(y, func(exchange string) {
			c, err := there.PublishWithDeferredConfirmWithContext(t.ctx, exchange, "", false, false, amqp.Publishing{})
			t.must(err)
			_, err = c.WaitContext(t.ctx)
			t.must(err)
		})
		t.equal("published there", []int{n, m}, []int{0, 40})
	}},
	{id: "A113", what: "exchanges bound in a cycle; an auto-delete one is deleted with its last binding", run: func(t *T) {
		q := t.local("q")
		x, y, end := t.exchange("x", "fanout"), t.exchange("y", "topic"), t.name("end")
		t.must(t.ch().ExchangeDeclare(end, "direct", true, true, true, false, nil))
		t.must(t.ch().ExchangeBind(y, "", x, false, nil))
		t.must(t.ch().ExchangeBind(x, "#", y, false, nil))
		t.must(t.ch().ExchangeBind(end, "k.#", y, false, nil))
		t.bind(q, "k", end)
		t.bind(q, "k", y)
		t.send(x, "k", body("once"))
		t.send(x, "other", body("not"))
		t.equal("got", t.emptied(q), []string{"once"})
		t.must(t.ch().QueueUnbind(q, "k", end, nil))
		t.refused(amqp.NotFound, "no exchange '"+end+"' in vhost '/'", func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(end, "direct", true, true, true, false, nil)
		})
	}},
}

// as opens a connection of a user made for it.
func (t *T) as(name, tags, configure, write, read string) *amqp.Connection {
	t.Helper()
	user := t.name(name)
	t.must(t.Nodes[0].SetUser(t.ctx, user, "p", tags))
	t.must(t.Nodes[0].SetPermissions(t.ctx, user, configure, write, read))
	conn, err := client.Connect(t.ctx, fmt.Sprintf("amqp://%s:p@%s/", user, t.Nodes[0].AMQP))
	t.must(err)
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	return conn
}

// closedWith checks that what is done on a new channel ends it.
func (t *T) closedWith(conn *amqp.Connection, code int, words string, do func(ch *amqp.Channel)) {
	t.Helper()
	ch, err := conn.Channel()
	t.must(err)
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	do(ch)
	select {
	case err := <-closed:
		t.mustBe(err, code, words)
	case <-time.After(patience):
		t.Fatalf("the channel stays open, want %d %s", code, words)
	}
}

// topicMatrix compares with the rules, written out.
func topicMatrix(t *T) {
	x := t.exchange("x", "topic")
	keys := []string{"", "a", "b", "a.b", "a.", "a..b", "a.a.b", "b.a", "."}
	for i, c := range []struct {
		pattern string
		want    string // of the keys, 1: matches
	}{
		{"", "100000000"}, {"#", "111111111"}, {"#.#", "111111111"}, {"*", "011000000"}, {"a", "010000000"}, {"a.*", "000110000"},
		{"a.#", "010111100"}, {"#.b", "001101100"}, {"*.*", "000110011"}, {"a.*.b", "000001100"}, {"*.#.b", "000101100"}, {"#.a.#", "010111110"},
	} {
		q := t.local(fmt.Sprint("q", i))
		t.bind(q, c.pattern, x)
		for _, key := range keys {
			t.send(x, key, body("<"+key+">"))
		}
		want := []string{}
		for j, key := range keys {
			if c.want[j] == '1' {
				want = append(want, "<"+key+">")
			}
		}
		sort.Strings(want)
		t.equal(c.pattern, t.emptied(q), want)
		t.must(t.ch().QueueUnbind(q, c.pattern, x, nil))
	}
}

func headerMatrix(t *T) {
	x := t.exchange("x", "headers")
	messages := []amqp.Table{
		{}, {"a": "1"}, {"a": int32(1)}, {"a": "1", "b": "2"}, {"a": "1", "x-c": "3"},
	}
	for i, c := range []struct {
		arguments amqp.Table
		want      string // numbers of messages
	}{
		{amqp.Table{"a": "1", "b": "2"}, "3"},
		{amqp.Table{"x-match": "any", "a": "1", "b": "2"}, "1 3 4"},
		{amqp.Table{"x-match": "all", "a": nil}, "1 2 3 4"},
		{amqp.Table{"x-match": "all", "a": "1", "x-c": "other"}, "1 3 4"},
		{amqp.Table{"x-match": "all-with-x", "a": "1", "x-c": "3"}, "4"},
		{amqp.Table{"x-match": "any-with-x", "x-c": "3", "b": "2"}, "3 4"},
		{amqp.Table{"x-match": "all"}, "0 1 2 3 4"},
		{amqp.Table{"x-match": "any"}, ""},
	} {
		q := t.local(fmt.Sprint("q", i))
		t.must(t.ch().QueueBind(q, "", x, false, c.arguments))
		for n, m := range messages {
			t.send(x, "", body(fmt.Sprint(n)), func(p *amqp.Publishing) { p.Headers = m })
		}
		t.equal(fmt.Sprint(c.arguments), strings.Join(t.emptied(q), " "), c.want)
		t.must(t.ch().QueueUnbind(q, "", x, c.arguments))
	}
	q := t.local("q")
	for _, mode := range []any{"some", int32(5)} {
		t.refused(amqp.PreconditionFailed, "Invalid x-match field", func(ch *amqp.Channel) error {
			return ch.QueueBind(q, "", x, false, args("x-match", mode))
		})
	}
}

// level returns when the node of a channel knows what was defined elsewhere
// before: a definition of its own comes behind that.
func (t *T) level(ch *amqp.Channel) {
	t.Helper()
	x := t.name(fmt.Sprint("level-", time.Now().UnixNano()))
	t.must(ch.ExchangeDeclare(x, "fanout", true, false, false, false, nil))
}

// any is a routing key that does not matter.
func (t *T) any() string { return fmt.Sprint("key-", time.Now().UnixNano()) }

// oneQueueEach publishes twelve values five times each, from two nodes, and
// checks that the messages of a value are in one queue and that not all are.
func (t *T) oneQueueEach(exchange string, queues []string, set func(p *amqp.Publishing, value int) (key string)) {
	t.Helper()
	far := t.openAt(1)
	t.must(far.Confirm(false))
	t.level(far)
	for n := range 60 {
		p := amqp.Publishing{Body: []byte(fmt.Sprint(n % 12))}
		key := set(&p, n%12)
		c, err := []*amqp.Channel{t.ch(), far}[n%2].PublishWithDeferredConfirmWithContext(t.ctx, exchange, key, false, false, p)
		t.must(err)
		_, err = c.WaitContext(t.ctx)
		t.must(err)
	}
	used := map[string]bool{}
	for _, q := range queues {
		values := map[string]int{}
		for _, value := range t.emptied(q) {
			values[value]++
			used[q] = true
		}
		for value, times := range values {
			t.equal("messages of "+value, times, 5)
		}
	}
	if len(used) < 2 {
		t.Errorf("all are in one queue")
	}
}

func equalWeights(t *T) {
	x := t.exchange("x", "x-consistent-hash")
	queues := []string{t.local("a"), t.local("b"), t.local("c")}
	for _, q := range queues {
		t.bind(q, "1", x)
	}
	const keys = 10_000
	var last func() bool
	for i := range keys {
		last = t.sendLater(x, fmt.Sprint("key-", i))
	}
	last()
	t.eventually("all in their queues", func() error {
		total := 0
		for _, q := range queues {
			total += t.ready(q)
		}
		if total != keys {
			return fmt.Errorf("%d messages", total)
		}
		return nil
	})
	for _, q := range queues {
		if n := t.ready(q); n < 3033 || n > 3633 {
			t.Errorf("%s has %d", q, n)
		}
		_, err := t.ch().QueuePurge(q, false)
		t.must(err)
	}
	far := t.openAt(1)
	t.must(far.Confirm(false))
	t.level(far)
	for i := range 30 {
		key := fmt.Sprint("key-", i)
		t.send(x, key, body(key))
		c, err := far.PublishWithDeferredConfirmWithContext(t.ctx, x, key, false, false, amqp.Publishing{Body: []byte(key)})
		t.must(err)
		_, err = c.WaitContext(t.ctx)
		t.must(err)
	}
	for _, q := range queues {
		all := t.emptied(q)
		for i := 0; i < len(all); i += 2 {
			if i+1 == len(all) || all[i] != all[i+1] {
				t.Fatalf("%s has %v", q, all)
			}
		}
	}
}

func alternates(t *T) {
	caught := t.local("caught")
	ae := t.exchange("ae", "fanout")
	x := t.exchange("x", "direct", "alternate-exchange", ae)
	if !t.returned(x, "k") {
		t.Error("an alternate exchange without a binding: it is not returned")
	}
	t.bind(caught, "", ae)
	if t.returned(x, "k") {
		t.Error("it is returned although the alternate exchange has it")
	}
	t.equal("caught", t.emptied(caught), []string{"x"})
	// By policy, in a circle.
	y, z := t.exchange("y", "direct"), t.exchange("z", "direct")
	for from, to := range map[string]string{y: z, z: y} {
		t.must(t.Nodes[0].SetPolicy(t.ctx, cluster.Policy{
			Name: "p-" + from, Pattern: "^" + from + "$", ApplyTo: "exchanges", Definition: definition{"alternate-exchange": to},
		}))
	}
	t.bind(caught, "k", z)
	t.eventually("the policy of "+y+" acts", func() error {
		if t.returned(y, "k") {
			return errors.New("returned")
		}
		return nil
	})
	t.equal("caught", t.emptied(caught), []string{"x"})
	if !t.returned(y, "other") {
		t.Error("a circle of alternate exchanges: it is not returned")
	}
}

var publishRows = []row{
	{id: "A060", what: "immediate: 540", run: func(t *T) {
		r := t.raw()
		t.must(r.Method(1, methodPublish, client.Join([]byte{0, 0}, client.ShortString(""), client.ShortString("q"), []byte{2})))
		t.must(r.Frame(client.FrameHeader, 1, header(0, 0, 0)))
		t.closes(r, amqp.NotImplemented, "immediate=true", "60,40")
	}},
	{id: "A061", what: "valid and invalid expirations", lives: true, run: func(t *T) {
		for _, text := range []string{"+5", "00010", "0", "315360000000"} {
			t.send("", t.name("none"), expiration(text))
		}
		for text, reason := range map[string]string{
			"abc": "no_integer", "1.5": `{leftover_string,".5"}`, "10 ": `{leftover_string," "}`, "-1": "{value_negative,-1}", "315360000001": "{value_too_large,315360000001}",
		} {
			t.refusePublish(amqp.PreconditionFailed, fmt.Sprintf("invalid expiration '%s': %s", text, reason), "", t.name("none"), expiration(text))
		}
	}},
	{id: "A062", what: "another user's user-id: 406, except for impersonators", run: func(t *T) {
		bob := func(p *amqp.Publishing) { p.UserId = "bob" }
		t.refusePublish(amqp.PreconditionFailed, "user_id property set to 'bob' but authenticated user was 'guest'", "", t.name("none"), bob)
		q := t.local("q")
		t.send("", q, func(p *amqp.Publishing) { p.UserId = "guest" })
		t.equal("user-id", t.mustGet(q).UserId, "guest")
		ch, err := t.as("imp", "impersonator", "", ".*", "").Channel()
		t.must(err)
		t.must(ch.Confirm(false))
		p := amqp.Publishing{}
		bob(&p)
		c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, "", q, false, false, p)
		t.must(err)
		_, err = c.WaitContext(t.ctx)
		t.must(err)
		t.equal("user-id", t.mustGet(q).UserId, "bob")
	}},
	{id: "A063", what: "CC and BCC add queues; the key stays, BCC is removed", run: func(t *T) {
		queues := []string{t.local("a"), t.local("b"), t.local("c")}
		t.send("", queues[0], headers("CC", []any{queues[1], int32(5)}, "BCC", []any{queues[2]}, "other", "x"))
		for _, q := range queues {
			d := t.mustGet(q)
			_, bcc := d.Headers["BCC"]
			t.equal(q, []any{d.RoutingKey, bcc, d.Headers["CC"], d.Headers["other"]}, []any{queues[0], false, []any{queues[1], int32(5)}, "x"})
		}
		t.refusePublish(amqp.PreconditionFailed, `invalid message: {unacceptable_type_in_header,"CC",longstr}`, "", queues[0], headers("CC", "text"))
	}},
}

package clients

import (
	"context"
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

var adminScript = flag.String("clients.rabbitmqadmin", "", "file of rabbitmqadmin of RabbitMQ 3, if it is not on the PATH")

// mustAdmin finds RabbitMQ's own command line tool for the HTTP API, the one in Python, and what runs
// it.
func mustAdmin(t *testing.T) (command []string) {
	t.Helper()
	script := *adminScript
	if script == "" {
		found, err := exec.LookPath("rabbitmqadmin")
		if err != nil {
			t.Skip(missing("rabbitmqadmin (Debian's rabbitmq-server has it in plugins/rabbitmq_management-*/priv/www/cli)"))
		}
		script = found
	}
	for _, interpreter := range []string{"/usr/bin/python3", "python3"} { // wrappers of others start slowly
		if out, err := exec.CommandContext(t.Context(), interpreter, script, "--version").CombinedOutput(); err == nil && strings.Contains(string(out), "rabbitmqadmin") {
			return []string{interpreter, script}
		}
	}
	t.Skip(missing("a Python for " + script))
	return nil
}

// TestAdmin gives every command that rabbitmqadmin knows, and sees what becomes of it.
func TestAdmin(t *testing.T) {
	t.Parallel()
	command := mustAdmin(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := mustStart(t, ctx)
	host, port, err := net.SplitHostPort(c.Nodes[0].HTTP)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "definitions.json")
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, command[0], append([]string{command[1], "-H", host, "-P", port}, args...)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	check := func(fails bool, want string, args ...string) {
		t.Helper()
		if out, err := run(args...); (err != nil) != fails || !strings.Contains(out, want) {
			t.Errorf("%q: %v, %q is not in\n%s", args, err, want, out)
		}
	}
	works := func(want string, words string) { t.Helper(); check(false, want, strings.Fields(words)...) }
	fails := func(want string, words string) { t.Helper(); check(true, want, strings.Fields(words)...) }

	conn, err := amqp.DialConfig("amqp://guest:guest@"+c.Nodes[0].AMQP+"/", amqp.Config{Properties: amqp.Table{"connection_name": "seen"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // what exists and is equal is declared again
		works("exchange declared", "declare exchange name=x type=topic")
		works("queue declared", "declare queue name=q queue_type=quorum")
	}
	works("binding declared", "declare binding source=x destination=q routing_key=a.#")
	works("vhost declared", "declare vhost name=v")
	works("user declared", "declare user name=u password=p tags=monitoring")
	works("permission declared", "declare permission vhost=v user=u configure=.* write=.* read=.*")
	works("policy declared", `declare policy name=p pattern=^q definition={"max-length":100} apply-to=queues`)
	works("operator_policy declared", `declare operator_policy name=o pattern=^q definition={"max-length":200} apply-to=queues`)
	works("vhost_limit declared", "declare vhost_limit vhost=v name=max-queues value=10")
	fails("component shovel not found", `declare parameter component=shovel name=s value={}`)
	if _, err := ch.Consume("q", "tag", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	for _, x := range [][2]string{
		{"seen", "connections user_provided_name"}, {"(1)", "channels"}, {"tag", "consumers"}, {"topic", "exchanges"}, {"q", "queues name messages"}, {"a.#", "bindings"},
		{"monitoring", "users"}, {"v", "vhosts"}, {"u", "permissions"}, {"n1", "nodes name"}, {"vhost-limits", "parameters"}, {"max-length", "policies"}, {"max-length", "operator_policies"}, {"max-queues", "vhost_limits"},
	} {
		works(x[0], "list "+x[1])
	}
	works("cluster_name", "show overview")
	if err := ch.Close(); err != nil { // the consumer with it
		t.Fatal(err)
	}
	works("Message published", "publish routing_key=a.b exchange=x payload=hi")
	works("Message published", "publish routing_key=q payload=there")
	works("NOT routed", "publish routing_key=nowhere payload=lost")
	works("hi", "get queue=q count=1")
	works("there", "get queue=q count=2 ackmode=ack_requeue_false")
	works("No items", "get queue=q")
	works("Message published", "publish routing_key=q payload=more")
	works("queue purged", "purge queue name=q")
	works("No items", "get queue=q")
	fails("Not found", "purge queue name=nope")
	name, err := run("-f", "tsv", "list", "connections", "name")
	if err != nil {
		t.Fatal(name, err)
	}
	lines := strings.Split(strings.TrimSpace(name), "\n")
	check(false, "connection closed", "close", "connection", "name="+lines[len(lines)-1])
	select {
	case e := <-closed:
		if e == nil || e.Code != amqp.ConnectionForced {
			t.Errorf("the connection ends with %v", e)
		}
	case <-ctx.Done():
		t.Error("the connection is not closed")
	}
	works("Exported definitions", "export "+file)
	works("vhost_limit deleted", "delete vhost_limit vhost=v name=max-queues")
	works("operator_policy deleted", "delete operator_policy name=o")
	works("policy deleted", "delete policy name=p")
	works("permission deleted", "delete permission vhost=v user=u")
	works("user deleted", "delete user name=u")
	works("vhost deleted", "delete vhost name=v")
	works("binding deleted", "delete binding source=x destination_type=queue destination=q properties_key=a.%23")
	works("queue deleted", "delete queue name=q")
	works("exchange deleted", "delete exchange name=x")
	fails("Not found", "delete parameter component=shovel name=s")
	fails("Not found", "delete queue name=q")
	works("Uploaded definitions", "import "+file)
	again := file + ".again"
	works("Exported definitions", "export "+again)
	first, err := os.ReadFile(file)
	second, againErr := os.ReadFile(again)
	if err != nil || againErr != nil || string(first) != string(second) {
		t.Errorf("%v, %v: exported\n%s\nand, after everything was deleted and imported,\n%s", err, againErr, first, second)
	}
}

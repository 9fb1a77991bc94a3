package clients

import (
	"bytes"
	"context"
	"flag"
	"net"
	"os/exec"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

var adminNG = flag.String("clients.rabbitmqadmin-ng", "rabbitmqadmin", "`command` that is rabbitmqadmin of version 2, the one in Rust; more words go before its arguments")

// mustAdminNG finds RabbitMQ's own command line tool for the HTTP API, the one in Rust.
func mustAdminNG(t *testing.T) (command []string) {
	t.Helper()
	command = strings.Fields(*adminNG)
	out, err := exec.CommandContext(t.Context(), command[0], append(command[1:], "--help")...).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("Version: 2.")) {
		t.Skip(missing("rabbitmqadmin 2 (Debian's package rabbitmqadmin-ng)"))
	}
	return command
}

// TestAdminNG gives every command of rabbitmqadmin 2 that is about what quorate has, and some of the
// others, which must be refused in order.
func TestAdminNG(t *testing.T) {
	t.Parallel()
	command := mustAdminNG(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := mustStart(t, ctx)
	host, port, err := net.SplitHostPort(c.Nodes[0].HTTP)
	if err != nil {
		t.Fatal(err)
	}
	_, amqpPort, err := net.SplitHostPort(c.Nodes[0].AMQP)
	if err != nil {
		t.Fatal(err)
	}
	run := func(input string, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, command[0], append(append(command[1:len(command):len(command)], "-H", host, "-P", port, "--non-interactive"), args...)...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	given := 0
	check := func(fails bool, want, input string, args ...string) string {
		t.Helper()
		given++
		out, err := run(input, args...)
		if (err != nil) != fails || !strings.Contains(out, want) {
			t.Errorf("%q: %v, %q is not in\n%s", args, err, want, out)
		}
		return out
	}
	works := func(want, words string) string { t.Helper(); return check(false, want, "", strings.Fields(words)...) }
	fails := func(want, words string) { t.Helper(); check(true, want, "", strings.Fields(words)...) }
	dial := func() (*amqp.Channel, chan *amqp.Error) {
		t.Helper()
		conn, err := amqp.DialConfig("amqp://guest:guest@"+c.Nodes[0].AMQP+"/", amqp.Config{Properties: amqp.Table{"connection_name": "seen"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		return ch, conn.NotifyClose(make(chan *amqp.Error, 1))
	}
	awaitClosed := func(closed chan *amqp.Error) {
		t.Helper()
		select {
		case e := <-closed:
			if e == nil || e.Code != amqp.ConnectionForced {
				t.Errorf("the connection ends with %v", e)
			}
		case <-ctx.Done():
			t.Error("the connection is not closed")
		}
	}

	for range 2 { // what exists and is equal is declared again
		works("", "declare vhost --name v --description text")
		works("", "users declare --name u --password p --tags monitoring")
		works("", "-V v permissions declare --user u --configure .* --read .* --write .*")
		works("", "declare queue --name q --type quorum")
		works("", `queues declare --name timed --type quorum --arguments {"x-message-ttl":60000}`)
		works("", "exchanges declare --name x --type topic")
		works("", "exchanges declare --name y --type fanout")
		works("", "exchanges bind --source x --destination-type queue --destination q --routing-key a.#")
		works("", "bindings declare --source x --destination-type exchange --destination y --routing-key b")
		works("", `policies declare --name p --pattern ^q --apply-to queues --priority 3 --definition {"max-length":100}`)
		works("", `operator_policies declare --name o --pattern ^q --apply-to queues --definition {"max-length":200}`)
		works("", "-V v vhost_limits declare --name max-queues --value 10")
		works("", "user_limits declare --user u --name max-connections --value 5")
		works("", `global_parameters set --name g --value {"a":7}`)
	}
	fails("stream", "queues declare --name s --type stream")
	fails("x-max-age", "streams declare --name s --expiration 1h")
	fails("component federation-upstream not found", `parameters set --component federation-upstream --name f --value {"uri":"amqp://h"}`)
	ch, closed := dial()
	if _, err := ch.Consume("q", "tag", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	for _, x := range [][2]string{
		{"n1", "nodes"}, {"u", "users"}, {"text", "vhosts"}, {".*", "permissions"}, {"guest", "connections"}, {"guest", "user_connections --username guest"}, {"(1)", "channels"},
		{"q", "queues"}, {"topic", "exchanges"}, {"a.#", "bindings"}, {"tag", "consumers"}, {"operator_policy", "parameters"}, {"max-length", "policies"}, {"max-length", "operator_policies"},
		{"max-queues", "-V v vhost_limits"}, {"max-connections", "user_limits"}, {"", "feature_flags"}, {"", "deprecated_features"}, {"", "deprecated_features_in_use"},
	} {
		words := strings.Fields(x[1])
		if words[0] == "-V" {
			words = []string{"-V", words[1], "list", words[2]}
		} else {
			words = append([]string{"list"}, words...)
		}
		check(false, x[0], "", words...)
	}
	for _, x := range [][2]string{
		{"n1", "nodes list"}, {"Total", "nodes memory_breakdown_in_bytes --node n1"}, {"total", "nodes memory_breakdown_in_percent --node n1"},
		{"Total", "show memory_breakdown_in_bytes --node n1"}, {"total", "show memory_breakdown_in_percent --node n1"}, {"quorate", "show overview"}, {"created", "show churn"}, {port, "show endpoint"},
		{"", "auth_attempts stats --node n1"}, {"a.#", "bindings list"}, {"(1)", "channels list"}, {"guest", "connections list"}, {"guest", "connections list_of_user --username guest"},
		{"", "deprecated_features list"}, {"", "deprecated_features list_used"}, {"topic", "exchanges list"}, {"", "feature_flags list"}, {"", "feature_flags enable_all"}, {"7", "global_parameters list"},
		{"o", "operator_policies list"}, {"o", "operator_policies list_in"}, {"o", "operator_policies list_matching_object --name q --type queues"},
		{"p", "policies list"}, {"p", "policies list_in"}, {"p", "policies list_matching_object --name q --type queues"}, {"", "policies list_conflicting"}, {"", "policies list_conflicting_in"},
		{"operator_policy", "parameters list_all"}, {"o", "parameters list --component operator_policy"}, {"o", "parameters list_in --component operator_policy"},
		{".*", "permissions list"}, {"", "plugins list_all"}, {"", "plugins list_on_node --node n1"}, {"timed", "queues list"}, {"quorum", "queues show --name q"},
		{"u", "users list"}, {"guest", "users connections --username guest"}, {"max-connections", "users limits"}, {".*", "users permissions"}, {"max-connections", "user_limits list"}, {"v", "vhosts list"},
		{"", "health_check local_alarms"}, {"", "health_check cluster_wide_alarms"}, {"", "health_check node_is_quorum_critical"},
		{"", "health_check port_listener --port " + amqpPort}, {"", "health_check protocol_listener --protocol amqp091"},
		{"", "rebalance queues"}, {"", "queues rebalance"}, {"", "passwords salt_and_hash secret"},
	} {
		works(x[0], x[1])
	}
	works("max-queues", "-V v vhost_limits list")
	fails("unknown command", "health_check deprecated_features_in_use") // it lists it, and does not know it
	fails("", "health_check port_listener --port 1")
	fails("", "health_check protocol_listener --protocol mqtt")

	works("", `policies patch --name p --definition {"expires":1800000}`)
	works("", "policies update_definition --name p --definition-key max-length --new-value 101")
	works("", "policies update_definitions_of_all_in --definition-key max-length --new-value 102")
	works("", "policies update_definitions_of_all --definition-key max-length --new-value 103")
	works("103", "policies list")
	works("", `policies declare_override --name p --override-name over --definition {"max-length":104}`)
	works("", `policies declare_blanket --name blanket --apply-to queues --definition {"max-length":105}`)
	works("", "policies delete_definition_keys --name p --definition-keys expires")
	works("", "policies delete_definition_keys_from_all_in --definition-keys expires")
	works("", "policies delete_definition_keys_from_all --definition-keys expires")
	works("", `operator_policies patch --name o --definition {"expires":1800000}`)
	works("", "operator_policies update_definition --name o --definition-key max-length --new-value 201")
	works("", "operator_policies update_definitions_of_all_in --definition-key max-length --new-value 202")
	works("", "operator_policies delete_definition_keys --name o --definition-keys expires")
	works("", "operator_policies delete_definition_keys_from_all_in --definition-keys expires")
	works("202", "operator_policies list")

	if err := ch.Close(); err != nil { // the consumer with it
		t.Fatal(err)
	}
	works("", "publish message --exchange x --routing-key a.b --payload hi")
	works("hi", "get messages --queue q")
	works("", `publish message --routing-key q --payload there --properties {"delivery_mode":2}`)
	works("there", "get messages --queue q --count 2 --ack-mode ack_requeue_true")
	works("", "queues purge --name q")
	works("", "purge queue --name q")
	fails("", "queues purge --name nope")
	var name string
	if err := c.Nodes[0].Call(ctx, "GET", "/api/connections?columns=name", nil, &[]*struct{ Name *string }{{&name}}); err != nil {
		t.Fatal(err)
	}
	check(false, "", "", "close", "connection", "--name", name)
	awaitClosed(closed)
	check(false, "", "", "connections", "close", "--name", name, "--idempotently")
	_, closed = dial()
	works("", "connections close_of_user --username guest")
	awaitClosed(closed)

	first := works(`"x-message-ttl"`, "definitions export --stdout")
	works(`"x-message-ttl"`, "definitions export_from_vhost --stdout")
	works("", "definitions export --stdout --transformations prepare_for_quorum_queue_migration")
	works("", "vhosts enable_deletion_protection --name v")
	fails("", "vhosts delete --name v")
	works("", "vhosts disable_deletion_protection --name v")
	works("", "-V v vhost_limits delete --name max-queues")
	works("", "user_limits delete --user u --name max-connections")
	works("", "global_parameters clear --name g")
	works("", "exchanges unbind --source x --destination-type queue --destination q --routing-key a.#")
	works("", "bindings delete --source x --destination-type exchange --destination y --routing-key b")
	works("", "policies delete --name p")
	works("", "policies delete --name over")
	works("", "policies delete --name blanket")
	works("", "operator_policies delete --name o")
	works("", "queues delete --name q")
	works("", "queues delete --name timed")
	works("", "exchanges delete --name x")
	works("", "exchanges delete --name y")
	works("", "-V v permissions delete --user u")
	works("", "users delete --name u")
	works("", "vhosts delete --name v")
	fails("", "queues delete --name q")
	works("", "queues delete --name q --idempotently")
	works("", "vhosts delete --name v --idempotently")
	check(false, "", first, "definitions", "import", "--stdin")
	if again := works("", "definitions export --stdout"); again != first {
		t.Errorf("exported\n%s\nand, after everything was deleted and imported,\n%s", first, again)
	}
	check(false, "", `{"queues":[{"name":"only","durable":true,"auto_delete":false,"arguments":{}}],"exchanges":[],"bindings":[],"policies":[],"parameters":[]}`, "-V", "v", "definitions", "import_into_vhost", "--stdin")
	works("only", "-V v queues list")
	works("v", "vhosts delete_multiple --name-pattern ^v$ --approve --dry-run")
	works("", "vhosts delete_multiple --name-pattern ^v$ --approve")
	t.Logf("%d commands", given)
}

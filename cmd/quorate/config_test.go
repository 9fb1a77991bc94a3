package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func mustFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rabbitmq.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// usual is a file that a cluster of RabbitMQ could have.
const usual = `# networking
listeners.tcp.local = 127.0.0.1:5673
listeners.ssl.default = 5671
num_acceptors.tcp = 10
handshake_timeout = 10000
tcp_listen_options.backlog = 128
tcp_listen_options.nodelay = true
ssl_options.cacertfile = /etc/tls/ca.pem
ssl_options.certfile = /etc/tls/cert.pem
ssl_options.keyfile = /etc/tls/key.pem
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_options.versions.1 = tlsv1.3
ssl_options.versions.2 = tlsv1.2
ssl_options.honor_cipher_order = true
auth_backends.1 = internal
auth_mechanisms.1 = PLAIN
loopback_users.guest = false
loopback_users.backup = true
default_user = operator
default_pass = secret
default_user_tags.administrator = true
default_permissions.configure = .*
heartbeat = 30
frame_max = 131072
channel_max = 128
vm_memory_high_watermark.relative = 0.5
vm_memory_high_watermark_paging_ratio = 0.75
disk_free_limit.absolute = 2GB
cluster_partition_handling = pause_minority
cluster_formation.peer_discovery_backend = classic_config
queue_master_locator = min-masters
default_queue_type = classic
consumer_timeout = undefined
log.dir = /var/log/broker
log.file = broker.log
log.file.level = notice
log.connection.level = debug
log.console = false
management.tcp.port = 8080
management.load_definitions = /etc/definitions.json
management.rates_mode = basic
prometheus.tcp.ip = 10.0.0.1
prometheus.tcp.port = 9000
collect_statistics_interval = 10000
mqtt.listeners.tcp.default = 1883
`

// A usual rabbitmq.conf is accepted: what has a meaning applies, and what has none is told.
func TestFileOfThePeer(t *testing.T) {
	s := defaults()
	if err := s.readFile(mustFile(t, usual)); err != nil {
		t.Fatal(err)
	}
	if err := s.validate(); err != nil {
		t.Fatal(err)
	}
	for what, have := range map[string][2]string{
		"AMQP":     {strings.Join(s.amqp.addresses(), " "), "127.0.0.1:5673"},
		"AMQPS":    {strings.Join(s.amqps.addresses(), " "), ":5671"},
		"HTTP":     {s.management, ":8080"},
		"metrics":  {s.metrics, "10.0.0.1:9000"},
		"log file": {s.logFile, "/var/log/broker/broker.log"},
		"level":    {s.logLevel, "info"},
		"loopback": {strings.Join(s.loopbackUsers, ","), "backup"},
		"versions": {s.given["ssl_options.versions"].value, "tlsv1.3,tlsv1.2"},
	} {
		if have[0] != have[1] {
			t.Errorf("%s: %q, want %q", what, have[0], have[1])
		}
	}
	if s.consumerTimeout != 0 {
		t.Errorf("consumer timeout %v", s.consumerTimeout)
	}
	told := map[string]bool{}
	for _, n := range s.notices {
		if n.why == "" || told[n.key] {
			t.Errorf("%q says nothing, or twice", n)
		}
		told[n.key] = true
	}
	for _, key := range []string{
		"num_acceptors.tcp", "tcp_listen_options.backlog", "tcp_listen_options.nodelay", "ssl_options.honor_cipher_order", "auth_mechanisms.1",
		"vm_memory_high_watermark_paging_ratio", "cluster_partition_handling", "queue_master_locator", "log.connection.level",
		"management.rates_mode", "collect_statistics_interval", "mqtt.listeners.tcp.default",
	} {
		if !told[key] {
			t.Errorf("%s has no effect, and nobody is told", key)
		}
		delete(told, key)
	}
	if len(told) > 0 {
		t.Errorf("said to have no effect: %v", told)
	}
}

// What would make a node do something else than its file says is refused.
func TestRefusedOfThePeer(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"auth_backends.1 = ldap", `"ldap" is not one of internal`},
		{"proxy_protocol = true", `"true" is not supported, only false`},
		{"cluster_formation.peer_discovery_backend = etcd", "cluster_formation.join"},
		{"ssl_options.password = x", "without one"},
		{"default_user_tags.monitoring = true", "only default_user_tags.administrator"},
		{"default_permissions.read = ^a", "only .*"},
		{"default_pass = encrypted:abc", "encrypted values are not supported"},
		{"management.tcp.ip = host", "not an IP address"},
		{"management.tcp.port = http", "setting management.tcp.port: "},
		{"loopback_users.guest = maybe", "is not true or false"},
		{"log.file.level = loud", `"loud" is not one of`},
		{"ssl_options.versions.1 = tlsv1.1", `"tlsv1.1" is not one of`},
		{"no.such.key = 1\nheartbeat = -1", "unknown setting no.such.key"},
		{"no.such.key = 1\nheartbeat = -1", "line 2: setting heartbeat"},
	} {
		if err := defaults().read(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
	if err := defaults().read(strings.NewReader("# x\n[\n {rabbit, []}\n].\n")); !errors.Is(err, errErlang) {
		t.Errorf("Erlang terms: %v", err)
	}
}

// No key is both a setting and a borrowed one, and each borrowed one can be reached.
func TestBorrowedKeys(t *testing.T) {
	for _, row := range table {
		for _, b := range borrowedKeys() {
			if row.key == b.key {
				t.Errorf("%s is a setting", b.key)
			}
		}
	}
	for i, b := range borrowedKeys() {
		key := strings.ReplaceAll(b.key, "*", "x.y")
		s := defaults()
		known, err := s.borrow(key, "v")
		if !known || b.set == nil && (err != nil || len(s.notices) != 1 || s.notices[0].why != b.about) {
			t.Errorf("%d, %s: %v, %v", i, b.key, err, s.notices)
		}
	}
}

// Every key that a rabbitmq.conf can have is known here: it applies, is told, or is refused with a
// reason of its own.
func TestKeysOfThePeer(t *testing.T) {
	text, err := os.ReadFile("testdata/rabbitmq-4.3.6.keys")
	if err != nil {
		t.Fatal(err)
	}
	keys := 0
	for key := range strings.Lines(string(text)) {
		if key = strings.TrimSpace(key); strings.HasPrefix(key, "#") {
			continue
		}
		keys++
		if err := defaults().apply(key, "1"); err != nil && strings.Contains(err.Error(), "unknown setting") {
			t.Error(err)
		}
	}
	if keys < 500 {
		t.Errorf("%d keys", keys)
	}
}

// The variables of the peer's images say who the first user is, unless the own ones do.
func TestEnvironmentOfThePeer(t *testing.T) {
	s := defaults()
	err := s.environment([]string{"QUORATE_DEFAULT_PASS=own", "RABBITMQ_DEFAULT_USER=u", "RABBITMQ_DEFAULT_PASS=p", "RABBITMQ_DEFAULT_VHOST=v", "RABBITMQ_NODENAME=rabbit@h", "RABBITMQ_ERLANG_COOKIE=c", "RABBITMQ_OTHER=o"})
	if err != nil || s.user != "u" || s.password != "own" || s.vhost != "v" || s.nodeName != "n1" {
		t.Errorf("%s, %s, %s, %s: %v", s.user, s.password, s.vhost, s.nodeName, err)
	}
	told := fmt.Sprint(s.notices)
	for _, want := range []string{"RABBITMQ_NODENAME has no effect: it contains a host; use QUORATE_NODE_NAME", "RABBITMQ_ERLANG_COOKIE has no effect: nodes authenticate", "RABBITMQ_OTHER has no effect: variables of settings begin"} {
		if !strings.Contains(told, want) {
			t.Errorf("told: %s, want %q", told, want)
		}
	}
}

// A file that the peer's variable names is read unless its own one names another; Erlang terms are refused.
func TestFileVariablesOfThePeer(t *testing.T) {
	theirs, own := mustFile(t, "heartbeat = 30\n"), mustFile(t, "heartbeat = 20\n")
	for _, c := range []struct {
		own  string
		want time.Duration
	}{{"", 30 * time.Second}, {own, 20 * time.Second}} {
		t.Setenv(peerFileVariable, theirs)
		t.Setenv(fileVariable, c.own)
		if s, err := load("", nil); err != nil || s.heartbeat != c.want || len(s.notices) != 0 {
			t.Errorf("%q: %+v, %v", c.own, s, err)
		}
	}
	t.Setenv(peerAdvancedVariable, "/etc/rabbitmq/advanced.config")
	t.Setenv("RABBITMQ_DEFAULT_PASS", "encrypted:abc")
	_, err := load("", nil)
	if !errors.Is(err, errErlang) || !strings.Contains(err.Error(), "environment "+peerAdvancedVariable) || !strings.Contains(err.Error(), "environment RABBITMQ_DEFAULT_PASS") {
		t.Errorf("refused: %v", err)
	}
}

func TestConfigCommand(t *testing.T) {
	file := mustFile(t, "heartbeat = 30\ndefault_pass = secret\nnum_acceptors.tcp = 10\nmanagement.tcp.port = 8080\n"+nodesKey+"1 = n1@h:1\n")
	t.Setenv("QUORATE_FRAME_MAX", "8192")
	for _, c := range []struct {
		args       []string
		says, errs []string // and nothing else is secret
	}{
		{[]string{"check", file}, []string{"num_acceptors.tcp has no effect", file + ": ok"}, nil},
		{[]string{"check", mustFile(t, "heartbeat = x\nno.such = 1\n")}, nil, []string{"line 1: setting heartbeat", "line 2: unknown setting no.such"}},
		{[]string{"check", mustFile(t, "listeners.ssl.default = 5671\n")}, nil, []string{"needs ssl_options.certfile"}},
		{[]string{"check"}, nil, []string{"expected exactly one file"}},
		{[]string{"show", "--config", file, "--set", "channel_max=7"}, []string{
			"heartbeat = 30\n    # line 1\n", "# default_pass is set; its value is secret\n    # line 2\n", "frame_max = 8192\n    # QUORATE_FRAME_MAX\n", "channel_max = 7\n    # --set\n",
			"management.tcp.listener = :8080\n    # line 4\n", nodesKey + "1 = n1@h:1\n    # line 5\n", "# setting num_acceptors.tcp has no effect",
		}, nil},
		{[]string{"show", "--effective"}, []string{"heartbeat = 60\n    # default\n", "frame_max = 8192\n    # QUORATE_FRAME_MAX\n", "log.file =\n    # default\n"}, nil},
		{[]string{"show", "more"}, nil, []string{`unexpected argument "more"`}},
		{[]string{"change"}, nil, []string{"check or show"}},
	} {
		var out bytes.Buffer
		err := run(append([]string{"config"}, c.args...), &out)
		if (err == nil) != (c.errs == nil) {
			t.Errorf("%v: %v", c.args, err)
			continue
		}
		for _, want := range c.says {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%v does not say %q:\n%s", c.args, want, out.String())
			}
		}
		for _, want := range c.errs {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v, want %q", c.args, err, want)
			}
		}
		if strings.Contains(out.String(), "= secret") || strings.Contains(out.String(), "unsafe") {
			t.Errorf("%v says too much:\n%s", c.args, out.String())
		}
	}
	var out bytes.Buffer
	if err := run([]string{"config", "show", "--effective"}, &out); err != nil {
		t.Fatal(err)
	}
	if err := defaults().read(&out); err != nil {
		t.Errorf("what is shown cannot be read: %v", err)
	}
}

// The HTTP API shows what runs: given values and defaults, and no secrets.
func TestEffectiveSettings(t *testing.T) {
	s := defaults()
	s.source = "test"
	if err := errors.Join(s.put("heartbeat", "30"), s.put("default_pass", "secret"), s.put(nodesKey+"1", "n1@h:1")); err != nil {
		t.Fatal(err)
	}
	all := s.effective()
	if _, shown := all["default_pass"]; shown || all["heartbeat"] != "30" || all["channel_max"] != "2047" || all[nodesKey+"1"] != "n1@h:1" {
		t.Errorf("effective: %v", all)
	}
}

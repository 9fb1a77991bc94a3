package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// What a line says is what rabbitmq.conf's grammar makes of it.
func TestLines(t *testing.T) {
	for line, want := range map[string]struct{ pass, told string }{
		`default_pass = secret # change me`:     {"secret", ""},
		`default_pass = 'e92#sod7' # change me`: {"e92#sod7", ""},
		`default_pass = ' a '`:                  {" a ", ""},
		`default_pass = ''`:                     {"", ""},
		`default_pass = it's`:                   {"it's", ""},
		`default_pass = a = b`:                  {"a = b", ""},
		`default_pass = e92#sod7`:               {"e92", "ends before #"},
		`default_pass = "secret" # change me`:   {`"secret"`, "double quotes"},
		"\ufeffdefault_pass = x":                {"x", ""},
		"default_pass = a\ndefault_pass = b":    {"b", "in line 1 and in line 2"},
	} {
		s := defaults()
		err := s.read(strings.NewReader(line))
		told := ""
		for _, n := range s.notices {
			told += n.String()
		}
		if err != nil || s.password != want.pass || !strings.Contains(told, want.told) || want.told == "" && told != "" {
			t.Errorf("%s: %q, told %q, %v", line, s.password, told, err)
		}
	}
	for line, want := range map[string]string{
		`default_pass = 'a`:       "must end with one",
		`default_pass = 'a' b`:    "must end with one",
		`# default_pass # x = y`:  "",
		`default_pass # = y`:      "not KEY = VALUE",
		`defualt_pass = y`:        "unknown setting defualt_pass; did you mean default_pass?",
		`loopback_users =`:        "use none for nobody",
		`loopback_users = a,, b`:  "empty part",
		`quite.another.thing = 1`: "unknown setting quite.another.thing",
	} {
		err := defaults().read(strings.NewReader(line))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

// Every time and every size takes units, and a number without one is in the unit of its setting.
func TestUnits(t *testing.T) {
	s := defaults()
	for key, value := range map[string]string{
		"consumer_timeout": "30m", "heartbeat": "1m", "handshake_timeout": "5s", "login.max_delay": "250ms", "frame_max": "64KiB",
		"raft.wal_max_size_bytes": "128MB", "max_message_size": "1MB",
	} {
		if err := s.apply(key, value); err != nil {
			t.Error(err)
		}
	}
	if s.consumerTimeout != 30*time.Minute || s.heartbeat != time.Minute || s.handshakeTimeout != 5*time.Second || s.logins.MaxDelay != 250*time.Millisecond {
		t.Errorf("times %v, %v, %v, %v", s.consumerTimeout, s.heartbeat, s.handshakeTimeout, s.logins.MaxDelay)
	}
	if s.frameMax != 64<<10 || s.walSize != 128e6 || s.maxMessageSize != 1e6 {
		t.Errorf("sizes %d, %d, %d", s.frameMax, s.walSize, s.maxMessageSize)
	}
	for key, value := range map[string]string{
		"heartbeat": "1500ms", "consumer_timeout": "30 minutes", "handshake_timeout": "1h", "frame_max": "1GB", "channel_max": "2k",
		"vm_memory_high_watermark.relative": "60",
	} {
		if err := s.apply(key, value); err == nil {
			t.Errorf("%s = %s is taken", key, value)
		}
	}
}

// A larger bound of messages than there is here is no reason not to start.
func TestLargestMessage(t *testing.T) {
	s := defaults()
	if err := s.apply("max_message_size", "134217728"); err != nil || s.maxMessageSize != 32<<20 || len(s.notices) != 1 {
		t.Errorf("%d bytes, told %v, %v", s.maxMessageSize, s.notices, err)
	}
}

// Listeners have names. The usual one is there if it is named, or no other is.
func TestNamedListeners(t *testing.T) {
	for _, tc := range []struct {
		sets []string
		want string
	}{
		{nil, "127.0.0.1:5672"},
		{[]string{"listeners.tcp.1=127.0.0.1:5672", "listeners.tcp.2=::1:5672"}, "127.0.0.1:5672 [::1]:5672"},
		{[]string{"listeners.tcp.default=5673", "listeners.tcp.lan=10.0.0.1:5672"}, ":5673 10.0.0.1:5672"},
		{[]string{"listeners.tcp.lan=10.0.0.1:5672", "listeners.tcp.default=5673"}, ":5673 10.0.0.1:5672"},
		{[]string{"listeners.tcp.lan=10.0.0.1:5672", "listeners.tcp.lan=10.0.0.2:5672"}, "10.0.0.2:5672"},
		{[]string{"listeners.tcp.lan=10.0.0.1:5672", "listeners.tcp.lan=none"}, ""},
		{[]string{"listeners.tcp.lan=10.0.0.1:5672", "listeners.tcp=none"}, ""},
	} {
		s := defaults()
		for _, kv := range tc.sets {
			key, value, _ := strings.Cut(kv, "=")
			if err := s.apply(key, value); err != nil {
				t.Fatal(err)
			}
		}
		if have := strings.Join(s.amqp.addresses(), " "); have != tc.want {
			t.Errorf("%s: %q, want %q", tc.sets, have, tc.want)
		}
	}
	s := defaults()
	if err := s.environment([]string{"QUORATE_LISTENERS_TCP_LAN=10.0.0.1:5672"}); err != nil || s.amqp["lan"] != "10.0.0.1:5672" {
		t.Errorf("%v, %v", s.amqp, err)
	}
	shown := ""
	s.each(false, func(key string, g given) { shown += key + "=" + g.value })
	if shown != "listeners.tcp.lan=10.0.0.1:5672" {
		t.Errorf("shown as given: %s", shown)
	}
}

// All of them are open, the same port in both families of addresses as well, and share the bound.
func TestSeveralListeners(t *testing.T) {
	s := defaults()
	for _, kv := range [][2]string{{"listeners.tcp.1", "127.0.0.1:0"}, {"cluster.listener", "127.0.0.1:0"}, {"management.tcp.listener", "none"}, {"prometheus.tcp.listener", "none"}} {
		if err := s.apply(kv[0], kv[1]); err != nil {
			t.Fatal(err)
		}
	}
	first, err := listen(s, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	port := first.clients[0].address[strings.LastIndexByte(first.clients[0].address, ':'):]
	first.close()
	for _, kv := range [][2]string{{"listeners.tcp.1", "0.0.0.0" + port}, {"listeners.tcp.2", "::" + port}} {
		if err := s.apply(kv[0], kv[1]); err != nil {
			t.Fatal(err)
		}
	}
	all, err := listen(s, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer all.close()
	if have := addresses(all.clients); have != "0.0.0.0"+port+" [::]"+port {
		t.Errorf("clients at %s", have)
	}
	single, both := first.limits.status(), all.limits.status()
	if a, b := single[1].Max, both[1].Max; b != a/2 || both[2].Max != b {
		t.Errorf("one may have %d clients, each of two %d", a, b)
	}
}

// Variables that Kubernetes sets for a service are no settings; others with the prefix have to be.
func TestVariablesOfServices(t *testing.T) {
	s := defaults()
	err := s.environment([]string{
		"QUORATE_SERVICE_HOST=10.0.0.1", "QUORATE_SERVICE_PORT=5672", "QUORATE_SERVICE_PORT_AMQP=5672", "QUORATE_PORT=tcp://10.0.0.1:5672",
		"QUORATE_PORT_5672_TCP=tcp://10.0.0.1:5672", "QUORATE_PORT_5672_TCP_ADDR=10.0.0.1", "QUORATE_PORT_5672_TCP_PORT=5672", "QUORATE_PORT_5672_TCP_PROTO=tcp",
		"QUORATE_MANAGEMENT_SERVICE_HOST=10.0.0.2",
	})
	if err != nil || len(s.notices) != 9 {
		t.Errorf("%d told, %v", len(s.notices), err)
	}
	for name, want := range map[string]string{
		"QUORATE_PORT=5672": "no such setting", "QUORATE_LISTENERS_TCP_DEFAULTS=1": "is neither IP:PORT", "QUORATE_NODE_NAMES=1": "did you mean QUORATE_NODE_NAME?",
		"QUORATE_LOOPBACK_USERS=": "use none for nobody",
	} {
		err := defaults().environment([]string{strings.Replace(name, "DEFAULTS=1", "DEFAULTS=x:y", 1)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// A new node lets nobody in by a password that everybody knows, unless it is told twice.
func TestGuestFromElsewhere(t *testing.T) {
	used := t.TempDir()
	if err := os.MkdirAll(filepath.Join(used, "catalog"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		sets []string
		good bool
	}{
		{nil, true},
		{[]string{"loopback_users=none"}, true},
		{[]string{"listeners.tcp.default=5672"}, true},
		{[]string{"loopback_users=none", "listeners.tcp.default=5672"}, false},
		{[]string{"loopback_users=anna", "listeners.tcp.lan=10.0.0.1:5672"}, false},
		{[]string{"loopback_users.guest=false", "management.tcp.port=15672"}, false},
		{[]string{"loopback_users=none", "management.ssl.port=15671", "ssl_options.certfile=x", "ssl_options.keyfile=y"}, false},
		{[]string{"loopback_users=none", "listeners.tcp.default=5672", "default_pass=guest"}, true},
		{[]string{"loopback_users=none", "listeners.tcp.default=5672", "default_pass=other"}, true},
		{[]string{"loopback_users=none", "listeners.tcp.default=5672", "default_user=other"}, true},
		{[]string{"loopback_users=none", "listeners.tcp.default=5672", "data_dir=" + used}, true},
	} {
		_, err := load("", append([]string{"data_dir=" + t.TempDir()}, tc.sets...))
		if (err == nil) != tc.good {
			t.Errorf("%s: %v", tc.sets, err)
		}
	}
}

// Nodes that a rabbitmq.conf lists or finds are those of a list of nodes.
func TestFormation(t *testing.T) {
	const suffix = "cluster_formation.k8s.hostname_suffix=.rmq.prod.svc.cluster.local"
	const k8s, three = "cluster_formation.peer_discovery_backend=rabbit_peer_discovery_k8s", "cluster_formation.target_cluster_size_hint=3"
	for _, tc := range []struct {
		host string
		sets []string
		name string
		want string // nodes, or part of the refusal
	}{
		{"rabbit2.lan", []string{nodesKey + "1=rabbit@rabbit1", nodesKey + "2=rabbit@rabbit2"}, "rabbit2", "rabbit1@rabbit1:25672 rabbit2@rabbit2:25672"},
		{"rabbit2", []string{nodesKey + "1=rabbit@rabbit2:7000", "node_name=rabbit2"}, "rabbit2", "rabbit2@rabbit2:7000"},
		{"other", []string{nodesKey + "1=rabbit@rabbit1"}, "", `node_name: "n1" is not in the list of nodes: rabbit1`},
		{"rmq-1", []string{k8s, three, suffix}, "rmq-1", "rmq-0@rmq-0.rmq.prod.svc.cluster.local:25672 rmq-1@rmq-1.rmq.prod.svc.cluster.local:25672 rmq-2@rmq-2.rmq.prod.svc.cluster.local:25672"},
		{"rmq-1", []string{k8s, "cluster_formation.target_cluster_size_hint=2", "cluster_formation.k8s.service_name=nodes", "cluster_formation.k8s.ordinal_start=1"}, "rmq-1", "rmq-1@rmq-1.nodes:25672 rmq-2@rmq-2.nodes:25672"},
		{"rmq-1", []string{k8s, suffix}, "", "target_cluster_size_hint"},
		{"laptop", []string{k8s, three}, "", "NAME-NUMBER"},
		{"rmq-7", []string{k8s, three}, "", `"rmq-7" is not in the list of nodes`},
		{"x", []string{"cluster_formation.peer_discovery_backend=dns", "cluster_formation.dns.hostname=mq.lan"}, "n1", "join mq.lan:25672"},
		{"x", []string{"cluster_formation.peer_discovery_backend=dns"}, "", "dns.hostname"},
		{"x", []string{k8s, "cluster_formation.join=a:1"}, "n1", "join a:1"},
	} {
		s := defaults()
		s.hostName = func() (string, error) { return tc.host, nil }
		for _, kv := range tc.sets {
			key, value, _ := strings.Cut(kv, "=")
			if err := s.apply(key, value); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.validate(); err != nil {
			if tc.name != "" || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s on %s: %v", tc.sets, tc.host, err)
			}
			continue
		}
		var nodes []string
		for name, at := range s.nodes {
			nodes = append(nodes, name+"@"+at)
		}
		slices.Sort(nodes)
		have := strings.Join(nodes, " ")
		if len(s.contacts) > 0 {
			have = "join " + strings.Join(s.contacts, " ")
		}
		if s.nodeName != tc.name || have != tc.want {
			t.Errorf("%s on %s: %s, %s; want %s, %s", tc.sets, tc.host, s.nodeName, have, tc.name, tc.want)
		}
	}
}

// Files as they are found start a node, but for what it cannot do, which is said.
func TestFilesAsFound(t *testing.T) {
	for name, want := range map[string][]string{
		"two-listeners": nil, "large-messages": nil, "virtual-machines": nil, "stateful-set": {"target_cluster_size_hint"},
		"operator": nil, "tls-ldap": {"keys with a password cannot be read", `"ldap" is not one of internal`}, "tuned": {"let a proxy add the prefix"},
	} {
		s := defaults()
		if name == "virtual-machines" {
			s.hostName = func() (string, error) { return "rabbit1", nil }
		} else {
			s.hostName = func() (string, error) { return "orders-server-0", nil }
		}
		file, err := os.Open(filepath.Join("testdata", "found", name+".conf"))
		if err != nil {
			t.Fatal(err)
		}
		err = s.read(file)
		file.Close()
		if err == nil {
			err = s.validate()
		}
		if (err == nil) != (want == nil) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q", name, err, w)
			}
		}
		if want != nil && strings.Count(err.Error(), "\n") != len(want)-1 {
			t.Errorf("%s has more mistakes: %v", name, err)
		}
	}
}

// What a rabbitmq.conf gives new vhosts is given to them here.
func TestSeeds(t *testing.T) {
	s := defaults()
	err := s.read(strings.NewReader(`default_users.a.b.vhost_pattern = ^qa
default_users.a.b.tags = policymaker, monitoring
default_users.a.b.password = secret
default_users.a.b.read = ^r
default_limits.vhosts.2.max_queues = 100
default_limits.vhosts.1.pattern = ^device
default_limits.vhosts.1.max_connections = 10
default_policies.operator.short.vhost_pattern = ^qa
default_policies.operator.short.queue_pattern = ^t
default_policies.operator.short.max_length_bytes = 1000
default_policies.operator.short.classic_queues.ha_mode = exactly
default_policies.operator.mirrors.ha_mode = all
`))
	if err == nil {
		err = s.validate()
	}
	if err != nil || s.secret == "" || len(s.notices) != 2 {
		t.Fatalf("%v; secret %q; told %v", err, s.secret, s.notices)
	}
	all := s.seed.seeds()
	u := all.Users[0]
	if u.Permission.User != "a.b" || u.VHosts != "^qa" || u.Password != "secret" || strings.Join(u.Tags, "|") != "policymaker|monitoring" || u.Permission.Read != "^r" || u.Permission.Write != ".*" {
		t.Errorf("user %+v", u)
	}
	if len(all.Limits) != 2 || all.Limits[0].VHosts != "^device" || all.Limits[0].Limits["max-connections"] != 10 || all.Limits[1].Limits["max-queues"] != 100 {
		t.Errorf("limits %+v", all.Limits)
	}
	if len(all.Policies) != 1 || all.Policies[0].Policy.Pattern != "^t" || fmt.Sprint(all.Policies[0].Definition) != "map[max-length-bytes:1000]" {
		t.Errorf("policies %+v", all.Policies)
	}
	for _, line := range []string{
		"default_users.a.hash = x", "default_limits.vhosts.1.max_channels = 1", "default_limits.vhosts.1.max_queues = x",
		"default_policies.operator.p.max_age = 1D", "default_policies.operator.p.expires = -1", "default_users.a.vhost_pattern = (",
	} {
		s := defaults()
		if s.read(strings.NewReader(line)) == nil && s.validate() == nil {
			t.Errorf("%s is taken", line)
		}
	}
}

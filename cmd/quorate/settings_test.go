package main

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/tidy/page"
	"github.com/quorate/quorate/fsm/catalog"
)

var _ = flag.Bool("rewrite", false, "write the generated documents again")

// Every default is accepted, and all of them together are a configuration.
func TestDefaults(t *testing.T) {
	s := defaults()
	if err := s.validate(); err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"n1": "127.0.0.1:25672"}; !maps.Equal(s.nodes, want) {
		t.Errorf("nodes %v, want %v", s.nodes, want)
	}
	if s.heartbeat != time.Minute || s.maxMessageSize != 16<<20 || s.groupSize != 3 || s.amqp["default"] != "127.0.0.1:5672" {
		t.Errorf("defaults %+v", s)
	}
	seen := map[string]bool{}
	for _, row := range table {
		if seen[row.key] || row.about == "" {
			t.Errorf("%s stands twice or says nothing", row.key)
		}
		seen[row.key] = true
	}
}

var bounds = regexp.MustCompile(`(\d+) … (\d+)`)

// The ranges that the table tells are the ones that are checked.
func TestRanges(t *testing.T) {
	checked := 0
	for _, row := range table {
		m := bounds.FindStringSubmatch(row.about)
		if m == nil {
			continue
		}
		checked++
		low, _ := strconv.ParseInt(m[1], 10, 64)
		high, _ := strconv.ParseInt(m[2], 10, 64)
		for value, good := range map[string]bool{
			fmt.Sprint(low): true, fmt.Sprint(high): true,
			fmt.Sprint(low - 1): false, fmt.Sprint(high + 1): false,
			"": false, "x": false, "1.5": false, "1 fortnight": false, "-": false,
		} {
			err := defaults().apply(row.key, value)
			if row.key == "max_message_size" && value == fmt.Sprint(high+1) {
				good = true // taken for the bound, see TestLargestMessage
			}
			if (err == nil) != good {
				t.Errorf("%s = %q: %v", row.key, value, err)
			}
			if err != nil && !strings.Contains(err.Error(), row.key) {
				t.Errorf("the refusal of %s does not name it: %v", row.key, err)
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d settings have a range", checked)
	}
}

func TestValues(t *testing.T) {
	for _, tc := range []struct {
		key, value string
		good       bool
	}{
		{"listeners.tcp.default", "5672", true},
		{"listeners.tcp.default", "0.0.0.0:5672", true},
		{"listeners.tcp.default", "[::1]:5672", true},
		{"listeners.tcp.default", "localhost:0", true},
		{"listeners.tcp.default", "localhost:65536", false},
		{"listeners.tcp.default", "localhost:-1", false},
		{"listeners.tcp.default", "localhost", false},
		{"listeners.tcp.default", "::1:5672", true},
		{"listeners.tcp.default", ":::5672", true},
		{"listeners.tcp.default", "1::2::3:5672", false},
		{"listeners.tcp.default", "", false},
		{"listeners.tcp.default", "none", true},
		{"listeners.tcp", "none", true},
		{"listeners.tcp", "5672", false},
		{"management.tcp.listener", "none", true},
		{"prometheus.tcp.listener", "none", true},
		{"management.ssl.port", "15671", true},
		{"management.ssl.port", "none", true},
		{"management.ssl.port", "127.0.0.1:15671", false},
		{"management.ssl.port", "65536", false},
		{"management.ssl.port", "", false},
		{"management.ssl.ip", "::1", true},
		{"management.ssl.ip", "localhost", false},
		{"prometheus.ssl.verify", "verify_peer", true},
		{"prometheus.ssl.verify", "", false},
		{"prometheus.authentication.enabled", "true", true},
		{"prometheus.authentication.enabled", "yes", false},
		{"ssl_options.versions", "tlsv1.3", true},
		{"ssl_options.versions", "tlsv1.3, tlsv1.2", true},
		{"ssl_options.versions", "tlsv1.1", false},
		{"ssl_options.versions", "tlsv1.2,tlsv1.1", false},
		{"ssl_options.versions", "", false},
		{"management.allowed_hosts", "mq.example, *.svc.example", true},
		{"management.allowed_hosts", "*", true},
		{"management.allowed_hosts", "http://mq.example", false},
		{"management.allowed_hosts", "mq.example:80", false},
		{"management.allowed_hosts", "mq.example,", false},
		{"log.console.level", "warning", true},
		{"log.console.level", "warn", false},
		{"log.console.formatter", "json", true},
		{"log.console.formatter", "JSON", false},
		{nodesKey + "1", "n1@host:25672", true},
		{nodesKey + "1", "n1@[::1]:25672", true},
		{nodesKey + "1", "host:25672", false},
		{nodesKey + "1", "@host:25672", false},
		{nodesKey + "1", "n1@host", true},
		{nodesKey + "1", "n1@host:", true},
		{nodesKey + "1", "n1@", false},
		{"no_such_key", "1", false},
		{"NODE_NAME", "n1", false},
		{"", "", false},
	} {
		if err := defaults().apply(tc.key, tc.value); (err == nil) != tc.good {
			t.Errorf("%s = %q: %v", tc.key, tc.value, err)
		}
	}
}

func TestAddressOfPort(t *testing.T) {
	s := defaults()
	if err := s.apply("listeners.tcp.default", "5673"); err != nil || s.amqp["default"] != ":5673" {
		t.Errorf("a port listens at %q, %v", s.amqp.addresses(), err)
	}
}

// None takes back what an earlier source has said, and what stands in for it.
func TestNoListeners(t *testing.T) {
	s := defaults()
	for _, kv := range []string{
		"listeners.tcp.default=5672", "listeners.tcp=none", "listeners.ssl.default=5671", "listeners.ssl.default=none", "management.tcp.listener=none",
		"management.ssl.port=15671", "management.ssl.port=none", "prometheus.tcp.listener=none", "prometheus.ssl.port=15691", "prometheus.ssl.ip=::1",
	} {
		key, value, _ := strings.Cut(kv, "=")
		if err := s.apply(key, value); err != nil {
			t.Fatal(err)
		}
	}
	if all := strings.Join(append(s.amqp.addresses(), s.amqps.addresses()...), "") + s.management + s.managementTLS.address() + s.metrics; all != "" {
		t.Errorf("it listens at %s", all)
	}
	if at := s.metricsTLS.address(); at != "[::1]:15691" {
		t.Errorf("metrics are at %q", at)
	}
	if err := s.apply("listeners.tcp.default", "none"); err != nil || len(s.amqp) > 0 {
		t.Errorf("%q, %v", s.amqp.addresses(), err)
	}
}

func TestLoopbackUsers(t *testing.T) {
	for value, want := range map[string][]string{"none": nil, "guest": {"guest"}, "a,b": {"a", "b"}} {
		s := defaults()
		if err := s.apply("loopback_users", value); err != nil || strings.Join(s.loopbackUsers, "|") != strings.Join(want, "|") {
			t.Errorf("loopback_users = %s: %q, %v", value, s.loopbackUsers, err)
		}
	}
}

func TestFile(t *testing.T) {
	s := defaults()
	err := s.read(strings.NewReader(`
# a comment
node_name = n2

  default_pass='a = b#c' # a remark
log.file =
`))
	if err != nil || s.nodeName != "n2" || s.password != "a = b#c" || s.logFile != "" {
		t.Errorf("%q, %q, %q, %v", s.nodeName, s.password, s.logFile, err)
	}
	for text, want := range map[string]string{
		"node_name n2":                   "line 1: not KEY = VALUE",
		"\n\nno_such = 1":                "line 3: unknown setting no_such",
		"channel_max = 0":                `line 1: setting channel_max: "0" is not a whole number from 1 to 65535`,
		"heartbeat = 1\nheartbeat = one": `line 2: setting heartbeat: "one" is not a time: a whole number from 0 to 65535 (s), or one with ms, s, m, h, d or w`,
		"a = 1\nb\nheartbeat = 1\nc = 1": "line 1: unknown setting a\nline 2: not KEY = VALUE\nline 4: unknown setting c",
	} {
		if err := defaults().read(strings.NewReader(text)); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	s := defaults()
	err := s.environment([]string{
		"PATH=/bin", "QUORATE_NODE_NAME=n2", "QUORATE_LISTENERS_TCP_DEFAULT=1234", "QUORATES=1",
		"QUORATE_DEFAULT_PASS=a=b", "QUORATE_CLUSTER_FORMATION_CLASSIC_CONFIG_NODES_1=n1@a:1",
		"QUORATE_CLUSTER_FORMATION_CLASSIC_CONFIG_NODES_2=n2@b:2",
	})
	if err != nil || s.nodeName != "n2" || s.amqp["default"] != ":1234" || s.password != "a=b" {
		t.Errorf("%q, %q, %q, %v", s.nodeName, s.amqp.addresses(), s.password, err)
	}
	if want := map[string]string{"n1": "a:1", "n2": "b:2"}; !maps.Equal(s.nodes, want) {
		t.Errorf("nodes %v, want %v", s.nodes, want)
	}
	err = defaults().environment([]string{"QUORATE_CHANNEL_MAX=x", "QUORATE_SOMETHING_ELSE=1"})
	for _, want := range []string{"QUORATE_CHANNEL_MAX", "QUORATE_SOMETHING_ELSE: no such setting"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("bad variables: %v does not name %s", err, want)
		}
	}
}

// A later source wins: file, environment, then flags in their order.
func TestOrder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "quorate.conf")
	text := "cluster_name = file\nvhost_is_not_a_key = 1\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := load(file, nil); err == nil || !strings.Contains(err.Error(), file+": line 2") {
		t.Errorf("an unknown key in the file: %v", err)
	}
	text = "cluster_name = file\ndefault_user = file\ndefault_vhost = file\n" + nodesKey + "1 = n1@file:1\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("QUORATE_DEFAULT_USER", "environment")
	t.Setenv("QUORATE_DEFAULT_VHOST", "environment")
	s, err := load(file, []string{"default_vhost=first", "default_vhost=second", nodesKey + "1=n9@flag:1", "node_name=n9"})
	if err != nil {
		t.Fatal(err)
	}
	if s.cluster != "file" || s.user != "environment" || s.vhost != "second" {
		t.Errorf("%q, %q, %q", s.cluster, s.user, s.vhost)
	}
	if want := map[string]string{"n9": "flag:1"}; !maps.Equal(s.nodes, want) {
		t.Errorf("nodes %v, want %v", s.nodes, want)
	}
	t.Setenv(fileVariable, file)
	if s, err := load("", nil); err != nil || s.cluster != "file" {
		t.Errorf("the file that the environment names: %+v, %v", s, err)
	}
	for _, sets := range [][]string{{"no_such=1"}, {"heartbeat"}, {"heartbeat=-1"}} {
		if _, err := load("", sets); err == nil {
			t.Errorf("--set %s is accepted", sets)
		}
	}
	if _, err := load(filepath.Join(t.TempDir(), "none"), nil); err == nil {
		t.Error("a file that is not there is accepted")
	}
}

func TestValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		sets []string
		want string // part of the refusal; empty: none
	}{
		{"a node alone", []string{"node_name=a"}, ""},
		{"a list", []string{nodesKey + "1=n1@a:1", nodesKey + "2=n2@b:2"}, ""},
		{"not in the list", []string{"node_name=n3", nodesKey + "1=n1@a:1"}, "node_name"},
		{"twice in the list", []string{nodesKey + "1=n1@a:1", nodesKey + "2=n1@b:2"}, "twice"},
		{"the same key again", []string{nodesKey + "1=n1@a:1", nodesKey + "1=n1@b:2"}, ""},
		{"no name", []string{"node_name="}, "must not be empty"},
		{"no cluster", []string{"cluster_name="}, "must not be empty"},
		{"a name with a space", []string{"node_name=a b"}, `node name "a b"`},
		{"a long name", []string{"node_name=" + strings.Repeat("a", 256)}, "at most 255"},
		{"a long enough name", []string{"node_name=" + strings.Repeat("a", 255)}, ""},
		{"a slash in the list", []string{nodesKey + "1=n1@a:1", nodesKey + "2=n/2@b:2"}, `"n/2"`},
		{"several mistakes", []string{"no_such=1", "heartbeat=x"}, `setting heartbeat: "x"`},
	} {
		_, err := load("", tc.sets)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

// A shell reads back what was quoted.
func TestShellQuote(t *testing.T) {
	lines := [][]string{
		{"quorate", "server"}, {"", " ", "''", `"`, `\`, "a\nb", "$HOME `id`", "*?[x]", "~", "!x", "# no", "a;b&c|d", "ü¿😀", "\t\r\x01", "-e", "x='y'"},
	}
	const alphabet = "ab \t\n'\"\\$`&|;<>()*?[]#~!{}=%^,:@+-ü"
	chance := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		var line []string
		for range 10 {
			var arg strings.Builder
			for range chance.IntN(8) {
				letters := []rune(alphabet)
				arg.WriteRune(letters[chance.IntN(len(letters))])
			}
			line = append(line, arg.String())
		}
		lines = append(lines, line)
	}
	for _, line := range lines {
		out, err := exec.Command("sh", "-c", `printf '%s\000' `+shellQuote(line)).Output()
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); strings.Join(got, "\x00") != strings.Join(line, "\x00") {
			t.Errorf("%q comes back as %q, quoted as %s", line, got, shellQuote(line))
		}
	}
}

// The nodes of a development cluster are started with files that load, and that nobody else can read. What is in
// them is in no command.
func TestDevNodes(t *testing.T) {
	dir := t.TempDir()
	nodes, err := devNodes(3, 5672, dir, []string{"default_user=u v", "default_pass=it's secret", "heartbeat=1m", "heartbeat=2m"})
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range nodes {
		if err := n.write(); err != nil {
			t.Fatal(err)
		}
		if about, err := os.Stat(n.args[3]); err != nil || about.Mode() != 0o600 {
			t.Errorf("%v, %v", about, err)
		}
		s, err := load(n.args[3], nil)
		if err != nil {
			t.Fatal(err)
		}
		if s.nodeName != devName(i+1) || s.amqp["default"] != n.amqp || s.management != n.http || len(s.nodes) != 3 || s.nodes[s.nodeName] != s.peers ||
			s.user != "u v" || s.password != "it's secret" || s.heartbeat != 2*time.Minute || len(s.notices) > 0 {
			t.Errorf("node %d runs with %+v", n.number, s)
		}
		if strings.Contains(strings.Join(n.args, " "), "secret") {
			t.Errorf("a secret is in %s", n.args)
		}
	}
	if nodes[2].amqp != "127.0.0.1:5674" || nodes[2].http != "127.0.0.1:15674" {
		t.Errorf("node 3 listens at %s and %s", nodes[2].amqp, nodes[2].http)
	}
}

// What is written as a value is read as the same.
func TestQuotedValues(t *testing.T) {
	for _, v := range []string{"", "a", " a", "a#b", "#", `"a"`, "it's", "a = b", "a\\b", "'a", "it's #1", " it's", "a\nb"} {
		text, err := quoteValue(v)
		if err != nil {
			if !strings.ContainsAny(v, "'\n") || v == "it's" {
				t.Errorf("%q: %v", v, err)
			}
			continue
		}
		s := defaults()
		if err := s.read(strings.NewReader("default_pass = " + text)); err != nil || s.password != v || len(s.notices) > 0 {
			t.Errorf("%q is written %s, and read as %q, %v, %v", v, text, s.password, s.notices, err)
		}
	}
}

// docs/configuration.md has the tables of the program. -rewrite writes them.
func TestConfigurationDocument(t *testing.T) {
	escape := strings.NewReplacer("|", `\|`).Replace
	var own, borrowed, idle, cluster strings.Builder
	own.WriteString("| setting | default | meaning |\n|---|---|---|\n")
	for _, row := range table[:len(table)-len(testRows)] {
		fallback := "`" + row.fallback + "`"
		if row.fallback == "" {
			fallback = "empty"
		}
		fmt.Fprintf(&own, "| `%s` | %s | %s |\n", row.key, escape(fallback), escape(row.about))
	}
	borrowed.WriteString("| key | what it does |\n|---|---|\n")
	idle.WriteString("| key | why |\n|---|---|\n")
	for _, row := range borrowedKeys() {
		switch {
		case row.set == nil:
			fmt.Fprintf(&idle, "| `%s` | %s |\n", row.key, escape(row.about))
		case row.about != "":
			fmt.Fprintf(&borrowed, "| `%s` | %s |\n", row.key, escape(row.about))
		}
	}
	cluster.WriteString("| setting | default | range | meaning |\n|---|---|---|---|\n")
	for _, row := range catalog.Settings() {
		fmt.Fprintf(&cluster, "| `%s` | %d | %d … %d | %s |\n", row.Name, row.Default, row.Low, row.High, escape(row.About))
	}
	for name, rows := range map[string]string{"settings": own.String(), "borrowed": borrowed.String(), "idle": idle.String(), "cluster": cluster.String()} {
		page.Hold(t, "../../docs/configuration.md", name, rows)
	}
}

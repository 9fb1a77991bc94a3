package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

var rewrite = flag.Bool("rewrite", false, "write the documentation's usage anew")

// pretendNode answers as a node does.
func pretendNode(t *testing.T) (address string, changed *[]string) {
	t.Helper()
	changed = &[]string{}
	answers := map[string]any{
		"/api/version": api.Version{ProductVersion: "1.2.3"},
		"/api/quorate/status": api.Status{Node: "n1", Cluster: "c", ProductVersion: "1.2.3", Ready: true, CatalogLeader: "n2", Queues: 3, Replicas: 2, Leaders: 1,
			Alarms: []string{"clock_skew"}, Peers: []api.Peer{{Node: "n2", Address: "h:1", Alive: true, Linked: true, RoundTripMicro: 300}}},
		"/api/quorate/clock": api.Clock{Node: "n1", NowMS: 1000, OffsetMS: -12, MaxSkewMS: 1000, Sampled: true, Agreed: true,
			Peers: []api.PeerClock{{Node: "n2", Known: true, OffsetMS: 12, RoundTripMicro: 300, AgeMS: 40}, {Node: "n3"}}},
		"/api/quorate/replicas": []api.Replica{
			{VHost: "/", Name: "a", QueueID: 65536, Group: 1, Node: "n1", Leader: true, LeaderNode: "n1", Term: 4, AppliedIndex: 9, StateHash: "ff", Ready: 3, Unacknowledged: 2, Consumers: 1},
			{VHost: "other", Name: "b", LeaderNode: "n2"},
		},
		"/api/quorate/settings": []api.Setting{{Name: "max_clock_skew", Value: 250, Default: 1000, Low: 10, High: 3600000, About: "ms"}},
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		body, _ := io.ReadAll(r.Body)
		fail := func(status int, reason string) {
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(api.Failure{Error: "x", Reason: reason})
		}
		switch {
		case user != "guest" || password != "guest":
			fail(http.StatusUnauthorized, "Login failed")
		case r.URL.Path == "/api/quorate/settings/nonsense":
			fail(http.StatusNotFound, "no cluster setting 'nonsense'")
		case r.URL.Path == "/api/health/checks/ready-to-serve-clients":
			fail(http.StatusServiceUnavailable, "the node does not serve clients yet")
		case r.Method != http.MethodGet:
			*changed = append(*changed, fmt.Sprintf("%s %s %s", r.Method, r.URL.Path, body))
			w.WriteHeader(http.StatusNoContent)
		case answers[r.URL.Path] == nil:
			fail(http.StatusNotFound, "Not Found")
		default:
			_ = json.NewEncoder(w).Encode(answers[r.URL.Path])
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), changed
}

// command runs a command line.
func command(args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	code = run(args, func(string) string { return "" }, &o, &e)
	return code, o.String(), e.String()
}

func TestVerbs(t *testing.T) {
	node, _ := pretendNode(t)
	for _, test := range []struct {
		args string
		want string
	}{
		{"version", "1.2.3\n"},
		{"--formatter json version", "{\n  \"product_version\": \"1.2.3\"\n}\n"},
		{"status", "Status of node n1 ...\ncluster_name\tc\nproduct_version\t1.2.3\nready\ttrue\nalarms\tclock_skew\ncatalog_leader\tn2\nqueues\t3\nreplicas\t2\nleaders\t1\n" +
			"Other nodes:\nnode\taddress\talive\tlinked\tround_trip_us\tbacklog_bytes\nn2\th:1\ttrue\ttrue\t300\t0\n"},
		{"clock_status -q", "now_ms\t1000\noffset_ms\t-12\nmax_skew_ms\t1000\nskewed\tfalse\nsampled\ttrue\nagreed\ttrue\njumps_refused\t0\n" +
			"node\tknown\toffset_ms\tround_trip_us\tage_ms\nn2\ttrue\t12\t300\t40\nn3\tfalse\t0\t0\t0\n"},
		{"list_queues", "Listing queues for vhost / ...\nname\tmessages\na\t5\n"},
		{"list_queues -s -p other name leader", "b\tn2\n"},
		{"list_queues --formatter json name messages_ready", "[\n  {\n    \"messages_ready\": 3,\n    \"name\": \"a\"\n  }\n]\n"},
		{"list_queues --vhost=none --formatter=json", "[]\n"},
		{"list_replicas -q vhost name term applied_index state_hash", "vhost\tname\tterm\tapplied_index\tstate_hash\n/\ta\t4\t9\tff\nother\tb\t0\t0\t\n"},
		{"list_cluster_settings -s", "max_clock_skew\t250\t1000\t10\t3600000\tms\n"},
	} {
		for _, form := range []string{node, "http://" + node, "http://" + node + "/"} {
			code, out, errOut := command(append([]string{"-n", form}, strings.Fields(test.args)...)...)
			if code != exitOK || out != test.want || errOut != "" {
				t.Errorf("%s: exit %d, %s\n%q\nwant\n%q", test.args, code, errOut, out, test.want)
			}
		}
	}
}

func TestSettings(t *testing.T) {
	node, changed := pretendNode(t)
	for _, args := range [][]string{{"set_cluster_setting", "max_clock_skew", "250"}, {"clear_cluster_setting", "max_clock_skew"}} {
		if code, out, errOut := command(append(args, "--node", node)...); code != exitOK || out != "" {
			t.Errorf("%v: exit %d, %s", args, code, errOut)
		}
	}
	want := `[PUT /api/quorate/settings/max_clock_skew {"value":250} DELETE /api/quorate/settings/max_clock_skew ]`
	if got := fmt.Sprint(*changed); got != want {
		t.Errorf("changed %s, want %s", got, want)
	}
}

func TestExitCodes(t *testing.T) {
	node, changed := pretendNode(t)
	for _, test := range []struct {
		args string
		code int
		text string
	}{
		{"", exitOK, ""},
		{"help", exitOK, ""},
		{"--help", exitOK, ""},
		{"nonsense", exitUsage, `Error: unknown verb "nonsense"; see quoratectl help`},
		{"version now", exitUsage, "Error: version takes no arguments"},
		{"set_cluster_setting x", exitUsage, "Error: set_cluster_setting takes NAME VALUE"},
		{"set_cluster_setting x 1.5", exitUsage, `Error: VALUE is a whole number, not "1.5"`},
		{"list_queues colour", exitUsage, `Error: no column "colour"`},
		{"--formatter xml version", exitUsage, `Error: --formatter is table or json, not "xml"`},
		{"-t 0 version", exitUsage, "Error: --timeout is a number of seconds from 1"},
		{"-x version", exitUsage, "Error: flag provided but not defined: -x"},
		{"-n ftp://x version", exitUsage, `Error: --node is an http or https URL, or HOST:PORT, not "ftp://x"`},
		{"-n 127.0.0.1:1 version", exitUnavailable, ""},
		{"--password wrong version", exitDenied, "Error: Login failed"},
		{"set_cluster_setting nonsense 1", exitData, "Error: no cluster setting 'nonsense'"},
		{"ping", exitTemporary, "Error: the node does not serve clients yet"},
	} {
		code, out, errOut := command(append([]string{"-n", node}, strings.Fields(test.args)...)...)
		if code != test.code || test.text != "" && strings.TrimSpace(errOut) != test.text || test.code == exitOK && out != usage() {
			t.Errorf("%q: exit %d, %s, want %d, %s", test.args, code, errOut, test.code, test.text)
		}
	}
	if len(*changed) != 0 {
		t.Errorf("changed %v", *changed)
	}
}

func TestEnvironment(t *testing.T) {
	node, _ := pretendNode(t)
	environ := map[string]string{"QUORATECTL_NODE": node, "QUORATECTL_USERNAME": "guest", "QUORATECTL_PASSWORD": "wrong"}
	var o, e bytes.Buffer
	if code := run([]string{"version"}, func(k string) string { return environ[k] }, &o, &e); code != exitDenied {
		t.Errorf("exit %d: %s", code, &e)
	}
	if code := run([]string{"version", "--password", "guest"}, func(k string) string { return environ[k] }, &o, &e); code != exitOK {
		t.Errorf("exit %d: %s", code, &e)
	}
}

// TestDocument holds the documentation against the usage.
func TestDocument(t *testing.T) {
	const path = "../../docs/quoratectl.md"
	const begin, end = "<!-- usage -->\n```\n", "```\n<!-- end of usage -->\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(page), begin)
	old, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s: no place for the usage", path)
	}
	switch {
	case old == usage():
	case *rewrite:
		if err := os.WriteFile(path, []byte(head+begin+usage()+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s: the usage is not that of the program; run go test ./cmd/quoratectl -rewrite", path)
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

var _ = flag.Bool("rewrite", false, "write the documentation's usage anew")

// pretendNode answers as a node does.
func pretendNode(t *testing.T) (address string, changed *[]string) {
	t.Helper()
	changed = &[]string{}
	leader := "n2"
	answers := map[string]any{
		"/api/version": api.Version{ProductVersion: "1.2.3"},
		"/api/quorate/status": api.Status{Node: "n1", Cluster: "c", ProductVersion: "1.2.3", FSMVersion: 2, Ready: true, UptimeMS: 3_605_400, DataDir: "/d", Listeners: []api.Listener{{Protocol: "amqp", Address: "h:1", Speaks: []string{"AMQP 0-9-1", "AMQP 1-0"}}, {Protocol: "http", Address: "h:2"}}, CatalogLeader: "n2", RoutesFresh: true, Queues: 3, Replicas: 2, Leaders: 1, Held: api.NewHeldMemory(5, 6, 7, 8),
			Quarantined:       []api.Quarantine{{VHost: "/", Name: "q", Group: 7, Doing: "perform effects", Panic: "oh", Term: 3, Index: 9}},
			Unproven:          []api.Unproven{{VHost: "/", Name: "r", Group: 8, Reason: "the log store was missing or empty"}},
			Closed:            []api.Closed{{VHost: "/", Name: "s", Group: 9, ForMS: 800, Attempts: 2, Reason: "too many open files"}},
			ResignationsTotal: 3,
			StalledQueues:     []api.Standstill{{VHost: "/", Name: "q", Reason: "tick", ForMS: 2500, Keeps: "alone", Last: 9, Commit: 8, Applied: 7}},
			Resignations:      []api.Resignation{{Standstill: api.Standstill{VHost: "/", Name: "q", Reason: "entries", ForMS: 2000}, AtMS: 77}},
			Alarms:            []string{"clock_skew"}, Peers: []api.Peer{{Node: "n2", Address: "h:1", Alive: true, Linked: true, RoundTripMicro: 300}}},
		"/api/quorate/catalog/verify": api.Verification{Verdict: "equal", Index: 7, Replicas: []api.VerifiedReplica{{Node: "n1", StateHash: "ff"}, {Node: "n2", StateHash: "ff"}}},
		"/api/quorate/clock": api.Clock{Node: "n1", NowMS: 1000, OffsetMS: -12, MaxSkewMS: 1000, Sampled: true, Agreed: true,
			Peers: []api.PeerClock{{Node: "n2", Known: true, OffsetMS: 12, RoundTripMicro: 300, AgeMS: 40}, {Node: "n3"}}},
		"/api/quorate/replicas": []api.Replica{
			{VHost: "/", Name: "a", QueueID: 65536, Group: 1, Node: "n1", Leader: true, LeaderNode: "n1", Term: 4, AppliedIndex: 9, StateHash: "ff", Ready: 3, Unacknowledged: 2, Consumers: 1},
			{VHost: "other", Name: "b", LeaderNode: "n2"},
		},
		"/api/queues/%2F": []api.Queue{
			{Name: "a", State: "running", Leader: &leader, Type: "quorum", Policy: "p", Members: []string{"n1", "n2"}, Arguments: map[string]any{"x-expires": 5, "x-overflow": "drop-head"},
				QueueStats: &api.QueueStats{Messages: 5, Ready: 3, Unacknowledged: 2, Consumers: 1}},
			{Name: "lost", State: "minority"},
		},
		"/api/queues":                     []api.Queue{{VHost: "/", Name: "a", Type: "quorum", Durable: true}, {VHost: "other", Name: "b", Type: "classic", Durable: true}, {VHost: "/", Name: "b", Type: "classic"}},
		"/api/queues/other":               []api.Queue{{Name: "b", Leader: &leader, QueueStats: &api.QueueStats{}}},
		"/api/queues/none":                []api.Queue{},
		"/api/queues/%2F/a/groups":        api.GroupPage{Items: []api.Group{{ID: "g", Held: true, ConsumerTag: "t", Session: "n1/7/3", LockedUntil: 50, Remaining: 40, Messages: 2, Unacknowledged: 1, OldestAt: 9, StateBytes: 4, StateSetAt: 5}}},
		"/api/quorate/timeouts/%2F":       []api.ConsumerTimeout{{At: 70, Queue: api.QueueName{Name: "a"}, Tag: "t", Node: "n1", Leader: "n2", Messages: 2, HeldMS: 900, Timeout: 800, Action: "cancel"}},
		"/api/drift/%2F":                  []api.Drift{{Kind: "queue", Name: "a", Argument: "x-max-length", Declared: json.RawMessage("10"), Received: json.RawMessage("null"), User: "u", Client: "worker", Times: 3, LastAt: 70}},
		"/api/quorate/time":               api.Time{Queues: 3, Unknown: 1, AtLeast: true, Next: api.Next{Minute: api.TimeCounts{Expire: 1, TimeOut: 4}, Hour: api.TimeCounts{Expire: 2, DeadLetter: 1, TimeOut: 4}, Day: api.TimeCounts{Expire: 3, DeadLetter: 2, Fire: 5, TimeOut: 4, Unlock: 6, Retry: 7, Return: 8, Delete: 9}}},
		"/api/quorate/time/queues/%2F":    []api.QueueTime{{Name: "a", NextAt: 70, Next: api.Next{Minute: api.TimeCounts{Fire: 1}, Hour: api.TimeCounts{Fire: 2, Retry: 4}, Day: api.TimeCounts{Fire: 3, Retry: 4}}}},
		"/api/exchanges/%2F":              []api.Exchange{{Type: "direct"}, {Name: "x", Type: "topic"}},
		"/api/bindings/%2F":               []api.Binding{{Source: "x", Destination: "a", DestinationType: "queue", RoutingKey: "k", Arguments: map[string]any{}}},
		"/api/vhosts":                     []api.VHost{{Name: "/", Description: "d", Tags: []string{"t"}, ClusterState: map[string]string{"n1": "running"}}},
		"/api/policies/%2F":               []api.Policy{{VHost: "/", Name: "p", Pattern: "^a", ApplyTo: "queues", Definition: map[string]any{"message-ttl": 5}, Priority: 1}},
		"/api/operator-policies/a%2Fb":    []api.Policy{},
		"/api/users":                      []api.User{{Name: "guest", Tags: []string{"administrator"}}, {Name: "u", Tags: []string{}}},
		"/api/users/u":                    api.User{Name: "u", PasswordHash: "aGFzaA==", HashingAlgorithm: "pbkdf2_sha256", Tags: []string{"monitoring"}},
		"/api/users/u/permissions":        []api.Permission{{User: "u", VHost: "v", Configure: "^c", Write: "^w", Read: "^r"}},
		"/api/vhosts/v/permissions":       []api.Permission{{User: "u", VHost: "v", Configure: "^c", Write: "^w", Read: "^r"}},
		"/api/vhost-limits":               []api.VHostLimits{{VHost: "v", Value: map[string]int64{"max-queues": 5}}},
		"/api/user-limits/u":              []api.UserLimits{{User: "u", Value: map[string]int64{"max-channels": -1}}},
		"/api/users/u/topic-permissions":  []api.TopicPermission{{User: "u", VHost: "v", Exchange: "x", Write: "^w", Read: "^r"}},
		"/api/vhosts/v/topic-permissions": []api.TopicPermission{{User: "u", VHost: "v", Exchange: "x", Write: "^w", Read: "^r"}},
		"/api/connections": []api.Connection{{Name: "h:1 -> h:2", User: "u", PeerHost: "h", PeerPort: 1, State: "running", Node: "n2", PendingBytes: 6, Held: api.NewHeldMemory(3, 4, 5, 0), Protocol: "AMQP 0-9-1"},
			{Name: "h:3 -> h:2", User: "v", PeerHost: "h", PeerPort: 3, State: "running", Node: "n2", Protocol: api.AMQP10, ContainerID: "me"}, {Name: "closed", User: "w", PeerHost: "h", PeerPort: 4, State: "closing", Protocol: api.AMQP10}},
		"/api/connections/h:3%20-%3E%20h:2/sessions": []api.Session{{Channel: 7, IncomingWindow: 400, RemoteIncomingWindow: 9, Unsettled: 3, OutgoingLinks: []api.OutgoingLink{{Queue: "q"}, {Queue: "r"}}}, {Channel: 8}},
		"/api/nodes":            []api.Node{{Name: "n1", Running: true, MemoryUsed: 20, MemoryLimit: 30, DiskFree: 40, DiskFreeLimit: 10, Held: api.NewHeldMemory(5, 6, 7, 8)}, {Name: "n2"}},
		"/api/vhosts/there":     api.VHost{Name: "there", Description: "d"},
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
		case len(body) > 0 && r.Header.Get("Content-Type") != "application/json":
			fail(http.StatusUnsupportedMediaType, "a body must have the header Content-Type: application/json")
		case r.URL.EscapedPath() == "/api/quorate/settings/nonsense":
			fail(http.StatusNotFound, "no cluster setting 'nonsense'")
		case r.URL.EscapedPath() == "/api/health/checks/ready-to-serve-clients":
			fail(http.StatusServiceUnavailable, "the node does not serve clients yet")
		case strings.HasSuffix(r.URL.EscapedPath(), "/publish"):
			*changed = append(*changed, fmt.Sprintf("%s %s %s", r.Method, r.URL.RequestURI(), body))
			_ = json.NewEncoder(w).Encode(api.Published{Routed: !strings.Contains(string(body), "nowhere")})
		case strings.HasSuffix(r.URL.EscapedPath(), "/a/get"):
			*changed = append(*changed, fmt.Sprintf("%s %s %s", r.Method, r.URL.RequestURI(), body))
			_ = json.NewEncoder(w).Encode([]api.Message{{RoutingKey: "a", Payload: "one\x1b[31m", PayloadEncoding: "string", Properties: map[string]any{"message_id": "5"}}})
		case strings.HasSuffix(r.URL.EscapedPath(), "/shrink"):
			_ = json.NewEncoder(w).Encode([]api.MemberChange{{VHost: "/", Name: "a", Result: "ok"}, {VHost: "/", Name: "b", Result: "error: timeout"}})
		case r.Method != http.MethodGet:
			*changed = append(*changed, fmt.Sprintf("%s %s %s%s", r.Method, r.URL.RequestURI(), body, r.Header.Get("X-Reason")))
			w.WriteHeader(http.StatusNoContent)
		case answers[r.URL.EscapedPath()] == nil:
			fail(http.StatusNotFound, "Not Found")
		default:
			_ = json.NewEncoder(w).Encode(answers[r.URL.EscapedPath()])
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), changed
}

// command runs a command line.
func command(args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	p := program{name: "quoratectl", getenv: func(string) string { return "" }, in: strings.NewReader("from stdin\r\nmore\n"), out: &o, errOut: &e, progressEvery: time.Minute}
	code = p.run(args)
	return code, o.String(), e.String()
}

func TestVerbs(t *testing.T) {
	node, _ := pretendNode(t)
	for _, test := range []struct {
		args string
		want string
	}{
		{"version", "1.2.3\n"},
		{"-q list_groups --queue a id held messages", "id\theld\tmessages\ng\ttrue\t2\n"},
		{"-q -s list_groups --queue a", "g\ttrue\tt\tn1/7/3\t50\t40\t2\t1\t9\t4\t5\t0\n"},
		{"--formatter json version", "{\n  \"product_version\": \"1.2.3\"\n}\n"},
		{"status", "Status of node n1 ...\ncluster_name\tc\nproduct_version\t1.2.3\nfsm_version\t2\nready\ttrue\nnot_ready\t\nuptime\t1h0m5s\ndata_dir\t/d\nlisteners\tamqp=h:1 (AMQP 0-9-1, AMQP 1-0) http=h:2\nalarms\tclock_skew\nheld_memory\t26 (channels 5, publishes 6, answers 7, http 8)\ncatalog_leader\tn2\nroutes_fresh\ttrue\nqueues\t3\nreplicas\t2\nleaders\t1\nquarantined\t1\nresignations_total\t3\nunproven\t1\nclosed\t1\n" +
			"Queues that are quarantined on the node:\nvhost\tname\tgroup\tdoing\tpanic\tterm\tindex\tstopped\n/\tq\t7\tperform effects\toh\t3\t9\tfalse\n" +
			"Replicas on the node that do not vote until they have been brought up to date:\nvhost\tname\tgroup\tstuck\treason\n/\tr\t8\tfalse\tthe log store was missing or empty\n" +
			"Replicas on the node that could not be opened:\nvhost\tname\tgroup\tattempts\treason\n/\ts\t9\t2\ttoo many open files\n" +
			"Queues led by the node whose work makes no progress:\nvhost\tname\treason\tfor_ms\tkeeps\tlast\tcommit\tapplied\n/\tq\ttick\t2500\talone\t9\t8\t7\n" +
			"Leaderships given up last:\nvhost\tname\treason\tfor_ms\tat_ms\n/\tq\tentries\t2000\t77\n" +
			"Other nodes:\nnode\taddress\talive\tlinked\tround_trip_us\tbacklog_bytes\nn2\th:1\ttrue\ttrue\t300\t0\n"},
		{"clock_status -q", "now_ms\t1000\noffset_ms\t-12\nmax_skew_ms\t1000\nskewed\tfalse\nsampled\ttrue\nagreed\ttrue\njumps_refused\t0\n" +
			"node\tknown\toffset_ms\tround_trip_us\tage_ms\nn2\ttrue\t12\t300\t40\nn3\tfalse\t0\t0\t0\n"},
		{"list_queues", "Listing queues for vhost / ...\nname\tmessages\na\t5\nlost\t\n"},
		{"list_queues -s -p other name leader", "b\tn2\n"},
		{"list_queues -s name messages state leader policy members arguments", "a\t5\trunning\tn2\tp\t[\"n1\",\"n2\"]\t{\"x-expires\":5,\"x-overflow\":\"drop-head\"}\nlost\t\tminority\t\t\tnull\tnull\n"},
		{"consumer_timeouts", "Listing consumer timeouts in vhost / ...\nat\tqueue_name\tconsumer_tag\tmessages\theld_ms\ttimeout_ms\taction\n70\ta\tt\t2\t900\t800\tcancel\n"},
		{"consumer_timeouts -s node leader", "n1\tn2\n"},
		{"drift", "Listing drifted declares in vhost / ...\nkind\tname\targument\tdeclared\treceived\tadopted\tuser\tclient\ttimes\tlast_at\nqueue\ta\tx-max-length\t10\tnull\tfalse\tu\tworker\t3\t70\n"},
		{"drift -s times adoptions", "3\t0\n"},
		{"time", "What comes next in 3 queues, not counting 1 without a leader that answers ...\nevent\tminute\thour\tday\tat_least\nexpire\t1\t2\t3\ttrue\ndead_letter\t0\t1\t2\ttrue\nfire\t0\t0\t5\ttrue\ntime_out\t4\t4\t4\ttrue\nunlock\t0\t0\t6\ttrue\nretry\t0\t0\t7\ttrue\nreturn\t0\t0\t8\ttrue\ndelete\t0\t0\t9\ttrue\n"},
		{"time_of_queues", "Listing what comes next in queues of vhost / ...\nname\tnext_at\texpire_hour\tdead_letter_hour\tfire_hour\ttime_out_hour\tunlock_hour\tretry_hour\treturn_hour\tdelete_hour\na\t70\t0\t0\t2\t0\t0\t4\t0\t0\n"},
		{"time_of_queues -s name fire_minute fire_day at_least", "a\t1\t3\tfalse\n"},
		{"list_exchanges -s", "\tdirect\nx\ttopic\n"},
		{"list_bindings -q", "source_name\tsource_kind\tdestination_name\tdestination_kind\trouting_key\targuments\nx\texchange\ta\tqueue\tk\t{}\n"},
		{"list_vhosts -s name description tags cluster_state", "/\td\t[\"t\"]\t{\"n1\":\"running\"}\n"},
		{"list_policies", "Listing policies for vhost / ...\nvhost\tname\tpattern\tapply-to\tdefinition\tpriority\n/\tp\t^a\tqueues\t{\"message-ttl\":5}\t1\n"},
		{"list_operator_policies -p a/b", "Listing operator policies for vhost a/b ...\nvhost\tname\tpattern\tapply-to\tdefinition\tpriority\n"},
		{"list_users", "Listing users ...\nuser\ttags\nguest\t[\"administrator\"]\nu\t[]\n"},
		{"list_permissions -p v", "Listing permissions for vhost v ...\nuser\tconfigure\twrite\tread\nu\t^c\t^w\t^r\n"},
		{"list_user_permissions u", "Listing permissions for user u ...\nvhost\tconfigure\twrite\tread\nv\t^c\t^w\t^r\n"},
		{"list_vhost_limits", "Listing limits of vhosts ...\nvhost\tlimits\nv\t{\"max-queues\":5}\n"},
		{"list_user_limits u", "Listing limits of users ...\nuser\tlimits\nu\t{\"max-channels\":-1}\n"},
		{"list_topic_permissions -p v", "Listing topic permissions for vhost v ...\nuser\texchange\twrite\tread\nu\tx\t^w\t^r\n"},
		{"list_user_topic_permissions -s u", "v\tx\t^w\t^r\n"},
		{"list_queues --formatter json name messages_ready", "[\n  {\n    \"messages_ready\": 3,\n    \"name\": \"a\"\n  },\n  {\n    \"messages_ready\": null,\n    \"name\": \"lost\"\n  }\n]\n"},
		{"list_queues --vhost=none --formatter=json", "[]\n"},
		{"list_replicas -q vhost name term applied_index state_hash", "vhost\tname\tterm\tapplied_index\tstate_hash\n/\ta\t4\t9\tff\nother\tb\t0\t0\t\n"},
		{"list_connections", "Listing connections ...\nuser\tpeer_host\tpeer_port\tstate\nu\th\t1\trunning\nv\th\t3\trunning\nw\th\t4\tclosing\n"},
		{"list_amqp10_sessions", "Listing AMQP 1.0 sessions ...\nconnection\tuser\tchannel_number\tincoming_window\tremote_incoming_window\toutgoing_unsettled_deliveries\tincoming_link_count\toutgoing_link_count\n" +
			"h:3 -> h:2\tv\t7\t400\t9\t3\t0\t2\nh:3 -> h:2\tv\t8\t0\t0\t0\t0\t0\n"},
		{"list_amqp10_sessions -s container_id node channel_number", "me\tn2\t7\nme\tn2\t8\n"},
		{"list_connections -s name protocol container_id", "h:1 -> h:2\tAMQP 0-9-1\t\nh:3 -> h:2\tAMQP 1-0\tme\nclosed\tAMQP 1-0\t\n"},
		{"verify_replicas -s", "\tequal\tn1\t7\tff\t\n\tequal\tn2\t7\tff\t\n"},
		{"list_connections -s name node", "h:1 -> h:2\tn2\nh:3 -> h:2\tn2\nclosed\t\n"},
		{"list_connections -s held_memory held_channels held_publishes held_answers send_pend", "12\t3\t4\t5\t6\n0\t0\t0\t0\t0\n0\t0\t0\t0\t0\n"},
		{"list_nodes -s", "n1\ttrue\tfalse\t20\t30\tfalse\t26\t40\t10\tfalse\nn2\tfalse\tfalse\t0\t0\tfalse\t0\t0\t0\tfalse\n"},
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

// TestQueuesAskLittle: a list of queues asks for the columns that it shows, and one of those without a leader for no
// others.
func TestQueuesAskLittle(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query().Get("columns")+r.URL.Query().Get("filter"))
		_, _ = io.WriteString(w, "[]")
	}))
	defer s.Close()
	for _, verb := range [][]string{{"list_queues"}, {"list_queues", "name", "consumers"}, {"list_unresponsive_queues"}} {
		if code, _, errOut := command(append([]string{"--node", s.URL}, verb...)...); code != exitOK {
			t.Error(errOut)
		}
	}
	if got := fmt.Sprint(asked); got != "[name,messages name,consumers leaderless]" {
		t.Error(got)
	}
}

// TestChanges runs the verbs that change something, and looks at what they send.
func TestChanges(t *testing.T) {
	node, changed := pretendNode(t)
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"set_cluster_setting", "max_clock_skew", "250"}, `PUT /api/quorate/settings/max_clock_skew {"value":250}`},
		{[]string{"set_vm_memory_high_watermark", "0.4"}, `PUT /api/quorate/limits/vm_memory_high_watermark {"relative":0.4}`},
		{[]string{"set_vm_memory_high_watermark", "absolute", "2GiB"}, `PUT /api/quorate/limits/vm_memory_high_watermark {"absolute":"2GiB"}`},
		{[]string{"set_disk_free_limit", "5GB"}, `PUT /api/quorate/limits/disk_free_limit {"absolute":"5GB"}`},
		{[]string{"set_disk_free_limit", "mem_relative", "1.5"}, `PUT /api/quorate/limits/disk_free_limit {"relative":1.5}`},
		{[]string{"close_connection", "h:1 -> h:2", "for a test"}, "DELETE /api/connections/h:1%20-%3E%20h:2 for a test"},
		{[]string{"close_all_user_connections", "u", "for a test"}, "DELETE /api/connections/username/u for a test"},
		{[]string{"release_quarantine", "-p", "a/b", "q"}, "DELETE /api/quorate/queues/a%2Fb/q/quarantine "},
		{[]string{"force_checkpoint", "--queue-pattern", "^b$"}, `POST /api/queues/other/b/actions {"action":"snapshot"}`},
		{[]string{"clear_cluster_setting", "max_clock_skew"}, "DELETE /api/quorate/settings/max_clock_skew "},
		{[]string{"set_policy", "TTL", ".*", `{"message-ttl":60000}`, "--apply-to", "queues"},
			`PUT /api/policies/%2F/TTL {"apply-to":"queues","definition":{"message-ttl":60000},"pattern":".*","priority":0}`},
		{[]string{"set_policy", "--vhost", "a/b", "--priority", "-7", "p/q", "^x", `{"expires": 1800000}`},
			`PUT /api/policies/a%2Fb/p%2Fq {"apply-to":"all","definition":{"expires":1800000},"pattern":"^x","priority":-7}`},
		{[]string{"set_operator_policy", "--", "p", "-x", `{"max-length":1}`},
			`PUT /api/operator-policies/%2F/p {"apply-to":"all","definition":{"max-length":1},"pattern":"-x","priority":0}`},
		{[]string{"clear_policy", "-p", "v", "p"}, "DELETE /api/policies/v/p "},
		{[]string{"clear_operator_policy", "p"}, "DELETE /api/operator-policies/%2F/p "},
		{[]string{"add_user", "new", "secret"}, `PUT /api/users/new {"password":"secret","tags":[]}`},
		{[]string{"add_user", "new"}, `PUT /api/users/new {"password":"from stdin","tags":[]}`},
		{[]string{"change_password", "u", "other"}, `PUT /api/users/u {"password":"other","tags":["monitoring"]}`},
		{[]string{"set_user_tags", "u", "policymaker", "management"},
			`PUT /api/users/u {"hashing_algorithm":"pbkdf2_sha256","password_hash":"aGFzaA==","tags":["policymaker","management"]}`},
		{[]string{"set_user_tags", "u"}, `PUT /api/users/u {"hashing_algorithm":"pbkdf2_sha256","password_hash":"aGFzaA==","tags":[]}`},
		{[]string{"delete_user", "u"}, "DELETE /api/users/u "},
		{[]string{"set_permissions", "-p", "v", "u", "^c", "", ".*"}, `PUT /api/permissions/v/u {"configure":"^c","read":".*","write":""}`},
		{[]string{"clear_permissions", "u"}, "DELETE /api/permissions/%2F/u "},
		{[]string{"set_topic_permissions", "-p", "v", "u", "x", "^w", ""}, `PUT /api/topic-permissions/v/u {"exchange":"x","read":"","write":"^w"}`},
		{[]string{"set_vhost_limits", "-p", "v", `{"max-queues": 5}`}, `PUT /api/vhost-limits/v/max-queues {"value":5}`},
		{[]string{"set_user_limits", "u", `{"max-channels": "x"}`}, `PUT /api/user-limits/u/max-channels {"value":"x"}`},
		{[]string{"clear_user_limits", "u", "max-channels"}, "DELETE /api/user-limits/u/max-channels "},
		{[]string{"clear_topic_permissions", "u", "a/b"}, "DELETE /api/topic-permissions/%2F/u/a%2Fb "},
		{[]string{"clear_topic_permissions", "-p", "v", "u"}, "DELETE /api/topic-permissions/v/u "},
		{[]string{"add_vhost", "a/b", "--description", "d", "--tags", "x,y"}, `PUT /api/vhosts/a%2Fb {"description":"d","tags":"x,y"}`},
		{[]string{"forget_cluster_node", "n2"}, "DELETE /api/nodes/n2 "},
		{[]string{"set_cluster_name", "east"}, `PUT /api/cluster-name {"name":"east"}`},
		{[]string{"set_global_parameter", "a/b", `{"x": 1}`}, `PUT /api/global-parameters/a%2Fb {"value":{"x":1}}`},
		{[]string{"clear_global_parameter", "a/b"}, "DELETE /api/global-parameters/a%2Fb "},
		{[]string{"enable_vhost_deletion_protection", "a/b"}, "POST /api/vhosts/a%2Fb/deletion/protection "},
		{[]string{"disable_vhost_deletion_protection", "a/b"}, "DELETE /api/vhosts/a%2Fb/deletion/protection "},
		{[]string{"delete_queue", "q", "--if-empty"}, "DELETE /api/queues/%2F/q?if-empty=true "},
		{[]string{"update_vhost_metadata", "there", "--tags", "x"}, `PUT /api/vhosts/there {"tags":"x"}`},
		{[]string{"update_vhost_metadata", "there", "--redeclare", "adopt"}, `PUT /api/vhosts/there {"redeclare":"adopt"}`},
		{[]string{"clear_password", "u"}, `PUT /api/users/u {"password_hash":"","tags":["monitoring"]}`},
		{[]string{"delete_vhost", "a/b"}, "DELETE /api/vhosts/a%2Fb "},
	} {
		*changed = nil
		code, out, errOut := command(append([]string{"--node", node}, test.args...)...)
		if code != exitOK || out != "" || len(*changed) != 1 || (*changed)[0] != test.want {
			t.Errorf("%q: exit %d, %s%s\nsends %q\nwant  %q", test.args, code, out, errOut, *changed, test.want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	node, changed := pretendNode(t)
	for _, test := range []struct {
		args string
		code int
		text string
	}{
		{"nonsense", exitUsage, `Error: unknown verb "nonsense"; see quoratectl help`},
		{"version now", exitUsage, "Error: version takes no arguments"},
		{"update_vhost_metadata there --redeclare lax", exitUsage, `Error: --redeclare must be strict, relaxed or adopt, not "lax"`},
		{"set_cluster_setting x", exitUsage, "Error: set_cluster_setting takes NAME VALUE"},
		{"set_cluster_setting x 1.5", exitUsage, `Error: VALUE must be a whole number, not "1.5"`},
		{"set_policy p x", exitUsage, "Error: set_policy takes NAME PATTERN DEFINITION"},
		{"set_policy p x {} y", exitUsage, "Error: set_policy takes NAME PATTERN DEFINITION"},
		{"set_policy p x {", exitData, "Error: DEFINITION is not JSON"},
		{"set_policy p x {} --priority high", exitUsage, `Error: --priority must be a whole number, not "high"`},
		{"version --priority 1", exitUsage, "Error: unknown flag: --priority"},
		{"set_policy p x {} --tags 1", exitUsage, "Error: unknown flag: --tags"},
		{"add_user u x", exitFailed, `Error: user "u" already exists`},
		{"change_password nobody x", exitNoUser, `Error: no user "nobody"`},
		{"set_user_tags nobody x", exitNoUser, `Error: no user "nobody"`},
		{"list_queues colour", exitUsage, `Error: no column "colour"`},
		{"--formatter xml version", exitUsage, `Error: --formatter must be table, json, csv or pretty_table, not "xml"`},
		{"-t 0 version", exitUsage, "Error: --timeout must be a number of seconds from 1"},
		{"-x version", exitUsage, "Error: unknown shorthand flag: 'x' in -x"},
		{"-n http://guest:guest@x version", exitUsage, "Error: --node must not contain a user or a password: use --username, --password, QUORATECTL_USERNAME and QUORATECTL_PASSWORD"},
		{"-n guest@x version", exitUsage, "Error: --node must not contain a user or a password: use --username, --password, QUORATECTL_USERNAME and QUORATECTL_PASSWORD"},
		{"-n http://x --ca-file roots version", exitUsage, `Error: --ca-file and --cert-file require https, but --node is "http://x"`},
		{"-n x --ca-file /none version", exitUsage, "Error: --ca-file: open /none: no such file or directory"},
		{"-n https://x --cert-file /none version", exitUsage, "Error: --cert-file and --key-file: open /none: no such file or directory"},
		{"-n ftp://x version", exitUsage, `Error: --node must be an http or https URL, or HOST:PORT, not "ftp://x"`},
		{"-n 127.0.0.1:1 version", exitUnavailable, ""},
		{"--password wrong version", exitDenied, `Error: user "guest" does not exist, has another password, or has no tag that allows the HTTP API: set -u and --password, or QUORATECTL_USERNAME and QUORATECTL_PASSWORD`},
		{"set_cluster_setting nonsense 1", exitData, "Error: no cluster setting 'nonsense'"},
		{"quorum_status a/b", exitData, `Error: no queue "a/b" in vhost "/"`},
		{"list_queues -p nope", exitData, `Error: no vhost "nope"`},
		{"list_user_permissions nope", exitData, `Error: no user "nope"`},
		{"explain --queue nope --message 1", exitData, `Error: no queue "nope" in vhost "/"`},
		{"forget_cluster_node nope", exitData, `Error: no node "nope"`},
		{"close_all_user_connections nope x", exitNoUser, `Error: no user "nope"`},
		{"add_vhost there", exitFailed, `Error: vhost "there" already exists`},
		{"shrink n2", exitFailed, "Error: 1 of 2 queues could not be changed"},
		{"delete_user nobody", exitNoUser, `Error: no user "nobody"`},
		{"list_queue", exitUsage, `Error: unknown verb "list_queue"; similar: list_queues`},
		{"token", exitUsage, `Error: token is followed by create, list or revoke`},
		{"token make", exitUsage, `Error: token is followed by create, list or revoke, not "make"`},
		{"token revoke", exitUsage, "Error: token revoke takes ID"},
		{"list_queues --watch 0", exitUsage, `Error: --watch must be a number of seconds, up to 86400, not "0"`},
		{"ping", exitTemporary, "Error: the node does not serve clients yet"},
	} {
		code, _, errOut := command(append([]string{"-n", node}, strings.Fields(test.args)...)...)
		if code != test.code || test.text != "" && strings.TrimSpace(errOut) != test.text {
			t.Errorf("%q: exit %d, %s, want %d, %s", test.args, code, errOut, test.code, test.text)
		}
	}
	if len(*changed) != 0 {
		t.Errorf("changed %v", *changed)
	}
}

// Help for a verb is about that verb.
func TestHelpOfVerb(t *testing.T) {
	for _, args := range []string{"help set_policy", "set_policy --help", "--node x set_policy -h"} {
		code, out, _ := command(strings.Fields(args)...)
		if code != exitOK || !strings.Contains(out, "set_policy NAME PATTERN DEFINITION") || !strings.Contains(out, "--apply-to WHAT") || !strings.Contains(out, "--formatter FORMAT") || strings.Contains(out, "list_queues") {
			t.Errorf("%s: exit %d, %s", args, code, out)
		}
	}
	if code, out, _ := command("--version"); code != exitOK || out != api.ProductVersion+"\n" {
		t.Errorf("--version: exit %d, %q", code, out)
	}
}

// By a name of RabbitMQ's, the program shows that one's verbs in its help, performs all, takes names of
// nodes, and says of verbs that mean nothing here what to use.
func TestBorrowedNames(t *testing.T) {
	node, _ := pretendNode(t)
	as := func(name string, args ...string) (int, string) {
		var out bytes.Buffer
		p := program{name: name, getenv: func(string) string { return "" }, out: &out, errOut: &out}
		return p.run(args), out.String()
	}
	for _, c := range []struct{ name, shows, hides string }{
		{"rabbitmqctl", "  set_policy ", "  quorum_status "}, {"rabbitmq-queues", "  quorum_status ", "  set_policy "},
		{"rabbitmq-diagnostics", "  check_running ", "  set_policy "}, {"rabbitmq-upgrade", "  drain ", "  set_policy "}, {"quoratectl-1.2", "  clock_status ", "  eval "},
	} {
		if code, out := as(c.name); code != exitOK || !strings.Contains(out, c.shows) || strings.Contains(out, c.hides) {
			t.Errorf("%s: exit code %d\n%s", c.name, code, out)
		}
	}
	_, port, _ := strings.Cut(node, ":")
	for _, name := range []string{"rabbit@127.0.0.1:" + port, node} {
		if code, out := as("rabbitmqctl", "-l", "-n", name, "-q", "list_queues"); code != exitOK || out != "name\tmessages\na\t5\nlost\t\n" {
			t.Errorf("rabbitmqctl -n %s: exit code %d, %q", name, code, out)
		}
	}
	for _, args := range [][]string{{"eval", "1 + 1."}, {"sync_queue", "--node", "x", "q"}, {"list_ciphers", "--formatter", "xml"}} {
		if code, out := as("rabbitmqctl", args...); code != exitUsage || !strings.HasPrefix(out, "Error: "+args[0]+" does not exist here: ") {
			t.Errorf("%v: exit code %d, %q", args, code, out)
		}
	}
}

// Output has the forms that are requested.
func TestFormatters(t *testing.T) {
	node, _ := pretendNode(t)
	for _, test := range []struct{ args, want string }{
		{"list_queues name,arguments messages --formatter csv", "name,arguments,messages\na,\"{\"\"x-expires\"\":5,\"\"x-overflow\"\":\"\"drop-head\"\"}\",5\nlost,null,\n"},
		{"list_queues name messages --formatter csv --no-table-headers", "a,5\nlost,\n"},
		{"list_queues --no-table-headers", "Listing queues for vhost / ...\na\t5\nlost\t\n"},
		{"list_queues --formatter pretty_table -q", "┌──────┬──────────┐\n│ name │ messages │\n├──────┼──────────┤\n│ a    │ 5        │\n│ lost │          │\n└──────┴──────────┘\n"},
		{"list_queues -p none --formatter pretty_table -s", ""},
		{"clock_status --formatter csv -s", "now_ms,1000\noffset_ms,-12\nmax_skew_ms,1000\nskewed,false\nsampled,true\nagreed,true\njumps_refused,0\nn2,true,12,300,40\nn3,false,0,0,0\n"},
	} {
		if code, out, errs := command(append([]string{"-n", node}, strings.Fields(test.args)...)...); code != exitOK || out != test.want {
			t.Errorf("%s: exit code %d, %s\n%s\nwant\n%s", test.args, code, errs, out, test.want)
		}
	}
}

// --watch shows a listing again and again, until the node fails.
func TestWatch(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked == 4 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode([]api.Queue{{Name: "q", QueueStats: &api.QueueStats{Messages: uint64(asked)}}})
	}))
	defer s.Close()
	code, out, errs := command("-n", s.URL, "-s", "list_queues", "--watch", "0.001")
	if code != exitTemporary || out != "q\t1\n\nq\t2\n\nq\t3\n\n" {
		t.Errorf("exit code %d, %q, %s", code, out, errs)
	}
}

// Long work shows how far it has come, on the standard error.
func TestProgress(t *testing.T) {
	seen := make(chan struct{})
	var once sync.Once
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			n := "n1"
			_ = json.NewEncoder(w).Encode([]api.Queue{{Name: "a", Members: []string{"n1", "n4"}, Leader: &n}, {Name: "b", Members: []string{"n1"}, Leader: &n}})
			return
		}
		select { // until progress is shown
		case <-seen:
		case <-time.After(time.Minute):
			t.Error("nobody asks for progress")
		}
		_, _ = io.WriteString(w, "[]")
	}))
	defer s.Close()
	for _, test := range []struct{ args, want string }{
		{"grow n4 all", "1 of 2 queues have a replica on n4\n"}, {"shrink n4", "1 of 2 queues have no replica on n4\n"}, {"grow_to_count 2", "1 of 2 queues have 2 replicas\n"},
	} {
		seen, once = make(chan struct{}), sync.Once{}
		var out bytes.Buffer
		errOut := writerFunc(func(b []byte) {
			if !strings.HasPrefix(string(b), test.want) {
				t.Errorf("%s shows %q, not %q", test.args, b, test.want)
			}
			once.Do(func() { close(seen) })
		})
		p := program{name: ownName, getenv: func(string) string { return "" }, out: &out, errOut: errOut, progressEvery: time.Millisecond}
		if code := p.run(append([]string{"-n", s.URL}, strings.Fields(test.args)...)); code != exitOK {
			t.Errorf("%s: exit code %d", test.args, code)
		}
	}
}

// writerFunc calls itself for what is written.
type writerFunc func(b []byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

func TestEnvironment(t *testing.T) {
	node, _ := pretendNode(t)
	environ := map[string]string{"QUORATECTL_NODE": node, "QUORATECTL_USERNAME": "guest", "QUORATECTL_PASSWORD": "wrong"}
	var o, e bytes.Buffer
	p := program{getenv: func(k string) string { return environ[k] }, out: &o, errOut: &e}
	if code := p.run([]string{"version"}); code != exitDenied {
		t.Errorf("exit %d: %s", code, &e)
	}
	if code := p.run([]string{"version", "--password", "guest"}); code != exitOK {
		t.Errorf("exit %d: %s", code, &e)
	}
}

// What somebody tries by hand: declare, bind, publish, get.
func TestTry(t *testing.T) {
	node, changed := pretendNode(t)
	for _, x := range []struct {
		args, sent, out string
		code            int
	}{
		{"declare_queue a", `PUT /api/queues/%2F/a {"arguments":{},"auto_delete":false,"durable":true}`, "", exitOK},
		{`-p v declare_queue a --type quorum --auto-delete --arguments {"x-max-length":5}`, `PUT /api/queues/v/a {"arguments":{"x-max-length":5,"x-queue-type":"quorum"},"auto_delete":true,"durable":true}`, "", exitOK},
		{"declare_queue a --transient", `PUT /api/queues/%2F/a {"arguments":{},"auto_delete":false,"durable":false}`, "", exitOK},
		{"declare_queue a --arguments [5]", "", "must be a JSON object", exitUsage},
		{"declare_exchange x", `PUT /api/exchanges/%2F/x {"arguments":{},"auto_delete":false,"durable":true,"internal":false,"type":"direct"}`, "", exitOK},
		{"declare_exchange x topic --internal --transient", `PUT /api/exchanges/%2F/x {"arguments":{},"auto_delete":false,"durable":false,"internal":true,"type":"topic"}`, "", exitOK},
		{"bind x a k.#", `POST /api/bindings/%2F/e/x/q/a {"arguments":{},"routing_key":"k.#"}`, "", exitOK},
		{"bind x y --to-exchange", `POST /api/bindings/%2F/e/x/e/y {"arguments":{},"routing_key":""}`, "", exitOK},
		{"publish a hello", `POST /api/exchanges/%2F/amq.default/publish {"payload":"hello","payload_encoding":"string","properties":{"delivery_mode":2},"routing_key":"a"}`, "", exitOK},
		{`publish k --exchange x --properties {"delivery_mode":1}`, `POST /api/exchanges/%2F/x/publish {"payload":"from stdin\r\nmore\n","payload_encoding":"string","properties":{"delivery_mode":1},"routing_key":"k"}`, "", exitOK},
		{"publish a \xff", `POST /api/exchanges/%2F/amq.default/publish {"payload":"/w==","payload_encoding":"base64","properties":{"delivery_mode":2},"routing_key":"a"}`, "", exitOK},
		{"publish nowhere x", `POST /api/exchanges/%2F/amq.default/publish {"payload":"x","payload_encoding":"string","properties":{"delivery_mode":2},"routing_key":"nowhere"}`, "the message reached no queue", exitData},
		{"-s get a", `POST /api/queues/%2F/a/get {"ackmode":"ack_requeue_true","count":1,"encoding":"auto"}`, "a\t\tfalse\tone\\x1b[31m\tstring\t{\"message_id\":\"5\"}\n", exitOK},
		{"-s get a 3 --remove", `POST /api/queues/%2F/a/get {"ackmode":"ack_requeue_false","count":3,"encoding":"auto"}`, "a\t", exitOK},
		{"get a none", "", "COUNT", exitUsage},
	} {
		*changed = nil
		code, out, errs := command(append([]string{"-n", node}, strings.Fields(x.args)...)...)
		if code != x.code || strings.Join(*changed, "|") != x.sent || !strings.Contains(out+errs, x.out) {
			t.Errorf("%s: code %d, sent %q, answered %s%s", x.args, code, *changed, out, errs)
		}
	}
}

// Names are whatever clients choose: none of them acts on a terminal, or shifts a column.
func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"orders": "orders", "Größe 50 €": "Größe 50 €", "a\tb": `a\tb`, "\x1b]0;x\x07": `\x1b]0;x\a`, "\u202egpj": `\u202egpj`, "\xffa": `\xffa`, "\u0085": `\u0085`, "�": "�",
	} {
		if have := printable(in); have != want {
			t.Errorf("%q is shown as %q, not %q", in, have, want)
		}
	}
	var out bytes.Buffer
	c := &call{options: &options{formatter: "table"}, out: &out, terminal: true}
	if err := c.rows([]string{"name", "messages"}, [][]string{{"a long name", "5"}, {"b\tc", "12"}}); err != nil || out.String() != "name         messages\na long name  5\nb\\tc         12\n" {
		t.Errorf("on a terminal: %q, %v", out.String(), err)
	}
	out.Reset()
	c.say("Queues of \x1b[31m ...")
	if out.String() != "Queues of \\x1b[31m ...\n" {
		t.Errorf("%q", out.String())
	}
}

// Help about what is no verb says so, and short words resemble few.
func TestWrongWords(t *testing.T) {
	for args, want := range map[string]string{
		"help publsh": `unknown verb "publsh"; similar: publish`, "bogus": `unknown verb "bogus"; see quoratectl help`,
		"help token nothing": `unknown verb "nothing"`, "\x1b[31m": `unknown verb "\x1b[31m"`,
	} {
		if code, _, errs := command(strings.Fields(args)...); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %s", args, code, errs)
		}
	}
	for _, args := range []string{"help", "help publish", "help token", "help token create"} {
		if code, out, errs := command(strings.Fields(args)...); code != exitOK || out == "" {
			t.Errorf("%s: code %d, %s", args, code, errs)
		}
	}
}

package main

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
)

// call is the execution of a verb.
type call struct {
	context.Context
	client  *client
	options *options
	flags   *pflag.FlagSet // the verb's own options, and those of all
	words   []string       // the verb's arguments
	in      io.Reader
	out     io.Writer
	errOut  io.Writer
	// terminal: somebody sees the output as it is written.
	terminal bool
	// progressEvery is how often progress is shown.
	progressEvery time.Duration
	moved         atomic.Int64 // bytes of a backup
}

// option returns the value of one of the verb's options, and of one that has none whether it was
// given.
func (c *call) option(name string) string { return c.flags.Lookup(name).Value.String() }

func (c *call) given(name string) bool { return c.flags.Changed(name) }

// countIn is the word COUNT among those of a verb, if it is there; otherwise a number that stands for it.
func countIn(words []string, at int, otherwise uint64) (uint64, error) {
	if len(words) <= at {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(words[at], 10, 63)
	if err != nil || n == 0 {
		return 0, usageError("COUNT must be a whole number from 1, not %q", words[at])
	}
	return n, nil
}

// queue is the one that the option names, which is needed.
func (c *call) queue() (string, error) {
	if name := c.option("queue"); name != "" {
		return name, nil
	}
	return "", usageError("--queue is required")
}

func (c *call) get(path string, out any) error { return c.client.do(c, http.MethodGet, path, nil, out) }

func (c *call) put(path string, body any) error {
	return c.client.do(c, http.MethodPut, path, body, nil)
}

func (c *call) post(path string, body, out any) error {
	return c.client.do(c, http.MethodPost, path, body, out)
}

func (c *call) delete(path string) error { return c.client.do(c, http.MethodDelete, path, nil, nil) }

// path joins the segments of an API path. Names may contain anything.
func path(segments ...string) string {
	p := "/api"
	for _, s := range segments {
		p += "/" + url.PathEscape(s)
	}
	return p
}

// Names of RabbitMQ's programs, whose verbs this program has.
const (
	ctlName         = "rabbitmqctl"
	queuesName      = "rabbitmq-queues"
	diagnosticsName = "rabbitmq-diagnostics"
	upgradeName     = "rabbitmq-upgrade"
)

var borrowedNames = []string{ctlName, queuesName, diagnosticsName, upgradeName}

// verb is one thing that the program does. A verb that is followed by another word, which says
// what, has these as verbs, and no more than its name and what it is about.
type verb struct {
	name         string
	alias        string // another spelling of it
	arguments    string // as shown in the usage
	least        int    // number of arguments
	maxArguments int    // -1: any
	about        string // one line, without a full stop
	more         string // sentences for its help
	example      string // what follows its name
	run          func(c *call) error
	options      []option
	columns      []string // it can be asked for
	timeout      int      // seconds; 0: 60
	live         bool     // it shows what changes: it has --watch
	passes       bool     // its options are another program's
	also         []string // programs of RabbitMQ that have it
	twin         bool     // it is another verb under RabbitMQ's name: shown in the help of its programs only
	verbs        []verb
}

// group is a part of the help.
type group struct {
	title string
	verbs []verb
}

// groups is the table of all verbs.
func groups() []group {
	return []group{
		{"Nodes and the cluster", slices.Concat(statusVerbs(), clusterVerbs(), operationVerbs(), memberVerbs())},
		{"Health checks", checkVerbs()},
		{"Vhosts, queues and exchanges", slices.Concat(vhostVerbs(), queueVerbs(), objectVerbs())},
		{"Messages", slices.Concat(tryVerbs(), messageVerbs(), messageFileVerbs(), historyVerbs())},
		{"Connections, channels and consumers", connectionVerbs()},
		{"Users, permissions and limits", slices.Concat(accountVerbs(), limitVerbs())},
		{"Policies and parameters", slices.Concat(policyVerbs(), parameterVerbs())},
		{"Definitions and backups", slices.Concat(definitionVerbs(), serviceBusVerbs(), migrateVerbs(), backupVerbs())},
		{"Certificates, tokens and data folders", slices.Concat(certsVerbs(), tokenVerbs(), folderVerbs())},
	}
}

// options are those of all verbs. They may come before or after the verb.
type options struct {
	node, user, password string
	caFile               string // PEM file of roots; empty: this machine's
	certFile, keyFile    string // PEM files of a client's certificate; empty: none
	vhost                string
	formatter            string
	quiet, bare          bool
	plain                bool // no names of columns
	timeout              int  // seconds; 0: the verb's
	borrowed             bool // called by a name of RabbitMQ's: --node may be the name of a node
}

// formatters are the forms of output, the first of them unless another is requested.
var formatters = []string{"table", "json", "csv", "pretty_table"}

// define defines the options, with their short names.
func (o *options) define(f *pflag.FlagSet, getenv func(string) string) {
	or := func(name, fallback string) string {
		if v := getenv(name); v != "" {
			return v
		}
		return fallback
	}
	f.StringVarP(&o.node, "node", "n", or("QUORATECTL_NODE", "127.0.0.1:15672"), "`URL` of the node's HTTP API, or HOST:PORT; QUORATECTL_NODE")
	f.StringVarP(&o.user, "username", "u", or("QUORATECTL_USERNAME", "guest"), "`NAME` of the user; QUORATECTL_USERNAME")
	f.StringVar(&o.password, "password", or("QUORATECTL_PASSWORD", "guest"), "the user's `PASSWORD`; QUORATECTL_PASSWORD")
	f.Lookup("password").DefValue = "" // it may be from the environment, and help is shown to others
	f.StringVar(&o.caFile, "ca-file", getenv("QUORATECTL_CA_FILE"), "PEM `FILE` of the roots of the node's certificate; HOST:PORT then means https, port 15671; QUORATECTL_CA_FILE; this machine's")
	f.StringVar(&o.certFile, "cert-file", getenv("QUORATECTL_CERT_FILE"), "PEM `FILE` of a certificate for nodes that ask for one; QUORATECTL_CERT_FILE")
	f.StringVar(&o.keyFile, "key-file", getenv("QUORATECTL_KEY_FILE"), "PEM `FILE` of its key; QUORATECTL_KEY_FILE")
	f.StringVarP(&o.vhost, "vhost", "p", "/", "`VHOST` of what the verb is about")
	f.StringVar(&o.formatter, "formatter", formatters[0], "`FORMAT` of the output: "+alternatives(formatters))
	f.BoolVarP(&o.quiet, "quiet", "q", false, "no title and no progress")
	f.BoolVarP(&o.bare, "silent", "s", false, "neither title nor column names")
	f.BoolVar(&o.plain, "no-table-headers", false, "no column names")
	f.IntVarP(&o.timeout, "timeout", "t", 0, "time limit in `SECONDS`; 60, or the verb's own")
	if o.borrowed {
		f.BoolP("longnames", "l", false, "of no effect")
	}
}

// check refuses values that have no meaning.
func (o *options) check(f *pflag.FlagSet) error {
	switch {
	case !slices.Contains(formatters, o.formatter):
		return usageError("--formatter must be %s, not %q", alternatives(formatters), o.formatter)
	case o.timeout < 0 || o.timeout == 0 && f.Changed("timeout"):
		return usageError("--timeout must be a number of seconds from 1")
	}
	return nil
}

// titled reports whether what is not data is shown, too.
func (o *options) titled() bool {
	return !o.quiet && !o.bare && (o.formatter == "table" || o.formatter == "pretty_table")
}

// option is an option of some verbs only.
type option struct {
	name     string
	about    string // the name of its value stands in backquotes; none: it has no value
	fallback string
}

func (x option) define(f *pflag.FlagSet) {
	if !strings.Contains(x.about, "`") {
		f.Bool(x.name, false, x.about)
		return
	}
	f.String(x.name, x.fallback, x.about)
}

// Options of more than one verb.
var (
	watchOption       = option{name: "watch", about: "shows it again every `SECONDS`, until it is interrupted"}
	queueOption       = option{name: "queue", about: "`NAME` of the queue"}
	messageIDOption   = option{name: "message-id", about: "only messages with the property message_id `ID`"}
	vhostPattern      = option{name: "vhost-pattern", about: "only queues of vhosts whose name matches the regular expression `PATTERN`"}
	queuePattern      = option{name: "queue-pattern", about: "only queues whose name matches the regular expression `PATTERN`"}
	descriptionOption = option{name: "description", about: "`TEXT` about it"}
	tagsOption        = option{name: "tags", about: "`TAGS`, separated by commas"}
	redeclareOption   = option{name: "redeclare", about: "`MODE` in which a declare of what exists with other arguments is taken: strict (refused), relaxed (answered as if they were the same) or adopt (the queue has them from then on)"}
	queueTypeOption   = option{name: "default-queue-type", about: "`TYPE` of durable queues that are declared without one: classic or quorum"}
)

// maxWatch is the longest interval of --watch, in seconds.
const maxWatch = 24 * 3600

// watchInterval returns the interval of --watch; 0: it was not given.
func watchInterval(f *pflag.FlagSet) (time.Duration, error) {
	if !f.Changed("watch") {
		return 0, nil
	}
	seconds, err := time.ParseDuration(f.Lookup("watch").Value.String() + "s")
	if err != nil || seconds <= 0 || seconds > maxWatch*time.Second {
		return 0, usageError("--watch must be a number of seconds, up to %d, not %q", maxWatch, f.Lookup("watch").Value)
	}
	return seconds, nil
}

// isTerminal reports whether somebody sees the output as it is written.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Sentences about several verbs.
const (
	noErlang   = "there is no Erlang virtual machine"
	byManager  = "nodes are started and stopped by the system's service manager; drain prepares a node for it"
	byJoining  = "a node joins when it starts with cluster_formation.join and a token, see token create"
	inSettings = "see quorate config show, and the log at the node's start"
	inLog      = "the log is the service manager's: journalctl -u quorate, or the file log.file"
	noPlugins  = "there are no plug-ins"
	noMirrors  = "there are no mirrored queues; every durable queue is replicated"
	noTracing  = "messages are not traced; explain shows what happened to one"
	noStreams  = "there are no streams"
	byMetrics  = "see the metrics at /metrics"
)

// absent lists the verbs of RabbitMQ's programs that mean nothing here, and what to use instead.
var absent = []struct{ verb, instead string }{
	{"eval", noErlang}, {"eval_file", noErlang}, {"exec", noErlang}, {"force_gc", noErlang}, {"remote_shell", noErlang}, {"observer", noErlang}, {"maybe_stuck", noErlang},
	{"erlang_version", noErlang}, {"erlang_cookie_hash", noErlang + "; nodes authenticate each other by certificates, see certs show"}, {"erlang_cookie_sources", noErlang + "; nodes authenticate each other by certificates, see certs show"},
	{"command_line_arguments", noErlang + "; " + inSettings}, {"runtime_thread_stats", noErlang + "; profiles are at /api/quorate/pprof"},
	{"decode", "settings hold no encrypted values; passwords come from files or the environment"}, {"encode", "settings hold no encrypted values; passwords come from files or the environment"},
	{"encrypt_conf_value", "settings hold no encrypted values; passwords come from files or the environment"}, {"decrypt_conf_value", "settings hold no encrypted values; passwords come from files or the environment"},
	{"list_ciphers", "settings hold no encrypted values"}, {"list_hashes", "settings hold no encrypted values"},
	{"start_app", byManager}, {"stop_app", byManager}, {"stop", byManager}, {"shutdown", byManager}, {"wait", "use await_startup"},
	{"reset", "delete the data folder of a node that was forgotten (forget_cluster_node)"}, {"force_reset", "delete the data folder of a node that was forgotten (forget_cluster_node)"},
	{"force_boot", "when a majority is lost for good: recover"}, {"force_standalone_khepri_boot", "when a majority is lost for good: recover"},
	{"join_cluster", byJoining}, {"update_cluster_nodes", byJoining}, {"change_cluster_node_type", "all nodes are of one kind"},
	{"rename_cluster_node", "a node cannot be renamed: add one with the new name and forget this one"},
	{"rotate_logs", "the node reopens its log file on SIGHUP"}, {"set_log_level", "the setting log.console.level or log.file.level, and SIGHUP"},
	{"log_location", inLog}, {"log_tail", inLog}, {"log_tail_stream", inLog}, {"consume_event_stream", "changes and logins are in the audit log, see docs/security.md"},
	{"environment", inSettings}, {"schema_info", "definitions are in the catalog: metadata_store_status"}, {"os_env", "the environment is that of the service manager's unit"},
	{"reset_stats_db", "counts are not stored; rates cover the last 10 minutes"}, {"restart_vhost", "a vhost does not stop: check_virtual_hosts"},
	{"suspend_listeners", "drain stops accepting clients"}, {"resume_listeners", "revive accepts clients again"},
	{"trace_on", noTracing}, {"trace_off", noTracing},
	{"sync_queue", noMirrors}, {"cancel_sync_queue", noMirrors}, {"await_online_synchronized_mirror", noMirrors + ": await_online_quorum_plus_one"}, {"check_if_node_is_mirror_sync_critical", noMirrors + ": check_if_node_is_quorum_critical"},
	{"check_if_cluster_has_classic_queue_mirroring_policy", noMirrors},
	{"node_health_check", "use check_running, check_local_alarms and check_virtual_hosts"},
	{"reclaim_quorum_memory", "logs are truncated automatically"},
	{"stream_status", noStreams}, {"coordinator_status", noStreams}, {"add_super_stream", noStreams}, {"list_stream_connections", noStreams}, {"list_stream_consumers", noStreams}, {"list_stream_publishers", noStreams}, {"set_stream_retention_policy", noStreams},
	{"shovel_status", noPlugins + "; a queue forwards by the policy key forward-to-exchange"}, {"delete_shovel", noPlugins}, {"restart_shovel", noPlugins},
	{"federation_status", noPlugins}, {"restart_federation_link", noPlugins},
	{"enable_auth_attempt_source_tracking", "every failed login is in the audit log with its address, see docs/security.md"}, {"disable_auth_attempt_source_tracking", "every failed login is in the audit log with its address, see docs/security.md"},
	{"list_node_auth_attempt_stats", byMetrics}, {"reset_node_auth_attempt_metrics", byMetrics}, {"message_size_stats", byMetrics},
	{"cipher_suites", "those of TLS 1.2 and 1.3 that Go's crypto/tls has, see docs/security.md"}, {"tls_versions", "1.2 and 1.3"}, {"certificates", "use certs show, or check_certificate_expiration"},
	{"resolver_info", "the system's resolver: resolve_hostname"}, {"list_network_interfaces", "ip address, or the list of listeners: listeners"},
	{"activate_free_disk_space_monitoring", "it is always active: set_disk_free_limit"}, {"deactivate_free_disk_space_monitoring", "it is always active: set_disk_free_limit"},
	{"post_upgrade", "rebalance quorum"}, {"autocomplete", "use completion"},
}

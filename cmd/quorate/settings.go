package main

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/watchdog"
)

// settings are the settings that a node runs with.
type settings struct {
	nodeSettings
	listenSettings
	loginSettings
	amqpSettings
	queueSettings
	logSettings
	bus busSettings

	secret      string           // the first setting in the file that must be kept secret; empty: none
	given       map[string]given // what is not a default, by key
	notices     []notice         // of keys that have no effect
	versionList []string         // see addVersion
	formation   formation
	seed        seedSettings
	key, source string // of what is being applied; source is where errors point, too
	hostName    func() (string, error)

	test testSettings
}

// given is a value that somebody has given, and where: file and line, variable, or flag.
type given struct{ value, source string }

// nodeSettings identify the node and its cluster.
type nodeSettings struct {
	definitions string // file or folder; empty: none
	// skipUnchanged is true if definitions are not imported that were imported last; otherwise false.
	skipUnchanged string
	// partial is true if definitions that cannot be taken are left out at the start; otherwise false.
	partial   string
	nodeName  string
	anonymous string // user; empty: none
	dataDir   string
	peers     string
	links     linkSettings
	nodes     map[string]string // name → peer address
	nodeOf    map[string]string // setting → name
	contacts  []string          // of a cluster to join
	token     string            // that admits the node; empty: none, or in tokenFile
	tokenFile string
	cluster   string

	memoryLimit, diskLimit alarm.Limit
}

// listenSettings are the addresses where clients are served.
type listenSettings struct {
	amqp, amqps   listenersOf
	tls           tlsFiles
	tlsVersions   tlsVersions
	management    string // empty: none, as for metrics
	managementTLS httpsSettings
	metrics       string
	metricsTLS    httpsSettings
	hosts         []string // host names by which the node is reached over HTTP

	// Maximum number of connections; 0: what the system allows.
	maxConnections, maxHTTP, maxScrapers, maxLinks int
}

// loginSettings say who may log in, and how.
type loginSettings struct {
	loginFrom                        string // the part of a client's certificate that names its user
	metricsLogin                     string // remote, true or false
	user, password, vhost, queueType string
	loopbackUsers                    []string
	logins                           login.Config
}

// amqpSettings are bounds of connections, see amqp.Config.
type amqpSettings struct {
	heartbeat        time.Duration
	frameMax         int
	initialFrameMax  int
	channelMax       int
	sessionMax       int
	linkMax          int
	maxMessageSize   int
	product          string
	maxConsumers     int
	handshakeTimeout time.Duration
	heldByConnection int
	heldByUser       int // 0: half of heldByNode
	heldByNode       int // 0: a quarter of the memory limit
}

// queueSettings concern queues and their logs.
type queueSettings struct {
	deadLetters         string
	consumerTimeout     time.Duration
	disconnectedTimeout time.Duration
	timeoutAction       string
	leaderlessGrace     time.Duration
	raftHeartbeat       time.Duration
	idleAfter           time.Duration
	keepAwake           int
	watchdog            watchdog.Bounds
	groupSize           int
	leaderLocator       string
	walSize             int
	retained            int
}

// logSettings say what is logged, and where.
type logSettings struct {
	logFile, logLevel, logFormat string
	rotation                     rotation
	logDir                       string // of logFile, if that is relative; empty: the present folder
	auditFile                    string // empty: none
}

// setting is one row of the table of settings.
type setting struct {
	key      string
	fallback string
	about    string
	set      func(s *settings, value string) error
}

// table lists every setting. Names follow rabbitmq.conf where it has one.
var table = slices.Concat([]setting{
	{"node_name", "n1", "name of this node; must be in the list of nodes", text(func(s *settings) *string { return &s.nodeName })},
	{"data_dir", "data", "folder for all durable data", text(func(s *settings) *string { return &s.dataDir })},
	{"load_definitions", "", "file of definitions, or folder of files *.json with such, that the node imports at each start before it serves clients; what it contains replaces what has been changed meanwhile. It is as secret as the hashes of passwords in it", text(func(s *settings) *string { return &s.definitions })},
	{"definitions.partial", "false", "true or false: whether a node whose load_definitions contain what cannot be taken takes the rest, logs what it leaves out, and serves clients. false: it takes nothing of such a file, is not ready, and says why (`/api/health/checks/ready-to-serve-clients`)", oneOf(func(s *settings) *string { return &s.partial }, "true", "false")},
	{"definitions.skip_if_unchanged", "false", "true or false: whether a node leaves out that import if the contents of these files are what a node of the cluster imported last; their hash (SHA-256) is the global parameter internal_imported_definitions. true: what has been changed meanwhile stays, and definitions that were left out are not tried again, unless that parameter is deleted", oneOf(func(s *settings) *string { return &s.skipUnchanged }, "true", "false")},
	{"listeners.tcp.default", "127.0.0.1:5672", "AMQP: IP:PORT, or a port for all interfaces; none: no listener", listener(func(s *settings) listenersOf { return s.amqp })},
	{"listeners.tcp.N", "", "a further listener of this kind, by any name; if only these are given there is no listeners.tcp.default", listener(func(s *settings) listenersOf { return s.amqp })},
	{"listeners.tcp", "", "none: no listener of this kind at all", noListeners(func(s *settings) listenersOf { return s.amqp })},
	{"listeners.ssl.default", "none", "AMQP over TLS: IP:PORT, or a port for all interfaces, usually 5671; none: no listener", listener(func(s *settings) listenersOf { return s.amqps })},
	{"listeners.ssl.N", "", "a further listener of this kind, as listeners.tcp.N", listener(func(s *settings) listenersOf { return s.amqps })},
	{"listeners.ssl", "", "none: no listener of this kind at all", noListeners(func(s *settings) listenersOf { return s.amqps })},
	{"ssl_options.versions", "tlsv1.2,tlsv1.3", "TLS versions of all listeners for clients, including HTTP and metrics: tlsv1.2, tlsv1.3 or both", setVersions},
	{"ssl_options.certfile", "", "PEM file with the server's certificate and its intermediate certificates; reloaded when it changes", text(func(s *settings) *string { return &s.tls.cert })},
	{"ssl_options.keyfile", "", "PEM file with its private key, which other users of the host must not be able to read", text(func(s *settings) *string { return &s.tls.key })},
	{"ssl_options.cacertfile", "", "PEM file with the root certificates for clients; reloaded when it changes", text(func(s *settings) *string { return &s.tls.roots })},
	{"ssl_options.verify", "verify_none", "verify_none or verify_peer: whether clients are asked for a certificate", oneOf(func(s *settings) *string { return &s.tls.verify }, "verify_none", "verify_peer")},
	{"ssl_options.fail_if_no_peer_cert", "false", "true or false: whether clients without a certificate are refused, if they are asked for one", oneOf(func(s *settings) *string { return &s.tls.insist }, "true", "false")},
	{"ssl_cert_login_from", "distinguished_name", "distinguished_name, common_name or subject_alternative_name: the part of a client's certificate that is the user name, for the mechanism EXTERNAL", oneOf(func(s *settings) *string { return &s.loginFrom }, "distinguished_name", "common_name", "subject_alternative_name")},
	{"anonymous_login_user", "none", "user of clients that log in by the mechanism ANONYMOUS, without a password; none: it is not offered", setAnonymous},
	{"management.tcp.listener", "127.0.0.1:15672", "HTTP: IP:PORT, or a port for all interfaces; none: no listener", optional(address, func(s *settings) *string { return &s.management })},
	{"management.allowed_hosts", "", "comma-separated names in URLs of HTTP and metrics, besides addresses, localhost, the host's name and the names in the list of nodes: NAME, *.NAME for all below it, or * for any; empty: requests that come neither from a browser nor over loopback may use any name", setHosts},
	{"prometheus.tcp.listener", "127.0.0.1:15692", "metrics at /metrics: IP:PORT, or a port for all interfaces; none: no listener", optional(address, func(s *settings) *string { return &s.metrics })},
	{"prometheus.authentication.enabled", "remote", "whether metrics require a user with the tag monitoring or administrator: true, false, or remote: except over loopback", oneOf(func(s *settings) *string { return &s.metricsLogin }, "remote", "true", "false")},
	{"cluster.listener", "127.0.0.1:25672", "other nodes: IP:PORT", address(func(s *settings) *string { return &s.peers })},
	{"cluster.ssl", linksAuto, "auto, on, prefer or none: whether links to other nodes are encrypted and nodes are authenticated by certificates. auto: on; a node without a certificate that is a cluster of its own accepts no links. prefer: plain links, too, while a cluster migrates. none: plain links only", oneOf(func(s *settings) *string { return &s.links.mode }, linksAuto, linksOn, linksPrefer, linksNone)},
	{"cluster.ssl_options.cacertfile", "", "PEM file with the authorities of the nodes' certificates; empty, with the next two: certs/ca.pem, certs/node.pem and certs/node.key in data_dir. All three are reloaded when they change", text(func(s *settings) *string { return &s.links.roots })},
	{"cluster.ssl_options.certfile", "", "PEM file with this node's certificate, whose subject alternative name is the node's name, and its intermediate certificates", text(func(s *settings) *string { return &s.links.cert })},
	{"cluster.ssl_options.keyfile", "", "PEM file with its private key", text(func(s *settings) *string { return &s.links.key })},
	{"cluster.ssl_options.cakeyfile", "", "PEM file with the key of one of the authorities in cluster.ssl_options.cacertfile: this node issues certificates to nodes that join with a token and have none; empty: it issues none", text(func(s *settings) *string { return &s.links.authorityKey })},
	{"cluster.allow_plain_links", "false", "true or false: whether cluster.ssl may be none or prefer even if cluster.listener is not on loopback, and whether tokens may be sent over plain links to other hosts", oneOf(func(s *settings) *string { return &s.links.allowPlain }, "true", "false")},
	{"cluster_formation.classic_config.nodes.N", "this node alone", "NAME@HOST:PORT of each node's cluster.listener, including this node's; new nodes with equal lists found a cluster together, once all are up. Without a port it is 25672; rabbit@HOST stands for a node called HOST, and a node whose node_name is not given has that name if it runs there", setNode},
	{"cluster_formation.join", "", "comma-separated HOST:PORT of the cluster.listener of running nodes, or srv:NAME of an SRV record that lists them: a new node joins their cluster instead of founding one. Names may have several addresses", setContacts},
	{"cluster_formation.token", "", "token that lets a new node join, from quoratectl token create; can be used once", setToken},
	{"cluster_formation.token_file", "", "file with such a token, which other users of the host must not be able to read", text(func(s *settings) *string { return &s.tokenFile })},
	{"cluster_name", "quorate", "nodes of different clusters refuse each other", text(func(s *settings) *string { return &s.cluster })},
	{"default_user", "guest", "user created in an empty cluster", text(func(s *settings) *string { return &s.user })},
	{"default_pass", "guest", "password of that user", text(func(s *settings) *string { return &s.password })},
	{"default_queue_type", "classic", "classic or quorum: type of durable queues that are declared without one, in vhosts that are created without one; it decides the defaults, not the replicas", oneOf(func(s *settings) *string { return &s.queueType }, "classic", "quorum")},
	{"default_vhost", "/", "vhost created in an empty cluster", text(func(s *settings) *string { return &s.vhost })},
	{"loopback_users", "guest", "comma-separated users that may connect from loopback only; none: nobody. A new node whose guest could log in with its default password from another host does not start, unless default_pass says that password, too", setLoopback},
	{"login.hashes_at_once", "1", "1 … 64: passwords that are hashed at a time, each on one processor; further logins wait, addresses in turn", number(1, 64, func(s *settings) *int { return &s.logins.AtOnce })},
	{"login.free_failures", "10", "1 … 1000000: failed logins of a user from an address that cause no delay, one more every 30 s; after that the address may try that user again only after 500 ms, then twice as long each time. Five times as many from one address delay all users there who have not logged in from it before", number(1, 1_000_000, func(s *settings) *int { return &s.logins.FreeFailures })},
	{"login.max_delay", "30000", "ms, 0 … 3600000: the longest such delay; 0: no delay", duration(time.Millisecond, 0, 3_600_000, func(s *settings) *time.Duration { return &s.logins.MaxDelay })},
	{"heartbeat", "60", "seconds, 0 … 65535: heartbeat offered to clients; 0: none", duration(time.Second, 0, 65535, func(s *settings) *time.Duration { return &s.heartbeat })},
	{"frame_max", "131072", "bytes, 4096 … 16777216: largest frame", size(4096, 16<<20, func(s *settings) *int { return &s.frameMax })},
	{"initial_frame_max", "8192", "bytes, 4096 … 131072: largest frame before login", size(4096, 131072, func(s *settings) *int { return &s.initialFrameMax })},
	{"channel_max", "2047", "1 … 65535: channels of a connection", number(1, 65535, func(s *settings) *int { return &s.channelMax })},
	{"session_max_per_connection", "64", "1 … 65536: AMQP 1.0 sessions of a connection", number(1, 1<<16, func(s *settings) *int { return &s.sessionMax })},
	{"link_max_per_session", "256", "1 … 65536: AMQP 1.0 links of a session", number(1, 1<<16, func(s *settings) *int { return &s.linkMax })},
	{"max_message_size", "16777216", "bytes, 1 … 33554432: largest message body; a larger value is taken for the largest one, with a warning", setMaxMessage},
	{"held_memory.connection", "67108864", "bytes, 1048576 … 1099511627776: memory that the node holds for a connection: incomplete messages, methods that wait, transactions, unconfirmed publishes, unread answers. Beyond it the channel that holds most is closed with 506", size(1<<20, 1<<40, func(s *settings) *int { return &s.heldByConnection })},
	{"held_memory.user", "0", "bytes, 0 … 1099511627776: the same for all connections of a user to this node, and for messages shown over HTTP (503); 0: half of held_memory.node", size(0, 1<<40, func(s *settings) *int { return &s.heldByUser })},
	{"held_memory.node", "0", "bytes, 0 … 1099511627776: the same for all clients of this node; beyond it the user who holds most pays. 0: a quarter of vm_memory_high_watermark, at least 64 MiB", size(0, 1<<40, func(s *settings) *int { return &s.heldByNode })},
	{"server_properties.product", "quorate", "product name sent to clients: some applications require RabbitMQ", text(func(s *settings) *string { return &s.product })},
	{"consumer_max_per_channel", "0", "0 … 1000000: consumers of a channel; 0: no limit", number(0, 1_000_000, func(s *settings) *int { return &s.maxConsumers })},
	{"max_connections", "0", "0 … 1000000: AMQP connections to this node, more are refused; default (0) and maximum: seven eighths of the sockets that the limit of open files leaves for clients. Sockets above these, and above half of them before login, are closed at once", number(0, 1_000_000, func(s *settings) *int { return &s.maxConnections })},
	{"management.max_connections", "0", "0 … 1000000: connections to the HTTP API, half of them without a login; default (0) and maximum: a tenth of the limit of open files, 8 to 4096", number(0, 1_000_000, func(s *settings) *int { return &s.maxHTTP })},
	{"prometheus.max_connections", "0", "0 … 1000000: connections to the metrics; default (0) and maximum: a twentieth of the limit of open files, 4 to 64", number(0, 1_000_000, func(s *settings) *int { return &s.maxScrapers })},
	{"cluster.max_connections", "0", "0 … 1000000: connections from other nodes; default (0) and maximum: a tenth of the limit of open files, 8 to 256", number(0, 1_000_000, func(s *settings) *int { return &s.maxLinks })},
	{"handshake_timeout", "10000", "ms, 100 … 600000: from accept to the open connection", duration(time.Millisecond, 100, 600_000, func(s *settings) *time.Duration { return &s.handshakeTimeout })},
	{"consumer_timeout", "1800000", "ms, 0 … 315360000000: how long a consumer may hold a message of a quorum queue; 0 or undefined: no limit", orOff(duration(time.Millisecond, 0, 315_360_000_000, func(s *settings) *time.Duration { return &s.consumerTimeout }))},
	{"consumer_disconnected_timeout", "60000", "ms, 1000 … 86400000: how long the clients of a suspected node keep their deliveries", duration(time.Millisecond, 1000, 86_400_000, func(s *settings) *time.Duration { return &s.disconnectedTimeout })},
	{"consumer_timeout_action", "cancel", "cancel or suspend: what a consumer timeout does to consumers, if neither they nor their queues say; suspend: deliveries stop until the late ones are settled", oneOf(func(s *settings) *string { return &s.timeoutAction }, "cancel", "suspend")},
	{"dead_letter_compatibility", "4", "3 or 4; 3: dead letters are as in RabbitMQ before version 4: the first death of a message continues the header x-death with which it was published, and a dead-letter routing key removes the header CC", oneOf(func(s *settings) *string { return &s.deadLetters }, "3", "4")},
	{"leaderless_grace", "5000", "ms, 100 … 600000: how long a request waits for a queue without a leader, or without a majority of its members", duration(time.Millisecond, 100, 600_000, func(s *settings) *time.Duration { return &s.leaderlessGrace })},
	{"quorum_queue.initial_cluster_size", "3", "1 … 7: replicas of a queue; queues with fewer get more on nodes that have none", number(1, 7, func(s *settings) *int { return &s.groupSize })},
	{"queue_leader_locator", "client-local", "client-local: the leader of a new queue is the node where it is declared; balanced: the member that leads the fewest", oneOf(func(s *settings) *string { return &s.leaderLocator }, "client-local", "balanced")},
	{"raft.heartbeat_timeout", "0", "ms, 0 … 60000: timers of raft for queue groups, which cost an idle queue most; 0: none, failures are detected without them. The same on all nodes", duration(time.Millisecond, 0, 60_000, func(s *settings) *time.Duration { return &s.raftHeartbeat })},
	{"raft.idle_after", "10000", "ms, 0 … 86400000: a queue in which nothing happens for this time sleeps, if more than `raft.awake_target` are awake: it has no raft, and costs no processor and no memory but for its messages and a record, until it is used or something in it is due; 0: none sleeps. With `raft.heartbeat_timeout` none does. The same on all nodes", duration(time.Millisecond, 0, 86_400_000, func(s *settings) *time.Duration { return &s.idleAfter })},
	{"raft.awake_target", "2000", "0 … 1000000: so many queues of a node stay awake even if nothing happens in them, those that were used last: 92 KiB of memory each", number(0, 1_000_000, func(s *settings) *int { return &s.keepAwake })},
	{"watchdog.progress_timeout", "2000", "ms, 500 … 600000: a leader of a queue that has work waiting and makes no progress for this time resigns in favour of another member", duration(time.Millisecond, 500, 600_000, func(s *settings) *time.Duration { return &s.watchdog.Progress })},
	{"watchdog.disk_timeout", "2000", "ms, 500 … 600000: a node whose disk does not complete a read or write for this time gives up its leaderships and withdraws from the cluster until the disk is back", duration(time.Millisecond, 500, 600_000, func(s *settings) *time.Duration { return &s.watchdog.Disk })},
	{"watchdog.disk_exit_timeout", "30000", "ms, 0 … 86400000: and exits with code 74 after this time; 0: never", diskExit},
	{"raft.wal_max_size_bytes", "134217728", "bytes, 1048576 … 1073741824: queue log written before it is flushed to a table; under load up to six times as much is on disk", size(1<<20, 1<<30, func(s *settings) *int { return &s.walSize })},
	{"raft.retained_bytes", "268435456", "bytes, 1048576 … 1099511627776: queue log that the node keeps on disk, for all queues that it leads together, so that members that were down need only the entries that they missed; those that missed more get a snapshot", size(1<<20, 1<<40, func(s *settings) *int { return &s.retained })},
	{"vm_memory_high_watermark.relative", "0.6", "0 to 1: fraction of the memory of the machine, or of the process's control group, that the node may use; above it there is a memory alarm, and all nodes block publishers", alarmLimit(alarm.ParseFraction, func(s *settings) *alarm.Limit { return &s.memoryLimit })},
	{"vm_memory_high_watermark.absolute", "", "the same in bytes, or with a unit: kB, MB, GB, KiB, MiB, GiB; of the two settings the last one given applies", alarmLimit(alarm.ParseSize, func(s *settings) *alarm.Limit { return &s.memoryLimit })},
	{"disk_free_limit.absolute", "50MB", "bytes, or with a unit, that must be free on the disk of data_dir; below it there is a disk alarm, and all nodes block publishers", alarmLimit(alarm.ParseSize, func(s *settings) *alarm.Limit { return &s.diskLimit })},
	{"disk_free_limit.relative", "", "0 to 100: the same as a fraction of the machine's memory; of the two settings the last one given applies", alarmLimit(alarm.ParsePart, func(s *settings) *alarm.Limit { return &s.diskLimit })},
	{"log.file", "", "file to append to; empty or false: standard error", noFile(func(s *settings) *string { return &s.logFile })},
	{"log.file.rotation.size", "0", "bytes, 0 … 1099511627776: log.file is renamed to FILE.1, and FILE.1 to FILE.2 and so on, before it gets larger; 0: never", size(0, 1<<40, func(s *settings) *int { return &s.rotation.size })},
	{"log.file.rotation.count", "5", "1 … 1000: renamed files that are kept", number(1, 1000, func(s *settings) *int { return &s.rotation.keep })},
	{"log.audit.file", "none", "file to which the audit log is appended, or stdout or stderr; none: no audit log", optional(text, func(s *settings) *string { return &s.auditFile })},
	{"log.console.level", "info", "debug, info, warning or error", oneOf(func(s *settings) *string { return &s.logLevel }, "debug", "info", "warning", "error")},
	{"log.console.formatter", "plaintext", "plaintext or json", oneOf(func(s *settings) *string { return &s.logFormat }, "plaintext", "json")},
}, httpsRows("management.ssl", "15671", func(s *settings) *httpsSettings { return &s.managementTLS }),
	httpsRows("prometheus.ssl", "15691", func(s *settings) *httpsSettings { return &s.metricsTLS }), busRows, testRows)

// secrets are the settings that must not be readable by others.
var secrets = []string{"default_pass", "cluster_formation.token", busKeySetting}

const nodesKey = "cluster_formation.classic_config.nodes."

// series is the prefix of the keys that a row ending with .N stands for; empty: it is one key.
func (r setting) series() string {
	prefix, ok := strings.CutSuffix(r.key, "N")
	if !ok || !strings.HasSuffix(prefix, ".") {
		return ""
	}
	return prefix
}

// rowOf returns the row of a key. A key with a row of its own is no member of a series.
func rowOf(key string) (setting, bool) {
	of := -1
	for i, row := range table {
		if row.key == key && row.series() == "" {
			return row, true
		}
		if p := row.series(); p != "" && len(key) > len(p) && strings.HasPrefix(key, p) {
			of = i
		}
	}
	if of < 0 {
		return setting{}, false
	}
	return table[of], true
}

// fileVariable is the variable of the environment that names the file of settings if no flag does.
const fileVariable = "QUORATE_CONFIG_FILE"

// Variables of the peer that name files: its settings, which are read if nothing else names a file, and
// its Erlang terms, which cannot be.
const (
	peerFileVariable     = "RABBITMQ_CONFIG_FILE"
	peerAdvancedVariable = "RABBITMQ_ADVANCED_CONFIG_FILE"
)

// peerVariables say why variables of the peer's images have no effect, and what to use.
var peerVariables = map[string]string{
	"RABBITMQ_NODENAME":      "it contains a host; use QUORATE_NODE_NAME",
	"RABBITMQ_ERLANG_COOKIE": "nodes authenticate each other by certificates; see cluster.md",
}

// defaults returns the settings of the table.
func defaults() *settings {
	s := &settings{
		nodeSettings:   nodeSettings{nodes: map[string]string{}, nodeOf: map[string]string{}},
		listenSettings: listenSettings{amqp: listenersOf{}, amqps: listenersOf{}}, bus: busSettings{amqp: listenersOf{}, amqps: listenersOf{}},
		given: map[string]given{}, hostName: os.Hostname,
	}
	for _, row := range table {
		if row.series() != "" {
			continue
		}
		s.key = row.key
		if err := row.set(s, row.fallback); err != nil {
			panic(fmt.Sprintf("default of %s: %v", row.key, err))
		}
	}
	return s
}

// apply sets one setting by its key.
func (s *settings) apply(key, value string) error {
	if strings.HasPrefix(value, "encrypted:") {
		return fmt.Errorf("setting %s: encrypted values are not supported: put the value in a file that others cannot read, or in the environment", key)
	}
	return s.put(key, value)
}

// put sets a setting and notes that it was given.
func (s *settings) put(key, value string) error {
	err := s.set(key, value)
	if err == nil {
		s.given[key] = given{value, s.source}
	}
	return err
}

func (s *settings) set(key, value string) error {
	if row, ok := rowOf(key); ok {
		s.key = key
		if err := row.set(s, value); err != nil {
			return fmt.Errorf("setting %s: %w", key, err)
		}
		return nil
	}
	known, err := s.borrow(key, value)
	if err != nil {
		return fmt.Errorf("setting %s: %w", key, err)
	}
	if !known {
		return fmt.Errorf("unknown setting %s%s", key, similar(key, func(k string) string { return k }))
	}
	return nil
}

// validate checks what concerns several settings.
func (s *settings) validate() error {
	if s.logDir != "" && s.logFile != "" && !filepath.IsAbs(s.logFile) {
		s.logFile = filepath.Join(s.logDir, s.logFile)
	}
	if err := s.form(); err != nil {
		return err
	}
	if len(s.nodes) == 0 {
		s.nodes = map[string]string{s.nodeName: s.peers}
	}
	if _, ok := s.nodes[s.nodeName]; !ok {
		return fmt.Errorf("setting node_name: %q is not in the list of nodes: %s", s.nodeName, strings.Join(slices.Sorted(maps.Keys(s.nodes)), ", "))
	}
	if s.nodeName == "" || s.cluster == "" {
		return errors.New("settings node_name and cluster_name must not be empty")
	}
	for name := range s.nodes {
		if err := certs.CheckNode(name); err != nil {
			return err
		}
	}
	if err := s.checkLinks(); err != nil {
		return err
	}
	for key, listeners := range map[string]int{"listeners.ssl.default": len(s.amqps), "servicebus.listeners.ssl.default": len(s.bus.amqps)} {
		if listeners > 0 && (s.tls.cert == "" || s.tls.key == "") {
			return fmt.Errorf("setting %s needs ssl_options.certfile and ssl_options.keyfile", key)
		}
	}
	if s.tls.verify == "verify_peer" && s.tls.roots == "" {
		return errors.New("setting ssl_options.verify needs ssl_options.cacertfile")
	}
	return errors.Join(s.checkGuest(), s.checkSeeds(), s.managementTLS.check("management.ssl", s.tls), s.metricsTLS.check("prometheus.ssl", s.tls))
}

// load reads the settings in order: defaults, file, environment, flags. It reports every mistake in
// any of them.
func load(file string, sets []string) (*settings, error) { return loadOver(file, nil, sets) }

// loadOver is load with settings KEY=VALUE that win over the file and nothing else.
func loadOver(file string, over, sets []string) (*settings, error) {
	s := defaults()
	var errs []error
	apply := func(source string, sets []string) {
		for _, kv := range sets {
			key, value, ok := strings.Cut(kv, "=")
			if !ok {
				errs = append(errs, fmt.Errorf("%s %s: not KEY=VALUE", source, kv))
				continue
			}
			s.source = source
			errs = append(errs, s.apply(key, value))
		}
	}
	if file = cmp.Or(file, os.Getenv(fileVariable), os.Getenv(peerFileVariable)); file != "" {
		errs = append(errs, s.readFile(file))
	}
	apply("--service-bus-emulator", over)
	errs = append(errs, s.environment(os.Environ()))
	apply("--set", sets)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, s.validate()
}

// printSettings prints the table.
func printSettings(out io.Writer) {
	for _, row := range table {
		fmt.Fprintf(out, "%s = %s\n    %s\n", row.key, row.fallback, row.about)
	}
}

// httpsSettings are the settings of HTTP over TLS.
type httpsSettings struct {
	port string // empty: none
	ip   string // empty: all interfaces
	tlsFiles
}

// address is where to listen; empty: nowhere.
func (h *httpsSettings) address() string {
	if h.port == "" {
		return ""
	}
	return net.JoinHostPort(h.ip, h.port)
}

// check reports what is missing. prefix is the prefix of the settings; others are used for missing
// files.
func (h *httpsSettings) check(prefix string, others tlsFiles) error {
	files := h.or(others)
	switch {
	case h.port != "" && (files.cert == "" || files.key == ""):
		return fmt.Errorf("setting %[1]s.port needs %[1]s.certfile and %[1]s.keyfile, or those of ssl_options", prefix)
	case h.verify == "verify_peer" && files.roots == "":
		return fmt.Errorf("setting %[1]s.verify needs %[1]s.cacertfile, or that of ssl_options", prefix)
	}
	return nil
}

// httpsRows are the settings of one listener of HTTP over TLS.
func httpsRows(prefix, usually string, of func(*settings) *httpsSettings) []setting {
	file := func(field func(*tlsFiles) *string) func(*settings, string) error {
		return text(func(s *settings) *string { return field(&of(s).tlsFiles) })
	}
	return []setting{
		{prefix + ".port", "none", "the same over TLS: a port, usually " + usually + "; none: no listener", optional(port, func(s *settings) *string { return &of(s).port })},
		{prefix + ".ip", "", "its address; empty: all interfaces", ip(func(s *settings) *string { return &of(s).ip })},
		{prefix + ".certfile", "", "as ssl_options.certfile, which is used with its key if this is empty", file(func(f *tlsFiles) *string { return &f.cert })},
		{prefix + ".keyfile", "", "as ssl_options.keyfile", file(func(f *tlsFiles) *string { return &f.key })},
		{prefix + ".cacertfile", "", "as ssl_options.cacertfile, which is used if this is empty", file(func(f *tlsFiles) *string { return &f.roots })},
		{prefix + ".verify", "verify_none", "as ssl_options.verify; a certificate does not replace a login", oneOf(func(s *settings) *string { return &of(s).verify }, "verify_none", "verify_peer")},
		{prefix + ".fail_if_no_peer_cert", "false", "as ssl_options.fail_if_no_peer_cert", oneOf(func(s *settings) *string { return &of(s).insist }, "true", "false")},
	}
}

func port(field func(*settings) *string) func(*settings, string) error {
	return func(s *settings, v string) error {
		if strings.Contains(v, ":") {
			return fmt.Errorf("%q is not a port", v)
		}
		if err := address(field)(s, v); err != nil {
			return fmt.Errorf("%q is not a port", v)
		}
		*field(s) = v
		return nil
	}
}

func ip(field func(*settings) *string) func(*settings, string) error {
	return func(s *settings, v string) error {
		if v != "" && net.ParseIP(v) == nil {
			return fmt.Errorf("%q is not an IP address", v)
		}
		*field(s) = v
		return nil
	}
}

// setVersions parses a list of TLS versions, in any order.
func setVersions(s *settings, v string) error {
	var all tlsVersions
	for word := range strings.SplitSeq(v, ",") {
		var one uint16
		switch strings.TrimSpace(word) {
		case "tlsv1.2":
			one = tls.VersionTLS12
		case "tlsv1.3":
			one = tls.VersionTLS13
		default:
			return fmt.Errorf("%q is not one of tlsv1.2, tlsv1.3", word)
		}
		if all.oldest == 0 {
			all.oldest = one
		}
		all.oldest, all.newest = min(all.oldest, one), max(all.newest, one)
	}
	s.tlsVersions = all
	return nil
}

package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/discovery"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/origin"
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

	secret      string            // the first setting in the file that must be kept secret; empty: none
	given       map[string]given  // what is not a default, by key
	notices     []notice          // of keys that have no effect
	versionList []string          // see addVersion
	named       map[string]string // see oneListener
	source      string            // of what is being applied: where errors point, too

	test testSettings
}

// given is a value that somebody has given, and where: file and line, variable, or flag.
type given struct{ value, source string }

// nodeSettings identify the node and its cluster.
type nodeSettings struct {
	definitions string // file or folder; empty: none
	// skipUnchanged is true if definitions are not imported that were imported last; otherwise false.
	skipUnchanged string
	nodeName      string
	dataDir       string
	peers         string
	links         linkSettings
	nodes         map[string]string // name → peer address
	nodeOf        map[string]string // setting → name
	contacts      []string          // of a cluster to join
	token         string            // that admits the node; empty: none, or in tokenFile
	tokenFile     string
	cluster       string

	memoryLimit, diskLimit alarm.Limit
}

// listenSettings are the addresses where clients are served.
type listenSettings struct {
	amqp          string // empty: none, as for the other listeners
	amqps         string
	tls           tlsFiles
	tlsVersions   tlsVersions
	management    string
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
	maxMessageSize   int
	product          string
	maxConsumers     int
	handshakeTimeout time.Duration
}

// queueSettings concern queues and their logs.
type queueSettings struct {
	deadLetters         string
	consumerTimeout     time.Duration
	disconnectedTimeout time.Duration
	timeoutAction       string
	leaderlessGrace     time.Duration
	raftHeartbeat       time.Duration
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
	{"definitions.skip_if_unchanged", "false", "true or false: whether a node leaves out that import if the contents of these files are what a node of the cluster imported last; their hash (SHA-256) is the global parameter internal_imported_definitions. true: what has been changed meanwhile stays, and definitions that were left out are not tried again, unless that parameter is deleted", oneOf(func(s *settings) *string { return &s.skipUnchanged }, "true", "false")},
	{"listeners.tcp.default", "127.0.0.1:5672", "AMQP: IP:PORT, or a port for all interfaces; none: no listener", optional(address, func(s *settings) *string { return &s.amqp })},
	{"listeners.tcp", "", "none: the same as listeners.tcp.default = none", noListener(func(s *settings) *string { return &s.amqp })},
	{"listeners.ssl.default", "none", "AMQP over TLS: IP:PORT, or a port for all interfaces, usually 5671; none: no listener", optional(address, func(s *settings) *string { return &s.amqps })},
	{"ssl_options.versions", "tlsv1.2,tlsv1.3", "TLS versions of all listeners for clients, including HTTP and metrics: tlsv1.2, tlsv1.3 or both", setVersions},
	{"ssl_options.certfile", "", "PEM file with the server's certificate and its intermediate certificates; reloaded when it changes", text(func(s *settings) *string { return &s.tls.cert })},
	{"ssl_options.keyfile", "", "PEM file with its private key, which other users of the host must not be able to read", text(func(s *settings) *string { return &s.tls.key })},
	{"ssl_options.cacertfile", "", "PEM file with the root certificates for clients; reloaded when it changes", text(func(s *settings) *string { return &s.tls.roots })},
	{"ssl_options.verify", "verify_none", "verify_none or verify_peer: whether clients are asked for a certificate", oneOf(func(s *settings) *string { return &s.tls.verify }, "verify_none", "verify_peer")},
	{"ssl_options.fail_if_no_peer_cert", "false", "true or false: whether clients without a certificate are refused, if they are asked for one", oneOf(func(s *settings) *string { return &s.tls.insist }, "true", "false")},
	{"ssl_cert_login_from", "distinguished_name", "distinguished_name, common_name or subject_alternative_name: the part of a client's certificate that is the user name, for the mechanism EXTERNAL", oneOf(func(s *settings) *string { return &s.loginFrom }, "distinguished_name", "common_name", "subject_alternative_name")},
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
	{"cluster_formation.classic_config.nodes.N", "this node alone", "NAME@HOST:PORT of each node's cluster.listener, including this node's; new nodes with equal lists found a cluster together, once all are up", setNode},
	{"cluster_formation.join", "", "comma-separated HOST:PORT of the cluster.listener of running nodes, or srv:NAME of an SRV record that lists them: a new node joins their cluster instead of founding one. Names may have several addresses", setContacts},
	{"cluster_formation.token", "", "token that lets a new node join, from quoratectl token create; can be used once", setToken},
	{"cluster_formation.token_file", "", "file with such a token, which other users of the host must not be able to read", text(func(s *settings) *string { return &s.tokenFile })},
	{"cluster_name", "quorate", "nodes of different clusters refuse each other", text(func(s *settings) *string { return &s.cluster })},
	{"default_user", "guest", "user created in an empty cluster", text(func(s *settings) *string { return &s.user })},
	{"default_pass", "guest", "password of that user", text(func(s *settings) *string { return &s.password })},
	{"default_queue_type", "classic", "classic or quorum: type of durable queues that are declared without one, in vhosts that are created without one; it decides the defaults, not the replicas", oneOf(func(s *settings) *string { return &s.queueType }, "classic", "quorum")},
	{"default_vhost", "/", "vhost created in an empty cluster", text(func(s *settings) *string { return &s.vhost })},
	{"loopback_users", "guest", "comma-separated users that may connect from loopback only; none: nobody", setLoopback},
	{"login.hashes_at_once", "1", "1 … 64: passwords that are hashed at a time, each on one processor; further logins wait, addresses in turn", number(1, 64, func(s *settings) *int { return &s.logins.AtOnce })},
	{"login.free_failures", "10", "1 … 1000000: failed logins of a user from an address that cause no delay, one more every 30 s; after that the address may try that user again only after 500 ms, then twice as long each time. Five times as many from one address delay all users there who have not logged in from it before", number(1, 1_000_000, func(s *settings) *int { return &s.logins.FreeFailures })},
	{"login.max_delay", "30000", "ms, 0 … 3600000: the longest such delay; 0: no delay", duration(time.Millisecond, 0, 3_600_000, func(s *settings) *time.Duration { return &s.logins.MaxDelay })},
	{"heartbeat", "60", "seconds, 0 … 65535: heartbeat offered to clients; 0: none", duration(time.Second, 0, 65535, func(s *settings) *time.Duration { return &s.heartbeat })},
	{"frame_max", "131072", "bytes, 4096 … 16777216: largest frame", number(4096, 16<<20, func(s *settings) *int { return &s.frameMax })},
	{"initial_frame_max", "8192", "bytes, 4096 … 131072: largest frame before login", number(4096, 131072, func(s *settings) *int { return &s.initialFrameMax })},
	{"channel_max", "2047", "1 … 65535: channels of a connection", number(1, 65535, func(s *settings) *int { return &s.channelMax })},
	{"max_message_size", "16777216", "bytes, 1 … 33554432: largest message body", number(1, 32<<20, func(s *settings) *int { return &s.maxMessageSize })},
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
	{"raft.heartbeat_timeout", "0", "ms, 0 … 60000: a safety net of queue groups, failures are detected sooner; 0: 30000, or 100000 while the node has more than 2000 replicas", duration(time.Millisecond, 0, 60_000, func(s *settings) *time.Duration { return &s.raftHeartbeat })},
	{"watchdog.progress_timeout", "2000", "ms, 500 … 600000: a leader of a queue that has work waiting and makes no progress for this time resigns in favour of another member", duration(time.Millisecond, 500, 600_000, func(s *settings) *time.Duration { return &s.watchdog.Progress })},
	{"watchdog.disk_timeout", "2000", "ms, 500 … 600000: a node whose disk does not complete a read or write for this time gives up its leaderships and withdraws from the cluster until the disk is back", duration(time.Millisecond, 500, 600_000, func(s *settings) *time.Duration { return &s.watchdog.Disk })},
	{"watchdog.disk_exit_timeout", "30000", "ms, 0 … 86400000: and exits with code 74 after this time; 0: never", diskExit},
	{"raft.wal_max_size_bytes", "134217728", "bytes, 1048576 … 1073741824: queue log written before it is flushed to a table; under load up to six times as much is on disk", number(1<<20, 1<<30, func(s *settings) *int { return &s.walSize })},
	{"raft.retained_bytes", "268435456", "bytes, 1048576 … 1099511627776: queue log that the node keeps on disk, for all queues that it leads together, so that members that were down need only the entries that they missed; those that missed more get a snapshot", number(1<<20, 1<<40, func(s *settings) *int { return &s.retained })},
	{"vm_memory_high_watermark.relative", "0.6", "0 to 100: fraction of the memory of the machine, or of the process's control group, that the node may use; above it there is a memory alarm, and all nodes block publishers", alarmLimit(alarm.ParsePart, func(s *settings) *alarm.Limit { return &s.memoryLimit })},
	{"vm_memory_high_watermark.absolute", "", "the same in bytes, or with a unit: kB, MB, GB, KiB, MiB, GiB; of the two settings the last one given applies", alarmLimit(alarm.ParseSize, func(s *settings) *alarm.Limit { return &s.memoryLimit })},
	{"disk_free_limit.absolute", "50MB", "bytes, or with a unit, that must be free on the disk of data_dir; below it there is a disk alarm, and all nodes block publishers", alarmLimit(alarm.ParseSize, func(s *settings) *alarm.Limit { return &s.diskLimit })},
	{"disk_free_limit.relative", "", "0 to 100: the same as a fraction of the machine's memory; of the two settings the last one given applies", alarmLimit(alarm.ParsePart, func(s *settings) *alarm.Limit { return &s.diskLimit })},
	{"log.file", "", "file to append to; empty or false: standard error", noFile(func(s *settings) *string { return &s.logFile })},
	{"log.file.rotation.size", "0", "bytes, 0 … 1099511627776: log.file is renamed to FILE.1, and FILE.1 to FILE.2 and so on, before it gets larger; 0: never", number(0, 1<<40, func(s *settings) *int { return &s.rotation.size })},
	{"log.file.rotation.count", "5", "1 … 1000: renamed files that are kept", number(1, 1000, func(s *settings) *int { return &s.rotation.keep })},
	{"log.audit.file", "none", "file to which the audit log is appended, or stdout or stderr; none: no audit log", optional(text, func(s *settings) *string { return &s.auditFile })},
	{"log.console.level", "info", "debug, info, warning or error", oneOf(func(s *settings) *string { return &s.logLevel }, "debug", "info", "warning", "error")},
	{"log.console.formatter", "plaintext", "plaintext or json", oneOf(func(s *settings) *string { return &s.logFormat }, "plaintext", "json")},
}, httpsRows("management.ssl", "15671", func(s *settings) *httpsSettings { return &s.managementTLS }),
	httpsRows("prometheus.ssl", "15691", func(s *settings) *httpsSettings { return &s.metricsTLS }), testRows)

// secrets are the settings that must not be readable by others.
var secrets = []string{"default_pass", "cluster_formation.token"}

const nodesKey = "cluster_formation.classic_config.nodes."

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
	"RABBITMQ_NODENAME":      "it has a host in it; use QUORATE_NODE_NAME",
	"RABBITMQ_ERLANG_COOKIE": "nodes know each other by certificates; see links.md",
}

func text(field func(*settings) *string) func(*settings, string) error {
	return func(s *settings, v string) error {
		*field(s) = v
		return nil
	}
}

func oneOf(field func(*settings) *string, values ...string) func(*settings, string) error {
	return func(s *settings, v string) error {
		if !slices.Contains(values, v) {
			return fmt.Errorf("%q is none of %s", v, strings.Join(values, ", "))
		}
		*field(s) = v
		return nil
	}
}

func number(low, high int, field func(*settings) *int) func(*settings, string) error {
	return func(s *settings, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < low || n > high {
			return fmt.Errorf("%q is not a whole number from %d to %d", v, low, high)
		}
		*field(s) = n
		return nil
	}
}

func duration(unit time.Duration, low, high int64, field func(*settings) *time.Duration) func(*settings, string) error {
	return func(s *settings, v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < low || n > high {
			return fmt.Errorf("%q is not a whole number from %d to %d", v, low, high)
		}
		*field(s) = time.Duration(n) * unit
		return nil
	}
}

// alarmLimit parses a limit; an empty value changes nothing.
func alarmLimit(parse func(string) (alarm.Limit, error), field func(*settings) *alarm.Limit) func(*settings, string) error {
	return func(s *settings, v string) error {
		if v == "" {
			return nil
		}
		l, err := parse(v)
		if err == nil {
			*field(s) = l
		}
		return err
	}
}

// orOff takes undefined for 0.
func orOff(set func(*settings, string) error) func(*settings, string) error {
	return func(s *settings, v string) error {
		if v == "undefined" {
			v = "0"
		}
		return set(s, v)
	}
}

// diskExit parses a duration; 0 means never.
func diskExit(s *settings, v string) error {
	at := &s.watchdog.DiskExit
	err := duration(time.Millisecond, 0, 86_400_000, func(*settings) *time.Duration { return at })(s, v)
	if err == nil && *at == 0 {
		*at = -1
	}
	return err
}

func address(field func(*settings) *string) func(*settings, string) error {
	return func(s *settings, v string) error {
		if !strings.Contains(v, ":") {
			v = ":" + v
		}
		_, port, err := net.SplitHostPort(v)
		if n, bad := strconv.Atoi(port); err != nil || bad != nil || n < 0 || n > 65535 {
			return fmt.Errorf("%q is neither IP:PORT nor a port", v)
		}
		*field(s) = v
		return nil
	}
}

// noFile is a path; false stands for none.
func noFile(field func(*settings) *string) func(*settings, string) error {
	return func(s *settings, v string) error {
		if v == "false" {
			v = ""
		}
		*field(s) = v
		return nil
	}
}

// optional is a kind of value that may be none, which stands for an empty string.
func optional(kind func(field func(*settings) *string) func(*settings, string) error, field func(*settings) *string) func(*settings, string) error {
	set := kind(field)
	return func(s *settings, v string) error {
		if v == "none" {
			*field(s) = ""
			return nil
		}
		return set(s, v)
	}
}

func setNode(s *settings, v string) error {
	name, addr, ok := strings.Cut(v, "@")
	if _, _, err := net.SplitHostPort(addr); !ok || name == "" || err != nil {
		return fmt.Errorf("%q is not NAME@HOST:PORT", v)
	}
	if _, twice := s.nodes[name]; twice {
		return fmt.Errorf("node %q stands in the list twice", name)
	}
	s.nodes[name] = addr
	return nil
}

func setContacts(s *settings, v string) error {
	s.contacts = nil
	if v == "" {
		return nil
	}
	for address := range strings.SplitSeq(v, ",") {
		address = strings.TrimSpace(address)
		if err := discovery.CheckContact(address); err != nil {
			return err
		}
		s.contacts = append(s.contacts, address)
	}
	return nil
}

// setToken does not repeat its input in an error, as it may be a secret.
func setToken(s *settings, v string) error {
	s.token = v
	if v == "" {
		return nil
	}
	_, err := certs.ParseToken(v)
	return err
}

func setHosts(s *settings, v string) error {
	s.hosts = nil
	if v == "" {
		return nil
	}
	for name := range strings.SplitSeq(v, ",") {
		s.hosts = append(s.hosts, strings.TrimSpace(name))
	}
	_, err := origin.New(nil, s.hosts)
	return err
}

func setLoopback(s *settings, v string) error {
	s.loopbackUsers = nil
	if v != "none" {
		s.loopbackUsers = strings.Split(v, ",")
	}
	return nil
}

// defaults returns the settings of the table.
func defaults() *settings {
	s := &settings{nodeSettings: nodeSettings{nodes: map[string]string{}, nodeOf: map[string]string{}}, given: map[string]given{}, named: map[string]string{}}
	for _, row := range table {
		if strings.HasSuffix(row.key, ".N") {
			continue
		}
		if err := row.set(s, row.fallback); err != nil {
			panic(fmt.Sprintf("default of %s: %v", row.key, err))
		}
	}
	return s
}

// apply sets one setting by its key.
func (s *settings) apply(key, value string) error {
	if strings.HasPrefix(value, "encrypted:") {
		return fmt.Errorf("setting %s: encrypted values cannot be read: give the value in a file that others cannot read, or in the environment", key)
	}
	if name := s.named[key]; name != "" {
		return fmt.Errorf("setting %s: a node has one such listener, and %s is one already", key, name)
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
	for _, row := range table {
		if row.key == key || row.key == nodesKey+"N" && strings.HasPrefix(key, nodesKey) {
			if strings.HasPrefix(key, nodesKey) {
				delete(s.nodes, s.nodeOf[key]) // a later value replaces an earlier one
			}
			if err := row.set(s, value); err != nil {
				return fmt.Errorf("setting %s: %w", key, err)
			}
			if strings.HasPrefix(key, nodesKey) {
				s.nodeOf[key], _, _ = strings.Cut(value, "@")
			}
			return nil
		}
	}
	known, err := s.borrow(key, value)
	if err != nil {
		return fmt.Errorf("setting %s: %w", key, err)
	}
	if !known {
		return fmt.Errorf("unknown setting %s", key)
	}
	return nil
}

var errErlang = errors.New("these are Erlang terms, as in advanced.config: write the settings as KEY = VALUE, see configuration.md")

// read applies a file of key = value lines. It reports every mistake in it.
func (s *settings) read(r io.Reader) error {
	var errs []error
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if line[0] == '[' || line[0] == '%' {
			return fmt.Errorf("line %d: %w", n, errErlang)
		}
		s.source = fmt.Sprint("line ", n)
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			errs = append(errs, fmt.Errorf("line %d: not KEY = VALUE", n))
		} else if err := s.apply(strings.TrimSpace(key), strings.TrimSpace(value)); err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", n, err))
		} else if key = strings.TrimSpace(key); slices.Contains(secrets, key) {
			s.secret = key
		}
	}
	return errors.Join(append(errs, lines.Err())...)
}

// variable is the name of a setting in the environment: the key in capitals, with underscores for
// dots.
func variable(key string) string {
	return "QUORATE_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// environment applies QUORATE_… variables, given as NAME=VALUE, and before them the three of
// RabbitMQ's images that say who the first user is. It ignores others, and reports every mistake.
func (s *settings) environment(environ []string) error {
	var errs []error
	keys := map[string]string{}
	for _, row := range table {
		keys[variable(row.key)] = row.key
	}
	for _, kv := range environ { // those of the peer first: its own ones win
		name, value, _ := strings.Cut(kv, "=")
		word, ok := strings.CutPrefix(name, "RABBITMQ_")
		if !ok {
			continue
		}
		s.source = name
		switch {
		case slices.Contains([]string{"DEFAULT_USER", "DEFAULT_PASS", "DEFAULT_VHOST"}, word):
			if err := s.apply(strings.ToLower(word), value); err != nil {
				errs = append(errs, fmt.Errorf("environment %s: %w", name, err))
			}
		case name == peerAdvancedVariable:
			errs = append(errs, fmt.Errorf("environment %s: %w", name, errErlang))
		case name != peerFileVariable: // load reads that one
			s.tell(name, cmp.Or(peerVariables[name], "variables of settings begin with QUORATE_"))
		}
	}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		key := keys[name]
		if n, ok := strings.CutPrefix(name, variable(nodesKey)); ok {
			key = nodesKey + strings.ToLower(n)
		}
		if key == "" {
			if name != fileVariable && strings.HasPrefix(name, variable("")) {
				errs = append(errs, fmt.Errorf("environment %s: there is no such setting", name))
			}
			continue
		}
		s.source = name
		if err := s.apply(key, value); err != nil {
			errs = append(errs, fmt.Errorf("environment %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// validate checks what concerns several settings.
func (s *settings) validate() error {
	if s.logDir != "" && s.logFile != "" && !filepath.IsAbs(s.logFile) {
		s.logFile = filepath.Join(s.logDir, s.logFile)
	}
	if len(s.nodes) == 0 {
		s.nodes = map[string]string{s.nodeName: s.peers}
	}
	if _, ok := s.nodes[s.nodeName]; !ok {
		return fmt.Errorf("setting node_name: %q does not stand in the list of nodes", s.nodeName)
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
	if s.amqps != "" && (s.tls.cert == "" || s.tls.key == "") {
		return errors.New("setting listeners.ssl.default needs ssl_options.certfile and ssl_options.keyfile")
	}
	if s.tls.verify == "verify_peer" && s.tls.roots == "" {
		return errors.New("setting ssl_options.verify needs ssl_options.cacertfile")
	}
	return errors.Join(s.managementTLS.check("management.ssl", s.tls), s.metricsTLS.check("prometheus.ssl", s.tls))
}

// load reads the settings in order: defaults, file, environment, flags. It reports every mistake in
// any of them.
func load(file string, sets []string) (*settings, error) {
	s := defaults()
	var errs []error
	if file = cmp.Or(file, os.Getenv(fileVariable), os.Getenv(peerFileVariable)); file != "" {
		errs = append(errs, s.readFile(file))
	}
	errs = append(errs, s.environment(os.Environ()))
	for _, kv := range sets {
		key, value, ok := strings.Cut(kv, "=")
		if !ok {
			errs = append(errs, fmt.Errorf("--set %s: not KEY=VALUE", kv))
		} else {
			s.source = "--set"
			errs = append(errs, s.apply(key, value))
		}
	}
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

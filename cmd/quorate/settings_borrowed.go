package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
)

// borrowed is a key of rabbitmq.conf that is no setting of its own here: it is translated, or has no
// effect, of which the operator is told.
type borrowed struct {
	key   string // as path.Match has it; a star matches dots
	about string // what it does; without set: why it does nothing
	set   func(s *settings, name, value string) error
}

// notice says that something that is given is not what it seems, as a rule that it has no effect.
type notice struct{ key, what, why string }

func (n notice) String() string { return fmt.Sprintf("setting %s %s: %s", n.key, n.what, n.why) }

// Why keys have no effect.
const (
	noPlugin     = "quorate has no such protocol or plug-in"
	noErlang     = "it configures the Erlang runtime"
	noMirrors    = "queues are replicated by Raft, and the side without a majority does not serve them"
	noSockets    = "the operating system's and Go's settings apply"
	noLimit      = "there is no such limit for a node"
	ownLogs      = "use log.file, log.console.level and log.console.formatter, which apply to all that is logged"
	ownStore     = "the log store is a different one; see raft.wal_max_size_bytes"
	noStatistics = "counts are always kept, and sampled every five seconds"
	noLoading    = "definitions are read from files; see load_definitions"
	noSizes      = "log files are rotated by size only; see log.file.rotation.size"
	noDetours    = "messages are stored as they are published"
	allTLS       = "Go's TLS library decides; versions can be chosen by ssl_options.versions"
)

// borrowedKeys returns them in the order in which they are looked up.
func borrowedKeys() []borrowed { return slices.Concat(translatedKeys(), idleKeys(), absentKeys()) }

func translatedKeys() []borrowed {
	return []borrowed{
		{"ssl_options.versions.*", "one of `ssl_options.versions`", addVersion},
		{"ssl_options.password", "", refuse("keys with a password cannot be read: store the key without one, readable by the node's user only")},
		{"management.tcp.port", "the port of `management.tcp.listener`, on all interfaces unless `management.tcp.ip` says which", listenerPort("management.tcp.ip", "management.tcp.listener", func(s *settings) string { return s.management })},
		{"management.tcp.ip", "the address of `management.tcp.listener`", listenerHost("15672", "management.tcp.listener", func(s *settings) string { return s.management })},
		{"management.listener.port", "as `management.tcp.port`", listenerPort("management.listener.ip", "management.tcp.listener", func(s *settings) string { return s.management })},
		{"management.listener.ip", "as `management.tcp.ip`", listenerHost("15672", "management.tcp.listener", func(s *settings) string { return s.management })},
		{"prometheus.tcp.port", "the port of `prometheus.tcp.listener`, on all interfaces unless `prometheus.tcp.ip` says which", listenerPort("prometheus.tcp.ip", "prometheus.tcp.listener", func(s *settings) string { return s.metrics })},
		{"prometheus.tcp.ip", "the address of `prometheus.tcp.listener`", listenerHost("15692", "prometheus.tcp.listener", func(s *settings) string { return s.metrics })},
		{"prometheus.path", "`/metrics`", onlyValue("/metrics", "")},
		{"management.load_definitions", "as `load_definitions`", as("load_definitions")},
		{"definitions.local.path", "as `load_definitions`", as("load_definitions")},
		{"definitions.import_backend", "`local_filesystem`", oneOfValues(noLoading, "local_filesystem", "rabbit_definitions_import_local_filesystem")},
		{"max_channels_per_connection", "as `channel_max`", as("channel_max")},
		{"loopback_users.*", "`true` adds a user to `loopback_users`, `false` removes it", oneLoopbackUser},
		{"default_user_tags.*", "`administrator = true`: the user of a new cluster is one", onlyNamed("default_user_tags.administrator", "true")},
		{"default_permissions.*", "`.*`: the user of a new cluster may do everything in `default_vhost`", onlyValue(".*", "")},
		{"default_users.*.*", "a user with permissions in new vhosts, `default_vhost` among them: `default_users.NAME.password`, `.tags`, `.vhost_pattern`, `.configure`, `.write`, `.read`; patterns are `.*` unless given. A user that exists keeps password and tags", seedUser},
		{"default_limits.vhosts.*.*", "limits of new vhosts: `default_limits.vhosts.NAME.pattern`, `.max_connections`, `.max_queues`; the first that matches applies, by name", seedLimit},
		{"default_policies.operator.*.*", "an operator policy of new vhosts: `default_policies.operator.NAME.vhost_pattern`, `.queue_pattern`, `.apply_to`, and the keys of its definition with underscores; those about mirrors and memory have no effect", seedPolicy},
		{"auth_backends.*", "`internal`", oneOfValues("users are those of the cluster; other backends do not exist", "internal", "rabbit_auth_backend_internal")},
		{"proxy_protocol", "`false`", onlyValue("false", "")},
		{"cluster_formation.peer_discovery_backend", "`classic_config`: the list of nodes; `k8s`: the list follows from the host's name (POD-0, POD-1, …) and the next keys; `dns`: nodes join what `cluster_formation.dns.hostname` names. Each also as `rabbit_peer_discovery_…`; others are refused", setDiscovery},
		{"cluster_formation.target_cluster_size_hint", "the number of pods, which `k8s` needs", sizeHint},
		{"cluster_formation.k8s.ordinal_start", "the number of the first pod; 0 unless given", ordinalStart},
		{"cluster_formation.k8s.service_name", "nodes are POD.NAME, unless there is a suffix", formationText(func(f *formation) *string { return &f.service })},
		{"cluster_formation.k8s.hostname_suffix", "nodes are PODSUFFIX; `K8S_HOSTNAME_SUFFIX` and `K8S_SERVICE_NAME` in the environment stand for these two", formationText(func(f *formation) *string { return &f.suffix })},
		{"cluster_formation.dns.hostname", "as `cluster_formation.join = NAME:25672`, with `dns`", formationText(func(f *formation) *string { return &f.domain })},
		{"log.dir", "folder of `log.file`, if that is a relative path", func(s *settings, _, v string) error { s.logDir = v; return nil }},
		{"log.file.level", "as `log.console.level`", logLevel},
		{"log.file.formatter", "as `log.console.formatter`", as("log.console.formatter")},
		{"log.console", "`true`, or `false` with `log.file`", oneOfValues("must be true or false", "true", "false")},
		{"management.path_prefix", "", refuse("the HTTP API is at / only; let a proxy add the prefix")},
	}
}

// idleKeys have no effect.
func idleKeys() []borrowed {
	return []borrowed{
		{"ssl_options.*", allTLS, nil},
		{"prometheus.*", noStatistics, nil},
		{"consumer_max_per_connection", noLimit, nil},
		{"auth_mechanisms.*", "the mechanisms PLAIN, AMQPLAIN and, over TLS, EXTERNAL are always offered", nil},
		{"cluster_formation.*", "use the list of nodes, or cluster_formation.join with a name in DNS", nil},
		{"log.file.rotation.*", noSizes, nil},
		{"log.*", ownLogs, nil},
		{"definitions.*", noLoading, nil},
		{"management.*", noStatistics, nil},
		{"management_agent.*", noStatistics, nil},
		{"collect_statistics*", noStatistics, nil},
		{"vhost_max", noLimit, nil},
		{"connection_max", "use max_connections", nil},
		{"quorum_commands_soft_limit", ownStore, nil},
		{"quorum_cluster_size", "use quorum_queue.initial_cluster_size", nil},
		{"channel_max_per_node", noLimit, nil},
		{"cluster_*_limit", noLimit, nil},
		{"credential_validator.*", "passwords are not checked when they are set", nil},
		{"password_hashing_module", "passwords are hashed by PBKDF2 with HMAC-SHA-256", nil},
		{"cluster_partition_handling*", noMirrors, nil},
		{"queue_master_locator", "use queue_leader_locator", nil},
		{"mirroring_*", noMirrors, nil},
		{"mnesia_*", noErlang, nil},
		{"net_ticktime", "nodes find out by their links; see cluster.md", nil},
		{"cluster_keepalive_interval", "nodes find out by their links; see cluster.md", nil},
		{"vm_memory_high_watermark_paging_ratio", "bodies of messages are on disk", nil},
		{"vm_memory_calculation_strategy", noErlang, nil},
		{"total_memory_available_override_value", "use vm_memory_high_watermark.absolute", nil},
		{"memory_monitor_interval", "memory is checked every second", nil},
		{"queue_index_embed_msgs_below", ownStore, nil},
		{"msg_store_*", ownStore, nil},
		{"raft.*", ownStore, nil},
		{"quorum_queue.*", "see queues.md for what queues do here", nil},
		{"classic_queue.*", "a queue that is neither durable nor exclusive is in memory", nil},
		{"tcp_listen_options.*", noSockets, nil},
		{"ssl_*", noSockets, nil},
		{"num_acceptors.*", noSockets, nil},
		{"socket_writer.*", noSockets, nil},
		{"reverse_dns_lookups", "addresses are logged", nil},
		{"channel_operation_timeout", "see leaderless_grace", nil},
		{"background_gc_*", noErlang, nil},
		{"hipe_compile", noErlang, nil},
		{"delegate_count", noErlang, nil},
		{"deprecated_features.*", "see amqp.md for what is supported", nil},
		{"feature_flags.*", "versions of a cluster agree by themselves", nil},
		{"cluster_tags.*", "nodes and clusters have no tags", nil},
		{"node_tags.*", "nodes and clusters have no tags", nil},
	}
}

// absentKeys have no effect, as what they configure is not there.
func absentKeys() []borrowed {
	return []borrowed{
		{"trace_vhosts.*", noPlugin, nil},
		{"mqtt.*", noPlugin, nil},
		{"stomp.*", noPlugin, nil},
		{"stream.*", noPlugin, nil},
		{"web_mqtt.*", noPlugin, nil},
		{"web_stomp.*", noPlugin, nil},
		{"shovel.*", noPlugin, nil},
		{"federation.*", noPlugin, nil},
		{"auth_ldap.*", noPlugin, nil},
		{"auth_http.*", noPlugin, nil},
		{"auth_oauth2.*", noPlugin, nil},
		{"auth_cache.*", noPlugin, nil},
		{"trust_store.*", noPlugin, nil},
		{"amqp_client.*", noPlugin, nil},
		{"amqp10_client.*", noPlugin, nil},
		{"anonymous_login_pass", "anonymous_login_user needs no password there", nil},
		{"channel_tx_message_max", "see amqp.md for the limits of transactions", nil},
		{"channel_interceptor.*", noDetours, nil},
		{"message_interceptors.*", noDetours, nil},
		{"exchange_types.*", "see amqp.md for the types that there are", nil},
		{"queue_types.*", "see queues.md for the types that there are", nil},
		{"runtime_parameters.*", "runtime parameters belong to plug-ins, and there are none", nil},
		{"listeners.startup_delay", "a node listens when it is ready to serve clients", nil},
		{"ranch_connection_max", "use max_connections", nil},
		{"http_dispatch.*", "requests that change something are written to the audit log; see security.md", nil},
		{"message_store_shutdown_timeout", ownStore, nil},
		{"metadata_store.*", "the catalog is a Raft group of quorate's own", nil},
		{"prevent_startup_if_node_was_reset", "a node that lost its data does not regain its vote by itself; see cluster.md", nil},
		{"vhost_restart_strategy", "a vhost does not stop", nil},
		{"nodename", "use node_name", nil},
		{"product.*", "use server_properties.product", nil},
		{"motd_file", "no message is printed at startup", nil},
		{"default_worker_pool_size", noErlang, nil},
		{"distributed_cookie", "nodes authenticate each other by certificates; see cluster.md", nil},
		{"distribution.*", "nodes listen for each other at cluster.listener", nil},
		{"erlang.*", noErlang, nil},
		{"sysmon_handler.*", noErlang, nil},
	}
}

// borrow applies a key of rabbitmq.conf, and reports whether it is one.
func (s *settings) borrow(key, value string) (known bool, err error) {
	for _, b := range borrowedKeys() {
		// A key has no slash: as the separator it lets stars match dots.
		if ok, _ := path.Match(b.key, key); !ok {
			continue
		}
		if b.set == nil {
			s.tell(key, b.about)
			return true, nil
		}
		return true, b.set(s, key, value)
	}
	return false, nil
}

// tell notes that a key has no effect.
func (s *settings) tell(key, why string) { s.warn(key, "has no effect", why) }

// warn notes something else about it.
func (s *settings) warn(key, what, why string) { s.notices = append(s.notices, notice{key, what, why}) }

// as is another setting's name.
func as(key string) func(s *settings, _, v string) error {
	return func(s *settings, _, v string) error { return s.put(key, v) }
}

func refuse(why string) func(*settings, string, string) error {
	return func(*settings, string, string) error { return errors.New(why) }
}

// oneOfValues accepts values that change nothing.
func oneOfValues(otherwise string, values ...string) func(*settings, string, string) error {
	return func(_ *settings, _, v string) error {
		if !slices.Contains(values, v) {
			return fmt.Errorf("%q is not one of %s: %s", v, strings.Join(values, ", "), otherwise)
		}
		return nil
	}
}

// onlyValue accepts one value, and passes it on to another setting, if there is one.
func onlyValue(only, key string) func(*settings, string, string) error {
	return func(s *settings, _, v string) error {
		if v != only {
			return fmt.Errorf("%q is not supported, only %s", v, only)
		}
		if key == "" {
			return nil
		}
		return s.put(key, v)
	}
}

func onlyNamed(key, only string) func(*settings, string, string) error {
	return func(_ *settings, name, v string) error {
		if name != key || v != only {
			return fmt.Errorf("only %s = %s is supported", key, only)
		}
		return nil
	}
}

// listenerPort changes the port of a listener. Without an address, which the key host may give, it
// is on all interfaces.
func listenerPort(host, key string, field func(*settings) string) func(*settings, string, string) error {
	return func(s *settings, _, v string) error {
		ip := ""
		if _, ok := s.given[host]; ok {
			ip, _, _ = net.SplitHostPort(field(s))
		}
		return s.put(key, net.JoinHostPort(ip, v))
	}
}

// listenerHost changes the address of a listener, whose port is fallback if it has none.
func listenerHost(fallback, key string, field func(*settings) string) func(*settings, string, string) error {
	return func(s *settings, _, v string) error {
		if net.ParseIP(v) == nil {
			return fmt.Errorf("%q is not an IP address", v)
		}
		_, port, _ := net.SplitHostPort(field(s))
		return s.put(key, net.JoinHostPort(v, cmp.Or(port, fallback)))
	}
}

// addVersion adds one TLS version to those before, or replaces the default ones.
func addVersion(s *settings, _, v string) error {
	next := append(slices.Clip(s.versionList), v)
	err := s.put("ssl_options.versions", strings.Join(next, ","))
	if err == nil {
		s.versionList = next
	}
	return err
}

func oneLoopbackUser(s *settings, name, v string) error {
	user := strings.TrimPrefix(name, "loopback_users.")
	users := slices.DeleteFunc(slices.Clone(s.loopbackUsers), func(u string) bool { return u == user })
	switch v {
	case "true":
		users = append(users, user)
	case "false":
	default:
		return fmt.Errorf("%q is not true or false", v)
	}
	return s.put("loopback_users", cmp.Or(strings.Join(users, ","), "none"))
}

// logLevel takes the levels of rabbitmq.conf that quorate has, and the next one for the others.
func logLevel(s *settings, _, v string) error {
	switch v {
	case "critical":
		v = "error"
	case "notice":
		v = "info"
	}
	return s.put("log.console.level", v)
}

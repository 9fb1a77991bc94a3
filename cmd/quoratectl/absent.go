package main

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
	{"federation_status", noPlugins}, {"restart_federation_link", noPlugins}, {"list_amqp10_sessions", "AMQP 1.0 is not supported"},
	{"enable_auth_attempt_source_tracking", "every failed login is in the audit log with its address, see docs/security.md"}, {"disable_auth_attempt_source_tracking", "every failed login is in the audit log with its address, see docs/security.md"},
	{"list_node_auth_attempt_stats", byMetrics}, {"reset_node_auth_attempt_metrics", byMetrics}, {"message_size_stats", byMetrics},
	{"cipher_suites", "those of TLS 1.2 and 1.3 that Go's crypto/tls has, see docs/security.md"}, {"tls_versions", "1.2 and 1.3"}, {"certificates", "use certs show, or check_certificate_expiration"},
	{"resolver_info", "the system's resolver: resolve_hostname"}, {"list_network_interfaces", "ip address, or the list of listeners: listeners"},
	{"activate_free_disk_space_monitoring", "it is always active: set_disk_free_limit"}, {"deactivate_free_disk_space_monitoring", "it is always active: set_disk_free_limit"},
	{"post_upgrade", "rebalance quorum"}, {"autocomplete", "use completion"},
}

package main

import (
	"net/url"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// queueVerbs list what is in vhosts.
func queueVerbs() []verb {
	ctl := []string{ctlName}
	return []verb{
		{name: "list_queues", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the queues of a vhost", columns: names(queueColumns), run: listQueues, also: ctl, live: true, example: "-p shop name messages_ready leader --watch 2"},
		{name: "list_unresponsive_queues", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the queues of a vhost whose leader does not answer", columns: names(queueColumns), run: listUnresponsive, also: ctl, live: true, example: "name state"},
		{name: "time", arguments: "[COLUMN ...]", maxArguments: -1, about: "shows what comes next in all queues: how much expires, dies, fires, times out, is retried and returns within a minute, an hour and a day", columns: names(nextColumns), run: showTime, live: true, example: "event minute hour"},
		{name: "time_of_queues", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the queues of a vhost in which something comes within a day, those first in which it comes first", columns: names(queueTimeColumns), run: listTimes, live: true, example: "-p shop name next_at expire_minute fire_minute"},
		{name: "queue_timers", arguments: "QUEUE", least: 1, maxArguments: 1, about: "shows what a queue waits for: its next scheduled message, the next that expires, its own end, and its consumers' deadlines", run: queueTimers, live: true, example: "orders"},
		{name: "list_policies_that_match", arguments: "QUEUE", least: 1, maxArguments: 1, about: "lists the policies of a vhost whose pattern matches a queue, the effective one first", run: listMatching, also: []string{ctlName, diagnosticsName}, example: "orders"},
		{name: "list_exchanges", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the exchanges of a vhost", columns: names(exchangeColumns), run: listExchanges, also: ctl, live: true, example: "name type"},
		{name: "list_bindings", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the bindings of a vhost", columns: names(bindingColumns), run: listBindings, also: ctl, example: "source_name destination_name routing_key"},
	}
}

// messageVerbs are about messages.
func messageVerbs() []verb {
	return append([]verb{
		{name: "peek", arguments: "QUEUE [STATE [AFTER]]", least: 1, maxArguments: 3, about: "shows up to 50 messages without changing anything", more: " STATE is ready, unacked, scheduled, delayed, deferred or parked, AFTER the number of the last one shown.", run: peek, also: []string{queuesName}, example: "orders ready 4711"},
		{name: "list_deferred", arguments: "QUEUE", least: 1, maxArguments: 1, about: "lists messages that consumers of a queue have put aside, with their tokens", run: listDeferred, example: "orders"},
		{name: "list_groups", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the groups of messages of a queue, and who holds them", columns: names(groupColumns), run: listGroups, options: []option{queueOption}, live: true, example: "--queue orders id held messages"},
		{name: "kick", arguments: "QUEUE [COUNT]", least: 1, maxArguments: 2, about: "retries delayed messages of a queue at once, those due next first; without COUNT all of them", run: retryNow, example: "orders 3"},
		{name: "unpark", arguments: "QUEUE [COUNT]", least: 1, maxArguments: 2, about: "makes parked messages of a queue ready, those parked first before others; without COUNT all of them", more: " Their failed deliveries count anew.", run: unpark, example: "orders 3"},
	}, delayedVerbs()...)
}

// stat shows one of a queue's stats; nil if its leader has not answered.
func stat(value func(f *api.QueueStats) uint64) func(api.Queue) any {
	return func(q api.Queue) any {
		if q.QueueStats == nil {
			return nil
		}
		return value(q.QueueStats)
	}
}

var queueColumns = []column[api.Queue]{
	{"name", "of the queue", func(q api.Queue) any { return q.Name }},
	{"messages", "all it holds", stat(func(f *api.QueueStats) uint64 { return f.Messages })},
	{"messages_ready", "ready", stat(func(f *api.QueueStats) uint64 { return f.Ready })},
	{"messages_unacknowledged", "delivered and not acknowledged", stat(func(f *api.QueueStats) uint64 { return f.Unacknowledged })},
	{"messages_scheduled", "waiting for their time", stat(func(f *api.QueueStats) uint64 { return f.Scheduled })},
	{"messages_delayed", "these, and returned ones that are tried again later", stat(func(f *api.QueueStats) uint64 { return f.Delayed })},
	{"messages_delayed_retry", "returned ones that are tried again later", stat(func(f *api.QueueStats) uint64 { return f.DelayedRetry })},
	{"messages_locked", "unacknowledged ones with a lock", stat(func(f *api.QueueStats) uint64 { return f.Locked })},
	{"locks_lost_total", "locks that ended before their message was settled", stat(func(f *api.QueueStats) uint64 { return f.LocksLostTotal })},
	{"messages_deferred", "put aside by consumers", stat(func(f *api.QueueStats) uint64 { return f.Deferred })},
	{"messages_parked", "over the default delivery limit", stat(func(f *api.QueueStats) uint64 { return f.Parked })},
	{"messages_dlx", "dead letters on their way", stat(func(f *api.QueueStats) uint64 { return f.DeadLetters })},
	{"messages_dlx_waiting", "dead letters with nowhere to go for now", stat(func(f *api.QueueStats) uint64 { return f.DeadLettersWaiting })},
	{"message_bytes_dlx", "of dead letters on their way", stat(func(f *api.QueueStats) uint64 { return f.DeadLetterBytes })},
	{"messages_forwarding", "those of messages_dlx that have not died, but are forwarded", stat(func(f *api.QueueStats) uint64 { return f.Forwarding })},
	{"messages_forwarded_total", "that arrived where the queue forwards", stat(func(f *api.QueueStats) uint64 { return f.ForwardedTotal })},
	{"messages_dead_lettered_expired_total", "deaths by expiry", stat(func(f *api.QueueStats) uint64 { return f.DiedExpiredTotal })},
	{"messages_dead_lettered_rejected_total", "deaths by rejection", stat(func(f *api.QueueStats) uint64 { return f.DiedRejectedTotal })},
	{"messages_dead_lettered_maxlen_total", "deaths by a length limit", stat(func(f *api.QueueStats) uint64 { return f.DiedMaxlenTotal })},
	{"messages_dead_lettered_delivery_limit_total", "deaths by the delivery limit", stat(func(f *api.QueueStats) uint64 { return f.DiedDeliveryLimitTotal })},
	{"messages_dead_lettered_unroutable_total", "that left a delayed exchange and had no route", stat(func(f *api.QueueStats) uint64 { return f.DiedUnroutableTotal })},
	{"messages_dead_lettered_group_expired_total", "deaths with another message of the group", stat(func(f *api.QueueStats) uint64 { return f.DiedGroupExpiredTotal })},
	{"messages_dead_lettered_maxhops_total", "deaths by too many forwards", stat(func(f *api.QueueStats) uint64 { return f.DiedMaxhopsTotal })},
	{"messages_purged_total", "purged", stat(func(f *api.QueueStats) uint64 { return f.PurgedTotal })},
	{"messages_cancelled_total", "cancelled while they were scheduled", stat(func(f *api.QueueStats) uint64 { return f.UnqueuedTotal })},
	{"messages_replaced_total", "replaced while they were scheduled", stat(func(f *api.QueueStats) uint64 { return f.ReplacedTotal })},
	{"messages_dead_lettered_confirmed_total", "dead letters that arrived", stat(func(f *api.QueueStats) uint64 { return f.DeadConfirmedTotal })},
	{"dead_letters_dropped_total", "dead letters lost", stat(func(f *api.QueueStats) uint64 { return f.DeadLettersDroppedTotal })},
	{"message_bytes", "of all it holds", stat(func(f *api.QueueStats) uint64 { return f.Bytes })},
	{"consumers", "registered", stat(func(f *api.QueueStats) uint64 { return f.Consumers })},
	{"state", "running, minority or down", func(q api.Queue) any { return q.State }},
	{"leader", "node that leads", func(q api.Queue) any { return orNone(q.Leader) }},
	{"members", "nodes with a replica", func(q api.Queue) any { return q.Members }},
	{"online", "those that are up", func(q api.Queue) any { return q.Online }},
	{"type", "quorum or classic", func(q api.Queue) any { return q.Type }},
	{"durable", "", func(q api.Queue) any { return q.Durable }},
	{"auto_delete", "", func(q api.Queue) any { return q.AutoDelete }},
	{"exclusive", "", func(q api.Queue) any { return q.Exclusive }},
	{"arguments", "as declared", func(q api.Queue) any { return q.Arguments }},
	{"policy", "in force", func(q api.Queue) any { return q.Policy }},
	{"operator_policy", "in force", func(q api.Queue) any { return q.OperatorPolicy }},
	{"effective_policy_definition", "both policies", func(q api.Queue) any { return q.EffectiveDefinition }},
	{"delivery_limit", "in force", func(q api.Queue) any { return q.DeliveryLimit }},
	{"dead_letter_strategy", "in force", func(q api.Queue) any { return q.DeadLetterStrategy }},
}

func orNone(s *string) any {
	if s == nil {
		return nil
	}
	return *s
}

func listQueues(c *call) error {
	return listAt(c, path("queues", c.options.vhost), "Listing queues for vhost "+c.options.vhost+" ...", queueColumns, c.words, 2)
}

func listUnresponsive(c *call) error {
	var rows []api.Queue
	if err := c.get(path("queues", c.options.vhost), &rows); err != nil {
		return err
	}
	rows = slices.DeleteFunc(rows, func(q api.Queue) bool { return q.QueueStats != nil })
	return list(c, "Listing unresponsive queues for vhost "+c.options.vhost+" ...", queueColumns, c.words, 1, rows)
}

var messageColumns = []column[api.PeekedMessage]{
	{"number", "", func(m api.PeekedMessage) any { return m.Number }},
	{"state", "", func(m api.PeekedMessage) any { return m.State }},
	{"exchange", "", func(m api.PeekedMessage) any { return m.Exchange }},
	{"routing_key", "", func(m api.PeekedMessage) any { return m.RoutingKey }},
	{"redelivered", "", func(m api.PeekedMessage) any { return m.Redelivered }},
	{"expires_at", "", func(m api.PeekedMessage) any { return m.ExpiresAt }},
	{"due_at", "", func(m api.PeekedMessage) any { return m.DueAt }},
	{"properties", "", func(m api.PeekedMessage) any { return m.Properties }},
	{"payload_bytes", "", func(m api.PeekedMessage) any { return m.PayloadBytes }},
	{"payload_encoding", "", func(m api.PeekedMessage) any { return m.PayloadEncoding }},
	{"payload", "", func(m api.PeekedMessage) any { return m.Payload }},
}

func peek(c *call) error {
	query := url.Values{}
	for i, name := range []string{"state", "after"} {
		if len(c.words) > i+1 {
			query.Set(name, c.words[i+1])
		}
	}
	var page api.PeekPage
	if err := c.get(path("queues", c.options.vhost, c.words[0], "messages", "peek")+"?"+query.Encode(), &page); err != nil {
		return err
	}
	return list(c, "Messages of queue "+c.words[0]+" ...", messageColumns, nil, len(messageColumns), page.Items)
}

var consumerColumns = []column[api.Consumer]{
	{"queue_name", "", func(x api.Consumer) any { return x.Queue.Name }},
	{"consumer_tag", "", func(x api.Consumer) any { return x.Tag }},
	{"ack_required", "", func(x api.Consumer) any { return x.AckRequired }},
	{"prefetch_count", "0: the most there is", func(x api.Consumer) any { return x.PrefetchCount }},
	{"active", "not waiting for a single active consumer", func(x api.Consumer) any { return x.Active }},
	{"activity_status", "up, single_active, waiting, suspected_down or timeout", func(x api.Consumer) any { return x.ActivityStatus }},
	{"messages_unacknowledged", "in its hands", func(x api.Consumer) any { return x.Unacknowledged }},
	{"oldest_unacked_age_ms", "of what is in its hands", func(x api.Consumer) any { return x.OldestUnackedAgeMS }},
	{"timed_out", "deliveries that have gone back and are not settled", func(x api.Consumer) any { return x.TimedOut }},
	{"late_acks", "settlements of such", func(x api.Consumer) any { return x.LateAcksTotal }},
	{"lock_duration_ms", "of the next delivery; 0: none", func(x api.Consumer) any { return x.Lock }},
	{"lock_mode", "all or head", func(x api.Consumer) any { return x.LockMode }},
	{"lost_locks", "deliveries whose lock has ended and that are not settled", func(x api.Consumer) any { return x.LostLocks }},
	{"late_settlements", "settlements of such", func(x api.Consumer) any { return x.LateSettlementsTotal }},
	{"effective_timeout_ms", "of the next delivery; -1: none", func(x api.Consumer) any { return x.Timeout }},
	{"timeout_source", "consumer, queue, policy, node or none", func(x api.Consumer) any { return x.TimeoutSource }},
	{"exclusive", "", func(x api.Consumer) any { return x.Exclusive }},
	{"priority", "", func(x api.Consumer) any { return x.Priority }},
	{"arguments", "those that are known", func(x api.Consumer) any { return x.Arguments }},
	{"node", "that serves the client", func(x api.Consumer) any { return x.Node }},
}

func listConsumers(c *call) error {
	return listAt(c, path("consumers", c.options.vhost), "Listing consumers in vhost "+c.options.vhost+" ...", consumerColumns, c.words, 12)
}

var timeoutColumns = []column[api.ConsumerTimeout]{
	{"at", "ms since 1970", func(x api.ConsumerTimeout) any { return x.At }},
	{"queue_name", "", func(x api.ConsumerTimeout) any { return x.Queue.Name }},
	{"consumer_tag", "", func(x api.ConsumerTimeout) any { return x.Tag }},
	{"messages", "that went back", func(x api.ConsumerTimeout) any { return x.Messages }},
	{"held_ms", "the longest of them", func(x api.ConsumerTimeout) any { return x.HeldMS }},
	{"timeout_ms", "the smallest of them", func(x api.ConsumerTimeout) any { return x.Timeout }},
	{"action", "cancel, suspend, channel_close or get", func(x api.ConsumerTimeout) any { return x.Action }},
	{"node", "that served the client", func(x api.ConsumerTimeout) any { return x.Node }},
	{"leader", "that led the queue", func(x api.ConsumerTimeout) any { return x.Leader }},
}

func listTimeouts(c *call) error {
	return listAt(c, path("quorate", "timeouts", c.options.vhost), "Listing consumer timeouts in vhost "+c.options.vhost+" ...", timeoutColumns, c.words, 7)
}

var exchangeColumns = []column[api.Exchange]{
	{"name", "", func(x api.Exchange) any { return x.Name }},
	{"type", "", func(x api.Exchange) any { return x.Type }},
	{"durable", "", func(x api.Exchange) any { return x.Durable }},
	{"auto_delete", "", func(x api.Exchange) any { return x.AutoDelete }},
	{"internal", "", func(x api.Exchange) any { return x.Internal }},
	{"arguments", "", func(x api.Exchange) any { return x.Arguments }},
	{"messages_delayed", "waiting for their time", func(x api.Exchange) any {
		if x.DelayStats == nil {
			return nil
		}
		return x.DelayStats.Delayed
	}},
	{"policy", "", func(x api.Exchange) any { return x.Policy }},
}

func listExchanges(c *call) error {
	return listAt(c, path("exchanges", c.options.vhost), "Listing exchanges for vhost "+c.options.vhost+" ...", exchangeColumns, c.words, 2)
}

var bindingColumns = []column[api.Binding]{
	{"source_name", "", func(b api.Binding) any { return b.Source }},
	{"source_kind", "", func(api.Binding) any { return "exchange" }},
	{"destination_name", "", func(b api.Binding) any { return b.Destination }},
	{"destination_kind", "", func(b api.Binding) any { return b.DestinationType }},
	{"routing_key", "", func(b api.Binding) any { return b.RoutingKey }},
	{"arguments", "", func(b api.Binding) any { return b.Arguments }},
}

func listBindings(c *call) error {
	return listAt(c, path("bindings", c.options.vhost), "Listing bindings for vhost "+c.options.vhost+" ...", bindingColumns, c.words, len(bindingColumns))
}

package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm/pattern"
)

// timer is something that a queue waits for.
type timer struct {
	Name string `json:"timer"`
	Of   string `json:"of"`
	at   int64  // ms since 1970
}

var timerColumns = columnsOf("timer of at remaining_ms",
	column[timer]{"at", func(t timer) any { return time.UnixMilli(t.at).UTC().Format("2006-01-02T15:04:05.000Z") }},
	column[timer]{"remaining_ms", func(t timer) any { return time.Until(time.UnixMilli(t.at)).Milliseconds() }},
)

// queueTimers shows what a queue and its consumers wait for, what is next first.
func queueTimers(c *call) error {
	var q api.Queue
	if err := c.get(path("queues", c.options.vhost, c.words[0]), &q); err != nil {
		return err
	}
	var consumers []api.Consumer
	if err := c.get(path("consumers", c.options.vhost), &consumers); err != nil {
		return err
	}
	var timers []timer
	add := func(name, of string, at int64) {
		if at > 0 {
			timers = append(timers, timer{name, of, at})
		}
	}
	if q.QueueStats == nil {
		return &exitError{exitTemporary, fmt.Errorf("queue %q has no leader that answers", c.words[0])}
	}
	add("scheduled_message", "", q.NextDelayedAt)
	for name, at := range map[string]*int64{"message_expiry": q.NextExpiryAt, "queue_expiry": q.LeaseExpiresAt} {
		if at != nil {
			add(name, "", *at)
		}
	}
	for _, x := range consumers {
		if x.Queue.Name == c.words[0] {
			add("consumer_deadline", x.Tag, x.NextDeadline)
		}
	}
	slices.SortFunc(timers, func(a, b timer) int { return cmp.Compare(a.at, b.at) })
	return list(c, "Timers of queue "+c.words[0]+" ...", timerColumns, nil, timers)
}

// timeKinds are what may come next, and how the API counts it.
var timeKinds = []struct {
	name, about string
	of          func(c *api.TimeCounts) uint64
}{
	{"expire", "messages that expire", func(c *api.TimeCounts) uint64 { return c.Expire }},
	{"dead_letter", "of these: those that become dead letters", func(c *api.TimeCounts) uint64 { return c.DeadLetter }},
	{"fire", "scheduled messages", func(c *api.TimeCounts) uint64 { return c.Fire }},
	{"time_out", "deliveries that are taken back from consumers", func(c *api.TimeCounts) uint64 { return c.TimeOut }},
	{"unlock", "deliveries whose locks end", func(c *api.TimeCounts) uint64 { return c.Unlock }},
	{"retry", "failed messages that are retried", func(c *api.TimeCounts) uint64 { return c.Retry }},
	{"return", "deferred messages that return", func(c *api.TimeCounts) uint64 { return c.Return }},
	{"delete", "unused queues that are deleted", func(c *api.TimeCounts) uint64 { return c.Delete }},
}

// nextRow is a kind with its counts.
type nextRow struct {
	Event   string `json:"event"`
	About   string `json:"about"`
	Minute  uint64 `json:"minute"`
	Hour    uint64 `json:"hour"`
	Day     uint64 `json:"day"`
	AtLeast bool   `json:"at_least"`
}

var nextColumns = columnsOf[nextRow]("event minute hour day at_least")

// showTime shows what comes next in all queues.
func showTime(c *call) error {
	var t api.Time
	if err := c.get("/api/quorate/time", &t); err != nil {
		return err
	}
	var rows []nextRow
	for _, k := range timeKinds {
		rows = append(rows, nextRow{k.name, k.about, k.of(&t.Minute), k.of(&t.Hour), k.of(&t.Day), t.AtLeast})
	}
	title := fmt.Sprintf("What comes next in %d queues ...", t.Queues)
	if t.Unknown > 0 {
		title = fmt.Sprintf("What comes next in %d queues, not counting %d without a leader that answers ...", t.Queues, t.Unknown)
	}
	return list(c, title, nextColumns, c.words, rows)
}

// queueTimeColumns are what a queue is, and the counts of an hour, a minute and a day.
var queueTimeColumns = func() columns[api.QueueTime] {
	shown := "name next_at"
	var counts []column[api.QueueTime]
	for _, span := range []struct {
		name string
		of   func(q *api.QueueTime) *api.TimeCounts
	}{
		{"hour", func(q *api.QueueTime) *api.TimeCounts { return &q.Hour }},
		{"minute", func(q *api.QueueTime) *api.TimeCounts { return &q.Minute }},
		{"day", func(q *api.QueueTime) *api.TimeCounts { return &q.Day }},
	} {
		for _, k := range timeKinds {
			if span.name == "hour" {
				shown += " " + k.name + "_hour"
			}
			counts = append(counts, column[api.QueueTime]{k.name + "_" + span.name, func(q api.QueueTime) any { return k.of(span.of(&q)) }})
		}
	}
	return columnsOf(shown, counts...)
}()

// listTimes lists the queues of a vhost in which something comes within a day.
var listTimes = listing(queueTimeColumns, "Listing what comes next in queues of vhost VHOST ...", "quorate", "time", "queues", "VHOST")

// listMatching lists policies by their patterns, as a node matches them.
func listMatching(c *call) error {
	var q api.Queue
	if err := c.get(path("queues", c.options.vhost, c.words[0]), &q); err != nil {
		return err
	}
	var all, rows []api.Policy
	if err := c.get(path("policies", c.options.vhost), &all); err != nil {
		return err
	}
	kinds := []string{"all", "queues", q.Type + "_queues"}
	for _, p := range all {
		names, err := pattern.Compile(p.Pattern)
		if err == nil && names.Match(q.Name) && slices.Contains(kinds, p.ApplyTo) {
			rows = append(rows, p)
		}
	}
	slices.SortStableFunc(rows, func(a, b api.Policy) int {
		if effective := (b.Name == q.Policy); effective != (a.Name == q.Policy) {
			if effective {
				return 1
			}
			return -1
		}
		return cmp.Compare(b.Priority, a.Priority)
	})
	return list(c, "Listing policies that match queue "+c.words[0]+" ...", policyColumns, nil, rows)
}

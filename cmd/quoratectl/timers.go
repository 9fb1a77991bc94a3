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
	name, of string
	at       int64 // ms since 1970
}

var timerColumns = []column[timer]{
	{"timer", "what happens", func(t timer) any { return t.name }},
	{"of", "consumer tag", func(t timer) any { return t.of }},
	{"at", "UTC", func(t timer) any { return time.UnixMilli(t.at).UTC().Format("2006-01-02T15:04:05.000Z") }},
	{"remaining_ms", "by this machine's clock", func(t timer) any { return time.Until(time.UnixMilli(t.at)).Milliseconds() }},
}

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
	return list(c, "Timers of queue "+c.words[0]+" ...", timerColumns, nil, len(timerColumns), timers)
}

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
	return list(c, "Listing policies that match queue "+c.words[0]+" ...", policyColumns, nil, len(policyColumns), rows)
}

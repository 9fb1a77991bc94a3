package main

import (
	"fmt"
	"net/url"
	"strconv"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// delayedOptions select waiting messages.
var delayedOptions = []string{"exchange", "queue", "id", "match"}

var scheduledColumns = []column[api.Scheduled]{
	{"id", "of the message", func(m api.Scheduled) any { return m.ID }},
	{"schedule_id", "given by its publisher", func(m api.Scheduled) any { return m.ScheduleID }},
	{"due_at", "ms since the epoch", func(m api.Scheduled) any { return m.DueAt }},
	{"remaining_ms", "until then", func(m api.Scheduled) any { return m.RemainingMS }},
	{"routing_key", "it was published with", func(m api.Scheduled) any { return m.RoutingKey }},
	{"bytes", "of its body", func(m api.Scheduled) any { return m.Bytes }},
	{"message_id", "property", func(m api.Scheduled) any { return m.MessageID }},
}

// delayedVerbs are the actions on messages that wait for their time.
var delayedVerbs = map[string]struct {
	words int // after the verb
	run   func(c *call, at string) error
}{
	"list":       {0, listDelayed},
	"count":      {0, countDelayed},
	"cancel":     {0, func(c *call, at string) error { return cancelDelayed(c, at, false) }},
	"purge":      {0, func(c *call, at string) error { return cancelDelayed(c, at, true) }},
	"reschedule": {1, rescheduleDelayed},
	"fire":       {0, func(c *call, at string) error { return oneDelayed(c, at, "/fire", "POST", nil) }},
}

func delayed(c *call) error {
	v, ok := delayedVerbs[c.words[0]]
	o := c.options
	switch {
	case !ok:
		return usageError("delayed is followed by list, count, cancel, reschedule, fire or purge, not %q", c.words[0])
	case len(c.words) != 1+v.words:
		return usageError("delayed %s takes %d more arguments", c.words[0], v.words)
	case (o.exchange == "") == (o.queue == ""):
		return usageError("delayed needs either --exchange or --queue")
	case o.queue != "":
		return v.run(c, path("queues", o.vhost, o.queue)+"/scheduled")
	}
	return v.run(c, path("exchanges", o.vhost, o.exchange)+"/delayed")
}

func listDelayed(c *call, at string) error {
	var all []api.Scheduled
	for after := ""; ; after = url.QueryEscape(all[len(all)-1].Cursor) {
		var page []api.Scheduled
		if err := c.get(at+"?limit=1000&after="+after, &page); err != nil {
			return err
		}
		if all = append(all, page...); len(page) < 1000 {
			return list(c, "Listing messages that wait ...", scheduledColumns, nil, len(scheduledColumns), all)
		}
	}
}

func countDelayed(c *call, _ string) error {
	var n uint64
	if c.options.queue != "" {
		var q api.Queue
		if err := c.get(path("queues", c.options.vhost, c.options.queue), &q); err != nil {
			return err
		}
		if q.QueueStats == nil {
			return &exitError{exitTemporary, fmt.Errorf("the queue has no leader that answers")}
		}
		n = q.Scheduled
	} else {
		var x api.Exchange
		if err := c.get(path("exchanges", c.options.vhost, c.options.exchange), &x); err != nil {
			return err
		}
		if x.DelayStats == nil {
			return &exitError{exitTemporary, fmt.Errorf("the exchange delays nothing, or has no leader that answers")}
		}
		n = x.DelayStats.Delayed
	}
	_, err := fmt.Fprintln(c.out, n)
	return err
}

// oneDelayed changes the message named by --id.
func oneDelayed(c *call, at, behind, method string, body any) error {
	if c.options.id == "" {
		return usageError("delayed %s needs --id", c.words[0])
	}
	return c.client.do(c, method, at+"/"+url.PathEscape(c.options.id)+behind, body, nil)
}

func rescheduleDelayed(c *call, at string) error {
	n, err := strconv.ParseInt(c.words[1], 10, 64)
	if err != nil || n < 0 {
		return usageError("MILLISECONDS is a whole number from 0, not %q", c.words[1])
	}
	return oneDelayed(c, at, "", "PATCH", map[string]int64{"delay": n})
}

// cancelDelayed cancels one message, those that match or, to purge, all.
func cancelDelayed(c *call, at string, purge bool) error {
	query := ""
	switch {
	case c.options.match != "":
		query = "?match=" + url.QueryEscape(c.options.match)
	case !purge:
		return oneDelayed(c, at, "", "DELETE", nil)
	}
	var r api.Rescheduled
	if err := c.client.do(c, "DELETE", at+query, nil, &r); err != nil {
		return err
	}
	_, err := fmt.Fprintln(c.out, r.Messages)
	return err
}

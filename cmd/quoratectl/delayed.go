package main

import (
	"fmt"
	"net/url"
	"strconv"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

var scheduledColumns = columnsOf[api.Scheduled]("id schedule_id due_at remaining_ms routing_key bytes message_id")

// delayedVerbs are the actions on messages that wait for their time.
func delayedVerbs() []verb {
	place := []option{{"exchange", "`NAME` of the delayed exchange where they wait", ""}, {"queue", "`NAME` of the queue where they wait", ""}}
	id := option{"id", "`ID` of the message", ""}
	match := option{"match", "only messages with the header `HEADER=VALUE`", ""}
	at := func(run func(c *call, at string) error) func(*call) error {
		return func(c *call) error {
			at, err := waitingPlace(c)
			if err != nil {
				return err
			}
			return run(c, at)
		}
	}
	return []verb{{
		name: "delayed", about: "manages messages that wait for their time",
		verbs: []verb{
			{name: "list", about: "lists them in the order in which they are due", options: place, run: at(listDelayed), live: true, example: "--queue orders"},
			{name: "count", about: "counts them", options: place, run: at(countDelayed), live: true, example: "--exchange later"},
			{name: "cancel", about: "deletes one, or those that match", options: append(place, id, match), example: "--exchange later --match order=4711",
				run: at(func(c *call, at string) error { return cancelDelayed(c, at, false) })},
			{name: "purge", about: "deletes all, or those that match", options: append(place, match), example: "--exchange later",
				run: at(func(c *call, at string) error { return cancelDelayed(c, at, true) })},
			{name: "reschedule", arguments: "MILLISECONDS", least: 1, maxArguments: 1, about: "makes one due MILLISECONDS from now", options: append(place, id), run: at(rescheduleDelayed), example: "60000 --queue orders --id 7"},
			{name: "fire", about: "makes one due at once", options: append(place, id), example: "--queue orders --id 7",
				run: at(func(c *call, at string) error { return oneDelayed(c, at, "/fire", "POST", nil) })},
		},
	}}
}

// waitingPlace returns the path of the messages that wait at what the options name.
func waitingPlace(c *call) (string, error) {
	exchange, queue := c.option("exchange"), c.option("queue")
	switch {
	case (exchange == "") == (queue == ""):
		return "", usageError("delayed requires either --exchange or --queue")
	case queue != "":
		return path("queues", c.options.vhost, queue) + "/scheduled", nil
	}
	return path("exchanges", c.options.vhost, exchange) + "/delayed", nil
}

func listDelayed(c *call, at string) error {
	var all []api.Scheduled
	for after := ""; ; after = url.QueryEscape(all[len(all)-1].Cursor) {
		var page []api.Scheduled
		if err := c.get(at+"?limit=1000&after="+after, &page); err != nil {
			return err
		}
		if all = append(all, page...); len(page) < 1000 {
			return list(c, "Listing messages that wait ...", scheduledColumns, nil, all)
		}
	}
}

func countDelayed(c *call, _ string) error {
	var n uint64
	if c.option("queue") != "" {
		var q api.Queue
		if err := c.get(path("queues", c.options.vhost, c.option("queue")), &q); err != nil {
			return err
		}
		if q.QueueStats == nil {
			return &exitError{exitTemporary, fmt.Errorf("the queue has no leader that answers")}
		}
		n = q.Scheduled
	} else {
		var x api.Exchange
		if err := c.get(path("exchanges", c.options.vhost, c.option("exchange")), &x); err != nil {
			return err
		}
		if x.DelayStats == nil {
			return &exitError{exitTemporary, fmt.Errorf("the exchange delays no messages, or its leader does not answer")}
		}
		n = x.DelayStats.Delayed
	}
	_, err := fmt.Fprintln(c.out, n)
	return err
}

// oneDelayed changes the message named by --id.
func oneDelayed(c *call, at, behind, method string, body any) error {
	if !c.given("id") {
		return usageError("--id is required")
	}
	return c.client.do(c, method, at+"/"+url.PathEscape(c.option("id"))+behind, body, nil)
}

func rescheduleDelayed(c *call, at string) error {
	n, err := strconv.ParseInt(c.words[0], 10, 64)
	if err != nil || n < 0 {
		return usageError("MILLISECONDS must be a whole number from 0, not %q", c.words[0])
	}
	return oneDelayed(c, at, "", "PATCH", map[string]int64{"delay": n})
}

// cancelDelayed cancels one message, those that match or, to purge, all.
func cancelDelayed(c *call, at string, purge bool) error {
	query := ""
	switch {
	case c.given("match"):
		query = "?match=" + url.QueryEscape(c.option("match"))
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

var deferredColumns = columnsOf[api.Deferred]("number deferral_token due_at expires_at acquired_count delivery_count routing_key bytes message_id")

func listDeferred(c *call) error {
	var all []api.Deferred
	for after := uint64(0); ; {
		var page api.DeferredPage
		if err := c.get(fmt.Sprintf("%s?limit=1000&after=%d", path("queues", c.options.vhost, c.words[0], "deferred"), after), &page); err != nil {
			return err
		}
		if all, after = append(all, page.Items...), page.Next; after == 0 {
			return list(c, "Listing deferred messages of queue "+c.words[0]+" ...", deferredColumns, nil, all)
		}
	}
}

// wake makes waiting messages of a queue ready, and shows how many.
func wake(verb string) func(*call) error {
	return func(c *call) error {
		count, err := countIn(c.words, 1, 0)
		if err != nil {
			return err
		}
		var r api.Rescheduled
		if err := c.post(path("queues", c.options.vhost, c.words[0], verb), api.Retry{Count: count}, &r); err != nil {
			return err
		}
		_, err = fmt.Fprintln(c.out, r.Messages)
		return err
	}
}

// pausing returns a verb that pauses the consumers of a queue, or resumes them.
func pausing(action string) func(*call) error {
	return func(c *call) error {
		body := map[string]any{}
		if c.given("reason") {
			body["reason"] = c.option("reason")
		}
		if c.given("for") {
			n, err := strconv.ParseInt(c.option("for"), 10, 64)
			if err != nil || n < 1 {
				return usageError("--for must be a whole number of milliseconds from 1, not %q", c.option("for"))
			}
			body["for"] = n
		}
		return c.post(path("queues", c.options.vhost, c.words[0], action), body, nil)
	}
}

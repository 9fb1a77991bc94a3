package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// exitDifferent is the exit code if replicas of a queue differ.
const exitDifferent = 1

// verifyLimit bounds how long all queues together are compared, in seconds.
const verifyLimit = 3600

// historyVerbs are about what happened to messages, and whether replicas agree.
func historyVerbs() []verb {
	return []verb{
		{name: "list_deaths", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the last messages of a queue that ended otherwise than by an acknowledgement", run: listDeaths, columns: endedColumns.names(), live: true,
			options: []option{queueOption, messageIDOption, {"reason", "only ends for `REASON`: expired, rejected, maxlen …", ""}, {"since", "only ends since `MS`, milliseconds since 1970", ""}}, example: "--queue orders --reason expired"},
		{name: "explain", about: "shows what happened to messages of a queue", run: explain, options: []option{queueOption, messageIDOption, {"message", "the message with the `NUMBER`", ""}}, example: "--queue orders --message-id 4711"},
		{name: "verify_replicas", about: "compares the states of all replicas of the catalog and the vhost's queues, or of one queue, each at one entry", more: " Exit code 0: all are equal, 1: some differ, 75: some could not be compared.", run: verifyReplicas, columns: verificationColumns.names(), arguments: "[COLUMN ...]", maxArguments: -1, options: []option{queueOption}, timeout: verifyLimit, example: "--queue orders"},
	}
}

var endedColumns = columnsOf("number at reason count message message_id correlation_id index acquired_count consumer_tag disposition letter_state",
	column[api.Ended]{"at", func(e api.Ended) any { return time.UnixMilli(e.At).UTC().Format("2006-01-02T15:04:05.000Z") }},
)

func listDeaths(c *call) error {
	queue, err := c.queue()
	if err != nil {
		return err
	}
	var all []api.Ended
	for after := uint64(0); ; {
		q := url.Values{"limit": {"1000"}, "after": {fmt.Sprint(after)}}
		for _, name := range []string{"message-id", "reason", "since"} {
			if value := c.option(name); value != "" {
				q.Set(strings.ReplaceAll(name, "-", "_"), value)
			}
		}
		var page api.EndedPage
		if err := c.get(path("queues", c.options.vhost, queue)+"/deaths?"+q.Encode(), &page); err != nil {
			return err
		}
		all = append(all, page.Items...)
		if after = page.Next; after == 0 {
			return list(c, "Listing messages that have ended ...", endedColumns, c.words, all)
		}
	}
}

func explain(c *call) error {
	queue, id, number := c.option("queue"), c.option("message-id"), c.option("message")
	if queue == "" || (id == "") == (number == "") {
		return usageError("explain requires --queue and either --message-id or --message")
	}
	q := url.Values{"message_id": {id}}
	if number != "" {
		q = url.Values{"message": {number}}
	}
	var x api.Explanation
	if err := c.get(path("queues", c.options.vhost, queue)+"/explain?"+q.Encode(), &x); err != nil {
		return err
	}
	if c.options.formatter == "json" {
		return c.json(x)
	}
	x.Print(c.out)
	return nil
}

// verification is one replica in a listing.
type verification struct {
	Name    string `json:"name"`
	Verdict string `json:"verdict"`
	Index   uint64 `json:"index"`
	api.VerifiedReplica
}

var verificationColumns = columnsOf[verification]("name verdict node index state_hash error")

func verifyReplicas(c *call) error {
	queues, err := toVerify(c)
	if err != nil {
		return err
	}
	var rows []verification
	var different, unknown []string
	for _, name := range queues {
		v, at := api.Verification{Verdict: "unknown"}, path("quorate", "catalog")
		if name != "" {
			at = path("quorate", "queues", c.options.vhost, name)
		}
		if err := c.get(at+"/verify", &v); err != nil {
			var e *exitError
			switch {
			case !errors.As(err, &e) || e.code != exitData || c.option("queue") != "":
				return err
			case name != "":
				continue // it was deleted meanwhile
			} // else the node is too old to compare the catalog
		}
		name = cmp.Or(name, "the catalog")
		switch v.Verdict {
		case "equal":
		case "different":
			different = append(different, name)
		default:
			unknown = append(unknown, name)
		}
		for _, r := range v.Replicas {
			rows = append(rows, verification{v.Queue, v.Verdict, v.Index, r})
		}
	}
	if err := list(c, "Comparing replicas ...", verificationColumns, c.words, rows); err != nil {
		return err
	}
	switch {
	case len(different) > 0:
		return &exitError{exitDifferent, fmt.Errorf("replicas differ: %s", strings.Join(different, ", "))}
	case len(unknown) > 0:
		return &exitError{exitTemporary, fmt.Errorf("not all replicas could be compared: %s", strings.Join(unknown, ", "))}
	}
	return nil
}

// toVerify lists the queues to compare: those that are replicated. An empty name, the first, stands for
// the catalog.
func toVerify(c *call) (names []string, err error) {
	if c.option("queue") != "" {
		return []string{c.option("queue")}, nil
	}
	var all []api.Queue
	if err := c.get(path("queues", c.options.vhost)+"?disable_stats=true", &all); err != nil {
		return nil, err
	}
	names = []string{""}
	for _, q := range all {
		if q.Durable && !q.Exclusive {
			names = append(names, q.Name)
		}
	}
	return names, context.Cause(c)
}

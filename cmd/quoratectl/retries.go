package main

import (
	"fmt"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

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

// retryNow makes delayed messages ready.
func retryNow(c *call) error { return wake(c, "kick") }

// unpark makes parked messages ready.
func unpark(c *call) error { return wake(c, "unpark") }

// wake makes waiting messages of a queue ready, and shows how many.
func wake(c *call, verb string) error {
	count, err := countIn(c.words, 1, 0)
	if err != nil {
		return err
	}
	asked := api.Retry{Count: count}
	var r api.Rescheduled
	if err := c.post(path("queues", c.options.vhost, c.words[0], verb), asked, &r); err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.out, r.Messages)
	return err
}

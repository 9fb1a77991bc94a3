package main

import (
	"net/url"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

var groupColumns = columnsOf[api.Group]("id held consumer_tag session locked_until remaining_ms messages messages_unacknowledged oldest state_bytes state_until")

func listGroups(c *call) error {
	queue, err := c.queue()
	if err != nil {
		return err
	}
	var all []api.Group
	for after := ""; ; {
		var page api.GroupPage
		q := url.Values{"limit": {"1000"}, "after": {after}}
		if err := c.get(path("queues", c.options.vhost, queue, "groups")+"?"+q.Encode(), &page); err != nil {
			return err
		}
		if all, after = append(all, page.Items...), page.Next; after == "" {
			return list(c, "Listing groups of queue "+queue+" ...", groupColumns, c.words, all)
		}
	}
}

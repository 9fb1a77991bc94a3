package main

import (
	"net/url"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

var groupColumns = []column[api.Group]{
	{"id", "", func(g api.Group) any { return g.ID }},
	{"held", "a consumer holds it", func(g api.Group) any { return g.Held }},
	{"consumer_tag", "of who holds it", func(g api.Group) any { return g.ConsumerTag }},
	{"session", "of who holds it", func(g api.Group) any { return g.Session }},
	{"locked_until", "0: until it is given up", func(g api.Group) any { return g.LockedUntil }},
	{"remaining_ms", "until then", func(g api.Group) any { return g.Remaining }},
	{"messages", "", func(g api.Group) any { return g.Messages }},
	{"messages_unacknowledged", "", func(g api.Group) any { return g.Unacknowledged }},
	{"oldest", "when the first of the others was enqueued", func(g api.Group) any { return g.OldestAt }},
	{"state_bytes", "", func(g api.Group) any { return g.StateBytes }},
	{"state_until", "0: until it is cleared", func(g api.Group) any { return g.StateUntil }},
}

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
			return list(c, "Listing groups of queue "+queue+" ...", groupColumns, c.words, len(groupColumns), all)
		}
	}
}

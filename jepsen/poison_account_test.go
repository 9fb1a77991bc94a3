package jepsen

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/internal/await"
	amqp "github.com/rabbitmq/amqp091-go"
)

func badRequest(format string, args ...any) string { return fmt.Sprintf("400 "+format, args...) }

func patternTooLong(_ *poisoned, text string) string {
	if len(text) <= 1024 {
		return ""
	}
	return badRequest("the pattern is longer than 1024 bytes")
}

var allOf = map[string]any{"configure": ".*", "write": ".*", "read": ".*"}

// poisonedDefinitions are texts in what operators define by HTTP.
var poisonedDefinitions = []poison{
	{name: "name of a user", path: true, try: newUser, refusal: func(_ *poisoned, text string) string { return nameTooLong("user", text, badRequest) }},
	{name: "name of a user without rights", short: true, try: func(p *poisoned, text string) error {
		name := ending(text, "n")
		if err := p.put(path("users", name), map[string]any{"password": "p", "tags": ""}); err != nil {
			return err
		}
		if err := p.put("/api/permissions/%2F/"+url.PathEscape(name), map[string]any{"configure": "^$", "write": "^$", "read": "^$"}); err != nil {
			return err
		}
		return p.useAs(name, "p", "/")
	}, refusal: func(p *poisoned, text string) string {
		return reply(403, "ACCESS_REFUSED", "configure access to queue '%s' in vhost '/' refused for user '%s'", p.id, ending(text, "n"))
	}},
	{name: "password", try: func(p *poisoned, text string) error {
		if err := p.put(path("users", p.id), map[string]any{"password": text, "tags": ""}); err != nil {
			return err
		}
		if err := p.put("/api/permissions/%2F/"+p.id, allOf); err != nil || len(text) > 4000 {
			return err // before the login a frame has 8 KiB at most
		}
		return p.useAs(p.id, text, "/")
	}},
	{name: "tag of a user", try: func(p *poisoned, text string) error {
		if err := p.put(path("users", p.id), map[string]any{"password": "p", "tags": text}); err != nil {
			return err
		}
		return p.same("users", "tags", []any{text})
	}, refusal: func(p *poisoned, text string) string { return tooLargeAs(badRequest, "tags of user", p.id, len(text)) }},
	{name: "hashing algorithm", try: func(p *poisoned, text string) error {
		return p.put(path("users", p.id), map[string]any{"password_hash": "YWFhYQ==", "hashing_algorithm": text, "tags": ""})
	}, refusal: func(_ *poisoned, text string) string {
		return badRequest("hashing_algorithm %s is not supported", text)
	}},
	{name: "name of a vhost", path: true, try: func(p *poisoned, text string) error {
		if err := p.put(path("vhosts", text), map[string]any{}); err != nil {
			return err
		}
		return p.useAs("guest", "guest", text)
	}, refusal: func(_ *poisoned, text string) string { return nameTooLong("vhost", text, badRequestInvalid) }},
	{name: "description of a vhost", try: func(p *poisoned, text string) error {
		if err := p.put(path("vhosts", p.id), map[string]any{"description": text}); err != nil {
			return err
		}
		return p.same("vhosts", "description", text)
	}, refusal: vhostTooLarge},
	{name: "tag of a vhost", try: func(p *poisoned, text string) error {
		if err := p.put(path("vhosts", p.id), map[string]any{"tags": []string{text}}); err != nil {
			return err
		}
		return p.same("vhosts", "tags", []any{text})
	}, refusal: vhostTooLarge},
	{name: "default queue type", try: func(p *poisoned, text string) error {
		return p.put(path("vhosts", p.id), map[string]any{"default_queue_type": text})
	}, refusal: func(_ *poisoned, text string) string { return validation("%s is not a valid queue type", text) }},
	{name: "permission", try: func(p *poisoned, text string) error {
		if err := p.put(path("users", p.id), map[string]any{"password": "p", "tags": ""}); err != nil {
			return err
		}
		return p.put("/api/permissions/%2F/"+p.id, map[string]any{"configure": text, "write": text, "read": text})
	}, refusal: patternTooLong},
	{name: "topic permission", try: func(p *poisoned, text string) error { return p.topic("amq.topic", text) }, refusal: patternTooLong},
	{name: "exchange of a topic permission", try: func(p *poisoned, text string) error { return p.topic(text, ".*") },
		refusal: func(_ *poisoned, text string) string { return nameTooLong("exchange", text, badRequest) }},
	{name: "limit of a vhost", path: true, try: func(p *poisoned, text string) error {
		return p.put("/api/vhost-limits/%2F/"+url.PathEscape(text), map[string]any{"value": 1})
	}, refusal: func(_ *poisoned, text string) string { return validation("unrecognised vhost limit '%s'", text) }},
	{name: "limit of a user", path: true, try: func(p *poisoned, text string) error {
		return p.put("/api/user-limits/guest/"+url.PathEscape(text), map[string]any{"value": 1})
	}, refusal: func(_ *poisoned, text string) string { return validation("unrecognised user limit '%s'", text) }},
	{name: "setting of the cluster", path: true, try: func(p *poisoned, text string) error {
		return p.put(path("quorate/settings", text), map[string]any{"value": 1})
	}, refusal: func(_ *poisoned, text string) string { return fmt.Sprintf("404 no cluster setting '%s'", text) }},
}

func vhostTooLarge(p *poisoned, text string) string {
	return tooLargeAs(badRequest, "description and tags of vhost", p.id, len(text))
}

func badRequestInvalid(format string, args ...any) string { return badRequest(format, args...) }

// newUser makes a user who then uses a queue.
func newUser(p *poisoned, text string) error {
	if err := p.put(path("users", text), map[string]any{"password": "p", "tags": ""}); err != nil {
		return err
	}
	if err := p.put("/api/permissions/%2F/"+url.PathEscape(text), allOf); err != nil {
		return err
	}
	return p.useAs(text, "p", "/")
}

// topic gives a user of the case a topic permission.
func (p *poisoned) topic(exchange, pattern string) error {
	if err := p.put(path("users", p.id), map[string]any{"password": "p", "tags": ""}); err != nil {
		return err
	}
	return p.put("/api/topic-permissions/%2F/"+p.id, map[string]any{"exchange": exchange, "write": pattern, "read": pattern})
}

// same waits until all nodes show a value of a definition of the case.
func (p *poisoned) same(of, key string, want any) error {
	ctx, cancel := context.WithTimeout(p.ctx, arriveWithin)
	defer cancel()
	return await.Until(ctx, 20*time.Millisecond, key+" at all nodes", func() (bool, error) {
		for _, n := range p.Nodes {
			var got map[string]any
			if err := n.Call(ctx, http.MethodGet, path(of, p.id), nil, &got); err != nil {
				return false, err
			}
			if fmt.Sprint(got[key]) != fmt.Sprint(want) {
				return false, fmt.Errorf("node %d shows %.300v", n.Number, got[key])
			}
		}
		return true, nil
	})
}

// useAs logs in, and sends a message through a queue that says who it is from.
func (p *poisoned) useAs(user, password, vhost string) error {
	conn, err := client.ConnectAs(p.ctx, p.node.URI(), user, password, vhost)
	if err != nil {
		return err
	}
	defer conn.CloseDeadline(time.Now().Add(arriveWithin))
	as := *p
	as.conn = conn
	ch, err := as.channel()
	if err == nil {
		_, err = ch.QueueDeclare(p.id, true, false, false, false, nil)
	}
	if err == nil {
		err = as.publish(ch, "", p.id, amqp.Publishing{UserId: user})
	}
	if err != nil {
		return err
	}
	d, err := as.take(ch, p.id)
	if err == nil && d.UserId != user {
		err = fmt.Errorf("it is from %.300q", d.UserId)
	}
	return err
}

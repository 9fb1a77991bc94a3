package clients

import (
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// featureTable has the rows in the order of the page.
var featureTable = []feature{
	{name: "type", what: "`type` in the HTTP API", classic: "classic", quorum: "quorum", play: func(f *features) string {
		f.declare()
		var q struct{ Type string }
		f.call("GET", "/api/queues/%2F/"+f.name, nil, &q)
		return q.Type
	}},
	{name: "not durable", what: "a queue that is neither durable nor exclusive", classic: "taken", quorum: "taken", peerClassic: "taken", peerQuorum: "refused (406)", play: func(f *features) string {
		return f.try(false, false, false)
	}},
	{name: "exclusive", what: "an exclusive queue", classic: "taken", quorum: "taken", peerQuorum: "refused (406)", play: func(f *features) string {
		return f.try(false, false, true)
	}},
	{name: "auto-delete", what: "a durable queue that is deleted with its last consumer", classic: "taken", quorum: "taken", peerQuorum: "refused (406)", play: func(f *features) string {
		return f.try(true, true, false)
	}},
	{name: "expires", what: "`x-expires`: an unused queue", classic: "deleted", quorum: "deleted", play: func(f *features) string {
		ch := f.open()
		_, err := ch.QueueDeclare(f.name, true, false, false, false, f.arguments("x-expires", int32(300)))
		f.must(err)
		if f.within(20*time.Second, func() bool { return f.call("GET", "/api/queues/%2F/"+f.name, nil, nil) == 404 }) { // the peer's quorum queues look every 5 s
			return "deleted"
		}
		return "stays"
	}},
	{name: "message TTL", what: "`x-message-ttl`: a message past it", classic: "dead letter", quorum: "dead letter", play: func(f *features) string {
		ch, _ := f.declare(append(f.dead(), "x-message-ttl", int32(200))...)
		f.send(ch, "m")
		if f.ready(f.name+".dead", 1) == 1 {
			return "dead letter"
		}
		return "stays"
	}},
	{name: "TTL behind others", what: "`expiration`: behind a message without one", classic: "dead letter", quorum: "dead letter", peerClassic: "waits until it is first", peerQuorum: "waits until it is first", play: func(f *features) string {
		ch, _ := f.declare(f.dead()...)
		f.send(ch, "first")
		f.send(ch, "second", func(p *amqp.Publishing) { p.Expiration = "200" })
		if f.ready(f.name+".dead", 1) == 1 {
			return "dead letter"
		}
		return "waits until it is first"
	}},
	{name: "max-length", what: "`x-max-length` 3, ten messages", classic: "7 8 9", quorum: "7 8 9", play: func(f *features) string {
		ch, _ := f.declare("x-max-length", int32(3))
		f.sendAll(ch, strings.Split("0123456789", "")...)
		f.ready(f.name, 3)
		return f.take(ch, 10)
	}},
	{name: "reject-publish", what: "`x-overflow: reject-publish`: what is too much", classic: "nacked", quorum: "nacked", play: func(f *features) string {
		ch, _ := f.declare("x-max-length", int32(1), "x-overflow", "reject-publish")
		for range 20 { // the peer's quorum queues stop it some messages late
			if !f.send(ch, "m") {
				return "nacked"
			}
		}
		return "taken"
	}},
	{name: "reject-publish-dlx", what: "`x-overflow: reject-publish-dlx`: what is too much", classic: "nacked, and a dead letter", quorum: "nacked, and a dead letter", peerQuorum: "drops the oldest", play: func(f *features) string {
		ch, _ := f.declare(append(f.dead(), "x-max-length", int32(1), "x-overflow", "reject-publish-dlx")...)
		acked := f.send(ch, "0") && f.send(ch, "1")
		if !acked && f.ready(f.name+".dead", 1) == 1 {
			return "nacked, and a dead letter"
		}
		return "drops the oldest"
	}},
	{name: "lazy", what: "`x-queue-mode: lazy`", classic: "taken", quorum: "refused (406)", play: func(f *features) string {
		return f.try(true, false, false, "x-queue-mode", "lazy")
	}},
	{name: "no priorities", what: "published with the priorities 1 5 2 9, without `x-max-priority`", classic: "1 5 2 9", quorum: "9 5 2 1", play: func(f *features) string {
		return f.order([]uint8{1, 5, 2, 9})
	}},
	{name: "priorities", what: "`x-max-priority` 10: none, 3, 9, 12, 1", classic: "12 9 3 1 0", quorum: "refused (406)", play: func(f *features) string {
		return f.order([]uint8{0, 3, 9, 12, 1}, "x-max-priority", int32(10))
	}},
	{name: "no delivery limit", what: "rejected 30 times, no limit set", classic: "stays", quorum: "gone after 21 deliveries", play: func(f *features) string {
		return f.rejected(30, false)
	}},
	{name: "lost channels", what: "held by 30 channels that end, no limit set", classic: "stays", quorum: "gone after 21 deliveries", play: func(f *features) string {
		return f.rejected(30, true)
	}},
	{name: "delivery limit by argument", what: "`x-delivery-limit` 2: rejected 5 times", classic: "gone after 3 deliveries", quorum: "gone after 3 deliveries", peerClassic: "refused (406)", play: func(f *features) string {
		return f.rejected(5, false, "x-delivery-limit", int32(2))
	}},
	{name: "delivery limit by policy", what: "a policy for `queues` with `delivery-limit` 2: rejected 5 times", classic: "gone after 3 deliveries", quorum: "gone after 3 deliveries", peerClassic: "stays", play: func(f *features) string {
		f.policy("queues", map[string]any{"delivery-limit": 2})
		return f.rejected(5, false)
	}},
	{name: "global prefetch", what: "`basic.qos` with `global`, and a consumer", classic: "taken", quorum: "taken", peerQuorum: "refused (540)", play: func(f *features) string {
		ch, _ := f.declare()
		f.must(ch.Qos(1, 0, true))
		_, err := ch.Consume(f.name, "", false, false, false, false, nil)
		if code := codeOf(err); code != "" {
			return code
		}
		return "taken"
	}},
	{name: "get beside a single active consumer", what: "`x-single-active-consumer` and `basic.get`", classic: "the message", quorum: "refused (405)", play: func(f *features) string {
		ch, _ := f.declare("x-single-active-consumer", true)
		f.send(ch, "m")
		_, ok, err := ch.Get(f.name, true)
		if code := codeOf(err); code != "" {
			return code
		}
		if !ok {
			return "nothing"
		}
		return "the message"
	}},
	{name: "dead-letter strategy", what: "`x-dead-letter-strategy: at-least-once`", classic: "taken", quorum: "taken", peerClassic: "refused (406)", play: func(f *features) string {
		return f.try(true, false, false, append(f.dead(), "x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish")...)
	}},
	{name: "consumer timeout", what: "`x-consumer-timeout`", classic: "taken", quorum: "taken", peerClassic: "refused (406)", play: func(f *features) string {
		return f.try(true, false, false, "x-consumer-timeout", int32(60_000))
	}},
	{name: "no consumer timeout", what: "held for longer than the node's `consumer_timeout`", classic: "held", quorum: "goes back", play: func(f *features) string {
		ch, _ := f.declare()
		f.send(ch, "m")
		_, err := ch.Consume(f.name, "", false, false, false, false, nil)
		f.must(err)
		if f.within(6*nodeTimeout, func() bool { return f.messages(f.name) == 1 }) {
			return "goes back"
		}
		return "held"
	}},
	{name: "delayed retry", what: "`x-delayed-retry-type: all`", classic: "taken", quorum: "taken", peerClassic: "refused (406)", play: func(f *features) string {
		return f.try(true, false, false, "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(10))
	}},
	{name: "group size", what: "`x-quorum-initial-group-size`", classic: "taken", quorum: "taken", peerClassic: "refused (406)", play: func(f *features) string {
		return f.try(true, false, false, "x-quorum-initial-group-size", int32(1))
	}},
	{name: "requeue order", what: "1, 2, 3 delivered; 3, then 1 requeued with nack", classic: "1 3", quorum: "3 1", play: func(f *features) string {
		ch, _ := f.declare()
		f.sendAll(ch, "1", "2", "3")
		one, two, three := f.get(ch), f.get(ch), f.get(ch)
		f.must(three.Nack(false, true))
		f.must(one.Nack(false, true))
		f.must(two.Ack(false))
		f.ready(f.name, 2)
		return f.take(ch, 2)
	}},
	{name: "requeue by a channel", what: "1, 2, 3 delivered, 4 ready; the channel ends", classic: "1 2 3 4", quorum: "1 2 3 4", play: func(f *features) string {
		ch, _ := f.declare()
		f.sendAll(ch, "1", "2", "3", "4")
		for range 3 {
			f.get(ch)
		}
		f.must(ch.Close())
		f.ready(f.name, 4)
		return f.take(f.open(), 4)
	}},
	{name: "requeue and priorities", what: "`x-max-priority` 9: priority 1 requeued, 5 ready", classic: "1 5", quorum: "refused (406)", peerClassic: "5 1", play: func(f *features) string {
		ch, refused := f.declare("x-max-priority", int32(9))
		if refused != "" {
			return refused
		}
		f.send(ch, "1", priority(1))
		d := f.get(ch)
		f.send(ch, "5", priority(5))
		f.must(d.Nack(false, true))
		f.ready(f.name, 2)
		return f.take(ch, 2)
	}},
	{name: "priority of dead letters", what: "published with the priorities 0 and 9, dead-lettered to a quorum queue", classic: "9 0", quorum: "9 0", play: func(f *features) string {
		ch, _ := f.declare(append(f.dead(), "x-message-ttl", int32(200))...)
		for _, p := range []uint8{0, 9} {
			f.send(ch, fmt.Sprint(p), priority(p))
		}
		f.ready(f.name+".dead", 2)
		f.name += ".dead"
		return f.take(ch, 2)
	}},
	{name: "count of deliveries", what: "headers `x-delivery-count`, `x-acquired-count` after a reject", classic: "none", quorum: "1 1", play: func(f *features) string {
		ch, _ := f.declare()
		return f.counts(ch)
	}},
	{name: "count of deliveries with a limit", what: "the same with a policy for `queues` that sets a `delivery-limit`", classic: "none", quorum: "1 1", play: func(f *features) string {
		f.policy("queues", map[string]any{"delivery-limit": 5})
		ch, _ := f.declare()
		return f.counts(ch)
	}},
	{name: "count of deliveries of consumers", what: "the same headers for a consumer", classic: "none", quorum: "1 1", play: func(f *features) string {
		ch, _ := f.declare()
		list, err := ch.Consume(f.name, "", false, false, false, false, nil)
		f.must(err)
		f.send(ch, "m")
		for d := range list {
			if d.Redelivered {
				return countsOf(&d)
			}
			f.must(d.Reject(true))
		}
		return "closed"
	}},
	{name: "count of deliveries of dead letters", what: "the same headers of a dead letter of a quorum queue, at its first delivery", classic: "none", quorum: "none", peerQuorum: "2 2", play: func(f *features) string {
		dead := f.dead()
		ch, _ := f.declare()
		own, name := f.name, f.name+".source"
		_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum", dead[0].(string): "", dead[2].(string): own})
		f.must(err)
		f.remove(name)
		f.name = name
		f.send(ch, "m")
		f.must(f.get(ch).Reject(true))
		f.must(f.get(ch).Reject(false))
		f.name = own
		return countsOf(f.get(ch))
	}},
	{name: "apply-to classic_queues", what: "a policy for `classic_queues`", classic: "applies", quorum: "does not apply", play: func(f *features) string {
		return f.limited("classic_queues", nil)
	}},
	{name: "apply-to quorum_queues", what: "a policy for `quorum_queues`", classic: "does not apply", quorum: "applies", play: func(f *features) string {
		return f.limited("quorum_queues", nil)
	}},
	{name: "apply-to queues", what: "a policy for `queues`", classic: "applies", quorum: "applies", play: func(f *features) string {
		return f.limited("queues", nil)
	}},
	{name: "apply-to all", what: "a policy for `all`", classic: "applies", quorum: "applies", play: func(f *features) string {
		return f.limited("all", nil)
	}},
	{name: "policy with queue-mode", what: "a policy with `queue-mode` beside others", classic: "applies", quorum: "applies", peerQuorum: "does not apply", play: func(f *features) string {
		return f.limited("queues", map[string]any{"queue-mode": "lazy"})
	}},
	{name: "policy with queue-master-locator", what: "a policy with `queue-master-locator` beside others", classic: "applies", quorum: "applies", peerQuorum: "does not apply", play: func(f *features) string {
		return f.limited("queues", map[string]any{"queue-master-locator": "min-masters"})
	}},
	{name: "policy with ha-mode", what: "a policy with `ha-mode` beside others", classic: "applies", quorum: "applies", peerClassic: "policy refused (400)", peerQuorum: "policy refused (400)", play: func(f *features) string {
		return f.limited("queues", map[string]any{"ha-mode": "all"})
	}},
	{name: "policy with max-age", what: "a policy with `max-age` beside others", classic: "applies", quorum: "applies", peerClassic: "does not apply", peerQuorum: "does not apply", play: func(f *features) string {
		return f.limited("queues", map[string]any{"max-age": "1D"})
	}},
	{name: "declared again as classic", what: "declared again as `classic`", classic: "taken", quorum: "taken", peerQuorum: "refused (406)", play: func(f *features) string {
		f.declare()
		_, err := f.open().QueueDeclare(f.name, true, false, false, false, amqp.Table{"x-queue-type": "classic"})
		if code := codeOf(err); code != "" {
			return code
		}
		f.must(err)
		return "taken"
	}},
	{name: "declared again as quorum", what: "declared again as `quorum`", classic: "refused (406)", quorum: "taken", play: func(f *features) string {
		f.declare()
		_, err := f.open().QueueDeclare(f.name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		if code := codeOf(err); code != "" {
			return code
		}
		f.must(err)
		return "taken"
	}},
	{name: "declared again without a type", what: "declared again without a type", classic: "taken", quorum: "taken", peerQuorum: "refused (406)", play: func(f *features) string {
		f.declare()
		_, err := f.open().QueueDeclare(f.name, true, false, false, false, nil)
		if code := codeOf(err); code != "" {
			return code
		}
		f.must(err)
		return "taken"
	}},
}

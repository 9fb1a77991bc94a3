package jepsen

import (
	"fmt"
	"net/url"

	amqp "github.com/rabbitmq/amqp091-go"
)

// policy sets a policy, or an operator policy, for the case's queue.
func (p *poisoned) policy(kind string, in map[string]any) error {
	all := map[string]any{"pattern": "^" + p.id + "$", "definition": map[string]any{"max-length": 1000}}
	for key, value := range in {
		all[key] = value
	}
	return p.put("/api/"+kind+"/%2F/"+p.id, all)
}

// validation is how a policy is refused.
func validation(format string, args ...any) string {
	return fmt.Sprintf("400 Validation failed\n\n"+format+"\n", args...)
}

// shown is as much of a text as a refusal tells.
func shown(text string) string {
	if len(text) <= 1024 {
		return text
	}
	return text[:1024] + "..."
}

// poisonedPolicies are what policies and operator policies have as texts.
func poisonedPolicies() []poison {
	var list []poison
	for _, kind := range []string{"policies", "operator-policies"} {
		list = append(list, poisonedKeys(kind)...)
		list = append(list,
			poison{name: kind + ", pattern", try: func(p *poisoned, text string) error {
				return p.policy(kind, map[string]any{"pattern": text})
			}, refusal: func(_ *poisoned, text string) string {
				if len(text) <= 1024 {
					return ""
				}
				return validation("pattern should be regular expression but is invalid: it is longer than 1024 bytes")
			}},
			poison{name: kind + ", name", path: true, try: func(p *poisoned, text string) error {
				return p.put("/api/"+kind+"/%2F/"+url.PathEscape(text), map[string]any{"pattern": p.id, "definition": map[string]any{"max-length": 1000}})
			}, refusal: func(_ *poisoned, text string) string {
				return nameTooLong("policy", text, validation)
			}},
			poison{name: kind + ", apply-to", try: func(p *poisoned, text string) error {
				return p.policy(kind, map[string]any{"apply-to": text})
			}, refusal: func(_ *poisoned, text string) string {
				return validation("apply-to '%s' unrecognised; should be one of: 'queues', 'classic_queues', 'quorum_queues', 'streams', 'exchanges', 'all'", text)
			}},
		)
	}
	return append(list,
		poison{name: "policies, dead letter", try: func(p *poisoned, text string) error {
			if err := p.policy("policies", map[string]any{"definition": map[string]any{"dead-letter-routing-key": text}}); err != nil {
				return err
			}
			return p.dieWithKey(nil, text)
		}, refusal: keyTooLong("dead-letter-routing-key")})
}

// nameTooLong is the refusal of a name by HTTP.
func nameTooLong(kind, text string, invalid func(string, ...any) string) string {
	if len(text) <= 255 {
		return ""
	}
	return invalid("%s names must have 1 to 255 bytes", kind)
}

func keyTooLong(key string) func(*poisoned, string) string {
	return func(_ *poisoned, text string) string {
		if len(text) <= 255 {
			return ""
		}
		return validation("%s may have at most 255 bytes, not %d", key, len(text))
	}
}

// poisonedKeys are the keys whose values are texts, and the keys themselves.
func poisonedKeys(kind string) []poison {
	unknown := func(key string) func(*poisoned, string) string {
		return func(_ *poisoned, text string) string {
			return validation(`[{<<"%s">>,<<"%s">>}] are not recognised policy settings`, key, shown(text))
		}
	}
	list := []poison{{name: kind + ", a key", try: func(p *poisoned, text string) error {
		return p.policy(kind, map[string]any{"definition": map[string]any{text: 1}})
	}, refusal: func(_ *poisoned, text string) string {
		return validation(`[{<<"%s">>,1}] are not recognised policy settings`, shown(text))
	}}}
	for _, k := range []struct {
		key, what string
		operators bool
	}{
		{"dead-letter-exchange", "", false}, {"dead-letter-routing-key", "", false}, {"alternate-exchange", "", false},
		{"dead-letter-strategy", "a valid dead letter strategy", false}, {"overflow", "a valid overflow value", true},
		{"delayed-retry-type", "a valid delayed retry type", true}, {"queue-leader-locator", "a valid queue leader locator value", false},
		{"ttl-precedence", "a valid TTL precedence", false}, {"queue-mode", "a valid queue-mode value", false}, {"max-age", "a valid max age", false},
		// A text where a number belongs, or a truth.
		{"message-ttl", "a valid message TTL", true}, {"delayed-message", "a valid delayed-message value", false},
	} {
		one := poison{name: kind + ", " + k.key, try: func(p *poisoned, text string) error {
			if err := p.policy(kind, map[string]any{"definition": map[string]any{k.key: text}}); err != nil {
				return err
			}
			return p.declare(amqp.Table{})
		}}
		switch {
		case kind == "operator-policies" && !k.operators:
			one.refusal = unknown(k.key)
		case k.what == "":
			one.refusal = keyTooLong(k.key)
		default:
			one.refusal = func(_ *poisoned, text string) string { return validation(`<<"%s">> is not %s`, shown(text), k.what) }
		}
		list = append(list, one)
	}
	return list
}

package v10

import (
	"strings"
	"unicode/utf8"

	"github.com/quorate/quorate/amqp/message"
)

// maxName is the longest name of a queue or exchange, and the longest routing key, in bytes.
const maxName = 255

// defaultExchange is the name of the default exchange elsewhere. In addresses it has none.
const defaultExchange = "amq.default"

// address is where a message goes: to an exchange, or to a queue by the default exchange, which
// has an empty name.
type address struct {
	exchange, key string
}

// isQueue reports whether the address names a queue.
func (a address) isQueue() bool { return a.exchange == "" }

const (
	queuePrefix    = "/queues/"
	exchangePrefix = "/exchanges/"
)

// parseAddress reads the address of a target, or of a message's field to.
func parseAddress(s string) (a address, ok bool) {
	if queue, ok := parseSource(s); ok {
		return address{key: queue}, true
	}
	rest, ok := strings.CutPrefix(s, exchangePrefix)
	if !ok {
		return address{}, false
	}
	name, rest, _ := strings.Cut(rest, "/")
	exchange, ok1 := unescape(name)
	key, ok2 := unescape(rest)
	if !ok1 || !ok2 || strings.Contains(rest, "/") || exchange == "" || exchange == defaultExchange {
		return address{}, false
	}
	return address{exchange, key}, true
}

// parseSource reads the address of a source. A slash in it need not be escaped.
func parseSource(s string) (queue string, ok bool) {
	name, ok := strings.CutPrefix(s, queuePrefix)
	if !ok || name == "" {
		return "", false
	}
	return unescape(name)
}

// queueAddress returns the address of a queue.
func queueAddress(name string) string { return queuePrefix + escape(name) }

// escape percent-encodes all but RFC 3986's unreserved characters.
func escape(s string) string { return string(message.AppendEscaped(nil, s)) }

// unescape decodes a percent-encoded name. ok false: it is no UTF-8, too long, or not encoded so.
func unescape(s string) (name string, ok bool) {
	if strings.IndexByte(s, '%') >= 0 {
		b, ok := message.AppendUnescaped(nil, s)
		if !ok {
			return "", false
		}
		s = string(b)
	}
	return s, len(s) <= maxName && utf8.ValidString(s)
}

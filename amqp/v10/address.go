package v10

import (
	"strings"
	"unicode/utf8"
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

// unescape decodes a percent-encoded name. ok false: it is no UTF-8, too long, or not encoded so.
func unescape(s string) (name string, ok bool) {
	if strings.IndexByte(s, '%') >= 0 {
		var b strings.Builder
		for i := 0; i < len(s); i++ {
			if s[i] != '%' {
				b.WriteByte(s[i])
				continue
			}
			if i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2]) {
				return "", false
			}
			b.WriteByte(hexDigit(s[i+1])<<4 | hexDigit(s[i+2]))
			i += 2
		}
		s = b.String()
	}
	return s, len(s) <= maxName && utf8.ValidString(s)
}

// escape percent-encodes all but RFC 3986's unreserved characters.
func escape(s string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; isUnreserved(c) {
			b.WriteByte(c)
		} else {
			b.WriteString(string([]byte{'%', digits[c>>4], digits[c&15]}))
		}
	}
	return b.String()
}

func isUnreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

func isHex(c byte) bool { return hexDigit(c) < 16 }

// hexDigit is the value of a hexadecimal digit; 16: it is none.
func hexDigit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 16
}

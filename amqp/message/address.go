package message

import "strings"

// queuePrefix begins the address of a queue in AMQP 1.0; its name follows, percent-encoded.
const queuePrefix = "/queues/"

// AppendEscaped percent-encodes all but RFC 3986's unreserved characters.
func AppendEscaped[S ~string | ~[]byte](dst []byte, s S) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(s) {
		if c := s[i]; isUnreserved(c) {
			dst = append(dst, c)
		} else {
			dst = append(dst, '%', digits[c>>4], digits[c&15])
		}
	}
	return dst
}

// AppendUnescaped decodes what is percent-encoded. false: it is not encoded so.
func AppendUnescaped[S ~string | ~[]byte](dst []byte, s S) ([]byte, bool) {
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			dst = append(dst, s[i])
			continue
		}
		if i+2 >= len(s) || hexDigit(s[i+1]) == noDigit || hexDigit(s[i+2]) == noDigit {
			return dst, false
		}
		dst = append(dst, hexDigit(s[i+1])<<4|hexDigit(s[i+2]))
		i += 2
	}
	return dst, true
}

func isUnreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// noDigit is the value of what is no hexadecimal digit.
const noDigit = 16

func hexDigit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return noDigit
}

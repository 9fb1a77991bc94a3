package audit

import (
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// ASCII returns a line of JSON in which everything but printable ASCII is escaped.
// JSON permits characters that terminals act on: control characters from U+007F
// on, and those that change the direction of text. It may return its argument.
func ASCII(line []byte) []byte {
	plain := 0
	for plain < len(line) && line[plain] < 0x7f {
		plain++
	}
	if plain == len(line) {
		return line
	}
	out := append(make([]byte, 0, len(line)+64), line[:plain]...)
	for rest := line[plain:]; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		rest = rest[size:]
		switch {
		case r < 0x7f:
			out = append(out, byte(r))
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, "\\u%04x\\u%04x", high, low)
		default:
			out = fmt.Appendf(out, "\\u%04x", r)
		}
	}
	return out
}

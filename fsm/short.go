package fsm

import "unicode/utf8"

// MaxShort is the maximum length in bytes of an AMQP short string. Names of all
// kinds, routing keys and consumer tags are short strings, wherever they come
// from. The values of arguments, policies and headers may be longer, but are
// not names then.
const MaxShort = 255

// Short returns s, or its longest prefix that is a short string and does not
// split a character.
func Short(s string) string {
	if len(s) <= MaxShort {
		return s
	}
	for n := MaxShort; n > MaxShort-utf8.UTFMax; n-- {
		if utf8.RuneStart(s[n]) {
			return s[:n]
		}
	}
	return s[:MaxShort] // it is no text
}

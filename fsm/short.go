package fsm

import "unicode/utf8"

// MaxShort is the length in bytes of the longest short string of AMQP. Names of
// all kinds, routing keys and consumer tags are short strings, wherever they
// come from: as a value of an argument, a policy or a header they have room for
// more, and are no names then.
const MaxShort = 255

// Short returns s, or as much of its beginning as is a short string and ends
// between two characters.
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

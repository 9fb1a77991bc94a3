package amqp

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/quorate/quorate/fsm"
)

// maxTTL is the longest time-to-live: ten years of 365 days.
const maxTTL = 315_360_000_000

// parseExpiration reads an expiration property: an optional sign and decimal
// digits, 0 ≤ number ≤ maxTTL. canonical reports whether text is already the
// usual decimal form of the number. The error is a precondition refusal.
func parseExpiration(text []byte) (ttl fsm.Millis, canonical bool, err error) {
	digits, negative, signed := text, false, false
	if len(digits) > 0 && (digits[0] == '+' || digits[0] == '-') {
		negative, signed = digits[0] == '-', true
		digits = digits[1:]
	}
	n, value := 0, uint64(0)
	for n < len(digits) && '0' <= digits[n] && digits[n] <= '9' {
		value = min(value*10+uint64(digits[n]-'0'), maxTTL+1)
		n++
	}
	switch {
	case n == 0:
		err = refuseExpiration(text, "no_integer")
	case n < len(digits):
		err = refuseExpiration(text, fmt.Sprintf("{leftover_string,%s}", strconv.Quote(string(digits[n:]))))
	case negative && value > 0:
		err = refuseExpiration(text, "{value_negative,"+decimal(digits[:n], negative)+"}")
	case value > maxTTL:
		err = refuseExpiration(text, "{value_too_large,"+decimal(digits[:n], negative)+"}")
	default:
		canonical = !signed && (n == 1 || digits[0] != '0')
		return fsm.Millis(value), canonical, nil
	}
	return -1, false, err
}

func decimal(digits []byte, negative bool) string {
	s := strings.TrimLeft(string(digits), "0")
	if negative {
		return "-" + s
	}
	return s
}

// appendDecimal appends ttl in its usual form.
func appendDecimal(dst []byte, ttl fsm.Millis) []byte {
	return strconv.AppendInt(dst, int64(ttl), 10)
}

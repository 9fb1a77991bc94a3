package entity

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a span in units of 100 nanoseconds, never negative. The largest is
// what programs for the service know as the largest TimeSpan, and stands for
// ever: its text is P10675199DT2H48M5.4775807S.
type Duration int64

// Units of a Duration, and Forever.
const (
	Tick        Duration = 1
	Millisecond          = 10_000 * Tick
	Second               = 1000 * Millisecond
	Minute               = 60 * Second
	Hour                 = 60 * Minute
	Day                  = 24 * Hour
	Forever     Duration = math.MaxInt64
)

// Milliseconds is d, rounded up, so that what is not zero does not become it.
func (d Duration) Milliseconds() int64 {
	return int64((d-1)/Millisecond) + min(int64(d), 1)
}

// Std is d, or the longest there is.
func (d Duration) Std() time.Duration {
	if d > math.MaxInt64/100 {
		return math.MaxInt64
	}
	return time.Duration(d) * 100
}

// String is d as XML Schema writes it, with days as the largest unit.
func (d Duration) String() string {
	if d == 0 {
		return "PT0S"
	}
	var b strings.Builder
	b.WriteByte('P')
	if n := d / Day; n > 0 {
		fmt.Fprintf(&b, "%dD", n)
	}
	d %= Day
	if d == 0 {
		return b.String()
	}
	b.WriteByte('T')
	if n := d / Hour; n > 0 {
		fmt.Fprintf(&b, "%dH", n)
	}
	if n := d % Hour / Minute; n > 0 {
		fmt.Fprintf(&b, "%dM", n)
	}
	d %= Minute
	if d > 0 {
		text := fmt.Sprintf("%d.%07d", d/Second, d%Second)
		b.WriteString(strings.TrimSuffix(strings.TrimRight(text, "0"), "."))
		b.WriteByte('S')
	}
	return b.String()
}

// units are the designators of a duration before and behind its T, in their order.
// Years and months have as many days as .NET gives them.
var units = []struct {
	letter byte
	time   bool
	unit   Duration
}{
	{'Y', false, 365 * Day}, {'M', false, 30 * Day}, {'W', false, 7 * Day}, {'D', false, Day},
	{'H', true, Hour}, {'M', true, Minute}, {'S', true, Second},
}

// ParseDuration reads what String writes, and the other forms of XML Schema that are
// not negative.
func ParseDuration(text string) (Duration, error) {
	wrong := fmt.Errorf("'%.64s' is not an ISO 8601 duration, such as PT1M or P10675199DT2H48M5.4775807S", text)
	rest, ok := strings.CutPrefix(text, "P")
	if !ok || rest == "" || rest[len(rest)-1] == 'T' {
		return 0, wrong
	}
	var sum Duration
	next, inTime := 0, false
	for rest != "" {
		if rest[0] == 'T' && !inTime {
			rest, inTime = rest[1:], true
			continue
		}
		end := strings.IndexFunc(rest, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
		if end < 1 {
			return 0, wrong
		}
		for next < len(units) && (units[next].letter != rest[end] || units[next].time != inTime) {
			next++
		}
		if next == len(units) {
			return 0, wrong
		}
		n, ok := times(rest[:end], units[next].unit)
		if !ok || n > Forever-sum {
			return 0, wrong
		}
		sum += n
		rest = rest[end+1:]
		next++
	}
	return sum, nil
}

// times multiplies a decimal number by a unit. Only seconds have a fraction.
func times(number string, unit Duration) (Duration, bool) {
	whole, fraction, some := strings.Cut(number, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n > int64(Forever/unit) || some && (unit != Second || fraction == "" || strings.Contains(fraction, ".")) {
		return 0, false
	}
	d := Duration(n) * unit
	if !some {
		return d, true
	}
	part, _ := strconv.ParseInt((fraction + "0000000")[:7], 10, 64)
	if Duration(part) > Forever-d {
		return 0, false
	}
	return d + Duration(part), true
}

// MarshalText makes d a text in JSON.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a duration from JSON.
func (d *Duration) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDuration(string(text))
	return err
}

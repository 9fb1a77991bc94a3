package message

import (
	"math"
	"strconv"
	"time"

	"github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// Time reads the instant that a header holds; of a message of AMQP 1.0 an application property, or an annotation. ok is
// false if there is no such header, or it holds none. An instant before 1970 is taken for its first millisecond.
//
//	text                RFC 3339, or decimal digits as below
//	number              seconds since 1970, with a fraction or without; milliseconds from 100,000,000,000 on
//	timestamp           as the protocol has it: seconds in 0-9-1, milliseconds in 1.0
func (Properties) Time(payload fsm.Payload, header string) (at fsm.Time, ok bool) {
	if payload.IsBare() {
		return bareTime(payload, header)
	}
	p, err := wire.ParseProperties(payload.Properties())
	if err != nil {
		return 0, false
	}
	v, ok := p.Header(header)
	if !ok {
		return 0, false
	}
	return timeOf(v)
}

func bareTime(payload fsm.Payload, name string) (at fsm.Time, ok bool) {
	m := Sections(payload)
	for _, all := range [...]wire10.MapBytes{m.ApplicationProperties, m.Annotations} {
		v, ok := all.Get(name)
		if !ok {
			continue
		}
		if v.Type == wire10.Timestamp {
			return instant(float64(v.Signed()))
		}
		is, _ := annotations(all).get(name)
		return timeOf(is)
	}
	return 0, false
}

// firstMillis is the first number of milliseconds: of seconds it would be in the year 5138.
const firstMillis = 1e11

func timeOf(v wire.Value) (at fsm.Time, ok bool) {
	switch {
	case v.Tag == wire.TagTimestamp:
		return instant(float64(uint64(v.Int)) * 1000)
	case isInteger(v.Tag):
		return number(float64(v.Int))
	case v.Tag == wire.TagFloat32:
		return number(float64(math.Float32frombits(uint32(v.Int))))
	case v.Tag == wire.TagFloat64:
		return number(math.Float64frombits(uint64(v.Int)))
	case v.Tag != wire.TagString:
		return 0, false
	}
	if t, err := time.Parse(time.RFC3339, v.Str); err == nil {
		return instant(float64(t.UnixMilli()))
	}
	n, err := strconv.ParseFloat(v.Str, 64)
	if err != nil {
		return 0, false
	}
	return number(n)
}

func number(n float64) (at fsm.Time, ok bool) {
	if n < firstMillis {
		n *= 1000
	}
	return instant(n)
}

// instant takes milliseconds since 1970. What is further away than any queue waits is no time.
func instant(ms float64) (at fsm.Time, ok bool) {
	if !(ms < math.MaxInt64/2) {
		return 0, false
	}
	return fsm.Time(max(math.Floor(ms), 1)), true
}

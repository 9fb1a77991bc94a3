package amqp

import (
	"fmt"
	"math"

	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
)

// headerXDelay makes a message wait at a delayed exchange: milliseconds. What
// has waited has it negated.
const headerXDelay = "x-delay"

// delay reads how long a message is to wait at a delayed exchange; nil: not at
// all. scheduled says that it is also to wait in its queues.
func delay(p *wire.Properties, scheduled bool) *fsm.Delay {
	v, ok := p.Header(headerXDelay)
	if !ok {
		return nil
	}
	n, err := delayMillis(v)
	if err == nil && n <= 0 {
		return nil
	}
	d := &fsm.Delay{For: fsm.Millis(n), Err: err}
	if err == nil && scheduled {
		d.Err = fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s: it excludes %s and %s", headerXDelay, headerDelay, headerTime))
	}
	if d.Err == nil {
		s := &fsm.Schedule{}
		d.Err = identify(s, p)
		d.ID, d.Conflict = s.ID, s.Conflict
	}
	return d
}

// delayMillis reads a number of milliseconds: of any integer type, a fraction
// whose digits behind the point do not count, or decimal digits.
func delayMillis(v wire.Value) (int64, error) {
	var f float64
	switch v.Tag {
	case wire.TagFloat32:
		f = float64(math.Float32frombits(uint32(v.Int)))
	case wire.TagFloat64:
		f = math.Float64frombits(uint64(v.Int))
	case 'L':
		if v.Int < 0 {
			return math.MaxInt64, nil // it has no sign
		}
		return v.Int, nil
	default:
		return headerNumber(headerXDelay, v)
	}
	switch {
	case f != f:
		return 0, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s 'NaN': no_integer", headerXDelay))
	case f >= math.MaxInt64:
		return math.MaxInt64, nil
	case f <= math.MinInt64:
		return math.MinInt64, nil
	}
	return int64(f), nil
}

// Delay returns what the header x-delay asks for; 0: nothing, or nothing that
// can be read.
func (Properties) Delay(raw []byte) fsm.Millis {
	p, err := wire.ParseProperties(raw)
	if err != nil {
		return 0
	}
	if d := delay(&p, false); d != nil && d.Err == nil {
		return d.For
	}
	return 0
}

// Delayed returns the properties of a message that has waited: those it was
// published with, with the delay negated.
func (Properties) Delayed(raw []byte) []byte {
	n := Properties{}.Delay(raw)
	if n == 0 {
		return raw
	}
	v := wire.Int64(int64(-n))
	if -n >= math.MinInt32 {
		v = wire.Int32(int32(-n))
	}
	out, err := wire.EditProperties(nil, raw, &wire.Edit{SetHeaders: wire.Table{{Name: headerXDelay, Value: v}}})
	if err != nil {
		return raw // they were checked when they came in
	}
	return out
}

package alarm

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Limit is a number of bytes, or a fraction of all memory.
type Limit struct {
	relative float64 // 0 unless isPart
	absolute int64
	isPart   bool
}

// maxPart is the largest fraction of memory. It exceeds 1 because a limit of free
// disk space may be several times the memory.
const maxPart = 100

// Part returns a limit that is a fraction of all memory.
func Part(p float64) (Limit, error) {
	if math.IsNaN(p) || p < 0 || p > maxPart {
		return Limit{}, fmt.Errorf("%v is not a number from 0 to %d", p, maxPart)
	}
	return Limit{relative: p, isPart: true}, nil
}

// ParsePart parses a fraction of all memory, such as 0.6.
func ParsePart(s string) (Limit, error) {
	p, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return Limit{}, fmt.Errorf("%q is not a number from 0 to %d", s, maxPart)
	}
	return Part(p)
}

// Fraction returns a limit that is a fraction of all memory, and at most all of it.
func Fraction(p float64) (Limit, error) {
	if l, err := Part(p); err == nil && p <= 1 {
		return l, nil
	}
	return Limit{}, fmt.Errorf("%v is not a number from 0 to 1", p)
}

// ParseFraction parses such a fraction.
func ParseFraction(s string) (Limit, error) {
	p, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return Limit{}, fmt.Errorf("%q is not a number from 0 to 1", s)
	}
	return Fraction(p)
}

// units are the suffixes of sizes in rabbitmq.conf: powers of 1000 and of 1024.
var units = map[string]int64{
	"": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30, "t": 1 << 40, "tib": 1 << 40,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
}

// ParseSize parses a number of bytes, such as 50MB, 64MiB or 1000000000.
func ParseSize(s string) (Limit, error) {
	n, err := ParseBytes(s)
	return Limit{absolute: n}, err
}

// ParseBytes parses the same.
func ParseBytes(s string) (int64, error) {
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	n, err := strconv.ParseInt(s[:digits], 10, 64)
	unit, known := units[strings.ToLower(strings.TrimSpace(s[digits:]))]
	if err != nil || !known || n > math.MaxInt64/unit {
		return 0, fmt.Errorf("%q is not a size such as 1000000, 50MB or 2GiB", s)
	}
	return n * unit, nil
}

// OnMachine returns the limit in bytes on this machine.
func (l Limit) OnMachine() int64 { return l.of(System{}.MemoryTotal()) }

// of returns the limit in bytes on a machine with the given memory.
func (l Limit) of(total int64) int64 {
	if !l.isPart {
		return l.absolute
	}
	return int64(l.relative * float64(total))
}

// String returns the limit as it was given.
func (l Limit) String() string {
	if l.isPart {
		return strconv.FormatFloat(l.relative, 'g', -1, 64)
	}
	return strconv.FormatInt(l.absolute, 10) + " bytes"
}

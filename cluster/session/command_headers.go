package session

import (
	"fmt"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// arguments are the headers of a command by name.
type arguments map[string]*logpb.Value

func argumentsOf(t *fsm.Table) arguments {
	h := arguments{}
	for _, f := range t.GetFields() {
		h[f.GetName()] = f.GetValue()
	}
	return h
}

func (h arguments) invalid(name string) error {
	return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid header '%s' of type '%s'", name, fsm.TypeName(h[name].GetTag())))
}

func (h arguments) text(name string) (s string, given bool, err error) {
	v, given := h[name]
	if given && !isText(v) {
		return "", true, h.invalid(name)
	}
	return string(v.GetStr()), given, nil
}

func isText(v *logpb.Value) bool { return v.GetTag() == 'S' }

func (h arguments) number(name string) (n int64, given bool, err error) {
	v, given := h[name]
	if given && !isNumber(v) {
		return 0, true, h.invalid(name)
	}
	return v.GetInt(), given, nil
}

func isNumber(v *logpb.Value) bool { return strings.ContainsRune("bBsuIilL", rune(v.GetTag())) }

// flag reads a header that is true or false.
func (h arguments) flag(name string, otherwise bool) (is bool, err error) {
	v, given := h[name]
	switch {
	case !given:
		return otherwise, nil
	case v.GetTag() != 't':
		return false, h.invalid(name)
	}
	return v.GetInt() != 0, nil
}

// within is number for one from least to limit.
func (h arguments) within(name string, least, limit int64) (n int64, given bool, err error) {
	n, given, err = h.number(name)
	if err == nil && given && (n < least || n > limit) {
		err = fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid header '%s': %d is not between %d and %d", name, n, least, limit))
	}
	return n, given, err
}

// shortText is text of at most limit bytes.
func (h arguments) shortText(name string, limit int) (s string, given bool, err error) {
	s, given, err = h.text(name)
	if err == nil && len(s) > limit {
		err = fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid header '%s': %d bytes exceed the limit of %d", name, len(s), limit))
	}
	return s, given, err
}

// maxNamed bounds the objects that one command may name.
const maxNamed = 256

// list reads a header with one value, or another one with several. given: there is one of them.
func (h arguments) list(one, several string, is func(*logpb.Value) bool) (values []*logpb.Value, given bool, err error) {
	v, single := h[one]
	all, plural := h[several]
	switch {
	case single && plural:
		return nil, true, fsm.Refuse(fsm.Precondition, fmt.Sprintf("a command must have either %s or %s", one, several))
	case single:
		values, several = []*logpb.Value{v}, one
	case !plural:
		return nil, false, nil
	case all.GetTag() != 'A':
		return nil, true, h.invalid(several)
	default:
		values = all.GetArray()
	}
	if len(values) == 0 || len(values) > maxNamed {
		return nil, true, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid header '%s': %d values are not between 1 and %d", several, len(values), maxNamed))
	}
	for _, v := range values {
		if !is(v) {
			return nil, true, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid header '%s': a value of type '%s'", several, fsm.TypeName(v.GetTag())))
		}
	}
	return values, true, nil
}

// due reads when a message is to become due: at an instant, or after a delay, stored as in
// logpb.Enqueue. A time in the past means now.
func (h arguments) due(limit, now int64) (at int64, delayPlusOne uint64, given bool, err error) {
	at, timed, err := h.number("x-opt-delivery-time")
	if err != nil {
		return 0, 0, false, err
	}
	delay, delayed, err := h.number("x-delay")
	switch {
	case err != nil:
		return 0, 0, false, err
	case timed && delayed:
		return 0, 0, false, fsm.Refuse(fsm.Precondition, "a command must have either x-delay or x-opt-delivery-time")
	case delay > limit:
		return 0, 0, false, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid x-delay '%d': it must be at most %d", delay, limit))
	case timed && at > now && at-now > limit:
		return 0, 0, false, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid x-opt-delivery-time '%d': it must be at most %d ms from now", at, limit))
	case timed:
		return max(at, 1), 0, true, nil
	case delayed:
		return 0, uint64(max(delay, 0)) + 1, true, nil
	}
	return 0, 0, false, nil
}

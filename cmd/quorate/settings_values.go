package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/discovery"
	"github.com/quorate/quorate/cluster/origin"
	"github.com/quorate/quorate/fsm"
)

func text(field func(*settings) *string) func(*settings, string) error {
	return func(s *settings, v string) error {
		*field(s) = v
		return nil
	}
}

func oneOf(field func(*settings) *string, values ...string) func(*settings, string) error {
	return func(s *settings, v string) error {
		if !slices.Contains(values, v) {
			return fmt.Errorf("%q is not one of %s", v, strings.Join(values, ", "))
		}
		*field(s) = v
		return nil
	}
}

func number(low, high int, field func(*settings) *int) func(*settings, string) error {
	return func(s *settings, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < low || n > high {
			return fmt.Errorf("%q is not a whole number from %d to %d", v, low, high)
		}
		*field(s) = n
		return nil
	}
}

// size is a number of bytes, which may have a unit.
func size(low, high int64, field func(*settings) *int) func(*settings, string) error {
	return func(s *settings, v string) error {
		n, err := alarm.ParseBytes(v)
		if err != nil || n < low || n > high {
			return fmt.Errorf("%q is not a size from %d to %d bytes, such as 65536, 64KiB or 1MB", v, low, high)
		}
		*field(s) = int(n)
		return nil
	}
}

// maxMessage is the largest max_message_size.
const maxMessage = 32 << 20

// setMaxMessage takes a size above the bound for the bound: files of the peer often have its own, which is
// larger.
func setMaxMessage(s *settings, v string) error {
	n, err := alarm.ParseBytes(v)
	if err != nil || n < 1 {
		return fmt.Errorf("%q is not a size from 1 to %d bytes, such as 65536, 64KiB or 1MB", v, maxMessage)
	}
	if n > maxMessage {
		s.warn(s.key, "is above its bound", fmt.Sprintf("%d bytes is the largest supported message", maxMessage))
	}
	s.maxMessageSize = int(min(n, maxMessage))
	return nil
}

// timeUnits are the units of times, as rabbitmq.conf has them.
var timeUnits = map[string]time.Duration{
	"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour,
}

// duration is a whole number of units from low to high, or a time with a unit of its own that is one.
func duration(unit time.Duration, low, high int64, field func(*settings) *time.Duration) func(*settings, string) error {
	name := map[time.Duration]string{time.Millisecond: "ms", time.Second: "s"}[unit]
	return func(s *settings, v string) error {
		digits := len(v) - len(strings.TrimLeft(v, "0123456789"))
		in := unit
		if digits < len(v) {
			in = timeUnits[v[digits:]] // 0: unknown
		}
		n, err := strconv.ParseInt(v[:digits], 10, 64)
		if err != nil || in == 0 || n > int64(math.MaxInt64/in) || time.Duration(n)*in%unit != 0 {
			return fmt.Errorf("%q is not a time: a whole number from %d to %d (%s), or one with ms, s, m, h, d or w", v, low, high, name)
		}
		if whole := int64(time.Duration(n) * in / unit); whole < low || whole > high {
			return fmt.Errorf("%q is not a time from %d to %d %s", v, low, high, name)
		}
		*field(s) = time.Duration(n) * in
		return nil
	}
}

// alarmLimit parses a limit; an empty value changes nothing.
func alarmLimit(parse func(string) (alarm.Limit, error), field func(*settings) *alarm.Limit) func(*settings, string) error {
	return func(s *settings, v string) error {
		if v == "" {
			return nil
		}
		l, err := parse(v)
		if err == nil {
			*field(s) = l
		}
		return err
	}
}

// orOff takes undefined for 0.
func orOff(set func(*settings, string) error) func(*settings, string) error {
	return func(s *settings, v string) error {
		if v == "undefined" {
			v = "0"
		}
		return set(s, v)
	}
}

// diskExit parses a duration; 0 means never.
func diskExit(s *settings, v string) error {
	at := &s.watchdog.DiskExit
	err := duration(time.Millisecond, 0, 86_400_000, func(*settings) *time.Duration { return at })(s, v)
	if err == nil && *at == 0 {
		*at = -1
	}
	return err
}

func address(field func(*settings) *string) func(*settings, string) error {
	return func(s *settings, v string) error {
		at, err := parseAddress(v)
		if err == nil {
			*field(s) = at
		}
		return err
	}
}

// parseAddress takes IP:PORT, with or without the brackets of IPv6, or a port.
func parseAddress(v string) (string, error) {
	at := v
	if !strings.Contains(v, ":") {
		at = ":" + v
	}
	if i := strings.LastIndexByte(v, ':'); i > 0 && net.ParseIP(v[:i]) != nil {
		at = net.JoinHostPort(v[:i], v[i+1:])
	}
	_, port, err := net.SplitHostPort(at)
	if n, bad := strconv.Atoi(port); err != nil || bad != nil || n < 0 || n > 65535 {
		return "", fmt.Errorf("%q is neither IP:PORT nor a port", v)
	}
	return at, nil
}

// noFile is a path; false stands for none.
func noFile(field func(*settings) *string) func(*settings, string) error {
	return func(s *settings, v string) error {
		if v == "false" {
			v = ""
		}
		*field(s) = v
		return nil
	}
}

// listenersOf are the addresses of listeners of one kind, by the last word of their settings.
type listenersOf map[string]string

// addresses returns them in the order of their names.
func (l listenersOf) addresses() []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(l)) {
		all = append(all, l[name])
	}
	return all
}

// listener is one listener of a kind. The default one is there if it is given, or no other is.
func listener(of func(*settings) listenersOf) func(*settings, string) error {
	return func(s *settings, v string) error {
		kind, name := s.key[:strings.LastIndexByte(s.key, '.')], s.key[strings.LastIndexByte(s.key, '.')+1:]
		if _, ok := s.given[kind+".default"]; name != "default" && !ok {
			delete(of(s), "default")
		}
		if v == "none" {
			delete(of(s), name)
			return nil
		}
		at, err := parseAddress(v)
		if err == nil {
			of(s)[name] = at
		}
		return err
	}
}

// noListeners is for listeners that can only be switched off.
func noListeners(of func(*settings) listenersOf) func(*settings, string) error {
	return func(s *settings, v string) error {
		switch v {
		case "":
		case "none":
			clear(of(s))
		default:
			return fmt.Errorf("%q is not none", v)
		}
		return nil
	}
}

// optional is a kind of value that may be none, which stands for an empty string.
func optional(kind func(field func(*settings) *string) func(*settings, string) error, field func(*settings) *string) func(*settings, string) error {
	set := kind(field)
	return func(s *settings, v string) error {
		if v == "none" {
			*field(s) = ""
			return nil
		}
		return set(s, v)
	}
}

// words are the parts of a comma-separated list; an empty list has none. No part may be empty.
func words(v string) ([]string, error) {
	if v == "" {
		return nil, nil
	}
	list := strings.Split(v, ",")
	for i, w := range list {
		if list[i] = strings.TrimSpace(w); list[i] == "" {
			return nil, fmt.Errorf("%q has an empty part", v)
		}
	}
	return list, nil
}

func setContacts(s *settings, v string) (err error) {
	if s.contacts, err = words(v); err != nil {
		return err
	}
	for _, address := range s.contacts {
		if err := discovery.CheckContact(address); err != nil {
			return err
		}
	}
	return nil
}

// setToken does not repeat its input in an error, as it may be a secret.
func setToken(s *settings, v string) error {
	s.token = v
	if v == "" {
		return nil
	}
	_, err := certs.ParseToken(v)
	return err
}

func setHosts(s *settings, v string) (err error) {
	if s.hosts, err = words(v); err != nil {
		return err
	}
	_, err = origin.New(nil, s.hosts)
	return err
}

// setAnonymous takes none for nobody.
func setAnonymous(s *settings, v string) error {
	switch v {
	case "":
		return errors.New("it is empty; use none for nobody")
	case "none":
		v = ""
	}
	s.anonymous = v
	return nil
}

// setLoopback refuses an empty list: it would let everybody in, and is what an unset variable becomes.
func setLoopback(s *settings, v string) (err error) {
	if v == "" {
		return errors.New("it is empty; use none for nobody")
	}
	s.loopbackUsers = nil
	if v != "none" {
		s.loopbackUsers, err = words(v)
	}
	return err
}

var errErlang = errors.New("these are Erlang terms, as in advanced.config: write the settings as KEY = VALUE, see configuration.md")

// byteOrderMark is what some editors write before the first line.
const byteOrderMark = "\ufeff"

// read applies a file of lines KEY = VALUE, in the grammar of rabbitmq.conf. It reports every mistake in it.
func (s *settings) read(r io.Reader) error {
	var errs []error
	seen := map[string]int{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(strings.TrimPrefix(lines.Text(), byteOrderMark))
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if line[0] == '[' || line[0] == '%' {
			return fmt.Errorf("line %d: %w", n, errErlang)
		}
		s.source = fmt.Sprint("line ", n)
		key, value, err := s.split(line)
		if err == nil {
			if at := seen[key]; at > 0 {
				s.warn(key, "is given twice", fmt.Sprintf("in line %d and in line %d, which applies", at, n))
			}
			seen[key] = n
			err = s.apply(key, value)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", n, err))
		} else if slices.Contains(secrets, key) {
			s.secret = key
		}
	}
	return errors.Join(append(errs, lines.Err())...)
}

// split divides a line. A remark, which # begins, is no part of the value, and neither are single quotes
// around it, between which # has no meaning.
func (s *settings) split(line string) (key, value string, err error) {
	key, value, ok := strings.Cut(line, "=")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	if !ok || strings.Contains(key, "#") {
		return "", "", errors.New("not KEY = VALUE")
	}
	if quoted, ok := strings.CutPrefix(value, "'"); ok {
		value, rest, closed := strings.Cut(quoted, "'")
		if rest = strings.TrimSpace(rest); !closed || rest != "" && rest[0] != '#' {
			return "", "", fmt.Errorf("setting %s: a value that begins with a single quote must end with one", key)
		}
		return key, value, nil
	}
	if at := strings.IndexByte(value, '#'); at >= 0 {
		if at > 0 && value[at-1] != ' ' && value[at-1] != '\t' {
			s.warn(key, "ends before #", "# begins a comment; put the value in single quotes to keep it")
		}
		value = strings.TrimSpace(value[:at])
	}
	if len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"' {
		s.warn(key, "has double quotes", "they are part of the value; single quotes are not")
	}
	return key, value, nil
}

// quoteValue writes a value so that split reads it back.
func quoteValue(v string) (string, error) {
	switch {
	case strings.ContainsAny(v, "\r\n"):
		return "", errors.New("a value in a file must be on one line")
	case !strings.ContainsAny(v, "#'\"") && v == strings.TrimSpace(v):
		return v, nil
	case !strings.Contains(v, "'"):
		return "'" + v + "'", nil
	case v == strings.TrimSpace(v) && !strings.Contains(v, "#") && v[0] != '\'':
		return v, nil
	}
	return "", errors.New("it cannot be written to a file: it combines single quotes with a #, or has them at its beginning or beside blanks at its ends")
}

// similar says which setting an unknown one may be meant for; empty: none. Settings are written as by write.
func similar(name string, write func(key string) string) string {
	var known []string
	for _, row := range table {
		known = append(known, write(row.key))
	}
	if near := fsm.Nearest(name, known, 2); near != "" {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return ""
}

// serviceVariable and servicePort match the names of the variables that Kubernetes sets for services in the
// namespace of a pod.
var (
	serviceVariable = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)$`)
	serviceAddress  = regexp.MustCompile(`^(tcp|udp|sctp)://`)
)

// ofService reports whether a variable is one of those. QUORATE_PORT is one by its value only.
func ofService(name, value string) bool {
	return serviceVariable.MatchString(name) || strings.HasSuffix(name, "_PORT") && serviceAddress.MatchString(value)
}

// variable is the name of a setting in the environment: the key in capitals, with underscores for
// dots.
func variable(key string) string {
	return "QUORATE_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// environment applies QUORATE_… variables, given as NAME=VALUE, and before them the three of
// RabbitMQ's images that say who the first user is. It ignores others, and reports every mistake.
func (s *settings) environment(environ []string) error {
	var errs []error
	keys, many := map[string]string{}, map[string]string{}
	for _, row := range table {
		if prefix := row.series(); prefix != "" {
			many[variable(prefix)] = prefix
		} else {
			keys[variable(row.key)] = row.key
		}
	}
	for _, kv := range environ { // those of the peer first: its own ones win
		name, value, _ := strings.Cut(kv, "=")
		word, ok := strings.CutPrefix(name, "RABBITMQ_")
		if !ok {
			continue
		}
		s.source = name
		switch {
		case slices.Contains([]string{"DEFAULT_USER", "DEFAULT_PASS", "DEFAULT_VHOST"}, word):
			if err := s.apply(strings.ToLower(word), value); err != nil {
				errs = append(errs, fmt.Errorf("environment %s: %w", name, err))
			}
		case name == peerAdvancedVariable:
			errs = append(errs, fmt.Errorf("environment %s: %w", name, errErlang))
		case name != peerFileVariable: // load reads that one
			s.tell(name, cmp.Or(peerVariables[name], "variables of settings begin with QUORATE_"))
		}
	}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		key := keys[name]
		for prefix, series := range many {
			if n, ok := strings.CutPrefix(name, prefix); ok && key == "" && n != "" {
				key = series + strings.ToLower(n)
			}
		}
		if key == "" {
			if name == fileVariable || !strings.HasPrefix(name, variable("")) {
				continue
			}
			if ofService(name, value) {
				s.tell(name, "Kubernetes sets it for a service called quorate")
				continue
			}
			errs = append(errs, fmt.Errorf("environment %s: no such setting%s", name, similar(name, variable)))
			continue
		}
		s.source = name
		if err := s.apply(key, value); err != nil {
			errs = append(errs, fmt.Errorf("environment %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
)

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

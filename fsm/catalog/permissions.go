package catalog

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/pattern"
	"github.com/quorate/quorate/proto/logpb"
)

// Verb is what a permission is needed for.
type Verb uint8

// The verbs.
const (
	Configure Verb = iota
	Write
	Read
)

func (w Verb) String() string {
	switch w {
	case Configure:
		return "configure"
	case Write:
		return "write"
	}
	return "read"
}

// Permission says which names a user may configure, write and read in a vhost.
//
// It never changes. An empty pattern matches only the empty name, so it permits
// nothing; the default exchange is asked about as amq.default.
type Permission struct {
	User, VHost string
	// Configure, Write and Read are the patterns: regular expressions that
	// may match anywhere in a name.
	Configure, Write, Read string

	// patterns: derived from the three texts when the record is made
	patterns [3]names // by Verb
}

// names are those that a pattern matches.
//
// At most one field is set; none: no name. all and empty save the regular
// expression for the most frequent texts. Several goroutines may match.
type names struct {
	all   bool // every name
	empty bool // the empty name only
	own   *pattern.Pattern
	re2   *regexp.Regexp // of a pattern that own cannot be made of
}

// newNames compiles a text. It never fails: a text that is no pattern, which was
// refused before it came into the log, matches nothing. With dialectOwn, what
// package pattern does not take is still read as RE2.
func newNames(text string, dialect uint32) names {
	switch text {
	case "":
		return names{empty: true}
	case ".*", "^.*", ".*$":
		return names{all: true}
	}
	if dialect != dialectRE2 {
		if p, err := pattern.Compile(text); err == nil {
			return names{own: p}
		}
	}
	re, _ := regexp.Compile(text)
	return names{re2: re}
}

func (n *names) match(name string) bool {
	return n.all || n.empty && name == "" || n.own != nil && n.own.Match(name) || n.re2 != nil && n.re2.MatchString(name)
}

// newPermission makes the record of a row. Patterns are not checked.
func newPermission(row *logpb.PutPermission) *Permission {
	return &Permission{
		User: row.GetUser(), VHost: row.GetVhost(),
		Configure: row.GetConfigure(), Write: row.GetWrite(), Read: row.GetRead(),
		patterns: [3]names{newNames(row.GetConfigure(), dialectOwn), newNames(row.GetWrite(), dialectOwn), newNames(row.GetRead(), dialectOwn)},
	}
}

// row is what a snapshot holds of the permission. It is new each time.
func (p *Permission) row() *logpb.PutPermission {
	return &logpb.PutPermission{User: p.User, Vhost: p.VHost, Configure: p.Configure, Write: p.Write, Read: p.Read}
}

// patternsSince is the version of the machines from which on policies are matched by
// package pattern.
const patternsSince = 3

// The dialects of the patterns of policies.
const (
	dialectRE2 = iota // of the library regexp
	dialectOwn        // of package pattern
)

// dialectOf decides how a pattern is read: by package pattern, which is RabbitMQ's
// dialect; or as RE2, if all nodes may not know that package yet, or if it is not
// for it and was taken before it existed. Proposers call it, as the outcome may
// depend on the version of the library; the catalog holds what they have decided.
func (s *clusterSettings) dialectOf(text string) (dialect uint32, err error) {
	_, err = pattern.Compile(text)
	_, re2 := regexp.Compile(text)
	switch {
	case err == nil && s.FSMVersion() >= patternsSince:
		return dialectOwn, nil
	case re2 == nil:
		return dialectRE2, nil
	case err == nil:
		return 0, fmt.Errorf("%s; the cluster supports look-around and back-references from fsm_version %d on", strings.TrimPrefix(re2.Error(), "error parsing regexp: "), patternsSince)
	}
	return 0, err
}

// ValidatePattern says why text cannot be a permission pattern; nil: it can.
// Proposers check it. Apply does not: there, a pattern that does not compile is
// kept and matches nothing.
func (s *clusterSettings) ValidatePattern(text string) error {
	if err := checkPatterns(text); err != nil {
		return err
	}
	if _, err := s.dialectOf(text); err != nil {
		return refuse(fsm.Precondition, "%q is not a valid regular expression: %v", text, err)
	}
	return nil
}

// checkPatterns refuses patterns that are too long. Apply calls it, as a length
// does not depend on a library.
func checkPatterns(patterns ...string) error {
	for _, p := range patterns {
		if len(p) > maxPattern {
			return refuse(fsm.Precondition, "the pattern is longer than %d bytes", maxPattern)
		}
	}
	return nil
}

// maxPattern is the length in bytes of the longest permission pattern.
const maxPattern = 1024

// May is View.May for one user and vhost.
func (p *Permission) May(verb Verb, name string) bool { return p.patterns[verb].match(name) }

// Resource kinds, as texts name them.
const (
	kindQueue    = "queue"
	kindExchange = "exchange"
)

// defaultExchange is the name under which permissions know the exchange "".
const defaultExchange = "amq.default"

// access answers whether the client may do verb to a queue or exchange, with
// the refusal. Apply, which knows no client, uses noAccess. It is called for
// each name that a request touches, in the order in which clients observe the
// refusals.
type access func(verb Verb, kind, name string) error

func noAccess(Verb, string, string) error { return nil }

// AccessRefused is the refusal of a user who lacks a permission. kind is
// queue or exchange.
func AccessRefused(user, vhost string, verb Verb, kind, name string) error {
	return refuse(fsm.AccessRefused, "%s access to %s refused for user '%s'", verb, resource(kind, vhost, name), user)
}

// resource names a queue or an exchange as texts for clients do.
func resource(kind, vhost, name string) string {
	return kind + " '" + name + "' in vhost '" + vhost + "'"
}

// refuse makes a refusal. Its text is valid UTF-8, whatever clients put into
// the arguments it quotes.
func refuse(k fsm.Kind, format string, args ...any) error {
	return fsm.Refuse(k, strings.ToValidUTF8(fmt.Sprintf(format, args...), "?"))
}

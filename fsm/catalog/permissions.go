package catalog

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/quorate/quorate/fsm"
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
	patterns [3]pattern // by Verb
}

// pattern is a compiled permission pattern.
//
// At most one of the three is set; none: it matches nothing. all and empty save
// the regular expression for the most frequent texts. Several goroutines may
// match.
type pattern struct {
	all   bool // matches every name
	empty bool // matches the empty name only
	// re is nil if the text is no regular expression: it then matches nothing.
	re *regexp.Regexp
}

// newPattern compiles a text. It never fails: what Apply does must not depend
// on whether this program's library accepts the text.
func newPattern(text string) pattern {
	switch text {
	case "":
		return pattern{empty: true}
	case ".*", "^.*", ".*$":
		return pattern{all: true}
	}
	re, _ := regexp.Compile(text)
	return pattern{re: re}
}

func (p *pattern) match(name string) bool {
	return p.all || p.empty && name == "" || p.re != nil && p.re.MatchString(name)
}

// newPermission makes the record of a row. Patterns are not checked.
func newPermission(row *logpb.PutPermission) *Permission {
	return &Permission{
		User: row.GetUser(), VHost: row.GetVhost(),
		Configure: row.GetConfigure(), Write: row.GetWrite(), Read: row.GetRead(),
		patterns: [3]pattern{newPattern(row.GetConfigure()), newPattern(row.GetWrite()), newPattern(row.GetRead())},
	}
}

// row is what a snapshot holds of the permission. It is new each time.
func (p *Permission) row() *logpb.PutPermission {
	return &logpb.PutPermission{User: p.User, Vhost: p.VHost, Configure: p.Configure, Write: p.Write, Read: p.Read}
}

// ValidatePattern says why text cannot be a permission pattern; nil: it can.
// Proposers check it. Apply does not, because it must not depend on the
// version of the regular expression library: there, a pattern that does not
// compile is kept and matches nothing.
func ValidatePattern(text string) error {
	if len(text) > maxPattern {
		return refuse(fsm.Precondition, "the pattern is longer than %d bytes", maxPattern)
	}
	if _, err := regexp.Compile(text); err != nil {
		return refuse(fsm.Precondition, "%v", err)
	}
	return nil
}

// checkPatterns refuses patterns that are too long. See ValidatePattern. Apply
// calls it, as a length does not depend on the library.
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

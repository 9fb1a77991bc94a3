package catalog

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/pattern"
	"github.com/quorate/quorate/fsm/route"
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

// Broker is who connects on the broker's own behalf: it may do everything in every vhost. No user has an empty name, and nobody
// logs in with it.
const Broker = ""

// unlimited are the rights of Broker. It is the same record for every vhost, as nobody changes it.
var unlimited = Permission{patterns: [3]names{{all: true}, {all: true}, {all: true}}}

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

// rights are what users may do in one vhost.
//
// Invariant: each permission is of a user that is there, says that it is of this
// vhost, and stands under its user, or its user and exchange.
//
// A vhost, and not the user, owns them, so that deleting a vhost takes them
// along. A snapshot holds them in lists of all vhosts; patterns are compiled
// again by Restore.
type rights struct {
	permissions route.Map[string, *Permission] // by user
	// topics: of exchanges that need not be there: they stay when an exchange
	// is deleted, and count for the next one of its name
	topics route.Map[topicPlace, *TopicPermission]
}

// permission finds the permission of a user.
func (r *rights) permission(user string) (*Permission, bool) { return r.permissions.Get(user) }

// topic is a topic permission; nil: there is none.
func (r *rights) topic(at topicPlace) *TopicPermission { return r.topics.At(at) }

// anyTopics reports whether there are topic permissions.
func (r *rights) anyTopics() bool { return r.topics.Len() > 0 }

// topicsOf lists the topic permissions of a user, in no particular order. It
// walks over all topic permissions of the vhost.
func (r *rights) topicsOf(user string) (of []topicPlace) {
	for at := range r.topics.All() {
		if at.user == user {
			of = append(of, at)
		}
	}
	return of
}

// of reports whether a user has any of them.
func (r *rights) of(user string) bool {
	_, ok := r.permission(user)
	return ok || len(r.topicsOf(user)) > 0
}

// list returns all of them, in no particular order.
func (r *rights) list() (permissions []*Permission, topics []*TopicPermission) {
	for p := range r.permissions.Values() {
		permissions = append(permissions, p)
	}
	for p := range r.topics.Values() {
		topics = append(topics, p)
	}
	return permissions, topics
}

// put and putTopic add a permission, or replace that of the same place.
func (r *rights) put(p *Permission) { r.permissions = r.permissions.With(p.User, p) }

func (r *rights) putTopic(p *TopicPermission) {
	r.topics = r.topics.With(topicPlace{p.User, p.Exchange}, p)
}

// remove removes the permission of a user, and removeTopic a topic permission.
func (r *rights) remove(user string)        { r.permissions = r.permissions.Without(user) }
func (r *rights) removeTopic(at topicPlace) { r.topics = r.topics.Without(at) }

// forget removes all that a user has. A user who has none is fine.
func (r *rights) forget(user string) {
	r.remove(user)
	for _, at := range r.topicsOf(user) {
		r.removeTopic(at)
	}
}

// check gets the name of the vhost.
func (r *rights) check(vhost string, all *users) error {
	for user, p := range r.permissions.All() {
		if _, ok := all.User(user); !ok || p.User != user || p.VHost != vhost {
			return fmt.Errorf("permission of %q in %q stands under %q in %q", p.User, p.VHost, user, vhost)
		}
	}
	for at, p := range r.topics.All() {
		if _, ok := all.User(at.user); !ok || p.User != at.user || p.Exchange != at.exchange || p.VHost != vhost {
			return fmt.Errorf("topic permission of %q at %q in %q stands under %v in %q", p.User, p.Exchange, p.VHost, at, vhost)
		}
	}
	return nil
}

// TopicPermission restricts the routing keys of a user at one topic exchange.
// Without one, permissions of the vhost alone decide. At exchanges of other
// types it means nothing.
//
// It never changes. An empty pattern permits only the empty routing key.
type TopicPermission struct {
	User, VHost, Exchange string
	// Write is the pattern for routing keys of publishes, Read the one for
	// those of bindings. {username} and {vhost} in them stand for the user's
	// and the vhost's name.
	Write, Read string

	// row: what a snapshot holds; the other fields are derived from it
	row *logpb.PutTopicPermission
	// write and read: Write and Read with the names filled in
	write, read names
}

// topicPlace tells the topic permissions of a vhost apart.
type topicPlace struct{ user, exchange string }

// newTopicPermission makes the record of a row. Names are quoted, so that a
// user cannot be given a name that widens the pattern.
func newTopicPermission(row *logpb.PutTopicPermission) *TopicPermission {
	fill := strings.NewReplacer("{username}", pattern.Quote(row.GetUser()), "{vhost}", pattern.Quote(row.GetVhost()))
	return &TopicPermission{
		User: row.GetUser(), VHost: row.GetVhost(), Exchange: row.GetExchange(),
		Write: row.GetWrite(), Read: row.GetRead(), row: row,
		write: newNames(fill.Replace(row.GetWrite()), dialectOwn), read: newNames(fill.Replace(row.GetRead()), dialectOwn),
	}
}

// Check refuses a routing key that the user may not write, or read, at the
// exchange. Requires: verb is Write or Read; Configure is taken for Write.
func (p *TopicPermission) Check(verb Verb, key string) error {
	allowed := &p.write
	if verb == Read {
		allowed = &p.read
	}
	if allowed.match(key) {
		return nil
	}
	return refuse(fsm.AccessRefused, "%s access to topic '%s' in %s refused for user '%s'",
		verb, key, resource(kindExchange, p.VHost, p.Exchange), p.User)
}

// movers are the keys of policies by which messages go elsewhere than their
// publishers have sent them: those of queues, and those of exchanges.
var movers = struct{ queues, exchanges []string }{
	queues:    []string{"dead-letter-exchange", "dead-letter-routing-key", "forward-to-exchange", "forward-to-routing-key"},
	exchanges: []string{"alternate-exchange"},
}

// covers reports whether every name that matches inner also matches outer, as
// far as that can be told from the texts: outer matches all names, both are the
// same, or both begin with ^ and letters that stand for themselves, outer with no
// more of them than inner and nothing behind but what matches anything.
//
// true is certain, false may be wrong: then an author who could have set the
// policy is refused. Only proposers call it, so it need not be the same on
// every node.
func covers(outer, inner string) bool {
	if n := newNames(outer, dialectOwn); n.all || outer != "" && outer == inner {
		return true
	}
	o, err := pattern.Compile(outer)
	if err != nil {
		return false
	}
	i, err := pattern.Compile(inner)
	if err != nil || strings.Contains(inner, "{") { // which RE2 reads otherwise
		return false
	}
	prefix, all, _ := o.Prefix()
	start, _, ok := i.Prefix()
	return all && ok && strings.HasPrefix(start, prefix)
}

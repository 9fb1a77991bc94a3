package entity

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strings"
)

// Part is a part of an entity that has an address of its own.
type Part uint8

// The parts. Transfers are the dead letters of what an entity hands on.
const (
	Main Part = iota
	DeadLetters
	Transfers
	Management
)

// suffixes are how the addresses of parts end.
var suffixes = [...]string{"", "/$deadletterqueue", "/$Transfer/$deadletterqueue", "/$management"}

// subscriptions is the segment between a topic and a subscription, with the
// capitals that clients read.
const subscriptions = "/Subscriptions/"

// Bounds of names, in characters.
const (
	maxName    = 260
	maxSubName = 50
)

// Path names an entity. Names are as they were given.
type Path struct {
	Name         string // of a queue or topic
	Subscription string // empty: the queue or topic itself
}

// Address names a part of an entity.
type Address struct {
	Path
	Part Part
}

// NewTrackingID returns a name for one answer, by which its receiver and the log mean the same.
func NewTrackingID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	return hex.EncodeToString(id[:])
}

// String is the path as clients read it.
func (p Path) String() string {
	if p.Subscription == "" {
		return p.Name
	}
	return p.Name + subscriptions + p.Subscription
}

// Key is the same for all paths of an entity.
func (p Path) Key() string { return Key(p.String()) }

// Key is a name without its case.
func Key(name string) string { return strings.ToLower(name) }

// String is the address as clients read it.
func (a Address) String() string { return a.Path.String() + suffixes[a.Part] }

// Object is the name of what the broker has at an address: the queue, and its dead
// letters, of a queue or subscription; the exchange of a topic.
func (a Address) Object() string { return objectName(a.String()) }

// Transfers is the address of what an entity could not hand on. A topic and its subscriptions have one.
func (p Path) Transfers() Address { return Address{Path{Name: p.Name}, Transfers} }

// Store is the name of the queue in which a topic keeps what it is sent.
func (p Path) Store() string { return objectName(p.Name + "/$topic") }

// longestObject is how long a name of the broker may be, in bytes, and digestSize
// what stands for the end of a longer one.
const (
	longestObject = 255
	digestSize    = 32
)

// objectName shortens a path that is too long to be a name of the broker.
func objectName(path string) string {
	if len(path) <= longestObject {
		return path
	}
	sum := sha256.Sum256([]byte(path))
	digest := hex.EncodeToString(sum[:digestSize/2])
	return path[:longestObject-1-digestSize] + "~" + digest
}

// ParseAddress reads the address of a link, or the path of a URL: one slash at either
// end is left out, and so are a scheme and a host in front. It does not say whether
// there can be such an entity, see CheckPath.
func ParseAddress(address string) Address {
	if _, rest, ok := strings.Cut(address, "://"); ok {
		_, address, _ = strings.Cut(rest, "/")
	}
	if plain, err := url.PathUnescape(address); err == nil {
		address = plain
	}
	rest := strings.TrimSuffix(strings.TrimPrefix(address, "/"), "/")
	var a Address
	for part := Management; part > Main; part-- {
		if cut, ok := cutSuffixFold(rest, suffixes[part]); ok {
			rest, a.Part = cut, part
			break
		}
	}
	a.Name = rest
	if i := strings.LastIndexByte(rest, '/'); i > 0 {
		if name, ok := cutSuffixFold(rest[:i+1], subscriptions); ok && name != "" {
			a.Name, a.Subscription = name, rest[i+1:]
		}
	}
	return a
}

func cutSuffixFold(s, suffix string) (string, bool) {
	if n := len(s) - len(suffix); n >= 0 && strings.EqualFold(s[n:], suffix) {
		return s[:n], true
	}
	return s, false
}

// CheckPath refuses names that no entity can have.
func CheckPath(p Path) error {
	switch {
	case !isName(p.Name, maxName, "./-_"):
		return invalid("", "The entity name '%.300s' is not valid: 1 to %d letters, digits and . - _ /, neither first nor last a slash.", p.Name, maxName)
	case p.Subscription != "" && !isName(p.Subscription, maxSubName, ".-_"):
		return invalid("", "The subscription name '%.300s' is not valid: 1 to %d letters, digits and . - _", p.Subscription, maxSubName)
	}
	return nil
}

// CheckRuleName refuses names that no rule can have.
func CheckRuleName(name string) error {
	if !isName(name, maxSubName, ".-_$") {
		return invalid("", "The rule name '%.300s' is not valid: 1 to %d letters, digits and . - _ $", name, maxSubName)
	}
	return nil
}

func isName(name string, limit int, more string) bool {
	strange := func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune(more, r)
	}
	return name != "" && len(name) <= limit && !strings.ContainsFunc(name, strange) && name[0] != '/' && name[len(name)-1] != '/' &&
		!strings.Contains(name, "//")
}

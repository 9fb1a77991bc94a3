// Package sas makes and verifies shared access signatures: tokens that anybody
// makes who knows a key, and that give the rights of the key's rule on a resource
// for a time.
package sas

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Rights are what a rule allows.
type Rights uint8

// The rights. Manage implies the others.
const (
	Send Rights = 1 << iota
	Listen
	Manage
)

// Allows reports whether r includes all of what is needed.
func (r Rights) Allows(needed Rights) bool {
	if r&Manage != 0 {
		r |= Send | Listen
	}
	return r&needed == needed
}

// Rule is a shared access policy. Keys are texts that both sides know.
type Rule struct {
	Name               string
	Rights             Rights
	Primary, Secondary string // empty: no such key
}

// Errors of tokens. Whether a rule is not there or a key is wrong is told by none of
// them; that its time is over learns who knows the key.
var (
	ErrMalformed = errors.New("the token is malformed")
	ErrInvalid   = errors.New("the token has an invalid signature")
	ErrExpired   = errors.New("the token is expired")
)

const scheme = "SharedAccessSignature "

// longest is how long a token may be, in bytes.
const longest = 8 << 10

// Token is one that has been read and not verified.
type Token struct {
	RuleName string
	Expires  time.Time
	// Resource is what the token is for, see Covers.
	Resource string

	signed    string // resource and expiry as they stand in the token
	signature []byte
}

// Parse reads a token.
func Parse(text string) (*Token, error) {
	rest, ok := strings.CutPrefix(text, scheme)
	if !ok || len(text) > longest {
		return nil, ErrMalformed
	}
	given := map[string]string{}
	for field := range strings.SplitSeq(rest, "&") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		if _, twice := given[name]; twice {
			return nil, ErrMalformed
		}
		given[name] = value
	}
	t := &Token{signed: given["sr"] + "\n" + given["se"]}
	seconds, err := strconv.ParseInt(given["se"], 10, 64)
	if err != nil || given["sr"] == "" || seconds < 0 || seconds > 1<<40 {
		return nil, ErrMalformed
	}
	t.Expires = time.Unix(seconds, 0)
	var wrong [4]error
	t.Resource, wrong[0] = url.QueryUnescape(given["sr"])
	t.RuleName, wrong[1] = url.QueryUnescape(given["skn"])
	sig, err := url.PathUnescape(given["sig"])
	wrong[2] = err
	t.signature, wrong[3] = base64.StdEncoding.DecodeString(sig)
	if errors.Join(wrong[:]...) != nil || t.RuleName == "" {
		return nil, ErrMalformed
	}
	return t, nil
}

// noKey takes the place of a key that is not there, so that it takes as long.
const noKey = "\x00"

// Verify reports whether the token is good at a time: a key of rule has signed it,
// and it has not ended for longer than skew. rule nil: there is none of that name.
func (t *Token) Verify(rule *Rule, now time.Time, skew time.Duration) error {
	keys := [2]string{noKey, noKey}
	if rule != nil {
		keys = [2]string{rule.Primary, rule.Secondary}
	}
	good := 0
	for _, key := range keys {
		same := subtle.ConstantTimeCompare(sum(key, t.signed), t.signature)
		if key == "" || key == noKey {
			same = 0
		}
		good |= same
	}
	switch {
	case good == 0:
		return ErrInvalid
	case !now.Before(t.Expires.Add(skew)):
		return ErrExpired
	}
	return nil
}

// ExpiredText is what a client is told whose token is expired. Programs look for its beginning.
func (t *Token) ExpiredText() string {
	return "ExpiredToken: The token is expired. Expiration time: " + t.Expires.UTC().Format(time.RFC3339) + "."
}

func sum(key, text string) []byte {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(text))
	return h.Sum(nil)
}

// Sign makes a token for a resource.
func Sign(resource, ruleName, key string, expires time.Time) string {
	sr, se := url.QueryEscape(resource), strconv.FormatInt(expires.Unix(), 10)
	sig := base64.StdEncoding.EncodeToString(sum(key, sr+"\n"+se))
	return scheme + "sr=" + sr + "&sig=" + url.QueryEscape(sig) + "&se=" + se + "&skn=" + url.QueryEscape(ruleName)
}

// Path is the path of a resource or audience, in small letters, without slashes at
// its ends: [scheme://]host[:port][/path][?query].
func Path(resource string) string {
	_, rest := split(resource)
	return rest
}

// Host is the host of a resource, in small letters and without its port.
func Host(resource string) string {
	host, _ := split(resource)
	return host
}

func split(resource string) (host, path string) {
	if _, rest, ok := strings.Cut(resource, "://"); ok {
		resource = rest
	}
	resource, _, _ = strings.Cut(resource, "?")
	host, path, _ = strings.Cut(strings.ToLower(resource), "/")
	if i := strings.LastIndexByte(host, ':'); i > 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	return host, strings.Trim(path, "/")
}

// Covers reports whether a token for a resource is good for an audience: the same
// path, or one below it by whole segments. Schemes and hosts do not count.
func (t *Token) Covers(audience string) bool {
	return covers(Path(t.Resource), Path(audience))
}

func covers(scope, path string) bool {
	return scope == "" || scope == path || strings.HasPrefix(path, scope+"/")
}

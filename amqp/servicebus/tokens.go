package servicebus

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/sas"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// tokens are the rights of a connection: what its login gives, and what the tokens give that its client has put, each for
// what its audience names and until its end.
//
// Invariant: timer runs exactly if something ends of itself, unless the connection is over.
type tokens struct {
	side  *side
	login *login // nil: it gives no rights

	mu     sync.Mutex
	put    map[string]*grant // by audience
	links  map[*v10.Link]need
	timer  *time.Timer
	closed bool
}

// login is a rule's name and one of its keys.
type login struct{ rule, key string }

// grant is what a token gives.
type grant struct {
	token  *sas.Token
	scope  string // of its rule
	rights sas.Rights
}

// need is what a link needs to live.
type need struct {
	paths  []entity.Path
	rights sas.Rights
}

// maxTokens bounds the audiences for which a client has put tokens.
const maxTokens = 10_000

func (t *tokens) init(s *side) {
	t.side, t.put, t.links = s, map[string]*grant{}, map[*v10.Link]need{}
}

// hasAny reports whether the client has shown who it is.
func (t *tokens) hasAny() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.login != nil || len(t.put) > 0
}

// loginRights are the rights that the login gives in a namespace: none if it does not name a rule of that and one of its keys.
func (t *tokens) loginRights(vhost string) sas.Rights {
	if t.login == nil {
		return 0
	}
	s := t.side
	rule, _ := s.dialect.Directory.Rule(vhost, "", t.login.rule)
	now := s.dialect.Directory.Now()
	// What the key signs is what the key's owner could have signed.
	token, err := sas.Parse(sas.Sign("/", t.login.rule, t.login.key, now.Add(time.Minute)))
	if err != nil || t.login.key == "" || token.Verify(rule, now, 0) != nil {
		return 0
	}
	return rule.Rights
}

// add takes in a token for an audience. It returns the status of the answer.
func (t *tokens) add(audience, text string) (status int32, description string) {
	s := t.side
	token, err := sas.Parse(text)
	if err != nil {
		return 400, "InvalidToken: the token is malformed."
	}
	g := &grant{token: token}
	switch err := t.verify(g); {
	case errors.Is(err, sas.ErrExpired):
		return 401, token.ExpiredText()
	case err != nil || !token.Covers(audience):
		return 401, "InvalidSignature: The token has an invalid signature."
	}
	path := sas.Path(audience)
	if at, _ := nodeAt(path); path != "" {
		if _, ok := s.entity(at.Path); !ok {
			return 404, s.notFound(at.Path).Description
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.put) >= maxTokens && t.put[path] == nil {
		return 403, "QuotaExceeded: too many tokens have been put on this connection."
	}
	t.put[path] = g
	t.arm()
	return 202, "Accepted"
}

// verify says why a token is not good now, or notes what it gives. The rule is one of the queue or topic that the token is
// for, else of the namespace.
func (t *tokens) verify(g *grant) error {
	s := t.side
	dir, now := s.dialect.Directory, s.dialect.Directory.Now()
	at, _ := nodeAt(sas.Path(g.token.Resource))
	scope := at.Path
	scope.Subscription = ""
	why := sas.ErrInvalid
	for _, in := range []string{scope.Key(), ""} {
		rule, _ := dir.Rule(s.client.VHost, in, g.token.RuleName)
		switch err := g.token.Verify(rule, now, s.dialect.Skew); err {
		case nil:
			g.scope, g.rights = in, rule.Rights
			return nil
		case sas.ErrExpired:
			why = err
		}
	}
	return why
}

// allows reports whether the client has a right on an entity now.
func (t *tokens) allows(p entity.Path, right sas.Rights) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.allowsLocked(p, right)
}

func (t *tokens) allowsLocked(p entity.Path, right sas.Rights) bool {
	_, ok := t.giverLocked(p, right)
	return ok
}

// giver returns the rule by which the client has a right on an entity now; empty: it has not.
func (t *tokens) giver(p entity.Path, right sas.Rights) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	rule, _ := t.giverLocked(p, right)
	return rule
}

func (t *tokens) giverLocked(p entity.Path, right sas.Rights) (rule string, ok bool) {
	if t.loginRights(t.side.client.VHost).Allows(right) {
		return t.login.rule, true
	}
	now, key := t.side.dialect.Directory.Now(), p.Key()
	for audience, g := range t.put {
		if g.rights.Allows(right) && now.Before(g.token.Expires.Add(t.side.dialect.Skew)) && names(audience, key) {
			return g.token.RuleName, true
		}
	}
	return "", false
}

// names reports whether an audience names an entity, the whole that it is a part of, or one of its parts.
func names(audience, key string) bool {
	at, _ := nodeAt(audience)
	return audience == "" || audience == key || strings.HasPrefix(key, audience+"/") || at.Path.Key() == key
}

// depend ends a link that is about to open when the client has a right on an entity no more. ended is called when it is over;
// nil: nobody has to know. The gate of its session is held.
func (t *tokens) depend(l *v10.Link, p entity.Path, right sas.Rights, ended func()) {
	t.dependOn(l, need{[]entity.Path{p}, right}, ended)
}

// dependOn is depend for all that a link needs.
func (t *tokens) dependOn(l *v10.Link, n need, ended func()) {
	l.Ended(func() {
		if ended != nil {
			ended()
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.links, l)
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	if why := t.lost(n); why != nil { // the right has gone meanwhile
		t.side.denied("", why)
		l.Detach(why)
		return
	}
	t.links[l] = n
}

// check verifies all tokens again, and ends the links that have lost their rights, and those of entities that are disabled.
func (t *tokens) check() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	for audience, g := range t.put {
		if t.verify(g) != nil {
			delete(t.put, audience)
		}
	}
	for l, n := range t.links {
		if why := t.lost(n); why != nil {
			delete(t.links, l)
			t.side.denied("", why)
			l.Detach(why)
		}
	}
	t.arm()
}

// lost returns why a link may not live; nil: it may.
func (t *tokens) lost(n need) *wire.Error {
	for _, p := range n.paths {
		switch d, ok := t.side.entity(p); {
		case !t.allowsLocked(p, n.rights):
			return t.side.unauthorized(p, n.rights)
		case ok && !t.side.open(d, n.rights):
			return t.side.disabled(p)
		}
	}
	return nil
}

// arm has the tokens checked when the first one ends. mu is held.
func (t *tokens) arm() {
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	var first time.Time
	for _, g := range t.put {
		if end := g.token.Expires; first.IsZero() || end.Before(first) {
			first = end
		}
	}
	if !first.IsZero() && !t.closed {
		wait := first.Add(t.side.dialect.Skew).Sub(t.side.dialect.Directory.Now())
		t.timer = time.AfterFunc(max(wait, time.Millisecond), t.check)
	}
}

// close is called when the connection is over.
func (t *tokens) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.timer != nil {
		t.timer.Stop()
	}
}

// putOperation is what is asked of the node for tokens.
const putOperation = "put-token"

// The type of tokens that are verified here, and that of another kind.
const (
	typeSAS = "servicebus.windows.net:sastoken"
	typeJWT = "jwt"
)

// putToken performs a request of the node for tokens.
func (s *side) putToken(r *request) {
	kind, audience, body := r.text("type"), r.text("name"), ""
	if v, err := r.message.BodyValue(); err == nil && isText(v) {
		body = string(v.Bytes())
	}
	switch {
	case r.text("operation") != putOperation:
		r.failWith(s.refuse(wire.ConditionNotImplemented, "The operation is not supported."))
	case kind == typeJWT:
		r.failWith(s.refuse(wire.ConditionUnauthorized, "Tokens of this issuer are not accepted."))
	case kind != typeSAS || body == "":
		r.failWith(s.refuse(conditionArgument, "The type of the token is not supported, or there is none."))
	default:
		if status, description := s.tokens.add(audience, body); status < 300 {
			r.done(status, description, nil)
		} else {
			e := s.track(wire.Errorf("", "%s", description))
			if status == 401 {
				s.client.Refused(putOperation, e.Description)
			}
			r.fail("", status, e.Description)
		}
	}
}

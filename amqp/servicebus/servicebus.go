package servicebus

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/sas"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// Directory is what is known of namespaces, which are vhosts. Any goroutine may ask. What reads answers from what the node
// knows, and does not block.
type Directory interface {
	// Entity finds an entity by its path, whatever the case of that. Nobody changes it.
	Entity(vhost string, p entity.Path) (*entity.Description, bool)
	// Rule finds a rule of a name: of the namespace if scope is empty, else of the queue or topic with that key.
	Rule(vhost, scope, name string) (*sas.Rule, bool)
	// Now is the cluster's time.
	Now() time.Time
	// Rules lists the rules of a subscription by name, and says when that was created.
	Rules(vhost string, p entity.Path) (rules []*entity.Rule, created time.Time)
	// AddRule gives a subscription a rule, and RemoveRule takes one from it. They block until every node knows. done
	// false: there is one of that name, or none.
	AddRule(ctx context.Context, vhost string, p entity.Path, r *entity.Rule) (done bool, err error)
	RemoveRule(ctx context.Context, vhost string, p entity.Path, name string) (done bool, err error)
}

// Dialect is a v10.Dialect.
type Dialect struct {
	Directory Directory
	// VHost is the namespace of clients that name no host of Namespaces, which are vhosts by host in small letters.
	VHost      string
	Namespaces map[string]string
	// Skew is how long after its end a token is good.
	Skew time.Duration
	// Count is told of each answer to a request, which has the name of its operation, or is unknown. nil: nobody is told.
	Count func(operation string, status int)
	// Audit is told of each rule of a subscription that a client was to add or remove, by an access rule that allows it; err nil: that was
	// done. nil: nobody is told.
	Audit func(c *v10.Client, access, action, rule string, err error)
	// Transaction is how long one may take; 0: two minutes.
	Transaction time.Duration
}

// side is the dialect's side of one connection.
type side struct {
	dialect  *Dialect
	client   *v10.Client
	host     string // by which the client knows the namespace
	tokens   tokens
	nodes    requestNodes
	sessions heldSessions
	// transactions are those that the client has declared.
	transactions transactions
}

// Open implements v10.Dialect.
func (d *Dialect) Open(c *v10.Client) v10.Side {
	s := &side{dialect: d, client: c}
	s.tokens.init(s)
	s.nodes.side, s.transactions.side = s, s
	return s
}

// mechanism is the SASL mechanism of programs that put tokens. It gives no rights, nor does ANONYMOUS.
const mechanism = "MSSBCBS"

// Mechanisms implements v10.Side.
func (s *side) Mechanisms() []string {
	list := []string{mechanism, amqp.Anonymous, amqp.Plain}
	if s.client.IsCertified() {
		list = append(list, amqp.External)
	}
	return list
}

// errKey refuses a login.
var errKey = errors.New("login was refused")

// Login implements v10.Side. A certificate gives no rights here: no user logs in.
func (s *side) Login(ctx context.Context, start *wire.SASLInit) error {
	switch start.Mechanism {
	case amqp.External:
		if s.client.IsCertified() {
			return nil
		}
		return amqp.ErrRefused
	case mechanism, amqp.Anonymous:
		return nil
	case amqp.Plain:
		rule, key, ok := amqp.PlainLogin(string(start.InitialResponse))
		if !ok {
			return amqp.ErrRefused
		}
		s.tokens.login = &login{rule, key}
		return s.client.LoginByKey(ctx, rule, func() bool { return s.tokens.loginRights(s.namespace(start.Hostname)) != 0 })
	}
	return amqp.ErrRefused
}

// namespace returns the vhost that clients of a host mean.
func (s *side) namespace(host string) string {
	host, _, _ = strings.Cut(strings.ToLower(host), ":")
	return cmp.Or(s.dialect.Namespaces[host], s.dialect.VHost)
}

// Connect implements v10.Side.
func (s *side) Connect(ctx context.Context, o *wire.Open) error {
	s.host = cmp.Or(o.Hostname, "localhost")
	vhost, user := s.namespace(o.Hostname), "servicebus"
	if l := s.tokens.login; l != nil {
		if user = l.rule; s.tokens.loginRights(vhost) == 0 { // it has logged in to another namespace
			return wire.Errorf(wire.ConditionUnauthorized, "%s", errKey)
		}
	}
	if err := s.client.Connect(ctx, vhost); err != nil {
		return s.Explain(err)
	}
	s.client.User = user
	return nil
}

// Announce implements v10.Side. Capabilities would make programs do other things.
func (s *side) Announce(o *wire.Open) { o.OfferedCapabilities = nil }

// Renew implements v10.Side.
func (s *side) Renew() { s.tokens.check() }

// Leave implements v10.Side.
func (s *side) Leave() {
	s.tokens.close()
	s.transactions.close()
}

// Attach implements v10.Side.
func (s *side) Attach(a *v10.Attach) (next func()) { return func() { s.attach(a) } }

// attach answers an attach. It blocks.
func (s *side) attach(a *v10.Attach) {
	address := ""
	switch target, ok := a.Target.(*wire.Target); {
	case a.Role && a.Source != nil:
		address = a.Source.Address.Value
	case !a.Role && ok:
		address = target.Address.Value
	case !a.Role && a.Target != nil:
		s.transactions.attach(a) // what is done in them needs rights, and it does not
		return
	}
	if isTokens(address) {
		s.nodes.attach(a, nil, entity.Main)
		return
	}
	at, requests := nodeAt(address)
	if !s.tokens.hasAny() {
		s.deny(a, s.refuse(wire.ConditionUnauthorized, "Unauthorized access: put a token for '%s' first.", at))
		return
	}
	d, ok := s.entity(at.Path)
	needed := sas.Send
	if a.Role {
		needed = sas.Listen
	}
	allowed := s.tokens.allows(at.Path, needed)
	if requests {
		allowed = s.tokens.allows(at.Path, sas.Send) || s.tokens.allows(at.Path, sas.Listen)
	}
	switch {
	case !allowed:
		s.deny(a, s.unauthorized(at.Path, needed))
	case !ok:
		a.Refuse(s.notFound(at.Path))
	case requests:
		s.nodes.attach(a, d, at.Part)
	case a.Role:
		s.attachReceiver(a, d, at)
	default:
		s.attachSender(a, d, at)
	}
}

// deny refuses a link, to which the client may have no right.
func (s *side) deny(a *v10.Attach, e *wire.Error) {
	s.denied("attach", e)
	a.Refuse(e)
}

// denied reports what a client was refused, or has lost, if that is for want of a right. method is as in amqp.Refusal.
func (s *side) denied(method string, e *wire.Error) {
	if e.Condition == wire.ConditionUnauthorized {
		s.client.Refused(method, e.Description)
	}
}

// entity finds an entity of the client's namespace.
func (s *side) entity(p entity.Path) (*entity.Description, bool) {
	return s.dialect.Directory.Entity(s.client.VHost, p)
}

// uncounted is how long an entity lets messages live that do not say so themselves, in ms, if that is longer than the broker's queues
// count; 0: it is not, or for ever.
func (s *side) uncounted(d *entity.Description, part entity.Part) int64 {
	if part != entity.Main {
		return 0
	}
	ttl := d.Common().DefaultMessageTimeToLive
	if d.Subscription != nil {
		if topic, ok := s.entity(entity.Path{Name: d.Path.Name}); ok {
			ttl = min(ttl, topic.Common().DefaultMessageTimeToLive)
		}
	}
	if !ttl.IsUncounted() {
		return 0
	}
	return ttl.Milliseconds()
}

// unauthorized is the error for a right that the client does not have.
func (s *side) unauthorized(p entity.Path, needed sas.Rights) *wire.Error {
	claim := map[sas.Rights]string{sas.Send: "Send", sas.Listen: "Listen", sas.Manage: "Manage"}[needed]
	return s.refuse(wire.ConditionUnauthorized, "Unauthorized access. '%s' claim(s) are required to perform this operation. Resource: 'sb://%s/%s'.", claim, s.host, p)
}

// nodeAt reads an address. requests: it is that of the node for requests about what is at the address without its end.
func nodeAt(address string) (at entity.Address, requests bool) {
	at = entity.ParseAddress(address)
	if at.Part != entity.Management {
		return at, false
	}
	return entity.ParseAddress(at.Path.String()), true
}

// isTokens reports whether an address is that of the node for tokens.
func isTokens(address string) bool { return strings.EqualFold(strings.Trim(address, "/"), "$cbs") }

// queueOf returns the broker's queue at an address. Requires: it has one, which of a topic only what it could not hand on has.
func (s *side) queueOf(d *entity.Description, part entity.Part) string {
	if part != entity.Transfers {
		return entity.Address{Path: d.Path, Part: part}.Object()
	}
	if topic, ok := s.entity(entity.Path{Name: d.Path.Name}); ok {
		d = topic // the subscription's, with the capitals that it was created with
	}
	return d.Path.Transfers().Object()
}

// tell logs what cannot be told to the client.
func (s *side) tell(what string, err error) {
	s.client.Log.Warn("servicebus: "+what, slog.Any("error", err))
}

package manage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/sas"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// View is the cluster's table of definitions at one moment.
type View interface {
	// Described finds what is kept of an object by its key, and Descriptions lists it all, by key.
	Described(vhost, key string) (*logpb.Describe, bool)
	Descriptions(vhost string) []*logpb.Describe
	// AccessKey finds an access key, and AccessKeys lists those of a scope, by name.
	AccessKey(vhost, scope, name string) (*logpb.AccessKey, bool)
	AccessKeys(vhost, scope string) []*logpb.AccessKey
	// HasQueue reports whether there is a queue.
	HasQueue(vhost, name string) bool
	// Rules lists the bindings of a queue, and RulesFrom those of an exchange.
	Rules(vhost, queue string) []*logpb.Bind
	RulesFrom(vhost, exchange string) []*logpb.Bind
}

// Broker is the cluster as this package needs it.
type Broker interface {
	// View returns what any client of any node has been told, or as much as the node knows.
	View(ctx context.Context) View
	// Change performs all of several commands, or none, and returns once every node knows. It chooses where new queues
	// are. A *fsm.Refusal is the commands' fault.
	Change(ctx context.Context, what string, commands ...*logpb.CatalogCommand) error
	// Counts returns what is in queues, by name. Those whose leader does not answer are missing.
	Counts(ctx context.Context, vhost string, queues []string) map[string]Counts
	// Now is the cluster's time.
	Now() time.Time
	// NotReady says why clients are not served; empty: they are.
	NotReady() string
}

// Config is what a Handler works on.
type Config struct {
	Broker Broker
	// VHost is the namespace of requests whose host is none of Namespaces, which are vhosts by host in small letters.
	VHost      string
	Namespaces map[string]string
	// Hosts are those that tokens may be for; none: any.
	Hosts []string
	// Skew is how long after its end a token is good.
	Skew   time.Duration
	Limits entity.Limits
	Logger *slog.Logger
	// Audit is told of each change that was asked for, and of each request that is denied, see Denied; err nil: it was made. rule is the
	// one that a token was made by, or is said to be. nil: nobody is told.
	Audit func(r *http.Request, rule, action, path string, err error)
	// Count is told of each answer; nil: nobody is told.
	Count func(operation string, status int)
}

// changeWait bounds how long a change may take, and importWait an import.
const (
	changeWait = 20 * time.Second
	importWait = 10 * time.Minute
)

// Handler answers requests. It is safe for concurrent use.
type Handler struct{ Config }

// New returns a handler.
func New(c Config) *Handler { return &Handler{c} }

// call is one request.
type call struct {
	*Handler
	http.ResponseWriter
	r     *http.Request
	vhost string
	base  string // scheme and host of what is written
	path  string // without slashes at its ends
	view  View
	rule  *sas.Rule
	wide  bool // the rule is the namespace's
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	host := strings.ToLower(r.Host)
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	c := &call{Handler: h, ResponseWriter: w, r: r, vhost: cmp.Or(h.Namespaces[host], h.VHost), base: "https://" + r.Host, path: strings.Trim(r.URL.Path, "/")}
	if c.path == "health" && r.Method == http.MethodGet {
		c.health()
		return
	}
	operation, err := c.operation()
	status := http.StatusOK
	if err == nil {
		err = c.authorize(operation)
	}
	if err == nil {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		status, err = operation.do(c)
	}
	if h.Audit != nil && (operation.changes && c.rule != nil || Denied(err)) {
		h.Audit(r, c.claimed(), operation.name, c.path, err)
	}
	if err != nil {
		status = c.fail(err)
	}
	if h.Count != nil {
		h.Count(operation.name, status)
	}
}

// health answers a check as the service's emulator does.
func (c *call) health() {
	status, word, text := http.StatusOK, "healthy", "Service is healthy."
	if why := c.Broker.NotReady(); why != "" {
		status, word, text = http.StatusServiceUnavailable, "unhealthy", "Service is unhealthy."
	}
	c.Header().Set("Content-Type", "application/json")
	c.WriteHeader(status)
	fmt.Fprintf(c, `{"status":%q,"message":%q}`, word, text)
}

// operation is one of the things that can be asked for.
type operation struct {
	name    string
	of      entity.Path // whose rules allow it, beside the namespace's
	changes bool
	claim   string // that a refusal names
	do      func(*call) (status int, err error)
}

// lists are the words for all queues or topics.
var lists = map[string]string{"$resources/queues": "Queue", "queues": "Queue", "$resources/topics": "Topic", "topics": "Topic"}

// operation says what a request asks for.
func (c *call) operation() (operation, error) {
	get := c.r.Method == http.MethodGet
	low := strings.ToLower(c.path)
	if kind := lists[low]; kind != "" && get {
		return operation{name: "Enumerate" + kind + "s", claim: "EntityRead", do: func(c *call) (int, error) { return c.list(kind, "") }}, nil
	}
	if low == "$namespaceinfo" && get {
		return operation{name: "GetNamespace", claim: "EntityRead", do: (*call).namespace}, nil
	}
	if o, ok := c.policyOperation(); ok {
		return o, nil
	}
	if low == importPath && c.r.Method == http.MethodPost {
		return operation{name: "Import", changes: true, claim: "EntityWrite", do: (*call).importFile}, nil
	}
	if topic, ok := cutEnd(c.path, "/subscriptions"); ok && get {
		return operation{name: "EnumerateSubscriptions", of: entity.Path{Name: topic}, claim: "EntityRead", do: func(c *call) (int, error) { return c.list("Subscription", topic) }}, nil
	}
	if path, ok := cutEnd(c.path, "/rules"); ok && get {
		of := entity.ParseAddress(path).Path
		return operation{name: "EnumerateRules", of: of, claim: "EntityRead", do: func(c *call) (int, error) { return c.listRules(of) }}, nil
	}
	if of, name, ok := cutRule(c.path); ok {
		return c.ruleOperation(entity.ParseAddress(of).Path, name)
	}
	p := entity.ParseAddress(c.path).Path
	kind := "Entity"
	if p.Subscription != "" {
		kind = "Subscription"
	}
	switch c.r.Method {
	case http.MethodGet:
		return operation{name: "Get" + kind, of: p, claim: "EntityRead", do: func(c *call) (int, error) { return c.get(p) }}, nil
	case http.MethodPut:
		return operation{name: "CreateOrUpdate" + kind, of: p, changes: true, claim: "EntityWrite", do: func(c *call) (int, error) { return c.put(p) }}, nil
	case http.MethodDelete:
		return operation{name: "Delete" + kind, of: p, changes: true, claim: "EntityDelete", do: func(c *call) (int, error) { return c.delete(p) }}, nil
	}
	return operation{name: "Unknown"}, refuse(http.StatusMethodNotAllowed, 0, "The method %.20s is not known.", c.r.Method)
}

func (c *call) ruleOperation(of entity.Path, name string) (operation, error) {
	switch c.r.Method {
	case http.MethodGet:
		return operation{name: "GetRule", of: of, claim: "EntityRead", do: func(c *call) (int, error) { return c.getRule(of, name) }}, nil
	case http.MethodPut:
		return operation{name: "CreateOrUpdateRule", of: of, changes: true, claim: "EntityWrite", do: func(c *call) (int, error) { return c.putRule(of, name) }}, nil
	case http.MethodDelete:
		return operation{name: "DeleteRule", of: of, changes: true, claim: "EntityDelete", do: func(c *call) (int, error) { return c.deleteRule(of, name) }}, nil
	}
	return operation{name: "Unknown"}, refuse(http.StatusMethodNotAllowed, 0, "The method %.20s is not known.", c.r.Method)
}

// cutEnd cuts the end of a path, whatever its case.
func cutEnd(path, end string) (string, bool) {
	if n := len(path) - len(end); n > 0 && strings.EqualFold(path[n:], end) {
		return path[:n], true
	}
	return path, false
}

// cutRule takes the path of a rule apart: TOPIC/Subscriptions/SUBSCRIPTION/Rules/RULE.
func cutRule(path string) (of, name string, ok bool) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return "", "", false
	}
	of, ok = cutEnd(path[:i], "/rules")
	return of, path[i+1:], ok && entity.ParseAddress(of).Subscription != ""
}

// authorize checks the token of a request.
func (c *call) authorize(o operation) (err error) {
	c.view = c.Broker.View(c.r.Context())
	header := c.r.Header.Get("Authorization")
	if name, key, ok := c.r.BasicAuth(); ok && key != "" { // who has the key can make a token
		header = sas.Sign(c.base+"/", name, key, c.Broker.Now().Add(time.Minute))
	}
	if c.rule, c.wide, err = c.verify(header, o.of, c.path); err != nil {
		return err
	}
	if c.rule.Rights.Allows(sas.Manage) {
		return nil
	}
	return c.lacks(o)
}

// claimed is the rule by which a request has a token, good or not; empty: it has none.
func (c *call) claimed() string {
	if c.rule != nil {
		return c.rule.Name
	}
	if token, err := sas.Parse(c.r.Header.Get("Authorization")); err == nil {
		return fsm.Short(token.RuleName)
	}
	name, _, _ := c.r.BasicAuth()
	return fsm.Short(name)
}

// verify finds the rule by which a token is good for a path: one of the namespace, which is wide, or of a queue or topic.
// It takes as long whether or not there is a rule of the name.
func (c *call) verify(header string, of entity.Path, path string) (rule *sas.Rule, wide bool, err error) {
	denied := refuse(http.StatusUnauthorized, 40103, "Invalid authorization token signature")
	if header == "" {
		return nil, false, refuse(http.StatusUnauthorized, 40102, "MissingToken: the request has no Authorization header")
	}
	token, err := sas.Parse(header)
	if err != nil {
		return nil, false, refuse(http.StatusUnauthorized, 40102, "InvalidToken: %s", err)
	}
	own := find(c.view, c.vhost, entity.Key(of.Name), token.RuleName)
	all := find(c.view, c.vhost, "", token.RuleName)
	ownErr, allErr := token.Verify(own, c.Broker.Now(), c.Skew), token.Verify(all, c.Broker.Now(), c.Skew)
	switch {
	case len(c.Hosts) > 0 && !slices.Contains(c.Hosts, sas.Host(token.Resource)) || !token.Covers(c.base+"/"+path):
		return nil, false, denied
	case allErr == nil:
		return all, true, nil
	case ownErr == nil && of.Name != "":
		return own, false, nil
	case errors.Is(allErr, sas.ErrExpired) || errors.Is(ownErr, sas.ErrExpired):
		return nil, false, refuse(http.StatusUnauthorized, 40103, "%s", token.ExpiredText())
	}
	return nil, false, denied
}

// mayForward checks that who may change an entity may manage those that it forwards to: by a rule of the namespace, or by a
// token for each.
func (c *call) mayForward(d *entity.Description) error {
	y := d.Delivery()
	if y == nil || c.wide {
		return nil
	}
	for _, x := range [...]struct{ field, to, header string }{
		{"ForwardTo", y.ForwardTo, "ServiceBusSupplementaryAuthorization"},
		{"ForwardDeadLetteredMessagesTo", y.ForwardDeadLetteredMessagesTo, "ServiceBusDlqSupplementaryAuthorization"},
	} {
		if x.to == "" {
			continue
		}
		to := entity.ForwardPath(x.to)
		rule, _, err := c.verify(c.r.Header.Get(x.header), to, to.String())
		if err != nil || !rule.Rights.Allows(sas.Manage) {
			return refuse(http.StatusUnauthorized, 40100, "%s needs the claim Manage for '%s', in the header %s.", x.field, to, x.header)
		}
	}
	return nil
}

func find(v View, vhost, scope, name string) *sas.Rule {
	if k, ok := v.AccessKey(vhost, scope, name); ok {
		return RuleOf(k)
	}
	return nil
}

// lacks is what somebody is told whose rule does not allow to manage. What is not there may be known.
func (c *call) lacks(o operation) error {
	p := o.of
	switch {
	case p.Subscription != "" || strings.Contains(o.name, "Subscription") || strings.Contains(o.name, "Rule"):
		return refuse(http.StatusUnauthorized, 0, "401 SubCode=40100: Unauthorized : Unauthorized access for '%s' operation on endpoint '%s'.", o.name, c.base+"/"+c.path)
	case o.name == "GetEntity":
		if _, ok := c.view.Described(c.vhost, p.Key()); !ok {
			return c.missing(p)
		}
	case o.claim != "EntityRead":
		return refuse(http.StatusUnauthorized, 0, "Authorization failed for specified action: Manage,%s.", o.claim)
	}
	return refuse(http.StatusUnauthorized, 0, "Manage,%s claims required for this operation.", o.claim)
}

func (c *call) missing(p entity.Path) error {
	return refuse(http.StatusNotFound, 40400, "Not Found. The messaging entity '%s/%s' could not be found.", "sb://"+c.r.Host, p)
}

// fail answers a request that is not done.
func (c *call) fail(err error) int {
	var (
		given   *refusal
		invalid *entity.Invalid
		full    *entity.Full
		no      *fsm.Refusal
	)
	e := &refusal{http.StatusInternalServerError, 50000, "The request could not be processed."}
	switch {
	case errors.As(err, &given):
		e = given
	case errors.As(err, &invalid):
		e = &refusal{http.StatusBadRequest, 40000, invalid.Error()}
	case errors.As(err, &full):
		e = &refusal{http.StatusForbidden, 40301, full.Error()}
	case errors.Is(err, errXML):
		e = &refusal{http.StatusBadRequest, 40000, errXML.Error()}
	case errors.As(err, &no) && (no.Kind == fsm.Precondition || no.Kind == fsm.AccessRefused || no.Kind == fsm.NotAllowed):
		e = &refusal{http.StatusBadRequest, 40000, no.Text}
	case errors.As(err, &no) && no.Kind == fsm.NotFoundKind:
		e = &refusal{http.StatusNotFound, 40400, no.Text}
	case errors.As(err, &no), errors.Is(err, context.DeadlineExceeded):
		e = &refusal{http.StatusServiceUnavailable, 50300, "The cluster does not answer at the moment."}
	}
	tracking := entity.NewTrackingID()
	c.Logger.Info("service bus request is not done", "method", c.r.Method, "path", c.path, "status", e.status, "tracking_id", tracking, "error", err)
	detail := e.text
	if e.sub != 0 {
		detail = fmt.Sprintf("SubCode=%d. %s", e.sub, detail)
	}
	if strings.EqualFold(c.path, importPath) {
		c.Header().Set("Content-Type", "application/json")
		c.WriteHeader(e.status)
		_ = json.NewEncoder(c).Encode(map[string]string{"error": http.StatusText(e.status), "reason": detail})
		return e.status
	}
	d := &document{}
	d.in("Error", func() {
		d.leaf("Code", strconv.Itoa(e.status))
		d.leaf("Detail", fmt.Sprintf("%s TrackingId:%s, Timestamp:%s", detail, tracking, timeText(c.Broker.Now())))
	})
	d.answer(c, e.status, "application/xml")
	return e.status
}

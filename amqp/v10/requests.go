package v10

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Statuses of answers.
const (
	statusOK         = "200"
	statusCreated    = "201"
	statusNoContent  = "204"
	badRequest       = "400"
	statusForbidden  = "403"
	statusNotFound   = "404"
	statusBadMethod  = "405"
	statusConflict   = "409"
	statusInternal   = "500"
	statusNoLeader   = "503"
	maxRequestValues = maxRequest // of a body: as if each had its octet
)

// statuses are the answers to what the broker refuses. What may conflict with something that exists is told
// apart by conflict.
var statuses = map[fsm.Kind]string{
	fsm.Internal:       statusNoLeader, // the catalog does not answer
	fsm.NotFoundKind:   statusNotFound,
	fsm.AccessRefused:  statusForbidden,
	fsm.NotAllowed:     statusForbidden,
	fsm.Locked:         badRequest,
	fsm.Precondition:   badRequest,
	fsm.NotImplemented: badRequest,
	fsm.Unavailable:    statusNoLeader,
	fsm.Forced:         statusNoLeader,
	fsm.NoVHost:        statusForbidden,
	fsm.NoAccess:       statusForbidden,
	fsm.LimitReached:   statusForbidden,
}

// requestError is the answer to a request that is refused here.
type requestError struct{ status, text string }

func (e *requestError) Error() string { return e.text }

func refuseRequest(status, format string, args ...any) error {
	return &requestError{status, fmt.Sprintf(format, args...)}
}

// request is a request of a client, and the answer to it. It belongs to whoever makes the session's blocking call.
type request struct {
	ctx     context.Context
	session *session
	method  string
	as      string   // see actions
	path    []string // segments, encoded
	query   string
	content wire.Value // its body
	// declares: what is refused may be at odds with what exists.
	declares bool

	status string
	body   []byte // encoded; nil: null
}

// read takes in a message.
func (r *request) read(p *wire.Properties, m *wire.Message) error {
	switch {
	case string(p.ReplyTo) != "$me":
		return refuseRequest(badRequest, "reply-to is not $me")
	case p.To == nil:
		return refuseRequest(badRequest, "there is no 'to' that names a resource")
	case p.Subject == nil:
		return refuseRequest(badRequest, "there is no subject that names a method")
	case m.Kind != 0 && m.Kind != wire.BodyValue:
		return refuseRequest(badRequest, "the body is not an amqp-value")
	}
	var err error
	if r.content, err = m.BodyValue(); err != nil {
		return refuseRequest(badRequest, "%s", protocolError(err).Description)
	}
	if values(r.content, maxRequestValues) < 0 {
		return refuseRequest(badRequest, "the body has more than %d values", maxRequestValues)
	}
	path, query, _ := strings.Cut(string(p.To), "?")
	if path, ok := strings.CutPrefix(path, "/"); ok {
		r.path = strings.Split(path, "/")
	}
	r.query = query
	return nil
}

// values returns how many of left are left after the values in one; below 0: there are more. It reads at most that many.
func values(v wire.Value, left int) int {
	if left -= 1 + v.Len(); left < 0 || v.Len() == 0 {
		return left
	}
	for w := v.Walk(); w.Next() && left >= 0; {
		left = values(w.Value, left+1)
	}
	return left
}

// actions are what can be done with a resource, by method.
type actions map[string]struct {
	do func(*request, string) error
	as string // the method of 0-9-1 that does it, for logs
}

// resources are what requests can be about, by the first segments of the path; * stands for a name.
var resources = []struct {
	path    string
	actions actions
}{
	{"queues/*", actions{
		"PUT": {(*request).putQueue, "queue.declare"}, "GET": {(*request).getQueue, "queue.declare"}, "DELETE": {(*request).deleteQueue, "queue.delete"},
	}},
	{"queues/*/messages", actions{"DELETE": {(*request).purgeQueue, "queue.purge"}}},
	{"exchanges/*", actions{"PUT": {(*request).putExchange, "exchange.declare"}, "DELETE": {(*request).deleteExchange, "exchange.delete"}}},
	{"bindings", actions{"POST": {(*request).postBinding, "queue.bind"}, "GET": {(*request).getBindings, "queue.bind"}}},
	{"bindings/*", actions{"DELETE": {(*request).deleteBinding, "queue.unbind"}}},
	{"auth/tokens", actions{"PUT": {(*request).putToken, "connection.update-secret"}}},
}

// perform performs the request.
func (r *request) perform() error {
	for _, of := range resources {
		segments := strings.Split(of.path, "/")
		if len(segments) != len(r.path) {
			continue
		}
		matches, name := true, ""
		for i, segment := range segments {
			if segment == "*" {
				name = r.path[i]
			} else {
				matches = matches && segment == r.path[i]
			}
		}
		if !matches {
			continue
		}
		action, ok := of.actions[r.method]
		if !ok {
			return refuseRequest(statusBadMethod, "method %s is not allowed on /%s", r.method, strings.Join(r.path, "/"))
		}
		if (r.method == "GET" || r.method == "DELETE") && r.content.Type != wire.Null {
			return refuseRequest(badRequest, "the body of a %s must be null", r.method)
		}
		r.as = action.as
		return action.do(r, name)
	}
	return refuseRequest(statusNotFound, "there is no resource '/%s'", strings.Join(r.path, "/"))
}

// explain returns the answer to a request that has failed.
func (r *request) explain(err error) (status string, body []byte) {
	own := new(requestError)
	text := ""
	if errors.As(err, &own) {
		status, text = own.status, own.text
	} else {
		text = r.session.refusal(r.as, err).Description
		status = r.statusOf(err)
	}
	return status, wire.AppendString(nil, wire.Errorf("", "%s", text).Description)
}

// statusOf returns the answer to an error of the broker.
func (r *request) statusOf(err error) string {
	refusal := new(fsm.Refusal)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return statusNoLeader
	case !errors.As(err, &refusal) || statuses[refusal.Kind] == "":
		return statusInternal
	case refusal.Kind == fsm.Precondition && strings.HasSuffix(refusal.Text, fsm.LimitText):
		return statusForbidden
	case refusal.Kind == fsm.Precondition && r.declares:
		return statusConflict
	}
	return statuses[refusal.Kind]
}

// decodeName decodes a name in a path.
func decodeName(segment string) (string, error) {
	decoded, ok := unescape(segment)
	if !ok {
		return "", refuseRequest(badRequest, "bad name '%s' in the path", segment)
	}
	return decoded, checkName(decoded)
}

// checkName refuses a name that is no name in 0-9-1, either.
func checkName(name string) error {
	switch {
	case strings.ContainsAny(name, "\r\n"):
		return refuseRequest(badRequest, "Bad name '%s': line feed and carriage return characters not allowed", name)
	case len(name) > maxName:
		return refuseRequest(badRequest, "a name has more than %d bytes", maxName)
	}
	return nil
}

// queueName decodes the name of a queue in a path.
func queueName(segment string) (string, error) {
	queue, err := decodeName(segment)
	if err == nil && queue == "" {
		err = refuseRequest(badRequest, "a queue with an empty name is not allowed")
	}
	return queue, err
}

// optional is a text that need not be given.
type optional = wire.Optional[string]

// fields are what the body of a request may have, by name: a *bool, a *string, an *optional or a **fsm.Table.
type fields map[string]any

// readBody sets fields as the body says. what names in texts what that describes.
func (r *request) readBody(what string, into fields) error {
	if r.content.Type != wire.Map {
		return refuseRequest(badRequest, "the body is not a map")
	}
	for w := r.content.Walk(); w.NextPair(); {
		key := string(w.Key.Bytes())
		field := into[key]
		if w.Key.Type != wire.String {
			field = nil
		}
		ok := false
		switch to := field.(type) {
		case *bool:
			if ok = w.Value.Type == wire.Boolean; ok {
				*to = w.Value.Bool()
			}
		case *string:
			if ok = w.Value.Type == wire.String; ok {
				*to = string(w.Value.Bytes())
			}
		case *optional:
			if ok = w.Value.Type == wire.String; ok {
				*to = wire.Some(string(w.Value.Bytes()))
			}
		case **fsm.Table:
			if ok = w.Value.Type == wire.Map; ok {
				if err := checkArguments(w.Value); err != nil {
					return err
				}
				*to = message.Value(w.Value).GetTable()
				ok = *to != nil || w.Value.Len() == 0
			}
		}
		if !ok {
			return refuseRequest(badRequest, "bad %s '%s'", what, key)
		}
	}
	return nil
}

// checkArguments refuses a map that cannot be arguments.
func checkArguments(v wire.Value) error {
	for w := v.Walk(); w.NextPair(); {
		if k := w.Key.Type; k != wire.String && k != wire.Symbol || len(w.Key.Bytes()) > maxName {
			return refuseRequest(badRequest, "unsupported argument '%.255s'", w.Key.Bytes())
		}
	}
	return nil
}

func (r *request) putQueue(segment string) error {
	spec := fsm.QueueSpec{Durable: true}
	err := r.readBody("queue property", fields{
		"durable": &spec.Durable, "exclusive": &spec.Exclusive, "auto_delete": &spec.AutoDelete, "arguments": &spec.Arguments,
	})
	if err != nil {
		return err
	}
	if spec.Name, err = queueName(segment); err != nil {
		return err
	}
	if strings.HasPrefix(spec.Name, fsm.ReplyQueue) { // which a declare finds
		return refuseRequest(statusForbidden, "queue name '%s' contains reserved prefix 'amq.*'", spec.Name)
	}
	r.declares = true
	info, err := r.session.broker.DeclareQueue(r.ctx, spec)
	if err != nil {
		return err
	}
	r.status = statusOK
	if info.Created {
		r.status = statusCreated
	}
	return r.describeQueue(spec.Name)
}

func (r *request) getQueue(segment string) error {
	queue, err := queueName(segment)
	if err != nil {
		return err
	}
	r.status = statusOK
	return r.describeQueue(queue)
}

// describeQueue answers with what is known of a queue.
func (r *request) describeQueue(queue string) error {
	d, err := r.session.broker.DescribeQueue(r.ctx, queue)
	if err != nil {
		return err
	}
	b, pairs := wire.StartMap(nil), 10
	for _, t := range [...]struct{ key, value string }{{"name", d.Name}, {"vhost", d.VHost}, {"type", d.Type}} {
		b = wire.AppendString(wire.AppendString(b, t.key), t.value)
	}
	for _, f := range [...]struct {
		key   string
		value bool
	}{{"durable", d.Durable}, {"exclusive", d.Exclusive}, {"auto_delete", d.AutoDelete}} {
		b = wire.AppendBool(wire.AppendString(b, f.key), f.value)
	}
	b = appendArguments(wire.AppendString(b, "arguments"), withType(&d))
	b = wire.AppendStrings(wire.AppendString(b, "replicas"), d.Replicas)
	b = wire.AppendUlong(wire.AppendString(b, "message_count"), d.Ready)
	b = wire.AppendUint(wire.AppendString(b, "consumer_count"), uint32(min(d.Consumers, 1<<32-1)))
	if d.Leader != "" {
		b = wire.AppendString(wire.AppendString(b, "leader"), d.Leader)
		pairs++
	}
	r.body = wire.EndMap(b, 0, pairs)
	return nil
}

// withType returns the arguments of a queue with its type, as RabbitMQ has them: its Go client takes a map without a
// value for one of another type.
func withType(d *fsm.QueueDetails) *fsm.Table {
	const name = "x-queue-type"
	if slices.ContainsFunc(d.Arguments.GetFields(), func(f *logpb.Field) bool { return f.GetName() == name }) {
		return d.Arguments
	}
	return &fsm.Table{Fields: append(slices.Clone(d.Arguments.GetFields()), textField(name, d.Type))}
}

func (r *request) deleteQueue(segment string) error {
	queue, err := queueName(segment)
	if err != nil {
		return err
	}
	n, err := r.session.broker.DeleteQueue(r.ctx, queue, false, false)
	return r.counted(n, err)
}

func (r *request) purgeQueue(segment string) error {
	queue, err := queueName(segment)
	if err != nil {
		return err
	}
	n, err := r.session.broker.PurgeQueue(r.ctx, queue)
	return r.counted(n, err)
}

// counted answers with how many messages there were.
func (r *request) counted(n uint64, err error) error {
	b := wire.AppendUlong(wire.AppendString(wire.StartMap(nil), "message_count"), n)
	r.status, r.body = statusOK, wire.EndMap(b, 0, 1)
	return err
}

func (r *request) putExchange(segment string) error {
	spec := fsm.ExchangeSpec{Type: "direct", Durable: true}
	err := r.readBody("exchange property", fields{
		"type": &spec.Type, "durable": &spec.Durable, "auto_delete": &spec.AutoDelete, "internal": &spec.Internal, "arguments": &spec.Arguments,
	})
	if err == nil {
		spec.Name, err = decodeName(segment)
	}
	if err != nil {
		return err
	}
	r.status, r.declares = statusNoContent, true
	err = r.session.broker.DeclareExchange(r.ctx, spec)
	if refusal := new(fsm.Refusal); errors.As(err, &refusal) && refusal.Text == fsm.UnknownExchangeType(spec.Type) {
		return refuseRequest(badRequest, "%s", refusal.Text)
	}
	return err
}

func (r *request) deleteExchange(segment string) error {
	exchange, err := decodeName(segment)
	if err != nil {
		return err
	}
	r.status = statusNoContent
	return r.session.broker.DeleteExchange(r.ctx, exchange, false)
}

func (r *request) postBinding(string) error {
	var spec fsm.BindSpec
	var queue, exchange, source optional
	err := r.readBody("binding field", fields{
		"source": &source, "binding_key": &spec.RoutingKey, "arguments": &spec.Arguments,
		"destination_queue": &queue, "destination_exchange": &exchange,
	})
	if err == nil {
		err = aim(&spec, source, queue, exchange)
	}
	if err == nil && len(spec.RoutingKey) > maxName {
		err = refuseRequest(badRequest, "a binding key has more than %d bytes", maxName)
	}
	if err != nil {
		return err
	}
	r.status = statusNoContent
	return missingEnd(r.session.broker.Bind(r.ctx, spec))
}

// aim sets the ends of a binding.
func aim(spec *fsm.BindSpec, source, queue, exchange optional) error {
	switch {
	case !source.Present:
		return refuseRequest(badRequest, "the source is missing")
	case !queue.Present && !exchange.Present:
		return refuseRequest(badRequest, "the destination is missing")
	case queue.Present && exchange.Present:
		return refuseRequest(badRequest, "there are two destinations")
	}
	spec.Source, spec.Destination, spec.ToExchange = source.Value, queue.Value, exchange.Present
	if spec.ToExchange {
		spec.Destination = exchange.Value
	}
	return errors.Join(checkName(spec.Source), checkName(spec.Destination))
}

// missingEnd makes of an end of a binding that is missing a bad request: the resource is the binding.
func missingEnd(err error) error {
	if refusal := new(fsm.Refusal); errors.As(err, &refusal) && refusal.Kind == fsm.NotFoundKind {
		return refuseRequest(badRequest, "%s", refusal.Text)
	}
	return err
}

func (r *request) getBindings(string) error {
	query, err := url.ParseQuery(strings.ReplaceAll(r.query, ";", "%3B"))
	if err != nil {
		return refuseRequest(badRequest, "bad query '%s'", r.query)
	}
	value := func(key string) optional { return optional{Value: query.Get(key), Present: query.Has(key)} }
	queue, exchange, key := value("dstq"), value("dste"), value("key")
	switch {
	case !queue.Present && !exchange.Present:
		return refuseRequest(badRequest, "missing 'dste' or 'dstq' in query '%s'", r.query)
	case !key.Present:
		return refuseRequest(badRequest, "missing 'key' in query '%s'", r.query)
	}
	spec := fsm.BindSpec{RoutingKey: key.Value}
	if err := aim(&spec, value("src"), queue, exchange); err != nil {
		return err
	}
	all, err := r.session.broker.Bindings(r.ctx, spec)
	if err != nil {
		return err
	}
	b := wire.StartList(nil)
	for i := range all {
		if b = appendBinding(b, &all[i]); len(b) > maxAnswer {
			break // it is refused for its size
		}
	}
	r.status, r.body = statusOK, wire.EndList(b, 0, len(all))
	return nil
}

func appendBinding(b []byte, spec *fsm.BindSpec) []byte {
	at := len(b)
	b = wire.StartMap(b)
	destination := "destination_queue"
	if spec.ToExchange {
		destination = "destination_exchange"
	}
	for _, t := range [...]struct{ key, value string }{
		{"source", spec.Source}, {destination, spec.Destination}, {"binding_key", spec.RoutingKey}, {"location", location(spec)},
	} {
		b = wire.AppendString(wire.AppendString(b, t.key), t.value)
	}
	b = appendArguments(wire.AppendString(b, "arguments"), spec.Arguments)
	return wire.EndMap(b, at, 5)
}

// location is the resource that a binding is.
func location(spec *fsm.BindSpec) string {
	kind := "q"
	if spec.ToExchange {
		kind = "e"
	}
	return "/bindings/src=" + escape(spec.Source) + ";dst" + kind + "=" + escape(spec.Destination) +
		";key=" + escape(spec.RoutingKey) + ";args=" + argumentsHash(spec.Arguments)
}

// argumentsHash tells bindings apart that differ in their arguments only. It is the same at all nodes and times, since it is
// of what the catalog stores; the order of the arguments does not matter.
func argumentsHash(t *fsm.Table) string {
	if len(t.GetFields()) == 0 {
		return ""
	}
	sorted := &fsm.Table{Fields: slices.Clone(t.Fields)}
	slices.SortStableFunc(sorted.Fields, func(a, b *logpb.Field) int { return strings.Compare(a.Name, b.Name) })
	raw, err := logpb.Marshal(sorted)
	if err != nil {
		panic(err) // a table can be encoded
	}
	sum := sha256.Sum256(raw)
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// bindingSegment is the path segment of a binding, whose names are encoded.
var bindingSegment = regexp.MustCompile(`^src=([0-9A-Za-z\-._~%]*);dst([eq])=([0-9A-Za-z\-._~%]+);key=([0-9A-Za-z\-._~%]*);args=([0-9A-Za-z\-_]*)$`)

func (r *request) deleteBinding(segment string) error {
	parts := bindingSegment.FindStringSubmatch(segment)
	if parts == nil {
		return refuseRequest(badRequest, "bad binding path segment '%s'", segment)
	}
	spec := fsm.BindSpec{ToExchange: parts[2] == "e"}
	var err [3]error
	spec.Source, err[0] = decodeName(parts[1])
	spec.Destination, err[1] = decodeName(parts[3])
	var ok bool
	if spec.RoutingKey, ok = unescape(parts[4]); !ok {
		err[2] = refuseRequest(badRequest, "bad binding key '%s' in the path", parts[4])
	}
	if e := errors.Join(err[:]...); e != nil {
		return e
	}
	r.status = statusNoContent
	if parts[5] == "" {
		return r.session.broker.Unbind(r.ctx, spec)
	}
	all, e := r.session.broker.Bindings(r.ctx, spec)
	if e != nil {
		return e
	}
	for _, b := range all {
		if argumentsHash(b.Arguments) == parts[5] {
			return r.session.broker.Unbind(r.ctx, b)
		}
	}
	return nil
}

// putToken takes in a new token. A token is no part of a login here, so what is renewed are the user's rights, which are
// checked again on all sessions of the connection.
func (r *request) putToken(string) error {
	if r.content.Type != wire.Binary {
		return refuseRequest(badRequest, "the body is not a binary")
	}
	if err := r.session.conn.Broker.Renew(); err != nil {
		return refuseRequest(badRequest, "%s", r.session.refusal(r.as, err).Description)
	}
	r.status = statusNoContent
	return nil
}

package servicebus

import (
	"context"
	"crypto/x509"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/Azure/go-amqp"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/sas"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/fsm"
)

// directory is a Directory in memory.
type directory struct {
	mu       sync.Mutex
	entities map[string]*entity.Description
	rules    map[string]*sas.Rule // by scope, a colon and name
	now      time.Time            // zero: the machine's
	filters  []*entity.Rule       // of all subscriptions
}

var created = time.UnixMilli(1_700_000_000_000)

func (d *directory) Rules(string, entity.Path) ([]*entity.Rule, time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.filters), created
}

func (d *directory) named(name string) int {
	return slices.IndexFunc(d.filters, func(r *entity.Rule) bool { return r.Name == name })
}

func (d *directory) AddRule(_ context.Context, _ string, _ entity.Path, r *entity.Rule) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.named(r.Name) >= 0 {
		return false, nil
	}
	d.filters = append(d.filters, r)
	return true, nil
}

func (d *directory) RemoveRule(_ context.Context, _ string, _ entity.Path, name string) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.named(name)
	if i < 0 {
		return false, nil
	}
	d.filters = slices.Delete(d.filters, i, i+1)
	return true, nil
}

func (d *directory) Entity(_ string, p entity.Path) (*entity.Description, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, ok := d.entities[p.Key()]
	return e, ok
}

func (d *directory) Rule(_, scope, name string) (*sas.Rule, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.rules[scope+":"+name]
	return r, ok
}

func (d *directory) Now() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.now.IsZero() {
		return time.Now()
	}
	return d.now
}

// change changes the directory under its lock.
func (d *directory) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// server is an amqp.Server with the front, over a broker in memory that has the queues of the directory.
type server struct {
	*amqp.Server
	directory *directory
	broker    *amqptest.Broker
	machines  *machines
	dialect   *Dialect
	addr      string
	denials   *denials
}

// denials are the methods of what clients were refused for want of a right, or have lost; empty: they have lost it.
type denials struct {
	mu  sync.Mutex
	all []string
}

func (d *denials) note(r amqp.Refusal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, r.Method)
}

func (d *denials) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.all
	d.all = nil
	return all
}

const root, rootKey = "RootManageSharedAccessKey", "SAS_KEY_VALUE"

func mustServe(t testing.TB) *server {
	t.Helper()
	q, s, topic := entity.NewQueue(), entity.NewQueue(), entity.NewTopic()
	s.RequiresSession = true
	q.MaxMessageSizeInKilobytes = 1
	d := &directory{
		entities: map[string]*entity.Description{
			"q":     {Path: entity.Path{Name: "Q"}, Queue: q},
			"s":     {Path: entity.Path{Name: "S"}, Queue: s},
			"topic": {Path: entity.Path{Name: "topic"}, Topic: topic},
			"topic/subscriptions/sub": {
				Path: entity.Path{Name: "topic", Subscription: "sub"}, Subscription: entity.NewSubscription(),
			},
		},
		rules: map[string]*sas.Rule{
			":" + root: {Name: root, Rights: sas.Manage, Primary: rootKey},
			":send":    {Name: "send", Rights: sas.Send, Primary: "k1", Secondary: "k2"},
			":listen":  {Name: "listen", Rights: sas.Listen, Primary: "k3"},
			"q:own":    {Name: "own", Rights: sas.Send | sas.Listen, Primary: "k4"},
		},
	}
	b := amqptest.NewBroker()
	machines := &machines{}
	mustDeclare(t, b, "Q", "S", "topic/$topic", "topic/Subscriptions/sub", "Q/$deadletterqueue", "topic/Subscriptions/sub/$deadletterqueue",
		"Q/$Transfer/$deadletterqueue", "S/$Transfer/$deadletterqueue", "topic/$Transfer/$deadletterqueue")
	dialect := &Dialect{Directory: d, VHost: "/"}
	var denied denials
	srv, addr := amqptest.Serve(t, amqp.Config{
		Protocols: []amqp.Protocol{v10.Protocol{SessionMax: 5000, Dialect: dialect}}, Broker: broker{b, machines}, Refused: denied.note,
		CertificateUser: func(c *x509.Certificate) string { return c.Subject.CommonName },
	}, b)
	return &server{srv, d, b, machines, dialect, addr, &denied}
}

// broker is one whose sessions are machines that keep what they are to do, and do nothing.
type broker struct {
	*amqptest.Broker
	all *machines
}

type (
	connection struct {
		amqp.Connection
		all *machines
	}
	machine struct {
		amqp.Session
		all    *machines
		events fsm.SessionEvents
	}
)

// machines are those of a server.
type machines struct {
	mu     sync.Mutex
	posted []posted
	groups []fsm.GroupInfo // of each queue
	why    error           // the outcome of what is posted
	err    error           // of posting
}

// posted is a unit for a queue, which had this text.
type posted struct {
	queue string
	unit  *fsm.Unit
}

// fail sets what becomes of units from now on.
func (m *machines) fail(why, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.why, m.err = why, err
}

// take returns what was posted since it was called last.
func (m *machines) take() []posted {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.posted
	m.posted = nil
	return all
}

func (m machine) Post(_ context.Context, queue string, u *fsm.Unit, number uint64) error {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	if m.all.err != nil {
		return m.all.err
	}
	m.all.posted = append(m.all.posted, posted{queue, u})
	m.events.Confirmed(number, number, m.all.why)
	return nil
}

func (b broker) Connect(ctx context.Context, user, vhost string) (amqp.Connection, error) {
	c, err := b.Broker.Connect(ctx, user, vhost)
	return connection{c, b.all}, err
}

func (c connection) OpenSession(events fsm.SessionEvents) (amqp.Session, error) {
	s, err := c.Connection.OpenSession(events)
	return machine{s, c.all, events}, err
}

var errNothing = fsm.Refuse(fsm.NotImplemented, "nothing is there")

func (machine) Perform(context.Context, string, *fsm.Unit) (uint64, error) { return 0, errNothing }
func (machine) RenewLocks(context.Context, string, []fsm.Handle) (fsm.Time, error) {
	return 0, errNothing
}
func (machine) TakeDeferred(context.Context, string, fsm.Deferred) ([]fsm.Message, error) {
	return nil, fsm.ErrNoMessage
}
func (machine) CancelScheduled(context.Context, string, []uint64) error { return fsm.ErrNoMessage }
func (machine) PeekFrom(context.Context, string, uint64, int, string) ([]fsm.Peeked, error) {
	return nil, nil
}
func (machine) DeleteBefore(context.Context, string, int, fsm.Time, string) (uint64, error) {
	return 0, nil
}
func (machine) Group(context.Context, uint64, string, fsm.GroupAction, []byte) (fsm.Time, []byte, error) {
	return 0, nil, fsm.ErrNotHeld
}
func (m machine) Groups(context.Context, string, string, int) ([]fsm.GroupInfo, error) {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	return m.all.groups, nil
}
func (machine) LockKey(context.Context, string) ([]byte, error) { return make([]byte, 16), nil }

// mustDeclare declares queues.
func mustDeclare(t testing.TB, b *amqptest.Broker, queues ...string) {
	t.Helper()
	c, err := b.Connect(t.Context(), "", "/")
	must(t, err)
	s, err := c.OpenSession(nil)
	must(t, err)
	for _, q := range queues {
		_, err := s.DeclareQueue(t.Context(), fsm.QueueSpec{Name: q, Durable: true})
		must(t, err)
	}
	s.Close(t.Context())
	c.Close(t.Context())
}

// mustInject adds a message to a queue.
func mustInject(t testing.TB, b *amqptest.Broker, queue, body string) {
	t.Helper()
	payload, err := fsm.AppendBareHead(nil, "", queue, fsm.BareHeader{Priority: -1, TTL: -1}, nil, nil)
	must(t, err)
	m, err := client.NewMessage([]byte(body)).MarshalBinary()
	must(t, err)
	b.Inject(queue, fsm.Message{Payload: append(payload, m...)})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *server) mustDial(t testing.TB, login client.SASLType) *client.Conn {
	t.Helper()
	c, err := client.Dial(t.Context(), "amqp://"+s.addr, &client.ConnOptions{SASLType: login, HostName: "Host"})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func mustSession(t testing.TB, c *client.Conn) *client.Session {
	t.Helper()
	s, err := c.NewSession(t.Context(), nil)
	must(t, err)
	return s
}

// asker sends requests to a node.
type asker struct {
	t        testing.TB
	sender   *client.Sender
	receiver *client.Receiver
}

func mustAsk(t testing.TB, c *client.Conn, node string) *asker {
	t.Helper()
	s := mustSession(t, c)
	sender, err := s.NewSender(t.Context(), node, nil)
	must(t, err)
	receiver, err := s.NewReceiver(t.Context(), node, &client.ReceiverOptions{
		TargetAddress: "answers", Credit: 10, SettlementMode: client.ReceiverSettleModeFirst.Ptr(), RequestedSenderSettleMode: client.SenderSettleModeSettled.Ptr(),
	})
	must(t, err)
	return &asker{t, sender, receiver}
}

// ask sends a request and returns the status and the answer.
func (a *asker) ask(properties map[string]any, body any) (status int32, description string, answer *client.Message) {
	a.t.Helper()
	must(a.t, a.sender.Send(a.t.Context(), &client.Message{
		Properties: &client.MessageProperties{MessageID: "1", ReplyTo: new("answers")}, ApplicationProperties: properties, Value: body,
	}, nil))
	m, err := a.receiver.Receive(a.t.Context(), nil)
	must(a.t, err)
	if m.Properties.CorrelationID != "1" {
		a.t.Errorf("the answer to %v", m.Properties.CorrelationID)
	}
	return m.ApplicationProperties["status-code"].(int32), m.ApplicationProperties["status-description"].(string), m
}

// put puts a token and returns the status.
func (a *asker) put(audience, token string) (status int32, description string) {
	a.t.Helper()
	status, description, _ = a.ask(map[string]any{"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}, token)
	return status, description
}

// sign makes a token that is good for an hour.
func sign(resource, rule, key string) string {
	return sas.Sign(resource, rule, key, time.Now().Add(time.Hour))
}

// mustOpen connects with all rights.
func (s *server) mustOpen(t testing.TB) *client.Conn {
	t.Helper()
	c := s.mustDial(t, client.SASLTypeAnonymous())
	a := mustAsk(t, c, "$cbs")
	if status, why := a.put("amqp://host/", sign("amqp://host/", root, rootKey)); status != 202 {
		t.Fatal(status, why)
	}
	must(t, a.sender.Close(t.Context()))
	return c
}

// tracked is the end of a text by which the log names what it tells of (ER-3).
var tracked = regexp.MustCompile(` TrackingId:[0-9a-f]{32}$`)

// wantRefused wants a link refused with a condition and a text.
func wantRefused(t testing.TB, err error, condition, text string) {
	t.Helper()
	var ended *client.LinkError
	var e *client.Error
	if errors.As(err, &ended) {
		e = ended.RemoteErr
	} else {
		errors.As(err, &e)
	}
	if e == nil || string(e.Condition) != condition || !strings.Contains(e.Description, text) || !tracked.MatchString(e.Description) {
		t.Errorf("%v, want %s: %s", err, condition, text)
	}
}

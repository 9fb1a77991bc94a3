package conform

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/frames"
)

var (
	peerAMQP = flag.String("amqp10.rabbitmq", "", "`host:port` of a RabbitMQ 4.3 that the rows of AMQP 1.0 run against")
	peerHTTP = flag.String("amqp10.rabbitmq-http", "", "`host:port` of its HTTP API")
)

// amqp10Rows are the rows of AMQP 1.0 by their numbers in its specification, against one node.
// With -amqp10.rabbitmq they run against RabbitMQ, and hold it to what they say about it.
var amqp10Rows = suite{test: "TestAMQP10", title: "AMQP 1.0", rows: slices.Concat(
	openRows10, sessionRows10, linkRows10, publishRows10, creditRows10, settleRows10, timeoutRows10, messageRows10, convertRows10, manageRows10, moreRows10,
)}

func TestAMQP10(t *testing.T) {
	t.Parallel()
	c := single.mustGet
	if *peerAMQP != "" {
		c = func(*testing.T) *cluster.Cluster {
			return &cluster.Cluster{Nodes: []*cluster.Node{{Number: 1, AMQP: *peerAMQP, HTTP: *peerHTTP}}}
		}
	}
	for _, r := range amqp10Rows.rows {
		amqp10Rows.try(t, r, c(t))
	}
}

// isPeer says that rows of AMQP 1.0 run against RabbitMQ.
func (t *T) isPeer() bool { return *peerAMQP != "" }

// peerRun tells the names of a run against RabbitMQ from those of the runs before it.
var peerRun = "-" + strconv.FormatInt(time.Now().Unix(), 36)

// single is the one node of the rows of AMQP 1.0.
var single = sharedCluster{nodes: 1, name: "single", ready: serves10}

// serves10 waits until all nodes serve the protocol: a new cluster does that once they have
// agreed on their version.
func serves10(c *cluster.Cluster) error {
	var errs []error
	for _, n := range c.Nodes {
		errs = append(errs, nodeServes10(n))
	}
	return errors.Join(errs...)
}

func nodeServes10(n *cluster.Node) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return await.Until(ctx, poll, "AMQP 1.0", func() (bool, error) {
		conn, err := frames.Dial(ctx, n.AMQP)
		if err != nil {
			return false, err
		}
		defer conn.Close()
		if _, err := conn.Write(frames.Header(3)); err != nil {
			return false, err
		}
		h, err := conn.ReadHeader()
		return err == nil && string(h) == string(frames.Header(3)), nil
	})
}

type (
	fields    = frames.Fields
	composite = frames.Composite
	described = frames.Described
	symbol    = frames.Symbol
	mapping   = frames.Map
	list      = frames.List
)

// answerTime bounds the wait for a frame that must come.
const answerTime = 30 * time.Second

// ten is a connection of AMQP 1.0. One goroutine uses it.
type ten struct {
	*T
	*frames.Conn
	opened   fields // the broker's open
	pending  []frames.Frame
	sessions map[uint16]*session
}

// ten opens a connection that says nothing yet.
func (t *T) ten() *ten { t.Helper(); return t.tenAt(0) }

func (t *T) tenAt(n int) *ten {
	t.Helper()
	conn, err := frames.Dial(t.ctx, t.Nodes[n].AMQP)
	t.must(err)
	t.T.Cleanup(func() { conn.Close() })
	conn.Patience = answerTime
	return &ten{T: t, Conn: conn, sessions: map[uint16]*session{}}
}

// writes sends octets.
func (c *ten) writes(parts ...[]byte) {
	c.Helper()
	_, err := c.Write(slices.Concat(parts...))
	c.must(err)
}

// header expects a protocol header.
func (c *ten) header(id byte) {
	c.Helper()
	h, err := c.ReadHeader()
	c.must(err)
	c.equal("header", h, frames.Header(id))
}

// login is the part of SASL, and returns the code of the outcome; -1: there was none.
func (c *ten) login(mechanism string, response any) int {
	c.Helper()
	c.writes(frames.Header(3))
	c.header(3)
	_, err := c.ReadFrame()
	c.must(err)
	c.must(c.Send(0, "sasl-init", fields{"mechanism": mechanism, "initial-response": response}))
	f, err := c.ReadFrame()
	if err != nil {
		return -1
	}
	return f.Fields.Int("code")
}

// logged is a connection of a user that may send open.
func (t *T) logged(user, password string) *ten {
	t.Helper()
	c := t.ten()
	c.in(user, password)
	return c
}

func (c *ten) in(user, password string) {
	c.Helper()
	c.equal("outcome", c.login("PLAIN", "\x00"+user+"\x00"+password), 0)
	c.writes(frames.Header(0))
	c.header(0)
}

// open10 opens a connection as guest, with more fields of open.
func (t *T) open10(more ...fields) *ten { t.Helper(); return t.openAs("guest", "guest", more...) }

func (t *T) openAs(user, password string, more ...fields) *ten {
	t.Helper()
	c := t.logged(user, password)
	c.opens(more...)
	return c
}

func (c *ten) opens(more ...fields) {
	c.Helper()
	c.must(c.Send(0, "open", merged(fields{"container-id": c.row}, more)))
	c.opened = c.await("open", 0, nil).Fields
}

func merged(f fields, more []fields) fields {
	all := fields{}
	for _, one := range append([]fields{f}, more...) {
		for name, v := range one {
			all[name] = v
		}
	}
	return all
}

// user10 makes a user with the rights.
func (t *T) user10(name, configure, write, read string) string {
	t.Helper()
	user := t.name(name)
	t.must(t.Nodes[0].SetUser(t.ctx, user, "p", ""))
	t.must(t.Nodes[0].SetPermissions(t.ctx, user, configure, write, read))
	return user
}

// try reads a frame before an instant, and keeps account of what it says.
func (c *ten) try(until time.Time) (f frames.Frame, err error) {
	c.Patience = max(time.Until(until), time.Millisecond)
	defer func() { c.Patience = answerTime }()
	if f, err = c.ReadFrame(); err == nil {
		if s := c.sessions[f.Channel]; s != nil {
			s.note(f)
		}
	}
	return f, err
}

// await returns the first frame of a kind on a channel that matches, and leaves others
// for later.
func (c *ten) await(name string, channel uint16, match func(fields) bool) frames.Frame {
	c.Helper()
	is := func(f frames.Frame) bool {
		return f.Name == name && f.Channel == channel && (match == nil || match(f.Fields))
	}
	if i := slices.IndexFunc(c.pending, is); i >= 0 {
		f := c.pending[i]
		c.pending = slices.Delete(c.pending, i, i+1)
		return f
	}
	until := time.Now().Add(answerTime)
	for {
		f, err := c.try(until)
		if err != nil {
			c.Fatalf("no %s: %v; before it %v", name, err, c.unread())
		}
		if is(f) {
			return f
		}
		if f.Name == "close" || f.Name == "end" && f.Channel == channel {
			c.Fatalf("no %s, but %v; before it %v", name, f.Composite, c.unread())
		}
		if f.Name != "" {
			c.pending = append(c.pending, f)
		}
	}
}

// unread are the frames that nobody has waited for, for an error.
func (c *ten) unread() (all []string) {
	for _, f := range c.pending {
		all = append(all, f.Composite.String())
	}
	return all
}

// gone expects the end of the connection before an instant, and returns what came before it.
func (c *ten) gone(until time.Time) (all []frames.Frame) {
	c.Helper()
	for {
		f, err := c.try(until)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.Fatalf("the connection is still open; it has said %v", all)
		}
		if err != nil {
			return all
		}
		if f.Name != "" {
			all = append(all, f)
		}
	}
}

// closed expects a close with an error, answers it, and expects the end.
func (c *ten) closed(conditions ...string) (description string) {
	c.Helper()
	f := c.await("close", 0, nil)
	description = c.failure(f.Fields.Of("error"), conditions...)
	_ = c.Send(0, "close", fields{}) // perhaps the broker does not wait for it
	c.over()
	return description
}

// over expects that the broker hangs up after both closes, and says nothing more. RabbitMQ
// waits for the client to do it.
func (c *ten) over() {
	c.Helper()
	if c.isPeer() {
		return
	}
	for _, f := range c.gone(time.Now().Add(answerTime)) {
		c.Errorf("after the close: %v", f.Composite)
	}
}

// failure checks an error's condition, one of those given.
func (t *T) failure(e fields, conditions ...string) (description string) {
	t.Helper()
	if condition := e.Text("condition"); !slices.Contains(conditions, condition) {
		t.Fatalf("error %v, not %v", e, conditions)
	}
	return e.Text("description")
}

// says checks that a text has the words.
func (t *T) says(text, words string) {
	t.Helper()
	if !strings.Contains(text, words) {
		t.Errorf("%q has no %q", text, words)
	}
}

// session is one of a connection's.
type session struct {
	*ten
	channel uint16
	begun   fields // the broker's begin

	handles  uint32
	sent     uint32 // transfers
	next     uint32 // delivery-id
	window   int    // transfers that the broker takes
	received uint32 // transfers
	wide     int    // transfers that it takes itself, as it tells the broker
	outcomes map[uint32][]composite
	links    map[uint32]*link
}

// session opens a connection with a session.
func (t *T) session() *session { t.Helper(); return t.open10().begin() }

// begin begins a session on the next channel.
func (c *ten) begin(more ...fields) *session {
	c.Helper()
	s := &session{ten: c, channel: uint16(len(c.sessions)), wide: 1 << 20, outcomes: map[uint32][]composite{}, links: map[uint32]*link{}}
	c.sessions[s.channel] = s
	f := merged(fields{"next-outgoing-id": 0, "incoming-window": s.wide, "outgoing-window": 1 << 20, "handle-max": 1000}, more)
	if n, ok := f["incoming-window"].(int); ok {
		s.wide = n
	}
	s.sends("begin", f)
	s.begun = c.await("begin", s.channel, nil).Fields
	s.window = s.begun.Int("incoming-window")
	return s
}

// note keeps account of windows, credit and outcomes.
func (s *session) note(f frames.Frame) {
	switch f.Name {
	case "transfer":
		s.received++
	case "flow":
		if at := f.Fields.Int("next-incoming-id"); at >= 0 {
			s.window = at + f.Fields.Int("incoming-window") - int(s.sent)
		}
		if l := s.links[uint32(f.Fields.Int("handle"))]; l != nil && !l.receiver && f.Fields.Int("handle") >= 0 {
			l.credit = max(f.Fields.Int("delivery-count"), 0) + f.Fields.Int("link-credit") - int(l.count)
		}
	case "disposition":
		if f.Fields["role"] != true {
			return
		}
		state, _ := f.Fields["state"].(composite)
		first := uint32(f.Fields.Int("first"))
		for n := range min(uint32(lastOf(f.Fields))-first, 1<<16) + 1 { // serial numbers
			s.outcomes[first+n] = append(s.outcomes[first+n], state)
		}
	}
}

// lastOf is the last id of a disposition.
func lastOf(f fields) int {
	if f["last"] == nil {
		return f.Int("first")
	}
	return f.Int("last")
}

func (s *session) sends(name string, f fields, payload ...byte) {
	s.Helper()
	s.must(s.Send(s.channel, name, f, payload...))
	if name == "transfer" {
		s.sent++
		s.window--
	}
}

// flow sends a flow; its session's fields are filled in.
func (s *session) flow(more ...fields) {
	s.Helper()
	s.sends("flow", merged(fields{"next-incoming-id": int(s.received), "incoming-window": s.wide, "next-outgoing-id": int(s.sent), "outgoing-window": 1 << 20}, more))
}

// ended expects an end with an error, and answers it.
func (s *session) ended(conditions ...string) (description string) {
	s.Helper()
	f := s.await("end", s.channel, nil)
	description = s.failure(f.Fields.Of("error"), conditions...)
	s.sends("end", fields{})
	return description
}

// ends ends the session.
func (s *session) ends() {
	s.Helper()
	s.sends("end", fields{})
	if f := s.await("end", s.channel, nil); f.Fields["error"] != nil {
		s.Errorf("it ends with %v", f.Fields)
	}
}

// lives checks that the session goes on.
func (s *session) lives() {
	s.Helper()
	s.attach(fields{"role": false, "source": source(nil), "target": target(nil)}).detach(true)
}

// outcome waits for the outcome of a publish.
func (s *session) outcome(id uint32) composite {
	s.Helper()
	for len(s.outcomes[id]) == 0 {
		s.await("disposition", s.channel, func(f fields) bool { return f["role"] == true })
	}
	return s.outcomes[id][0]
}

// is checks an outcome.
func (t *T) is(have composite, want string) {
	t.Helper()
	if have.Name != want {
		t.Errorf("the outcome is %v, not %s", have, want)
	}
}

// rejected checks that an outcome is rejected with a condition.
func (t *T) rejected(have composite, condition string) (description string) {
	t.Helper()
	t.is(have, "rejected")
	return t.failure(have.Fields.Of("error"), condition)
}

// link is one of a session's.
type link struct {
	*session
	name     string
	handle   uint32
	receiver bool
	attached fields // the broker's attach
	count    uint32 // deliveries
	credit   int    // of a sender
}

// source is a terminus with an address, a text or nil.
func source(address any, more ...fields) composite { return terminus("source", address, more) }
func target(address any, more ...fields) composite { return terminus("target", address, more) }

func terminus(kind string, address any, more []fields) composite {
	f := fields{}
	if address != nil {
		f["address"] = address
	}
	return composite{Name: kind, Fields: merged(f, more)}
}

// at is the address of a queue.
func at(queue string) string { return "/queues/" + url.PathEscape(queue) }

// attach attaches a link, and reads the answer, whatever it says.
func (s *session) attach(more ...fields) *link {
	s.Helper()
	l := &link{session: s, handle: s.handles}
	f := merged(fields{"name": fmt.Sprint(s.row, "-", s.channel, "-", s.handles), "handle": int(l.handle)}, more)
	s.handles++
	l.receiver = f["role"] == true
	if !l.receiver && f["initial-delivery-count"] == nil {
		f["initial-delivery-count"] = 0
	}
	if n, ok := f["handle"].(int); ok {
		l.handle = uint32(n)
	}
	l.name, _ = f["name"].(string)
	s.links[l.handle] = l
	s.sends("attach", f)
	l.attached = s.await("attach", s.channel, func(have fields) bool { return have.Text("name") == l.name }).Fields
	return l
}

// sender attaches a link to publish by; the address is a text or nil.
func (s *session) sender(address any, more ...fields) *link {
	s.Helper()
	l := s.attach(append([]fields{{"role": false, "source": source("here"), "target": target(address)}}, more...)...)
	l.accepted("target")
	return l
}

// receiver attaches a link to receive by.
func (s *session) receiver(address any, more ...fields) *link {
	s.Helper()
	l := s.attach(append([]fields{{"role": true, "source": source(address), "target": target("here")}}, more...)...)
	l.accepted("source")
	return l
}

func (l *link) accepted(terminus string) {
	l.Helper()
	if l.attached[terminus] == nil {
		l.Fatalf("the link is refused: %v", l.await("detach", l.channel, nil).Fields)
	}
}

// asSender and asReceiver are attaches that are to be refused.
func asSender(address any) fields {
	return fields{"role": false, "source": source("here"), "target": target(address)}
}

func asReceiver(address any) fields {
	return fields{"role": true, "source": source(address), "target": target("here")}
}

// refusedLink attaches a link, which is refused; the session goes on.
func (s *session) refusedLink(condition string, f ...fields) (description string) {
	s.Helper()
	l := s.attach(f...)
	terminus := "target"
	if l.receiver {
		terminus = "source"
	}
	if l.attached[terminus] != nil {
		s.Errorf("the attach has a %s: %v", terminus, l.attached)
	}
	description = l.detached(condition)
	s.lives()
	return description
}

// detached expects a detach with an error, and answers it.
func (l *link) detached(conditions ...string) (description string) {
	l.Helper()
	f := l.await("detach", l.channel, l.mine)
	if f.Fields["closed"] != true {
		l.Errorf("the detach does not close: %v", f.Fields)
	}
	description = l.failure(f.Fields.Of("error"), conditions...)
	l.sends("detach", fields{"handle": int(l.handle), "closed": true})
	return description
}

func (l *link) mine(f fields) bool { return f.Int("handle") == int(l.handle) }

// detach detaches the link.
func (l *link) detach(closed bool) {
	l.Helper()
	l.sends("detach", fields{"handle": int(l.handle), "closed": closed})
	f := l.await("detach", l.channel, l.mine).Fields
	if f["error"] != nil || (f["closed"] == true) != closed {
		l.Errorf("the detach is answered with %v", f)
	}
}

// transfer sends a message in one frame, and returns its delivery-id.
func (l *link) transfer(payload []byte, more ...fields) (id uint32) {
	l.Helper()
	id = l.session.next
	l.session.next++
	l.count++
	l.credit--
	l.sends("transfer", merged(fields{"handle": int(l.handle), "delivery-id": int(id), "delivery-tag": fmt.Sprint(id), "message-format": 0}, more), payload...)
	return id
}

// parts sends a message in frames with so many octets of it.
func (l *link) parts(payload []byte, size int, more ...fields) (id uint32) {
	l.Helper()
	first, rest := payload[:size], payload[size:]
	id = l.transfer(first, append(more, fields{"more": true})...)
	for len(rest) > 0 {
		part := rest[:min(size, len(rest))]
		rest = rest[len(part):]
		l.sends("transfer", fields{"handle": int(l.handle), "more": len(rest) > 0}, part...)
	}
	return id
}

// publish sends a message, and returns its outcome.
func (l *link) publish(sections ...any) composite {
	l.Helper()
	return l.outcome(l.transfer(message(sections...)))
}

// publishes sends messages with these bodies, which are accepted.
func (l *link) publishes(bodies ...string) {
	l.Helper()
	for _, b := range bodies {
		l.is(l.publish(data(b)), "accepted")
	}
}

// paced waits until the link may send.
func (l *link) paced() {
	l.Helper()
	for l.credit <= 0 || l.window <= 0 {
		l.await("flow", l.channel, nil)
	}
}

// grant gives a receiver's link credit beyond what has come.
func (l *link) grant(credit int, more ...fields) {
	l.Helper()
	l.flow(append([]fields{{"handle": int(l.handle), "delivery-count": int(l.count), "link-credit": credit}}, more...)...)
}

// settlesLater is how long nothing must come after which it is said that nothing comes.
const settlesLater = 250 * time.Millisecond

// nothing checks that the link gets nothing for a while.
func (l *link) nothing() { l.Helper(); l.nothingUntil(time.Now().Add(settlesLater)) }

func (l *link) nothingUntil(until time.Time) {
	l.Helper()
	is := func(f frames.Frame) bool { return f.Name == "transfer" && f.Channel == l.channel && l.mine(f.Fields) }
	if i := slices.IndexFunc(l.pending, is); i >= 0 {
		l.Fatalf("the link gets %v", l.pending[i].Fields)
	}
	for {
		f, err := l.try(until)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		l.must(err)
		if f.Name != "" {
			l.pending = append(l.pending, f)
		}
		if time.Now().After(until) { // it is not known when it came
			return
		}
		if is(f) || f.Name == "close" || f.Name == "end" && f.Channel == l.channel {
			l.Fatalf("the link gets %v", f.Composite)
		}
	}
}

// received10 is a delivery.
type received10 struct {
	link    *link
	id      uint32
	tag     []byte
	settled bool
	frames  int
	largest int // frame
	payload []byte
	message10
}

// gets waits for the next delivery.
func (l *link) gets() *received10 {
	l.Helper()
	d := &received10{link: l}
	for more := true; more; d.frames++ {
		f := l.await("transfer", l.channel, l.mine)
		if d.frames == 0 {
			d.id, d.tag = uint32(f.Fields.Int("delivery-id")), []byte(f.Fields.Text("delivery-tag"))
		}
		d.settled = d.settled || f.Fields["settled"] == true
		d.payload = append(d.payload, f.Payload...)
		d.largest = max(d.largest, f.Size)
		more = f.Fields["more"] == true
	}
	l.count++
	d.message10 = l.parse(d.payload)
	return d
}

// takes receives n messages, accepts them and returns their bodies.
func (l *link) takes(n int) string {
	l.Helper()
	var all []string
	for range n {
		d := l.gets()
		all = append(all, d.body)
		if !d.settled {
			d.settle("accepted")
		}
	}
	return strings.Join(all, " ")
}

// settle settles a delivery with an outcome.
func (d *received10) settle(outcome string, more ...fields) {
	d.link.Helper()
	d.link.dispose(d.id, d.id, true, composite{Name: outcome, Fields: merged(fields{}, more)})
}

// dispose sends a receiver's disposition.
func (s *session) dispose(first, last uint32, settled bool, state any) {
	s.Helper()
	f := fields{"role": true, "first": int(first), "last": int(last), "settled": settled}
	if state != nil {
		f["state"] = state
	}
	s.sends("disposition", f)
}

// answered waits for the broker's disposition about deliveries to this client.
func (s *session) answered(id uint32) fields {
	s.Helper()
	return s.await("disposition", s.channel, func(f fields) bool {
		return f["role"] != true && f.Int("first") <= int(id) && int(id) <= lastOf(f)
	}).Fields
}

// message10 is a message by its sections.
type message10 struct {
	header, properties fields
	annotations        mapping
	application        mapping
	footer             mapping
	body               string // the data sections
	value              any    // the last other section of a body
	order              []any  // the sections' descriptors
	bare               []byte // from the properties on
}

// Codes of the sections of a message.
const (
	sectionHeader      = uint64(0x70)
	sectionDelivery    = uint64(0x71)
	sectionAnnotations = uint64(0x72)
	sectionProperties  = uint64(0x73)
	sectionApplication = uint64(0x74)
	sectionData        = uint64(0x75)
	sectionSequence    = uint64(0x76)
	sectionValue       = uint64(0x77)
	sectionFooter      = uint64(0x78)
)

func (t *T) parse(b []byte) (m message10) {
	t.Helper()
	for len(b) > 0 {
		v, rest, err := frames.Parse(b)
		if err != nil {
			t.Fatalf("message % x: %v", b, err)
		}
		if m.bare == nil && !isHead(v) {
			m.bare = b
		}
		switch v := v.(type) {
		case composite:
			if v.Name == "header" {
				m.header, m.order = v.Fields, append(m.order, sectionHeader)
			} else {
				m.properties, m.order = v.Fields, append(m.order, sectionProperties)
			}
		case described:
			m.order = append(m.order, v.Descriptor)
			switch v.Descriptor {
			case sectionAnnotations:
				m.annotations, _ = v.Value.(mapping)
			case sectionApplication:
				m.application, _ = v.Value.(mapping)
			case sectionFooter:
				m.footer, _ = v.Value.(mapping)
			case sectionData:
				m.body += frames.Text(v.Value)
			default:
				m.value = v.Value
			}
		default:
			t.Fatalf("message % x: section %v", b, v)
		}
		b = rest
	}
	return m
}

// isHead says that a section is not of the bare message.
func isHead(v any) bool {
	switch v := v.(type) {
	case composite:
		return v.Name == "header"
	case described:
		return v.Descriptor == sectionDelivery || v.Descriptor == sectionAnnotations
	}
	return false
}

// message encodes sections.
func message(sections ...any) (b []byte) {
	for _, s := range sections {
		b = frames.Append(b, s)
	}
	return b
}

func data(body string) described { return described{Descriptor: sectionData, Value: []byte(body)} }
func value(v any) described      { return described{Descriptor: sectionValue, Value: v} }
func annotations(pairs ...any) described {
	return described{Descriptor: sectionAnnotations, Value: symbols(pairs)}
}
func applications(pairs ...any) described {
	return described{Descriptor: sectionApplication, Value: mapping(pairs)}
}
func properties(f fields) composite { return composite{Name: "properties", Fields: f} }
func header10(f fields) composite   { return composite{Name: "header", Fields: f} }

// symbols is a map whose keys, texts, become symbols.
func symbols(pairs []any) (m mapping) {
	for i, v := range pairs {
		if key, ok := v.(string); ok && i%2 == 0 {
			v = symbol(key)
		}
		m = append(m, v)
	}
	return m
}

package clients

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

// habit is what SDKs of Azure Service Bus do that cannot be had here.
type habit struct {
	name string // the rule that it is about, and what is done
	more string // elements of the description of its queue
	play func(*player)
}

// TestServiceBusHabits plays the SDKs of .NET, Java and Python by the frames and requests that they send, as far as those of Go and
// JavaScript send others. What is played is in their sources.
func TestServiceBusHabits(t *testing.T) {
	audited := filepath.Join(t.TempDir(), "audit.log")
	b := mustStartBus(t, limit, "--set", "log.audit.file="+audited)
	b.audited = audited
	for _, h := range slices.Concat(linkHabits, messageHabits, requestHabits, httpHabits, lockHabits, sessionHabits, lifeHabits, rightHabits, topicHabits, boundHabits) {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			queue := "Habit-" + strings.ReplaceAll(h.name, " ", "-")
			b.mustCreate(t, queue, h.more)
			h.play(b.mustPlay(t, queue))
		})
	}
}

// player plays an SDK on a connection to a node that does not lead its queue. Channel 0 has its links, the others have those of
// requests.
type player struct {
	*buyer
	bus     *bus
	host    string // as it calls the namespace
	handles int    // the next one for requests
}

// Channels of a player, besides that of its links.
const (
	ofTokens, ofRequests, ofOthers = 1, 2, 3
	channels                       = 4
)

// A terminus of a client's own, and the first handle of its requests.
const (
	own          = "0e4d0fc6-2f5a-4a0e-9d4c-5f3c1c6f8a11"
	firstRequest = 20
)

// mustPlay connects as .NET does, and puts a token.
func (b *bus) mustPlay(t *testing.T, queue string) *player {
	t.Helper()
	p := b.mustKnow(t, queue)
	p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host})
	p.putToken(ofNet, ofTokens)
	return p
}

// mustKnow returns a player that is not connected yet.
func (b *bus) mustKnow(t *testing.T, queue string) *player {
	t.Helper()
	leader, err := b.Leader(b.ctx, queue)
	if err != nil {
		t.Fatal(err)
	}
	return &player{buyer: &buyer{t: t, queue: queue, at: b.other(leader)}, bus: b, host: "127.0.0.1", handles: firstRequest}
}

// open connects, logs in, and begins sessions, whose windows are as wide as those of .NET.
func (p *player) open(login, open frames.Fields) (mechanisms []string, opened frames.Fields) {
	p.t.Helper()
	conn, err := frames.Dial(p.bus.ctx, p.at.Bus)
	p.must(err)
	p.t.Cleanup(func() { conn.Close() })
	p.Conn, p.next, p.handles = conn, 0, firstRequest
	p.header(3)
	mechanisms = p.await("sasl-mechanisms").Fields.Symbols("sasl-server-mechanisms")
	p.must(p.Send(0, "sasl-init", login))
	if code := p.await("sasl-outcome").Fields.Int("code"); code != 0 {
		p.t.Fatalf("the outcome of the login is %d", code)
	}
	p.header(0)
	open["container-id"], open["max-frame-size"] = "player", largestFrame
	if open["channel-max"] == nil {
		open["channel-max"] = 1000
	}
	p.must(p.Send(0, "open", open))
	opened = p.await("open").Fields
	for channel := range uint16(channels) {
		p.must(p.Send(channel, "begin", frames.Fields{"next-outgoing-id": 0, "incoming-window": 1<<32 - 1, "outgoing-window": 1<<31 - 1}))
		p.await("begin")
	}
	return mechanisms, opened
}

// largestFrame is what .NET and Python read.
const largestFrame = 64 << 10

func (p *player) header(id byte) {
	p.t.Helper()
	_, err := p.Write(frames.Header(id))
	p.must(err)
	have, err := p.ReadHeader()
	p.must(err)
	if string(have) != string(frames.Header(id)) {
		p.t.Fatalf("answered with %q", have)
	}
}

// attach attaches a link, and returns the answer.
func (p *player) attach(channel uint16, handle int, role bool, f frames.Fields) frames.Fields {
	p.t.Helper()
	f["handle"], f["role"] = handle, role
	if f["name"] == nil {
		f["name"] = fmt.Sprint(channel, " ", handle)
	}
	if !role {
		f["initial-delivery-count"] = 0
	}
	p.must(p.Send(channel, "attach", f))
	return p.await("attach").Fields
}

// to opens a link on which messages are sent, as .NET does: it says nothing of how they are settled.
func (p *player) to(handle int, address string) frames.Fields {
	p.t.Helper()
	return p.attach(ofLinks, handle, false, frames.Fields{"source": source(own, nil), "target": target(address), "properties": linkProperties})
}

// from opens a link on which messages are received with locks, as .NET does unless f says otherwise.
func (p *player) from(handle int, address string, f frames.Fields) frames.Fields {
	p.t.Helper()
	all := frames.Fields{"snd-settle-mode": 0, "rcv-settle-mode": 1, "source": source(address, frames.Map{}), "target": target(own), "properties": linkProperties}
	for name, v := range f {
		all[name] = v
	}
	return p.attach(ofLinks, handle, true, all)
}

// linkProperties are what SDKs say of links. All of it is for others than this broker, but for the time that a session may take.
var linkProperties = frames.Map{
	frames.Symbol("com.microsoft:timeout"), uint32(30_000), frames.Symbol("com.microsoft:entity-type"), int32(7), frames.Symbol("com.microsoft:receiver-name"), "me",
	frames.Symbol("com.microsoft:epoch"), int64(1), frames.Symbol("com.microsoft:tracking-id"), own,
}

func source(address string, filter any) frames.Composite {
	return frames.Composite{Name: "source", Fields: frames.Fields{"address": address, "filter": filter}}
}

// refused wants a link to be answered without a terminus at the broker's end, and then to be closed with a condition.
func (p *player) refused(answer frames.Fields, terminus, condition, text string) {
	p.t.Helper()
	if answer[terminus] != nil {
		p.t.Errorf("answered with the %s %v", terminus, answer[terminus])
	}
	p.detached(condition, text)
}

// detached wants a link to be closed with a condition.
func (p *player) detached(condition, text string) {
	p.t.Helper()
	f, err := p.Await("detach")
	p.must(err)
	e := f.Fields.Of("error")
	if e.Text("condition") != condition || !strings.Contains(e.Text("description"), text) || f.Fields["closed"] != true {
		p.t.Errorf("closed with %v, not %s %s", f.Fields, condition, text)
	}
	p.tracked(e.Text("description"))
	p.must(p.Send(f.Channel, "detach", frames.Fields{"handle": f.Fields.Int("handle"), "closed": true}))
}

// tracking is how a text ends that tells of an error.
var tracking = regexp.MustCompile(` TrackingId:([0-9a-f]{32})$`)

// tracked wants a text to end with an id by which the log of a node names the error (ER-3).
func (p *player) tracked(text string) {
	p.t.Helper()
	if id := tracking.FindStringSubmatch(text); id == nil || p.bus.Logged(id[1]) == 0 {
		p.t.Errorf("nothing in the logs is named by the end of %q", text)
	}
}

// flow gives a link credit, or says more.
func (p *player) flow(handle, count, credit int, more frames.Fields) {
	p.t.Helper()
	f := frames.Fields{
		"next-incoming-id": 0, "incoming-window": 1<<32 - 1, "next-outgoing-id": p.next, "outgoing-window": 1<<31 - 1, "handle": handle, "delivery-count": count, "link-credit": credit,
	}
	for name, v := range more {
		f[name] = v
	}
	p.must(p.Send(ofLinks, "flow", f))
}

// got is a delivery, with the sections of its message.
type got struct {
	id                                 int
	first                              frames.Fields // of its frames
	frames                             int
	header, properties                 frames.Fields
	delivery, annotations, application frames.Map
	data                               string
	value                              any // of a body that is one
}

// take receives deliveries.
func (p *player) take(n int) (all []got) {
	p.t.Helper()
	for range n {
		var g got
		var payload []byte
		for more := true; more; {
			f := p.await("transfer")
			if f.Channel != ofLinks || f.Size > largestFrame {
				p.t.Fatalf("a frame of %d bytes on channel %d: %v", f.Size, f.Channel, f.Fields)
			}
			if g.frames++; g.frames == 1 {
				g.id, g.first = f.Fields.Int("delivery-id"), f.Fields
			}
			payload, more = append(payload, f.Payload...), f.Fields["more"] == true
		}
		p.read(&g, payload)
		all = append(all, g)
	}
	return all
}

// read reads the sections of a message.
func (p *player) read(g *got, payload []byte) {
	p.t.Helper()
	for len(payload) > 0 {
		v, rest, err := frames.Parse(payload)
		p.must(err)
		switch v := v.(type) {
		case frames.Composite:
			*map[string]*frames.Fields{"header": &g.header, "properties": &g.properties}[v.Name] = v.Fields
		case frames.Described:
			to := map[any]*frames.Map{uint64(0x71): &g.delivery, uint64(0x72): &g.annotations, uint64(0x74): &g.application}[v.Descriptor]
			switch {
			case to != nil:
				*to, _ = v.Value.(frames.Map)
			case v.Descriptor == uint64(0x77):
				g.value = v.Value
			default:
				g.data += frames.Text(v.Value)
			}
		}
		payload = rest
	}
}

// send sends messages to the queue of the player.
func (p *player) send(all ...[]byte) {
	p.t.Helper()
	p.to(sender, "/"+p.queue)
	for _, m := range all {
		p.want(p.transfer(ofLinks, sender, nil, m), "accepted")
	}
}

// lock sends messages, and receives them with locks.
func (p *player) lock(texts ...string) []got {
	p.t.Helper()
	for _, text := range texts {
		p.send(message(text))
		p.detach(ofLinks, sender)
	}
	p.from(receiver, "/"+p.queue, nil)
	p.flow(receiver, 0, len(texts), nil)
	return p.take(len(texts))
}

// dispose says what becomes of deliveries. It does not wait for an answer.
func (p *player) dispose(first, last int, settled bool, state frames.Composite) {
	p.t.Helper()
	p.must(p.Send(ofLinks, "disposition", frames.Fields{"role": true, "first": first, "last": last, "settled": settled, "state": state, "batchable": true}))
}

// sdk is how requests are sent and answered.
type sdk struct {
	name    string
	target  func(node string) string // of the link with the answers, and the address for them
	replyTo bool                     // requests have that
	id      func(n int) any
	settled bool
	tag     string
	timeout frames.Map
	expires any // of a token
}

var (
	ofNet = sdk{
		"net", func(string) string { return own }, true, func(n int) any { return fmt.Sprint("request", n) }, true, "",
		frames.Map{"com.microsoft:server-timeout", uint32(30_000), "com.microsoft:tracking-id", own}, inAnHour,
	}
	ofJava = sdk{
		"java", func(node string) string { return strings.ReplaceAll(node, "$", "") + "-client-reply-to" }, true, func(n int) any { return uint64(n) }, true, "5d4140",
		frames.Map{"com.microsoft:server-timeout", int64(30_000)}, inAnHour,
	}
	ofPython = sdk{
		"python", func(node string) string { return node }, false, func(n int) any { return uint64(n - 1) }, false, "1",
		frames.Map{"server-timeout", uint32(30_000)}, inAnHour,
	}
	sdks = []sdk{ofNet, ofJava, ofPython}
)

// inAnHour is until when tokens are good.
var inAnHour = frames.Timestamp(time.Now().Add(time.Hour).UnixMilli())

// pair are the links of a client with a node that answers requests.
type pair struct {
	*player
	sdk
	channel   uint16
	handle    int // of the requests; the next one is that of the answers
	node      string
	requested int
	chunk     int    // the most of a request that is in a frame; 0: all of it
	within    []byte // the transaction of which requests are a part; nil: of none
}

// pair attaches both links.
func (p *player) pair(k sdk, channel uint16, node string) *pair {
	p.t.Helper()
	r := &pair{player: p, sdk: k, channel: channel, handle: p.handles, node: node}
	p.handles += 2
	mode, name := 0, fmt.Sprint("duplex", r.handle)
	if k.settled {
		mode = 1
	}
	p.attach(channel, r.handle, false, frames.Fields{"name": name + ":sender", "snd-settle-mode": mode, "source": source(node, nil), "target": target(node), "properties": linkProperties})
	p.attach(channel, r.handle+1, true, frames.Fields{
		"name": name + ":receiver", "snd-settle-mode": mode, "rcv-settle-mode": mode, "source": source(node, nil), "target": target(k.target(node)), "properties": linkProperties,
	})
	r.credit()
	return r
}

// credit gives credit for answers, beyond those that have come.
func (r *pair) credit() {
	r.t.Helper()
	r.must(r.Send(r.channel, "flow", frames.Fields{
		"next-incoming-id": 0, "incoming-window": 1<<32 - 1, "next-outgoing-id": 0, "outgoing-window": 1<<31 - 1, "handle": r.handle + 1, "delivery-count": r.requested, "link-credit": 50,
	}))
}

// close closes both links: who does not say where an answer goes has one link for them.
func (r *pair) close() {
	r.t.Helper()
	for handle := r.handle; handle <= r.handle+1; handle++ {
		r.detach(r.channel, handle)
	}
}

// back is what requests say of where their answers go.
func (r *pair) back() string {
	if !r.replyTo {
		return ""
	}
	return r.target(r.node)
}

// request asks a node for something. replyTo is where the answer goes; empty: that is not said.
func (r *pair) request(replyTo string, application frames.Map, body any) {
	r.t.Helper()
	r.requested++
	p := frames.Fields{"message-id": r.id(r.requested)}
	if replyTo != "" {
		p["reply-to"] = replyTo
	}
	payload := frames.Append(nil, frames.Composite{Name: "properties", Fields: p})
	payload = frames.Append(payload, frames.Described{Descriptor: uint64(0x74), Value: application})
	payload = frames.Append(payload, frames.Described{Descriptor: uint64(0x77), Value: body})
	f := frames.Fields{"handle": r.handle, "delivery-id": r.next, "delivery-tag": []byte(r.tag), "settled": r.settled}
	if r.within != nil {
		f["state"] = frames.Composite{Name: "transactional-state", Fields: frames.Fields{"txn-id": r.within}}
	}
	for r.next++; r.chunk > 0 && len(payload) > r.chunk; payload = payload[r.chunk:] {
		f["more"] = true
		r.must(r.Send(r.channel, "transfer", f, payload[:r.chunk]...))
		f = frames.Fields{"handle": r.handle}
	}
	r.must(r.Send(r.channel, "transfer", f, payload...))
}

// answered is the answer to a request.
type answered struct {
	status      int
	condition   string
	description string
	body        frames.Map
}

// answer awaits the answer to the last request, and wants it to be of the types that SDKs read: .NET and Java cast what they find.
func (r *pair) answer() (a answered) {
	r.t.Helper()
	var payload []byte
	for more := true; more; {
		f := r.await("transfer")
		if f.Channel != r.channel || f.Fields.Int("handle") != r.handle+1 {
			r.t.Fatalf("answered on channel %d with %v", f.Channel, f.Fields)
		}
		payload, more = append(payload, f.Payload...), f.Fields["more"] == true
	}
	var g got
	r.read(&g, payload)
	a.body, _ = g.value.(frames.Map)
	all := g.application
	_, isInt := all.Get("statusCode").(int32)
	if want := r.id(r.requested); g.properties["correlation-id"] != want || !isInt || all.Get("status-code") != all.Get("statusCode") || g.value == nil {
		r.t.Errorf("%v %v answers %v", g.properties, all, want)
	}
	a.status, a.description = frames.Int(all.Get("statusCode")), frames.Text(all.Get("statusDescription"))
	if a.status >= 300 {
		r.tracked(a.description)
	}
	if condition := all.Get("errorCondition"); condition != nil {
		symbol, ok := condition.(frames.Symbol)
		if a.condition = string(symbol); !ok || all.Get("error-condition") != symbol {
			r.t.Errorf("the condition is in %v", all)
		}
	}
	return a
}

// ask asks for an operation of a node.
func (r *pair) ask(operation string, status int, body ...any) answered {
	r.t.Helper()
	application := append(frames.Map{"operation", "com.microsoft:" + operation, "associated-link-name", fmt.Sprint(ofLinks, " ", receiver)}, r.timeout...)
	r.request(r.back(), application, frames.Map(body))
	a := r.answer()
	if a.status != status {
		r.t.Fatalf("%s %.500s: %v, not %d", operation, fmt.Sprint(body...), a, status)
	}
	return a
}

// put puts a token, and returns the status of the answer.
func (r *pair) put(audience, token string, expires any) answered {
	r.t.Helper()
	application := frames.Map{"operation", "put-token", "type", "servicebus.windows.net:sastoken", "name", audience}
	if expires != nil {
		application = append(application, "expiration", expires)
	}
	r.request(r.back(), application, token)
	return r.answer()
}

// putToken puts a token for the namespace.
func (p *player) putToken(k sdk, channel uint16) {
	p.t.Helper()
	audience := "sb://" + p.host + "/"
	if a := p.pair(k, channel, "$cbs").put(audience, busToken(audience), k.expires); a.status != 202 {
		p.t.Fatalf("the token is answered with %v", a)
	}
}

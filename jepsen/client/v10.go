package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

// session10 is a session of AMQP 1.0: it publishes on one link for each exchange and key, and receives on one for each
// subscription. Reading and publishing cost its process little.
type session10 struct {
	conn    net.Conn
	in      *bufio.Reader
	queues  string                 // begins their addresses
	answers chan amqp.Confirmation // nil: it publishes nothing
	closed  chan *amqp.Error       // of capacity 1
	done    chan struct{}          // closed when nothing is read any more

	mu      lock // held while frames are written, so that they go in order
	changed *sync.Cond
	ended   bool   // nothing is read any more
	over    bool   // the broker has answered the end
	next    uint32 // id of the next delivery to the broker
	window  uint32 // ids below it may be sent
	senders map[string]*sender10
	links   []link10 // by handle
	floor   uint32   // id of the first delivery from the broker that is not settled
	came    uint32   // transfers
	out     []byte   // reused

	body  []byte // of the frame that is read, reused
	beats bool   // the broker says something within idle
}

// sender10 is a link to publish on.
type sender10 struct {
	handle uint32
	limit  uint32 // how many may be sent in all
	count  uint32 // how many have been
}

// link10 is a link of either direction.
type link10 struct {
	sender   *sender10
	attached bool
	refusal  string

	// Of a subscription.
	tag       string
	to        chan amqp.Delivery
	abandoned <-chan struct{}
	prefetch  uint32
	received  uint32 // deliveries
	settled   uint32
	granted   uint32 // count up to which deliveries may come
	ending    bool   // no more is wanted
	finished  bool   // to is closed
	parts     []byte // of a delivery that is not complete
	id        uint32 // its
}

// lock is a mutex whose holder may wait for time to pass under virtual time.
type lock chan struct{}

// Lock implements sync.Locker.
func (l lock) Lock() { l <- struct{}{} }

// Unlock implements sync.Locker.
func (l lock) Unlock() { <-l }

// errEnded is what comes of using a session that is over.
var errEnded = errors.New("the connection is closed")

// dial10 logs in and opens a session. address is what follows the scheme in a URI; queues begins the addresses of queues.
func dial10(ctx context.Context, dial Dialer, address, queues string) (_ *session10, err error) {
	u, err := url.Parse("amqp://" + address)
	if err != nil {
		return nil, err
	}
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := dial(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	l := &session10{conn: conn, queues: queues, in: bufio.NewReaderSize(conn, readBuffer), closed: make(chan *amqp.Error, 1), done: make(chan struct{}), mu: make(lock, 1), senders: map[string]*sender10{}}
	l.changed = sync.NewCond(l.mu)
	if err := conn.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return nil, err
	}
	if err := l.open(u); err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	l.beats = true
	go l.read()
	go l.beat()
	return l, nil
}

// ample is the window and the frame size that the client announces.
const ample = 1 << 30

// idle is how long the broker may say nothing, and twice how long the client does: a connection to a node that is gone
// would stay for long otherwise.
const idle = 10 * time.Second

// beat says something now and then.
func (l *session10) beat() {
	for {
		select {
		case <-l.done:
			return
		case <-time.After(idle / 2):
		}
		l.mu.Lock()
		_, err := l.conn.Write(frames.AppendFrame(nil, frames.TypeAMQP, 0, nil))
		l.mu.Unlock()
		if err != nil {
			return // reading fails, too
		}
	}
}

// open makes the handshakes, all of which may be sent at once.
func (l *session10) open(u *url.URL) error {
	password, _ := u.User.Password()
	login, opened := frames.Header(3), frames.Header(0)
	_, err := l.conn.Write(Join(login,
		frames.Encode(0, "sasl-init", frames.Fields{"mechanism": "PLAIN", "initial-response": "\x00" + u.User.Username() + "\x00" + password}),
		opened,
		frames.Encode(0, "open", frames.Fields{"container-id": "jepsen", "max-frame-size": ample, "idle-time-out": int(idle.Milliseconds())}),
		frames.Encode(0, "begin", frames.Fields{"next-outgoing-id": 0, "incoming-window": ample, "outgoing-window": ample})))
	if err != nil {
		return err
	}
	f, err := l.await(login, codeSASLOutcome)
	if err != nil {
		return err
	}
	if refused := uint10(f[0]); refused != 0 {
		return fmt.Errorf("login refused with %d", refused)
	}
	f, err = l.await(opened, codeBegin)
	l.window = uint32(uint10(f[2]))
	return err
}

// await reads a protocol header and frames up to one.
func (l *session10) await(header []byte, wanted byte) (f list, err error) {
	var got [8]byte
	if _, err := io.ReadFull(l.in, got[:]); err != nil {
		return f, err
	}
	if !bytes.Equal(got[:], header) {
		return f, fmt.Errorf("the broker answers with %q", got)
	}
	for {
		code, f, _, err := l.frame()
		switch {
		case err != nil || code == wanted:
			return f, err
		case code == codeEnd || code == codeClose:
			return f, errors.New(reason10(f[0]))
		}
	}
}

// frame reads one that is not empty.
func (l *session10) frame() (code byte, f list, payload []byte, err error) {
	for {
		var head [8]byte
		if l.beats && l.in.Buffered() == 0 {
			_ = l.conn.SetReadDeadline(time.Now().Add(idle)) // reading fails on a closed one anyway
		}
		if _, err = io.ReadFull(l.in, head[:]); err != nil {
			return 0, f, nil, err
		}
		n := int(binary.BigEndian.Uint32(head[:])) - int(head[4])*4
		if n < 0 || head[4] != 2 {
			return 0, f, nil, errDamaged
		}
		if n == 0 {
			continue
		}
		l.body = append(l.body[:0], make([]byte, n)...)
		if _, err = io.ReadFull(l.in, l.body); err != nil {
			return 0, f, nil, err
		}
		code, value, err := content(l.body)
		if err != nil {
			return 0, f, nil, err
		}
		if f, err = fields(value); err != nil {
			return 0, f, nil, err
		}
		return code, f, value[size10(value):], nil
	}
}

// reason10 is the text of an error field.
func reason10(b []byte) string {
	_, value, err := content(b)
	if err != nil {
		return ""
	}
	f, _ := fields(value) // what cannot be read is empty
	return text10(f[0]) + ": " + text10(f[1])
}

// read processes frames until there are no more.
func (l *session10) read() {
	why := ""
	for {
		code, f, payload, err := l.frame()
		if err != nil {
			break
		}
		if code == codeEnd || code == codeClose {
			why = reason10(f[0])
			l.mu.Lock()
			l.over = code == codeEnd
			l.mu.Unlock()
			break
		}
		l.take(code, f, payload)
	}
	l.mu.Lock()
	l.ended = true
	l.changed.Broadcast()
	for i := range l.links {
		l.finish(&l.links[i])
	}
	l.mu.Unlock()
	if l.answers != nil {
		close(l.answers)
	}
	if why != "" {
		l.closed <- &amqp.Error{Reason: why}
	}
	close(l.closed)
	close(l.done)
}

// take processes one frame.
func (l *session10) take(code byte, f list, payload []byte) {
	switch code {
	case codeAttach:
		l.mu.Lock()
		l.links[uint10(f[1])].attached = true
		l.changed.Broadcast()
		l.mu.Unlock()
	case codeDetach:
		l.detached(uint10(f[0]), reason10(f[2]))
	case codeFlow:
		l.flow(f)
	case codeTransfer:
		l.deliver(f, payload)
	case codeDisposition:
		if is(f[0]) && l.answers != nil { // of what was published
			last := f[2]
			if isNull(last) {
				last = f[1]
			}
			outcome, _, _ := content(f[4]) // what cannot be read is no acceptance
			for id := uint32(uint10(f[1])); ; id++ {
				l.answers <- amqp.Confirmation{DeliveryTag: uint64(id) + 1, Ack: outcome == codeAccepted}
				if id == uint32(uint10(last)) {
					break
				}
			}
		}
	}
}

func (l *session10) detached(handle uint64, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := &l.links[handle]
	k.refusal, k.attached = "detached: "+why, true
	l.finish(k)
	l.changed.Broadcast()
}

// finish says that a subscription has no more deliveries.
func (l *session10) finish(k *link10) {
	if k.to != nil && !k.finished {
		k.finished = true
		close(k.to)
	}
}

func (l *session10) flow(f list) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !isNull(f[0]) {
		l.window = uint32(uint10(f[0]) + uint10(f[1]))
	}
	if !isNull(f[4]) {
		k := &l.links[uint10(f[4])]
		switch {
		case k.sender != nil:
			k.sender.limit = uint32(uint10(f[5]) + uint10(f[6]))
		case k.ending && uint10(f[6]) == 0:
			l.finish(k)
		}
	}
	l.changed.Broadcast()
}

// Confirms has publishes confirmed.
func (l *session10) Confirms(window int) (<-chan amqp.Confirmation, error) {
	l.answers = make(chan amqp.Confirmation, window)
	return l.answers, nil
}

// attach opens a link and waits until it is open. The mutex is held.
func (l *session10) attach(k link10, source, target frames.Fields, properties frames.Map) (handle uint32, err error) {
	handle = uint32(len(l.links))
	l.links = append(l.links, k)
	name, receives := k.tag, k.sender == nil
	if !receives || name == "" {
		name = fmt.Sprint(k.tag, " ", handle)
	}
	if _, err := l.conn.Write(frames.Encode(0, "attach", frames.Fields{
		"name": name, "handle": handle, "role": receives, "snd-settle-mode": 0, "rcv-settle-mode": 0, "initial-delivery-count": 0,
		"source": frames.Composite{Name: "source", Fields: source}, "target": frames.Composite{Name: "target", Fields: target}, "properties": properties,
	})); err != nil {
		return 0, err
	}
	for !l.links[handle].attached && !l.ended {
		l.changed.Wait()
	}
	if l.ended {
		return 0, errEnded
	}
	if why := l.links[handle].refusal; why != "" {
		return 0, errors.New(why)
	}
	return handle, nil
}

// Publish sends a message as soon as its link has credit.
func (l *session10) Publish(_ context.Context, exchange, key string, m amqp.Publishing) (tag uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to := l.queues + url.PathEscape(key)
	if exchange != "" {
		to = "/exchanges/" + url.PathEscape(exchange) + "/" + url.PathEscape(key)
	}
	s := l.senders[to]
	if s == nil {
		s = &sender10{}
		if s.handle, err = l.attach(link10{sender: s, tag: to}, nil, frames.Fields{"address": to}, nil); err != nil {
			return 0, err
		}
		l.senders[to] = s
	}
	for !l.ended && l.links[s.handle].refusal == "" && (s.limit == s.count || l.window == l.next) {
		l.changed.Wait()
	}
	if l.ended || l.links[s.handle].refusal != "" {
		return 0, errEnded
	}
	id := l.next
	l.next++
	s.count++
	l.out = appendTransfer(l.out[:0], s.handle, id, &m)
	_, err = l.conn.Write(l.out)
	return uint64(id) + 1, err
}

// appendTransfer appends the frame of a message.
func appendTransfer(dst []byte, handle, id uint32, m *amqp.Publishing) []byte {
	dst = append(dst, 0, 0, 0, 0, 2, 0, 0, 0, 0x00, 0x53, codeTransfer, 0xc0, 19, 5, 0x70)
	dst = append(binary.BigEndian.AppendUint32(dst, handle), 0x70)
	dst = append(binary.BigEndian.AppendUint32(dst, id), 0xa0, 4)
	dst = append(binary.BigEndian.AppendUint32(dst, id), 0x43, 0x42)
	dst = append(dst, 0x00, 0x53, sectionHeader, 0xc0, 0, 3)
	at := len(dst)
	if m.DeliveryMode == amqp.Persistent {
		dst = append(dst, 0x41)
	} else {
		dst = append(dst, 0x42)
	}
	if m.Priority > 0 {
		dst = append(dst, 0x50, m.Priority)
	} else {
		dst = append(dst, 0x40)
	}
	if ttl, err := strconv.ParseUint(m.Expiration, 10, 32); err == nil {
		dst = binary.BigEndian.AppendUint32(append(dst, 0x70), uint32(ttl))
	} else {
		dst = append(dst, 0x40)
	}
	dst[at-2] = byte(len(dst) - at + 1)
	if len(m.Headers) > 0 {
		dst = frames.Append(dst, frames.Described{Descriptor: uint64(sectionAnnotations), Value: map10(m.Headers)})
	}
	if m.MessageId != "" || m.CorrelationId != "" {
		dst = frames.Append(dst, frames.Composite{Name: "properties", Fields: frames.Fields{"message-id": m.MessageId, "correlation-id": m.CorrelationId}})
	}
	dst = append(dst, 0x00, 0x53, sectionData, 0xb0)
	dst = append(binary.BigEndian.AppendUint32(dst, uint32(len(m.Body))), m.Body...)
	binary.BigEndian.PutUint32(dst, uint32(len(dst)))
	return dst
}

// Subscribe consumes from several queues.
func (l *session10) Subscribe(queues []string, tag func(queue string) string, prefetch int, arguments amqp.Table, ended <-chan struct{}) (<-chan amqp.Delivery, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []<-chan amqp.Delivery
	for _, queue := range queues {
		k := link10{tag: tag(queue), to: make(chan amqp.Delivery, prefetch), prefetch: uint32(prefetch), abandoned: ended}
		handle, err := l.attach(k, frames.Fields{"address": l.queues + url.PathEscape(queue)}, nil, map10(arguments))
		if err == nil {
			err = l.grant(handle, false)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, k.to)
	}
	return merged(all, ended), nil
}

// grant gives a subscription the credit that it lacks. The mutex is held.
func (l *session10) grant(handle uint32, echo bool) error {
	k := &l.links[handle]
	credit := k.settled + k.prefetch - k.received
	if k.ending {
		credit = 0
	}
	k.granted = k.received + credit
	_, err := l.conn.Write(frames.Encode(0, "flow", frames.Fields{
		"next-incoming-id": l.came, "incoming-window": ample, "next-outgoing-id": l.next, "outgoing-window": ample,
		"handle": handle, "delivery-count": k.received, "link-credit": credit, "echo": echo,
	}))
	return err
}

// deliver takes in a transfer.
func (l *session10) deliver(f list, payload []byte) {
	l.mu.Lock()
	l.came++
	handle := uint10(f[0])
	k := &l.links[handle]
	if !isNull(f[1]) && len(k.parts) == 0 {
		k.id = uint32(uint10(f[1]))
	}
	if is(f[5]) || len(k.parts) > 0 {
		k.parts = append(k.parts, payload...)
		if is(f[5]) {
			l.mu.Unlock()
			return
		}
		payload = k.parts
	}
	d := delivery10(payload)
	k.parts = nil
	d.Acknowledger, d.ConsumerTag, d.DeliveryTag = l, k.tag, handle<<32|uint64(k.id)+1
	k.received++
	to, abandoned, finished := k.to, k.abandoned, k.finished
	l.mu.Unlock()
	if finished {
		return
	}
	select {
	case to <- d:
	case <-abandoned:
	}
}

// delivery10 reads a message.
func delivery10(b []byte) (d amqp.Delivery) {
	for len(b) > 0 {
		code, value, err := content(b)
		n := size10(b)
		if err != nil || n == 0 {
			return d
		}
		switch code {
		case sectionHeader:
			f, _ := fields(value) // what cannot be read is empty
			d.Redelivered = !is(f[3])
			if !isNull(f[2]) {
				d.Expiration = strconv.FormatUint(uint10(f[2]), 10)
			}
		case sectionAnnotations:
			if bytes.Contains(value[:size10(value)], []byte("x-opt-deaths")) {
				d.Headers = amqp.Table{"x-death": deaths10(value)} // a dead letter always says that it may be redelivered
			}
		case sectionProperties:
			f, _ := fields(value)
			d.MessageId, d.CorrelationId = text10(f[0]), text10(f[5])
		case sectionData:
			d.Body = bytes.Clone(bytes10(value))
		}
		b = b[n:]
	}
	return d
}

// deaths10 is a death history as 0-9-1 has it.
func deaths10(annotations []byte) (all []any) {
	v, _, _ := frames.Parse(annotations) // what cannot be read is no map
	m, _ := v.(frames.Map)
	deaths, _ := m.Get("x-opt-deaths").(frames.Array)
	for _, one := range deaths.Values {
		t, of := amqp.Table{}, one.(frames.Map)
		for _, name := range of.Keys() {
			switch v := of.Get(name); name {
			case "queue", "reason", "exchange":
				t[name] = frames.Text(v)
			case "count":
				t[name] = int64(frames.Int(v))
			case "ttl":
				t["original-expiration"] = strconv.Itoa(frames.Int(v))
			case "routing-keys":
				var keys []any
				for _, k := range v.(frames.Array).Values {
					keys = append(keys, frames.Text(k))
				}
				t[name] = keys
			}
		}
		all = append(all, t)
	}
	return all
}

// Ack accepts a delivery, or all up to it.
func (l *session10) Ack(tag uint64, multiple bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := uint32(tag) - 1
	first := last
	if multiple {
		first = l.floor
	}
	if first == l.floor {
		l.floor = last + 1
	}
	return l.settle(tag>>32, first, last, "accepted")
}

// Nack is like Reject.
func (l *session10) Nack(tag uint64, _, requeue bool) error { return l.Reject(tag, requeue) }

// Reject releases a delivery, or has it die.
func (l *session10) Reject(tag uint64, requeue bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	outcome := "rejected"
	if requeue {
		outcome = "released"
	}
	return l.settle(tag>>32, uint32(tag)-1, uint32(tag)-1, outcome)
}

// settle ends deliveries of a link and gives it credit for more. The mutex is held.
func (l *session10) settle(handle uint64, first, last uint32, outcome string) error {
	if l.ended {
		return errEnded
	}
	if _, err := l.conn.Write(frames.Encode(0, "disposition", frames.Fields{
		"role": true, "first": first, "last": last, "settled": true, "state": frames.Composite{Name: outcome},
	})); err != nil {
		return err
	}
	k := &l.links[handle]
	k.settled += last - first + 1
	if !k.ending && k.settled+k.prefetch-k.granted >= max(1, k.prefetch/4) {
		return l.grant(uint32(handle), false)
	}
	return nil
}

// Cancel asks for no more deliveries. The subscription ends once those on their way have come.
func (l *session10) Cancel(tag string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for handle := range l.links {
		if k := &l.links[handle]; k.to != nil && k.tag == tag {
			k.ending = true
			return l.grant(uint32(handle), true)
		}
	}
	return errors.New("no subscription has the tag " + tag)
}

// Closed gets the reason when the broker ends the channel.
func (l *session10) Closed() <-chan *amqp.Error { return l.closed }

// Close ends the session, whose answer says that all is settled.
func (l *session10) Close() error {
	l.mu.Lock()
	_, err := l.conn.Write(frames.Encode(0, "end", nil))
	l.mu.Unlock()
	if err == nil {
		<-l.done
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.over {
			err = errEnded
		}
	}
	if err == nil {
		_, err = l.conn.Write(frames.Encode(0, "close", nil))
	}
	return errors.Join(err, l.conn.Close())
}

// Abandon drops the connection.
func (l *session10) Abandon() {
	_ = l.conn.Close()
	for range l.done { // nothing but its end comes
	}
}
